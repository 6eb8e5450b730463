"""Records of people's files are read, and mistakes are named with their line, their field and an example."""

import json
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.data.readers import Columns, Mistakes, records
from recipes.errors import RecipeError
from tests.mistakes import mistake

GOOD = {"prompt": "What is 1 + 1?", "ground_truth": "2", "data_source": "math_reasoning"}
LINE = json.dumps(GOOD)
CHAT = [{"role": "user", "content": GOOD["prompt"]}]
PICTURE = [{"type": "image", "image": "b.png"}, {"type": "text", "text": GOOD["prompt"]}]
PARTS = [{"type": "text", "text": GOOD["prompt"][:4]}, {"type": "text", "text": GOOD["prompt"][4:], "image": None}]


def read(folder, name, content=None, columns=None, source=None, **options):
    """The records of a file, written first where its content is given, as (question, truth, source); mistakes raise."""
    path = folder / name
    mistakes = Mistakes(replace(columns or Columns(), data_source=source, **options))
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = list(records([path], mistakes))
    mistakes.check()
    return found


def facts(found):
    return [(record.messages[-1]["content"], record.ground_truth, record.data_source) for record in found]


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
        ("sep.csv", "sep=;\nprompt;ground_truth;data_source\n" + 2 * "What is 1 + 1?;2;math_reasoning\n"),
        ("trl.jsonl", 2 * f"{json.dumps({**GOOD, 'ground_truth': [{'role': 'assistant', 'content': '2'}]})}\n"),
        ("empty.csv", "prompt,ground_truth,data_source,,\n" + 2 * "What is 1 + 1?,2,math_reasoning,,\n"),
        ("index.csv", ",Unnamed: 0,prompt,ground_truth,data_source\n" + 2 * "0,0,What is 1 + 1?,2,math_reasoning\n"),
        ("a.tsv", "prompt\tground_truth\tdata_source\n\n" + 2 * "What is 1 + 1?\t2\tmath_reasoning\n"),
        ("nan.jsonl", 2 * f'{LINE[:-1]}, "level": NaN}}\n'),
        ("repr.csv", "prompt,ground_truth,data_source\n" + 2 * f'"{CHAT}",2,math_reasoning\n'),
        ("text.jsonl", 2 * f"{json.dumps({**GOOD, 'prompt': json.dumps(CHAT)})}\n"),
        ("null.jsonl", 2 * f"{json.dumps({**GOOD, 'prompt': [{**CHAT[0], 'name': None}]})}\n"),
        ("parts.jsonl", 2 * f"{json.dumps({**GOOD, 'prompt': [{**CHAT[0], 'content': PARTS}]})}\n"),
    ],
)
def test_every_usual_form_gives_the_same_records(tmp_path, name, content):
    assert facts(read(tmp_path, name, content)) == 2 * [tuple(GOOD.values())]


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("a.jsonl", f'{LINE}\n\n{{"prompt": "p", "answer": 1, "data_source": "x"}}', "line 3"),
        ("a.jsonl", '{"prompt": "p", "ground_truth": null, "data_source": "x"}', "line 1"),
        ("a.jsonl", '{"prompt": "  ", "ground_truth": 1, "data_source": "x"}', "line 1"),
        ("a.jsonl", '{"prompt": 5, "ground_truth": 1, "data_source": "x"}', "line 1"),
        ("a.jsonl", '{"prompt": "p", "prompt": "q", "ground_truth": 1}', "line 1"),
        ("a.jsonl", '{"prompt": "p", "ground_truth": NaN, "data_source": "x"}', "line 1"),
        ("a.jsonl", f"{LINE}\n{LINE[:-1]}", "line 2"),
        ("a.jsonl", b'{"prompt": "\xff"}', "line 1"),
        ("a.json", f'[\n{LINE},\n{{"prompt": "a",,}}\n]', "line 3"),
        ("a.jsonl", '{"prompt": "q", "data_source": "x", "ground_truth": ' + "9" * 5000 + "}", "line 1"),
        ("a.json", f"[{LINE},\n" + '{"prompt": "never closed', "line 2"),
        ("a.csv", "prompt,ground_truth,data_source\na,b\n", "line 2"),
        ("a.jsonl", LINE + '\n{"prompt": "\\ud83d", "ground_truth": 1, "data_source": "x"}', "line 2"),
        ("a.csv", "prompt,prompt,data_source\na,b,c\n", "line 1"),
        ("a.csv", 'prompt,ground_truth,data_source\n"two\nlines",1,x\n,1,x\n', "line 4"),
        ("a.csv", 'prompt,ground_truth,data_source\n"never closed,1,x\n', "line 2"),
        ("a.tsv", 'prompt\tground_truth\tdata_source\n"Row 1\t1\tx\nRow 2"\t2\tx\nRow 3\t3\tx\n', "line 2"),
        ("a.csv", "prompt,ground_truth,data_source\n\"[{'role': 'user', 'content': ...}]\",1,x\n", "line 2"),
        ("a.csv", "prompt,ground_truth,data_source\nq,['a' ... 'z'],x\n", "line 2"),
        ("a.parquet", b"PAR1 no", "a.parquet"),
        ("a.txt", LINE, "a.txt"),
        ("a.jsonl", json.dumps({**GOOD, "prompt": json.dumps([{"name": "Ann", **CHAT[0]}])}), "line 1"),
        ("a.csv", "prompt,ground_truth\n", "a.csv"),
        ("a.jsonl", json.dumps({**GOOD, "prompt": [{"role": "assistant", "content": "Hello"}]}), "line 1"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, name, content, where):
    assert where in mistake(lambda: read(tmp_path, name, content)).where


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", "prompt,ground_truth\n问题,1\n".encode("gb18030"), "iconv -f GB18030"),
        ("a.jsonl", LINE.replace("What", "问题").encode("utf-16"), "iconv"),
        ("a.json", json.dumps({"train": [GOOD], "test": [GOOD]}), "jq .FIELD a.json"),
        ("a.json", json.dumps({"train": [GOOD], "test": [GOOD]}, indent=1), "jq .FIELD a.json"),
        ("a.jsonl.gz", LINE, "unpack"),
        ("a.arrow", LINE, "to_parquet"),
        ("a.jsonl", json.dumps({**GOOD, "ground_truth": float("inf")}), "write it as text"),
        ("a.jsonl", '{"题目": "1 + 1 = ?", "答案": "2"}', "--prompt_key 题目 --answer_key 答案"),
        ("a.csv", "Prompt,Ground_Truth\nq,1\n", "--prompt_key Prompt --answer_key Ground_Truth"),
        ("a.jsonl", json.dumps({**GOOD, "images": ["a.png"], "prompt": [{**CHAT[0], "content": PICTURE}]}), "one of"),
    ],
)
def test_what_to_do_is_said(tmp_path, name, content, said):
    assert said in mistake(lambda: read(tmp_path, name, content)).fix


