"""A hub that must give a model answers now, not after the trainer's minutes of retries."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from http.client import HTTPException

from recipes.config import PathKey, Recipe, path_keys
from recipes.errors import RecipeError
from recipes.paths import local_model

TIMEOUT_S = 8.0
HUB = "https://huggingface.co"
REFUSED = (401, 403, 404)


def check_hub(recipe: Recipe) -> list[str]:
    """Ask the hub for each model that is not on this machine.

    Raises:
        RecipeError: within `TIMEOUT_S` of silence, where it cannot be reached; where it does not know the model.
    """
    for key in path_keys(recipe):
        if key.kind == "model" and key.on_hub and "://" not in key.path and not local_model(key.path):
            _ask(key)
    return []


def _ask(key: PathKey) -> None:
    hub = (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    name, _, revision = key.path.partition("@")
    where = f"{key.key}, from {key.source}"
    request = urllib.request.Request(f"{hub}/{name}/resolve/{revision or 'main'}/config.json", method="HEAD")
    token = os.environ.get("HF_TOKEN")
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            return
    except urllib.error.HTTPError as error:
        if error.code not in REFUSED:
            raise _unreachable(hub, f"answers with {error.code} {error.reason}", where) from error
        raise RecipeError(
            f"{hub} has no model {name} for you ({error.code} {error.reason})",
            where=where,
            fix="correct the name; for a private or gated model set HF_TOKEN and accept its terms",
        ) from error
    except TimeoutError as error:
        raise _unreachable(hub, f"has not answered for {TIMEOUT_S:.0f} s", where) from error
    except (urllib.error.URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise _unreachable(hub, f"cannot be reached: {reason}", where) from error


def _unreachable(hub: str, what: str, where: str) -> RecipeError:
    return RecipeError(
        f"the hub {hub} {what}, and the model is not on this machine",
        where=where,
        fix="set MODEL_PATH to a folder, HF_ENDPOINT to a hub that answers, or HTTPS_PROXY to the way out",
    )
