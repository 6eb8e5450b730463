"""Dumps, their groups, and pairs of validations: by ids, and by nothing else."""

from __future__ import annotations

import json
import random

import pytest

from recipes.errors import RecipeError
from recipes.runs.compare import common, mean_of, pair, why_not
from recipes.runs.responses import NO_IDS, Groups, Rollouts, is_flat, read_dump


def response(uid, score, **more):
    return json.dumps({"input": "p", "output": "o", "gts": "1", "score": score, "uid": uid} | more) + "\n"


def write(path, lines):
    path.write_text("".join(lines))
    return read_dump(path)


def validation(path, right, **more):
    """A dump of one prompt and one gold answer in the order of random uids; `right` are lists of samples by row."""
    lines = [
        response(f"{random.getrandbits(64):x}_{sample}_0", 0.1, acc=float(each), row_id=row, **more)
        for row, samples in right.items()
        for sample, each in enumerate(samples)
    ]
    random.shuffle(lines)
    return write(path, lines)


def test_several_samples_a_question(tmp_path):
    first = validation(tmp_path / "1.jsonl", {"a": [1, 0], "b": [0, 0], "c": [1, 1]})
    second = validation(tmp_path / "2.jsonl", {"a": [1, 1], "b": [0, 0], "c": [0, 0]})
    paired = pair(first, second)
    assert (paired.won, paired.lost, paired.difference.value) == (1, 1, pytest.approx(-1 / 6))


def test_one_id_with_another_prompt_or_truth_is_another_question(tmp_path):
    first = validation(tmp_path / "1.jsonl", {"0": [1], "1": [0], "2": [1]})
    for other in ({"input": "other"}, {"gts": "2"}):
        second = validation(tmp_path / "2.jsonl", {"0": [0], "1": [0], "2": [0]}, **other)
        assert (pair(first, second), common(first, second)) == (None, ([], 3))
    lines = [response("a", 1.0, acc=1.0, row_id="0"), response("b", 1.0, acc=1.0, row_id="1", input="other")]
    third = write(tmp_path / "3.jsonl", lines)
    assert (pair(first, third).questions, common(first, third)) == (1, (["0"], 1))


def test_without_ids_nothing_is_paired_and_ids_that_repeat_are_left_out_and_said(tmp_path):
    with_ids = validation(tmp_path / "1.jsonl", {"a": [1], "b": [0], "c": [1]})
    old = write(tmp_path / "2.jsonl", [response(f"{index}_0_0", 1.0, acc=1.0) for index in range(3)])
    assert (pair(with_ids, old), old.notes) == (None, [NO_IDS])
    assert NO_IDS in why_not(with_ids, old)
    assert pair(with_ids, validation(tmp_path / "3.jsonl", {"x": [1]})) is None
    repeated = write(
        tmp_path / "4.jsonl", [response(f"{i}_0_0", 1.0, acc=1.0, row_id=row) for i, row in enumerate("aabc")]
    )
    assert len(repeated.notes) == 1
    assert pair(with_ids, repeated).questions == 2


def test_a_half_written_last_line_is_left_out_and_said_and_another_broken_one_is_an_error(tmp_path):
    lines = [response("a_0_0", 1.0, row_id="a"), response("b_0_0", 1.0, row_id="b")]
    for cut in (2, len(lines[1]) // 2, len(lines[1]) - 1):
        dump = write(tmp_path / "1.jsonl", [lines[0], lines[1][:-cut]])
        assert (len(dump.responses), dump.torn, len(dump.notes)) == (1, True, 1), cut
    for content in (lines[0][:-9] + "\n" + lines[1], response("", 1.0), response("a_0_0", float("nan")), "7\n", ""):
        with pytest.raises(RecipeError) as error:
            write(tmp_path / "1.jsonl", [content])
        assert "1.jsonl" in error.value.where


def test_equal_scores_are_flat_up_to_rounding():
    assert is_flat([0.1 + 0.2 + 0.7, 1.0, 0.9999999])
    assert not is_flat([0.2, 0.2, 0.21])


def test_groups_are_measured_once_a_file_is_whole_and_of_this_attempt(tmp_path):
    lines = [response(f"a_{i}_0", 1.0) for i in range(4)] + [response(f"b_{i}_0", 0.1 * i) for i in range(4)]
    lines += [response(f"c_{i}_0", 0.1) for i in range(2)]
    file = tmp_path / "3.jsonl"
    file.write_text("".join(lines)[:-20])
    rollouts = Rollouts(tmp_path)
    assert rollouts.of(3) is None
    file.write_text("".join(lines))
    assert Rollouts(tmp_path, since=file.stat().st_mtime + 1).of(3) is None
    found = Groups(
        groups=3,
        zero_variance=2,
        all_right=0,
        value=pytest.approx(0.48),
        error=pytest.approx(0.2920, abs=1e-3),
        measure="score",
    )
    assert rollouts.among([2, 3, 4]) == {3: found}


def test_validations_of_a_reward_without_an_accuracy_are_compared_by_their_scores(tmp_path):
    def scored(name, scores):
        lines = [response(f"{i}_0_0", score, row_id=str(i)) for i, score in enumerate(scores)]
        return write(tmp_path / name, lines)

    low, high = scored("1.jsonl", [10, 2, 2, 0] * 5), scored("2.jsonl", [10, 10, 2, 2] * 5)
    assert (low.measure, mean_of(low).value, mean_of(high).value) == ("score", 3.5, 6.0)
    found = pair(low, high)
    assert (found.difference.value, found.won, found.lost) == (2.5, 10, 0)
    assert found.p_value < 0.05
    stated = validation(tmp_path / "3.jsonl", {str(i): [1] for i in range(20)})
    assert pair(low, stated) is None
    assert "score" in why_not(low, stated)


def test_a_response_counts_for_its_data_source_and_is_right_by_its_accuracy_not_its_score(tmp_path):
    lines = [
        response("a_0_0", 0.4, acc=1.0, data_source="math"),
        response("a_1_0", 0.4, acc=0.0, data_source="math"),
        response("b_0_0", 1.0, acc=0.0, data_source="qa"),
    ]
    (tmp_path / "3.jsonl").write_text("".join(lines))
    groups = Rollouts(tmp_path).of(3)
    assert (groups.zero_variance, groups.all_right, groups.value) == (2, 0, pytest.approx(1 / 3))