@pytest.mark.parametrize("indent", [None, 2])
def test_an_object_alone_is_its_rows_or_one(tmp_path, indent):
    mistakes = Mistakes()
    (tmp_path / "a.json").write_text(json.dumps({"version": "1", "data": [GOOD, GOOD]}, indent=indent))
    assert facts(records([tmp_path / "a.json"], mistakes)) == facts(read(tmp_path, "b.jsonl", 2 * f"{LINE}\n"))
    assert mistakes.notes == ["a.json is one object, whose field data holds the rows"]
    one = {**GOOD, "prompt": CHAT}
    assert len(read(tmp_path, "a.json", json.dumps(one, indent=indent))) == 1, "a row whose prompt is a list of objects"


def test_days_and_decimals_of_pandas_are_texts(tmp_path):
    import pandas

    for stored, truth in ((pandas.Timestamp("2024-05-01"), "2024-05-01"), (Decimal("0.50"), "0.50")):
        pandas.DataFrame([{**GOOD, "ground_truth": stored}]).to_parquet(tmp_path / "a.parquet")
        assert read(tmp_path, "a.parquet")[0].ground_truth == truth


def test_two_columns_of_one_name_are_refused(tmp_path):
    pq.write_table(pa.Table.from_arrays([pa.array(["q"])] * 2, names=["prompt", "prompt"]), tmp_path / "twice.parquet")
    assert "prompt is given twice" in mistake(lambda: read(tmp_path, "twice.parquet")).what


