"""Pretrain the tiny model that ships in recipes/tasks/gsm8k/tiny; the same as `scripts/pretrain.py gsm8k`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    script = str(Path(__file__).with_name("pretrain.py"))
    sys.argv[:1] = [script, "gsm8k"]
    runpy.run_path(script, run_name="__main__")
