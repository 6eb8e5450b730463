"""Why a value is what it is: the comment beside the key, and what follows from the engine where there is none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from recipes.config.resolve import find
from recipes.config.schema import Recipe, leaves
from recipes.paths import CONFIGS

_COMMENT = re.compile(r"\s#\s*(.*)$")
FILES = (".sh", ".py", ".yaml", ".json", ".jinja")

# Where a recipe says nothing, because the schema's default fits: why that default is not the official one.
OF_DEFAULTS = {
    "data.filter_overlong_prompts_workers": "as EasyR1; measuring prompts is faster",
    "data.prompt_key": "a row has one column for each engine",
    "data.seed": "fixed, so that two runs see the same order",
    "data.shuffle": "as both engines' default",
    "data.val_batch_size": "all of the validation at once: the engine queues by itself",
    "trainer.save_hf_model": "a checkpoint loads in vLLM and transformers without merging",
    "worker.actor.clip_ratio_high": "as EasyR1's own default",
    "worker.actor.dynamic_batching": "as EasyR1's own default",
    "worker.actor.entropy_coeff": "no bonus, as GRPO was published",
    "worker.actor.max_token_len_per_device": "derived from micro-batch size and lengths",
    "worker.actor.model.lora.rank": "all weights are trained",
    "worker.actor.model.trust_remote_code": "running downloaded code is a choice",
    "worker.actor.use_torch_compile": "as both engines' default",
    "worker.ref.offload.offload_params": "verl keeps a forward-only model in CPU memory either way",
    "worker.rollout.calculate_log_probs": "compares vLLM with the trainer at every step: a wrong rollout shows",
    "worker.rollout.enable_chunked_prefill": "vLLM's present engine prefills in chunks",
    "worker.rollout.enforce_eager": "CUDA graphs, as both engines' default",
    "worker.rollout.gpu_memory_utilization": "as EasyR1's own default",
    "worker.rollout.limit_images": "prompts are text",
    "worker.rollout.load_format": "every weight is sent before its first use; LoRA and images read the model's",
}


def comments(path: Path) -> dict[str, str]:
    """Dotted key -> the reason in the comment behind its value; keys without one are left out.

    A comment is `verl's name; reason`, or the reason alone.
    """
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    lines = text.splitlines()
    found: dict[str, str] = {}
    for key, end in _values(root, "") if isinstance(root, yaml.MappingNode) else ():
        behind = _COMMENT.search(lines[end.line][end.column :])
        reason = _reason(behind[1], key) if behind else ""
        if reason:
            found[key] = reason
    return found


def _values(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, yaml.Mark]]:
    """Every value with its key and where it ends; a block's own end is none."""
    for name, value in node.value:
        key = f"{prefix}{name.value}"
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from _values(value, f"{key}.")
        elif value.end_mark.line == value.start_mark.line:
            yield key, value.end_mark


def _reason(comment: str, key: str) -> str:
    head, _, rest = comment.partition(";")
    word = head.split()[0].rstrip(":,") if head.split() else ""
    is_name = "." in word and not word.endswith(FILES) and _names(key, word)
    return (rest if is_name else comment).strip()


def _names(key: str, word: str) -> bool:
    leaf = leaves(Recipe).get(key)
    return leaf is None or any(name == word or name.endswith(f".{word}") for name in leaf.info.verl)


class Reasons:
    """The reasons of one recipe: its own comments, over those of the hardware's file, over what follows by itself."""

    def __init__(self, recipe: Recipe, task_or_path: str) -> None:
        self._recipe = recipe
        self._own = comments(find(task_or_path))
        self._hardware = comments(CONFIGS / "hardware" / f"{recipe.hardware}.yaml")

    def of(self, key: str) -> str:
        """Why our value differs; empty where nothing says it."""
        layer = self._recipe.source_of(key).layer
        if layer == "recipe":
            return self._own.get(key, "")
        if layer == "hardware":
            return self._hardware.get(key, "")
        leaf = leaves(Recipe).get(key)
        unable = leaf.info.not_on.get(self._recipe.engine, "") if leaf else ""
        return unable or OF_DEFAULTS.get(key, "")
