"""Faults, interruptions, damages and changes of one experiment of the real trainer, and how the same command goes on.

Countdown's launcher is started four times: a worker is killed while it saves, Ctrl-C ends the resumed run, a third
start goes on with other settings, and in the last one the reward raises. `FAULTS=all` injects all faults one after the
other, `FAULTS=some` three, `FAULTS=vllm@sync,gcs@update` those, and prints the rows of that page. `RANKS=2` trains on
two ranks, of which one is killed.
"""

import math
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from recipes.config import load
from recipes.engines.checkpoints import EVERYTHING, MODEL, Checkpoint, checkpoint_at, last_checkpoint
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.preflight import resume
from recipes.responses.files import ScoredFile, pair, read_responses
from recipes.runs.folder import read_changes
from recipes.runs.health import ROLLOUT_KL as KL
from recipes.runs.metrics import Step, read_history
from tests.recipes.engines.conftest import DIFFERENCE, EXACT, variables

pytestmark = pytest.mark.trainer(seconds=100)

LAUNCHER = ROOT / "examples" / "countdown" / "qwen3_4b_countdown_grpo.sh"
WITHIN_S = 60.0
SEGMENTS = "verl_weights_*"
"""Shared memory in which verl's trainer hands weights to vLLM."""
RANKS = int(os.environ.get("RANKS", "1"))
LR, NEW_LR = 1e-4, 3e-4
REWARD = f"""
import importlib.util

import bonus

spec = importlib.util.spec_from_file_location("countdown", {str(ROOT / "reward_functions" / "countdown.py")!r})
countdown = importlib.util.module_from_spec(spec)
spec.loader.exec_module(countdown)


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    result = countdown.compute_score(data_source, solution_str, ground_truth, extra_info)
    if bonus.raises() and len(solution_str) % 2:
        raise KeyError("odd")
    return {{**result, "score": result["score"] + bonus.BONUS}}
"""


@dataclass(frozen=True)
class Attempt:
    """One start of the launcher: its end, what it printed, seconds from the fault to the end, and what is left."""

    code: int
    text: str
    seconds: float
    left: list[str]


