"""Functions that EasyR1's patched source calls to write metrics, responses and whole models, and to run without a GPU.

`trainer` is EasyR1's `RayPPOTrainer`, `batch` its `DataProto`. Importing this module does not import torch.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recipes.dumps import COLUMN, DATA_SOURCE, ROW_ID
from recipes.engines import checkpoints
from recipes.files import write_whole
from recipes.rewards.contract import stated_accuracy
from recipes.rewards.metrics import reward_metrics

METRICS = "VERL_FILE_LOGGER_PATH"
ROLLOUTS, VALIDATION = "RECIPES_EASYR1_ROLLOUTS", "RECIPES_EASYR1_VALIDATION"
"""Variables with the folders of the dumps; if one is not set, its dump is not written."""
WEIGHTS = "RECIPES_EASYR1_WEIGHTS"
"""Variable with the dtype of saved models; if it is not set, none are written (`trainer.save_hf_model`)."""
RANKS = "RECIPES_EASYR1_RANKS"
"""Variable with the number of ranks; set only on a machine without a GPU."""
PARTS = "reward_parts"
"""Column of the batch with the parts of each response's reward."""

VERLS_NAMES = {
    "timing_s/old": "timing_s/old_log_prob",
    "actor/kl_penalty": "actor/reward_kl_penalty",
    "actor/kl_coef": "actor/reward_kl_penalty_coeff",
    "actor/pg_clipfrac_higher": "actor/pg_clipfrac",
}
"""EasyR1's name of a metric -> verl's. EasyR1's `timing_s/step` already includes validation and saving."""
_Rows = list[dict[str, Any]]


def append_metrics(data: Mapping[str, Any], step: int) -> None:
    """Append a step's metrics to the file that the launcher follows, under verl's names too."""
    if path := os.environ.get(METRICS):
        numbers = {name: float(value) for name, value in data.items()}
        in_loss = "actor/kl_loss" in numbers
        for own, verls in VERLS_NAMES.items():
            if own in numbers and not (in_loss and own == "actor/kl_coef"):
                numbers[verls] = numbers[own]
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": int(step), "data": numbers}) + "\n")


def sampled(completions: Iterable[Any], responses: Any) -> Any:
    """vLLM's log-probability of every sampled token; shape of `responses` (responses x tokens), padded with zeros."""
    import torch

    outputs = [output for completion in completions for output in completion.outputs]
    values = torch.zeros(responses.shape, dtype=torch.float32)
    for row, output in enumerate(outputs):
        found = [at[token].logprob for token, at in zip(output.token_ids, output.logprobs, strict=True)]
        values[row, : len(found)] = torch.tensor(found)
    return values.to(responses.device)


class Parts(dict[str, list[float]]):
    """EasyR1's dict from a part of the reward to its values; `rows` has the reward's whole result for each response."""

    def __init__(self, parts: Mapping[str, list[float]], rows: _Rows) -> None:
        super().__init__(parts)
        self.rows = rows


def keep_results(batch: Any, parts: Parts) -> None:
    """Store what the reward returned as a column of the batch, so that it stays with its response when rows move."""
    import numpy as np

    column = np.empty(len(parts.rows), dtype=object)
    column[:] = parts.rows
    batch.non_tensor_batch[PARTS] = column


def end_step(trainer: Any, batch: Any, metrics: dict[str, Any]) -> None:
    """Write the step's responses; add reward metrics, and the gap between vLLM's and the trainer's probabilities."""
    theirs, ours, mask = (batch.batch[name] for name in ("rollout_log_probs", "old_log_probs", "response_mask"))
    theirs, ours = theirs.float()[mask.bool()], ours.float()[mask.bool()]
    apart = (theirs.exp() - ours.exp()).abs()
    metrics["rollout_corr/kl"] = (theirs - ours).mean().item()
    metrics["training/rollout_probs_diff_max"] = apart.max().item()
    metrics["training/rollout_probs_diff_mean"] = apart.mean().item()
    columns, scores = batch.non_tensor_batch, batch.batch["token_level_scores"].sum(dim=-1).tolist()
    groups = columns["uid"] if "uid" in columns else range(len(scores))
    metrics.update(reward_metrics(groups, scores, list(columns[PARTS])))
    _write(os.environ.get(ROLLOUTS), trainer.global_step, _rows(trainer, batch, batch.batch["token_level_scores"]))


def keep_validation(trainer: Any, batch: Any, scores: Any, parts: Parts) -> None:
    """Keep a batch of the validation until `end_validation`."""
    keep_results(batch, parts)
    kept = trainer.__dict__.setdefault("_validated_rows", [])
    kept += _rows(trainer, batch, scores)


