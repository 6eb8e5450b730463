"""Write the generated tables of the documentation, or check that they are up to date."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from recipes.errors import RecipeError, reported_errors
from recipes.official import block as comparison
from recipes.paths import ROOT
from recipes.runs.health import documented
from tools.pages import chinese, memory, speed, tables

BLOCKS: dict[str, Callable[..., str]] = {
    "algorithms": tables.algorithm_table,
    "controls": tables.control_table,
    "schema": tables.schema_table,
    "comparison": comparison,
    "comparison-zh": chinese.block,
    "memory": memory.memory_table,
    "fits": memory.fits_table,
    "speed": speed.measured_table,
    "speed-predicted": speed.predicted_table,
    "pointer-selector-keys": tables.pointer_selector_table,
    "health-rules": documented,
    "learning": tables.learning_table,
    "tested-versions": tables.versions_table,
    "upstream-changes": tables.upstream_table,
    "engine-methods": tables.engine_table,
}
_BLOCK = re.compile(
    r"<!-- generated: (?P<name>[\w-]+)(?P<words>(?: [\w:.-]+)*) -->\n.*?<!-- end of (?P=name) -->", re.DOTALL
)
PAGES = tuple(
    str(page.relative_to(ROOT))
    for page in sorted(ROOT.glob("docs/**/*.md"))
    if _BLOCK.search(page.read_text(encoding="utf-8"))
)


def rendered(page: Path, blocks: Mapping[str, Callable[..., str]]) -> str:
    """Return the page with new generated blocks."""

    def filled(match: re.Match[str]) -> str:
        name, words = match["name"], match["words"]
        return f"<!-- generated: {name}{words} -->\n\n{blocks[name](*words.split())}\n\n<!-- end of {name} -->"

    return _BLOCK.sub(filled, page.read_text(encoding="utf-8"))


def stale(page: Path, blocks: Mapping[str, Callable[..., str]]) -> bool:
    """Return whether a generated block of the page differs from the code."""
    return rendered(page, blocks) != page.read_text(encoding="utf-8")


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
                raise RecipeError(f"{name} is stale", where=name, fix="run python -m tools.render_docs")
            page.write_text(rendered(page, BLOCKS), encoding="utf-8")
            print(f"wrote {name}")


if __name__ == "__main__":
    typer.run(main)
