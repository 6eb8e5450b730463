"""`examples/notebook.ipynb` runs as it stands, on a CPU with the tiny model, and learns."""

import json

import pytest

from recipes.paths import ROOT
from recipes.runs.metrics import read_history, validation
from tests.recipes.engines.conftest import variables

pytestmark = pytest.mark.trainer(seconds=60)


def test_the_notebook_trains_plots_evaluates_and_shows(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.read(ROOT / "examples" / "notebook.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "outputs would have paths of a machine"
    kernel = nbclient.NotebookClient(book, timeout=None, resources={"metadata": {"path": str(tmp_path)}})
    environ = variables(tmp_path)
    del environ["PYTEST_CURRENT_TEST"]  # by which ipykernel knows a test of its own, and leaves stdout without a number
    kernel.execute(env=environ)
    shown = json.dumps([cell.get("outputs") for cell in book.cells])
    assert "image/png" in shown
    assert "The trained model is better" in shown
    steps = read_history(*tmp_path.glob("runs/*/metrics.jsonl"))
    first, *_, last = [logged.means["custom"] for logged in map(validation, steps) if logged]
    assert last > first + 0.2
