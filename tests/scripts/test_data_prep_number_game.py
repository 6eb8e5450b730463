"""The number game's data script as a user runs it."""

from __future__ import annotations

import shutil

import pyarrow.parquet as pq
import pytest

from recipes.data.rows import read_manifest
from recipes.tasks.number_game.chromium import NAMES

REWARD = '''
"""A reward that reads `Answer: N`."""
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    right = float(solution_str == f"Answer: {ground_truth}")
    return {"score": right, "accuracy": right, "reason": "correct" if right else "wrong"}
'''


@pytest.fixture(scope="module")
def call(script):
    return script("data_prep_number_game")


@pytest.fixture
def small(tmp_path):
    """Arguments for a small data set in a folder of its own."""
    reward = tmp_path / "reward.py"
    reward.write_text(REWARD)
    return ["--train_size", 9, "--test_size", 9, "--rounds", 9, "--output_dir", tmp_path, "--reward_path", reward]


def test_screenshots_from_chromium(call, small, tmp_path):
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not any(shutil.which(name) for name in NAMES):
        pytest.skip("no Chromium: apt-get install chromium")
    done = call("--preset", "tiny", "--workers", 1, *small)
    assert done.exit_code == 0, done.output
    assert "0 episodes were there, 2 played now: 18 screenshots" in done.output
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert {row["answer"] for row in rows} == {"0", "1", "2"}
    assert rows[0]["images"][0]["bytes"].startswith(b"\x89PNG")
    manifest = read_manifest(tmp_path / "train.parquet", verify=True)
    assert sum(manifest["counts"]["screens"].values()) == 9
    assert set(manifest["counts"]["light_and_answer"].values()) == {1}
    again = call("--preset", "tiny", *small)
    assert "2 episodes were there, 0 played now" in again.output
    assert again.output.count("unchanged") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "apt-get install chromium"),
        (["--preset", "huge"], "no preset 'huge'"),
        (["--source", "moon"], "no source 'moon'"),
        (["--languages", "en,fr"], "choose from en, zh"),
        (["--source", "hub", "--hub_path", "/does/not/exist"], "has no train*.parquet"),
        (["--page_url", "http://127.0.0.1:9/x", "--reward_path", "none.py"], "there is no reward file none.py"),
    ],
)
def test_what_a_user_can_get_wrong(call, small, arguments, message, monkeypatch):
    monkeypatch.setenv("CHROMIUM", "/no/chromium")
    done = call(*small, *arguments)
    assert (done.exit_code, message in done.stderr) == (2, True)


def test_ctrl_c_says_that_finished_episodes_are_kept(call, small, monkeypatch):
    def interrupted(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr(call.module, "collect", interrupted)
    done = call(*small)
    assert done.exit_code == 130
    assert "finished episodes are kept: repeat the command" in done.output
