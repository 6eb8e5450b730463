"""Training rows without the questions that give no signal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.evaluation.metrics import NO_VARIANCE
from recipes.evaluation.questions import Question
from recipes.evaluation.summary import Collector
from recipes.tasks.rows import manifest_path, read_manifest, write_split


def reasons_to_drop(questions: Sequence[Question], collector: Collector) -> dict[int, str]:
    """Row -> why its group has no variance: "all right", "all wrong", or "same score" (partial credit throughout)."""
    columns = collector.columns
    # With full marks throughout a group scores alike; with none it may still differ in partial credit, and teaches.
    found = zip(questions, columns["score_variance"], columns["pass_at_1"], columns["mean_score"], strict=True)
    return {
        question.row: "all right" if full == 1.0 else "all wrong" if mean <= 0.0 else "same score"
        for question, variance, full, mean in found
        if variance <= NO_VARIANCE
    }


def write_filtered(
    source: Path,
    target: Path,
    questions: Sequence[Question],
    collector: Collector,
    origin: dict[str, Any],
    *,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Copy the rows of `source` that give a signal or were not probed to `target`, with a manifest that says what left.

    Args:
        origin: what made the decision (model, sampling, reward), for the manifest.

    Returns:
        `path`, `kept`, `dropped` and `not_probed` in rows, and `why`: rows by reason.

    Raises:
        RecipeError: no row is left.
    """
    dropped = reasons_to_drop(questions, collector)
    total = _rows(source)
    counts = {"dropped": len(dropped), "not_probed": total - len(questions), "why": dict(Counter(dropped.values()))}
    if len(dropped) == total:
        raise RecipeError(
            "no question gives a signal, so nothing would be left", where="--filter_out", fix="read the recommendation"
        )
    before = read_manifest(source) if manifest_path(source).is_file() else None
    manifest = {
        "source": str(source),
        "filter": counts | {"rows": [{"row": row, "why": why} for row, why in sorted(dropped.items())]},
        "probe": origin,
        "source_manifest": before,
    }
    written = write_split(target, _kept(source, dropped), manifest=manifest, force=overwrite)
    return {"path": str(target), "kept": written["rows"], **counts}


def _rows(source: Path) -> int:
    import pyarrow.parquet as pq

    return pq.ParquetFile(source).metadata.num_rows


def _kept(source: Path, dropped: dict[int, str]) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    row = 0
    for batch in pq.ParquetFile(source).iter_batches(batch_size=1024):
        for record in batch.to_pylist():
            if row not in dropped:
                yield record
            row += 1
