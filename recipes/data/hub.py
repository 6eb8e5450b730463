"""The Hugging Face hub: data sets at a commit that is written down, and the cache of models."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from recipes.errors import RecipeError

if TYPE_CHECKING:
    import pyarrow as pa

SECONDS_TO_ANSWER = 15


def load_hub_table(
    repository: str, *, name: str | None = None, split: str, revision: str = "main"
) -> tuple[pa.Table, str]:
    """A split of a data set on the hub, and the commit that it comes from.

    Args:
        repository: `owner/name` of the data set.
        name: its configuration, such as "main" of `openai/gsm8k`.
        split: such as "train".
        revision: branch, tag or commit. With HF_HUB_OFFLINE=1 the local cache is used as it is, and the revision is
            returned as it was given.

    Raises:
        RecipeError: the hub does not answer, or has no such data set.
    """
    import httpx

    revision = revision if os.environ.get("HF_HUB_OFFLINE") == "1" else _commit(repository, revision)
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        table = load_dataset(repository, name, split=split, revision=revision).with_format("arrow")[:]
    except (OSError, ValueError, DatasetsError, httpx.HTTPError) as error:
        raise _unreachable(repository, revision, error) from error
    return table, revision


def _commit(repository: str, revision: str) -> str:
    """The commit that a revision stands for; asked first, since `datasets` retries for half a minute."""
    import httpx
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(repository, revision=revision, timeout=SECONDS_TO_ANSWER).sha or revision
    except (OSError, httpx.HTTPError) as error:
        raise _unreachable(repository, revision, error) from error


def _unreachable(repository: str, revision: str, error: Exception) -> RecipeError:
    first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return RecipeError(
        f"the hub's data set {repository} cannot be read: {first_line}",
        where=f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}, revision {revision}",
        fix="set HF_ENDPOINT to a mirror, HF_HUB_OFFLINE=1 if it is in the cache, or use another source (see --help)",
    )
