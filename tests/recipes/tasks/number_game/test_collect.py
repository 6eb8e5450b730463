"""Screenshots; collecting: journal, resuming, contradictions, files from it and from the hub; a scripted screen."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from recipes.data.rows import find_manifest
from recipes.tasks.number_game.collect import Journal, collect, decoded, fitted, from_hub, planned, problem
from recipes.tasks.number_game.rules import START, Settings, points
from recipes.tasks.prepare import prepare
from tests.mistakes import mistake

SETTINGS = Settings(rounds=3)


def encoded(picture, kind="PNG"):
    out = io.BytesIO()
    picture.save(out, kind)
    return out.getvalue()


def png(shade=0):
    return encoded(Image.new("RGB", (56, 84), (shade, shade, shade)))


WHOLE = encoded(Image.effect_noise((56, 84), 40))
OVERWRITTEN = WHOLE[:40] + b"\x00" * 40 + WHOLE[80:]


@pytest.mark.parametrize("data", [b"", WHOLE[:4], WHOLE[: len(WHOLE) // 2], OVERWRITTEN, b"<html>"])
def test_a_broken_picture_is_noticed(data):
    with pytest.raises(ValueError):
        fitted(data)


@pytest.mark.parametrize("screen", [(720, 1280), (2400, 1080), (1440, 3120), (100, 3000), (561, 1009)])
def test_other_screens_are_scaled_to_whole_patches(screen):
    assert fitted(WHOLE) is WHOLE
    width, height = decoded(fitted(encoded(Image.new("RGB", screen), "JPEG"))).size
    assert width % 28 == height % 28 == 0
    assert width * height // 28**2 <= 756
    assert width / height == pytest.approx(screen[0] / screen[1], rel=0.2)


class ScriptedScreen:
    """A game without a picture; `lies` makes it contradict the rules, `stops_after` fails like Ctrl-C."""

    name = "scripted"

    def __init__(self, *, lies=False, stops_after=None):
        self._lies, self._left = lies, stops_after

    def open(self, deals, appearance):
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt
        self._deals, self._round, self._score = deals, 0, START

    def screenshot(self):
        return png(self._round)

    def choose(self, position):
        right = (position == self._deals[self._round].answer) != self._lies
        self._score += points(right)
        return "right" if right else "wrong"

    def advance(self):
        self._round += 1

    def deal(self):
        return self._deals[self._round]

    def score(self):
        return self._score

    def close(self):
        pass


def run(episodes, folder, **faults):
    """Numbers of the episodes played now, and of all rounds."""
    rounds = []
    opened = {"opened": lambda name: ScriptedScreen(**faults)}
    return len(collect(episodes, Journal(folder), 1, on_episode=rounds.append, **opened)), sum(rounds)


def write(found, folder):
    prepare("number_game", found, folder, problem=problem)
    return {split: pq.read_table(folder / f"{split}.parquet").to_pylist() for split in ("train", "test")}


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    episodes = planned("train", 14, SETTINGS, seed=1)
    assert [len(episode.deals) for episode in episodes] == [3, 3, 3, 3, 2]
    with pytest.raises(KeyboardInterrupt):
        run(episodes, tmp_path, stops_after=2)
    assert len(list(tmp_path.glob("train-*"))) == 2
    assert run(episodes, tmp_path) == (3, 14)
    rounds = list(Journal(tmp_path).rounds(episodes))
    assert [each.deal for each in rounds] == [deal for episode in episodes for deal in episode.rounds]
    assert run(planned("train", 14, SETTINGS, seed=2), tmp_path)[0] == 5, "another plan, other episodes"


@pytest.mark.parametrize(("file", "content"), [("01.png", png()[:60]), ("episode.json", b"{")])
def test_a_damaged_episode_is_played_again(tmp_path, file, content):
    episodes = planned("train", 6, SETTINGS, seed=1)
    run(episodes, tmp_path)
    (tmp_path / episodes[1].key / file).write_bytes(content)
    assert [run(episodes, tmp_path)[0] for _ in range(2)] == [1, 0]


def test_a_page_that_contradicts_the_rules_stops_everything(tmp_path):
    mistake(lambda: run(planned("train", 3, SETTINGS, seed=1), tmp_path, lies=True), "rules.py")
    assert not list(tmp_path.glob("train-*"))


def test_the_hubs_set(tmp_path):
    jpeg = encoded(Image.new("RGB", (720, 1280)), "JPEG")
    train = [(png(1), "0"), (png(2), "1"), (png(2), "1"), (png(5)[:60], "2"), (png(3), "maybe"), (png(9), "2")]
    for split, found in (("train", train), ("test", [(png(9), "2"), (jpeg, "1")])):
        images = [[{"bytes": data, "path": None}] for data, _ in found]
        table = pa.table({"images": images, "problem": ["x"] * len(found), "answer": [answer for _, answer in found]})
        pq.write_table(table, tmp_path / f"{split}-00000-of-00001.parquet")
    rows = write(from_hub(tmp_path, "main"), tmp_path / "out")
    assert [row["answer"] for row in rows["train"]] == ["0", "1"]
    dropped = find_manifest(tmp_path / "out" / "train.parquet").dropped
    assert dropped == {"duplicate": 1, "broken_image": 1, "no_answer": 1, "shared_with_test": 1}
    assert [row["extra_info"]["height"] for row in rows["test"]] == [84, 1008]
