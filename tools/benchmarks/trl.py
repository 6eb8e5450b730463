"""Time TRL's GRPOTrainer (`pip install trl`) on a recipe's rows, reward and batch: vLLM on GPUs, else transformers."""

from __future__ import annotations

import time
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Console

from recipes.config import load
from recipes.data.custom import make_missing
from recipes.data.rows import read_rows
from recipes.errors import reported_errors
from recipes.rewards.loading import load_reward


def main(
    task: str,
    overrides: Annotated[list[str] | None, typer.Argument(help="the launcher's options and key=value")] = None,
    rows: Annotated[int, typer.Option(help="responses a pass")] = 8,
    steps: int = 4,
    dtype: Annotated[str, typer.Option(help="of the weights that are trained")] = "bfloat16",
    recompute: Annotated[bool, typer.Option(help="compute activations again in the backward pass")] = True,
    share: Annotated[float, typer.Option(help="of the GPU's memory, for vLLM")] = 0.3,
) -> None:
    """Print the seconds to the first step, and of each step, its tokens/s and peak memory."""
    start = time.perf_counter()
    with reported_errors():
        recipe = load(task, arguments=overrides or ())
        make_missing(recipe, print)
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    console, on_gpu = Console(highlight=False, markup=False), torch.cuda.is_available()
    data, actor, rollout = recipe.data, recipe.worker.actor, recipe.worker.rollout
    path, _, function = str(recipe.worker.reward.reward_function).partition(":")
    score = getattr(load_reward(path), function or "compute_score")
    tokens: list[int] = []

    def reward(completions: list[Any], truth: list[Any], source: list[str], **given: Any) -> list[float]:
        tokens.append(sum(map(len, given["completion_ids"])))
        texts = [completion[0]["content"] for completion in completions]
        answers = [score(*each) for each in zip(source, texts, truth, strict=True)]
        return [answer["score"] if isinstance(answer, dict) else float(answer) for answer in answers]

    class Timer(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            seconds = time.perf_counter() - self.began
            peak = f", peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if on_gpu else ""
            rate = f"{tokens[-1]:,} tokens of responses, {tokens[-1] / seconds:,.0f} a second"
            console.print(f"step {state.global_step}: {seconds:.2f} s, {rate}{peak}")

    prompts, n = data.rollout_batch_size, rollout.n
    taken = islice(read_rows(str(data.train_files)), prompts * steps)
    columns = [(row["prompt"], row["reward_model"]["ground_truth"], row["data_source"]) for row in taken]
    table = Dataset.from_list([dict(zip(("prompt", "truth", "source"), each, strict=True)) for each in columns])
    sizes = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": prompts * n // rows}
    lengths = {"max_completion_length": data.max_response_length, "num_generations": n, "max_steps": steps}
    rates = {"learning_rate": actor.optim.lr, "lr_scheduler_type": "constant", "beta": recipe.algorithm.kl_coef}
    window = data.max_prompt_length + data.max_response_length
    vllm = {"vllm_mode": "colocate", "vllm_gpu_memory_utilization": share, "vllm_max_model_length": window}
    passes = {"bf16": on_gpu, "gradient_checkpointing": recompute, "use_liger_kernel": on_gpu}
    silent = {"save_strategy": "no", "report_to": [], "output_dir": "artifacts/trl", "use_cpu": not on_gpu}
    sampled = {"temperature": rollout.temperature, "use_vllm": on_gpu, "model_init_kwargs": {"dtype": dtype}}
    settings = GRPOConfig(**sizes, **lengths, **rates, **vllm, **passes, **silent, **sampled, loss_type="grpo")
    trainer = GRPOTrainer(str(actor.model.model_path), reward, settings, table, callbacks=[Timer()])
    console.print(f"ready after {time.perf_counter() - start:.1f} s")
    trainer.train()


if __name__ == "__main__":
    typer.run(main)
