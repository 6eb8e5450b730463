"""Make the embedded workload (scikit-learn's digits), or report on a candidate file of your own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.installation import ensure

ensure()

import typer

from recipes.pointer_selector.cli import data_command

if __name__ == "__main__":
    typer.run(data_command)
