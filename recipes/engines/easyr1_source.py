"""EasyR1's source on this machine: where it is, whether it is EasyR1, and whether it is the tested commit.

EasyR1 and verl are two packages with the same name, `verl`. Only the trainer's processes have EasyR1's folder on their
path; every other process imports verl's own package.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from recipes.config.gpus import has_packed_attention
from recipes.errors import RecipeError, reported_errors
from recipes.files import whole_folder
from recipes.paths import ROOT

REPOSITORY = "https://github.com/hiyouga/EasyR1"
COMMIT = "b44b311b669bf1fd1aa2fc36f2251482ba33cb16"
"""The commit that `easyr1_compat` and the schema were made for."""
DIGEST = "bb75e2d3c5a116b219939b04499e742cf6ce43c69de4a66d6585e47a07c0fd4c"
"""SHA-256 of that commit's `verl/**/*.py`, one after the other in the order of their paths."""
VARIABLE = "EASYR1_HOME"
DEFAULT = ROOT / ".easyr1"
"""The folder into which `scripts/setup_env.sh easyr1` clones EasyR1."""
FIX = f"type: bash scripts/setup_env.sh easyr1 (it clones commit {COMMIT[:7]} of {REPOSITORY}); or set {VARIABLE}"


@dataclass(frozen=True)
class Source:
    """`home` is the folder that holds EasyR1's `verl`; `remarks` are sentences about it for the user."""

    home: Path
    remarks: tuple[str, ...] = ()


def find(environ: Mapping[str, str]) -> Source:
    """Find EasyR1's source: in `EASYR1_HOME`, else in the clone of setup_env.sh, else as this Python's package `verl`.

    Raises:
        RecipeError: there is none, or the folder is not EasyR1's or cannot be read.
    """
    if given := environ.get(VARIABLE):
        home, where = Path(given).expanduser().absolute(), f"environment variable {VARIABLE}"
    elif DEFAULT.is_dir():
        home, where = DEFAULT, str(DEFAULT)
    else:
        spec = importlib.util.find_spec("verl")
        package = (
            Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None
        )
        if package is None or _whose(package) != "EasyR1":
            other = "the `verl` of this environment is verl's own; " if package and _whose(package) == "verl" else ""
            raise RecipeError(
                f"EasyR1 is not on this machine ({other}{VARIABLE} is not set)", where="engine: easyr1", fix=FIX
            )
        home, where = package.parent, str(package)
    return Source(home, _remarks(home, where))


def _whose(package: Path) -> str:
    """Return whose package a folder is, "EasyR1" or "verl", or "" for neither. Each has a file that the other lacks."""
    if (package / "trainer" / "main_ppo.py").is_file():
        return "verl"
    return (
        "EasyR1" if (package / "trainer" / "ray_trainer.py").is_file() and (package / "protocol.py").is_file() else ""
    )


def _remarks(home: Path, where: str) -> tuple[str, ...]:
    """Return a sentence if the source is not the tested commit. Raises RecipeError for a folder that cannot be used."""
    if not home.is_dir():
        raise RecipeError(f"{home} is not a folder", where=where, fix=FIX)
    try:
        whose = _whose(home / "verl")
        digest = _digest(home) if whose == "EasyR1" else ""
    except OSError as error:
        raise RecipeError(
            f"{home} cannot be read: {error.strerror}", where=where, fix="give this user the right"
        ) from error
    if whose == "verl":
        raise RecipeError(f"{home} is verl's own source, not EasyR1's", where=where, fix=FIX)
    if not whose:
        inside = " (name the folder above `verl`)" if _whose(home) == "EasyR1" else ""
        raise RecipeError(f"{home} has no verl/trainer/ray_trainer.py: it is not EasyR1{inside}", where=where, fix=FIX)
    if digest == DIGEST:
        return ()
    return (f"{home} is not EasyR1's tested commit {COMMIT[:7]}; lines that read otherwise there stop the start",)


def _digest(home: Path) -> str:
    content = hashlib.sha256()
    for file in sorted((home / "verl").rglob("*.py"), key=lambda path: path.relative_to(home).as_posix()):
        content.update(file.read_bytes())
    return content.hexdigest()


def check(environ: Mapping[str, str]) -> list[str]:
    """Return sentences for the user before a run. Raises RecipeError if EasyR1 cannot be started."""
    source = find(environ)
    if importlib.util.find_spec("flash_attn") is None and not has_packed_attention():
        raise RecipeError(
            "EasyR1 needs flash-attn, or torch 2.11 or newer, whose own kernel then takes its place",
            where="engine: easyr1",
            fix="install flash-attn 2.8.3, or a newer torch: docs/INSTALLATION.md, EasyR1",
        )
    return list(source.remarks)


def fetch(target: Path = DEFAULT, repository: str = REPOSITORY) -> Path:
    """Clone the tested commit into `target`, completely or not at all. A clone of it that is already there is kept.

    Raises:
        RecipeError: `target` holds something else, or git or the network failed.
    """
    if target.is_dir() and not _remarks(target, str(target)):
        return target
    if target.exists():
        raise RecipeError(
            f"{target} is not EasyR1's tested commit {COMMIT[:7]}",
            where=str(target),
            fix="move it away, or set EASYR1_HOME",
        )
    with whole_folder(target) as draft:
        for words in (
            ("init", "-q"),
            ("fetch", "-q", "--depth", "1", repository, COMMIT),
            ("checkout", "-q", "FETCH_HEAD"),
        ):
            _git(draft, words, repository)
    return target


def _git(folder: Path, words: tuple[str, ...], repository: str) -> None:
    try:
        done = subprocess.run(("git", *words), cwd=folder, capture_output=True, text=True, timeout=600, check=False)
        failure = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    except (OSError, subprocess.TimeoutExpired) as error:
        failure = [str(error)]
    if failure:
        raise RecipeError(
            f"git {words[0]}: {failure[0]}",
            where=repository,
            fix=f"unpack {REPOSITORY}/archive/{COMMIT}.tar.gz yourself and set {VARIABLE} to its folder",
        )


if __name__ == "__main__":
    with reported_errors():
        home = find(os.environ).home if os.environ.get(VARIABLE) else fetch()
        print(f"EasyR1 {COMMIT[:7]}: {home}; the trainer's processes read it with ENGINE=easyr1")
