"""EasyR1's source: the user's folder, and a copy with `patches/easyr1-*.patch` applied, which the trainer imports.

EasyR1 and verl are two packages with the same name, `verl`. Only the trainer's processes have the copy on their path;
every other process imports verl's own package. The user's folder is never changed.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from recipes.errors import RecipeError, reported_errors
from recipes.files import whole_folder
from recipes.paths import ROOT, artifacts

REPOSITORY = "https://github.com/hiyouga/EasyR1"
COMMIT = "b44b311b669bf1fd1aa2fc36f2251482ba33cb16"
"""The commit that the patches and the schema were made for."""
DIGEST = "bb75e2d3c5a116b219939b04499e742cf6ce43c69de4a66d6585e47a07c0fd4c"
"""SHA-256 of that commit's `verl/**/*.py`, one after the other in the order of their paths."""
PATCH, CPU_PATCH = (ROOT / "patches" / f"easyr1-{COMMIT[:7]}{suffix}.patch" for suffix in ("", "-cpu"))
VARIABLE = "EASYR1_HOME"
DEFAULT = ROOT / ".easyr1"
"""The folder into which `scripts/setup_env.sh easyr1` clones EasyR1."""
FIX = f"type: bash scripts/setup_env.sh easyr1 (it clones commit {COMMIT[:7]} of {REPOSITORY}); or set {VARIABLE}"


def find(environ: Mapping[str, str]) -> Path:
    """The folder that holds EasyR1's `verl`: `EASYR1_HOME`, or the clone of setup_env.sh.

    Raises RecipeError where the folder does not exist, or is not EasyR1's.
    """
    given = environ.get(VARIABLE)
    home = Path(given).expanduser().absolute() if given else DEFAULT
    where = f"environment variable {VARIABLE}" if given else str(DEFAULT)
    if not home.is_dir():
        what = f"{home} is not a folder" if given else f"EasyR1 is not on this machine, and {VARIABLE} is not set"
        raise RecipeError(what, where=where, fix=FIX)
    if not (home / "verl" / "trainer" / "ray_trainer.py").is_file():
        raise RecipeError(f"{home} has no verl/trainer/ray_trainer.py: it is not EasyR1", where=where, fix=FIX)
    return home


def digest(home: Path) -> str:
    """The SHA-256 of the source, as `DIGEST` is of the tested commit."""
    content = hashlib.sha256()
    for file in sorted((home / "verl").rglob("*.py"), key=lambda path: path.relative_to(home).as_posix()):
        content.update(file.read_bytes())
    return content.hexdigest()


def patched(home: Path, on_cpu: bool) -> Path:
    """The folder of the patched copy, made if missing; it is named by a hash of the source and the patches.

    Raises RecipeError where a patch does not apply, or git is not installed.
    """
    patches = (PATCH, CPU_PATCH) if on_cpu else (PATCH,)
    content = digest(home) + "".join(patch.read_text(encoding="utf-8") for patch in patches)
    target = artifacts() / "easyr1" / hashlib.sha256(content.encode()).hexdigest()[:16]
    if target.is_dir():
        return target
    with whole_folder(target) as draft:
        shutil.copytree(home / "verl", draft / "verl", ignore=shutil.ignore_patterns("__pycache__"))
        for patch in patches:
            if failure := _git(draft, "apply", str(patch)):
                what = f"patches/{patch.name} does not apply to EasyR1's source: {failure}"
                fix = f"bash scripts/setup_env.sh easyr1, without {VARIABLE}: it clones commit {COMMIT[:7]}"
                raise RecipeError(what, where=str(home), fix=fix)
    return target


def _git(folder: Path, *words: str) -> str:
    """Run git in a folder as if no repository were above it; return the first line of its error, or an empty text."""
    environ = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    try:
        done = subprocess.run(
            ("git", *words), cwd=folder, env=environ, capture_output=True, text=True, timeout=600, check=False
        )
    except FileNotFoundError as error:
        fix = "apt-get install git: it applies patches/easyr1-*.patch"
        raise RecipeError("git is not installed", where="engine: easyr1", fix=fix) from error
    except subprocess.TimeoutExpired as error:
        return str(error)
    return (done.stderr.strip().splitlines() or ["git failed"])[0] if done.returncode else ""


def check(environ: Mapping[str, str], on_cpu: bool) -> list[str]:
    """Return remarks before a run. Raises RecipeError if EasyR1 cannot be started."""
    home = find(environ)
    patched(home, on_cpu)
    if digest(home) == DIGEST:
        return []
    return [f"{home} is not EasyR1's tested commit {COMMIT[:7]}; the patches apply to it all the same"]


def fetch(target: Path = DEFAULT, repository: str = REPOSITORY) -> Path:
    """Clone the tested commit into `target`, completely or not at all. An existing clone of that commit is kept.

    Raises RecipeError where `target` holds something else, or git or the network failed.
    """
    if target.is_dir() and digest(target) == DIGEST:
        return target
    if target.exists():
        what, fix = f"{target} is not EasyR1's tested commit {COMMIT[:7]}", f"move it away, or set {VARIABLE}"
        raise RecipeError(what, where=str(target), fix=fix)
    with whole_folder(target) as draft:
        fetched = ("fetch", "-q", "--depth", "1", repository, COMMIT)
        for words in (("init", "-q"), fetched, ("checkout", "-q", "FETCH_HEAD")):
            if failure := _git(draft, *words):
                fix = f"unpack {REPOSITORY}/archive/{COMMIT}.tar.gz yourself and set {VARIABLE} to its folder"
                raise RecipeError(f"git {words[0]}: {failure}", where=repository, fix=fix)
    return target


if __name__ == "__main__":
    with reported_errors():
        source = find(os.environ) if os.environ.get(VARIABLE) else fetch()
        for kind in (False, True):
            patched(source, on_cpu=kind)
        print(f"EasyR1 {COMMIT[:7]}: {source}, with patches/easyr1-*.patch in {patched(source, False).parent}")
