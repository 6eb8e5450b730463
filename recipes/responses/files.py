"""Files of scored responses: a step's dump of a run, and the completions of an evaluation; two of them are paired."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from recipes.dumps import ENDED, ROW_ID, TURNS, as_text
from recipes.errors import RecipeError, counted
from recipes.responses.measures import BY_MEASURE, Measures, ScoredResponse, question_key
from recipes.rewards.contract import stated_accuracy
from recipes.rewards.easyr1 import unwrapped
from recipes.statistics import Paired, paired_difference

NO_IDS = "its rows have no ids, so nothing can be paired"


@dataclass(frozen=True)
class ScoredFile:
    """The responses of one file, in its order."""

    path: Path
    responses: tuple[ScoredResponse, ...]
    rendered: bool  # whether the prompts are texts of the model's chat template, as in a run's dumps

    @cached_property
    def groups(self) -> dict[str, list[ScoredResponse]]:
        """The responses by group, in the file's order; a group's lines need not be adjacent."""
        return _by_key((response.group, response) for response in self.responses)

    @cached_property
    def rows(self) -> dict[str, list[ScoredResponse]]:
        """Id of the row -> its responses; responses without one are left out."""
        return _by_key((each.row_id, each) for each in self.responses if each.row_id is not None)

    @cached_property
    def measures(self) -> Measures:
        """Figures of the groups; rows with the same question are not independent."""
        measures = Measures()
        for group in self.groups.values():
            measures.add(group, group[0].question)
        return measures

    @property
    def measure(self) -> str:
        """ "accuracy", or "score" where the reward states no accuracy."""
        return self.measures.measure


def _by_key(pairs: Iterable[tuple[str, ScoredResponse]]) -> dict[str, list[ScoredResponse]]:
    found: dict[str, list[ScoredResponse]] = {}
    for key, response in pairs:
        found.setdefault(key, []).append(response)
    return found


def read_responses(file: Path, *, images: bool = False) -> ScoredFile:
    """Read `validation/<step>.jsonl` of a run, or `completions/<model>_<pass>.jsonl` of an evaluation.

    `images` says whether the prompts of a run's dump may have images; an evaluation says it of each response. Raises
    RecipeError where the file is empty, or a line is no response, as in a file still being written.
    """
    responses: list[ScoredResponse] = []
    record: dict[str, Any] = {}
    try:
        for line in filter(bytes.strip, file.read_bytes().split(b"\n")):
            record = json.loads(line)
            responses.append(_scored(record, images))
    except FileNotFoundError as error:
        raise RecipeError("its responses are not there", where=str(file), fix="make them again") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"response {len(responses) + 1} cannot be read: {type(error).__name__}: {error}"
        raise RecipeError(what, where=str(file), fix="wait until it is written, or remove the file") from error
    if not responses:
        raise RecipeError("the dump is empty", where=str(file), fix="wait until it is written, or remove the file")
    return ScoredFile(file, tuple(responses), "output" in record)


def _scored(record: dict[str, Any], images: bool) -> ScoredResponse:
    """One line of either kind of file."""
    is_dump = "output" in record
    row_id, uid = record.get(ROW_ID), record.get("uid")
    if is_dump:
        prompt, text, truth, accuracy = record["input"], record["output"], record["gts"], stated_accuracy(record)
        group = str(uid).rsplit("_", 2)[0] if uid else row_id
    else:
        prompt, text, truth, accuracy = (record[name] for name in ("prompt", "response", "ground_truth", "accuracy"))
        group, images = record["row"], bool(record.get("images"))
    if group is None:
        raise ValueError(f"it has neither uid nor {ROW_ID}, so its group is not known")
    if not math.isfinite(record["score"]):
        raise ValueError(f"its score is {record['score']}, not a finite number")
    prompt, truth = str(prompt), str(unwrapped(truth)[1])
    return ScoredResponse(
        float(record["score"]),
        accuracy,
        text=as_text(record[TURNS]) if ENDED in record and isinstance(record.get(TURNS), list) else str(text),
        prompt=prompt,
        truth=truth,
        group=str(group),
        row_id=row_id,
        question=question_key(prompt, truth, str(row_id or group), images),
    )


def pair(first: ScoredFile, second: ScoredFile) -> Paired:
    """Compare two files on the questions that both have: rows with the same id, prompt and ground truth.

    A run's prompts are texts of a chat template, and an evaluation's are not: between them id and truth decide.
    Raises RecipeError, which states why, where the files cannot be paired.
    """
    where = f"{first.path} and {second.path}"
    if first.measure != second.measure:
        what = f"one is measured by {first.measure} and the other by {second.measure}: their rewards differ"
        raise RecipeError(what, where=where)
    same, _ = _shared(first, second)
    if not same:
        raise RecipeError(unpaired(first, second) or "the two share no question", where=where)
    by_score = first.measure == "score"
    before, after = (
        [fmean(each.score if by_score else each.value for each in file.rows[row]) for row in same]
        for file in (first, second)
    )
    questions = [first.rows[row][0].question for row in same]
    return paired_difference(before, after, bounds=BY_MEASURE[first.measure].bounds, clusters=questions)


def _shared(first: ScoredFile, second: ScoredFile) -> tuple[list[str], list[str]]:
    """Ids that both files have: those whose prompt and ground truth agree in all responses, and the others."""
    found: tuple[list[str], list[str]] = [], []
    by_prompt = first.rendered == second.rendered
    for row in (row for row in first.rows if row in second.rows):
        questions = {(each.prompt if by_prompt else "", each.truth) for each in (*first.rows[row], *second.rows[row])}
        found[len(questions) > 1].append(row)
    return found


def unpaired(first: ScoredFile, second: ScoredFile) -> str:
    """A sentence on rows that cannot be paired: without ids, or with another question under the same id."""
    for file in (first, second):
        if not file.rows:
            return f"{file.path.parent.parent.name}, {'step ' if file.rendered else ''}{file.path.stem}: {NO_IDS}"
    _, others = _shared(first, second)
    return f"{counted(len(others), 'row')} with the same id have another prompt or ground truth" if others else ""
