"""Check a recipe, its data, model, reward and this machine, and start nothing."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.installation import ensure

ensure()

from recipes.preflight.cli import app

if __name__ == "__main__":
    app()
