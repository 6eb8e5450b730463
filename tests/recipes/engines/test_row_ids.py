"""What verl's metrics of a validation say of a reward's results."""

from __future__ import annotations

import pytest
from verl.trainer.ppo.v1 import PPOTrainer

from recipes.engines import row_ids


@pytest.mark.parametrize(
    "results",
    [
        {"reward": [1.0, 0.04, 1.0, 0.04], "acc": [1.0, 0.04, 1.0, 0.04]},  # verl's own for a reward that is a number
        {"reward": [0.9, 0.5, 0.9, 1.0], "accuracy": [1.0, 0.0, 1.0, 0.0]},
        {"reward": [1.0, 0.2, 1.0, 0.2]},
        {"reward": [1.0, 0.2, 0.0, 0.2], "acc": [None, None, 1.0, None]},  # sources whose rewards have other parts
    ],
)
def test_the_accuracy_of_a_validation_is_the_share_that_is_right(results):
    assert row_ids.COLUMN  # its import puts the hook in place
    sources, uids = ["x", "x", "y", "y"], ["a", "b", "c", "d"]
    metrics = PPOTrainer._val_metrics_update(None, sources, uids, results, [])
    assert (metrics["val-core/x/acc/mean@1"], metrics["val-core/y/acc/mean@1"]) == (0.5, 0.5)
    assert metrics["val-aux/x/reward/mean@1"] == pytest.approx(sum(results["reward"][:2]) / 2)
