"""The table for the terminal, and as one HTML page that needs nothing else."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from recipes.config.comparison.markdown import STEPS, cells, header, notes, summary
from recipes.config.comparison.rows import Table

if TYPE_CHECKING:
    from rich.table import Table as RichTable

COLOURS = {"aligned": "dim", "adjusted": "yellow", "only ours": "cyan"}

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 96rem; padding: 0 1rem; color: #1b1b1b; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #ddd; padding: .3rem .6rem; text-align: left; vertical-align: top; }
th { position: sticky; top: 0; background: #fff; }
td:first-child, td.value { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere; }
tr.aligned { color: #666; }
tr.adjusted td.status { color: #8a5a00; font-weight: 600; }
tr.only-ours td.status { color: #005a8a; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  body { background: #16181b; color: #e6e6e6; } th { background: #16181b; } th, td { border-color: #3a3d42; }
  tr.aligned { color: #9a9a9a; } tr.adjusted td.status { color: #f0b95a; } tr.only-ours td.status { color: #6fc3f0; }
}
"""


def terminal(table: Table) -> RichTable:
    """A rich table; differences stand out."""
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(title=table.recipe, caption=f"{summary(table)} {STEPS}", show_lines=False)
    for name in header(table):
        drawn.add_column(name, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in cells(row)), style=COLOURS[row.status])
    return drawn


def html(table: Table) -> str:
    """One page, without scripts and without the network."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in header(table))
    rows = []
    for row in table.rows:
        key, *values, status, reason = (escape(cell) for cell in cells(row))
        inner = "".join(f'<td class="value">{value}</td>' for value in values)
        name = status.replace(" ", "-")
        rows.append(f'<tr class="{name}"><td>{key}</td>{inner}<td class="status">{status}</td><td>{reason}</td></tr>')
    listed = "".join(f"<li>{_inline(note)}</li>" for note in notes(table))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(table.recipe)} beside official examples</title><style>{STYLE}</style></head><body>\n"
        f"<h1>{escape(table.recipe)} beside official examples</h1>\n<p>{escape(summary(table))} {_inline(STEPS)}</p>\n"
        f'<div class="wide"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + f"\n</tbody></table></div>\n<ul>{listed}</ul>\n</body></html>\n"
    )


def _inline(text: str) -> str:
    """Backticks of a note as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
