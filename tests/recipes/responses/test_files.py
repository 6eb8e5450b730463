"""Dumps, their groups, and pairs of them: by ids, and by nothing else."""

import json
import random

import pytest

from recipes.errors import RecipeError
from recipes.responses.files import NO_IDS, pair, read_responses
from tests.mistakes import mistake


def response(uid, score, **more):
    return json.dumps({"input": "p", "output": "o", "gts": "1", "score": score, "uid": uid} | more) + "\n"


def write(path, lines):
    path.write_text("".join(lines))
    return read_responses(path)


def validation(path, right, **more):
    """A dump of one gold answer in the order of random uids; `right` are lists of samples by row."""
    lines = [
        response(f"{random.getrandbits(64):x}_{sample}_0", 0.1, acc=float(each), row_id=row, **{"input": row, **more})
        for row, samples in right.items()
        for sample, each in enumerate(samples)
    ]
    random.shuffle(lines)
    return write(path, lines)


def why_not(first, second):
    with pytest.raises(RecipeError) as error:
        pair(first, second)
    return error.value.what


def test_several_samples_a_question(tmp_path):
    first = validation(tmp_path / "1.jsonl", {"a": [1, 0], "b": [0, 0], "c": [1, 1]})
    second = validation(tmp_path / "2.jsonl", {"a": [1, 1], "b": [0, 0], "c": [0, 0]})
    paired = pair(first, second)
    assert (paired.won, paired.lost, paired.difference.value) == (1, 1, pytest.approx(-1 / 6))


def test_rows_of_one_question_are_not_independent(tmp_path):
    """13 rows of 4 prompts, of which two are won: as 13 questions they would differ with p = 0.016."""

    def dump(name, right):
        lines = [
            response(f"{i}_0_0", right[i % 4], acc=right[i % 4], row_id=f"r{i}", input=str(i % 4)) for i in range(13)
        ]
        return write(tmp_path / name, lines)

    first, second = dump("1.jsonl", [0.0, 0.0, 1.0, 1.0]), dump("2.jsonl", [1.0] * 4)
    paired = pair(first, second)
    assert (paired.questions, paired.different, paired.won, paired.p_value) == (13, 4, 7, 0.5)
    assert not paired.difference.excludes_zero
    assert first.measures.mean.high - first.measures.mean.low > 0.9, "13 questions would have an interval half as wide"
    assert (len(first.groups), first.measures.different) == (13, 4)


def test_rows_are_paired_by_id_prompt_and_truth_and_by_nothing_else(tmp_path):
    first = validation(tmp_path / "1.jsonl", {"0": [1], "1": [0], "2": [1]})
    for other in ({"input": "other"}, {"gts": "2"}):
        second = validation(tmp_path / "2.jsonl", {"0": [0], "1": [0], "2": [0]}, **other)
        assert "3 rows with the same id" in why_not(first, second)
    lines = [response("a", 1.0, acc=1.0, row_id="0", input="0"), response("b", 1.0, acc=1.0, row_id="1")]
    assert pair(first, write(tmp_path / "3.jsonl", lines)).questions == 1
    lines.append(response("c", 1.0, acc=1.0, row_id="0", input="of another row with its id"))
    assert "2 rows with the same id" in why_not(first, write(tmp_path / "3.jsonl", lines))
    old = write(tmp_path / "4.jsonl", [response(f"{index}_0_0", 1.0, acc=1.0) for index in range(3)])
    assert NO_IDS in why_not(first, old)
    assert why_not(first, validation(tmp_path / "5.jsonl", {"x": [1]}))


def test_a_dump_that_is_not_whole_is_an_error(tmp_path):
    lines = [response("a_0_0", 1.0, row_id="a"), response("b_0_0", 1.0, row_id="b")]
    assert len(write(tmp_path / "1.jsonl", lines).responses) == 2
    torn = [*("".join(lines)[:-cut] for cut in (3, 40)), lines[0][:-9] + "\n" + lines[1], "7\n", ""]
    for content in (*torn, "[1]\n", response("", 1.0), response("a_0_0", float("nan")), response("a_0_0", "high")):
        error = mistake(lambda content=content: write(tmp_path / "1.jsonl", [content]))
        assert "1.jsonl" in error.where