class Experiment:
    """Countdown on its tiny model, which saves after each step, with a reward of its own that imports a helper."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.artifacts = folder / "artifacts"
        self.checkpoints = self.artifacts / "checkpoints" / "countdown"
        self.run = self.artifacts / "runs" / "countdown"
        self.attempts = 0
        self.unlogged: set[int] = set()  # steps that were saved before the fault, whose metrics were not written yet
        self.rewards = folder / "rewards"
        self.rewards.mkdir()
        (self.rewards / "mine.py").write_text(REWARD)
        self.set_bonus(0.0)
        self.keys = (
            f"worker.reward.reward_function={self.rewards / 'mine.py'}",
            *("data.max_response_length=32", "worker.rollout.n=4", "trainer.save_freq=1"),
        )

    def set_bonus(self, bonus: float) -> None:
        """What the reward adds to each score; it raises for some responses while there is a file `broken`."""
        raises = f"def raises(): return os.path.exists({str(self.folder / 'broken')!r})"
        (self.rewards / "bonus.py").write_text(f"import os\nBONUS = {bonus}\n{raises}\n")

    @property
    def history(self) -> list[Step]:
        return read_history(self.run / "metrics.jsonl")

    @property
    def last(self) -> Checkpoint:
        return last_checkpoint(self.checkpoints)

    def rollouts(self, step: int) -> ScoredFile:
        return read_responses(self.run / "rollouts" / f"{step}.jsonl")

    def start(self, *keys: str, fault: str = "", interrupt_at: str = "", break_at: str = "", **more: str) -> Attempt:
        """Run the launcher to its end, with a fault, or with Ctrl-C or a broken reward at a line that begins so."""
        self.attempts += 1
        fired = self.folder / f"fired-{self.attempts}"
        injected = Path(__file__).with_name("injected")
        own = {"GPUS_PER_NODE": str(RANKS), "PYTHONPATH": f"{ROOT}:{injected}:{self.rewards}"}
        own |= {"FAULT": fault, "FAULT_FIRED": str(fired)}
        environ = variables(self.artifacts, **own | more)
        before, text = set(Path("/dev/shm").glob(SEGMENTS)), ""
        command = ["bash", str(LAUNCHER), *self.keys, *keys]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(command, env=environ, cwd=ROOT, text=True, **pipes) as launched:
            try:
                for line in launched.stdout:
                    text += line
                    if interrupt_at and line.startswith(interrupt_at):
                        launched.send_signal(signal.SIGINT)
                    if break_at and line.startswith(break_at):
                        (self.folder / "broken").touch()
            except BaseException:
                launched.terminate()
                raise
        seconds = time.time() - float(fired.read_text()) if fired.exists() else math.nan
        left = [*_processes(self.artifacts), *_unused_segments(before)]
        return Attempt(launched.returncode, text, seconds, left)

    def trained(self, *keys: str, **variables: str) -> str:
        """Return what the launcher printed of a run that ended well."""
        attempt = self.start(*keys, **variables)
        assert attempt.code == 0, attempt.text + (self.run / "train.log").read_text(errors="replace")[-4000:]
        return attempt.text

    def decision(self, *keys: str, **variables: str) -> str:
        """Return what a start would say first of its checkpoints, a refusal with its first way on."""
        recipe = load("countdown", arguments=[*self.keys, *keys], environ={"HARDWARE": "cpu", **variables})
        try:
            return "; ".join(resume.check_resume(recipe).remarks[:3])
        except RecipeError as error:
            return f"refused: {error.what}"


def _processes(artifacts: Path) -> list[str]:
    """Processes with the run's folder in their environment, which all of the run's descendants inherit."""
    left = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if process.environ().get("ARTIFACTS_DIR") == str(artifacts) and process.pid != os.getpid():
                left.append(f"{process.pid} {process.name()}")
    return left


def _unused_segments(before: set[Path]) -> list[str]:
    """Shared memory that is new and that no process maps; what another run uses beside this one is mapped.

    The files are listed first: one that another run makes meanwhile is not looked for among maps that were read before.
    """
    new, mapped = set(Path("/dev/shm").glob(SEGMENTS)) - before, ""
    for maps in Path("/proc").glob("[0-9]*/maps") if new else ():
        with suppress(OSError):  # the process has ended
            mapped += maps.read_text()
    return [str(path) for path in new if path.name not in mapped and path.exists()]


@dataclass(frozen=True)
class Fault:
    """A fault in the words of `injected/sitecustomize.py`, and what the launcher has to say."""

    what: str
    phase: str
    inject: str
    cause: str
    often: bool = False
    within_s: float = WITHIN_S


DEAD_SERVER = "process of CpuHttpServer died"
HUNG = "a process no longer answers|no output and no work"  # by Ray's keepalive, or by the watchdog if that is sooner
FAULTS = [
    Fault("worker killed", "saving", "worker@save", "process of WorkerDict died", often=True),
    Fault("vLLM server killed", "generating", "vllm@generate", DEAD_SERVER, often=True),
    Fault("disk full", "saving", "disk@save", "the disk is full", often=True),
    Fault("vLLM server hangs", "syncing weights", "vllm-stopped@sync", HUNG, within_s=500),
    Fault("trainer killed", "generating", "trainer@generate", "was killed"),
    Fault("trainer killed", "updating", "trainer@update", "was killed"),
    Fault("worker killed", "updating", "worker@update", "process of WorkerDict died"),
    Fault("vLLM server killed", "syncing weights", "vllm@sync", DEAD_SERVER),
    Fault("error in vLLM's worker", "receiving weights", "raises@receive", "injected"),
    Fault("Ray's raylet killed", "generating", "raylet@generate", "Ray's raylet was killed"),
    Fault("Ray's GCS killed", "updating", "gcs@update", "Ray's GCS was killed"),
    Fault("driver killed", "logging a saved step", "driver@log", "was killed"),
]


def _outcome(experiment: Experiment, fault: Fault, *keys: str) -> tuple[str, list[str], list[str]]:
    """Inject a fault; what the launcher printed, the row of the table, and what is not as promised."""
    attempt = experiment.start(*keys, fault=fault.inject, MAX_STEPS="40")
    while math.isnan(attempt.seconds) and "try again when it is less so" in attempt.text:
        attempt = experiment.start(*keys, fault=fault.inject, MAX_STEPS="40")  # Ray did not start on a busy machine
    steps, saved = [step.step for step in experiment.history], experiment.last.step
    found = [line.strip() for line in attempt.text.splitlines() if line.lstrip().startswith(("error:", "cause:"))]
    wrong = []
    if not attempt.seconds <= fault.within_s:
        wrong.append(f"ended after {attempt.seconds:.0f} s")
    if attempt.code == 0 or not re.search(fault.cause, attempt.text):
        wrong.append(f"exit code {attempt.code}, and not the cause {fault.cause!r}")
    if "Traceback" in attempt.text:
        wrong.append("a traceback")
    if attempt.left:
        wrong.append(f"left {attempt.left}")
    if steps != [step for step in range(steps[0], steps[-1] + 1) if step not in experiment.unlogged]:
        wrong.append(f"metrics of the steps {steps}")
    if saved > steps[-1]:
        experiment.unlogged.add(saved)
    if steps[-1] - saved > 1 or f"resumed from step {saved}" not in attempt.text:
        wrong.append(f"saved {saved} of {steps[-1]}")
    cause = re.split(r" \(|; ", found[-1].split(": ", 1)[1])[0] if found else ""
    what = f"one of {RANKS} ranks killed" if RANKS > 1 and fault.what == "worker killed" else fault.what
    row = [what, fault.phase, f"{attempt.seconds:.0f} s", f"`{cause}`", str(max(0, steps[-1] - saved))]
    return attempt.text, row, [f"{fault.what} while {fault.phase}: {text}\n{attempt.text[-1500:]}" for text in wrong]


@pytest.mark.skipif("FAULTS" not in os.environ, reason="minutes of further faults: FAULTS=some or FAULTS=all")
@pytest.mark.timeout(3600)
def test_each_fault_ends_the_run_and_the_same_command_goes_on(tmp_path: Path) -> None:
    chosen, experiment, wrong = os.environ["FAULTS"].split(","), Experiment(tmp_path), []
    for fault in FAULTS:
        if "all" in chosen or fault.inject in chosen or (fault.often and "some" in chosen):
            _, row, problems = _outcome(experiment, fault, "trainer.val_freq=-1", "trainer.val_before_train=false")
            wrong += problems
            print("| " + " | ".join(row) + " |", flush=True)
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Experiment]:
    """One experiment for the tests below, which go on from each other; its folder is `ARTIFACTS_DIR`."""
    made = Experiment(tmp_path_factory.mktemp("experiment"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARTIFACTS_DIR", str(made.artifacts))
        yield made


def test_a_killed_worker_ends_the_run_and_ctrl_c_the_resumed_one_which_goes_on_exactly(experiment: Experiment) -> None:
    import torch

    text, _, wrong = _outcome(experiment, FAULTS[0], "trainer.val_freq=1")
    assert not wrong, "\n".join(wrong)
    assert "validation at step 0: accuracy countdown" in text
    assert [experiment.last.step, [step.step for step in experiment.history]] == [1, [0, 1]]
    rows = pq.read_table(experiment.artifacts / "data" / "countdown_tiny" / "test.parquet").to_pylist()
    validated = experiment.run / "validation" / "1.jsonl"
    first, greedy = experiment.rollouts(1), read_responses(validated)
    assert {each.row_id: each.truth for each in greedy.responses} == {row["id"]: row["answer"] for row in rows}
    assert [len({each.row_id for each in group}) for group in first.groups.values()] == [1] * len(first.groups)
    assert all(each.accuracy in (0.0, 1.0) for each in first.responses), "of the reward, beside the score"

    attempt = experiment.start("trainer.val_freq=-1", interrupt_at="step 3/", MAX_STEPS="500")
    assert (attempt.code, attempt.left) == (130, []), attempt.text
    assert "resuming from step 1" in attempt.text
    assert "the run can be resumed from step" in attempt.text
    steps = experiment.history
    assert [step.step for step in steps][:4] == [0, 1, 2, 3]
    assert max(step.get(DIFFERENCE) for step in steps[1:]) < EXACT, "vLLM samples from the weights that FSDP trains"
    assert max(abs(step.get(KL)) for step in steps[1:]) < EXACT
    assert steps[1].get("actor/reward_kl_penalty") == 0 != steps[2].get("actor/reward_kl_penalty"), "one reference"
    name = "optim_world_size_1_rank_0.pt"
    states = torch.load(experiment.last.folder / "actor" / name, weights_only=False)["state"].values()
    assert {int(state["step"]) for state in states} == {experiment.last.step}, "the optimiser goes on"
    drawn = [{each.row_id for each in dump.responses} for dump in (first, experiment.rollouts(2))]
    assert not drawn[0] & drawn[1], "so does the data"
    # The same weights in float32: another order of requests is rounding, and no answer's worth has depended on it.
    repeated = pair(greedy, read_responses(validated))
    assert (repeated.questions, repeated.won, repeated.lost) == (len(rows), 0, 0)


def test_a_damaged_last_step_of_the_trainers_own_is_passed_over(experiment: Experiment) -> None:
    """tests/recipes/preflight/test_resume.py has the other damages and the changes, with files that a test made."""
    last = experiment.last.step
    assert last >= 3
    assert experiment.last.holds() == EVERYTHING
    for name in ("model_world_size_1_rank_0.pt", "optim_world_size_1_rank_0.pt"):
        file = experiment.last.folder / "actor" / name
        whole = file.read_bytes()
        os.truncate(file, len(whole) // 2)
        said = experiment.decision(MAX_STEPS=str(last))
        assert name in said
        assert f"resuming from step {last - 1}" in said
        file.write_bytes(whole)
    assert experiment.decision(MAX_STEPS=str(last)).startswith(f"resuming from step {last}")


def test_changed_settings_act_weights_alone_suffice_and_a_reward_that_raises_is_named(experiment: Experiment) -> None:
    """verl alone would drop the responses for which a reward raises, and fill the batch up with copies of others."""
    last, quiet = experiment.last.step, ("trainer.val_freq=-1", "trainer.val_before_train=false", "data.seed=7")
    (experiment.checkpoints / f"global_step_{last}" / "actor" / "optim_world_size_1_rank_0.pt").unlink()
    experiment.set_bonus(0.5)
    before = min(each.score for each in experiment.rollouts(1).responses)
    changed = (*quiet, f"worker.actor.optim.lr={NEW_LR}")
    only = "trainer.save_model_only=true"
    text = experiment.trained(*changed, only, MAX_STEPS=str(last + 1), RESUME="changed")
    assert f"resuming from step {last - 1}" in text
    assert "the data begins anew" in text
    rates = {step.step: step.get("actor/lr") for step in experiment.history}
    assert rates[last - 1] == pytest.approx(LR)
    assert rates[last + 1] == pytest.approx(NEW_LR), "the new learning rate took effect"
    assert min(each.score for each in experiment.rollouts(last + 1).responses) >= 0.5 > before, "the new reward too"
    assert checkpoint_at(experiment.checkpoints, last + 1).holds() == {MODEL}
    names = {change.name for each in read_changes(experiment.run) for change in each.changes}
    assert names == {"reward", "worker.actor.optim.lr", "data.seed", "trainer.save_model_only"}

    assert experiment.decision(*changed, MAX_STEPS=str(last + 2)).startswith("refused: ")
    attempt = experiment.start(*changed, break_at=f"step {last + 2}/", MAX_STEPS="500", RESUME="changed")
    assert "was saved without the optimiser's state and schedule and random state" in attempt.text
    assert experiment.history[-1].get("actor/lr") == pytest.approx(NEW_LR)
    assert experiment.last.holds() == EVERYTHING
    assert (attempt.code != 0, attempt.left) == (True, []), attempt.text
    for part in ("RewardError", "KeyError: 'odd'", f"{experiment.rewards}/mine.py:", "row "):
        assert part in attempt.text
