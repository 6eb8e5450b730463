"""Reading candidates and embeddings: both layouts, all table formats, every mistake with its query's name; batches."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from recipes.errors import RecipeError
from recipes.pointer_selector import candidates
from recipes.pointer_selector.config import DataConfig, FilterConfig, SplitConfig
from recipes.pointer_selector.data import collate, read_data, shuffled
from recipes.pointer_selector.embeddings import load_table
from recipes.pointer_selector.preparation import _some_queries, by_split, filtered, report


def read(tmp_path, content, queries=5):
    path, table = tmp_path / "c.json", tmp_path / "e.npz"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    rng = np.random.default_rng(0)
    np.savez(table, query_embeddings=rng.normal(size=(queries, 3)), candidate_embeddings=rng.normal(size=(9, 3)))
    return read_data(path, table, table)


def one(*pointers, **scores):
    return {"pointer_candidates": [{"pointer": list(p), **scores} for p in pointers]}


def test_everything_in_the_file_is_in_the_data_and_in_groups(tmp_path, data):
    raw = json.loads((tmp_path / "candidates.json").read_text())
    raw.pop("_meta")
    assert data.query_ids == list(raw)
    assert len(data.lengths) == sum(len(record["pointer_candidates"]) for record in raw.values())
    for query, (name, record) in enumerate(raw.items()):
        pool = data.pool_rows[data.pool_offsets[query] : data.pool_offsets[query + 1]].tolist()
        assert pool == record["pool"]
        rows = np.flatnonzero(data.candidate_query == query)
        wanted = sorted(record["pointer_candidates"], key=lambda c: len(c["pointer"]))
        for row, candidate in zip(rows, wanted, strict=True):
            assert [pool[slot] for slot in data.pointers[row][: data.lengths[row]]] == candidate["pointer"], name
            assert data.scores["vqa_gt_prob"][row] == np.float32(candidate["vqa_gt_prob"])
    assert data.skipped == {"entries that begin with an underscore": 1}
    assert len(data.group_query) == 24
    for group in range(24):
        rows = slice(data.group_starts[group], data.group_starts[group + 1])
        assert set(data.candidate_query[rows]) == {data.group_query[group]}
        assert set(data.lengths[rows]) == {data.group_shots[group]}


def test_other_layouts(tmp_path):
    for rows in ([[4, 7, 2], [7, 1, 2]], [[4, 7], [7, 1]]):  # with and without the query's id at the end
        older = read(tmp_path, {"2": {"id_list": rows, "score_list": [0.5, 0.25]}})
        assert older.pointers.tolist() == [[4, 7], [7, 1]]
        assert older.scores["beam_score"].tolist() == [0.5, 0.25]
        assert np.isnan(older.scores["vqa_correct"]).all()
    shared = read(tmp_path, {"0": one([8, 3]), "1": one([0])})
    assert collate(shared, np.array([0, 1])).pool.shape == (2, 9, 3)
    assert shared.pointers.tolist() == [[8, 3], [0, -1]]
    assert read(tmp_path, {"4": {"pool": ["1", "2"], **one([2, "1"])}}).pointers.tolist() == [[1, 0]]
    failed = {"pointer": [1], "eval_failed": True, "vqa_gt_prob": None}
    some = {"0": {"pointer_candidates": [failed, {"pointer": [2]}]}, "1": {"pointer_candidates": [failed]}}
    data = read(tmp_path, some)
    assert data.query_ids == ["0"]
    assert data.skipped == {"candidates whose evaluation failed": 2, "queries whose evaluations all failed": 1}


NAN = '{"3": {"pointer_candidates": [{"pointer": [1], "vqa_gt_prob": NaN}]}}'
MISTAKES = {
    "outside the pool": ({"4": {"pool": [1, 2], **one([1, 5])}}, "query '4' picks 5, which is not among the 2"),
    "pool of lists": ({"4": {"pool": [[1], [2]], **one([1])}}, r"pool of query '4' holds something other than ids"),
    "embedding id": ({"4": {"embedding_id": [1], **one([1])}}, "embedding_id of query '4' holds something other"),
    "large number": ({"3": one([1], beam_score=10**400)}, "beam_score of query '3' is 1000"),
    "nested": ('{"3": ' + "[" * 100_000, "nested too deep in or after query '3'"),
    "outside the table": ({"3": one([99])}, "query '3' needs the embedding of 99"),
    "no such query": ({"cat": one([1])}, "query 'cat' needs the embedding of 'cat'"),
    "repeated pick": ({"3": one([4, 1, 4])}, r"query '3' picks an example twice: \[4, 1, 4\]"),
    "NaN reward": (NAN, "vqa_gt_prob of query '3' is nan"),
    "text reward": ({"3": one([1], beam_score="high")}, "beam_score of query '3' is 'high'"),
    "correctness": ({"3": one([1], vqa_correct=2)}, "vqa_correct of query '3' is 2"),
    "probability": ({"3": one([1], vqa_gt_prob=1.5)}, "vqa_gt_prob of query '3' is 1.5"),
    "empty pointer": ({"3": one([])}, "pointer of query '3' is empty"),
    "nothing logged": ({"3": {"pointer_candidates": []}}, "query '3' has no candidates"),
    "neither layout": ({"3": {"candidates": []}}, "query '3' has neither"),
    "lengths": ({"3": {"id_list": [[1]], "score_list": []}}, "query '3' has 1 sequences"),
    "pool twice": ({"3": {"pool": [1, 1], **one([1])}}, "pool of query '3' holds an example twice"),
    "some pools": ({"1": {"pool": [1], **one([1])}, "3": one([1])}, "query '3' has no pool, unlike"),
    "split": ({"3": {"split": "dev", **one([1])}}, "query '3' is in split 'dev'"),
    "a list": ([1, 2], "one JSON object|expected one of {"),
    "empty": ({}, "holds no query"),
    "twice": ('{"3": {"pointer_candidates": [{"pointer": [1]}]}, "3": {}}', "query '3' stands in the file twice"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(tmp_path, name):
    content, message = MISTAKES[name]
    with pytest.raises(RecipeError) as caught:
        read(tmp_path, content)
    caught.match(message)


@pytest.mark.parametrize("chunk", [1, 7, 100, 1 << 20])
def test_the_stream_is_the_json_and_truncation_names_the_last_query(tmp_path, chunk, monkeypatch):
    monkeypatch.setattr(candidates, "CHUNK", chunk)
    content = {"a": {"x": [1, 2.5, "}{"]}, 'é"': 12345, "c": None, "d": {"deep": [[{}]]}}
    path = tmp_path / "x.json"
    text = "  " + json.dumps(content, indent=2) + " \n"
    path.write_text(text, encoding="utf-8")
    assert dict(candidates.stream_entries(path)) == content
    for end in range(3, len(text.rstrip()), 5):
        path.write_text(text[:end], encoding="utf-8")
        with pytest.raises(RecipeError, match="cut off or malformed (in or after query '|before its first query)"):
            dict(candidates.stream_entries(path))
    path.write_bytes(b'{"0": {}, "\xff')
    with pytest.raises(RecipeError, match="not text in UTF-8"):
        dict(candidates.stream_entries(path))


def test_tables_in_all_formats(tmp_path):
    rows, names = torch.randn(4, 3), ["a", "b", "c", "7"]
    np.savez(tmp_path / "t.npz", query_embeddings=rows.numpy(), query_ids=np.array(names))
    save_file({"query_embeddings": rows}, tmp_path / "t.safetensors", metadata={"query_ids": json.dumps(names)})
    torch.save({"query_embeddings": list(rows), "query_ids": names}, tmp_path / "t.pt")
    for suffix in ("npz", "safetensors", "pt"):
        table = load_table(tmp_path / f"t.{suffix}", "query")
        assert torch.equal(table.rows, rows)
        assert [table.row(name, "q") for name in ("c", 7, "7")] == [2, 3, 3]
    torch.save(rows, tmp_path / "t.pt")
    with (tmp_path / "t.npz").open("wb") as file:
        np.save(file, rows.numpy())  # a renamed array
    for suffix in ("npz", "pt"):
        assert load_table(tmp_path / f"t.{suffix}", "candidate").row("2", "q") == 2


class Malicious:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (open, ("/dev/null",))


def test_mistakes_in_tables_are_named_and_no_pickle_is_executed(tmp_path):
    two = np.array([[1.0, 2.0], [np.nan, 0.0]])
    arrays = {
        "nan": {"query_embeddings": two, "query_ids": np.array(["a", "b"])},
        "flat": {"query_embeddings": np.ones(3)},
        "ids": {"query_embeddings": np.ones((3, 2)), "query_ids": np.array(["a", "a", "b"])},
        "other": {"vectors": np.ones((3, 2)), "more": np.ones(1)},
        "text": {"query_embeddings": np.array([["a", "b"]])},
        "pairs": {"query_embeddings": np.ones((3, 2)), "query_ids": np.ones((3, 2), int)},
        "code": {"query_embeddings": np.array([Malicious()], dtype=object)},
    }
    for name, content in arrays.items():
        np.savez(tmp_path / f"{name}.npz", **content)
    torch.save({"query_embeddings": torch.ones(2, 2), "x": Malicious()}, tmp_path / "code.pt")
    torch.save({"query_embeddings": [torch.ones(2), torch.ones(3)], "query_ids": ["a", "b"]}, tmp_path / "ragged.pt")
    torch.save({1: torch.ones(2), "x": torch.ones(2)}, tmp_path / "keys.pt")
    save_file({"query_embeddings": torch.ones(2, 2)}, tmp_path / "ids.safetensors", metadata={"query_ids": "[a"})
    for name, content in {
        "empty.npz": b"",
        "broken.pt": b"PK",
        "broken.safetensors": b"\0" * 20,
        "t.csv": b"1",
    }.items():
        (tmp_path / name).write_bytes(content)
    for name, message in {
        "nan.npz": "embedding of 'b' holds values",
        "flat.npz": r"shape \(3,\)",
        "ids.npz": "2 distinct",
        "other.npz": "no query_embeddings; it has more, vectors",
        "text.npz": "does not hold numbers",
        "pairs.npz": "query_ids is not a list",
        "code.npz": "without pickles",
        "code.pt": "pickled objects other than tensors",
        "ragged.pt": r"embedding of 'b' has shape \(3,\), and the first one \(2,\)",
        "keys.pt": "no query_embeddings; it has 1, x",
        "ids.safetensors": "not a JSON list",
        "empty.npz": "without pickles: No data",
        "broken.pt": "not readable as a torch file|pickled objects",
        "broken.safetensors": "not readable as safetensors",
        "t.csv": ".csv",
        "absent.npz": "no file",
    }.items():
        with pytest.raises(RecipeError, match=message):
            load_table(tmp_path / name, "query")


def test_the_report_counts(tmp_path):
    entries = [
        {"pointer": [1, 2], "vqa_correct": 1, "gen_method": "beam"},
        {"pointer": [2, 1], "vqa_correct": 0, "gen_method": "beam"},
        {"pointer": [1, 2], "vqa_correct": 1, "gen_method": "random"},
    ]
    wrong = one([5], [6], vqa_correct=0)
    counts = report(read(tmp_path, {"0": {"pointer_candidates": entries}, "1": wrong, "2": one([3], vqa_correct=1)}))
    assert (counts.queries, counts.groups, counts.candidates) == (3, 3, 6)
    assert counts.methods == {"beam": 2, "random": 1, "other": 3}
    assert counts.correct_share == pytest.approx(0.5)
    assert (counts.queries_without_correct, counts.groups_all_equal, counts.single_candidate_groups) == (1, 2, 1)
    assert (counts.duplicate_sequences, counts.duplicate_sets) == (1, 1)
    assert counts.scores["vqa_correct"][0::6] == [0.0, 1.0]
    assert dict(counts.rows())["groups with one candidate"] == "1, the first in query '2'"


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
    everything, nothing = filtered(data, FilterConfig(skip_fallback=False, drop_repeated=False))
    assert (len(everything.lengths), nothing) == (6, {})
    with pytest.raises(RecipeError, match="leave no query"):
        filtered(data.keep_queries(np.array([False, True])), FilterConfig(require_positive=True))


def test_splits_by_the_file_and_by_hash(tmp_path, data):
    assert {name: len(part) for name, part in by_split(data, SplitConfig()).items()} == {
        "train": 6,
        "validation": 3,
        "test": 3,
    }
    content = {str(q): one([1]) for q in range(400)}
    names = [set(part.query_ids) for part in by_split(read(tmp_path, content, 400), SplitConfig()).values()]
    assert len(set.union(*names)) == sum(map(len, names)) == 400
    assert 30 < len(names[1]) < 90
    fewer = {q: record for q, record in content.items() if int(q) % 2}
    again = by_split(read(tmp_path, fewer, 400), SplitConfig())
    assert set(again["test"].query_ids) == {q for q in names[2] if int(q) % 2}  # a query keeps its part as data changes
    few, more = (set(_some_queries(again["train"], DataConfig(train_queries=n)).query_ids) for n in (20, 50))
    assert (len(few), len(more), few < more) == (20, 50, True)
    with pytest.raises(RecipeError, match="9999 training queries were asked for"):
        _some_queries(data, DataConfig(train_queries=9999))
    with pytest.raises(RecipeError, match="left for validation|left for test|left for train"):
        by_split(read(tmp_path, {"0": one([1])}), SplitConfig())


def test_keeping_queries_keeps_their_pools_and_candidates(data):
    chosen = np.arange(len(data)) % 3 == 1
    part = data.keep_queries(chosen)
    for number, query in enumerate(np.flatnonzero(chosen)):
        pools = [d.pool_rows[d.pool_offsets[q] : d.pool_offsets[q + 1]] for d, q in ((part, number), (data, query))]
        assert np.array_equal(*pools)
        assert np.array_equal(
            part.pointers[part.candidate_query == number], data.pointers[data.candidate_query == query]
        )
    assert part.digest() != data.digest()
    assert data.keep_queries(np.ones(len(data), bool)).digest() == data.digest()


def test_a_batch_holds_what_the_data_holds(data):
    queries = np.array([4, 0, 7])
    batch = collate(data, queries)
    assert batch.candidates.sum() == sum((data.candidate_query == q).sum() for q in queries)
    for b, query in enumerate(queries):
        assert torch.equal(batch.query[b], data.queries.rows[data.query_rows[query]].float())
        assert int(batch.pool_mask[b].sum()) == data.pool_size(query)
    for b, group, member in batch.candidates.nonzero().tolist():
        row, column = int(batch.rows[b, group, member]), group * batch.candidates.shape[2] + member
        picks = batch.pointers[b, column][batch.steps[b, column]].tolist()
        assert picks == data.pointers[row][: data.lengths[row]].tolist()
        assert data.candidate_query[row] == queries[b]
    assert all(not batch.steps[:, :column, step].any() for step, column in enumerate(batch.first))
    alone = data.keep_candidates(np.isin(np.arange(len(data.lengths)), data.group_starts[:-1]) & (data.lengths == 1))
    assert collate(alone, np.array([2, 3, 5])).candidates.shape == (3, 1, 1)


def test_the_order_of_an_epoch_depends_on_seed_phase_and_epoch_only():
    def order(*key):
        return tuple(np.concatenate(shuffled(50, 8, *key)).tolist())

    assert sorted(order(1, "rce", 0)) == list(range(50))
    assert order(1, "rce", 0) == order(1, "rce", 0)
    assert len({order(*key) for key in ((1, "rce", 0), (1, "rce", 1), (1, "grpo", 0), (2, "rce", 0))}) == 4
