"""The reference run's batch on its eight ranks, with the tiny model: `RANKS=8 python -m pytest` this file.

It takes minutes and some 10 GiB on two cores, so that it runs by hand; docs/PERFORMANCE.md has what it showed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.engines.checkpoints import EVERYTHING, checkpoint_at
from recipes.paths import ROOT
from recipes.runs.metrics import read_history

RANKS = int(os.environ.get("RANKS", "0"))
pytestmark = [pytest.mark.trainer, pytest.mark.skipif(RANKS < 2, reason="RANKS=8 starts so many ranks")]

UNEVEN = 13
"""Validation rows, which neither four nor eight ranks divide."""


def start(folder: Path, ranks: int, steps: int) -> subprocess.CompletedProcess[str]:
    environ = {
        **os.environ,
        "ARTIFACTS_DIR": str(folder),
        "HARDWARE": "cpu",
        "GPUS_PER_NODE": str(ranks),
        "ROLLOUT_BATCH_SIZE": "64",
        "GLOBAL_BATCH_SIZE": "64",
        "ROLLOUT_N": "16",
        "MAX_STEPS": str(steps),
        "SAVE_FREQ": "1",
        "VAL_FREQ": "1",
    }
    keys = [f"data.val_max_samples={UNEVEN}", "trainer.val_before_train=false"]
    command = [sys.executable, "-m", "recipes.launch", "countdown", *keys]
    return subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)


def test_the_reference_batch_trains_saves_and_goes_on_with_as_many_ranks(tmp_path):
    for steps in (1, 2):
        done = start(tmp_path, RANKS, steps)
        log = tmp_path / "runs" / "countdown" / "train.log"
        assert done.returncode == 0, done.stdout + done.stderr + (log.read_text()[-4000:] if log.exists() else "")
    assert "resuming from step 1" in done.stdout
    saved = checkpoint_at(tmp_path / "checkpoints" / "countdown", 2)
    assert (saved.ranks(), saved.holds()) == (RANKS, EVERYTHING)
    run = tmp_path / "runs" / "countdown"
    steps = read_history(run / "metrics.jsonl")
    assert [step.step for step in steps] == [1, 2]
    for step in steps:
        assert len((run / "rollouts" / f"{step.step}.jsonl").read_text().splitlines()) == 64 * 16
        assert len((run / "validation" / f"{step.step}.jsonl").read_text().splitlines()) == UNEVEN
        assert abs(step.get("rollout_corr/kl", "actor/rollout_corr/kl")) < 1e-4

    fewer = start(tmp_path, RANKS // 2, 3)
    assert fewer.returncode == 2
    assert f"ranks: {RANKS} -> {RANKS // 2}" in fewer.stderr
