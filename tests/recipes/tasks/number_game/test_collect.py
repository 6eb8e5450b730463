"""Collecting: journal, resuming, contradictions, splits; a scripted screen where no browser is needed."""

from __future__ import annotations

import io
import json
from collections import Counter

import pyarrow.parquet as pq
import pytest
from PIL import Image

from recipes.data.prepare import prepare
from recipes.data.rows import read_manifest
from recipes.errors import RecipeError
from recipes.tasks.number_game.collect import Journal, collect, planned
from recipes.tasks.number_game.data import HubScreens, from_journal, row_gold_response, splits
from recipes.tasks.number_game.rules import PRESETS, START, Settings, points
from recipes.tasks.number_game.screens import Outcome

SETTINGS = Settings(rounds=3)


def png(shade=0, size=(56, 84)):
    out = io.BytesIO()
    Image.new("RGB", size, (shade, shade, shade)).save(out, "PNG")
    return out.getvalue()


class ScriptedScreen:
    """A game without a picture; `lies` makes it contradict the rules, `stops_after` fails like Ctrl-C."""

    opened = 0

    def __init__(self, *, lies=False, stops_after=None):
        self.name, self._lies, self._stops_after = "scripted", lies, stops_after

    def open(self, deals, look):
        type(self).opened += 1
        if self._stops_after is not None and type(self).opened > self._stops_after:
            raise KeyboardInterrupt
        self._deals, self._round, self._score = deals, 0, START

    def screenshot(self):
        return png(self._round)

    def choose(self, position):
        right = (position == self._deals[self._round].answer) != self._lies
        self._score += points(right)
        return Outcome("right" if right else "wrong", "page")

    def advance(self):
        self._round += 1

    def deal(self):
        return self._deals[self._round]

    def score(self):
        return self._score

    def close(self):
        pass


@pytest.fixture(autouse=True)
def none_opened():
    ScriptedScreen.opened = 0


def run(episodes, folder, **faults):
    seen = []
    tally = collect(
        episodes,
        Journal(folder),
        lambda jobs: [lambda: ScriptedScreen(**faults)],
        source="test",
        on_episode=seen.append,
    )
    return tally, sum(seen)


def test_an_interrupted_run_goes_on_where_it_was(tmp_path):
    episodes = planned("train", 14, SETTINGS, seed=1)
    assert [len(episode.deals) for episode in episodes] == [3, 3, 3, 3, 2]
    with pytest.raises(KeyboardInterrupt):
        run(episodes, tmp_path, stops_after=2)
    assert len(list(tmp_path.glob("train-*"))) == 2
    tally, reported = run(episodes, tmp_path)
    assert (tally.found, tally.played, tally.rounds, reported) == (2, 3, 8, 14)
    rounds = list(Journal(tmp_path).rounds(episodes))
    assert [each.deal for each in rounds] == [deal for episode in episodes for deal in episode.deals]
    again, _ = run(episodes, tmp_path)
    assert (again.found, again.played) == (5, 0)


def test_another_plan_does_not_take_the_same_episodes(tmp_path):
    run(planned("train", 6, SETTINGS, seed=1), tmp_path)
    tally, _ = run(planned("train", 6, SETTINGS, seed=2), tmp_path)
    assert tally.found == 0
    assert len(list(tmp_path.glob("train-*"))) == 4


@pytest.mark.parametrize("damage", ["cut", "gone", "record"])
def test_a_damaged_episode_is_played_again_and_said(tmp_path, damage):
    episodes = planned("train", 6, SETTINGS, seed=1)
    run(episodes, tmp_path)
    folder = tmp_path / episodes[1].key
    if damage == "cut":
        (folder / "01.png").write_bytes(png()[:-20])
    elif damage == "gone":
        (folder / "02.png").unlink()
    else:
        (folder / "episode.json").write_text("{")
    tally, _ = run(episodes, tmp_path)
    assert (tally.found, tally.played) == (1, 1)
    assert episodes[1].key in tally.retried[0]


def test_a_page_that_contradicts_the_rules_stops_everything(tmp_path):
    with pytest.raises(RecipeError, match=r"rules\.py says"):
        run(planned("train", 3, SETTINGS, seed=1), tmp_path, lies=True)
    assert not list(tmp_path.glob("train-*"))


def write(found, folder, score):
    prepare("number_game", found, folder, score=score, gold_response=row_gold_response, command="test")


