"""verl's composed configuration, a process group of this process alone, and what runs of real trainers leave."""

import copy
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from recipes.paths import run_dir

DIFFERENCE = "training/rollout_probs_diff_max"
EXACT = 1e-3
"""Largest difference between a token's probability in vLLM and in FSDP, both in float32: whatever is sampled, it is
rounding. Eight runs showed 1.2e-6 to 1.8e-5; weights that do not arrive show 0.1 and more."""


def variables(artifacts: Path, **more: str) -> dict[str, str]:
    """This process's variables for a launcher on CPUs, with this Python and artifacts in a folder of their own."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "ARTIFACTS_DIR": str(artifacts), "HARDWARE": "cpu", **more}


@cache
def _compose(*overrides: str) -> DictConfig:
    """verl's configuration with these arguments of its command line; a second, of which most is Hydra's."""
    from hydra import compose, initialize_config_dir

    from recipes.config.names import verl_package

    folder = verl_package() / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


@pytest.fixture(scope="session")
def compose_with() -> Callable[..., DictConfig]:
    """`compose_with(*overrides)`: what verl composes from a command line."""
    return _compose


@pytest.fixture(scope="session")
def composed() -> Callable[..., DictConfig]:
    """`composed(*arguments, task="countdown", hardware="gpu", algorithm="")`: a recipe in verl's keys.

    Its keys are put into what verl composes; test_compose.py has the way over the command line.
    """
    from omegaconf import OmegaConf

    from recipes.config import load
    from recipes.engines.verl.translation import translate

    def composed_for(*arguments: str, task="countdown", hardware="gpu", algorithm="") -> DictConfig:
        environ = {"ALGORITHM": algorithm} if algorithm else {}
        config = copy.deepcopy(_compose())
        for name, value in translate(load(task, arguments=arguments, environ=environ, hardware=hardware)).items():
            OmegaConf.update(config, name, value, force_add=True)
        return config

    return composed_for


@pytest.fixture
def vllm_named() -> None:
    """vLLM's CPU build under the name `vllm`, as verl asks for it; skips where there is no vLLM."""
    from recipes.engines.cpu import vllm_distribution

    pytest.importorskip("vllm")
    vllm_distribution.name_vllm()


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """torch.distributed on CPUs, with this process as its only rank."""
    import torch

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder_of_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder for all runs of a module and their data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARTIFACTS_DIR", str(tmp_path_factory.mktemp("runs")))
        yield


def dumped(run: str, kind: str, step: int) -> list[dict[str, Any]]:
    """The responses of a step: kind `rollouts` or `validation`."""
    text = (run_dir(run) / kind / f"{step}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="session")
def short_of_greedy() -> Callable[..., float]:
    """`short_of_greedy(saved, answers)`: the most by which a token falls short of a saved model's best logit.

    Up to rounding it is 0 where the model is the one that answered greedily. Texts are not compared: a tie may end
    otherwise. `answers` are prompts (chat messages) and greedy responses.
    """

    def compute(saved: Path, answers: Iterable[tuple[list[Mapping[str, str]], str]]) -> float:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model = AutoModelForCausalLM.from_pretrained(saved, dtype="auto")
        tokenizer = AutoTokenizer.from_pretrained(saved)
        short: list[Any] = []
        for prompt, text in answers:
            before = tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, return_dict=False)
            after = tokenizer(text, add_special_tokens=False)["input_ids"]
            with torch.no_grad():
                logits = model(torch.tensor([before + after])).logits[0, len(before) - 1 : -1]
            short.append((logits.max(1).values - logits.gather(1, torch.tensor(after)[:, None])[:, 0]).max())
        return max(short).item()

    return compute
