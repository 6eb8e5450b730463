"""Pretrain the tiny model that ships in recipes/tasks/countdown/tiny; the same as `scripts/pretrain.py countdown`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    script = str(Path(__file__).with_name("pretrain.py"))
    sys.argv[:1] = [script, "countdown"]
    runpy.run_path(script, run_name="__main__")
