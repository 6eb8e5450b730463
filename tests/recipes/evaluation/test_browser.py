"""The report in a real headless Chromium: it opens from a file, complains of nothing, and its filters work."""

import pytest

MILLISECONDS = 50_000  # enough for a machine that is busy with training


@pytest.fixture(scope="module")
def browser(chromium_path):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=chromium_path, args=["--no-sandbox"], timeout=MILLISECONDS)
        yield browser
        browser.close()


@pytest.mark.parametrize("kind", ["analyse", "comparison"])
def test_a_page_fits_a_phone_is_filtered_and_runs_nothing_of_the_models(browser, pages, reports, tmp_path, kind):
    path, samples = tmp_path / "report.html", reports[kind][1]
    path.write_text(pages[kind], encoding="utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.set_default_timeout(MILLISECONDS)
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    assert page.locator(".sample:visible").count() == len(samples)
    assert page.locator("figure svg").count() == 2
    page.locator("#open-all").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("window.hacked") is None
    assert "<script>window.hacked = 1</script>" in page.locator("#sample-list").inner_text()
    chosen = samples[0].outcome
    rows = [each.question.row for each in samples if each.outcome == chosen]
    assert 0 < len(rows) < len(samples)
    page.select_option("select[name=outcome]", chosen)
    assert [int(number) for number in page.locator(".sample:visible .row-number").all_text_contents()] == rows
    page.select_option("select[name=outcome]", "")
    page.fill("input[name=text]", "WHAT IS 11 ")
    assert page.locator(".sample:visible").count() == 1
    assert complaints == [], "the policy had nothing to stop"
    assert len(requests) == 1, "the file, and nothing else"
    page.close()
