"""The command line: `key=value` arguments and `--option value`."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from recipes.config import verl_defaults, yaml_io
from recipes.config.layers import Setting, Source
from recipes.config.merge import NATIVE, check_names
from recipes.config.options import CONTROLS, read_words
from recipes.errors import RecipeError


def read_arguments(arguments: Sequence[str]) -> list[Setting]:
    """The settings that arguments make, checked by name; verl's own keys come back below `verl.`.

    Raises RecipeError for an argument that is neither an option nor `key=value`, for an unknown key, or for one key
    with two values.
    """
    settings: dict[str, Setting] = {}
    for given in read_words(arguments):
        key, text, source = given.key, given.text, Source("argument", given.shown)
        setting = Setting(key, text, source)
        if verl_defaults.is_native(key):
            setting = Setting(f"{NATIVE}{key}", _plain(text), source)
        if setting.path not in CONTROLS:
            check_names([setting])
        earlier = settings.get(setting.path)
        if earlier is not None and earlier.value != setting.value:
            raise RecipeError(
                f"{key} is given twice: {earlier.value!r} and {setting.value!r}",
                where=f"{earlier.source}; {source}",
                fix="give it once",
            )
        settings[setting.path] = setting
    return list(settings.values())


def _plain(text: str) -> object:
    try:
        return yaml_io.parse(text)
    except yaml.YAMLError:
        return text
