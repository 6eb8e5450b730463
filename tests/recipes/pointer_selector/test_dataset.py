"""Reading candidates and embeddings: both layouts, all table formats, every mistake with its query's name; batches."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from recipes.errors import RecipeError
from recipes.pointer_selector import candidates
from recipes.pointer_selector.config import FilterConfig, SplitConfig
from recipes.pointer_selector.dataset import collate, read_data
from recipes.pointer_selector.embeddings import load_table
from recipes.pointer_selector.preparation import by_split, filtered


def read(tmp_path, content, queries=5):
    path, table = tmp_path / "c.json", tmp_path / "e.npz"  # the older object, as most mistakes are made in it
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    rng = np.random.default_rng(0)
    np.savez(table, query_embeddings=rng.normal(size=(queries, 3)), candidate_embeddings=rng.normal(size=(9, 3)))
    return read_data(path, table, table)


def one(*pointers, **scores):
    return {"pointer_candidates": [{"pointer": list(p), **scores} for p in pointers]}


def test_other_layouts(tmp_path):
    for rows in ([[4, 7, 2], [7, 1, 2]], [[4, 7], [7, 1]]):  # with and without the query's id at the end
        older = read(tmp_path, {"2": {"id_list": rows, "score_list": [0.5, 0.25]}})
        assert older.pointers.tolist() == [[4, 7], [7, 1]]
        assert older.scores["beam_score"].tolist() == [0.5, 0.25]
        assert np.isnan(older.scores["vqa_correct"]).all()
    shared = read(tmp_path, {"0": one([8, 3]), "1": one([0])})
    assert collate(shared, np.array([0, 1])).pool.shape == (2, 9, 3)
    failed = {"pointer": [1], "eval_failed": True, "vqa_gt_prob": None}
    some = {"0": {"pointer_candidates": [failed, {"pointer": [2]}]}, "1": {"pointer_candidates": [failed]}}
    data = read(tmp_path, some)
    assert data.query_ids == ["0"]
    assert data.skipped == {"candidates whose evaluation failed": 2, "queries whose evaluations all failed": 1}


NAN = '{"3": {"pointer_candidates": [{"pointer": [1], "vqa_gt_prob": NaN}]}}'
MISTAKES = {
    "query '4' picks 5, which is not among the 2": {"4": {"pool": [1, 2], **one([1, 5])}},
    r"pool of query '4' is \[1\]: ids are": {"4": {"pool": [[1], [2]], **one([1])}},
    r"pointer of query '3' is \[4, 1, 4\]: holds an example twice": {"3": one([4, 1, 4])},
    "malformed before its first query": NAN,
    "beam_score of query '3' is 'high': Input should be a valid number": {"3": one([1], beam_score="high")},
    "pointer_candidates of query '3' is .*Field required": {"3": {"candidates": []}},
    "the file holds no query": [1, 2],
    "query '3' stands in the file twice": '{"3": {"pointer_candidates": [{"pointer": [1]}]}, "3": {}}',
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(tmp_path, message):
    with pytest.raises(RecipeError, match=message):
        read(tmp_path, MISTAKES[message])


def test_lines_and_the_older_object_hold_the_same(tmp_path, data):
    path = tmp_path / "candidates.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    older = {"_meta": {"made": "by a test"}} | {str(r.pop("query_id")): r for r in records}
    (tmp_path / "candidates.json").write_text(json.dumps(older))
    table = tmp_path / "embeddings.npz"
    assert read_data(tmp_path / "candidates.json", table, table).digest() == data.digest()


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_a_file_that_is_cut_off_names_where(tmp_path, data, suffix):
    records = [json.loads(line) for line in (tmp_path / "candidates.jsonl").read_text().splitlines()]
    text = "".join(json.dumps(r) + "\n" for r in records)
    if suffix == ".json":
        text = json.dumps({str(r["query_id"]): r for r in records})
    path = tmp_path / f"cut{suffix}"
    for end in range(1, len(text) - 2, 97):
        path.write_text(text[:end])
        if (suffix == ".jsonl" and text[end] == "\n") or text[end - 1] == "\n":
            continue  # whole lines
        with pytest.raises(RecipeError) as caught:
            list(candidates.read_entries(path))
        assert (
            "cut off or malformed" in str(caught.value) or f"line {text[:end].count(chr(10)) + 1}" in caught.value.where
        )


class Malicious:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (open, ("/dev/null",))


def test_tables_in_all_formats_and_no_pickle_is_executed(tmp_path):
    rows, names = torch.randn(4, 3), ["a", "b", "c", "7"]
    np.savez(tmp_path / "t.npz", query_embeddings=rows.numpy(), query_ids=np.array(names))
    save_file({"query_embeddings": rows}, tmp_path / "t.safetensors", metadata={"query_ids": json.dumps(names)})
    torch.save({"query_embeddings": list(rows), "query_ids": names}, tmp_path / "t.pt")
    for suffix in ("npz", "safetensors", "pt"):
        table = load_table(tmp_path / f"t.{suffix}", "query")
        assert torch.equal(table.rows, rows)
        assert [table.row(name, "q") for name in ("c", 7, "7")] == [2, 3, 3]
    np.savez(tmp_path / "t.npz", query_embeddings=np.array([Malicious()], dtype=object))
    torch.save({"query_embeddings": torch.ones(2, 2), "x": Malicious()}, tmp_path / "t.pt")
    for suffix, message in (("npz", "without pickles"), ("pt", "pickled objects other than tensors")):
        with pytest.raises(RecipeError, match=message):
            load_table(tmp_path / f"t.{suffix}", "query")


def test_filters_drop_and_count(tmp_path):
    fallback = {"vqa_eval_mode": "fallback"}
    entries = [
        {"pointer": [1], "vqa_correct": 0, "vqa_gt_prob": 0.01},
        {"pointer": [2], "vqa_correct": 0, "vqa_gt_prob": 0.4},
        {"pointer": [2], "vqa_correct": 0, "vqa_gt_prob": 0.4},
        {"pointer": [3], "vqa_correct": 1, "vqa_gt_prob": 0.01, **fallback},
        {"pointer": [3], "vqa_correct": 1, "vqa_gt_prob": 0.01},  # repeats only what another filter drops
    ]
    data = read(tmp_path, {"0": {"pointer_candidates": entries}, "1": one([1], vqa_correct=0, vqa_gt_prob=0.3)})
    kept, dropped = filtered(data, FilterConfig(drop_incorrect_below=0.05, require_positive=True))
    assert kept.query_ids == ["0"]
    assert kept.pointers[:, 0].tolist() == [2, 3]
    assert dropped == {
        "candidates with a fallback reward": 1,
        "incorrect candidates with vqa_gt_prob < 0.05": 1,
        "repeated sequences": 1,
        "queries without a correct candidate": 1,
    }


def test_splits_by_the_file_and_by_hash(tmp_path, data):
    sizes = {name: len(part) for name, part in by_split(data, SplitConfig()).items()}
    assert sizes == {"train": 6, "validation": 3, "test": 3}
    content = {str(q): one([1]) for q in range(400)}
    names = [set(part.query_ids) for part in by_split(read(tmp_path, content, 400), SplitConfig()).values()]
    assert len(set.union(*names)) == sum(map(len, names)) == 400
    assert 30 < len(names[1]) < 90
    fewer = {q: record for q, record in content.items() if int(q) % 2}
    again = by_split(read(tmp_path, fewer, 400), SplitConfig())
    assert set(again["test"].query_ids) == {q for q in names[2] if int(q) % 2}  # a query keeps its part as data changes


@pytest.mark.parametrize("kept", [range(12), range(0, 12, 2)])
def test_a_batch_holds_what_the_file_holds(tmp_path, data, kept):
    """Of all queries, and of some of them."""
    lines = (tmp_path / "candidates.jsonl").read_text().splitlines()
    raw = {str(record["query_id"]): record for record in map(json.loads, lines)}
    assert data.query_ids == list(raw)
    some = data.keep_queries(np.isin(np.arange(12), kept))
    assert (some.digest() == data.digest()) == (len(kept) == 12)
    queries = np.array([4, 0, 5])
    batch = collate(some, queries)
    for b, query in enumerate(queries):
        record = raw[some.query_ids[query]]
        assert torch.equal(batch.query[b], data.queries.rows[kept[query]].float())
        assert torch.equal(batch.pool[b][batch.pool_mask[b]], data.examples.rows[record["pool"]].float())
        batched = []
        for group, member in batch.candidates[b].nonzero().tolist():
            column = group * batch.candidates.shape[2] + member
            picks = batch.pointers[b, column][batch.steps[b, column]].tolist()
            score = some.scores["vqa_gt_prob"][int(batch.rows[b, group, member])]
            batched.append(([record["pool"][slot] for slot in picks], score))
        wanted = sorted(record["pointer_candidates"], key=lambda candidate: len(candidate["pointer"]))
        assert batched == [(each["pointer"], np.float32(each["vqa_gt_prob"])) for each in wanted]
