"""Generated blocks inside hand-written pages: `<!-- generated: name -->` … `<!-- end of name -->`.

Words behind the name are handed to the block's function: `<!-- generated: comparison countdown easyr1 -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from recipes.errors import RecipeError

_BLOCK = re.compile(
    r"<!-- generated: (?P<name>[\w-]+)(?P<words>(?: [\w:.-]+)*) -->\n.*?<!-- end of (?P=name) -->", re.DOTALL
)
_OPEN = re.compile(r"<!-- generated: ([\w-]+)(?: [\w:.-]+)* -->")


def pages_with_blocks(folder: Path) -> list[Path]:
    """The Markdown files in the folders below `folder` that hold a generated block."""
    return [page for page in sorted(folder.glob("*/*.md")) if _OPEN.search(page.read_text(encoding="utf-8"))]


def rendered(page: Path, blocks: Mapping[str, Callable[..., str]]) -> str:
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
    return _BLOCK.sub(lambda match: _filled(match["name"], match["words"], blocks), text)


def _filled(name: str, words: str, blocks: Mapping[str, Callable[..., str]]) -> str:
    return f"<!-- generated: {name}{words} -->\n\n{blocks[name](*words.split())}\n\n<!-- end of {name} -->"


def stale(page: Path, blocks: Mapping[str, Callable[..., str]]) -> bool:
    """Whether the page says something else than the code does."""
    return rendered(page, blocks) != page.read_text(encoding="utf-8")
