"""The page in a real Chromium: it judges as rules.py, draws as deals.py, and looks as it should."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
from PIL import Image

from recipes.errors import RecipeError
from recipes.tasks.number_game.rules import CHOICES, Look, all_deals, drawn
from recipes.tasks.number_game.screens import (
    HAS_CHINESE,
    PAGE,
    ChromiumScreen,
    ScreenLost,
    TapLost,
    decoded,
    find_button,
    find_cards,
    find_chromium,
    verdict,
)


@pytest.fixture(scope="module")
def screen(chromium_path):
    made = ChromiumScreen("test")
    yield made
    made.close()


@pytest.fixture
def page(screen, deals):
    """Playwright's page, for what a player has no method for."""
    screen.open(deals, Look())
    return screen._page


def dataset(page, query=""):
    page.goto(f"{PAGE.as_uri()}?{query}")
    return page.evaluate("() => ({...document.getElementById('game').dataset})")


def test_every_deal_is_judged_as_the_rules_do(page):
    """All 1,512 deals: the card that the rules name is right, so the page means this one and no other."""
    play = """(answers) => { const game = document.getElementById('game'); const seen = [];
        for (const answer of answers) { document.querySelectorAll('.card')[answer].click();
            seen.push(game.dataset.light[0] + game.dataset.digits + game.dataset.verdict);
            document.getElementById('go').click(); }
        return [seen, game.dataset.score]; }"""
    deals = all_deals()
    for start in range(0, len(deals), 100):
        part = deals[start : start + 100]
        dataset(page, "deal=" + ",".join(deal.code for deal in part))
        seen, score = page.evaluate(play, [deal.answer for deal in part])
        assert seen == [f"{deal.code}right" for deal in part]
        assert int(score) == 100 + 10 * len(part)
    page.reload()
    seen, score = page.evaluate(play, [(deal.answer + 1 + deal.digits[0] % 2) % 3 for deal in part])
    assert seen == [f"{deal.code}wrong" for deal in part]
    assert int(score) == 100 - 10 * len(part)


@pytest.mark.parametrize(("seed", "order"), [(7, "shuffled"), (0, "ascending"), (4294967295, "descending")])
def test_a_seed_draws_what_deals_py_draws(page, seed, order):
    dataset(page, f"seed={seed}&rounds=40&order={order}")
    seen = page.evaluate("""() => { const game = document.getElementById('game'); const seen = [];
        while (game.dataset.phase !== 'over') { seen.push(game.dataset.light[0] + game.dataset.digits);
            document.querySelector('.card').click(); document.getElementById('go').click(); }
        return seen; }""")
    assert seen == [deal.code for deal in drawn(seed, 40, order)]


def test_a_whole_game_by_mouse(screen, deals):
    screen.open(deals, Look(theme="night", lang="en"))
    assert screen.deal() == deals[0]
    assert screen.score() == 100
    assert screen.choose(deals[0].answer).verdict == "right"
    screen.advance()
    assert screen.choose(0).verdict == "wrong"
    screen.advance()
    assert screen.score() == 100
    assert screen.choose(deals[2].answer).verdict == "right"
    screen.advance()
    assert screen.score() == 110
    page = screen._page
    assert page.locator("#result-score").inner_text() == "110"
    assert page.locator("#result-right").inner_text() == "2 of 3 rounds right"
    page.click("#go")
    state = page.evaluate("() => ({...document.getElementById('game').dataset})")
    assert (state["phase"], state["score"], state["round"]) == ("choose", "100", "0"), "played again from the start"


def test_the_keyboard_plays_too(page):
    page.keyboard.press("2")
    assert page.locator("#message").inner_text() == "Right! Green means the largest number."
    page.keyboard.press("Enter")
    assert page.locator("#round").inner_text() == "2 / 3"


