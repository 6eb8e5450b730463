"""Write the model card of a run's checkpoint, and push its folder to a hub; docs/CHECKPOINTS.md."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

from recipes.publish import app

if __name__ == "__main__":
    app()