def test_a_list_of_other_objects_is_a_text(tmp_path):
    for text in ('[{"name": "Ann", "role": "admin"}]', '[{"id": 1, "from": "London", "to": "Paris"}]'):
        (found,) = read(tmp_path, "a.jsonl", json.dumps({**GOOD, "prompt": text}))
        assert found.messages == [{"role": "user", "content": text}]


def test_all_mistakes_of_a_file_are_named_at_once(tmp_path):
    no_truth = '{"prompt": "p", "answer": 1, "data_source": "x"}'
    content = "\n".join([LINE, no_truth, LINE[:-1], LINE, no_truth, "[]", LINE, *25 * ["5"]])
    error = mistake(lambda: read(tmp_path, "a.jsonl", content), '"prompt": "What is 17 + 25?"')
    _, *listed, more = error.what.splitlines()
    assert [line.split(":")[0].split(", ")[1] for line in listed[:4]] == ["line 2", "line 3", "line 5", "line 6"]
    assert "there is no field ground_truth (there is prompt, answer, data_source)" in listed[0]
    assert (len(listed), "9 more" in more, error.where.endswith("line 2")) == (20, True, True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", '{"question": "q", "answer": 1, "level": 3}\n{"question": "r", "answer": 2, "level": 4}'),
        ("a.csv", "question,answer,level\nq,1,3\nr,2,4\n"),
    ],
)
def test_other_columns_are_mapped_and_proposed_all_at_once(tmp_path, name, content):
    error = mistake(lambda: read(tmp_path, name, content), "no column prompt, ground_truth, data_source")
    assert "--prompt_key question --answer_key answer --data_source NAME" in error.fix
    error = mistake(lambda: read(tmp_path, name, source="maths", sources=("math", "qa")))
    assert all(part in error.what for part in ("prompt, ground_truth", "'maths'"))
    assert "--prompt_key question --answer_key answer --data_source math|qa" in error.fix
    mapped = read(tmp_path, name, columns=Columns("question", "answer"), source="math")
    assert facts(mapped) == [("q", "1", "math"), ("r", "2", "math")]
    assert "--answer_key COLUMN" in mistake(lambda: read(tmp_path, name, columns=Columns("answer"), source="math")).fix
    mistake(lambda: Columns("answer", "answer"))


def test_a_field_that_the_first_record_lacks_is_that_records_mistake_and_an_unknown_source_its_own(tmp_path):
    """The first line alone was taken for the columns: "the file has no column ground_truth"."""
    lines = ['{"prompt": "p", "data_source": "x"}', LINE, json.dumps({**GOOD, "data_source": "maths"}), LINE]
    what = mistake(lambda: read(tmp_path, "a.jsonl", "\n".join(lines), sources=("x", "math_reasoning"))).what
    assert all(part in what for part in ("line 1", "ground_truth", "line 3", "'maths'"))


def test_chat_messages_also_in_a_cell_and_one_source_for_all(tmp_path):
    messages = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user")]
    cell = json.dumps(messages).replace('"', '""')
    table = f'prompt,ground_truth\n"{cell}",1\n"[1] is a list",1\n'
    for name, content in (("a.jsonl", json.dumps({**GOOD, "prompt": messages})), ("a.csv", table)):
        first, *rest = read(tmp_path, name, content, source="qa")
        assert (first.messages, first.chat) == (messages, True)
        assert facts(rest) in ([], [("[1] is a list", "1", "qa")])


