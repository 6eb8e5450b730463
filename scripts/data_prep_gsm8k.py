"""Write GSM8K's train and test parquet files, from the data set or from generated problems in its format."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.installation import ensure

ensure()

import typer

from recipes.data.rows import Split
from recipes.errors import RecipeError, reported_errors
from recipes.paths import ROOT, data_dir
from recipes.tasks.gsm8k.problems import PUBLISHED, SIZES, Calculate, counted_by, generated, published
from recipes.tasks.prepare import prepare

# Preset -> (folder under artifacts/data, source where none is given).
PRESETS = {"paper": ("gsm8k", "hub"), "tiny": ("gsm8k_tiny", "generate")}


def calculator() -> Calculate:
    """The calculator that a model is trained with, called with its limits."""
    import json

    from recipes.engines.verl.tools import Tools, ToolSettings, load_tools

    file = str(ROOT / "examples" / "gsm8k" / "calculator.py")
    tools = Tools(load_tools(file), ToolSettings(file, "gsm8k", max_turns=1, seconds=10, characters=1024))

    def calculate(expression: str) -> str | None:
        answer = tools.call("calculator", json.dumps({"expression": expression})).result()
        return None if answer.failed else answer.text

    return calculate


def chosen_source(
    source: str, revision: str, seed: int, train_size: int | None, test_size: int | None, calculate: Calculate | None
) -> Iterator[Split]:
    """Return both splits. The sizes apply to generated problems only; the published data set has fixed sizes."""
    if source == "generate":
        sizes = {"train": train_size or SIZES["train"], "test": test_size or SIZES["test"]}
        return generated(sizes, seed=seed, calculate=calculate)
    if train_size or test_size:
        raise RecipeError(
            "the published data set has fixed sizes",
            where="--train_size, --test_size",
            fix="leave them out, or use --source generate; a recipe's data.train_max_samples takes fewer rows",
        )
    return published(None if source == "hub" else Path(source), revision, calculate)


def main(
    preset: Annotated[
        Literal["paper", "tiny"], typer.Option(help="paper (GSM8K) or tiny (generated one- and two-step problems).")
    ] = "paper",
    source: Annotated[
        str | None, typer.Option(help="hub (openai/gsm8k), generate, or a folder with train.jsonl and test.jsonl.")
    ] = None,
    revision: Annotated[str, typer.Option(help="Branch, tag or commit of the hub's data set.")] = "main",
    train_size: Annotated[int | None, typer.Option("--train_size", min=1, help="Generated problems only.")] = None,
    test_size: Annotated[int | None, typer.Option("--test_size", min=1, help="Generated problems only.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Generated problems: same seed, same files, byte for byte.")] = 0,
    calls: Annotated[
        bool, typer.Option("--calculator", help="Worked answers as messages that call examples/gsm8k/calculator.py.")
    ] = False,
    output_dir: Annotated[
        Path | None, typer.Option("--output_dir", help="Default: artifacts/data/gsm8k or gsm8k_tiny; with _calculator.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that hold other data.")] = False,
) -> None:
    """Write train.parquet and test.parquet with their manifests; no question is there twice."""
    with reported_errors():
        name, usual_source = PRESETS[preset]
        folder = output_dir or data_dir(f"{name}_calculator" if calls else name)
        splits = chosen_source(
            source or usual_source, revision, seed, train_size, test_size, calculator() if calls else None
        )
        written = prepare("gsm8k", splits, folder, once=True, counted_by=counted_by, force=force)
        for manifest in written:
            if not manifest.settings and manifest.rows != PUBLISHED[manifest.split]:
                typer.echo(f"note: {manifest.file} has {manifest.rows:,} rows, GSM8K {PUBLISHED[manifest.split]:,}")


if __name__ == "__main__":
    typer.run(main)
