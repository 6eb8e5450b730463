"""The command `grpo-recipes` of an installed package: train, evaluate, monitor and check."""

import typer

from recipes.installation import ensure

ensure()

from recipes import launch
from recipes.errors import RecipeError, reported_errors
from recipes.evaluation.cli import main as evaluation
from recipes.paths import CONFIGS, ROOT
from recipes.preflight.cli import main as preflight
from recipes.runs.cli import app as monitor

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)
app.command("train", context_settings={"help_option_names": [], "ignore_unknown_options": True})(launch.main)
app.command("eval", help="Measure a model, compare it with its base, or probe it for signal.")(evaluation)
app.add_typer(monitor, name="monitor")
app.command("preflight", context_settings={"ignore_unknown_options": True})(preflight)


def main() -> None:
    """Run the command. It needs a clone of the repository, which holds the recipes, rewards and launchers."""
    with reported_errors():
        if not CONFIGS.is_dir():
            what, fix = f"{ROOT} has no configs", "clone the repository and run `pip install -e .` in it"
            raise RecipeError(what, where="the package, which is installed without its repository", fix=fix)
    app()
