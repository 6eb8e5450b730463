"""The digits workload: honest splits, a frozen model that follows its formula, candidates that are what they say."""

from __future__ import annotations

import json
import math
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from pointer_testing import SMALL_WORKLOAD

from recipes.errors import RecipeError
from recipes.pointer_selector import evaluation, workload
from recipes.pointer_selector.config import SplitConfig, WorkloadConfig
from recipes.pointer_selector.data import pool_rows, read_data
from recipes.pointer_selector.preparation import by_split
from recipes.pointer_selector.workload import FrozenModel

CONFIG = WorkloadConfig(**SMALL_WORKLOAD)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workload")
    manifest = workload.build(folder, CONFIG)
    table = folder / "embeddings.safetensors"
    return (
        folder,
        manifest,
        read_data(folder / "candidates.json", table, table),
        FrozenModel.load(folder / "frozen_model.npz"),
    )


def test_no_image_is_in_two_splits_and_pools_are_training_images(made):
    _, manifest, data, _ = made
    images = {
        name: {query.split("-")[0] for query in part.query_ids} for name, part in by_split(data, SplitConfig()).items()
    }
    assert (
        not images["train"] & images["test"]
        | images["train"] & images["validation"]
        | images["validation"] & images["test"]
    )
    items = np.array(list(data.examples.index))[data.pool_rows] // workload.LABELS
    assert {str(image) for image in items} <= images["train"]
    frozen = set(map(str, range(CONFIG.frozen_images)))
    assert not frozen & (images["train"] | images["test"] | images["validation"])
    shown = np.array(list(data.examples.index))
    for query, name in enumerate(data.query_ids):  # no query is in its own pool
        assert int(name.split("-")[0]) not in shown[pool_rows(data, np.array([query]))[0]] // workload.LABELS
    assert manifest["queries"] == {"train": 30, "validation": 20, "test": 20}


def test_the_frozen_model_follows_its_formula(made):
    _, _, data, model = made
    examples = pool_rows(data, np.array([3]))[0]
    row, picks = int(data.query_rows[3]), [4, 0, 2]
    mass = [model.prior_weight * float(p) for p in model.prior[row]]
    for slot in picks:
        cosine = float(model.example_features[examples[slot]] @ model.query_features[row])
        mass[int(model.example_labels[examples[slot]])] += math.exp((cosine - 1) / model.bandwidth)
    outcome = model.outcome(data, np.array([3]), torch.tensor([picks]))
    truth = int(model.truth[row])
    assert float(outcome.probability) == pytest.approx(mass[truth] / sum(mass), rel=1e-5)
    assert int(outcome.answer) == int(np.argmax(mass))
    assert float(outcome.accuracy) == pytest.approx(1 / (1 + sum(m > mass[truth] for m in mass)))
    nothing = model.outcome(data, np.array([3]), torch.zeros(1, 0, dtype=torch.long))
    assert float(nothing.probability) == pytest.approx(float(model.prior[row, truth]), rel=1e-5)


def test_logged_outcomes_are_the_frozen_models(made):
    _, _, data, model = made
    for row in range(0, len(data.lengths), 97):
        query, length = int(data.candidate_query[row]), int(data.lengths[row])
        picks = torch.from_numpy(data.pointers[row, :length].astype(np.int64))[None]
        outcome = model.outcome(data, np.array([query]), picks)
        assert bool(outcome.correct) == bool(data.scores["vqa_correct"][row])
        assert float(outcome.probability) == pytest.approx(float(data.scores["vqa_gt_prob"][row]), abs=2e-6)


def test_the_oracle_is_the_best_of_all_sets(made):
    _, _, data, model = made
    queries = np.arange(6)
    outcome = model.oracle(data, queries, 2, limit=100)
    for query in queries:
        sets = torch.tensor(list(combinations(range(CONFIG.pool_size), 2)))
        every = model.outcome(data, np.array([query]), sets[None])
        assert float(outcome.probability[query]) == pytest.approx(float(every.probability.max()))
        assert bool(outcome.correct[query]) == bool(every.correct.any())
    assert model.oracle(data, queries, 4, limit=10) is None


def test_the_same_seed_makes_the_same_files(made, tmp_path):
    folder, manifest, *_ = made
    assert workload.build(tmp_path / "again", CONFIG)["sha256"] == manifest["sha256"]
    other = workload.build(tmp_path / "other", CONFIG.model_copy(update={"seed": 1}))
    assert other["sha256"]["candidates.json"] != manifest["sha256"]["candidates.json"]
    assert workload.manifest(folder) == json.loads((folder / "manifest.json").read_text())
    assert workload.manifest(tmp_path) is None
    config = WorkloadConfig(label_noise=0.3, train_images=300, validation_images=5, test_images=5)
    images = workload.digits(config)
    draws = workload.draw_pools(images, config)
    assert np.mean(draws.shown != images.labels[draws.pool]) == pytest.approx(0.3, abs=0.02)
    with pytest.raises(RecipeError, match="there are 1797"):
        workload.digits(WorkloadConfig(train_images=5000))


def test_plackett_luce_is_a_distribution_and_the_beam_finds_its_best():
    scores = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    sequences = torch.tensor(list(permutations(range(5), 3)))[None].expand(4, -1, -1)
    log_probs = workload.log_prob(scores, sequences)
    assert torch.allclose(log_probs.exp().sum(-1), torch.ones(4), atol=1e-5)
    found = workload.beam(scores, 3, 4)
    assert torch.equal(found[:, 0], sequences[torch.arange(4), log_probs.argmax(-1)])
    for row in found.tolist():
        assert len({tuple(sorted(sequence)) for sequence in row}) == 4


def test_draws_follow_plackett_luce():
    scores = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    drawn = workload.draw(scores, 2, 40_000, torch.Generator().manual_seed(0))[0]
    for sequence in permutations(range(4), 2):
        share = (drawn == torch.tensor(sequence)).all(-1).double().mean()
        assert float(share) == pytest.approx(
            float(workload.log_prob(scores, torch.tensor([[sequence]])).exp()), abs=0.01
        )


def test_baselines(made):
    data = made[2]
    queries = np.arange(10)
    nearest = evaluation.nearest_picks(data, queries, 3)
    for query in queries:
        pool = data.examples.rows[torch.from_numpy(pool_rows(data, np.array([query]))[0])]
        similarity = torch.cosine_similarity(pool, data.queries.rows[data.query_rows[query]][None], dim=-1)
        assert nearest[query].tolist() == similarity.argsort(descending=True)[:3].tolist()
    assert torch.equal(evaluation.mmr_picks(data, queries, 3, balance=1.0), nearest)
    diverse = evaluation.mmr_picks(data, queries, 3, balance=0.5)
    assert torch.equal(diverse[:, 0], nearest[:, 0])
    assert not torch.equal(diverse, nearest)
    random = evaluation.random_picks(data, queries, 3, 50, seed=0)
    assert all(len(set(sequence)) == 3 for row in random.tolist() for sequence in row)
    assert random.float().mean() == pytest.approx((CONFIG.pool_size - 1) / 2, abs=0.3)
