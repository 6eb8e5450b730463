"""A report's numbers, its HTML and its figures, from one report of each kind."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from recipes.evaluation.metrics import metrics_of
from recipes.evaluation.questions import load_questions
from recipes.evaluation.report import figures as drawing
from recipes.evaluation.report.figures import draw_all
from recipes.evaluation.report.page import ABSENT, GREEDY_LABELS, html_page, markdown_page, printable
from recipes.evaluation.report.samples import PER_KIND, Samples
from recipes.evaluation.sampling import Group, Response
from recipes.evaluation.scoring import Score

KINDS = ("analyse", "evaluation", "comparison")
# Elements that HTML closes by itself.
VOID = {"meta", "input", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """Collects what the tests look at."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()
        self.ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]
        names = ("src", "href", "xlink:href", "action")
        self.addresses = [one[name] for _, one in self.elements for name in names if name in one]

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        self.texts.append(data)


def number_in(text):
    """The number that a cell shows, as the JSON holds it."""
    value = float(re.match(r"[+-]?[\d.,e-]+", text).group().replace(",", ""))
    return value / 100 if "%" in text or "points" in text else value


def table_in(text, heading):
    """Label -> cells of the table below a heading."""
    section = re.split(r"^## ", text.partition(f"## {heading}")[2], flags=re.MULTILINE)[0]
    lines = re.findall(r"^\| ([^|]+) \|(.*)\|$", section, flags=re.MULTILINE)
    return {label: [cell.strip() for cell in cells.split("|")] for label, cells in lines}


@pytest.mark.parametrize("kind", KINDS)
def test_the_pages_hold_the_numbers_of_the_json(reports, pages, kind):
    result = reports[kind][0]
    report = json.loads(json.dumps(asdict(result)))
    shown = " ".join("".join(Page(pages[kind]).texts).split())
    summary, further = table_in(markdown_page(result), "Figures"), table_in(markdown_page(result), "Learned")
    metrics = [("sampled", metric.name, metric.label) for metric in metrics_of(8)]
    if kind != "analyse":
        metrics += [("greedy", name, label) for name, label in GREEDY_LABELS.items()]
    assert len(metrics) >= 12
    for decoding, name, label in metrics:
        figures = [model["passes"][decoding]["figures"][name] for model in report["models"].values()]
        if kind == "comparison":
            figures.append(report["comparison"]["differences"][decoding][name])
        for position, figure in enumerate(figures):
            value, ends = summary[label][2 * position : 2 * position + 2]
            if figure is None:
                assert (value, ends) == (ABSENT, ABSENT)
                continue
            digits = 6e-4 if "%" in value or "points" in value else 0.051
            assert number_in(value) == pytest.approx(figure["value"], abs=digits), (label, value)
            assert value in shown
            if figure["low"] is None:
                assert ends == ABSENT
                continue
            unit = " points" if "points" in value else ""
            assert [number_in(end + unit) for end in ends.split(" to ")] == [
                pytest.approx(figure[end], abs=digits) for end in ("low", "high")
            ]
            assert ends in shown
    assert result.headline.text in shown.replace("[U+", "")
    for test in report["comparison"]["pass_at_k"] if kind == "comparison" else ():
        assert further[f"pass@{test['k']}"][-1] == f"{test['p_holm']:.2g}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_whole_and_nothing_comes_from_elsewhere(pages, kind):
    page = Page(pages[kind])
    assert page.open == [], "every element is closed"
    assert all(address.startswith("#") for address in page.addresses)
    assert not re.search(r"@import|url\((?!#)", pages[kind])
    assert len(page.ids) == len(set(page.ids))
    references = {address[1:] for address in page.addresses} | set(re.findall(r"url\(#([^)]+)\)", pages[kind]))
    assert {each for each in references if not each.startswith("row-")} <= set(page.ids)


