"""W&B takes part where it was asked for or a login is there, and never waits for a key."""

from __future__ import annotations

import pytest

from recipes.config import load
from recipes.config.machine import chosen, logged_in, wandb_environment
from recipes.engines import verl

LISTED = ["console", "file", "wandb"]


@pytest.fixture
def home(tmp_path):
    return {"HOME": str(tmp_path)}


def test_without_a_login_a_recipes_wandb_stays_out(home):
    assert chosen(LISTED, asked=False, environ=home) == ["console", "file"]
    assert chosen(LISTED, asked=True, environ=home) == LISTED


def test_asked_without_a_login_is_offline(home):
    assert wandb_environment(LISTED, home) == {"WANDB_MODE": "offline"}
    assert wandb_environment(["console"], home) == {}
    assert wandb_environment(LISTED, {**home, "WANDB_MODE": "disabled"}) == {}


def test_a_key_or_a_netrc_is_a_login(home, tmp_path):
    assert not logged_in(home)
    assert logged_in({"WANDB_API_KEY": "0" * 40})
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n  login user\n  password 123\n")
    assert logged_in(home)
    assert not logged_in({**home, "WANDB_BASE_URL": "https://wandb.example.org"})
    assert chosen(LISTED, asked=False, environ=home) == LISTED
    assert wandb_environment(LISTED, home) == {}


def test_a_broken_netrc_is_no_login(home, tmp_path):
    (tmp_path / ".netrc").write_text("machine\n\nnonsense here")
    assert not logged_in(home)


@pytest.mark.parametrize(
    ("environ", "loggers", "mode"),
    [
        ({}, ["console", "file"], None),
        ({"LOGGER": "console,wandb"}, ["console", "wandb", "file"], "offline"),
        ({"WANDB_API_KEY": "x"}, LISTED, None),
    ],
)
def test_from_recipe_to_trainer(home, environ, loggers, mode):
    environ = home | environ
    recipe = load("countdown", environ=environ, hardware="gpu")
    assert recipe.trainer.logger == loggers
    assert verl.environment(recipe, environ).get("WANDB_MODE") == mode
