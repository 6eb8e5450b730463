"""What people's files hold is read, and what is wrong is named with its line, its field and an example."""

from __future__ import annotations

import json
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.data.readers import Columns, Mistakes, raw_records, records
from recipes.errors import RecipeError

GOOD = {"prompt": "What is 1 + 1?", "ground_truth": "2", "data_source": "math_reasoning"}
LINE = json.dumps(GOOD)


def read(folder, name, content, **options):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(records([path], options.get("source")))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", f"{LINE}\n{LINE}\n"),
        ("bom.jsonl", f"\ufeff{LINE}\n{LINE}\n"),
        ("windows.jsonl", f"{LINE}\r\n{LINE}\r\n"),
        ("empty_lines.jsonl", f"\n\n{LINE}\n   \n{LINE}\n\n"),
        ("commas.jsonl", f"{LINE},\n{LINE},\n"),
        ("a.json", f"[{LINE}, {LINE}]"),
        ("pretty.json", json.dumps([GOOD, GOOD], indent=4)),
        ("windows.json", json.dumps([GOOD, GOOD], indent=4).replace("\n", "\r\n")),
        ("a.csv", "prompt,ground_truth,data_source\n" + 2 * "What is 1 + 1?,2,math_reasoning\n"),
        ("excel.csv", "prompt;ground_truth;data_source\n" + 2 * "What is 1 + 1?;2;math_reasoning\n"),
        ("a.tsv", "prompt\tground_truth\tdata_source\n\n" + 2 * "What is 1 + 1?\t2\tmath_reasoning\n"),
    ],
)
def test_every_usual_form_gives_the_same_records(tmp_path, name, content):
    found = read(tmp_path, name, content)
    assert [(r.question, r.ground_truth, r.data_source) for r in found] == 2 * [tuple(GOOD.values())]


@pytest.mark.parametrize(
    ("name", "content", "what", "where"),
    [
        ("a.jsonl", f'{LINE}\n\n{{"prompt": "p", "answer": 1, "data_source": "x"}}', "no field ground_truth", "line 3"),
        ("a.jsonl", '{"prompt": "p", "ground_truth": null, "data_source": "x"}', "ground_truth is null", "line 1"),
        ("a.jsonl", '{"prompt": "  ", "ground_truth": 1, "data_source": "x"}', "prompt is empty", "line 1"),
        ("a.jsonl", '{"prompt": 5, "ground_truth": 1, "data_source": "x"}', "neither a text nor chat", "line 1"),
        ("a.jsonl", '{"prompt": "p", "prompt": "q", "ground_truth": 1}', "prompt is given twice", "line 1"),
        ("a.jsonl", '{"prompt": "p", "ground_truth": NaN}', "NaN is no number", "line 1"),
        ("a.jsonl", f"{LINE}\n{LINE[:-1]}", "not JSON", "line 2"),
        ("a.jsonl", f"{LINE} {LINE}", "not JSON: Extra data", "line 1"),
        ("a.jsonl", b'{"prompt": "\xff"}', "not UTF-8", "line 1"),
        ("a.json", f'[\n{LINE},\n{{"prompt": "a",,}}\n]', "not JSON", "line 3"),
        ("a.json", f"[{LINE}\n{LINE}]", "not JSON", "line 2"),
        ("a.json", f"[{LINE},\n{LINE}", "not JSON", "line 2"),
        ("a.json", f"[{LINE}] {LINE}", "not JSON", "line 1"),
        ("a.jsonl", '{"prompt": "q", "data_source": "x", "ground_truth": ' + "9" * 5000 + "}", "4300 digits", "line 1"),
        ("a.json", f"[{LINE},\n" + '{"prompt": "never closed', "not JSON", "line 2"),
        ("a.csv", "prompt,ground_truth,data_source\na,b\n", "2 cells", "line 2"),
        ("a.csv", "prompt,prompt,data_source\na,b,c\n", "there twice", "line 1"),
        ("a.csv", 'prompt,ground_truth,data_source\n"two\nlines",1,x\n,1,x\n', "prompt is null", "line 4"),
        ("a.csv", 'prompt,ground_truth,data_source\n"never closed,1,x\n', "not CSV", "line 2"),
        ("a.parquet", b"PAR1 no", "cannot be read as parquet", "a.parquet"),
        ("a.txt", LINE, "neither JSON, JSONL, CSV nor parquet", "a.txt"),
        ("a.csv", "prompt,ground_truth\n", "no records", "a.csv"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, name, content, what, where):
    with pytest.raises(RecipeError) as caught:
        read(tmp_path, name, content)
    assert what in caught.value.what
    assert where in caught.value.where
    assert caught.value.fix


def test_all_mistakes_of_a_file_are_named_at_once(tmp_path):
    no_truth = '{"prompt": "p", "answer": 1, "data_source": "x"}'
    with pytest.raises(RecipeError) as caught:
        read(tmp_path, "a.jsonl", "\n".join([LINE, no_truth, LINE[:-1], LINE, no_truth, "[]", LINE]))
    what, *listed = caught.value.what.splitlines()
    assert what == "4 records cannot be used"
    assert [line.split(":")[0].strip() for line in listed] == ["lines 2, 5", "line 3", "line 6"]
    assert "there is no field ground_truth (there is prompt, answer, data_source)" in listed[0]
    assert "a.jsonl, the first in line 2" in caught.value.where
    assert '"prompt": "What is 17 + 25?"' in caught.value.fix


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"question": "q", "answer": 1, "level": 3}\n{"question": "r", "answer": 2, "level": 4}'),
        ("a.csv", "question,answer,level\nq,1,3\nr,2,4\n"),
    ],
)
def test_other_columns_are_mapped_and_proposed_all_at_once(tmp_path, name, content):
    with pytest.raises(RecipeError) as caught:
        read(tmp_path, name, content)
    assert "no column prompt, ground_truth, data_source" in caught.value.what
    assert "--prompt_key question --answer_key answer --data_source NAME" in caught.value.fix
    mapped = list(records([tmp_path / name], "math", columns=Columns("question", "answer")))
    assert [(record.question, record.ground_truth, record.data_source) for record in mapped] == [
        ("q", "1", "math"),
        ("r", "2", "math"),
    ]
    with pytest.raises(RecipeError, match="no column level2"):
        list(records([tmp_path / name], "math", columns=Columns("level2", "answer")))
    with pytest.raises(RecipeError, match="two fields"):
        Columns("answer", "answer")


