"""The layout of the tree and of `artifacts/`, the tree's commit, and commands and places as a user types them."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from recipes.errors import RecipeError

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"


def existing(folder: Path) -> Path:
    """The folder, or the first above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def artifacts() -> Path:
    """The folder for everything a run makes; `ARTIFACTS_DIR` moves it. Raises RecipeError if a file is in the way."""
    folder = Path(os.environ.get("ARTIFACTS_DIR") or ROOT / "artifacts").expanduser().absolute()
    if (nearest := existing(folder)).is_dir():
        return folder
    raise RecipeError(f"{nearest} is a file, not a folder", where=f"ARTIFACTS_DIR={folder}", fix="name a folder")


def in_artifacts(path: str) -> str:
    """`artifacts/...` where `ARTIFACTS_DIR` has it; any other path, and one that is there, as a shell reads it."""
    head, _, rest = path.partition("/")
    return str(artifacts() / rest) if head == "artifacts" and not Path(path).exists() else os.path.expanduser(path)


def outputs() -> Path:
    """`outputs`, which holds the custom-task kit's checkpoints; inside `ARTIFACTS_DIR` where that is set."""
    return (artifacts() if os.environ.get("ARTIFACTS_DIR") else ROOT) / "outputs"


def data_dir(task: str) -> Path:
    """`artifacts/data/<task>`, which holds `{train,test}.parquet` and their manifests."""
    return artifacts() / "data" / task


def run_dir(experiment: str) -> Path:
    """`artifacts/runs/<experiment>`, which holds the resolved configuration, metrics, rollouts and the log."""
    return artifacts() / "runs" / experiment


def checkpoint_dir(experiment: str) -> Path:
    """`artifacts/checkpoints/<experiment>`, which holds `global_step_<n>/actor/huggingface`."""
    return artifacts() / "checkpoints" / experiment


def model_dir(name: str) -> Path:
    """`artifacts/models/<name>`, a Hugging Face folder of a warm start."""
    return artifacts() / "models" / name


def split_function(location: str) -> tuple[str, str | None]:
    """`file.py:function` to file and function; the function is None where it is not given."""
    path, colon, name = location.rpartition(":")
    return (path, name) if colon and name.isidentifier() and path else (location, None)


def reward_name(location: str) -> str:
    """The name of a reward in metrics: its function's where that is given, else its file's."""
    path, function = split_function(location)
    return function or Path(path).stem


def relative_to_cwd(path: Path) -> Path:
    """A path as a user in the working folder would type it."""
    base = Path.cwd()
    return path.relative_to(base) if path.is_relative_to(base) else path


def script_command(name: str, *arguments: str) -> str:
    """Return the line that starts a script of `scripts/`, as a user in the working folder types it.

    Any Python will do, because the scripts go on with the repository's own environment (recipes/installation.py).
    """
    python = "python" if shutil.which("python") else "python3"
    return shlex.join([python, str(relative_to_cwd(ROOT / "scripts" / name)), *arguments])


def python_path() -> str:
    """PYTHONPATH for a process that imports this package: the root first and once, then the inherited entries."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(ROOT), *(part for part in inherited if part not in ("", str(ROOT)))])


def command_line() -> str:
    """The command that runs now, as it can be typed in the repository."""
    script = Path(sys.argv[0]).resolve()
    shown = script.relative_to(ROOT) if script.is_relative_to(ROOT) else Path("scripts") / script.name
    return shlex.join(["python", str(shown), *sys.argv[1:]])


def git_commit(*paths: Path) -> str:
    """The checkout's commit, with `+changes` where the paths (all by default) differ from it; `unknown` outside one."""

    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        status = [*git, "status", "--porcelain", "--untracked-files=no", "--", *map(str, paths)]
        changed = subprocess.run(status, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed else "")
