"""The model's weights and modules, as transformers finds them: names and shapes against config.json, and adapters."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from recipes.config import Recipe
from recipes.errors import RecipeError, counted
from recipes.files import json_sha256, write_json
from recipes.model_files import local_model, model_config, read_json, weight_files
from recipes.preflight.child import ask

LIMIT_S = 300.0
MOST_NAMED = 3
MODEL, TARGETS = "worker.actor.model.model_path", "worker.actor.model.lora.target_modules"

MISSING, ELSEWHERE, RESHAPED = "missing", "without a place in the model", "of another shape than config.json says"
UNREAD = "read by no part of the model"
MODULES = "modules"
"""Keys of what `compare` finds."""


def check_weights(recipe: Recipe) -> list[str]:
    """Raise where the weights lack a tensor that config.json asks for, or have one in another shape or place, or where
    adapters are named that no module of the model has; return remarks on tensors that no part of the model reads."""
    found = _compared(recipe)
    wrong = {how: names for how, names in found.items() if names and how != MODULES}
    texts = [f"{counted(len(names), 'tensor')} {how} ({_first(names)})" for how, names in wrong.items()]
    if wrong.keys() - {UNREAD}:
        raise recipe.error(
            f"the weights in {recipe.worker.actor.model.model_path} do not match its config.json: {'; '.join(texts)}",
            "fetch the model again, whole; or save it again under the names that its class has in transformers",
            MODEL,
        )
    if found and recipe.worker.actor.model.lora.rank:
        _check_targets(recipe, found[MODULES])
    return [f"the weights in {recipe.worker.actor.model.model_path}: {text}" for text in texts]


def _check_targets(recipe: Recipe, modules: list[str]) -> None:
    """Raise where a name of `target_modules` matches no linear module, as peft matches names."""
    targets = recipe.worker.actor.model.lora.target_modules.split(",")
    is_pattern = recipe.engine == "verl" and len(targets) == 1
    unmatched = [name for name in targets if name != "all-linear" and not _matches(name.strip(), modules, is_pattern)]
    if unmatched:
        have = sorted({name.rpartition(".")[2] for name in modules})
        raise recipe.error(
            f"no linear module of the model is named {' or '.join(unmatched)}; it has {', '.join(have)}",
            "take names from these, joined by commas, or all-linear",
            TARGETS,
        )


def _matches(target: str, modules: list[str], is_pattern: bool) -> bool:
    """A name stands for the modules whose paths end with it, a pattern for those that it matches as a whole."""
    with suppress(re.error):
        return any(
            f".{path}".endswith(f".{target}") or (is_pattern and re.fullmatch(target, path) is not None)
            for path in modules
        )
    return False


def _first(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + ", ..." * (len(names) > MOST_NAMED)


def _compared(recipe: Recipe) -> dict[str, list[str]]:
    """Return what `compare` finds in the model's folder, from the user's cache if nothing changed; empty if the model
    is on the hub and not, or not wholly, in its cache."""
    model = recipe.worker.actor.model
    folder = local_model(model.model_path)
    if folder is None or not weight_files(folder):
        return {}
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in weight_files(folder)]
    state = json_sha256([version("transformers"), model_config(folder), files])
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    known = home / "grpo-recipes" / "weights" / f"{state}.json"
    if found := read_json(known):
        return found
    try:
        found = ask(
            compare,
            str(folder),
            model.trust_remote_code,
            limit_s=LIMIT_S,
            where=f"transformers, on the weights in {folder}; {MODEL}: {recipe.source_of(MODEL)}",
            fix="give a whole model that transformers loads",
        )
    except RecipeError:
        if str(folder) == str(model.model_path):
            raise
        return {}
    with suppress(OSError):  # without a home the next start compares again
        known.parent.mkdir(parents=True, exist_ok=True)
        write_json(known, found)
    return found


def compare(folder: str, trust_remote_code: bool) -> dict[str, list[str]]:
    """Return the names of tensors that do not match, by what is wrong with them, and the paths of linear modules.

    transformers compares names and shapes in the files' headers; no data is loaded. A tensor for which the model has
    no place is `UNREAD`, such as a value head's, unless the model has its module.
    """
    import torch
    import transformers

    torch.equal = lambda *_: True  # transformers compares a tied head that the files have, too, with the embedding
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    pictures = type(config) in transformers.AutoModelForImageTextToText._model_mapping  # as verl chooses
    loader = transformers.AutoModelForImageTextToText if pictures else transformers.AutoModelForCausalLM
    model, found = loader.from_pretrained(
        folder,
        config=config,
        trust_remote_code=trust_remote_code,
        device_map="meta",
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    places = {_place(name) for name in model.state_dict()}
    beside = sorted(found["unexpected_keys"])
    return {
        MISSING: sorted(found["missing_keys"]),
        RESHAPED: [f"{name} {tuple(saved)}, not {tuple(asked)}" for name, saved, asked in found["mismatched_keys"]],
        ELSEWHERE: [name for name in beside if _place(name) in places],
        UNREAD: [name for name in beside if _place(name) not in places],
        MODULES: [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)],
    }


def _place(name: str) -> str:
    """The module of a tensor, without the numbers of layers."""
    return re.sub(r"\d+", "N", name.rpartition(".")[0])
