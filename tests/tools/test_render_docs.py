"""The generated tables of the documentation say what the code says."""

from __future__ import annotations

import pytest

from recipes.paths import ROOT
from tools import render_docs


@pytest.mark.parametrize("name", render_docs.PAGES)
def test_pages_are_fresh(name):
    assert not render_docs.stale(ROOT / name, render_docs.BLOCKS), "run python -m tools.render_docs"