def test_the_state_is_not_in_the_picture(screen, deals):
    """Other attributes, the same pixels; another digit, other pixels."""
    screen.open(deals, Look())
    before = screen.screenshot()
    screen._page.evaluate("() => { document.getElementById('game').dataset.answer = '1'; }")
    assert screen.screenshot() == before
    text = screen._page.locator("#game").inner_text()
    assert "g374" not in text
    assert "374" not in text
    screen.open([deals[0]._replace(digits=(3, 7, 5)), *deals[1:]], Look())
    assert screen.screenshot() != before


def test_it_asks_the_network_for_nothing(chromium_path, screen, page):
    requests, complaints = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    dataset(page, "seed=1")
    assert {url.split("?")[0].rsplit("/", 1)[-1] for url in requests if url.startswith("file:")} == {
        "index.html",
        "style.css",
        "game.js",
    }
    assert not [url for url in requests if not url.startswith(("file:", "data:"))]
    assert complaints == []


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("theme=neon", "theme: neon is not one of paper"),
        ("seed=-1", "seed: -1 is not a whole number"),
        ("rounds=0", "rounds: 0 is not a whole number"),
        ("rounds=1e3", "rounds: 1e3 is not"),
        ("deal=g12", "deal: g12 is not"),
        ("deal=g122", "deal: g122 is not"),
        ("deal=", "deal: is not"),
        ("colour=red", "unknown option: colour"),
    ],
)
def test_a_wrong_option_is_named_on_the_page(page, query, message):
    state = dataset(page, query)
    assert state["phase"] == "error"
    assert message in page.locator("#error").inner_text()


def test_without_a_seed_every_game_is_another(page):
    assert dataset(page)["seed"] != dataset(page)["seed"]
    assert dataset(page, "seed=5")["digits"] == dataset(page, "seed=5")["digits"]


def test_the_options_are_those_of_looks_py(page):
    text = PAGE.with_name("game.js").read_text(encoding="utf-8")
    for name, values in CHOICES.items():
        assert f"{name}: {json.dumps(list(values))}" in text


@pytest.mark.parametrize("theme", CHOICES["theme"])
def test_pixels_tell_cards_and_verdicts_in_every_theme(screen, deals, theme):
    width, height = (1280, 800) if theme == "forest" else (560, 1008)
    screen.open(deals[:1], Look(theme=theme, width=width, height=height))
    picture = decoded(screen.screenshot())
    cards = find_cards(picture, theme)
    assert cards is not None
    for card, (x, y) in zip(cards, screen._points, strict=False):
        assert abs(card.centre[0] - x) <= 2
        assert abs(card.centre[1] - y) <= 2
    assert find_button(picture, theme) is None
    screen.choose(0)
    after = decoded(screen.screenshot())
    assert [verdict(after, card, theme) for card in cards] == ["wrong", None, None]
    x, y = find_button(after, theme).centre
    assert abs(x - screen._points[3][0]) <= 2
    assert abs(y - screen._points[3][1]) <= 2


def test_lights_differ_by_place_and_label_without_colour(screen):
    """In grey, and with labels read from the page: the lit lamp is the brightest, and its label is the bold one."""
    places = set()
    for deal in (drawn(1, 1)[0]._replace(light=light) for light in ("red", "yellow", "green")):
        screen.open([deal], Look())
        grey = np.asarray(Image.open(io.BytesIO(screen.screenshot())).convert("L"), dtype=float)
        boxes = screen._page.evaluate(
            "() => [...document.querySelectorAll('.lamp i')].map((i) => { const b = i.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })"
        )
        shades = [grey[int(y), int(x)] for x, y in boxes]
        places.add(int(np.argmax(shades)))
        weights = screen._page.evaluate(
            "() => [...document.querySelectorAll('.lamp span')]"
            ".map((label) => [label.textContent, getComputedStyle(label).fontWeight])"
        )
        assert [label for label, weight in weights if weight == "700"] == [deal.light.capitalize()]
        assert sorted(shades)[-1] - sorted(shades)[-2] > 15
    assert places == {0, 1, 2}


