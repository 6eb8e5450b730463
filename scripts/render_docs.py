"""Write the generated tables of the documentation, or check that they are up to date."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer

from recipes.documentation import chinese, upstream
from recipes.documentation.learning import results_table
from recipes.documentation.official import block as comparison
from recipes.documentation.tables import BLOCKS as RECIPE_BLOCKS
from recipes.documentation.tables import rendered, stale
from recipes.drawing import markdown
from recipes.engines import versions
from recipes.engines.easyr1_compat import lines
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
    folder = ROOT / "docs" / "results"
    return results_table([*sorted(folder.glob("*_tiny_cpu.json")), *sorted(folder.glob("*_h200.json"))])


def versions_table() -> str:
    """The versions that the check before the start asks for, by kind of machine."""
    rows = [
        (f"`{name}`", number, machine) for machine, each in versions.TESTED.items() for name, number in each.items()
    ]
    return markdown(("package", "version", "machine"), [*rows, ("`ray`", versions.TESTED_RAY, "both")])


def easyr1_table() -> str:
    """The lines of EasyR1 that are read differently: what they have, why, and for which machines."""
    groups = {"versions": lines.VERSIONS, "faults": lines.FAULTS, "reports": lines.REPORTS, "no GPU": lines.DEVICES}
    rows = [(f"`{each.file}:{each.number}`", f"`{each.old}`", each.why, group)
            for group, entries in groups.items() for each in entries]  # fmt: skip
    return markdown(("line", "has", "why", "group"), rows)


BLOCKS = {
    **RECIPE_BLOCKS,
    "comparison": comparison,
    "comparison-zh": chinese.block,
    "memory": memory_table,
    "pointer-selector-keys": key_table,
    "health-rules": documented,
    "learning": learning_table,
    "tested-versions": versions_table,
    "upstream-lines": upstream.citation_table,
    "upstream-names": upstream.name_table,
    "easyr1-lines": easyr1_table,
}
PAGES = tuple(
    f"docs/{name}.md"
    for name in (
        "ALGORITHMS",
        "COMPARISON",
        "CONFIGURATION_REFERENCE",
        "MEMORY",
        "MONITORING",
        "POINTER_SELECTOR",
        "RESULTS",
        "VERSIONS",
        "zh/COMPARISON",
    )
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
