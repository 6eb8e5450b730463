"""A tiny random model, its data and its reward, and a way to run the real trainer on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    score = sum(ord(character) % 10 for character in solution_str) / (9 * max(1, len(solution_str)))
    return {"score": score, "acc": float(score > 0.5)}
"""


_FLOAT32 = {f"{part}_dtype": "fp32" for part in ("param", "reduce", "buffer")}
_FROM_HARDWARE_CPU = {
    # What configs/hardware/cpu.yaml becomes in verl's words.
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.dtype": "float32",
    "actor_rollout_ref.rollout.enforce_eager": True,
    "actor_rollout_ref.rollout.agent.num_workers": 1,
    "actor_rollout_ref.rollout.calculate_log_probs": True,
    "actor_rollout_ref.rollout.max_model_len": 96,
    "actor_rollout_ref.model.use_remove_padding": False,
    "actor_rollout_ref.model.enable_gradient_checkpointing": False,
    "actor_rollout_ref.actor.use_torch_compile": False,
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
    **{f"actor_rollout_ref.{role}.fsdp_config.mixed_precision.{key}": value
       for role in ("actor", "ref") for key, value in _FLOAT32.items()},
    "reward.num_workers": 1,
}  # fmt: skip


def make_model(folder: Path, *, seed: int = 0, tied: bool = True) -> Path:
    """A Qwen3 of some 0.3 M parameters with random weights and a character tokenizer in Qwen's chat format."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    characters = sorted(set(map(chr, range(32, 127))) | {"\n"})
    vocabulary = {token: index for index, token in enumerate([*special, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=special[1:2],
        chat_template=CHAT_TEMPLATE,
    )
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(fast),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=[fast.eos_token_id, fast.pad_token_id], pad_token_id=fast.pad_token_id
    )
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


def make_data(folder: Path, *, train: int = 32, test: int = 8) -> None:
    """Two parquet files of short prompts in verl's columns."""
    import pandas as pd

    for split, rows in (("train", train), ("test", test)):
        pd.DataFrame(
            [
                {
                    "data_source": "sevens",
                    "prompt": [{"role": "user", "content": f"Write sevens, {split} {index}."}],
                    "ability": "test",
                    "reward_model": {"style": "rule", "ground_truth": str(index)},
                    "extra_info": {"split": split, "index": index},
                }
                for index in range(rows)
            ]
        ).to_parquet(folder / f"{split}.parquet")
    (folder / "reward.py").write_text(REWARD, encoding="utf-8")


@dataclass
class Run:
    """One finished run: its folder, its output and its metrics by step."""

    folder: Path
    output: str
    metrics: dict[int, dict[str, float]]

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"


class Trial:
    """Runs the trainer on the tiny model; `folder` holds `model`, `train.parquet`, `test.parquet` and `reward.py`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_model(folder / "model")
        make_data(folder)

    def recipe(self, *, ranks: int = 1, lora: int = 0) -> SimpleNamespace:
        """What `settings` reads of a recipe."""
        model = SimpleNamespace(model_path=str(self.folder / "model"), lora=SimpleNamespace(rank=lora))
        return SimpleNamespace(
            data=SimpleNamespace(max_prompt_length=64, max_response_length=32),
            worker=SimpleNamespace(actor=SimpleNamespace(model=model), rollout=SimpleNamespace(tensor_parallel_size=1)),
            trainer=SimpleNamespace(nnodes=1, n_gpus_per_node=ranks),
        )

    def keys(self, name: str, *, ranks: int = 1, lora: int = 0, steps: int = 2) -> dict[str, Any]:
        """All verl keys of the run `name`."""
        from recipes.engines.verl_cpu import settings

        actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
        return {
            "data.train_files": str(self.folder / "train.parquet"),
            "data.val_files": str(self.folder / "test.parquet"),
            "data.train_batch_size": 4,
            "data.max_prompt_length": 64,
            "data.max_response_length": 32,
            "data.dataloader_num_workers": 0,
            "data.shuffle": False,
            "algorithm.adv_estimator": "grpo",
            "actor_rollout_ref.model.path": str(self.folder / "model"),
            "actor_rollout_ref.model.lora_rank": lora,
            f"{actor}.ppo_mini_batch_size": 4,
            f"{actor}.ppo_micro_batch_size_per_gpu": 8,
            f"{actor}.optim.lr": 1e-3,
            f"{actor}.checkpoint.save_contents": "[model,optimizer,extra,hf_model]",
            f"{rollout}.n": 4,
            f"{rollout}.tensor_model_parallel_size": 1,
            f"{rollout}.log_prob_micro_batch_size_per_gpu": 8,
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 8,
            "reward.custom_reward_function.path": str(self.folder / "reward.py"),
            "trainer.n_gpus_per_node": ranks,
            "trainer.nnodes": 1,
            "trainer.total_training_steps": steps,
            "trainer.save_freq": -1,
            "trainer.test_freq": -1,
            "trainer.logger": "[console,file]",
            "trainer.project_name": "verl_cpu",
            "trainer.experiment_name": name,
            "trainer.default_local_dir": str(self.folder / name / "checkpoints"),
            **_FROM_HARDWARE_CPU,
            **({f"{rollout}.load_format": "safetensors"} if lora else {}),
            **settings.keys(self.recipe(ranks=ranks, lora=lora)),
        }

    def run(self, name: str, changes: dict[str, Any] | None = None, *, timeout: float = 400, **shape: int) -> Run:
        """Run the trainer to its end; fails with the tail of its output."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        process = subprocess.run(
            self.command(name, changes, **shape),
            env=self.environment(name, **shape),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        output = process.stdout + process.stderr
        (folder / "output.log").write_text(output, encoding="utf-8")
        assert process.returncode == 0, output[-6000:]
        return Run(folder, output, read_metrics(folder / "metrics.jsonl"))

    def command(self, name: str, changes: dict[str, Any] | None = None, **shape: int) -> list[str]:
        """The trainer's command line."""
        keys = {**self.keys(name, **shape), **(changes or {})}
        overrides = [f"++{key}={_hydra(value)}" for key, value in keys.items()]
        return [sys.executable, "-m", "recipes.engines.verl_cpu.main", *overrides]

    def environment(self, name: str, *, ranks: int = 1, lora: int = 0, **_: int) -> dict[str, str]:
        """The trainer's environment."""
        from recipes.engines.verl_cpu import settings

        return {
            **os.environ,
            **settings.environment(self.recipe(ranks=ranks, lora=lora)),
            "VERL_FILE_LOGGER_PATH": str(self.folder / name / "metrics.jsonl"),
        }


def read_metrics(path: Path) -> dict[int, dict[str, float]]:
    """verl's metric file: one `{"step": n, "data": {...}}` a line."""
    metrics: dict[int, dict[str, float]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        metrics.setdefault(entry["step"], {}).update(entry["data"])
    return metrics


def _hydra(value: Any) -> str:
    return "null" if value is None else str(value).replace("True", "true").replace("False", "false")


@pytest.fixture(scope="session")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """The tiny model, its data, and the trainer."""
    return Trial(tmp_path_factory.mktemp("verl_cpu"))
