"""Data sets of the Hugging Face hub, at a commit that is recorded."""

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
        split: name of the split, such as "train".
        revision: branch, tag or commit. With HF_HUB_OFFLINE=1 the local cache is used as it is, and the revision is
            returned as it was given.

    Raises:
        RecipeError: the hub does not answer, or has no such data set.
    """
    import httpx
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError
    from huggingface_hub import HfApi

    try:
        if os.environ.get("HF_HUB_OFFLINE") != "1":  # ask the hub first: `datasets` retries for half a minute
            revision = HfApi().dataset_info(repository, revision=revision, timeout=SECONDS_TO_ANSWER).sha or revision
        return load_dataset(repository, name, split=split, revision=revision).with_format("arrow")[:], revision
    except (OSError, ValueError, DatasetsError, httpx.HTTPError) as error:
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RecipeError(
            f"the hub's data set {repository} cannot be read: {first_line}",
            where=f"{os.environ.get('HF_ENDPOINT', 'https://huggingface.co')}, revision {revision}",
            fix="set HF_ENDPOINT to a mirror, HF_HUB_OFFLINE=1 where it is cached, or use another source (see --help)",
        ) from error
