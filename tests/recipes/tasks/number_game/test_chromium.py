"""The page in a real Chromium: it judges as rules.py does, draws by seed, looks as it should; its faults are named."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psutil
import pytest

from recipes.errors import RecipeError
from recipes.tasks.number_game import chromium
from recipes.tasks.number_game.chromium import PAGE, ChromiumScreen, run
from recipes.tasks.number_game.rules import Appearance, all_deals, parse_deal
from tests.mistakes import mistake

DEALS = [parse_deal(code) for code in ("g374", "r952", "y581")]  # whose answers are 1, 2 and 0


@pytest.fixture(scope="module")
def screen(chromium_path):
    made = ChromiumScreen("test")
    yield made
    made.close()


@pytest.fixture
def page(screen):
    """Playwright's page, for what a player has no method for."""
    screen.open(DEALS, Appearance())
    return screen._page


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
        page.goto(f"{PAGE.as_uri()}?deal=" + ",".join(deal.code for deal in part))
        seen, score = page.evaluate(play, [deal.answer for deal in part])
        assert (seen, int(score)) == ([f"{deal.code}right" for deal in part], 100 + 10 * len(part))
    page.reload()
    seen, score = page.evaluate(play, [(deal.answer + 1 + deal.digits[0] % 2) % 3 for deal in part])
    assert (seen, int(score)) == ([f"{deal.code}wrong" for deal in part], 100 - 10 * len(part))


@pytest.mark.parametrize(
    ("seed", "order", "codes"),
    [(7, "shuffled", "g196 r452 r732 y524 g539 g823"), (4294967295, "descending", "y972 y754 g972 r874 y531 y976")],
)
def test_a_seed_draws_the_same_rounds_everywhere(page, seed, order, codes):
    page.goto(f"{PAGE.as_uri()}?seed={seed}&rounds=6&order={order}")
    seen = page.evaluate("""() => { const game = document.getElementById('game'); const seen = [];
        while (game.dataset.phase !== 'over') { seen.push(game.dataset.light[0] + game.dataset.digits);
            document.querySelector('.card').click(); document.getElementById('go').click(); }
        return seen; }""")
    assert seen == codes.split()


@pytest.mark.parametrize("size", [(720, 1280), (140, 224), (1440, 900)])
def test_nothing_overlaps_or_leaves_the_screen(screen, size):
    for lamps, light in (("row", "top"), ("column", "bottom")):
        screen.open(DEALS, Appearance(lamps=lamps, light=light, width=size[0], height=size[1]))
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


def test_a_page_that_refuses_its_options_says_why(screen):
    assert "theme" in mistake(lambda: screen.open(DEALS, Appearance(theme="neon")), "the page refuses").what


@pytest.mark.parametrize("victim", ["browser", "driver"])
def test_a_browser_or_playwrights_driver_that_dies(chromium_path, victim):
    """The driver dies with Ctrl-C, which a terminal sends to every process."""

    def live_and_die():
        before = set(psutil.Process().children())
        screen = ChromiumScreen("dying")
        (driver,) = set(psutil.Process().children()) - before
        screen.open(DEALS, Appearance())
        if victim == "driver":
            driver.kill()
            driver.wait()
        else:
            screen._browser.close()
        mistake(lambda: screen.choose(0), "dying")
        mistake(lambda: screen.open(DEALS, Appearance()), "dying")
        screen.close()

    with ThreadPoolExecutor(1) as thread:  # one thread has one Playwright
        thread.submit(live_and_die).result()


class Stub:
    """A screen that must be closed in the thread that opened it."""

    def __init__(self, name, closed):
        self._closed, self.thread = closed, threading.get_ident()

    def close(self):
        assert threading.get_ident() == self.thread
        self._closed.append(self)


def test_ctrl_c_waits_until_the_windows_are_closed(monkeypatch):
    """A thread in a browser's library while Python ends is a crash."""
    done, closed, stop = [], [], threading.Event()
    monkeypatch.setattr(chromium, "Event", lambda: stop)

    def work(screen, job):
        time.sleep(0.5)  # all windows are open
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert stop.wait(60)
        time.sleep(0.5)
        done.append(job)

    with pytest.raises(KeyboardInterrupt):
        run([1, 2, 3], work, 1, partial(Stub, closed=closed))
    assert (done, len(closed)) == ([1], 1), "what was begun is ended, and nothing else is begun"


def test_windows_share_the_jobs_and_a_failure_ends_all_of_them():
    done, closed = [], []
    opened = partial(Stub, closed=closed)
    run(list(range(20)), lambda screen, job: done.append(job), 3, opened)
    assert (sorted(done), len(closed)) == (list(range(20)), 3)

    def fail(screen, job):
        raise RecipeError("gone", where="a", fix="repeat")

    mistake(lambda: run([1, 2, 3], fail, 1, opened), "gone")
    assert len(closed) == 4
