"""The model: its files, its chat template, and its weights and modules as transformers finds them."""

import os
import re
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from recipes.config import PathKey, Recipe, path_keys
from recipes.config.accounting import divisors
from recipes.config.names import template_arguments
from recipes.config.resolve import MODEL
from recipes.config.schema import module_names
from recipes.errors import RecipeError, counted
from recipes.files import json_sha256, write_json
from recipes.memory.shape import published_config
from recipes.model_files import (
    TOKENIZERS,
    gguf_file,
    indivisible,
    local_model,
    model_config,
    positions,
    read_json,
    weight_files,
)
from recipes.paths import model_dir
from recipes.preflight.child import ask

TARGETS = "worker.actor.model.lora.target_modules"
POINTER_BYTES = 1024
"""A smaller weight file is a git-lfs pointer."""


def check_model(recipe: Recipe) -> list[str]:
    """Raise where the model or its tokenizer is missing or unusable; return remarks."""
    remarks = []
    if not recipe.worker.actor.model.model_path:
        raise recipe.error(
            "no model is given", "set MODEL_PATH to a folder or a hub's name", "worker.actor.model.model_path"
        )
    for key in path_keys(recipe):
        if key.kind == "model":
            if wrong := _wrong(recipe, key):
                raise recipe.error(*wrong, key.key)
            if key.on_hub and not local_model(key.path):
                remarks.append(f"the model {key.path} is not in the hub's cache yet: its prompts are not counted")
    return remarks


def check_context(recipe: Recipe) -> list[str]:
    """Raise where the model's context is too short, or an adapter cannot become part of the model that is saved."""
    model = recipe.worker.actor.model
    known = positions(local_model(model.model_path))
    if known is not None and recipe.longest > known:  # which vLLM refuses only after minutes
        what = f"prompt and response may have {recipe.longest} tokens together, but the model has positions for {known}"
        fix = "lower MAX_PROMPT_LENGTH or MAX_RESPONSE_LENGTH, or take a model with a longer context"
        raise recipe.error(what, fix, *("data.max_prompt_length", "data.max_response_length"))
    named = sorted({"embed_tokens", "lm_head"} & set(module_names(model.lora.target_modules)))  # which may be tied
    if model.lora.rank and named and recipe.trainer.save_hf_model:
        what = f"an adapter of {named[0]} cannot become part of the model that is saved"
        raise recipe.error(what, f"leave {named[0]} out, or set trainer.save_hf_model to false", TARGETS)
    return []


def _wrong(recipe: Recipe, key: PathKey) -> tuple[str, str] | None:
    """The mistake in a model's or tokenizer's folder, and its fix; None where there is none."""
    folder = Path(key.path)
    if gguf_file(key.path) is not None or (key.on_hub and "gguf" in key.path.lower()):
        fix = "name the model that the GGUF was made from: a folder with config.json, *.safetensors and the tokenizer"
        return f"{folder} has its weights in GGUF, which cannot be trained", fix
    if key.on_hub:
        named = re.fullmatch(r"https?://[^/]+/([^/]+/[^/]+).*", key.path)
        return (f"{key.path} is a page, and no model", f"write {named[1]}, its name on the hub") if named else None
    if not key.key.endswith("tokenizer_path"):
        if not folder.exists():
            fix = "set MODEL_PATH to a folder or a hub's name"
            if folder.parent == model_dir("any").parent:
                fix = f"make it: MODEL_PATH=<the model to start from> bash scripts/sft.sh {recipe.name}; or {fix}"
            return f"the model {folder} does not exist", fix
        if not model_config(folder).get("architectures"):
            what = "is no JSON object, or names no architecture" if (folder / "config.json").is_file() else "is missing"
            return f"{folder} is not a model: config.json {what}", "give the folder of a causal language model"
        weights = weight_files(folder)
        if not weights:
            return f"{folder} has no weights (*.safetensors)", "fetch the model again, whole"
        if small := [each for each in weights if each.stat().st_size < POINTER_BYTES]:
            return f"{small[0]} is too small to hold weights", "fetch it again: `git lfs pull` if it came by git"
    if not any((folder / name).is_file() for name in TOKENIZERS):
        return f"{folder} has no tokenizer", "put the model's tokenizer files there"
    return None


