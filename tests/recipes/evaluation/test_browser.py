"""The report in a real headless Chromium: it opens from a file, complains of nothing, and its filters work."""

from __future__ import annotations

import shutil

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
MILLISECONDS = 120_000  # enough for a machine that is busy with training
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=MILLISECONDS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, pages, tmp_path):
    """Open the report of a kind from a file; console messages, errors and requests are collected."""
    opened = []

    def show(kind, **options):
        path = tmp_path / "report.html"
        path.write_text(pages[kind], encoding="utf-8")
        page = browser.new_page(**options)
        page.set_default_timeout(MILLISECONDS)
        opened.append(page)
        page.complaints, page.requests = [], []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (page.complaints.append("dialog"), dialog.dismiss()))
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(path.as_uri())
        return page

    yield show
    for page in opened:
        page.close()


def visible(page):
    return page.locator(".sample:visible").count()


@pytest.mark.parametrize("kind", ["analyse", "comparison"])
def test_it_opens_from_a_file_fits_a_phone_and_runs_nothing_of_the_models(open_page, reports, kind):
    page = open_page(kind, viewport={"width": 390, "height": 800})
    assert visible(page) == len(reports[kind][1])
    assert page.locator("figure svg").count() >= 6
    assert page.locator("figure svg").first.bounding_box()["height"] > 150
    page.locator("#open-all").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("window.hacked") is None
    assert "<script>window.hacked = 1</script>" in page.locator("#sample-list").inner_text()
    assert page.complaints == [], "the policy had nothing to stop"
    assert len(page.requests) == 1, "the file, and nothing else"


def test_one_can_filter(open_page, reports):
    page = open_page("analyse")
    samples = reports["analyse"][1]
    for name, value, expected in (
        ("outcome", "mixed", [sample.outcome == "mixed" for sample in samples]),
        ("flag", "right without reasoning", ["right without reasoning" in sample.flags for sample in samples]),
    ):
        page.select_option(f"select[name={name}]", value)
        rows = [sample.row for sample, holds in zip(samples, expected, strict=True) if holds]
        assert 0 < len(rows) < len(samples)
        assert [int(number) for number in page.locator(".sample:visible .row-number").all_text_contents()] == rows
        assert page.locator("#shown").text_content() == f"{len(rows)} of {len(samples)}"
        page.select_option(f"select[name={name}]", "")
    page.fill("input[name=text]", "WHAT IS 11 ")
    assert visible(page) == 1
    assert visible(open_page("analyse", java_script_enabled=False)) == len(samples), "readable without scripts"
