"""The comparison with official examples in Chinese: values from the code, translated reasons from reasons_zh.yaml."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from recipes import yaml_text
from recipes.drawing import markdown
from recipes.errors import RecipeError
from recipes.official import Row, Table, compare, listed, origins, row_cells

KINDS = {"task": "任务", "hardware": "硬件"}
REASONS = yaml_text.read(Path(__file__).with_name("reasons_zh.yaml"))
"""Reason in a recipe's YAML -> its Chinese translation."""


def block(task: str, *against: str) -> str:
    """Return the generated block `comparison-zh TASK EXAMPLE...`: the keys that differ, with reasons, then the others.

    Raises RecipeError for a reason without a Chinese translation.
    """
    table = compare(task, against)
    table.require_reasons()
    rows = [_cells(row, task) for row in table.differing]
    heads = ("键", "我们", *(each.title for each in table.official), "因何不同", "原因")
    lists = (f"相同的键：{listed(table.aligned)}。", f"示例没有的键：{listed(table.ours_alone)}。")
    return "\n\n".join((_summary(table), markdown(heads, rows), *lists, origins(table)))


def _cells(row: Row, task: str) -> list[str]:
    if row.reason not in REASONS:
        raise RecipeError(
            f"the reason of {row.key} has no Chinese: {row.reason!r}",
            where=f"configs/{task}.yaml, or a layer below it",
            fix="add the sentence to tools/pages/reasons_zh.yaml",
        )
    values = [cell.replace(" (default)", "（默认）") for cell in row_cells(row)]
    return [*values, KINDS[row.status], REASONS[row.reason]]


def _summary(table: Table) -> str:
    kinds = Counter(row.status for row in table.differing)
    return (
        f"{len(table.aligned)} 个键与示例相同，{kinds['task']} 个因任务而不同，{kinds['hardware']} 个因硬件而不同，"
        f"{len(table.ours_alone)} 个是示例没有的；另有 {table.same} 个键各方都没有设，处处相同。"
        "`val_freq` 和 `save_freq` 以步为单位，批大小以提示词为单位，各方一样。横线表示那一方没有这个键；"
        "“默认”表示示例没有写，由它的引擎决定。"
    )
