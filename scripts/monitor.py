"""List runs, watch one, write its report, compare two, or end one; docs/MONITORING.md."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.installation import ensure

ensure()

from recipes.runs.cli import app

if __name__ == "__main__":
    app()
