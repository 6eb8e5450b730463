"""Each Chinese page has the commands and the names in backticks of the English one, and no other."""

from __future__ import annotations

import re

import pytest

from recipes.paths import ROOT

FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"<!-- generated: .*?<!-- end of [^>]*-->", re.DOTALL)
"""Tables that the code writes stand on the English page only."""
NAME = re.compile(r"(?<!`)`([^`]+)`(?!`)")
FENCE_AS_TEXT = "` ```python `"
CHINESE = re.compile(r"[一-鿿]")

PAIRS = {"README.md": "README_zh.md"}
PAIRS |= {f"docs/{page.name}": f"docs/zh/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))}
PAIRS |= {
    str(page.relative_to(ROOT).with_name("README.md")): str(page.relative_to(ROOT))
    for page in sorted((ROOT / "examples").glob("*/README_zh.md"))  # a task of one's own needs none
}
del PAIRS["docs/CONFIGURATION_REFERENCE.md"]  # written by the code


def content(name: str) -> tuple[list[str], set[str]]:
    """Code blocks without comments and layout, and names in backticks."""
    text = GENERATED.sub("", (ROOT / name).read_text(encoding="utf-8"))
    blocks = []
    for language, block in FENCE.findall(text):
        if language == "text" and name.endswith("ARCHITECTURE.md"):
            continue  # words, in each page's language
        lines = [re.sub(r"(^|\s+)#.*$", "", line) for line in block.splitlines()]
        blocks.append(f"{language}: {' '.join(' '.join(lines).split())}")
    text = FENCE.sub("", text).replace(FENCE_AS_TEXT, "")
    names = {" ".join(name.split()) for name in NAME.findall(text) if not CHINESE.search(name)}
    return blocks, names


@pytest.mark.parametrize("english", PAIRS)
def test_both_pages_have_the_same_commands_and_names(english):
    chinese = PAIRS[english]
    assert (ROOT / chinese).is_file(), f"{english} has no Chinese page {chinese}"
    for kind, here, there in zip(("code", "names"), content(english), content(chinese), strict=True):
        assert not [each for each in here if each not in there], f"{kind} in {english} and not in {chinese}"
        assert not [each for each in there if each not in here], f"{kind} in {chinese} and not in {english}"
    assert CHINESE.search((ROOT / chinese).read_text(encoding="utf-8"))
