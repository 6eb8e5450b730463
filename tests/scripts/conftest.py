"""Scripts in this process: their libraries take seconds to import."""

import importlib.util

import pytest
import typer
from typer.testing import CliRunner

from recipes.paths import ROOT


@pytest.fixture(scope="session")
def script():
    """A function from a script's name to a function that runs it with arguments and returns typer's result."""

    def load(name):
        spec = importlib.util.spec_from_file_location(f"script_{name}", ROOT / "scripts" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        app = typer.Typer()
        app.command()(module.main)

        def call(*arguments):
            return CliRunner().invoke(app, [str(argument) for argument in arguments])

        call.module = module
        return call

    return load
