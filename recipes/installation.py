"""The environment: what scripts/setup_env.sh asks about it, and which Python a script needs.

Standard library only, since it runs before anything is installed:
`python -m recipes.installation {pins EXTRA | sources | repair VENV | verify VENV EXTRA | start MODULE ARGUMENT ...}`.
"""

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError, reported_errors
from recipes.paths import ROOT

CONSTRAINTS = ROOT / "constraints.txt"
SITE = "lib/python3.*/site-packages"


def pins(extra: str, text: str) -> list[str]:
    """The `name==version` lines that hold for an extra, `cpu` or `gpu`; constraints.txt explains its marks."""
    lines = [[part.strip() for part in line.partition("#")] for line in text.splitlines()]
    return [pin for pin, _, mark in lines if pin and mark in ("", extra)]


SOURCES = ("index-url", "extra-index-url", "find-links", "no-index")


def sources(listing: str) -> list[str]:
    """The indexes and folders that pip is configured with, as options that `uv pip` takes too.

    `listing` is what `pip config list` prints: `SECTION.NAME='VALUE VALUE'` on each line.
    """
    chosen = {}
    for layer in ("global.", "install.", ":env:."):  # the later wins
        for line in listing.splitlines():
            name, _, value = line.removeprefix(layer).partition("=")
            if line.startswith(layer) and name in SOURCES:
                chosen[name] = ast.literal_eval(value).split()
    if chosen.pop("no-index", ["0"])[0].lower() in ("1", "true", "yes", "on"):
        return ["--no-index", *(f"--find-links={each}" for each in chosen.get("find-links", ()))]
    return [f"--{name}={each}" for name, values in chosen.items() for each in values]


def is_complete(package: Distribution) -> bool:
    """Return whether a package is whole: it has a record of its files, and none of them is missing or cut short."""
    if not package.metadata["Name"]:
        return False
    if package.read_text("RECORD") is None:  # Debian's pip, without `wheel`, has another record of what it builds
        installed = (package.read_text("installed-files.txt") or "").splitlines()
        there = [(_record(package) / file).exists() for file in installed if not file.endswith(".pyc")]
        return bool(there) and all(there)
    files = [(Path(str(file.locate())), file.size) for file in package.files or [] if file.suffix != ".pyc"]
    return all(path.is_file() and size in (None, path.stat().st_size) for path, size in files)


def repair(venv: Path) -> list[str]:
    """Remove pip's records of half-installed packages, so that pip installs these again; return the records' names."""
    forgotten = [_record(package) for package in _packages(venv) if not is_complete(package)]
    for folder in forgotten:
        shutil.rmtree(folder)
    for leftover in venv.glob(f"{SITE}/~*"):
        shutil.rmtree(leftover, ignore_errors=True)
    return [folder.name for folder in forgotten]


def wrong(venv: Path, wanted: list[str]) -> list[str]:
    """Return the pins that the environment lacks, or has only in part or in another version."""
    whole = {_normal(package.metadata["Name"]): package.version for package in _packages(venv) if is_complete(package)}
    problems = []
    for pin in wanted:
        name, _, version = pin.partition("==")
        installed = whole.get(_normal(name), "nothing whole")
        if installed.split("+")[0] != version.split("+")[0]:
            problems.append(f"{pin} (found {installed})")
    return problems


def _packages(venv: Path) -> list[Distribution]:
    return list(distributions(path=[str(site) for site in sorted(venv.glob(SITE))]))


def _record(package: Distribution) -> Path:
    return Path(str(vars(package)["_path"]))  # its .dist-info; importlib.metadata has no public name for it


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


ENVIRONMENTS = (".venv", ".venv.cpu", ".venv.gpu")
"""Environments that scripts/setup_env.sh makes; `.venv` is the one for this machine's hardware."""
NEEDED = ("typer", "omegaconf", "pydantic", "pyarrow", "psutil")
"""Packages that the scripts import; a Python outside these environments rarely has all of them."""


def _end(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    if issubclass(kind, KeyboardInterrupt):  # Python ends by the signal: 130 in a shell
        print("stopped", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def ensure() -> None:
    """Return where the packages are there; otherwise start the same command again with the Python that has them.

    Where the set-up has not been run the process ends with exit code 2 and a message. Ctrl-C is answered with one line
    from here on: imports take seconds.
    """
    sys.excepthook = _end
    if all(find_spec(name) is not None for name in NEEDED):
        return
    for name in ENVIRONMENTS:
        python = ROOT / name / "bin" / "python"
        if (ROOT / name / ".complete").is_file() and Path(sys.prefix).resolve() != (ROOT / name).resolve():
            os.execv(python, [str(python), *sys.orig_argv[1:]])
    with reported_errors():
        fix = "bash scripts/setup_env.sh, which makes .venv; then the same command again"
        raise RecipeError("this Python lacks the packages of this repository", where=sys.executable, fix=fix)


def main(arguments: list[str]) -> int:
    """Answer one question of the set-up script; returns the exit code: 1 where a pin is not met, 2 for wrong usage."""
    # No `match`: scripts read this module with the system's Python, to say that it is too old.
    question, given = arguments[0] if arguments else "", arguments[1:]
    if question == "pins" and len(given) == 1:
        print("\n".join(pins(given[0], CONSTRAINTS.read_text(encoding="utf-8"))))
    elif question == "sources" and not given:
        listing = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
        for option in sources(listing.stdout):
            print(option)
    elif question == "repair" and len(given) == 1:
        for name in repair(Path(given[0])):
            print(f"half installed, will be installed again: {name}")
    elif question == "verify" and len(given) == 2:
        problems = wrong(Path(given[0]), pins(given[1], CONSTRAINTS.read_text(encoding="utf-8")))
        print("\n".join(problems))
        return 1 if problems else 0
    elif question == "start" and given:
        sys.excepthook, sys.argv = _end, given
        runpy.run_module(given[0], run_name="__main__", alter_sys=True)
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
