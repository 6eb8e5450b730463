"""LaTeX: verdicts from threads, within bounded time; verdicts.txt has what is equal."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recipes.rewards.loading import load_reward

dispatch = load_reward("reward_functions/dispatch.py")
latex = dispatch.latex
math_verify = pytest.importorskip("math_verify", reason="the reward source math: math-verify is not installed")


def test_from_threads_where_math_verify_alone_raises():
    """verl calls rewards from an executor's threads; SIGALRM can only be set on the main one."""
    with ThreadPoolExecutor(4) as pool:
        alone = pool.submit(math_verify.parse, "$x+1$").exception()
        answers = [f"\\boxed{{{number}x + x}}" for number in range(12)]
        results = list(pool.map(lambda text: dispatch.compute_score("math", text, "6x"), answers))
    assert "threaded environment" in str(alone), "math-verify works in threads now: the helper process could go"
    assert [result["accuracy"] for result in results] == [float(number == 5) for number in range(12)]


def test_endless_work_ends_and_the_next_answer_is_judged(monkeypatch):
    monkeypatch.setattr(latex, "SECONDS", 1)
    begin = time.monotonic()
    result = dispatch.compute_score("math", "\\boxed{10^{10^{10}}}", "3")
    assert (result["score"], result["reason"]) == (0.0, "timeout")
    assert time.monotonic() - begin < latex.HARD_S
    assert dispatch.compute_score("math", "\\boxed{2y}", "y+y")["reason"] == "correct"


@pytest.fixture
def helper(monkeypatch, tmp_path):
    """The client, before a helper that needs no SymPy: it finds everything equal but what is to be stopped at."""
    file = tmp_path / "helper.py"
    file.write_text("print('ready', flush=True)\nwhile True:\n    input()\n    print('correct', flush=True)\n")
    monkeypatch.setattr(latex, "HELPER", file)
    monkeypatch.setenv("SECRET_TOKEN", "do-not-tell")
    helper = latex.Helper()
    assert helper.ask("$1$", "$1$") == "correct"
    yield helper
    helper.end()


def test_a_helper_that_is_late_or_dies_is_replaced(helper, monkeypatch):
    """A comparison that nothing in its process would end: C code that never comes back."""
    first = helper.process.pid
    assert b"do-not-tell" not in Path(f"/proc/{first}/environ").read_bytes()
    os.kill(first, signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr(latex, "HARD_S", 0.2)
        assert helper.ask("$1$", "$2$") == "timeout"
    assert not Path(f"/proc/{first}").exists()
    assert helper.ask("$1$", "$1$") == "correct"
    assert helper.process.pid != first
    os.kill(helper.process.pid, signal.SIGKILL)
    helper.process.wait()
    assert helper.ask("$1$", "$1$") == "timeout"
    assert helper.process is None
    assert helper.ask("$1$", "$1$") == "correct"


def test_without_math_verify(monkeypatch, tmp_path):
    (tmp_path / "math_verify.py").write_text("raise ModuleNotFoundError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(latex, "HELPER_PROCESS", latex.Helper())
    (problem,) = dispatch.check_sources([("math", "7")])
    assert "pip install math-verify" in problem
    with pytest.raises(RuntimeError) as caught:
        dispatch.compute_score("math", "\\boxed{z}", "7")
    assert type(caught.value) is RuntimeError, "Ray's driver cannot load a class of this file"