def test_chat_messages_also_in_a_cell_and_one_source_for_all(tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"}]
    cell = json.dumps(messages).replace('"', '""')
    for name, content in (
        ("a.jsonl", json.dumps({**GOOD, "prompt": messages})),
        ("a.csv", f'prompt,ground_truth\n"{cell}",1\n"[1] is a list",1\n'),
    ):
        first, *rest = read(tmp_path, name, content, source="qa")
        assert first.messages == (("system", "Be brief."), ("user", "q"))
        assert [(record.question, record.data_source) for record in rest] in ([], [("[1] is a list", "qa")])


def test_parquet_of_fields_and_of_finished_rows(tmp_path):
    pq.write_table(pa.Table.from_pylist([{**GOOD, "level": 3}, {**GOOD, "level": 4}]), tmp_path / "a.parquet")
    found = list(records([tmp_path / "a.parquet"]))
    assert [r.rest["level"] for r in found] == [3, 4]
    assert str(found[1].place).endswith("row 2")
    row = {
        "prompt": [{"role": "user", "content": "q"}],
        "data_source": "x",
        "reward_model": {"style": "rule", "ground_truth": "7"},
        "extra_info": {"solution": "s"},
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "b.parquet")
    (found,) = records([tmp_path / "b.parquet"])
    assert (found.question, found.ground_truth, found.solution, found.rest) == ("q", "7", "s", {})


TEXT = st.text(min_size=1, max_size=20).filter(str.strip)
RECORD = st.fixed_dictionaries(
    {
        "prompt": TEXT,
        "ground_truth": TEXT | st.integers() | st.lists(TEXT, min_size=1) | st.dictionaries(TEXT, TEXT, min_size=1),
        "data_source": st.sampled_from(["math", "qa"]),
    }
)  # fmt: skip


def raw(path):
    mistakes = Mistakes()
    found = list(raw_records(path, mistakes))
    mistakes.check()
    return found


@settings(max_examples=60, deadline=None)
@given(found=st.lists(RECORD, min_size=1, max_size=6), indent=st.sampled_from([None, 1]), ascii=st.booleans())
def test_any_records_come_back_from_an_array_with_their_numbers(tmp_path_factory, found, indent, ascii):
    path = tmp_path_factory.mktemp("any") / "a.json"
    text = json.dumps(found, indent=indent, ensure_ascii=ascii)
    path.write_text(text, encoding="utf-8", newline="")
    read = raw(path)
    assert [record for _, record in read] == found
    assert [place.number for place, _ in read] == list(range(1, len(found) + 1))


@settings(max_examples=60, deadline=None)
@given(records=st.lists(RECORD, min_size=1, max_size=6), end=st.sampled_from(["\n", "\r\n", ",\n", "\n\n"]))
def test_any_records_come_back_from_lines(tmp_path_factory, records, end):
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    path.write_bytes("".join(json.dumps(record, ensure_ascii=False) + end for record in records).encode())
    assert [record for _, record in raw(path)] == records


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=60), suffix=st.sampled_from(["json", "jsonl", "csv", "parquet"]))
def test_any_bytes_are_records_or_an_error_in_words(tmp_path_factory, content, suffix):
    path = tmp_path_factory.mktemp("bytes") / f"a.{suffix}"
    path.write_bytes(content)
    with suppress(RecipeError):
        assert list(records([path]))


def test_brackets_without_end_and_a_large_array(tmp_path, cpu_seconds):
    """50,000 rows take half a second; reading the rest of the file again for each of them takes minutes."""
    for name in ("a.json", "a.jsonl"):
        with pytest.raises(RecipeError):
            read(tmp_path, name, "[" * 200_000)
    path = tmp_path / "many.json"
    path.write_text("[" + ",\n".join([LINE] * 50_000) + "]")
    assert len(raw(path)) == 50_000
    assert cpu_seconds(lambda: raw(path), enough=5) < 5
