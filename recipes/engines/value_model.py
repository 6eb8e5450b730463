"""verl's critic with the attention that its configuration names."""

from __future__ import annotations

from typing import Any


def load(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
    """verl/utils/model.py:641 (`def load_valuehead_model`), which asks for "flash_attention_2" in any case.

    The value head is that of transformers' token classifiers; the other that verl knows, trl's, is only for models that
    have no token classifier.
    """
    from transformers import AutoModelForTokenClassification

    return AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation=model_config._attn_implementation,
        trust_remote_code=trust_remote_code,
    )


def register() -> None:
    """Have verl load its critics so."""
    from verl.utils import model

    model.load_valuehead_model = load
