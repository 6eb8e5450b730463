"""A report's numbers, its HTML and its figures, from one report of each kind."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from recipes.evaluation.report import figures as drawing
from recipes.evaluation.report.figures import draw_all
from recipes.evaluation.report.page import ABSENT, FORMATS, html_page, lookup, markdown_page, printable, show

KINDS = ("analyse", "evaluation", "comparison")
# Elements that HTML closes by itself.
VOID = {"meta", "input", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """Collects what the tests look at."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.numbers, self.ids, self.addresses, self.open, self.texts, self.elements = [], [], [], [], [], []
        self._number = None
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
        if "data-key" in attributes:
            self._number = [attributes["data-key"], attributes["data-style"], ""]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes something else"
        if self._number is not None:
            self.numbers.append(tuple(self._number))
            self._number = None

    def handle_data(self, data):
        self.texts.append(data)
        if self._number is not None:
            self._number[2] += data


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_the_page_is_the_one_in_the_json(reports, pages, kind):
    report = json.loads(json.dumps(reports[kind][0]))
    numbers = Page(pages[kind]).numbers
    assert len(numbers) > 30
    for pointer, style, text in numbers:
        value = lookup(report, pointer)
        assert text == (ABSENT if value is None else FORMATS[style](value)), pointer


def number_in(text):
    """The number that a cell shows, as the JSON would hold it."""
    value = float(re.match(r"[+-]?[\d.,e-]+", text).group().replace(",", ""))
    return value / 100 if "%" in text or "points" in text else value


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_the_summary_is_the_one_in_the_json(reports, kind):
    report = reports[kind][0]
    lines = re.findall(r"^\|(.*)\| `(/models/.*)` \|$", markdown_page(report), flags=re.MULTILINE)
    assert len(lines) > 10
    for cells, pointer in lines:
        shown = [cell.strip() for cell in cells.split("|")][1:]
        labels = list(report["models"])
        for position, label in enumerate(labels):
            interval = lookup(report, re.sub(r"/models/[^/]+/", f"/models/{label}/", pointer))
            if interval is None:
                assert shown[2 * position] == ABSENT
                continue
            digits = 6e-4 if "%" in shown[2 * position] else 0.051
            assert number_in(shown[2 * position]) == pytest.approx(interval["value"], abs=digits)
            if interval["low"] is not None:
                low, high = shown[2 * position + 1].split(" to ")
                assert number_in(low) == pytest.approx(interval["low"], abs=digits)
                assert number_in(high) == pytest.approx(interval["high"], abs=digits)
            else:
                assert shown[2 * position + 1] == ABSENT


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_needs_nothing_from_outside(pages, kind):
    page = Page(pages[kind])
    assert all(address.startswith("#") for address in page.addresses)
    assert "@import" not in pages[kind]
    assert not re.search(r"url\((?!#)", pages[kind])
    assert page.open == [], "every element is closed"


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
def test_the_figures_of_each_kind(figures, kind):
    names = {figure.name for figure in figures[kind]}
    common = {"accuracy", "means", "variance", "entropy", "lengths", "reasons"}
    assert names == common | ({"differences", "changes"} if kind == "comparison" else set())


def test_figures_take_the_pages_colours_and_fonts(figures):
    for figure in figures["comparison"]:
        assert figure.svg.startswith('<svg role="img" aria-label="')
        assert "DejaVu" not in figure.svg
        assert not re.search(r"(?:fill|stroke): ?#(?!fff|000)", figure.svg), f"{figure.name} has a colour of its own"


def test_figures_are_the_same_every_time(reports, figures):
    again = draw_all(reports["analyse"][0])
    assert [figure.svg for figure in again] == [figure.svg for figure in figures["analyse"]]


def test_figures_do_without_what_is_not_known(reports):
    report = json.loads(json.dumps(reports["analyse"][0]))
    summary = report["models"]["model"]["passes"]["sampled"]
    summary["histograms"]["tokens"] = summary["histograms"]["token_entropy_nats"] = None
    summary["token_entropy_nats"] = summary["mean_tokens"] = None
    figures = draw_all(report)
    assert "lengths" not in {figure.name for figure in figures}
    page = Page(html_page(report, [], figures))
    assert ("/models/model/passes/sampled/token_entropy_nats/value", "decimal", ABSENT) in page.numbers
    assert f"| Token entropy (nats) | {ABSENT} | {ABSENT} |" in markdown_page(report)


def test_reason_codes_with_signs_do_no_harm(reports):
    report = json.loads(json.dumps(reports["analyse"][0]))
    report["models"]["model"]["passes"]["sampled"]["reasons"] = {"$x^2$ <b>": 3, "a/b~c": 2}
    assert "&lt;b&gt;" in {figure.name: figure.svg for figure in draw_all(report)}["reasons"]


def test_an_answer_that_is_the_same_everywhere_is_shown(reports, figures):
    report = json.loads(json.dumps(reports["analyse"][0]))
    found = {"answer": "<b>7|", "groups": 39, "share": 0.975}
    report["models"]["model"]["passes"]["sampled"]["completions"]["same_answer"] = [found]
    assert "&lt;b&gt;7|</code> is a rewarded answer in 97.5% of the groups" in html_page(report, [], figures["analyse"])
    assert "`<b>7\\|` is a rewarded answer in 97.5% of the groups" in markdown_page(report)


def test_what_is_not_there_is_a_dash():
    assert show({"a": {"x": 1}}, "/a/x", "count") == "1"
    assert show({"a": {"x": 1}}, "/none/x", "count") == show({"a": 1}, "/a/x", "count") == ABSENT


@pytest.mark.parametrize("models", [1, 2])
def test_more_reasons_than_fit_are_added_up(models):
    from matplotlib.figure import Figure

    summary = {"reasons": {f"code_{number}": 10 for number in range(16)}, "responses": 160}
    canvas = Figure()
    drawing._reasons(canvas, [("base", "grey", summary), ("trained", "blue", summary)][:models])
    (axes,) = canvas.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [*(f"code_{number}" for number in range(9)), "others"]
    widths = [bar.get_width() for bar in axes.patches]
    assert sum(widths) == (160 if models == 1 else pytest.approx(2.0)), "nothing is left out"
    assert max(widths) == (70 if models == 1 else pytest.approx(70 / 160))
