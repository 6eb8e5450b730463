"""The report in a real headless Chromium: it opens from a file, complains of nothing, and its filters work."""

from __future__ import annotations

import shutil

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
# Enough for a machine that is busy with training.
SECONDS = 120
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=SECONDS * 1000)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, pages, tmp_path):
    """Open the report of a kind from a file; console messages, errors and requests are collected."""
    opened = []

    def show(kind, fragment="", **options):
        path = tmp_path / "report.html"
        path.write_text(pages[kind], encoding="utf-8")
        page = browser.new_page(**options)
        page.set_default_timeout(SECONDS * 1000)
        opened.append(page)
        page.complaints, page.requests = [], []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (page.complaints.append("dialog"), dialog.dismiss()))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(path.as_uri() + fragment)
        return page

    yield show
    for page in opened:
        page.close()


def visible(page):
    return page.locator(".sample:visible").count()


@pytest.mark.parametrize("kind", ["analyse", "evaluation", "comparison"])
def test_it_opens_from_a_file_without_a_complaint(open_page, reports, kind):
    page = open_page(kind)
    assert visible(page) == len(reports[kind][1])
    assert page.locator("figure svg").count() >= 6
    assert page.locator("figure svg").first.bounding_box()["height"] > 150
    page.locator("#open-all").click()
    assert page.complaints == []
    assert len(page.requests) == 1, "the file, and nothing else"


def test_one_can_filter_by_outcome(open_page, reports):
    page = open_page("comparison")
    samples = reports["comparison"][1]
    for outcome in ("won", "lost", "both wrong", "both right"):
        page.select_option("select[name=outcome]", outcome)
        expected = [sample.row for sample in samples if sample.outcome == outcome]
        shown = [int(number) for number in page.locator(".sample:visible .row-number").all_text_contents()]
        assert shown == expected
        assert page.locator("#shown").text_content() == f"{len(expected)} of {len(samples)}"
    assert page.complaints == []


def test_one_can_filter_by_reason_flag_and_text_together(open_page, reports):
    page = open_page("analyse")
    samples = reports["analyse"][1]
    page.select_option("select[name=reason]", "no_answer")
    expected = [sample for sample in samples if "no_answer" in sample.reasons]
    assert 0 < len(expected) < len(samples)
    assert visible(page) == len(expected)
    page.select_option("select[name=reason]", "")
    page.select_option("select[name=flag]", "right without reasoning")
    assert visible(page) == sum("right without reasoning" in sample.flags for sample in samples) > 0
    page.select_option("select[name=flag]", "")
    page.fill("input[name=text]", "WHAT IS 11 ")
    assert visible(page) == 1
    page.fill("input[name=text]", "nowhere to be found")
    assert visible(page) == 0
    assert page.locator("#nothing").is_visible()


def test_what_a_model_wrote_does_not_run(open_page):
    page = open_page("analyse")
    page.locator("#open-all").click()
    page.wait_for_timeout(100)
    assert page.evaluate("window.hacked") is None
    assert "<script>window.hacked = 1</script>" in page.locator("#sample-list").inner_text()
    assert page.complaints == [], "the policy had nothing to stop"


def test_a_link_to_a_won_question_opens_it(open_page, reports):
    won = reports["comparison"][0].comparison.primary.won
    page = open_page("comparison")
    page.select_option("select[name=outcome]", "both wrong")
    page.locator(f'.rows a[href="#row-{won[0]}"]').click()
    page.wait_for_function(f"document.getElementById('row-{won[0]}').open")
    assert page.locator(f"#row-{won[0]} pre.answer").first.is_visible()
    assert page.locator("select[name=outcome]").input_value() == ""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen_and_text_can_be_read(open_page, width, scheme):
    page = open_page("comparison", viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = page.evaluate(
        "[getComputedStyle(document.querySelector('h1')).color, getComputedStyle(document.body).backgroundColor]"
    )
    assert contrast(ink, paper) > 7
    title = page.locator("figure text").first.evaluate("element => getComputedStyle(element).fill")
    card = page.locator("figure").first.evaluate("element => getComputedStyle(element).backgroundColor")
    assert contrast(title, card) > 4.5


@pytest.mark.parametrize("kind", ["analyse", "evaluation"])
def test_the_other_reports_fit_a_phone_with_everything_open(open_page, kind):
    page = open_page(kind, viewport={"width": 390, "height": 800})
    page.locator("#open-all").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def contrast(one, other):
    """WCAG's ratio of two CSS rgb() colours."""

    def luminance(colour):
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted([luminance(one), luminance(other)])
    return (light + 0.05) / (dark + 0.05)


def test_the_samples_can_be_read_without_scripts(open_page, reports):
    page = open_page("analyse", java_script_enabled=False)
    assert visible(page) == len(reports["analyse"][1])
