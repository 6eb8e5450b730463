"""A report's numbers, its HTML and its figures, from one report of each kind."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

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
        self.ids, self.addresses, self.open, self.texts, self.elements = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append((tag, attributes))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        self.addresses += [
            value for name, value in attributes.items() if name in ("src", "href", "xlink:href", "action")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

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
def test_nothing_comes_from_elsewhere(pages, kind):
    page = Page(pages[kind])
    assert page.open == [], "every element is closed"
    assert all(address.startswith("#") for address in page.addresses)
    assert "@import" not in pages[kind]
    assert not re.search(r"url\((?!#)", pages[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_no_id_occurs_twice_and_every_reference_has_its_target(pages, kind):
    page = Page(pages[kind])
    assert len(page.ids) == len(set(page.ids))
    references = {address[1:] for address in page.addresses} | set(re.findall(r"url\(#([^)]+)\)", pages[kind]))
    rows = {reference for reference in references if reference.startswith("row-")}
    assert references - rows <= set(page.ids)


def test_what_a_model_wrote_stays_text(reports, pages, hostile):
    page = Page(pages["analyse"])
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert scripts == [{}], "the page's own script, and no other"
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert not any(tag in ("img", "iframe", "object", "embed", "base") for tag, _ in page.elements)
    shown = "".join(page.texts)
    for text in hostile:
        assert printable(text).strip() in shown, "shown as written"


def test_hidden_characters_become_visible():
    assert printable("a\u202eb\x00c\x1b[31m\u200fd\n\te") == "a[U+202E]b[U+0000]c[U+001B][31m[U+200F]d\n\te"


def test_the_policy_lets_only_the_own_script_run(pages):
    import base64
    import hashlib

    script = re.search(r"<script>(.*?)</script>", pages["analyse"], flags=re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', pages["analyse"]).group(1).replace("&#39;", "'")
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


@pytest.mark.parametrize("kind", KINDS)
def test_the_figures_of_each_kind(reports, kind):
    names = {figure.name for figure in reports[kind][2]}
    common = {"accuracy", "means", "variance", "entropy", "lengths", "reasons"}
    assert names == common | ({"differences"} if kind == "comparison" else set())


def test_figures_take_the_pages_colours_and_fonts(reports):
    for figure in reports["comparison"][2]:
        assert figure.svg.startswith('<svg role="img" aria-label="')
        assert "DejaVu" not in figure.svg
        assert not re.search(r"(?:fill|stroke): ?#(?!fff|000)", figure.svg), f"{figure.name} has a colour of its own"


def test_figures_are_the_same_every_time(reports):
    result, _, figures = reports["analyse"]
    assert [figure.svg for figure in draw_all(result)] == [figure.svg for figure in figures]


def changed(result, **changes):
    """The result with other values in its sampled pass."""
    model = result.models["model"]
    summary = replace(model.passes["sampled"], **changes)
    return replace(result, models={"model": replace(model, passes={"sampled": summary})})


def test_figures_do_without_what_is_not_known(reports):
    result = reports["analyse"][0]
    summary = result.models["model"].passes["sampled"]
    unknown = changed(
        result,
        histograms=summary.histograms | {"tokens": None, "token_entropy_nats": None},
        figures=summary.figures | {"token_entropy_nats": None, "mean_tokens": None},
    )
    figures = draw_all(unknown)
    assert "lengths" not in {figure.name for figure in figures}
    assert ABSENT in Page(html_page(unknown, [], figures)).texts
    assert f"| Token entropy (nats) | {ABSENT} | {ABSENT} |" in markdown_page(unknown)


def test_reason_codes_with_signs_do_no_harm(reports):
    result = changed(reports["analyse"][0], reasons={"$x^2$ <b>": 3, "a/b~c": 2})
    assert "&lt;b&gt;" in {figure.name: figure.svg for figure in draw_all(result)}["reasons"]


def test_an_answer_that_is_the_same_everywhere_is_shown(reports):
    result = reports["analyse"][0]
    model = result.models["model"]
    same = [{"answer": "<b>7|", "groups": 39, "share": 0.975}]
    completions = {"sampled": replace(model.completions["sampled"], same_answer=same)}
    result = replace(result, models={"model": replace(model, completions=completions)})
    assert "&lt;b&gt;7|</code> is a rewarded answer in 97.5% of the groups" in html_page(result, [], [])
    assert "`<b>7\\|` is a rewarded answer in 97.5% of the groups" in markdown_page(result)


def test_the_picture_of_a_prompt_is_shown(reports):
    result, samples, _ = reports["analyse"]
    with_picture = replace(samples[0], images=["data:image/png;base64,AAAA"])
    page = html_page(result, [with_picture], [])
    assert 'src="data:image/png;base64,AAAA"' in page
    assert "img-src data:" in page


class Stub:
    """A question's responses as `Samples` reads them."""

    def __init__(self, outcome):
        self.stats = type(
            "Stats", (), {"outcome": outcome, "reasons": {outcome: 4}, "n": 4, "right": 1, "mean_score": 0}
        )
        self.scores, self.flags = [Score(0.0, 0.0, False, outcome)], [[]]
        self.group = Group(0, (Response("text", 1, "stop", None),))


def test_rare_kinds_are_shown_whole_and_common_ones_in_part(make_data):
    data = make_data(500)
    questions = load_questions(data)
    samples = Samples("analyse", 100)
    rare = {17, 203, 444}
    for question in questions:
        samples.offer(question, {"model_sampled": Stub("mixed" if question.row in rare else "all wrong")})
    shown = samples.entries(data, questions)
    rows = [sample.row for sample in shown]
    assert rows == sorted(rows)
    assert rare <= set(rows)
    assert len(rows) == 3 + PER_KIND
    assert max(rows) > 400, "from the whole file"
    assert all(sample.prompt == f"What is {sample.row} + {sample.row}?" for sample in shown)


@pytest.mark.parametrize("models", [1, 2])
def test_more_reasons_than_fit_are_added_up(models):
    from matplotlib.figure import Figure

    summary = SimpleNamespace(reasons={f"code_{number}": 10 for number in range(16)}, responses=160)
    canvas = Figure()
    drawing._reasons(canvas, [("base", "grey", summary), ("trained", "blue", summary)][:models], None)
    (axes,) = canvas.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [*(f"code_{number}" for number in range(9)), "others"]
    widths = [bar.get_width() for bar in axes.patches]
    assert sum(widths) == pytest.approx(models), "nothing is left out"
    assert max(widths) == pytest.approx(70 / 160)
