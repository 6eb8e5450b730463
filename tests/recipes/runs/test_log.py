"""The trainer's log: lines, and the error that ended it."""

import pytest

from recipes.runs.log import DroppedRows, LogReader, clean, first_error


def test_half_lines_wait_carriage_returns_end_lines_and_bytes_that_are_no_text_pass(tmp_path):
    log = tmp_path / "train.log"
    assert LogReader(log).read() == []
    log.write_text("before\n")
    reader = LogReader(log, offset=log.stat().st_size)
    with log.open("ab", buffering=0) as file:
        file.write(b"one\rtw")
        assert [line.text for line in reader.read()] == ["one"]
        file.write(b"o\n\n\xff\xfe three\n")
        assert [line.text[-5:] for line in reader.read()] == ["two", "three"]
    assert reader.read() == []


def test_rows_that_the_trainers_filter_drops_are_said_with_their_number():
    printed = ["dataset len: 285", "filter dataset len: 284", "dataset len: 30", "filter dataset len: 30"]
    printed += ["dataset len: 285", "filter dataset len: 284"]  # the same file validates
    printed += ["dataset len: 300", "selected 50 random samples out of 300", "filter dataset len: 48"]
    dropped = DroppedRows()
    said = [note for line in printed if (note := dropped.read(clean(f"(TaskRunner pid=7) {line}")))]
    assert [note.split(":")[0] for note in said] == [f"the trainer dropped {n} rows" for n in ("1 of 285", "2 of 50")]


RAY_CHAIN = """\
\x1b[36m(TaskRunnerV1 pid=16491)\x1b[0m INFO:2026-11-21 20:09:50,257:Platform override from VERL_PLATFORM: cpu
Error executing job with overrides: ['a=1']
Traceback (most recent call last):
  File "/env/bin/main_ppo.py", line 100, in main
    run_ppo(config)
  File "/env/site-packages/ray/_private/worker.py", line 990, in get_objects
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError(KeyError): \x1b[36mray::TaskRunnerV1.run()\x1b[39m (pid=16491, ip=192.0.2.2)
  File "/env/site-packages/verl/trainer/main_ppo.py", line 50, in run
    trainer.fit()
  File "/opt/mine/reward.py", line 7, in compute_score
    return table[key]
KeyError: 'target'
"""

INTERLEAVED = """\
(WorkerDict pid=1) Traceback (most recent call last):
(RewardLoopWorker pid=2) Traceback (most recent call last):
(WorkerDict pid=1)   File "a.py", line 1, in forward
(RewardLoopWorker pid=2)   File "b.py", line 2, in judge
(WorkerDict pid=1) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
(RewardLoopWorker pid=2) ZeroDivisionError: division by zero
"""

SURVIVED = """\
(TaskRunnerV1 pid=1) Traceback (most recent call last):
(TaskRunnerV1 pid=1)   File "tracking.py", line 5, in login
(TaskRunnerV1 pid=1) ConnectionError: no network, going on offline
(WorkerDict pid=2) Traceback (most recent call last):
(WorkerDict pid=2)   File "actor.py", line 9, in update
(WorkerDict pid=2) ValueError: batch of 7
Traceback (most recent call last):
  File "/env/bin/main_ppo.py", line 100, in main
    run_ppo(config)
ray.exceptions.RayTaskError(ValueError): ray::TaskRunnerV1.run() (pid=1, ip=192.0.2.2)
  File "actor.py", line 9, in update
ValueError: batch of 7
"""


SILENT = """\
Traceback (most recent call last):
  File "/env/site-packages/ray/_private/worker.py", line 1053, in get_objects
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError(ActorUnavailableError): \x1b[36mray::WorkerDict.update_weights()\x1b[39m (pid=1, repr=<x>)
  File "/env/site-packages/verl/workers/engine_workers.py", line 804, in update_weights
    await self.rollout.update_weights(
ray.exceptions.ActorUnavailableError: The actor 2e is unavailable: watchdog timeout rpc_code: 14.
"""
UNAVAILABLE = (
    "a process no longer answers (ActorUnavailableError: The actor 2e is unavailable: watchdog timeout rpc_code: 14.)"
)


SURVIVED_EARLIER = """\
(Worker pid=2) Traceback (most recent call last):
(Worker pid=2)   File "cache.py", line 3, in read
(Worker pid=2) OSError: not this
(AgentLoopWorkerTQ pid=3) ERROR:2026-11-23 08:07:18,003:Error in _run_prompt for uid=acf20a20
(AgentLoopWorkerTQ pid=3) Traceback (most recent call last):
(AgentLoopWorkerTQ pid=3)   File "/env/verl/experimental/reward_loop/reward_manager/naive.py", line 75, in run_single
(AgentLoopWorkerTQ pid=3)   File "/opt/mine/reward.py", line 7, in helper
(AgentLoopWorkerTQ pid=3) ValueError: boom
Traceback (most recent call last):
  File "/env/ray/worker.py", line 3009, in get
ray.exceptions.RayTaskError(RuntimeError): ray::TaskRunnerV1.run() (pid=1)
  File "recipes/engines/samplers.py", line 40, in _sampleable_terminal_keys
RuntimeError: the reward or vLLM raised for 1 of the prompts; the first error is in the log
"""