def test_files_from_a_journal(tmp_path, score):
    episodes = {"train": planned("train", 36, SETTINGS, seed=0), "test": planned("test", 18, SETTINGS, seed=0)}
    run(episodes["train"] + episodes["test"], tmp_path / "episodes")
    sources = from_journal(Journal(tmp_path / "episodes"), episodes)
    write(splits(sources, {"source": "test"}), tmp_path, score)
    rows = {split: pq.read_table(tmp_path / f"{split}.parquet").to_pylist() for split in ("train", "test")}
    assert Counter((row["extra_info"]["light"], row["answer"]) for row in rows["train"]) == dict.fromkeys(
        [(light, answer) for light in ("green", "red", "yellow") for answer in "012"], 4
    )
    deals = {split: {row["extra_info"]["deal"] for row in found} for split, found in rows.items()}
    assert not deals["train"] & deals["test"]
    row = rows["train"][4]
    assert row["prompt"][0]["content"].startswith("<image>This is a screen")
    assert row["images"] == [{"bytes": png(1)}]
    assert row["answer"] == row["reward_model"]["ground_truth"] == str(row["extra_info"]["answer"])
    assert (row["extra_info"]["width"], row["extra_info"]["height"]) == (56, 84)
    assert row["extra_info"]["episode"] == 1
    manifest = read_manifest(tmp_path / "train.parquet", verify=True)
    assert manifest["counts"]["light_and_answer"]["green 0"] == 4
    assert manifest["counts"]["most_image_tokens"] == 6


def test_a_reward_that_denies_the_gold_answer(tmp_path):
    episodes = {split: planned(split, 3, SETTINGS, seed=0) for split in ("train", "test")}
    run(episodes["train"] + episodes["test"], tmp_path / "episodes")
    sources = from_journal(Journal(tmp_path / "episodes"), episodes)
    with pytest.raises(RecipeError, match="gold answer of train row 0"):
        write(splits(sources, {}), tmp_path, lambda *given: {"score": 0.0, "reason": "no"})
    assert not list(tmp_path.glob("*.parquet"))


def test_the_hubs_set(tmp_path, score):
    import pyarrow as pa

    broken = png(5)[:-20]
    jpeg = io.BytesIO()
    Image.new("RGB", (720, 1280)).save(jpeg, "JPEG")
    train = [(png(1), "0"), (png(2), "1"), (png(2), "1"), (broken, "2"), (png(3), "maybe"), (png(9), "2")]
    test = [(png(9), "2"), (jpeg.getvalue(), "1")]
    for split, found in (("train", train), ("test", test)):
        images = [[{"bytes": data, "path": None}] for data, _ in found]
        table = pa.table({"images": images, "problem": ["x"] * len(found), "answer": [answer for _, answer in found]})
        pq.write_table(table, tmp_path / f"{split}-00000-of-00001.parquet")
    screens = HubScreens(tmp_path, "main")
    out = tmp_path / "out"
    write(splits(screens.sources(), {}, screens.dropped), out, score)
    rows = {split: pq.read_table(out / f"{split}.parquet").to_pylist() for split in ("train", "test")}
    assert [row["answer"] for row in rows["train"]] == ["0", "1"]
    assert read_manifest(out / "train.parquet")["dropped"] == {
        "duplicate": 1,
        "broken_image": 1,
        "no_answer": 1,
        "shared_with_test": 1,
    }
    assert [row["extra_info"]["height"] for row in rows["test"]] == [84, 1008]


def test_a_hub_set_with_other_columns(tmp_path):
    import pyarrow as pa

    for split in ("train", "test"):
        pq.write_table(pa.table({"picture": [1]}), tmp_path / f"{split}.parquet")
    with pytest.raises(RecipeError, match="the set has the columns picture"):
        HubScreens(tmp_path, "main")
    with pytest.raises(RecipeError, match=r"has no train\*\.parquet"):
        HubScreens(tmp_path / "empty", "main")


def test_presets_fill_whole_batches_evenly():
    full, tiny = PRESETS["full"], PRESETS["tiny"]
    assert full.train_size % 128 == full.train_size % 9 == full.test_size % 9 == 0
    assert full.test_size >= 256
    assert tiny.train_size % 9 == tiny.test_size % 9 == 0
    assert json.dumps(full.facts())


@pytest.mark.parametrize(
    "wrong", [{"train_size": 0}, {"languages": ("fr",)}, {"looks": "odd"}, {"screens": ((720, 1280),)}]
)
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(RecipeError):
        Settings(**wrong)