def fast_tokenizer(recipe: Recipe) -> Path | None:
    """The folder with the recipe's `tokenizer.json`; None where it is not on this machine, or of another kind."""
    model = recipe.worker.actor.model
    folder = local_model(str(model.tokenizer_path or model.model_path))
    return folder if folder and (folder / "tokenizer.json").is_file() else None


def given_template(recipe: Recipe) -> str | None:
    """The text of the chat template that stands in for the model's own; None where none does."""
    file = recipe.data.override_chat_template
    return Path(file).read_text(encoding="utf-8") if file else None


def check_tensor_parallel(recipe: Recipe) -> list[str]:
    """Raise where vLLM cannot divide the model among the GPUs of an engine, which it finds after a minute."""
    key, path = "worker.rollout.tensor_parallel_size", recipe.worker.actor.model.model_path or ""
    config, size = model_config(local_model(path)) or published_config(path), recipe.worker.rollout.tensor_parallel_size
    if whole := indivisible(config, size):
        fitting = [str(each) for each in divisors(recipe.n_gpus) if not indivisible(config, each)]
        what = f"{key} is {size}, which does not divide the model's {whole} ({path})"
        raise recipe.error(what, f"set it to {' or '.join(fitting)}", key)
    return []


QUESTION = {"role": "user", "content": "What is 6 times 7?"}
ANSWER = "The answer is 42."


def check_chat_template(recipe: Recipe) -> list[str]:
    """Remark on a turn without a stop token, and arguments that are not read. The tokenizer's import takes seconds.

    Raises RecipeError where there is no chat template, it cannot be rendered, or no token ends a response.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    model = recipe.worker.actor.model
    folder = local_model(str(model.tokenizer_path or model.model_path))
    if folder is None:
        return []
    template, where = _template(recipe, folder)
    if template is None:
        if not (folder / "tokenizer.json").is_file():
            return []  # a tokenizer of another kind may build its prompt in code
        what = f"{folder} has no chat template, and prompts are chat messages"
        fix = "take the model's instruct version, or set data.override_chat_template to a Jinja file"
        raise RecipeError(what, where="chat_template of tokenizer_config.json, or chat_template.jinja", fix=fix)
    special, arguments = _special_tokens(folder), template_arguments(recipe)
    given = {**special, **arguments}
    whole = [QUESTION, {"role": "assistant", "content": ANSWER}]
    try:
        render_jinja_template([[QUESTION]], chat_template=template, add_generation_prompt=True, **given)
        (turn,), _ = render_jinja_template([whole], chat_template=template, **given)
    except (TemplateError, ValueError, TypeError, ArithmeticError) as error:
        fix = "mend the template, or take another by data.override_chat_template"
        raise RecipeError(f"the chat template cannot be rendered: {error}", where=where, fix=fix) from error
    chosen = {path.rpartition(".")[2] for path, source in recipe.sources.items() if source.by_user}
    unread = [f"{key} has no effect: not in {where}" for key in arguments if key in chosen and key not in template]
    return [*unread, *_check_stop(folder, turn, special)]


def _template(recipe: Recipe, folder: Path) -> tuple[str | None, str]:
    """The template, and the file or key that it comes from."""
    if given := given_template(recipe):
        return given, f"data.override_chat_template: {recipe.data.override_chat_template}"
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8"), str(file)
    file = folder / "tokenizer_config.json"
    template = read_json(file).get("chat_template")
    if isinstance(template, list):
        template = next((each["template"] for each in template if each.get("name") == "default"), None)
    return template, f"chat_template in {file}"


def _special_tokens(folder: Path) -> dict[str, str]:
    """`eos_token`, `pad_token`, `bos_token` and their like, as text."""
    tokens = {**read_json(folder / "special_tokens_map.json"), **read_json(folder / "tokenizer_config.json")}
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in tokens.items()}
    return {name: text for name, text in texts.items() if name.endswith("_token") and isinstance(text, str)}


def stop_tokens(folder: Path, special: dict[str, str]) -> set[str]:
    """The tokens, as text, at which vLLM ends a response: the tokenizer's and those of the generation settings."""
    ids: list[Any] = []
    for name in ("generation_config.json", "config.json"):
        eos = read_json(folder / name).get("eos_token_id")
        ids += eos if isinstance(eos, list) else [eos]
    added = {token["id"]: token["content"] for token in read_json(folder / "tokenizer.json").get("added_tokens", [])}
    return {text for text in (special.get("eos_token"), *(added.get(each) for each in ids)) if text}


