"""A report: one HTML file that needs nothing else, a Markdown summary, and the JSON that both are drawn from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recipes.evaluation.cache import write_atomically
from recipes.evaluation.report.figures import Figure
from recipes.evaluation.report.page import html_page, markdown_page


def write_report(folder: Path, report: dict[str, Any], samples: list[dict[str, Any]], figures: list[Figure]) -> None:
    """Write `report.json`, `report.html` and `report.md` into `folder`.

    Args:
        report: every figure (see `recipes.evaluation.evaluate.run`); no NaN.
        samples: questions with some answers, from `samples.sample_entry`.
        figures: from `figures.draw_all`.
    """
    write_atomically(folder / "report.json", json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    write_atomically(folder / "report.html", html_page(report, samples, figures))
    write_atomically(folder / "report.md", markdown_page(report))
