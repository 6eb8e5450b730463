"""The best checkpoint is kept beyond the limit on saved steps, and chosen anew when the reward changes."""

import json
import signal
import threading
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.config import check, load
from recipes.engines.checkpoints import best_checkpoint
from recipes.runs.metrics import Step
from recipes.runs.supervise import BestCheckpoint
from tests.mistakes import mistake


@pytest.fixture(autouse=True)
def no_other_runs(tmp_path, monkeypatch):
    """The checkout's may have validations of the same steps."""
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))


def recipe(folder, *arguments):
    keys = (f"trainer.save_checkpoint_path={folder}", "trainer.keep_best=true", *arguments)
    return load("countdown", arguments=keys, environ={"SAVE_FREQ": "2", "VAL_FREQ": "2"}, hardware="cpu")


def validated(folder, kept, values):
    """Save and validate steps; the steps that became the best."""
    chosen = []
    for step, value in values.items():
        model = folder / f"global_step_{step}" / "actor" / "huggingface"
        model.mkdir(parents=True)
        (model / "model.safetensors").write_text(f"weights {step}")
        (folder / "latest_checkpointed_iteration.txt").write_text(str(step))
        kept.add_step(Step(step, {"val-core/x/acc/mean@1": value}))
        chosen.append(best_checkpoint(folder).step)
    return chosen


def test_the_best_is_kept_beyond_the_limit_and_chosen_anew_with_another_reward(tmp_path):
    lines = []
    kept = BestCheckpoint(recipe(tmp_path), lines.append)
    kept.add_step(Step(0, {"val-core/x/acc/mean@1": 0.9}))
    assert best_checkpoint(tmp_path) is None, "no checkpoint of step 0"
    assert validated(tmp_path, kept, {2: 0.5, 4: 0.4, 6: float("nan"), 8: 0.5}) == [2, 2, 2, 2]
    (tmp_path / "global_step_2" / "actor" / "huggingface" / "model.safetensors").unlink()
    assert (tmp_path / "best" / "actor" / "huggingface" / "model.safetensors").read_text() == "weights 2"
    assert len(lines) == 1

    again = BestCheckpoint(recipe(tmp_path), lines.append)
    assert validated(tmp_path, again, {10: 0.45}) == [2], "a resumed run goes on with its best"
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    again.add_step(Step(10, {"val-core/x/reward/mean@1": 0.2}))
    assert best_checkpoint(tmp_path)[:2] == (10, 0.2), "a score and an accuracy do not compare"
    other = BestCheckpoint(recipe(tmp_path, 'worker.reward.reward_function_kwargs={"scale": 2}'), lines.append)
    assert validated(tmp_path, other, {12: 0.1, 14: 0.05}) == [12, 12]


def test_the_best_is_chosen_anew_with_other_questions_other_sampling_or_another_file_of_the_reward(tmp_path):
    words, questions = tmp_path / "words.txt", tmp_path / "val.parquet"
    words.write_text("one")
    pq.write_table(pa.table({"prompt": ["one"]}), questions)
    given = [f"worker.reward.reward_function_kwargs.words={words}", f"data.val_files={questions}"]
    folder = tmp_path / "checkpoints"
    assert validated(folder, BestCheckpoint(recipe(folder, *given), print), {2: 0.5}) == [2]
    assert validated(folder, BestCheckpoint(recipe(folder, *given), print), {4: 0.4}) == [2]
    words.write_text("two")
    assert validated(folder, BestCheckpoint(recipe(folder, *given), print), {6: 0.3}) == [6]
    pq.write_table(pa.table({"prompt": ["one"]}), questions, compression="zstd")
    assert validated(folder, BestCheckpoint(recipe(folder, *given), print), {7: 0.2}) == [6], "the same rows"
    pq.write_table(pa.table({"prompt": ["two"]}), questions)
    assert validated(folder, BestCheckpoint(recipe(folder, *given), print), {8: 0.2}) == [8]
    given.append("worker.rollout.val_override_config.temperature=0.3")
    assert validated(folder, BestCheckpoint(recipe(folder, *given), print), {10: 0.1}) == [10]


def test_a_validation_that_verl_still_writes_is_waited_for(tmp_path):
    lines = [{"input": f"{at}?", "output": "", "gts": "1", "score": at, "acc": at, "uid": f"{at}_0_0"} for at in (0, 1)]
    texts = [json.dumps({**line, "row_id": str(at), "step": 2}) + "\n" for at, line in enumerate(lines)]
    dump = tmp_path / "artifacts" / "runs" / "countdown" / "validation" / "2.jsonl"
    dump.parent.mkdir(parents=True)
    dump.write_text(texts[0] + texts[1][:20])
    (tmp_path / "global_step_2" / "actor").mkdir(parents=True)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("2")
    several = {"val-core/x/acc/mean@1": 0.0, "val-core/y/acc/mean@1": 1.0}
    keeper, began, stops = BestCheckpoint(recipe(tmp_path), print), time.monotonic(), []
    before = signal.signal(signal.SIGINT, lambda number, _: stops.append(number))
    threading.Timer(0.3, signal.raise_signal, [signal.SIGINT]).start()
    keeper.add_step(Step(2, several))
    signal.signal(signal.SIGINT, before)
    assert stops == [signal.SIGINT]
    assert time.monotonic() - began < 1.5, "a signal ends the wait"
    keeper.add_step(Step(1, several))  # not saved
    threading.Timer(0.3, dump.write_text, ["".join(texts)]).start()
    keeper.add_step(Step(2, several))
    assert best_checkpoint(tmp_path)[:2] == (2, 0.5)


@pytest.mark.parametrize("key", ["trainer.val_freq", "trainer.save_freq"])
def test_a_best_checkpoint_needs_validations_and_checkpoints(tmp_path, key):
    mistake(lambda: check(recipe(tmp_path, f"{key}=-1")), key)
