"""What a query costs as queries grow, and what the default recipe takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from recipes.benchmarks import write_report
from recipes.errors import reported_errors
from recipes.paths import ROOT

TAU = 0.5
SIZES = (1_000, 10_000, 100_000)
"""Queries of the growth tests."""


@dataclass(frozen=True)
class Growth:
    """Milliseconds of CPU a query for reading and for one epoch of RCE, and the process's peak memory so far (MiB).

    CPU time, so that what else the machine does is not counted.
    """

    queries: int
    read_ms: float
    train_ms: float
    candidates_per_second: float
    peak_mib: float


def growth(folder: Path, queries: int, batch_size: int = 32) -> Growth:
    """Read `queries` queries from disk and train one epoch of RCE on them."""
    import torch  # takes seconds, so only where it is timed

    from recipes.pointer_selector.config import PolicyConfig, RewardConfig
    from recipes.pointer_selector.data import collate, read_data, shuffled
    from recipes.pointer_selector.losses import rewards
    from recipes.pointer_selector.metrics import memory_peak_mib
    from recipes.pointer_selector.policy import PointerPolicy
    from recipes.pointer_selector.training import Tables, rce_step, update

    candidates, table = _write_queries(folder, queries)
    started = time.process_time()
    data = read_data(candidates, table, table)
    tables = Tables(torch.from_numpy(rewards(data, RewardConfig(mode="correctness"))))
    read = time.process_time() - started
    policy = PointerPolicy(PolicyConfig(hidden=64), data.queries.width, data.examples.width)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, fused=True)
    started = time.process_time()
    for chosen in shuffled(len(data), batch_size, 0, "rce", 0):
        loss, _ = rce_step(policy, collate(data, chosen), tables, TAU)
        update(policy, optimizer, loss, 1e-4, 1.0)
    train = time.process_time() - started
    candidates.unlink()
    table.unlink()
    rate = len(data.lengths) / train
    return Growth(queries, 1e3 * read / queries, 1e3 * train / queries, rate, memory_peak_mib())


def _write_queries(folder: Path, queries: int, width: int = 32, pool: int = 16, examples: int = 2000):
    """A candidate file of random queries, written as a stream, and its embeddings."""
    import numpy as np

    rng = np.random.default_rng(0)
    path, table = folder / f"candidates_{queries}.json", folder / f"embeddings_{queries}.npz"
    with path.open("w", encoding="utf-8") as file:
        for query in range(queries):
            items = rng.choice(examples, pool, replace=False).tolist()
            candidates = [
                {"pointer": [items[slot] for slot in rng.permutation(pool)[:2]], "vqa_correct": int(rng.integers(2))}
                for _ in range(8)
            ]
            record = json.dumps({"pool": items, "pointer_candidates": candidates})
            file.write(f'{"," if query else "{"}"{query}":{record}')
        file.write("}")
    tables = {"query_embeddings": queries, "candidate_embeddings": examples}
    np.savez(table, **{name: rng.normal(size=(rows, width)).astype(np.float32) for name, rows in tables.items()})
    return path, table


def default_recipe(folder: Path) -> dict:
    """The launcher's command from nothing, data included, in a process of its own; `folder` takes what it makes."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "train_pointer_selector.py")],
        env={**os.environ, "ARTIFACTS_DIR": str(folder)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - started
    summary = json.loads((folder / "runs" / "pointer_selector" / "summary.json").read_text(encoding="utf-8"))
    return {"seconds": round(seconds, 1), "peak_mib": summary["peak_mib"], "test": summary["test"]}


def command(
    out: Annotated[Path | None, typer.Option(help="write the figures to this JSON file as well")] = None,
    largest: Annotated[int, typer.Option(help="queries of the largest growth test; 0: none")] = 100_000,
    recipe: Annotated[bool, typer.Option(help="also run the default recipe, timed, in a fresh folder")] = True,
    threads: Annotated[int, typer.Option(help="threads of torch; 0: its own choice")] = 1,
) -> None:
    """Time the pointer selector as queries grow.

    Also its default recipe, from nothing.
    """
    from recipes.pointer_selector.policy import use_threads

    console = Console(highlight=False, soft_wrap=True)
    with reported_errors():
        use_threads(threads)
        figures: dict = {"growth": []}
        with tempfile.TemporaryDirectory() as folder:
            for size in (size for size in SIZES if size <= largest):
                grown = growth(Path(folder), size)
                figures["growth"].append(asdict(grown))
                console.print(
                    f"{size:>7,} queries: {grown.read_ms:.3f} + {grown.train_ms:.3f} ms of CPU to read and train one; "
                    f"{grown.candidates_per_second:,.0f} candidates/s; peak {grown.peak_mib:,.0f} MiB so far"
                )
        if recipe:
            with tempfile.TemporaryDirectory() as folder:
                figures["recipe"] = default_recipe(Path(folder))
            console.print("default recipe: {seconds:.0f} s, {peak_mib:,} MiB".format(**figures["recipe"]))
        write_report(figures, out)
