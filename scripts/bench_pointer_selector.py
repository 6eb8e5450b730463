"""Benchmarks of the pointer selector: batched or one candidate at a time, growth in queries, the default recipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer
from rich.console import Console

from recipes.errors import reported_errors
from recipes.paths import ROOT
from recipes.pointer_selector.resolve import resolve

SIZES = (1_000, 10_000, 100_000)


def main(
    out: Annotated[Path | None, typer.Option(help="write the figures to this JSON file as well")] = None,
    queries: Annotated[int, typer.Option(help="queries of the comparison")] = 16,
    repeats: Annotated[int, typer.Option(help="runs of which the fastest counts")] = 3,
    largest: Annotated[int, typer.Option(help="queries of the largest growth test; 0: none")] = 100_000,
    recipe: Annotated[bool, typer.Option(help="also run the default recipe, timed, in a fresh folder")] = True,
    threads: Annotated[int, typer.Option(help="threads of torch; 0: its own choice")] = 0,
) -> None:
    """Measure, and print figures beside what they should be."""
    console = Console(highlight=False, soft_wrap=True)
    with reported_errors():
        settings = resolve([], environ={})
        import torch

        from recipes.pointer_selector import bench
        from recipes.pointer_selector.phases import Tables
        from recipes.pointer_selector.policy import PointerPolicy
        from recipes.pointer_selector.preparation import prepare
        from recipes.pointer_selector.rewards import rewards

        if threads:
            torch.set_num_threads(threads)
        found: dict = {"threads": torch.get_num_threads()}
        train = prepare(settings).parts["train"]
        policy = PointerPolicy(settings.policy, train.queries.width, train.examples.width)
        tables = Tables(torch.from_numpy(rewards(train, settings.reward)))
        compared = bench.compare(policy, train, tables, queries, repeats)
        console.print(
            f"loss and gradient: {compared.batched:,.0f} candidates/s batched, "
            f"{compared.one_at_a_time:,.0f} one at a time: "
            f"{compared.speed_up:.1f} times (wanted: 10); losses differ by {compared.loss_difference:.1e}, "
            f"gradients by {compared.gradient_difference:.1e} of their norm"
        )
        found["comparison"] = {**compared.__dict__, "speed_up": compared.speed_up}
        found["growth"] = []
        small = settings.policy.model_copy(update={"hidden": 64})  # how cost grows does not depend on the width
        correctness = settings.reward.model_copy(update={"mode": "correctness"})
        with tempfile.TemporaryDirectory() as folder:
            for size in (size for size in SIZES if size <= largest):
                grown = bench.growth(Path(folder), size, small, correctness)
                found["growth"].append(grown.__dict__)
                console.print(
                    f"{size:>7,} queries: {grown.read_ms:.3f} + {grown.train_ms:.3f} ms of CPU to read and train one; "
                    f"peak {grown.peak_mib:,.0f} MiB so far"
                )
        if recipe:
            found["recipe"] = _recipe(console)
    if out:
        out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def _recipe(console: Console) -> dict:
    """The launcher's command from nothing, data included, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "train_pointer_selector.py")],
            env={**os.environ, "ARTIFACTS_DIR": folder},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        seconds = time.perf_counter() - started
        summary = json.loads((Path(folder) / "runs" / "pointer_selector" / "summary.json").read_text(encoding="utf-8"))
    console.print(f"default recipe: {seconds:.0f} s (wanted: 300), {summary['peak_mib']:,} MiB (wanted: 2,048)")
    return {"seconds": round(seconds, 1), "peak_mib": summary["peak_mib"], "test": summary["test"]}


if __name__ == "__main__":
    typer.run(main)
