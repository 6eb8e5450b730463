"""The chat template: where the assistant begins, which tokens end a response, and thinking.

transformers renders it, without the tokenizer, whose import takes seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recipes.config import Recipe
from recipes.config.layers import flatten
from recipes.errors import RecipeError
from recipes.model_files import local_model, read_json

QUESTION = {"role": "user", "content": "What is 6 times 7?"}
ANSWER = "The answer is 42."
THINKING_ROOM = 4_096
"""Tokens under which a model that thinks first is often cut off inside its thoughts."""
TEMPLATE_VARIABLES = "data.apply_chat_template_kwargs."
THINKING = f"{TEMPLATE_VARIABLES}enable_thinking"


def check_chat_template(recipe: Recipe) -> list[str]:
    """Remark on a template that hides where the assistant begins, on turns that do not stop, and on thinking.

    Raises:
        RecipeError: there is no chat template, it cannot be rendered, or no token ends a response.
    """
    from jinja2 import TemplateError

    model = recipe.worker.actor.model
    folder = local_model(str(model.tokenizer_path or model.model_path))
    if folder is None:
        return []
    template, where = _template(recipe, folder)
    if template is None:
        if not (folder / "tokenizer.json").is_file():
            return []  # a tokenizer of another kind may build its prompt in code
        raise RecipeError(
            f"{folder} has no chat template, and prompts are chat messages",
            where="chat_template of tokenizer_config.json, or chat_template.jinja",
            fix="take the model's instruct version, or set data.override_chat_template to a Jinja file",
        )
    special = _special_tokens(folder)
    verl_keys = flatten({name.lstrip("+"): value for name, value in recipe.verl.items()})
    variables = {
        name.removeprefix(TEMPLATE_VARIABLES): value
        for name, value in verl_keys.items()
        if name.startswith(TEMPLATE_VARIABLES)
    }
    variables = {**special, **variables}
    try:
        question = rendered(template, [QUESTION], False, variables)
        prompt = rendered(template, [QUESTION], True, variables)
        turn = rendered(template, [QUESTION, {"role": "assistant", "content": ANSWER}], False, variables)
    except (TemplateError, ValueError, TypeError, ArithmeticError) as error:
        raise RecipeError(
            f"the chat template cannot be rendered: {error}",
            where=where,
            fix="mend the template, or take another by data.override_chat_template",
        ) from error
    remarks = []
    if prompt == question:
        remarks.append(
            f"the chat template adds nothing where the assistant is to begin: the model may go on as the user ({where})"
        )
    return [*remarks, *_check_stop(folder, turn, special), *_check_thinking(recipe, template, prompt)]


def rendered(template: str, messages: list[dict[str, str]], begins: bool, variables: dict[str, Any]) -> str:
    """A chat as text, by what `apply_chat_template` renders with; `begins`: the assistant is to go on."""
    from transformers.utils.chat_template_utils import render_jinja_template

    texts, _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=begins, **variables)
    return str(texts[0])


def _template(recipe: Recipe, folder: Path) -> tuple[str | None, str]:
    """The template, and the file or key that it comes from."""
    if override := recipe.data.override_chat_template:
        return Path(override).read_text(encoding="utf-8"), f"data.override_chat_template: {override}"
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
    """Does the assistant's turn, as the template writes it, end with a token at which vLLM stops?"""
    stops = stop_tokens(folder, special)
    if not stops:
        if not (folder / "tokenizer.json").is_file():
            return []
        raise RecipeError(
            f"{folder} names no token that ends a response: every one would run to data.max_response_length",
            where="eos_token of tokenizer_config.json, eos_token_id of generation_config.json",
            fix="set eos_token in tokenizer_config.json to the token that ends the assistant's turn",
        )
    end = turn.partition(ANSWER)[2].strip()
    if not end or any(end.startswith(stop) for stop in stops):
        return []
    return [
        f"the chat template ends the assistant's turn with {end.split()[0]!r}, which is no stop token of the model "
        f"({', '.join(sorted(stops))}): responses may run to the limit until training teaches "
        "them to end; an instruct version stops there"
    ]


def _check_thinking(recipe: Recipe, template: str, prompt: str) -> list[str]:
    """A model such as Qwen3 thinks unless it is asked not to; its template then closes an empty thought."""
    if "enable_thinking" not in template or "</think>" in prompt.rpartition(QUESTION["content"])[2]:
        return []
    room = recipe.data.max_response_length
    if room >= THINKING_ROOM:
        return []
    return [
        f"thinking mode is on, and a response has room for {room:,} tokens: one that is cut off inside its thoughts "
        f"earns nothing; +{THINKING}=false turns it off, MAX_RESPONSE_LENGTH={2 * THINKING_ROOM} gives room"
    ]
