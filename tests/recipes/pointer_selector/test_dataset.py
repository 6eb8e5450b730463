"""Reading candidates and embeddings, splits, filters and batches; a user's mistakes name the query."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from recipes.pointer_selector.config import FilterConfig
from recipes.pointer_selector.dataset import by_split, collate, filtered, load_table, read_data
from tests.mistakes import mistake


def read(tmp_path, content, queries=5):
    path, table = tmp_path / "c.jsonl", tmp_path / "e.npz"
    lines = content if isinstance(content, str) else "".join(json.dumps(record) + "\n" for record in content)
    path.write_text(lines, encoding="utf-8")
    rng = np.random.default_rng(0)
    np.savez(table, query_embeddings=rng.normal(size=(queries, 3)), candidate_embeddings=rng.normal(size=(9, 3)))
    return read_data(path, table, table)


def one(query, *pointers, pool=None, **scores):
    return {"query_id": query, "pool": pool, "pointer_candidates": [{"pointer": list(p), **scores} for p in pointers]}


def test_queries_without_pools_choose_from_all_and_failed_evaluations_are_left_out(tmp_path):
    shared = read(tmp_path, [one(0, [8, "3"]), one("1", [0])])
    assert collate(shared, np.array([0, 1])).pool.shape == (2, 9, 3)
    assert shared.pointers.tolist() == [[8, 3], [0, -1]]
    failed = {"pointer": [1], "eval_failed": True, "vqa_gt_prob": None}
    fallback = {"pointer": [3], "vqa_eval_mode": "fallback", "vqa_correct": True}
    some = [{"query_id": 0, "pointer_candidates": [failed, fallback, {"pointer": [2]}]}]
    data = read(tmp_path, [*some, {"query_id": 1, "pointer_candidates": [failed]}])
    assert data.query_ids == ["0"]
    assert data.pointers.tolist() == [[2]]
    assert sum(data.skipped.values()) == 4  # three candidates and a query


MISTAKES = {
    "query '4'": [one("4", [1, 5], pool=[1, 2])],
    "query '2'": [one("2", [4, 1, 4])],
    "query '1'": '{"query_id": "1", "pointer_candidates": [{"pointer": [1], "vqa_gt_prob": NaN}]}',
    "query '--5'": [one("--5", [1])],
    "query '3'": [one("3", [1]), one(3, [1])],
    "line 2": json.dumps(one("3", [1])) + '\n{"query_id": "4", "poi',
}


@pytest.mark.parametrize("named", MISTAKES)
def test_mistakes_are_named(tmp_path, named):
    mistake(lambda: read(tmp_path, MISTAKES[named]), named)


class Malicious:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (open, ("/dev/null",))


def test_tables_in_both_formats_and_no_pickle_is_executed(tmp_path):
    rows, names = torch.randn(4, 3), ["a", "b", "c", "7"]
    np.savez(tmp_path / "t.npz", query_embeddings=rows.numpy(), query_ids=np.array(names))
    save_file({"query_embeddings": rows}, tmp_path / "t.safetensors", metadata={"query_ids": json.dumps(names)})
    for suffix in ("npz", "safetensors"):
        table, index = load_table(tmp_path / f"t.{suffix}", "query")
        assert torch.equal(table, rows)
        assert index == {name: number for number, name in enumerate(names)}
    np.savez(tmp_path / "t.npz", query_embeddings=np.array([Malicious()], dtype=object))
    torch.save({"query_embeddings": torch.ones(2, 2), "x": Malicious()}, tmp_path / "t.pt")
    for suffix in ("npz", "pt"):
        mistake(lambda suffix=suffix: load_table(tmp_path / f"t.{suffix}", "query"))


def test_filters_drop_and_count(tmp_path):
    entries = [
        {"pointer": [1], "vqa_correct": 0, "vqa_gt_prob": 0.01},
        {"pointer": [2], "vqa_correct": 0, "vqa_gt_prob": 0.4},
        {"pointer": [2], "vqa_correct": 0, "vqa_gt_prob": 0.4},
        {"pointer": [3], "vqa_correct": 1, "vqa_gt_prob": 0.01},
    ]
    queries = [{"query_id": "0", "pointer_candidates": entries}, one("1", [1], vqa_correct=0, vqa_gt_prob=0.03)]
    kept, dropped = filtered(read(tmp_path, queries), FilterConfig(drop_incorrect_below=0.05))
    assert kept.query_ids == ["0"]
    assert kept.pointers[:, 0].tolist() == [2, 3]
    assert list(dropped.values()) == [2, 1, 1]  # candidates, repeated sequences, queries


def test_splits_by_the_file_and_by_hash(tmp_path, data):
    sizes = {name: len(part) for name, part in by_split(data).items()}
    assert sizes == {"train": 6, "validation": 3, "test": 3}
    content = [one(q, [1]) for q in range(400)]
    names = [set(part.query_ids) for part in by_split(read(tmp_path, content, 400)).values()]
    assert len(set.union(*names)) == sum(map(len, names)) == 400
    assert 30 < len(names[1]) < 90
    fewer = content[1::2]
    again = by_split(read(tmp_path, fewer, 400))
    assert set(again["test"].query_ids) == {q for q in names[2] if int(q) % 2}  # a query keeps its part as data changes


@pytest.mark.parametrize("kept", [range(12), range(0, 12, 2)])
def test_a_batch_holds_what_the_file_holds(tmp_path, data, kept):
    """Of all queries, and of some of them."""
    lines = (tmp_path / "candidates.jsonl").read_text().splitlines()
    raw = {str(record["query_id"]): record for record in map(json.loads, lines)}
    assert data.query_ids == list(raw)
    some = data.keep_queries(np.isin(np.arange(12), kept))
    queries = np.array([4, 0, 5])
    batch = collate(some, queries)
    for b, query in enumerate(queries):
        record = raw[some.query_ids[query]]
        assert torch.equal(batch.query[b], data.queries[kept[query]])
        assert torch.equal(batch.pool[b][batch.pool_mask[b]], data.examples[record["pool"]])
        batched = []
        for group, member in batch.candidates[b].nonzero().tolist():
            column = group * batch.candidates.shape[2] + member
            picks = batch.pointers[b, column][batch.steps[b, column]].tolist()
            score = some.scores["vqa_gt_prob"][int(batch.rows[b, group, member])]
            batched.append(([record["pool"][slot] for slot in picks], score))
        wanted = sorted(record["pointer_candidates"], key=lambda candidate: len(candidate["pointer"]))
        assert batched == [(each["pointer"], np.float32(each["vqa_gt_prob"])) for each in wanted]