PROFILED = "AssertionError: Error in memory profiling. Initial free memory 112 GiB"
CORE = f"""\
Traceback (most recent call last):
  File "probe.py", line 3, in probe
ModuleNotFoundError: No module named 'flash_attn'
falling back
(Server pid=5) (Worker pid=6) ERROR 11-30 15:16:37 [executor.py:1000] Traceback (most recent call last):
(Server pid=5) (Worker pid=6) ERROR 11-30 15:16:37 [executor.py:1000]   File "worker.py", line 480, in determine
(Server pid=5) (Worker pid=6) ERROR 11-30 15:16:37 [executor.py:1000] {PROFILED}
(Server pid=5) (EngineCore pid=7) ERROR 11-30 15:16:38 [core.py:1231] Traceback (most recent call last):
(Server pid=5) (EngineCore pid=7) ERROR 11-30 15:16:38 [core.py:1231]   File "executor.py", line 391, in get_response
(Server pid=5) (EngineCore pid=7) ERROR 11-30 15:16:38 [core.py:1231] RuntimeError: Worker failed with error 'no memory'
Traceback (most recent call last):
  File "utils.py", line 1272, in wait_for_engine_startup
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore': 1}}
"""


def lines(text):
    return [clean(line) for line in text.splitlines()]


ODD = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: odd\n'
COUNTED = ODD.replace("ValueError: odd", "pydantic.ValidationError: 2 validation errors for M\n  max_len must be 9")
COUNTED += "    For further information visit https://errors.pydantic.dev\n  seed is no number\n"
NUMA = "(CpuHttpServer pid=9) Warning: NUMA binding: using MEMBIND. (function init_cpu_memory_env)\n"
WARNING = "a.py:32: UserWarning: engine is not available: ModuleNotFoundError('x')\n  warnings.warn(1)\n"


@pytest.mark.parametrize(
    ("text", "error", "frame"),
    [
        (RAY_CHAIN, "KeyError: 'target'", "/opt/mine/reward.py:7 in compute_score"),
        (INTERLEAVED, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "a.py:1 in forward"),
        (SURVIVED, "ValueError: batch of 7", "actor.py:9 in update"),
        (SURVIVED_EARLIER, "ValueError: boom", "/opt/mine/reward.py:7 in helper"),
        (ODD.replace("ValueError", "some other print: here\nValueError"), "ValueError: odd", "a.py:1 in f"),
        (COUNTED, "pydantic.ValidationError: 2 validation errors for M max_len must be 9", "a.py:1 in f"),
        (SILENT, UNAVAILABLE, "/env/site-packages/verl/workers/engine_workers.py:804 in update_weights"),
        (CORE, "RuntimeError: Worker failed with error 'no memory'", "executor.py:391 in get_response"),
        ("\n".join(f"[rank0]: {line}" for line in ODD.splitlines()), "ValueError: odd", "a.py:1 in f"),
        ("fine\nError: port in use\nbye", "Error: port in use", ""),
        (WARNING, "", ""),
    ],
)
def test_the_first_real_exception_and_where_it_was_raised(text, error, frame):
    found = first_error(lines(text))
    assert (found.error, found.frame) == (error, frame)


REWARD = "recipes.rewards.contract.RewardError: the reward"


@pytest.mark.parametrize(
    ("what", "place", "frame"),
    [
        ("raised ValueError: no (x); y", "/p q/r.py:7", "/p q/r.py:7"),
        ("'s 'score' is nan", "/p/r.py:3 score", "/p/r.py:3 in score"),
    ],
)
def test_where_a_reward_failed_is_the_users_line_and_its_advice_is_the_fix(what, place, frame):
    said = f"{REWARD}{what} (row 3-a, {place}, response 'a (b); c')"
    found = first_error(lines(ODD.replace("ValueError: odd", f"{said}; return a number; always")))
    assert found == (said, frame, "return a number; always")


@pytest.mark.parametrize(
    ("before", "error", "advice"),
    [
        ("", "RuntimeError: unable to write to file </dev/shm/torch_1>: No space left on device (28)", "--shm-size"),
        ("(raylet) A worker died or was killed while executing a task", "RuntimeError: no trajectories", "dmesg"),
        (f"{NUMA}A worker died or was killed while executing a task", "RuntimeError: no trajectories", "dmesg"),
        ("", "AttributeError: '_C' object has no attribute 'init_cpu_memory_env'", "libnuma1"),
        ("", PROFILED, "type the command again"),
        ("", "RuntimeError: PytorchStreamWriter failed writing file data/3", "ARTIFACTS_DIR"),
        ("(EngineCore pid=9) torch.OutOfMemoryError: CUDA out of memory.", "EngineDeadError: ended", "GPU_MEMORY_UTIL"),
        ("", "Exception: wake_up failed: CUDA Error: out of memory at /csrc/cumem_allocator.cpp", "GPU_MEMORY_UTIL"),
    ],
)
def test_known_errors_come_with_advice(before, error, advice):
    """The rest of the log advises where the error does not."""
    found = first_error(lines(f"{before}\n{ODD.replace('ValueError: odd', error)}"))
    assert advice in found.hint
