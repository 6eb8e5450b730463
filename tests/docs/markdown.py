"""Read the repository's Markdown: links, paths in backticks, and commands in fenced shell blocks."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from recipes.paths import ROOT

FENCE = re.compile(r"^\s*```(\w*)(\s.*)?$")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
ASSIGNMENT = re.compile(r"^([A-Z][A-Z0-9_]*)=")
BACKTICKED_PATH = re.compile(
    r"`((?:examples|recipes|reward_functions|configs|scripts|tests|docs)/[\w./-]+\.(?:py|sh|yaml|md|json|html))`"
)


@dataclass(frozen=True)
class Command:
    """One shell command of a document: its words after the leading assignments, and the variables assigned."""

    page: str
    line: int
    text: str
    words: tuple[str, ...]
    variables: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def pages() -> list[Path]:
    """Every Markdown file that git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [ROOT / name for name in sorted(set(listed)) if (ROOT / name).is_file()]


def links(page: Path) -> list[str]:
    """The targets of the page's links, without those that leave the repository and without anchors."""
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    return [
        target.split("#")[0] for target in targets if "://" not in target and not target.startswith(("#", "mailto:"))
    ]


def named_paths(page: Path) -> list[str]:
    """The repository's files that the page names in backticks."""
    return BACKTICKED_PATH.findall(page.read_text(encoding="utf-8"))


def commands(page: Path) -> list[Command]:
    """The commands in the page's ``bash`` blocks; a line ending in a backslash goes on with the next."""
    found: list[Command] = []
    inside = False
    pending = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = FENCE.match(line)
        if fence:
            inside = not inside and fence.group(1) in {"bash", "sh", "shell"} and not fence.group(2)
            pending = ""
            continue
        if not inside:
            continue
        pending += line.strip()
        if pending.endswith("\\"):
            pending = pending[:-1] + " "
            continue
        if pending and not pending.startswith("#"):
            found += _parse(page, number, pending)
        pending = ""
    return found


def _parse(page: Path, number: int, text: str) -> list[Command]:
    words = shlex.split(text, comments=True)
    parts: list[list[str]] = [[]]
    for word in words:
        if word in {"&&", "||", "|", ";", "&"}:
            parts.append([])
        else:
            parts[-1].append(word)
    result = []
    for part in parts:
        variables = []
        while part and ASSIGNMENT.match(part[0]):
            variables.append(part.pop(0).split("=", 1)[0])
        result.append(Command(str(page.relative_to(ROOT)), number, text, tuple(part), tuple(variables)))
    return result
