"""`key=value` arguments."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from recipes.config import verl_defaults, yaml_io
from recipes.config.layers import Setting, Source
from recipes.config.merge import NATIVE, check_names
from recipes.errors import RecipeError

CONTROLS = ("hardware", "embedded")


def read_arguments(arguments: Sequence[str]) -> list[Setting]:
    """The settings that arguments make, checked by name; verl's own keys come back below `verl.`.

    Raises RecipeError for an argument that is not `key=value`, an unknown key, or one key with two values.
    """
    settings: dict[str, Setting] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        name = name.strip()
        if not equals or not name:
            raise RecipeError(
                f"the argument {argument!r} is not key=value", where="arguments", fix="for instance trainer.max_steps=1"
            )
        source = Source("argument", f"argument {argument}")
        setting = Setting(name, text, source)
        if verl_defaults.is_native(name):
            setting = Setting(f"{NATIVE}{name}", _plain(text), source)
        if setting.path not in CONTROLS:
            check_names([setting])
        earlier = settings.get(setting.path)
        if earlier is not None and earlier.value != setting.value:
            raise RecipeError(
                f"{name} is given twice: {earlier.value!r} and {setting.value!r}", where="arguments", fix="give it once"
            )
        settings[setting.path] = setting
    return list(settings.values())


def _plain(text: str) -> object:
    try:
        return yaml_io.parse(text)
    except yaml.YAMLError:
        return text
