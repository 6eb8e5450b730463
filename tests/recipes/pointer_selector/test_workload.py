"""The digits workload: honest splits, a frozen model that follows its formula, candidates that are what they say."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from recipes.pointer_selector import workload
from recipes.pointer_selector.dataset import by_split, read_data


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workload") / "data"
    candidates, table, model = workload.prepare(folder)
    return folder, read_data(candidates, table, table), model


def test_no_image_is_in_two_splits_and_pools_are_training_images(made):
    data = made[1]
    images = {name: {int(q.split("-")[0]) for q in part.query_ids} for name, part in by_split(data).items()}
    images["frozen"] = set(range(workload.SIZES["frozen"]))
    assert sum(map(len, images.values())) == len(set.union(*images.values()))
    items = load_file(made[0] / "embeddings.safetensors")["candidate_ids"].numpy() // workload.LABELS
    assert set(items[np.concatenate(data.pools)]) <= images["train"]
    for query, name in enumerate(data.query_ids):  # no query is in its own pool
        assert int(name.split("-")[0]) not in items[data.pool_rows(np.array([query]))[0]]


def outcome_of(made, queries, picks):
    _, data, model = made
    rows = torch.from_numpy(data.query_rows[queries])
    return model.answer(rows, model.votes(rows, data.pool_rows(queries)), picks)


def test_the_frozen_model_follows_its_formula(made):
    _, data, model = made
    examples = data.pool_rows(np.array([3]))[0]
    row, picks = int(data.query_rows[3]), [4, 0, 2]
    mass = [workload.PRIOR_WEIGHT * float(p) for p in model.prior[row]]
    for slot in picks:
        cosine = float(model.example_features[examples[slot]] @ model.query_features[row])
        mass[int(model.example_labels[examples[slot]])] += math.exp((cosine - 1) / workload.BANDWIDTH)
    correct, probability, accuracy = outcome_of(made, np.array([3]), torch.tensor([picks]))
    truth = int(model.truth[row])
    assert float(probability) == pytest.approx(mass[truth] / sum(mass), rel=1e-5)
    assert bool(correct) == (int(np.argmax(mass)) == truth)
    assert float(accuracy) == pytest.approx(1 / (1 + sum(m > mass[truth] for m in mass)))
    for number in range(0, len(data.lengths), 97):  # what was logged is the model's
        query = data.candidate_query[number : number + 1]
        slots = data.pointers[number, : data.lengths[number]].astype(np.int64)
        correct, probability, _ = outcome_of(made, query, torch.from_numpy(slots)[None])
        assert bool(correct) == bool(data.scores["vqa_correct"][number])
        assert float(probability) == pytest.approx(float(data.scores["vqa_gt_prob"][number]), abs=2e-6)


def test_the_workload_is_made_the_same_again(made, tmp_path):
    workload.prepare(tmp_path / "again")
    assert all((made[0] / path.name).read_bytes() == path.read_bytes() for path in (tmp_path / "again").iterdir())
