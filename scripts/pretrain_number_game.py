"""Pretrain the tiny model of recipes/tasks/number_game/tiny; the same as `scripts/pretrain.py number_game`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    script = str(Path(__file__).with_name("pretrain.py"))
    sys.argv[:1] = [script, "number_game"]
    runpy.run_path(script, run_name="__main__")
