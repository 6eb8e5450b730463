"""A server that speaks OpenAI's chat completions: its client, its models, and its errors in the user's words."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from recipes.errors import RecipeError

REFUSALS = {
    401: "set OPENAI_API_KEY to a key that it accepts",
    403: "set OPENAI_API_KEY to a key that may use this model",
    404: "check --api_base, which ends in /v1 as a rule, and the model's name",
}


class Address(Protocol):
    """Where a server is, under which name it has the model, and how long to try."""

    @property
    def api_base(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def retries(self) -> int: ...

    @property
    def timeout(self) -> float: ...


def client_options(server: Address) -> dict[str, Any]:
    """Return the arguments of `openai.OpenAI` and `openai.AsyncOpenAI`; a server of one's own needs no key."""
    return {
        "base_url": server.api_base,
        "api_key": os.environ.get("OPENAI_API_KEY") or "none",
        "max_retries": server.retries,
        "timeout": server.timeout,
    }


@contextmanager
def server_errors(server: Address, refused: str, kept: str = "") -> Iterator[None]:
    """Raise the client's errors as RecipeError.

    Args:
        refused: what to do where the server refuses and its status alone does not tell.
        kept: what is not lost, added to each advice.
    """
    import openai

    where, after = server.api_base, f"; {kept}" if kept else ""
    try:
        yield
    except openai.APIConnectionError as error:
        what = f"the server did not answer, after {server.retries} more tries"
        raise RecipeError(what, where=where, fix=f"start it again, or check --api_base{after}") from error
    except openai.APIStatusError as error:
        said = error.body.get("message") if isinstance(error.body, dict) else None
        what = f"the server refused with status {error.status_code}: {str(said or error.message)[:300]}"
        raise RecipeError(what, where=where, fix=REFUSALS.get(error.status_code, refused) + after) from error
    except json.JSONDecodeError as error:
        raise RecipeError("the server's reply is not JSON", where=where, fix=f"is --api_base right?{after}") from error


def payload(reply: Any, server: Address) -> dict[str, Any]:
    """Return the body of a raw reply. Read here, not by the client's objects, a reply of 16,000 tokens is cheap."""
    body = json.loads(reply.http_response.content)
    if not isinstance(body, dict):
        raise RecipeError("the server's reply is no JSON object", where=server.api_base, fix="is --api_base right?")
    return body


def owner(listed: dict[str, Any], server: Address, option: str) -> str | None:
    """Return who serves the model, as the server's list of models says; None where it lists none.

    Args:
        listed: the payload of `/v1/models`.
        option: the argument that names the model.

    Raises:
        RecipeError: the server lists models, and not this one.
    """
    models = listed.get("data") or []
    owners = {str(model["id"]): model.get("owned_by") for model in models if "id" in model}
    if owners and server.model not in owners:
        raise RecipeError(
            f"the server has no model {server.model}, but {', '.join(owners)}",
            where=server.api_base,
            fix=f"name it with {option}",
        )
    return owners.get(server.model)