def test_what_a_model_wrote_stays_text(reports, pages):
    page = Page(pages["analyse"])
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert scripts == [{}], "the page's own script, and no other"
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert not any(tag in ("img", "iframe", "object", "embed", "base") for tag, _ in page.elements)
    shown = "".join(page.texts)
    hostile = [sample.answers[0].text for sample in reports["analyse"][1][:4]]
    assert "<script>window.hacked = 1</script>" in hostile
    assert all(printable(text).strip() in shown for text in hostile), "shown as written"
    assert printable("a\u202eb\x00c\x1b[31m\u200fd\n\te") == "a[U+202E]b[U+0000]c[U+001B][31m[U+200F]d\n\te"
    script = re.search(r"<script>(.*?)</script>", pages["analyse"], flags=re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', pages["analyse"]).group(1).replace("&#39;", "'")
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


@pytest.mark.parametrize("kind", KINDS)
def test_figures_take_the_pages_colours_and_fonts(reports, kind):
    result, _, figures = reports[kind]
    common = {"accuracy", "means", "variance", "entropy", "lengths", "reasons"}
    assert {figure.name for figure in figures} == common | ({"differences"} if kind == "comparison" else set())
    for figure in figures:
        assert figure.svg.startswith('<svg role="img" aria-label="')
        assert "DejaVu" not in figure.svg
        assert not re.search(r"(?:fill|stroke): ?#(?!fff|000)", figure.svg), f"{figure.name} has a colour of its own"
    if kind == "analyse":
        assert [figure.svg for figure in draw_all(result)] == [figure.svg for figure in figures], "the same every time"


def test_what_is_unknown_or_strange_is_shown_as_that(reports):
    result, samples, _ = reports["analyse"]
    model = result.models["model"]
    summary, same = model.passes["sampled"], [{"answer": "<b>7|", "groups": 39, "share": 0.975}]
    summary = replace(
        summary,
        histograms=summary.histograms | {"tokens": None, "token_entropy_nats": None},
        figures=summary.figures | {"token_entropy_nats": None, "mean_tokens": None},
        reasons={"$x^2$ <b>": 3, "a/b~c": 2},
    )
    completions = {"sampled": replace(model.completions["sampled"], same_answer=same)}
    model = replace(model, passes={"sampled": summary}, completions=completions)
    result = replace(result, models={"model": model})
    figures = {figure.name: figure for figure in draw_all(result)}
    assert "lengths" not in figures
    assert "&lt;b&gt;" in figures["reasons"].svg
    picture = "data:image/png;base64,AAAA"
    page, summary = html_page(result, [replace(samples[0], images=[picture])], []), markdown_page(result)
    assert ABSENT in Page(page).texts
    assert f"| Token entropy (nats) | {ABSENT} | {ABSENT} |" in summary
    assert "&lt;b&gt;7|</code> is a rewarded answer in 97.5% of the groups" in page
    assert "`<b>7\\|` is a rewarded answer in 97.5% of the groups" in summary
    assert f'src="{picture}"' in page
    assert "img-src data:" in page


def test_rare_kinds_are_shown_whole_and_common_ones_in_part(make_data):
    data = make_data(500)
    questions = load_questions(data)
    samples = Samples("analyse", 100)
    rare = {17, 203, 444}
    for question in questions:
        outcome = "mixed" if question.row in rare else "all wrong"
        stats = SimpleNamespace(outcome=outcome, reasons={outcome: 4}, n=4, right=1, mean_score=0)
        group = Group(question.row, (Response("text", 1, "stop", None),))
        scored = SimpleNamespace(stats=stats, scores=[Score(0.0, 0.0, False, outcome)], flags=[[]], group=group)
        samples.offer(question, {"model_sampled": scored})
    shown = samples.entries(data, questions)
    rows = [sample.row for sample in shown]
    assert rows == sorted(set(rows))
    assert rare <= set(rows)
    assert len(rows) == 3 + PER_KIND
    assert max(rows) > 400, "from the whole file"
    assert all(sample.prompt == f"What is {sample.row} + {sample.row}?" for sample in shown)


@pytest.mark.parametrize("models", [1, 2])
def test_more_reasons_than_fit_are_added_up(models):
    summary = SimpleNamespace(reasons={f"code_{number}": 10 for number in range(16)}, responses=160)
    canvas = Figure()
    drawing._reasons(canvas, [("base", "grey", summary), ("trained", "blue", summary)][:models], None)
    (axes,) = canvas.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [*(f"code_{number}" for number in range(9)), "others"]
    widths = [bar.get_width() for bar in axes.patches]
    assert sum(widths) == pytest.approx(models), "nothing is left out"
    assert max(widths) == pytest.approx(70 / 160)
