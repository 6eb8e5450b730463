"""Reading candidates and embeddings: both layouts, all three table formats, and every mistake with its query's name."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from pointer_testing import write_data

from recipes.errors import RecipeError
from recipes.pointer_selector import candidates
from recipes.pointer_selector.config import FilterConfig, SplitConfig
from recipes.pointer_selector.data import collate, read_data, shuffled
from recipes.pointer_selector.embeddings import load_table
from recipes.pointer_selector.preparation import by_split, filtered, report


@pytest.fixture
def data(tmp_path):
    path, table = write_data(tmp_path)
    return read_data(path, table, table)


def read(tmp_path, content, **tables):
    path, table = tmp_path / "c.json", tmp_path / "e.npz"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    rng = np.random.default_rng(0)
    queries = tables.get("queries", rng.normal(size=(5, 3)))
    examples = tables.get("examples", rng.normal(size=(9, 3)))
    np.savez(table, query_embeddings=queries, candidate_embeddings=examples)
    return read_data(path, table, table)


def one(*pointers, **scores):
    return {"pointer_candidates": [{"pointer": list(p), **scores} for p in pointers]}


def test_everything_in_the_file_is_in_the_data(tmp_path, data):
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
            slots = data.pointers[row][: data.lengths[row]]
            assert [pool[slot] for slot in slots] == candidate["pointer"], name
            assert data.scores["vqa_gt_prob"][row] == np.float32(candidate["vqa_gt_prob"])
    assert set(np.diff(data.pool_offsets)) == {6, 7, 8}
    assert data.skipped == {"entries that begin with an underscore": 1}


def test_groups_are_queries_at_one_number_of_picks(data):
    assert len(data.group_query) == 24
    for group in range(24):
        rows = slice(data.group_starts[group], data.group_starts[group + 1])
        assert set(data.candidate_query[rows]) == {data.group_query[group]}
        assert set(data.lengths[rows]) == {data.group_shots[group]}


def test_the_older_layout(tmp_path):
    content = {"2": {"id_list": [[4, 7, 2], [7, 1, 2]], "score_list": [0.5, 0.25]}}
    data = read(tmp_path, content)
    assert data.pointers.tolist() == [[4, 7], [7, 1]]
    assert data.scores["beam_score"].tolist() == [0.5, 0.25]
    assert np.isnan(data.scores["vqa_correct"]).all()
    other = read(tmp_path, {"2": {"id_list": [[4, 7], [7, 1]], "score_list": [0.5, 0.25]}})
    assert other.pointers.tolist() == [[4, 7], [7, 1]]


def test_all_queries_may_share_one_pool(tmp_path):
    data = read(tmp_path, {"0": one([8, 3]), "1": one([0])})
    batch = collate(data, np.array([0, 1]))
    assert batch.pool.shape == (2, 9, 3)
    assert data.pointers.tolist() == [[8, 3], [0, -1]]


def test_ids_of_a_pool_may_be_written_as_text(tmp_path):
    data = read(tmp_path, {"4": {"pool": ["1", "2"], **one([2, "1"])}})
    assert data.pointers.tolist() == [[1, 0]]


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "c.json").write_bytes(b'{"0": {}, "\xff')
    with pytest.raises(RecipeError, match="not text in UTF-8"):
        list(candidates.stream_entries(tmp_path / "c.json"))


def test_failed_evaluations_are_left_out_and_counted(tmp_path):
    failed = {"pointer": [1], "eval_failed": True, "vqa_gt_prob": None}
    data = read(
        tmp_path, {"0": {"pointer_candidates": [failed, {"pointer": [2]}]}, "1": {"pointer_candidates": [failed]}}
    )
    assert data.query_ids == ["0"]
    assert data.skipped == {"candidates whose evaluation failed": 2, "queries whose evaluations all failed": 1}


MISTAKES = {
    "outside the pool": ({"4": {"pool": [1, 2], **one([1, 5])}}, "query '4' picks 5, which is not among the 2"),
    "pool of lists": ({"4": {"pool": [[1], [2]], **one([1])}}, r"pool of query '4' holds something other than ids"),
    "embedding id": ({"4": {"embedding_id": [1], **one([1])}}, "embedding_id of query '4' holds something other"),
    "large number": ({"3": one([1], beam_score=10**400)}, "beam_score of query '3' is 1000"),
    "nested": ('{"3": ' + "[" * 100_000, "nested too deep in or after query '3'"),
    "outside the table": ({"3": one([99])}, "query '3' needs the embedding of 99"),
    "no such query": ({"cat": one([1])}, "query 'cat' needs the embedding of 'cat'"),
    "repeated pick": ({"3": one([4, 1, 4])}, r"query '3' picks an example twice: \[4, 1, 4\]"),
    "NaN reward": (
        '{"3": {"pointer_candidates": [{"pointer": [1], "vqa_gt_prob": NaN}]}}',
        "vqa_gt_prob of query '3' is nan",
    ),
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


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("chunk", [16, 1 << 20])
def test_truncated_json_names_the_last_query(tmp_path, share, chunk, monkeypatch):
    monkeypatch.setattr(candidates, "CHUNK", chunk)
    path, table = write_data(tmp_path)
    text = path.read_text()
    path.write_text(text[: int(share * len(text))])
    with pytest.raises(RecipeError, match="cut off or malformed (in or after query '|before its first query)"):
        read_data(path, table, table)


@pytest.mark.parametrize("chunk", [1, 7, 100, 1 << 20])
def test_the_stream_is_the_json(tmp_path, chunk, monkeypatch):
    monkeypatch.setattr(candidates, "CHUNK", chunk)
    content = {"a": {"x": [1, 2.5, "}{"]}, 'é"': 12345, "c": None, "d": {"deep": [[{}]]}}
    path = tmp_path / "x.json"
    path.write_text("  " + json.dumps(content, indent=2) + " \n", encoding="utf-8")
    assert dict(candidates.stream_entries(path)) == content


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_tables_in_all_formats(tmp_path, suffix):
    from safetensors.torch import save_file

    rows, path = torch.randn(4, 3), tmp_path / f"table{suffix}"
    names = ["a", "b", "c", "7"]
    if suffix == ".npz":
        np.savez(path, query_embeddings=rows.numpy(), query_ids=np.array(names))
    elif suffix == ".safetensors":
        save_file({"query_embeddings": rows}, path, metadata={"query_ids": json.dumps(names)})
    else:
        torch.save({"query_embeddings": rows, "query_ids": names}, path)
    table = load_table(path, "query")
    assert torch.equal(table.rows, rows)
    assert [table.row(name, "q") for name in ("c", 7, "7")] == [2, 3, 3]


def test_a_list_of_vectors_and_a_renamed_array_are_tables(tmp_path):
    torch.save({"query_embeddings": [torch.ones(2), torch.zeros(2)]}, tmp_path / "t.pt")
    assert load_table(tmp_path / "t.pt", "query").rows.tolist() == [[1, 1], [0, 0]]
    with (tmp_path / "t.npz").open("wb") as file:
        np.save(file, np.ones((3, 2)))
    assert load_table(tmp_path / "t.npz", "query").rows.shape == (3, 2)


def test_a_bare_tensor_is_a_table_by_row(tmp_path):
    torch.save(torch.ones(3, 2), tmp_path / "t.pt")
    assert load_table(tmp_path / "t.pt", "candidate").row("2", "q") == 2


class Malicious:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (open, ("/dev/null",))


def test_no_pickle_is_executed(tmp_path):
    torch.save({"query_embeddings": torch.ones(2, 2), "x": Malicious()}, tmp_path / "t.pt")
    np.savez(tmp_path / "t.npz", query_embeddings=np.array([Malicious()], dtype=object))
    for name in ("t.pt", "t.npz"):
        with pytest.raises(RecipeError, match="pickled objects other than tensors|without pickles"):
            load_table(tmp_path / name, "query")


def test_mistakes_in_tables_are_named(tmp_path):
    from safetensors.torch import save_file

    np.savez(
        tmp_path / "nan.npz", query_embeddings=np.array([[1.0, 2.0], [np.nan, 0.0]]), query_ids=np.array(["a", "b"])
    )
    np.savez(tmp_path / "flat.npz", query_embeddings=np.ones(3))
    np.savez(tmp_path / "ids.npz", query_embeddings=np.ones((3, 2)), query_ids=np.array(["a", "a", "b"]))
    np.savez(tmp_path / "other.npz", vectors=np.ones((3, 2)), more=np.ones(1))
    np.savez(tmp_path / "text.npz", query_embeddings=np.array([["a", "b"]]))
    np.savez(tmp_path / "idpairs.npz", query_embeddings=np.ones((3, 2)), query_ids=np.ones((3, 2), int))
    (tmp_path / "empty.npz").write_bytes(b"")
    torch.save({"query_embeddings": [torch.ones(2), torch.ones(3)], "query_ids": ["a", "b"]}, tmp_path / "ragged.pt")
    torch.save({1: torch.ones(2), "x": torch.ones(2)}, tmp_path / "keys.pt")
    (tmp_path / "broken.pt").write_bytes(b"PK")
    save_file({"query_embeddings": torch.ones(2, 2)}, tmp_path / "ids.safetensors", metadata={"query_ids": "[a"})
    (tmp_path / "broken.safetensors").write_bytes(b"\x00" * 20)
    (tmp_path / "table.csv").write_text("1,2")
    for name, message in {
        "nan.npz": "embedding of 'b' holds values",
        "flat.npz": r"shape \(3,\)",
        "ids.npz": "2 distinct",
        "text.npz": "does not hold numbers",
        "idpairs.npz": "query_ids is not a list",
        "empty.npz": "without pickles: No data",
        "ragged.pt": r"embedding of 'b' has shape \(3,\), and the first one \(2,\)",
        "keys.pt": "no query_embeddings; it has 1, x",
        "broken.pt": "not readable as a torch file|pickled objects",
        "ids.safetensors": "not a JSON list",
        "other.npz": "no query_embeddings; it has more, vectors",
        "broken.safetensors": "not readable as safetensors",
        "table.csv": ".csv",
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
    found = report(read(tmp_path, {"0": {"pointer_candidates": entries}, "1": wrong, "2": one([3], vqa_correct=1)}))
    assert (found.queries, found.groups, found.candidates) == (3, 3, 6)
    assert found.methods == {"beam": 2, "random": 1, "other": 3}
    assert found.correct_share == pytest.approx(0.5)
    assert (found.queries_without_correct, found.groups_all_equal, found.single_candidate_groups) == (1, 2, 1)
    assert (found.duplicate_sequences, found.duplicate_sets) == (1, 1)
    assert found.scores["vqa_correct"][0::6] == [0.0, 1.0]
    assert len(found.rows()) > 8
    assert dict(found.rows())["groups with one candidate"] == "1, the first in query '2'"


def test_filters_drop_and_count(tmp_path):
    entries = [
        {"pointer": [1], "vqa_correct": 0, "vqa_gt_prob": 0.01},
        {"pointer": [2], "vqa_correct": 0, "vqa_gt_prob": 0.4},
        {"pointer": [2], "vqa_correct": 0, "vqa_gt_prob": 0.4},
        {"pointer": [3], "vqa_correct": 1, "vqa_gt_prob": 0.01, "vqa_eval_mode": "fallback"},
        {"pointer": [4], "vqa_correct": 1, "vqa_gt_prob": 0.01},
    ]
    content = {"0": {"pointer_candidates": entries}, "1": one([1], vqa_correct=0, vqa_gt_prob=0.3)}
    data = read(tmp_path, content)
    kept, dropped = filtered(data, FilterConfig(drop_incorrect_below=0.05, require_positive=True))
    assert kept.query_ids == ["0"]
    assert kept.pointers[:, 0].tolist() == [2, 4]
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
    parts = by_split(data, SplitConfig())
    assert {name: len(part) for name, part in parts.items()} == {"train": 6, "validation": 3, "test": 3}
    content = {str(q): one([1]) for q in range(400)}
    hashed = by_split(read(tmp_path, content, queries=np.ones((400, 3))), SplitConfig())
    names = [set(part.query_ids) for part in hashed.values()]
    assert sum(map(len, names)) == 400
    assert not names[0] & names[1] | names[0] & names[2] | names[1] & names[2]
    assert 30 < len(names[1]) < 90
    fewer = {q: record for q, record in content.items() if int(q) % 2}
    again = by_split(read(tmp_path, fewer, queries=np.ones((400, 3))), SplitConfig())
    assert set(again["test"].query_ids) == {q for q in names[2] if int(q) % 2}  # a query keeps its part as data changes
    with pytest.raises(RecipeError, match="left for validation|left for test|left for train"):
        by_split(read(tmp_path, {"0": one([1])}), SplitConfig())


def test_keeping_queries_keeps_their_pools_and_candidates(data):
    chosen = np.arange(len(data)) % 3 == 1
    part = data.keep_queries(chosen)
    for number, query in enumerate(np.flatnonzero(chosen)):
        ours, theirs = (
            d.pool_rows[d.pool_offsets[q] : d.pool_offsets[q + 1]] for d, q in ((part, number), (data, query))
        )
        assert ours.tolist() == theirs.tolist()
        assert (
            part.pointers[part.candidate_query == number].tolist()
            == data.pointers[data.candidate_query == query].tolist()
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
        for group in range(batch.candidates.shape[1]):
            for member in range(batch.candidates.shape[2]):
                if not batch.candidates[b, group, member]:
                    continue
                row = int(batch.rows[b, group, member])
                column = group * batch.candidates.shape[2] + member
                picks = batch.pointers[b, column][batch.steps[b, column]].tolist()
                assert picks == data.pointers[row][: data.lengths[row]].tolist()
                assert data.candidate_query[row] == query
    assert all(not batch.steps[:, :column, step].any() for step, column in enumerate(batch.first))
    assert batch.by_group(batch.candidates).any(-1).all()


def test_groups_of_a_batch_with_one_candidate_of_one_pick(data):
    alone = data.keep_candidates(np.isin(np.arange(len(data.lengths)), data.group_starts[:-1]) & (data.lengths == 1))
    batch = collate(alone, np.array([2, 3, 5]))
    assert batch.candidates.shape == (3, 1, 1)
    assert batch.by_group(batch.rows).shape == (3, 1)
    assert batch.picks_by_group(batch.pointers).shape == (3, 1, 1)


def test_the_order_of_an_epoch_depends_on_seed_phase_and_epoch_only():
    def order(*key):
        return np.concatenate(shuffled(50, 8, *key)).tolist()

    assert sorted(order(1, "rce", 0)) == list(range(50))
    assert order(1, "rce", 0) == order(1, "rce", 0)
    assert len({tuple(order(*key)) for key in ((1, "rce", 0), (1, "rce", 1), (1, "grpo", 0), (2, "rce", 0))}) == 4
