"""A report: one HTML file that needs nothing else, a Markdown summary, and the JSON with every number."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.evaluation.report.figures import Figure
from recipes.evaluation.report.page import html_page, markdown_page
from recipes.evaluation.report.samples import Sample
from recipes.files import write_whole

if TYPE_CHECKING:
    from recipes.evaluation.evaluate import Result


def write_report(folder: Path, result: Result, samples: list[Sample], figures: list[Figure]) -> None:
    """Write `report.json`, `report.html` and `report.md` into `folder`.

    Args:
        samples: questions with some answers, and `figures`: both for the page.
    """
    text = json.dumps(asdict(result), indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(folder / "report.json", text + "\n")
    write_whole(folder / "report.html", html_page(result, samples, figures))
    write_whole(folder / "report.md", markdown_page(result))
