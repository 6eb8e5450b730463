"""The generated tables of the documentation say what the code says."""

from __future__ import annotations

import pytest

from recipes.paths import ROOT
from tools import render_docs


@pytest.mark.parametrize("name", render_docs.PAGES)
def test_pages_are_fresh(name):
    assert not render_docs.stale(ROOT / name, render_docs.BLOCKS), "run python -m tools.render_docs"


def test_check_fails_on_a_stale_page_and_writing_mends_it(tmp_path, monkeypatch):
    page = tmp_path / "PAGE.md"
    page.write_text("before\n<!-- generated: controls -->\nold\n<!-- end of controls -->\nafter\n")
    monkeypatch.setattr(render_docs, "ROOT", tmp_path)
    monkeypatch.setattr(render_docs, "PAGES", ("PAGE.md",))
    with pytest.raises(SystemExit):
        render_docs.main(check=True)
    render_docs.main(check=False)
    render_docs.main(check=True)
    first, *lines, last = page.read_text().splitlines()
    assert (first, "old" in lines, "DRY_RUN" in "".join(lines), last) == ("before", False, True, "after")
