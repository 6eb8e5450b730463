"""Async rewards are awaited in one event loop a process, as verl awaits them."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recipes.paths import ROOT
from recipes.preflight.reward import try_reward
from recipes.rewards import easyr1 as easyr1_reward
from recipes.rewards import weighted
from recipes.rewards.function import Call, awaited, load_function

KEEPS_A_CLIENT = """
import asyncio
CLIENT = asyncio.Lock()  # belongs to the loop in which it was first waited for, as the connections of a client do

async def slowly(number):
    async with CLIENT:
        await asyncio.sleep(0)
        return number

async def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    both = await asyncio.gather(slowly(1.0), slowly(len(solution_str)))
    return {"score": sum(both), "acc": ground_truth in solution_str}
"""
CALL = {"data_source": "x", "solution_str": "four", "ground_truth": "4", "extra_info": {}}


def test_a_reward_keeps_its_client_between_responses(tmp_path):
    path = str(tmp_path / "judge.py")
    Path(path).write_text(KEEPS_A_CLIENT)
    reward = load_function(path)
    assert [reward.score(Call("x", text, "4", {})).score for text in ("a", "ab", "abc")] == [2.0, 3.0, 4.0]
    rows = [Call("x", "", "4", {}), Call("x", "", "5", {})]
    assert try_reward(path, "verl", rows) == []
    for _ in range(2):
        assert weighted.compute_score(**CALL, rewards=[path], weights=[1.0])["score"] == 5.0
        batch = [{"response": "four", "ground_truth": "4"}] * 2
        assert [each["overall"] for each in easyr1_reward.compute_score_batch(batch, path)] == [5.0, 5.0]


def test_threads_wait_at_the_same_time():
    met = threading.Barrier(3)

    async def meet():
        await asyncio.get_running_loop().run_in_executor(None, met.wait, 60)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: awaited(meet()), range(3))) == [None] * 3


def test_errors_and_exits_reach_the_caller_and_the_loop_goes_on():
    async def fail(error):
        raise error

    async def of_a_task():
        await asyncio.gather(fail(SystemExit()))

    async def inside_the_loop():
        return awaited(of_a_task())

    raising = {ValueError: fail(ValueError()), SystemExit: of_a_task(), RuntimeError: inside_the_loop()}
    for error, wrong in raising.items():
        with pytest.raises(error):
            awaited(wrong)
        assert awaited(asyncio.sleep(0, 4)) == 4


SIGNALS_AND_FORKS = """
import asyncio, os, signal, sys, threading
from recipes.rewards.function import awaited
ended = threading.Event()

async def wait():
    try:
        while sys._current_frames()[threading.main_thread().ident].f_code.co_name != "wait":
            await asyncio.sleep(0.01)  # until the main thread waits for the result
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(600)
    finally:
        ended.set()

try:
    awaited(wait())
except KeyboardInterrupt:
    print("interrupted", ended.wait(60))
child = os.fork()
if not child:
    os._exit(awaited(asyncio.sleep(0, 4)))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), awaited(asyncio.sleep(0, 4)))
"""


def test_ctrl_c_ends_the_wait_and_the_reward_and_a_fork_has_a_loop_of_its_own():
    code = [sys.executable, "-c", SIGNALS_AND_FORKS]
    done = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout, done.returncode) == ("interrupted True\n4 4\n", 0), done.stderr
