"""Settings that a run changed on the way with RESUME=changed: old and new of each, in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

FILE = "changes.jsonl"
_HASH = 64
"""Characters of a SHA-256 in hex, of which a message shows the first."""


@dataclass(frozen=True)
class Change:
    """One thing that differs between two attempts.

    Attributes:
        name: a key, or what is compared by its content.
        old, new: its values; hashes for content.
        effect: what becomes of the new value.
        content: whether it makes another run of it.
    """

    name: str
    old: Any
    new: Any
    effect: str
    content: bool

    @property
    def described(self) -> str:
        """The change in a line."""
        if isinstance(self.old, dict) and isinstance(self.new, dict):
            both = sorted(self.old.keys() & self.new.keys())
            parts = {
                "another": [name for name in both if self.old[name] != self.new[name]],
                "now": sorted(self.new.keys() - self.old.keys()),
                "no longer": sorted(self.old.keys() - self.new.keys()),
            }
            return f"{self.name}: " + ", ".join(f"{word} {', '.join(names)}" for word, names in parts.items() if names)
        if all(isinstance(value, str) and len(value) == _HASH for value in (self.old, self.new)):
            return f"{self.name}: {self.old[:8]} -> {self.new[:8]}"
        return f"{self.name}: {self.old!r} -> {self.new!r}"


@dataclass(frozen=True)
class Changed:
    """The changes of one resumption: its time, and the last step that was made before."""

    time: str
    after_step: int
    changes: tuple[Change, ...]


def add_changes(run: Path, after_step: int, changes: Sequence[Change]) -> None:
    """Note in a run's folder what an attempt changes from the step after `after_step` on."""
    run.mkdir(parents=True, exist_ok=True)
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    entry = {"time": now, "after_step": after_step, "changes": [asdict(change) for change in changes]}
    with (run / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def read_changes(run: Path) -> list[Changed]:
    """The changes of a run, in order; a line that is torn is passed over."""
    file, found = run / FILE, []
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        try:
            entry = json.loads(line)
            changes = tuple(Change(**change) for change in entry["changes"])
            found.append(Changed(entry["time"], entry["after_step"], changes))
        except (ValueError, KeyError, TypeError):
            continue
    return found
