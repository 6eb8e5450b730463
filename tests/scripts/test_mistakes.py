"""Wrong options: one message that names them, exit code 2, no traceback, and nothing is written."""

import pytest


@pytest.mark.parametrize(
    ("name", "arguments", "named"),
    [
        ("data_prep_countdown", ["--source", "hub", "--hub_path", "nowhere.parquet"], "nowhere.parquet"),
        ("data_prep_gsm8k", ["--train_size", "5"], "train_size"),
        ("data_prep_number_game", [], "apt-get install chromium"),
        ("data_prep_number_game", ["--source", "hub", "--hub_path", "/does/not/exist"], "/does/not/exist"),
        ("compare_configs", ["countdown", "--against", "easyr1:3bb"], "3bb"),
    ],
)
def test_wrong_options(script, tmp_path, monkeypatch, name, arguments, named):
    """Without Chromium and without the hub."""
    monkeypatch.chdir(tmp_path)
    for variable, value in {"ARTIFACTS_DIR": tmp_path, "CHROMIUM": "/no/chromium", "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(variable, str(value))
    done = script(name)(*arguments)
    assert done.exit_code == 2, done.output
    assert "error: " in done.output
    assert named in done.output
    assert not list(tmp_path.rglob("*.parquet"))
