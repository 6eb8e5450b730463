"""The chat messages of a row: the record's, with a system message and a template around the question."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recipes.errors import RecipeError
from recipes.tasks.custom.record import Record
from recipes.tasks.rows import IMAGE_MARK

if TYPE_CHECKING:
    from jinja2 import Template

VARIABLES = ("content", "prompt", "data_source")
"""What a template may use; `content` is EasyR1's name for the question, and `prompt` is the same."""


class Prompts:
    """Makes chat messages.

    Args:
        system_prompt: text file whose text becomes the system message of records that have none of their own.
        template: Jinja file that wraps the question: `{{ content }} Reason step by step.`

    Raises:
        RecipeError: a file that cannot be read, or a template with a mistake.
    """

    def __init__(self, system_prompt: Path | None = None, template: Path | None = None) -> None:
        self._system = _text(system_prompt, "data.system_prompt") if system_prompt else ""
        self._template = _compiled(template) if template else None
        self._template_file = template

    def messages(self, record: Record) -> list[dict[str, str]]:
        """System message, where there is one, and the question."""
        question = record.question
        if record.images and IMAGE_MARK not in question:
            question = IMAGE_MARK * len(record.images) + question
        if self._template is not None:
            question = self._rendered(question, record)
        others = [{"role": role, "content": content} for role, content in record.messages[:-1]]
        if self._system and not others:
            others = [{"role": "system", "content": self._system}]
        return [*others, {"role": "user", "content": question}]

    def _rendered(self, question: str, record: Record) -> str:
        from jinja2 import TemplateError

        assert self._template is not None
        try:
            text = self._template.render(content=question, prompt=question, data_source=record.data_source)
        except (TemplateError, TypeError) as error:
            where = f"{self._template_file}, for {record.place}"
            raise RecipeError(f"the template fails: {error}", where=where, fix="mend it") from error
        if not text.strip():
            raise RecipeError("the template leaves nothing of this prompt", where=str(record.place), fix="mend it")
        return text


def _text(path: Path, key: str) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} cannot be read: {error}", where=key, fix="give a text file in UTF-8") from error
    if not text:
        raise RecipeError(f"{path} is empty", where=key, fix=f"put text into it, or leave {key} out")
    return text


def _compiled(path: Path) -> Template:
    from jinja2 import StrictUndefined, TemplateSyntaxError, meta
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    source = _text(path, "data.format_prompt")
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=False)
    try:
        used = meta.find_undeclared_variables(environment.parse(source))
    except TemplateSyntaxError as error:
        raise RecipeError(
            f"the template is not Jinja: {error.message}", where=f"{path}, line {error.lineno}", fix="mend it"
        ) from error
    if unknown := sorted(used - set(VARIABLES)):
        raise RecipeError(
            f"the template uses {', '.join(unknown)}, which no record has",
            where=str(path),
            fix=f"it may use {', '.join(VARIABLES)}",
        )
    if not used & {"content", "prompt"}:
        raise RecipeError(
            "the template never uses the prompt", where=str(path), fix="write {{ content }} where the question belongs"
        )
    return environment.from_string(source)