def end_validation(trainer: Any) -> dict[str, float]:
    """Write the validation's responses; return its metrics by data source, under verl's names."""
    rows: _Rows = trainer.__dict__.pop("_validated_rows", [])
    answers = trainer.config.worker.rollout.val_override_config.get("n", 1)
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        source = row[DATA_SOURCE]
        accuracy = stated_accuracy(row)
        values[f"val-{'core' if accuracy is None else 'aux'}/{source}/reward/mean@{answers}"].append(row["score"])
        if accuracy is not None:
            values[f"val-core/{source}/acc/mean@{answers}"].append(accuracy)
    _write(os.environ.get(VALIDATION), trainer.global_step, rows)
    return {name: sum(found) / len(found) for name, found in values.items()}


def check_update(trainer: Any, metrics: dict[str, Any]) -> None:
    """Stop before a save if a loss is no number; save this step if the user asked the run to end."""
    checkpoints.refuse_nan(metrics, trainer.global_step)
    settings = trainer.config.trainer
    if settings.save_freq > 0 and checkpoints.is_to_stop(Path(settings.save_checkpoint_path)):
        settings.save_freq = 1


def end_if_requested(trainer: Any) -> None:
    """End the run after this save if the user requested that (`monitor.py stop`)."""
    if checkpoints.withdraw_stop(Path(trainer.config.trainer.save_checkpoint_path)):
        print(f"stop requested: step {trainer.global_step} is the last", flush=True)
        trainer.training_steps = trainer.global_step


def _rows(trainer: Any, batch: Any, scores: Any) -> _Rows:
    """One entry a response, groups together."""
    decode, columns = trainer.tokenizer.decode, batch.non_tensor_batch
    seen: dict[Any, int] = defaultdict(int)
    rows = []
    for index in range(len(batch)):
        row: dict[str, Any] = {
            "input": decode(batch.batch["prompts"][index], skip_special_tokens=True),
            "output": decode(batch.batch["responses"][index], skip_special_tokens=True),
            "gts": columns["ground_truth"][index],
            "score": float(scores[index].sum()),
            "step": int(trainer.global_step),
            DATA_SOURCE: str(columns["data_source"][index]) if "data_source" in columns else "all",
        }
        if "uid" in columns:
            group = columns["uid"][index]
            row["uid"] = f"{group}_{seen[group]}_0"
            seen[group] += 1
        if COLUMN in columns:
            row[ROW_ID] = str(columns[COLUMN][index])
        parts = columns[PARTS][index]
        row |= {name: float(value) for name, value in parts.items() if name not in row and name != "overall"}
        rows.append(row)
    return sorted(rows, key=lambda row: row.get("uid", ""))


def _write(folder: str | None, step: int, rows: _Rows) -> None:
    """A step's file, whole or not at all: the monitor reads it while the run goes on."""
    if not folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_whole(Path(folder) / f"{step}.jsonl", text)


def save_model(module: Any, folder: str) -> None:
    """Gather the weights of all ranks and have rank 0 write them beside the configuration that EasyR1 has written.

    EasyR1 itself writes shards alone; vLLM and transformers read the whole model, with LoRA adapters merged into it.
    Every rank has to call this with its FSDP module. Nothing is written into a critic's folder.
    """
    kind = os.environ.get(WEIGHTS)
    if not kind or Path(folder).name != "actor":
        return
    import torch
    import torch.distributed as dist
    from peft import PeftModel
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    weights = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() != 0:
        return
    model, target, number = module._fsdp_wrapped_module, Path(folder) / "huggingface", getattr(torch, kind)
    if isinstance(model, PeftModel):
        weights = checkpoints.with_adapters(weights, checkpoints.scalings(model), dtype=number)
        model = model.get_base_model()
    weights = {name: value.to(number) if value.is_floating_point() else value for name, value in weights.items()}
    model.save_pretrained(target, state_dict=weights)
    checkpoints.name_the_type(target)


def set_again(worker: Any) -> None:
    """Set the optimiser of EasyR1's `FSDPWorker` to the command's values again, after a checkpoint replaced them."""
    checkpoints.set_again(worker.config.actor.optim, worker.optimizer, worker.lr_scheduler, rank=worker.rank)


def stand_in() -> None:
    """Have the functions of `torch.cuda` that EasyR1 calls answer for the CPU."""
    import psutil
    import torch

    answers: dict[str, Any] = {
        "get_device_name": lambda device=None: "cpu",
        "mem_get_info": lambda device=None: (psutil.virtual_memory().available, psutil.virtual_memory().total),
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "manual_seed": torch.manual_seed,
        "empty_cache": lambda: None,
        "set_device": lambda device: None,
        "max_memory_allocated": lambda device=None: 0,
        "max_memory_reserved": lambda device=None: 0,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)


def prepare_vllm() -> None:
    """Have vLLM's CPU build keep weights replaceable, and inspect model classes without starting an interpreter."""
    from recipes.engines.verl import upstream

    upstream.apply("cpu vllm")
