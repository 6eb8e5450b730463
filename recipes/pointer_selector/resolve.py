"""From layers to a resolved recipe: file, hardware, environment, arguments; the later one wins."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from recipes.config import machine, text
from recipes.config.layers import DEFAULT, Setting, Source, flatten, nest
from recipes.config.machine import kind_of_machine
from recipes.config.schema.field import describe_type, leaves, sections
from recipes.config.text import did_you_mean, parse_as
from recipes.config.variables import Variable, read_settings
from recipes.errors import RecipeError
from recipes.paths import CONFIGS, ROOT, artifacts
from recipes.pointer_selector.config import PointerRecipe

RECIPE = CONFIGS / "pointer_selector.yaml"
ENGINE = "pointer_selector"
"""What `engine` says in the file, since no other trainer can run this recipe."""
VARIABLES: tuple[Variable, ...] = (
    Variable("RCE_EPOCHS", "rce.epochs"),
    Variable("GRPO_EPOCHS", "grpo.epochs"),
    Variable("BATCH_SIZE", "data.batch_size"),
    Variable("RCE_LR", "rce.lr"),
    Variable("GRPO_LR", "grpo.lr"),
    Variable("KL_BETA", "grpo.kl.beta"),
    Variable("REWARD_ALPHA", "reward.alpha"),
    Variable("REWARD_BETA", "reward.beta"),
    Variable("REWARD_MODE", "reward.mode"),
    Variable("NUM_LAYERS", "policy.layers"),
    Variable("SHOT_NUM", "data.shot_num"),
    Variable("EARLY_STOP_PATIENCE", "trainer.early_stop_patience"),
    Variable("SEED", "trainer.seed"),
    Variable("CANDIDATES", "data.candidates"),
    Variable("QUERY_EMBEDDINGS", "data.query_embeddings"),
    Variable("CANDIDATE_EMBEDDINGS", "data.candidate_embeddings"),
    Variable("EXPERIMENT_NAME", "trainer.experiment_name"),
    Variable("PROJECT_NAME", "trainer.project_name"),
    Variable("LOGGER", "trainer.logger"),
    Variable("RESUME", "trainer.resume"),
)
"""The environment variables, in the form of the table that the other recipes share."""


def resolve(
    arguments: Sequence[str] = (), *, environ: Mapping[str, str] = os.environ, path: Path = RECIPE
) -> PointerRecipe:
    """The recipe after all layers.

    Args:
        arguments: `key=value`, the last layer.
        environ: where variables are read; `HARDWARE` (cpu or gpu) makes the second layer.
        path: the first layer.

    Raises:
        RecipeError: an unknown key or variable, or a wrong type; names the key and the layer.
    """
    shown = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    tree = text.read(path, shown)
    if tree.pop("engine", ENGINE) != ENGINE:
        raise RecipeError("this recipe is for another engine", where=shown, fix=f"engine: {ENGINE}")
    settings = [Setting(key, value, Source("recipe", shown)) for key, value in flatten(tree).items()]
    settings += [*_hardware(environ), *read_settings(environ, VARIABLES), *_arguments(arguments)]
    values, sources = _merged(settings)
    asked_loggers = "trainer.logger" in sources and sources["trainer.logger"].by_user
    recipe = _validated(values, sources)
    values["trainer.logger"] = machine.chosen(recipe.trainer.logger, asked_loggers, environ)
    for key, leaf in leaves(PointerRecipe).items():
        if leaf.info.path and values.get(key):
            values[key] = _absolute(values[key], sources[key].by_user)
    return _validated(values, sources)


def changed(recipe: PointerRecipe, values: Mapping[str, Any]) -> PointerRecipe:
    """The recipe with some keys, by dotted path, set to other values."""
    source = Source("argument", "changed by the program")
    merged, sources = _merged([Setting(k, v, source) for k, v in {**flatten(recipe.model_dump()), **values}.items()])
    return _validated(merged, sources)


def to_yaml(recipe: PointerRecipe) -> str:
    """The resolved recipe as a file that resolves to itself."""
    return text.dump({"engine": ENGINE, **recipe.model_dump()})


def _hardware(environ: Mapping[str, str]) -> list[Setting]:
    """HARDWARE names the device; without it the trainer takes a GPU if torch sees one."""
    asked = environ.get("HARDWARE", "").strip()
    if not asked:
        return []
    kind = kind_of_machine(asked, f"variable HARDWARE={asked}", environ)
    return [Setting("trainer.device", "cuda" if kind == "gpu" else "cpu", Source("hardware", f"HARDWARE={asked}"))]


def _arguments(arguments: Sequence[str]) -> list[Setting]:
    settings: dict[str, Setting] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals or not name:
            raise RecipeError(
                f"the argument {argument!r} is not key=value", where="arguments", fix="for instance rce.epochs=3"
            )
        if name in settings and settings[name].value != text:
            raise RecipeError(f"{name} is given twice, with two values", where="arguments", fix="give it once")
        settings[name] = Setting(name, text, Source("argument", f"argument {argument}"))
    return list(settings.values())


def _merged(settings: Iterable[Setting]) -> tuple[dict[str, Any], dict[str, Source]]:
    known, groups = leaves(PointerRecipe), sections(PointerRecipe)
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for setting in settings:
        if setting.path in groups:
            if setting.value in (None, {}):
                continue
            raise RecipeError(f"{setting.path} is a group of keys, not a value", where=setting.source.where)
        if setting.path not in known:
            raise RecipeError(
                f"unknown key {setting.path}",
                where=setting.source.where,
                fix=did_you_mean(setting.path, known) or "see docs/POINTER_SELECTOR.md for every key",
            )
        is_text = setting.source.by_user and isinstance(setting.value, str)
        annotation = known[setting.path].field.annotation
        values[setting.path] = parse_as(setting.value, annotation) if is_text else setting.value
        sources[setting.path] = setting.source
    return values, sources


def _validated(values: Mapping[str, Any], sources: Mapping[str, Source]) -> PointerRecipe:
    try:
        return PointerRecipe.model_validate(nest(values))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        parts = [str(part) for part in detail["loc"]]
        known = leaves(PointerRecipe)
        path = next((p for n in range(len(parts), 0, -1) if (p := ".".join(parts[:n])) in known), ".".join(parts))
        wanted = describe_type(known[path].field.annotation) if path in known else detail["msg"]
        bound = f" ({detail['msg']})" if "than" in detail["type"] else ""
        raise RecipeError(
            f"{path} is {detail['input']!r}, expected {wanted}{bound}",
            where=sources.get(path, DEFAULT).where,
            fix=did_you_mean(str(detail["input"]), wanted.removeprefix("one of ").split(", ")),
        ) from error


def _absolute(text: str, by_user: bool) -> str:
    """`artifacts/...` is meant from where artifacts are, others from the working folder or the repository's root."""
    path = Path(text).expanduser()
    if path.is_absolute():
        return str(path)
    if path.parts[:1] == ("artifacts",):
        return str(artifacts().joinpath(*path.parts[1:]))
    return str((Path.cwd() if by_user and (Path.cwd() / path).exists() else ROOT) / path)
