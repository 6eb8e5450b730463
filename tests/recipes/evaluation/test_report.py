"""A report's numbers, its HTML and its figures, from one report of each kind."""

from __future__ import annotations

import html
import json
import re
from dataclasses import asdict

import pytest

from recipes.evaluation.metrics import metrics_of
from recipes.evaluation.report.page import ABSENT, GREEDY_LABELS, table
from recipes.evaluation.scoring import FLEXIBLE

KINDS = ("analyse", "evaluation", "comparison")


def number_in(text):
    """The number that a cell shows, as the JSON holds it."""
    value = float(re.match(r"[+-]?[\d.,e-]+", text).group().replace(",", ""))
    return value / 100 if "%" in text or "points" in text else value


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_holds_the_numbers_of_the_json(reports, pages, kind):
    result = reports[kind][0]
    report = json.loads(json.dumps(asdict(result)))
    shown = " ".join(html.unescape(re.sub(r"<[^>]*>", "", pages[kind])).split())
    summary = dict(table(result))
    metrics = [("sampled", metric.name, metric.label) for metric in metrics_of(8) if metric.name != FLEXIBLE]
    if kind != "analyse":
        metrics += [("greedy", name, label) for name, label in GREEDY_LABELS.items() if name != FLEXIBLE]
    assert len(metrics) >= 12
    # Answers are right or wrong here, so that mean accuracy is pass@1, which is shown.
    assert {"Mean accuracy", "Mean accuracy, greedy"}.isdisjoint(summary)
    metrics = [entry for entry in metrics if entry[1] != "accuracy"]
    for decoding, name, label in metrics:
        figures = [model["passes"][decoding]["figures"][name] for model in report["models"].values()]
        if kind == "comparison":
            figures.append(report["comparison"]["differences"][decoding][name])
        for figure, cell in zip(figures, summary[label], strict=True):
            if figure is None:
                assert (cell.value, cell.low) == (ABSENT, "")
                continue
            digits = 6e-4 if "%" in cell.value or "points" in cell.value else 0.051
            assert number_in(cell.value) == pytest.approx(figure["value"], abs=digits), (label, cell)
            assert cell.value in shown
            if figure["low"] is not None:
                assert f"{cell.low} to {cell.high}" in shown
                unit = " points" if "points" in cell.value else ""
                ends = [number_in(end + unit) for end in (cell.low, cell.high)]
                assert ends == pytest.approx([figure["low"], figure["high"]], abs=digits)
    assert result.headline.text in shown
    figures = {figure.name: figure.svg for figure in reports[kind][2]}
    assert set(figures) >= {"accuracy", "means", "lengths", "reasons"}
    assert not re.search(r"(?:fill|stroke): ?#(?!fff|000)", "".join(figures.values())), "colours are the page's"