def test_parquet_of_fields_and_of_finished_rows(tmp_path):
    pq.write_table(pa.Table.from_pylist([{**GOOD, "level": 3}, {**GOOD, "level": 4}]), tmp_path / "a.parquet")
    found = read(tmp_path, "a.parquet")
    assert [r.rest["level"] for r in found] == [3, 4]
    assert str(found[1].place).endswith("row 2")
    row = {"prompt": [{"role": "user", "content": "q"}], "data_source": "x", "extra_info": {"solution": "s"}}
    row["reward_model"] = {"style": "rule", "ground_truth": "7"}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "b.parquet")
    (found,) = read(tmp_path, "b.parquet")
    assert (*facts([found])[0], found.solution, found.rest) == ("q", "7", "x", "s", {})


@pytest.mark.parametrize(("stored", "truth"), [(1.0, "1"), (-3.0, "-3"), (2.5, "2.5"), (1e20, "100000000000000000000")])
def test_whole_numbers_that_pandas_stores_as_floats_are_whole_again(tmp_path, stored, truth):
    """A column of integers with a gap is one of floats: `1` came as "1.0", and 0.1 under the reward `qa`."""
    import pandas

    table = pandas.DataFrame({"prompt": ["a", "b"], "ground_truth": [stored, None], "id": [7.0, None]})
    table.head(1).astype({"id": int}).to_csv(tmp_path / "a.csv", index=False, float_format="%.1f")
    table.head(1).to_json(tmp_path / "a.jsonl", orient="records", lines=True)
    table.head(1).to_parquet(tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet", "a.csv"):
        (found,) = read(tmp_path, name, source="qa")
        assert (found.ground_truth, found.id) == (truth, "7")


NAN = {"antwort": float("nan")}  # a gap in a data frame
BROKEN = [{"frage": "  "}, {"frage": 5}, {"antwort": ""}, {"antwort": []}, {"antwort": None}, NAN]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_mistake_names_the_files_own_column(tmp_path, broken):
    lines = [json.dumps({"frage": "q", "antwort": 1} | each) for each in ({}, broken)]
    columns = Columns("frage", "antwort")
    error = mistake(lambda: read(tmp_path, "a.jsonl", "\n".join(lines), columns=columns, source="qa"))
    assert next(iter(broken)) in error.what
    assert '{"frage": "What is 17 + 25?", "antwort": "42"' in error.fix
    assert error.where.endswith("line 2")


def test_a_record_without_a_ground_truth_is_right_where_the_reward_needs_none(tmp_path):
    needs_none = {"source": "mine", "truth_needed": False}
    (found,) = read(tmp_path, "a.jsonl", '{"prompt": "q", "level": 3}', **needs_none)
    assert (found.ground_truth, found.rest) == ("", {"level": 3})
    mistake(lambda: read(tmp_path, "a.jsonl", '{"prompt": "q", "answer": 3}', **needs_none), "--answer_key answer")
    mistake(lambda: read(tmp_path, "a.jsonl", columns=Columns(ground_truth="wahrheit"), **needs_none), "wahrheit")


@settings(max_examples=100, deadline=None)
@given(content=st.binary(max_size=60), suffix=st.sampled_from(["json", "jsonl", "csv", "parquet"]))
def test_any_bytes_are_records_or_an_error_in_words(tmp_path_factory, content, suffix):
    path = tmp_path_factory.mktemp("bytes") / f"a.{suffix}"
    path.write_bytes(content)
    with suppress(RecipeError):
        assert read(path.parent, path.name)


def test_brackets_without_end(tmp_path):
    for name in ("a.json", "a.jsonl"):
        mistake(lambda name=name: read(tmp_path, name, "[" * 200_000))
    assert read(tmp_path, "a.csv", f"prompt,ground_truth,data_source\n{'[' * 200_000},1,x\n")


@pytest.mark.parametrize("depth", [101, 500, 950, 5000])
@pytest.mark.parametrize("field", ["ground_truth", "prompt", "level"])
def test_a_row_that_is_nested_too_deep_is_named(tmp_path, field, depth):
    deep = f'{json.dumps({**GOOD, field: None})[:-1]}, "x": 1}}'.replace("null", "[" * depth + "]" * depth)
    error = mistake(lambda: read(tmp_path, "a.jsonl", f"{LINE}\n{deep}\n"), "more than 100 lists or objects")
    assert error.where.endswith("line 2")
