"""Write the generated tables of the documentation, or check that they are up to date."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from recipes.drawing import markdown
from recipes.engines import versions
from recipes.errors import RecipeError, reported_errors
from recipes.official import block as comparison
from recipes.paths import ROOT
from recipes.pointer_selector.config import key_table
from recipes.runs.health import documented
from tools.pages import changes, chinese, fits, memory
from tools.pages.tables import BLOCKS as RECIPE_BLOCKS
from tools.pages.tables import rendered, stale


def results_table(results: Sequence[Path]) -> str:
    """One row a recipe, from the JSON files of `tools.learning_curves`: what was run and what it brought."""
    rows = []
    for path in results:
        result = json.loads(path.read_text(encoding="utf-8"))
        curves, change = result["curves"], result["change"]
        steps = list(result["mean"])
        paired = change if len(curves) > 1 else (curves[0]["paired"] or {}).get("difference")
        points = f"{100 * change['value']:+.1f}, not paired"
        if paired:
            points = f"{100 * paired['value']:+.1f} ({100 * paired['low']:+.1f} to {100 * paired['high']:+.1f})"
        seconds = [curve["seconds"] for curve in curves if curve.get("seconds")]
        rows.append(
            (
                f"`{result['command']}`",
                result["machine"],
                str(len(curves)),
                steps[-1],
                f"{min(seconds) / 60:.0f} to {max(seconds) / 60:.0f} min" if seconds else "-",
                f"{result['mean'][steps[0]]['value']:.3f}",
                f"{result['mean'][steps[-1]]['value']:.3f}",
                points,
                result["learned"],
            )
        )
    header = (
        "command",
        "machine",
        "seeds",
        "steps",
        "time",
        "before",
        "after",
        "points, 95% interval",
        "what was learned",
    )
    return markdown(header, rows)


def learning_table() -> str:
    """Return what each recipe's tiny model learned, from the files of `python -m tools.learning_curves`."""
    folder = ROOT / "docs" / "results"
    return results_table([*sorted(folder.glob("*_tiny_cpu.json")), *sorted(folder.glob("*_h200.json"))])


def versions_table() -> str:
    """The versions that the check before the start asks for, by kind of machine."""
    rows = [
        (f"`{name}`", number, machine) for machine, each in versions.TESTED.items() for name, number in each.items()
    ]
    return markdown(("package", "version", "machine"), [*rows, ("`ray`", versions.TESTED_RAY, "both")])


BLOCKS = {
    **RECIPE_BLOCKS,
    "comparison": comparison,
    "comparison-zh": chinese.block,
    "memory": memory.memory_table,
    "fits": fits.fits_table,
    "pointer-selector-keys": key_table,
    "health-rules": documented,
    "learning": learning_table,
    "tested-versions": versions_table,
    "upstream-changes": changes.upstream_table,
    "engine-methods": changes.engine_table,
}
PAGES = tuple(
    f"docs/{name}.md"
    for name in (
        "ALGORITHMS",
        "ARCHITECTURE",
        "COMPARISON",
        "CONFIGURATION_REFERENCE",
        "FITS",
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
                raise RecipeError(f"{name} is stale", where=name, fix="run python -m tools.render_docs")
            page.write_text(rendered(page, BLOCKS), encoding="utf-8")
            print(f"wrote {name}")


if __name__ == "__main__":
    typer.run(main)
