"""Generated blocks inside hand-written pages: `<!-- generated: name -->` … `<!-- end of name -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from recipes.errors import RecipeError

_BLOCK = re.compile(r"<!-- generated: (?P<name>[\w-]+) -->\n.*?<!-- end of (?P=name) -->", re.DOTALL)
_OPEN = re.compile(r"<!-- generated: ([\w-]+) -->")


def rendered(page: Path, blocks: Mapping[str, Callable[[], str]]) -> str:
    """The page with its generated blocks made anew. Raises RecipeError for a block that is unknown or not closed."""
    text = page.read_text(encoding="utf-8")
    closed = {match["name"] for match in _BLOCK.finditer(text)}
    for name in _OPEN.findall(text):
        if name not in blocks:
            raise RecipeError(
                f"unknown generated block {name!r}", where=str(page), fix=f"use one of {', '.join(blocks)}"
            )
        if name not in closed:
            raise RecipeError(
                f"the generated block {name!r} has no end", where=str(page), fix=f"add <!-- end of {name} -->"
            )
    return _BLOCK.sub(lambda match: _filled(match["name"], blocks), text)


def _filled(name: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    return f"<!-- generated: {name} -->\n\n{blocks[name]()}\n\n<!-- end of {name} -->"


def stale(page: Path, blocks: Mapping[str, Callable[[], str]]) -> bool:
    """Whether the page says something else than the code does."""
    return rendered(page, blocks) != page.read_text(encoding="utf-8")
