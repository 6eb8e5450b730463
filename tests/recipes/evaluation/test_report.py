"""A report's numbers, its HTML and its figures, from one report of each kind."""

import html
import json
import re
from dataclasses import asdict

import pytest

from recipes.evaluation.report import table
from recipes.responses.measures import metric_of

KINDS = ("analyse", "comparison")


def number_in(text):
    """The number that a cell shows, as the JSON holds it."""
    value = float(re.match(r"[+-]?[\d.,e-]+", text).group().replace(",", ""))
    return value / 100 if "%" in text or "points" in text else value


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_holds_the_numbers_of_the_json(reports, pages, kind):
    result = reports[kind][0]
    report = json.loads(json.dumps(asdict(result)))
    assert len(repr(result).splitlines()) <= 5
    shown = " ".join(html.unescape(re.sub(r"<[^>]*>", "", pages[kind])).split())
    lines = {line.label: line for line in table(result)}
    assert len(lines) >= 10
    # Answers are right or wrong here, so that mean accuracy is pass@1, which is shown.
    assert not any(label.startswith("Mean accuracy") for label in lines)
    differences = report["comparison"]["differences"] if kind == "comparison" else {}
    for decoding in next(iter(report["models"].values()))["passes"]:
        passes = [model["passes"][decoding]["figures"] for model in report["models"].values()]
        for name in passes[0].keys() - {"accuracy"}:
            label = metric_of(name).label + (", greedy" if decoding == "greedy" else "")
            figures = [each[name] for each in passes] + ([differences[decoding][name]] if differences else [])
            for figure, cell in zip(figures, lines[label].cells, strict=True):
                digits = 6e-4 if "%" in cell.value or "points" in cell.value else 0.051
                assert number_in(cell.value) == pytest.approx(figure["value"], abs=digits), (label, cell)
                assert cell.value in shown
                if figure["low"] is not None:
                    assert f"{cell.low} to {cell.high}" in shown
                    unit = " points" if "points" in cell.value else ""
                    ends = [number_in(end + unit) for end in (cell.low, cell.high)]
                    assert ends == pytest.approx([figure["low"], figure["high"]], abs=digits)
    assert result.headline.text in shown
    figures = {name: svg for name, _, _, svg in reports[kind][2]}
    assert set(figures) == {"accuracy", "means"}
    for model in report["models"].values():
        for reason, count in model["passes"]["sampled"]["reasons"].items():
            assert f"{count / model['passes']['sampled']['responses']:.1%}" in shown, reason
    assert not re.search(r"(?:fill|stroke): ?#(?!fff|000)", "".join(figures.values())), "colours are the page's"
