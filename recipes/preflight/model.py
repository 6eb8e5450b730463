"""The model: its files, and its chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipes.config import PathKey, Recipe, path_keys
from recipes.data.lengths import chat_tokenizer, tokenizer_of
from recipes.engines.verl.translation import native
from recipes.errors import RecipeError
from recipes.model_files import gguf_file, local_model, model_config, positions, read_json, weight_files
from recipes.paths import model_dir

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
POINTER_BYTES = 1024
"""A file of weights that is smaller is git-lfs's pointer to them."""


def check_model(recipe: Recipe) -> list[str]:
    """Raise where the model, or what stands in for its tokenizer, is not there, is not a model, or is too short."""
    remarks = []
    for key in path_keys(recipe):
        if key.kind == "model":
            _refuse_gguf(recipe, key)
            if not key.on_hub:
                _check_folder(recipe, key)
            elif not local_model(key.path):
                remarks.append(f"the model {key.path} is not in the hub's cache yet: its prompts are not counted")
    _check_positions(recipe)
    return remarks


def _refuse_gguf(recipe: Recipe, key: PathKey) -> None:
    """Raise for weights in GGUF, which llama.cpp runs and no trainer trains."""
    if gguf_file(key.path) is None and not (key.on_hub and "gguf" in key.path.lower()):
        return
    raise recipe.error(
        f"{key.path} has its weights in GGUF, which cannot be trained",
        "name the model that the GGUF was made from: a folder with config.json, *.safetensors and the tokenizer",
        key.key,
    )


def _check_folder(recipe: Recipe, key: PathKey) -> None:
    folder, file = Path(key.path), Path(key.path) / "config.json"

    def error(what: str, fix: str) -> RecipeError:
        return recipe.error(what, fix, key.key)

    if not key.key.endswith("tokenizer_path"):
        weights = weight_files(folder)
        if not folder.exists():
            fix = "set MODEL_PATH to a folder or a hub's name"
            if folder.parent == model_dir("any").parent:
                fix = f"make it: MODEL_PATH=<the model to start from> bash scripts/sft.sh {recipe.name}; or {fix}"
            raise error(f"the model {folder} does not exist", fix)
        if not model_config(folder).get("architectures"):
            what = "is missing" if not file.is_file() else "is no JSON object, or names no architecture"
            raise error(f"{folder} is not a model: config.json {what}", "give the folder of a causal language model")
        if not weights:
            raise error(f"{folder} has no weights (*.safetensors)", "fetch the model again, whole")
        if small := [each for each in weights if each.stat().st_size < POINTER_BYTES]:
            raise error(f"{small[0]} is too small to hold weights", "fetch it again: `git lfs pull` if it came by git")
    if not _has_tokenizer(folder):
        raise error(f"{folder} has no tokenizer", "put the model's tokenizer files there")


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def _check_positions(recipe: Recipe) -> None:
    """Prompt and response must fit the positions that the model knows (vLLM refuses only after minutes)."""
    known = positions(local_model(recipe.worker.actor.model.model_path))
    if known is None or recipe.longest <= known:
        return
    raise recipe.error(
        f"prompt and response may have {recipe.longest} tokens together, but the model has positions for {known}",
        "lower MAX_PROMPT_LENGTH or MAX_RESPONSE_LENGTH, or take a model with a longer context",
        *("data.max_prompt_length", "data.max_response_length"),
    )


QUESTION = {"role": "user", "content": "What is 6 times 7?"}
ANSWER = {"role": "assistant", "content": "The answer is 42."}
TEMPLATE_VARIABLES = "data.apply_chat_template_kwargs."


def check_chat_template(recipe: Recipe) -> list[str]:
    """Remark on turns that do not stop.

    Raises:
        RecipeError: there is no chat template, it cannot be rendered, or no token ends a response.
    """
    from jinja2 import TemplateError

    name, override = tokenizer_of(recipe)
    folder = local_model(name)
    if folder is None or not _has_tokenizer(folder):
        return []  # `check_model` tells which of the two is an error
    trusts = recipe.worker.actor.model.trust_remote_code
    tokenizer = chat_tokenizer(str(folder), override, trust_remote_code=trusts)
    own = native(recipe)
    given = {key.removeprefix(TEMPLATE_VARIABLES): own[key] for key in own if key.startswith(TEMPLATE_VARIABLES)}
    try:
        tokenizer.apply_chat_template([QUESTION], tokenize=False, add_generation_prompt=True, **given)
        turn = tokenizer.apply_chat_template([QUESTION, ANSWER], tokenize=False, **given)
    except (TemplateError, ValueError, TypeError, ArithmeticError) as error:
        raise RecipeError(
            f"the chat template cannot be rendered: {error}",
            where="data.override_chat_template" if override else str(folder),
            fix="mend the template, or take another by data.override_chat_template",
        ) from error
    return _check_stop(folder, turn, tokenizer)


def _check_stop(folder: Path, turn: str, tokenizer: Any) -> list[str]:
    """Check that the assistant's turn, as the template writes it, ends with a token at which vLLM stops."""
    ids = [tokenizer.eos_token_id]
    for name in ("generation_config.json", "config.json"):
        eos = read_json(folder / name).get("eos_token_id")
        ids += eos if isinstance(eos, list) else [eos]
    stops = {tokenizer.convert_ids_to_tokens(each) for each in ids if each is not None} - {None}
    if not stops:
        raise RecipeError(
            f"{folder} names no token that ends a response: every one would run to data.max_response_length",
            where="eos_token of tokenizer_config.json, eos_token_id of generation_config.json",
            fix="set eos_token in tokenizer_config.json to the token that ends the assistant's turn",
        )
    end = turn.partition(ANSWER["content"])[2].strip()
    if not end or any(end.startswith(stop) for stop in stops):
        return []
    return [
        f"the chat template ends the assistant's turn with {end.split()[0]!r}, which is no stop token of the model "
        f"({', '.join(sorted(stops))}): responses may run to the limit until training teaches "
        "them to end; an instruct version stops there"
    ]
