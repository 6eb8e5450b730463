"""The three forms of the table say the same, and escape what they must."""

from __future__ import annotations

import io
from html.parser import HTMLParser

import pytest
from rich.console import Console

from recipes.config.official import ABSENT, Official, Row, Table, block, html, markdown, page, terminal
from recipes.errors import RecipeError

EXAMPLE = Official("verl", "toy", "Toy <1>", "https://example.org, commit abc, a.sh", {}, frozenset(), {"data.x": 1})
ROWS = (
    Row("data.seed", 1, (1,), (True,), "aligned", "never shown"),
    Row("data.train_files", "a|b", ("<c>",), (False,), "adjusted", "ours & theirs"),
    Row("worker.rollout.n", 4, (ABSENT,), (True,), "only ours", ""),
)
TABLE = Table("configs/toy.yaml", (EXAMPLE,), ROWS, 3)


class Cells(HTMLParser):
    """The text of each cell of the body."""

    def __init__(self):
        super().__init__()
        self.cells, self._inside = [], False

    def handle_starttag(self, tag, attrs):
        if tag == "td":
            self.cells.append("")
        self._inside = tag == "td"

    def handle_data(self, data):
        if self._inside:
            self.cells[-1] += data

    def handle_endtag(self, tag):
        self._inside = False


def test_markdown():
    lines = markdown(TABLE).splitlines()
    assert lines[0] == "| key | ours | Toy <1> | status | reason |"
    assert lines[2] == "| `data.seed` | `1` | `1` (default) | aligned |  |"
    assert lines[3] == "| `data.train_files` | `a\\|b` | `<c>` | adjusted | ours & theirs |"
    assert lines[4] == "| `worker.rollout.n` | `4` | — | only ours | NO REASON GIVEN |"


def test_page_names_its_sources_and_what_is_outside():
    text = page(TABLE)
    assert "1 keys aligned, 1 adjusted, 1 only ours; 3 more" in text
    assert "count steps" in text
    assert "- Toy <1>: https://example.org, commit abc, a.sh." in text
    assert "`data.x: 1`" in text


def test_html_holds_the_same_cells_and_no_foreign_tags():
    text = html(TABLE)
    reader = Cells()
    reader.feed(text)
    assert reader.cells[:5] == ["data.seed", "1", "1 (default)", "aligned", ""]
    assert reader.cells[5:10] == ["data.train_files", "a|b", "<c>", "adjusted", "ours & theirs"]
    assert "<c>" not in text
    assert "Toy <1>" not in text
    assert "<script" not in text
    assert "src=" not in text


def test_terminal_shows_every_row():
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(terminal(TABLE))
    shown = console.export_text()
    assert all(row.key in shown for row in ROWS)
    assert "NO REASON GIVEN" in shown


def test_a_block_names_recipe_and_examples():
    with pytest.raises(RecipeError, match="names a recipe and official examples"):
        block("countdown")
    text = block("countdown", "easyr1:qwen3_4b_math")
    assert "<details>" in text
    assert text.index("adjusted |") < text.index("<details>") < text.index("| aligned |")
