"""What an evaluation prints when it is done."""

from __future__ import annotations

from typing import Any

from recipes.evaluation.evaluate import Result
from recipes.evaluation.report.numbers import INTERVAL_STYLES, lookup, show
from recipes.evaluation.report.tables import VERDICTS, lines

COLOURS = {"good": "green", "weak": "yellow", "bad": "red", "plain": "cyan"}


def print_result(result: Result) -> None:
    """The table of figures, the verdict and the paths, on standard output."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    report = result.report
    console.print(_table(report))
    if report["kind"] == "analyse":
        for verdict in report["probe"]["verdicts"]:
            name = VERDICTS[verdict["metric"]][0].lower()
            console.print(Text(f"{name}: {verdict['words']}", style=COLOURS[verdict["level"]]))
    headline = report["headline"]
    console.print(Text(headline["words"], style=f"bold {COLOURS[headline['level']]}"))
    for words in _notes(report):
        console.print(words, markup=False, highlight=False, soft_wrap=True)
    console.print(f"report: {result.folder / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def _table(report: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table(title=f"{report['task']}: {report['identity']['data']['questions']} questions", title_justify="left")
    table.add_column("figure")
    labels = list(report["models"])
    for label in [*labels, "trained - base"] if len(labels) == 2 else labels:
        table.add_column(label, justify="right")
    for line in lines(report):
        cells = [_cell(report, pointer, line.style) for pointer in line.values]
        if line.difference:
            cells.append(_cell(report, line.difference, line.difference_style))
        table.add_row(line.label, *cells)
    return table


def _cell(report: dict[str, Any], pointer: str, style: str) -> str:
    value = show(report, f"{pointer}/value", style)
    if lookup(report, f"{pointer}/low") is None:
        return value
    ends = INTERVAL_STYLES.get(style, style)
    return f"{value} [dim]({show(report, f'{pointer}/low', ends)} to {show(report, f'{pointer}/high', ends)})[/dim]"


def _notes(report: dict[str, Any]) -> list[str]:
    notes = []
    if report["kind"] == "analyse":
        groups = report["models"]["model"]["passes"]["sampled"]["groups"]
        shares = ", ".join(
            f"{groups[key]['share']:.1%} {key.replace('_', ' ')}" for key in ("all_right", "mixed", "all_wrong")
        )
        notes.append(f"groups: {shares}; {groups['zero_variance']['share']:.1%} without variance")
    for label, model in report["models"].items():
        for name, one in model["passes"].items():
            raised = {rule: count for rule, count in one["completions"]["flags"].items() if count}
            if raised:
                notes.append(
                    f"suspicious ({label}, {name}): " + ", ".join(f"{rule} {count}" for rule, count in raised.items())
                )
    if "filtered" in report:
        filtered = report["filtered"]
        notes.append(
            f"filtered: {filtered['path']}, {filtered['kept']} rows kept, {filtered['dropped']} dropped "
            f"({filtered['not_probed']} kept unprobed)"
        )
    return notes
