"""Write the generated tables of the documentation, or check that they are up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer

from recipes.documentation.learning import results_table
from recipes.documentation.official import block as comparison
from recipes.documentation.tables import BLOCKS as RECIPE_BLOCKS
from recipes.documentation.tables import rendered, stale
from recipes.drawing import markdown
from recipes.errors import RecipeError, reported_errors
from recipes.monitor.health import documented
from recipes.paths import ROOT
from recipes.pointer_selector.config import key_table
from recipes.preflight import memory


def memory_table() -> str:
    """Estimates of memory beside what was measured."""
    return markdown(
        ("what", "measured", "estimated", "ratio"),
        [
            (what, f"{measured:.1f}", f"{estimated:.1f}", f"{estimated / measured:.2f}")
            for what, measured, estimated in memory.held_against_measurements()
        ],
    )


def learning_table() -> str:
    """Return what each recipe's tiny model learned, from the files of `scripts/plot_learning.py`."""
    return results_table(sorted((ROOT / "docs" / "results").glob("*_tiny_cpu.json")))


BLOCKS = {
    **RECIPE_BLOCKS,
    "comparison": comparison,
    "memory": memory_table,
    "pointer-selector-keys": key_table,
    "health-rules": documented,
    "learning": learning_table,
}
PAGES = tuple(
    f"docs/{name}.md"
    for name in ("ALGORITHMS", "COMPARISON", "CONFIGURATION", "MEMORY", "MONITORING", "POINTER_SELECTOR", "RESULTS")
)


def main(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail where a table is stale.")] = False,
) -> None:
    """Write the generated tables of the documentation, or check that they are up to date."""
    with reported_errors():
        for name in PAGES:
            page = ROOT / name
            if not stale(page, BLOCKS):
                continue
            if check:
                raise RecipeError(f"{name} is stale", where=name, fix="run python scripts/render_docs.py")
            page.write_text(rendered(page, BLOCKS), encoding="utf-8")
            print(f"wrote {name}")


if __name__ == "__main__":
    typer.run(main)
