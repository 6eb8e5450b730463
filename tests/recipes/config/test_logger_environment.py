"""Where verl's loggers write."""

from __future__ import annotations

import subprocess
import sys

import pytest

from recipes.config.machine import logger_environment

pytest.importorskip("tensorboard")


@pytest.mark.parametrize(("logger", "pattern"), [("tensorboard", "tensorboard/events.*"), ("wandb", "wandb/offline-*")])
def test_verls_own_tracking_writes_there(tmp_path, logger, pattern):
    """W&B offline, without a login and without the network."""
    code = (
        "from verl.utils.tracking import Tracking\n"
        f"log = Tracking('project', 'experiment', [{logger!r}], config={{}})\n"
        "log.log({'actor/entropy': 0.2}, step=1)\n"
        "log.finish() if hasattr(log, 'finish') else None"
    )
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    environ |= logger_environment([logger], tmp_path / "run", environ)
    (tmp_path / "run").mkdir()
    (tmp_path / "cwd").mkdir()
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "cwd", env=environ, check=True, timeout=180)
    assert list((tmp_path / "run").glob(pattern))
    assert not list((tmp_path / "cwd").iterdir())
