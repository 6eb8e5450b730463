"""The page in a real Chromium: it judges and draws as rules.py does, looks as it should, and its faults are named."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from recipes.errors import RecipeError
from recipes.tasks.number_game.chromium import HAS_CHINESE, PAGE, ChromiumScreen, find_chromium
from recipes.tasks.number_game.pixels import decoded, find_button, find_cards, verdict
from recipes.tasks.number_game.rules import CHOICES, Look, all_deals, drawn
from recipes.tasks.number_game.screens import ScreenLost, TapLost


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
        assert (seen, int(score)) == ([f"{deal.code}right" for deal in part], 100 + 10 * len(part))
    page.reload()
    seen, score = page.evaluate(play, [(deal.answer + 1 + deal.digits[0] % 2) % 3 for deal in part])
    assert (seen, int(score)) == ([f"{deal.code}wrong" for deal in part], 100 - 10 * len(part))


@pytest.mark.parametrize(("seed", "order"), [(7, "shuffled"), (0, "ascending"), (4294967295, "descending")])
def test_a_seed_draws_what_the_rules_draw(page, seed, order):
    dataset(page, f"seed={seed}&rounds=40&order={order}")
    seen = page.evaluate("""() => { const game = document.getElementById('game'); const seen = [];
        while (game.dataset.phase !== 'over') { seen.push(game.dataset.light[0] + game.dataset.digits);
            document.querySelector('.card').click(); document.getElementById('go').click(); }
        return seen; }""")
    assert seen == [deal.code for deal in drawn(seed, 40, order)]


def test_a_whole_game_by_mouse_and_again_by_keys(screen, deals):
    screen.open(deals, Look(theme="night", lang="en"))
    assert (screen.deal(), screen.score()) == (deals[0], 100)
    for deal, right in zip(deals, (True, False, True), strict=True):
        assert screen.choose(deal.answer if right else 0).verdict == ("right" if right else "wrong")
        screen.advance()
    assert screen.score() == 110
    page = screen._page
    assert page.locator("#result-score").inner_text() == "110"
    assert page.locator("#result-right").inner_text() == "2 of 3 rounds right"
    page.click("#go")
    page.keyboard.press("2")
    assert page.locator("#message").inner_text() == "Right! Green means the largest number."
    page.keyboard.press("Enter")
    assert page.locator("#round").inner_text() == "2 / 3"


def test_the_state_is_not_in_the_picture_and_the_network_is_not_asked(screen, deals, page):
    """Other attributes, the same pixels; another digit, other pixels."""
    before = screen.screenshot()
    page.evaluate("() => { document.getElementById('game').dataset.answer = '1'; }")
    assert screen.screenshot() == before
    assert "374" not in page.locator("#game").inner_text()
    requests, complaints = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    screen.open([deals[0]._replace(digits=(3, 7, 5)), *deals[1:]], Look())
    assert screen.screenshot() != before
    files = {url.split("?")[0].rsplit("/", 1)[-1] for url in requests if not url.startswith("data:")}
    assert (files, complaints) == ({"index.html", "style.css", "game.js"}, [])


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("theme=neon", "theme: neon is not one of paper"),
        ("seed=-1", "seed: -1 is not a whole number"),
        ("rounds=1e3", "rounds: 1e3 is not"),
        ("deal=g122", "deal: g122 is not"),
        ("deal=", "deal: is not"),
        ("colour=red", "unknown option: colour"),
    ],
)
def test_a_wrong_option_is_named_on_the_page(page, query, message):
    assert dataset(page, query)["phase"] == "error"
    assert message in page.locator("#error").inner_text()


def test_the_options_are_those_of_the_rules():
    text = PAGE.with_name("game.js").read_text(encoding="utf-8")
    for name, values in CHOICES.items():
        assert f"{name}: {json.dumps(list(values))}" in text


@pytest.mark.parametrize("theme", CHOICES["theme"])
def test_pixels_tell_cards_and_verdicts_in_every_theme(screen, deals, theme):
    width, height = (1280, 800) if theme == "forest" else (560, 1008)
    screen.open(deals[:1], Look(theme=theme, width=width, height=height))
    picture = decoded(screen.screenshot())
    cards = find_cards(picture, theme)
    assert find_button(picture, theme) is None
    screen.choose(0)
    after = decoded(screen.screenshot())
    assert [verdict(after, card, theme) for card in cards] == ["wrong", None, None]
    for box, centre in zip([*cards, find_button(after, theme)], screen._centres, strict=True):
        assert box.centre == pytest.approx(centre, abs=2)


@pytest.mark.parametrize("size", [(720, 1280), (448, 784), (140, 224), (728, 728), (1440, 900)])
def test_nothing_overlaps_or_leaves_the_screen(screen, deals, size):
    for lamps, light in (("row", "top"), ("column", "bottom")):
        screen.open(deals, Look(lamps=lamps, light=light, width=size[0], height=size[1]))
        boxes = screen._page.evaluate(
            "() => ['header', '#light', '#cards', '#message'].map((s) => { const b = document.querySelector(s)"
            ".getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; })"
        )
        for index, (left, top, right, bottom) in enumerate(boxes):
            assert min(left, top) >= -0.5
            assert (right <= size[0] + 0.5, bottom <= size[1] + 0.5) == (True, True)
            for other in boxes[index + 1 :]:
                across = right <= other[0] or other[2] <= left
                assert across or bottom <= other[1] + 0.5 or other[3] <= top + 0.5, (index, other)


def test_chinese(screen, page, deals):
    if not page.evaluate(HAS_CHINESE):
        with pytest.raises(RecipeError, match="no font here has Chinese"):
            screen.open(deals, Look(lang="zh"))
        pytest.skip("no Chinese font: apt-get install fonts-noto-cjk")
    screen.open(deals, Look(lang="zh"))
    assert page.locator("h1").inner_text() == "数字游戏"


def test_pages_that_cannot_be_played(screen, deals, tmp_path, monkeypatch):
    (tmp_path / "other.html").write_text("<p>Some other page</p>")
    with monkeypatch.context() as patch:
        patch.setattr(screen, "_milliseconds", 500)
        patch.setattr(screen, "_address", (tmp_path / "other.html").as_uri())
        with pytest.raises(RecipeError, match=r"after 0\.5 s the page shows no number game"):
            screen.open(deals, Look())
        patch.setattr(screen, "_address", "http://127.0.0.1:9/index.html")
        with pytest.raises(RecipeError, match="the page does not load"):
            screen.open(deals, Look())
    screen.open(deals, Look())
    screen._page.evaluate("() => document.body.style.setProperty('pointer-events', 'none')")
    with pytest.raises(TapLost, match="left the page in 'choose'"):
        screen.choose(0)


@pytest.mark.parametrize("victim", ["browser", "driver"])
def test_a_browser_or_playwrights_driver_that_dies(chromium_path, deals, victim):
    """The driver dies with Ctrl-C, which a terminal sends to every process."""

    def live_and_die():
        before = set(psutil.Process().children())
        screen = ChromiumScreen("dying")
        (driver,) = set(psutil.Process().children()) - before
        screen.open(deals, Look())
        if victim == "driver":
            driver.kill()
            driver.wait()
        else:
            screen._browser.close()
        with pytest.raises(ScreenLost, match="dying"):
            screen.choose(0)
        with pytest.raises(ScreenLost, match="dying"):
            screen.open(deals, Look())
        screen.close()

    with ThreadPoolExecutor(1) as thread:  # one thread has one Playwright
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
