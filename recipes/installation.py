"""What scripts/setup_env.sh asks about `constraints.txt` and about an environment; standard library only.

It runs before anything is installed: `python -m recipes.installation {pins EXTRA | repair VENV | verify VENV EXTRA}`.
"""

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

from recipes.paths import ROOT

CONSTRAINTS = ROOT / "constraints.txt"


def pins(extra: str, text: str) -> list[str]:
    """The `name==version` lines that hold for an extra; the marks are explained at the head of constraints.txt.

    Args:
        extra: `cpu` or `gpu`.
        text: the content of constraints.txt.
    """
    wanted = []
    for line in text.splitlines():
        pin, _, mark = (part.strip() for part in line.partition("#"))
        if pin and (not mark or mark == extra):
            wanted.append(pin)
    return wanted


def half_installed(site: Path) -> list[Distribution]:
    """Distributions that an interrupted pip left behind: no record of their files, or files missing or cut short."""
    return [found for found in distributions(path=[str(site)]) if not _complete(found)]


def _complete(found: Distribution) -> bool:
    if found.read_text("RECORD") is None or not found.metadata["Name"]:
        return False
    for file in found.files or []:
        path = Path(str(file.locate()))
        if file.suffix == ".pyc":
            continue
        if not path.is_file() or (file.size is not None and path.stat().st_size != file.size):
            return False
    return True


def repair(venv: Path) -> list[str]:
    """Make pip forget what is half installed, so that it installs it again; the names of what it forgot."""
    forgotten = []
    for site in _sites(venv):
        for found in half_installed(site):
            folder = Path(str(found.locate_file(""))) / _info_folder(found)
            forgotten.append(folder.name)
            shutil.rmtree(folder)
        for leftover in site.glob("~*"):
            shutil.rmtree(leftover, ignore_errors=True)
    return forgotten


def wrong(venv: Path, wanted: list[str]) -> list[str]:
    """The pins that the environment does not hold, whole and in that version."""
    have: dict[str, str] = {}
    broken: set[str] = set()
    for site in _sites(venv):
        have |= {_normal(found.metadata["Name"]): found.version for found in distributions(path=[str(site)])}
        broken |= {_normal(found.metadata["Name"] or "") for found in half_installed(site)}
    problems = []
    for pin in wanted:
        name, _, version = pin.partition("==")
        installed = have.get(_normal(name), "")
        if installed.split("+")[0] != version.split("+")[0] or _normal(name) in broken:
            problems.append(f"{pin} (found {installed or 'nothing'})")
    return problems


def _info_folder(found: Distribution) -> str:
    """The `.dist-info` folder; importlib.metadata has no public name for it."""
    path = getattr(found, "_path", None)
    return Path(path).name if path is not None else ""


def _sites(venv: Path) -> list[Path]:
    return sorted(venv.glob("lib/python3.*/site-packages"))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: list[str]) -> int:
    """Answer one question of the set-up script; 1 where something is missing."""
    match arguments:
        case ["pins", extra]:
            print("\n".join(pins(extra, CONSTRAINTS.read_text(encoding="utf-8"))))
        case ["repair", venv]:
            for name in repair(Path(venv)):
                print(f"half installed, will be installed again: {name}")
        case ["verify", venv, extra]:
            problems = wrong(Path(venv), pins(extra, CONSTRAINTS.read_text(encoding="utf-8")))
            print("\n".join(problems))
            return 1 if problems else 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
