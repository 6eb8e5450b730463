"""Read the repository's Markdown: links, paths in backticks, and commands in fenced shell blocks."""

import re
import shlex
import subprocess
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from recipes.paths import ROOT

BLOCK = re.compile(r"^ *```(?:bash|sh|shell) *\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=")
BACKTICKED_PATH = re.compile(
    r"`((?:examples|recipes|reward_functions|configs|scripts|tests|tools|docs)/[\w./-]+\.(?:py|sh|yaml|md|json|html))`"
)
LAUNCHERS = {
    path.name: match[1]
    for path in ROOT.glob("examples/*/*.sh")
    if (match := re.search(r'scripts/launch\.sh" (\w+) "\$@"', path.read_text(encoding="utf-8")))
}
"""Launchers by name, and the task that each starts."""


@dataclass(frozen=True)
class Command:
    """One shell command of a page: the variables assigned in front, and the words after them."""

    page: str
    text: str
    variables: dict[str, str]
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"

    @property
    def launch(self) -> tuple[str, list[str]] | None:
        """Task and arguments of a command that starts a run; None for another command."""
        words = list(self.words[1:] if self.words[:1] == ("bash",) else self.words)
        if words[:1] == ["scripts/launch.sh"]:
            return words[1], words[2:]
        task = LAUNCHERS.get(Path(words[0]).name) if words else None
        return (task, words[1:]) if task else None


def pages() -> list[Path]:
    """Every Markdown file that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / name for name in sorted(set(listed)) if (ROOT / name).is_file()]


def links(page: Path) -> list[str]:
    """The targets of the page's links, without those that leave the repository; `file#anchor`, or `#anchor` alone."""
    return [target for target in LINK.findall(page.read_text(encoding="utf-8")) if ":" not in target]


def leads_somewhere(page: Path, target: str) -> bool:
    """Return whether the file of a link exists and has its anchor."""
    name, _, anchor = target.partition("#")
    file = page.parent / name if name else page
    return file.exists() and (not anchor or anchor in anchors(file))


def anchors(page: Path) -> set[str]:
    """The anchors of a page: its headings as GitHub spells them, and those that are set by hand."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S), flags=re.M)
    plain = [re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).strip().lower() for heading in headings]
    spelt = {re.sub(r"[^\w\- ]", "", name).replace(" ", "-") for name in plain}
    return spelt | set(re.findall(r'<a id="([^"]+)"', text))


def named_paths(page: Path) -> list[str]:
    """The repository's files that the page names in backticks."""
    return BACKTICKED_PATH.findall(page.read_text(encoding="utf-8"))


def commands(page: Path) -> list[Command]:
    """The commands in the page's shell blocks; a line ending in a backslash goes on with the next."""
    name = str(page.relative_to(ROOT))
    lines = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8"))).replace("\\\n", " ").splitlines()
    found = []
    for line in lines:
        words: list[str] = []
        for word in [*shlex.split(line, comments=True), ";"]:
            if word not in {"&&", "||", "|", ";", "&"}:
                words.append(word)
            elif words:
                variables = list(takewhile(ASSIGNMENT.match, words))
                environ = dict(word.split("=", 1) for word in variables)
                found.append(Command(name, " ".join(line.split()), environ, tuple(words[len(variables) :])))
                words = []
    return found
