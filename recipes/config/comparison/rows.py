"""The table: one row for every key that either side sets or that differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from recipes.config.comparison.effective import canonical, idle, ours
from recipes.config.comparison.official import Official
from recipes.config.comparison.reasons import Reasons
from recipes.config.resolve import find, load, shown_path
from recipes.config.schema import Recipe, leaves
from recipes.errors import RecipeError

Status = Literal["aligned", "adjusted", "only ours"]

AS_WRITTEN = {"EMBEDDED": "0", "CUDA_VISIBLE_DEVICES": "-1", "WANDB_API_KEY": "unused"}
"""No variable of this shell, no embedded model, no lack of this machine's, and W&B kept: the recipe as it is meant."""


class _Absent:
    """The type of ABSENT."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()
"""Stands for a key that a side does not have."""


@dataclass(frozen=True)
class Row:
    """One key.

    Attributes:
        key: dotted key of the schema; `verl.` before one of verl's own.
        ours: our value, or ABSENT where our engine cannot do it.
        official: the examples' values in their order, or ABSENT.
        defaults: for each example, whether it leaves the key to its engine's default.
        status: aligned (as every example that has the key), adjusted, or only ours.
        reason: why, in one line; empty where nothing says it.
    """

    key: str
    ours: Any
    official: tuple[Any, ...]
    defaults: tuple[bool, ...]
    status: Status
    reason: str

    @property
    def lacks_reason(self) -> bool:
        return self.status != "aligned" and not self.reason


@dataclass(frozen=True)
class Table:
    """A recipe beside official examples.

    Attributes:
        recipe: the recipe's file.
        official: the examples, in the order of the columns.
        rows: in the schema's order.
        same: number of keys that nobody sets and that have one value everywhere.
    """

    recipe: str
    official: tuple[Official, ...]
    rows: tuple[Row, ...]
    same: int

    @property
    def differences(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.status != "aligned")

    @property
    def aligned(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.status == "aligned")

    def require_reasons(self) -> None:
        """Raise RecipeError naming the differences that the recipe gives no reason for."""
        bare = [row.key for row in self.rows if row.lacks_reason]
        if bare:
            raise RecipeError(
                f"no reason is given for {', '.join(bare)}",
                where=self.recipe,
                fix="set the key there, with a comment that says why: `key: value  # verl's name; reason`",
            )


def compare(task_or_path: str, official: Sequence[Official]) -> Table:
    """Our recipe, resolved for GPUs from its files alone, beside the examples."""
    recipe = load(task_or_path, environ=AS_WRITTEN, hardware="gpu")
    reasons = Reasons(recipe, task_or_path)
    mine = canonical(ours(recipe, task_or_path))
    theirs = [canonical(each.values) for each in official]
    meaningless = idle(mine)
    rows, same = [], 0
    for key in _keys(mine, theirs):
        set_by_us = recipe.source_of(key).layer != "default"
        if key in meaningless and not set_by_us:
            continue
        row = _row(key, mine, theirs, official, reasons, recipe)
        if row.status == "only ours" and not set_by_us:
            continue
        if row.status == "aligned" and not set_by_us and all(row.defaults):
            same += 1
        else:
            rows.append(row)
    return Table(shown_path(find(task_or_path)), tuple(official), tuple(rows), same)


def _keys(mine: Mapping[str, Any], theirs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of both sides in the schema's order, verl's own at the end; the critic's only where we have one."""
    has_critic = any(key.startswith("worker.critic.") for key in mine)
    wanted = set(mine).union(*theirs)
    known = [key for key in leaves(Recipe) if key in wanted and (has_critic or not key.startswith("worker.critic."))]
    return known + sorted(key for key in mine if key.startswith("verl."))


def _row(
    key: str,
    mine: Mapping[str, Any],
    theirs: Sequence[Mapping[str, Any]],
    official: Sequence[Official],
    reasons: Reasons,
    recipe: Recipe,
) -> Row:
    leaf = leaves(Recipe).get(key)
    values = tuple(each.get(key, ABSENT) for each in theirs)
    value = mine.get(key, ABSENT)
    status = _status(value, values)
    unable = leaf is not None and recipe.engine in leaf.info.not_on and recipe.source_of(key).layer == "default"
    return Row(
        key,
        ABSENT if unable and status == "adjusted" else value,
        values,
        tuple(key not in each.said for each in official),
        status,
        reasons.of(key),
    )


def _status(value: Any, official: Sequence[Any]) -> Status:
    present = [other for other in official if other is not ABSENT]
    if not present:
        return "only ours"
    return "aligned" if all(_equal(value, other) for other in present) else "adjusted"


def _equal(one: Any, other: Any) -> bool:
    """1 is 1.0, but true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other