@pytest.mark.parametrize(
    "size", [(720, 1280), (560, 1008), (448, 784), (140, 224), (728, 728), (1008, 560), (1440, 900)]
)
def test_nothing_overlaps_or_leaves_the_screen(screen, deals, size):
    for lamps, light in (("row", "top"), ("column", "bottom")):
        screen.open(deals, Look(lamps=lamps, light=light, width=size[0], height=size[1]))
        boxes = screen._page.evaluate(
            "() => ['header', '#light', '#cards', '#message'].map((s) => { const b = document.querySelector(s)"
            ".getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; })"
        )
        for left, top, right, bottom in boxes:
            assert left >= -0.5
            assert top >= -0.5
            assert right <= size[0] + 0.5
            assert bottom <= size[1] + 0.5
        for index, one in enumerate(boxes):
            for other in boxes[index + 1 :]:
                apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] + 0.5 or other[3] <= one[1] + 0.5
                assert apart, (one, other)


def test_chinese(screen, deals):
    page = screen._page
    page.goto(f"{PAGE.as_uri()}?seed=1")
    if not page.evaluate(HAS_CHINESE):
        with pytest.raises(RecipeError, match="no font here has Chinese"):
            screen.open(deals, Look(lang="zh"))
        pytest.skip("no Chinese font: apt-get install fonts-noto-cjk")
    screen.open(deals, Look(lang="zh"))
    assert page.locator("h1").inner_text() == "数字游戏"
    screen.choose(0)
    assert page.locator("#message").inner_text() == "错误。绿灯选最大的数字。"


def test_a_page_that_does_not_load(chromium_path, screen, deals):
    address, screen._address = screen._address, "http://127.0.0.1:9/index.html"
    try:
        with pytest.raises(RecipeError, match="the page does not load"):
            screen.open(deals, Look())
    finally:
        screen._address = address


def test_a_page_that_is_no_number_game(screen, deals, tmp_path):
    (tmp_path / "other.html").write_text("<p>Some other page</p>")
    address, patience = screen._address, screen._milliseconds
    screen._address, screen._milliseconds = (tmp_path / "other.html").as_uri(), 500
    try:
        with pytest.raises(RecipeError, match=r"after 0\.5 s the page shows no number game"):
            screen.open(deals, Look())
    finally:
        screen._address, screen._milliseconds = address, patience
    screen.open(deals, Look())


def test_a_tap_that_the_page_ignores(screen, deals):
    screen.open(deals, Look())
    screen._page.evaluate("() => document.body.style.setProperty('pointer-events', 'none')")
    with pytest.raises(TapLost, match="left the page in 'choose'"):
        screen.choose(0)


def test_a_browser_that_dies(chromium_path, deals):
    def live_and_die():
        screen = ChromiumScreen("dying")
        screen.open(deals, Look())
        screen._browser.close()
        with pytest.raises(ScreenLost, match="dying"):
            screen.choose(0)
        with pytest.raises(ScreenLost, match="dying"):
            screen.open(deals, Look())
        screen.close()

    with ThreadPoolExecutor(1) as thread:  # one thread has one Playwright
        thread.submit(live_and_die).result()


@pytest.mark.parametrize("moment", ["open", "choose"])
def test_playwrights_driver_dies(chromium_path, deals, moment):
    """As with Ctrl-C, which a terminal sends to every process."""

    def live_and_die():
        before = set(psutil.Process().children())
        screen = ChromiumScreen("dying")
        (driver,) = set(psutil.Process().children()) - before
        screen.open(deals, Look())
        driver.kill()
        driver.wait()
        with pytest.raises(ScreenLost, match="dying"):
            screen.open(deals, Look()) if moment == "open" else screen.choose(0)
        screen.close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(live_and_die).result()


def test_no_chromium_says_how_to_get_one(monkeypatch):
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", "/does/not/exist")
    with pytest.raises(RecipeError, match="no Chromium is installed") as caught:
        find_chromium()
    assert "apt-get install chromium" in caught.value.fix
    monkeypatch.setenv("CHROMIUM", "/no/chromium")
    with pytest.raises(RecipeError, match="no Chromium at /no/chromium"):
        find_chromium()