def _check_stop(folder: Path, turn: str, special: dict[str, str]) -> list[str]:
    """Check that the assistant's turn, as the template writes it, ends with a token at which vLLM stops."""
    stops = stop_tokens(folder, special)
    if not stops:
        if not (folder / "tokenizer.json").is_file():
            return []
        what = f"{folder} names no token that ends a response: every one would run to data.max_response_length"
        where = "eos_token of tokenizer_config.json, eos_token_id of generation_config.json"
        fix = "set eos_token in tokenizer_config.json to the token that ends the assistant's turn"
        raise RecipeError(what, where=where, fix=fix)
    end = turn.partition(ANSWER)[2].strip()
    if not end or any(end.startswith(stop) for stop in stops):
        return []
    return [
        f"the chat template ends the assistant's turn with {end.split()[0]!r}, which is no stop token of the model "
        f"({', '.join(sorted(stops))}): responses may run to the limit until training teaches "
        "them to end; an instruct version stops there"
    ]


LIMIT_S = 300.0
MOST_NAMED = 3
MISSING, ELSEWHERE, RESHAPED = "missing", "without a place in the model", "of another shape than config.json says"
UNREAD = "read by no part of the model"
MODULES = "modules"
"""Keys of the findings of `compare`."""


def check_weights(recipe: Recipe) -> list[str]:
    """Raise where the weights lack a tensor that config.json asks for, or have one in another shape or place, or where
    adapters are named that no module of the model has; return remarks on tensors that no part of the model reads."""
    found, name = _compared(recipe), recipe.worker.actor.model.model_path
    wrong = {how: names for how, names in found.items() if names and how != MODULES}
    texts = [
        f"{counted(len(names), 'tensor')} {how} ({', '.join(names[:MOST_NAMED])}{', ...' * (len(names) > MOST_NAMED)})"
        for how, names in wrong.items()
    ]
    if wrong.keys() - {UNREAD}:
        what = f"the weights in {name} do not match its config.json: {'; '.join(texts)}"
        fix = "fetch the model again, whole; or save it again under the names that its class has in transformers"
        raise recipe.error(what, fix, MODEL)
    if found and recipe.worker.actor.model.lora.rank:
        _check_targets(recipe, found[MODULES])
    return [f"the weights in {name}: {text}" for text in texts]


def _check_targets(recipe: Recipe, modules: list[str]) -> None:
    """Raise where a name of `target_modules` matches no linear module, as peft matches names.

    A name stands for the modules whose paths end with it, a pattern for those that it matches as a whole.
    """
    named = module_names(recipe.worker.actor.model.lora.target_modules)
    targets, is_pattern = ([named], recipe.engine == "verl") if isinstance(named, str) else (named, False)

    def is_matched(name: str) -> bool:
        with suppress(re.error):
            return name == "all-linear" or any(
                f".{path}".endswith(f".{name}") or (is_pattern and re.fullmatch(name, path)) for path in modules
            )
        return False

    if unmatched := [name for name in targets if not is_matched(name)]:
        have = sorted({name.rpartition(".")[2] for name in modules})
        what = f"no linear module of the model is named {' or '.join(unmatched)}; it has {', '.join(have)}"
        raise recipe.error(what, "take names from these, joined by commas, or all-linear", TARGETS)


def _compared(recipe: Recipe) -> dict[str, list[str]]:
    """The findings of `compare`, from the user's cache if nothing changed; none for a hub's model not wholly here."""
    model = recipe.worker.actor.model
    folder = local_model(model.model_path)
    if folder is None or not weight_files(folder):
        return {}
    code = sorted(folder.glob("*.py")) if model.trust_remote_code else []
    files = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in [*weight_files(folder), *code]]
    state = json_sha256([version("transformers"), model_config(folder), model.trust_remote_code, files])
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
    with suppress(RecipeError):  # without a home the next start compares again
        write_json(known, found)
    return found


def compare(folder: str, trust_remote_code: bool) -> dict[str, list[str]]:
    """The names of tensors that do not match, by what is wrong with them, and the paths of linear modules.

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
