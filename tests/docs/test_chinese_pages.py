"""Each Chinese page has the code blocks of the English one, and no other."""

import re

import pytest

from recipes.paths import ROOT

FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"<!-- generated: .*?<!-- end of [^>]*-->", re.DOTALL)
"""Tables that the code writes stand on the English page only."""
CHINESE = re.compile(r"[一-鿿]")

PAIRS = {"README.md": "README_zh.md"}
PAIRS |= {f"docs/{page.name}": f"docs/zh/{page.name}" for page in sorted((ROOT / "docs").glob("*.md"))}
PAIRS |= {
    str(page.relative_to(ROOT).with_name("README.md")): str(page.relative_to(ROOT))
    for page in sorted((ROOT / "examples").glob("*/README_zh.md"))  # a task of one's own needs none
}
del PAIRS["docs/CONFIGURATION_REFERENCE.md"]  # written by the code


def blocks(name: str) -> list[str]:
    """Code blocks without comments and layout."""
    text = GENERATED.sub("", (ROOT / name).read_text(encoding="utf-8"))
    found = []
    for language, block in FENCE.findall(text):
        if language == "text" and name.endswith("ARCHITECTURE.md"):
            continue  # words, in each page's language
        lines = [re.sub(r"(^|\s+)#.*$", "", line) for line in block.splitlines()]
        found.append(f"{language}: {' '.join(' '.join(lines).split())}")
    return found


@pytest.mark.parametrize("english", PAIRS)
def test_both_pages_have_the_same_code_blocks(english):
    chinese = PAIRS[english]
    assert (ROOT / chinese).is_file(), f"{english} has no Chinese page {chinese}"
    assert blocks(english) == blocks(chinese)
    assert CHINESE.search((ROOT / chinese).read_text(encoding="utf-8"))
