"""Keys under `worker.rollout`: generation with vLLM."""

from __future__ import annotations

from typing import Any, Literal

from recipes.config.schema.field import Section, key, only_easyr1, only_verl

ROLLOUT = "actor_rollout_ref.rollout"


class ValOverride(Section):
    """Sampling in validation; a key that is null is the training's."""

    temperature: float | None = key(
        None, "temperature; 0: greedy", verl=f"{ROLLOUT}.val_kwargs.temperature", via="rule", twin=True, ge=0
    )
    top_p: float | None = key(None, "nucleus", verl=f"{ROLLOUT}.val_kwargs.top_p", via="rule", twin=True, gt=0, le=1)
    top_k: int | None = key(
        None, "candidates; -1: all", verl=f"{ROLLOUT}.val_kwargs.top_k", via="rule", twin=True, ge=-1
    )
    n: int = key(1, "responses a prompt", verl=f"{ROLLOUT}.val_kwargs.n", via="rule", twin=True, gt=0)


class Rollout(Section):
    """Generation of responses."""

    name: Literal["vllm", "sglang"] = key(
        "vllm", "inference engine", verl=f"{ROLLOUT}.name", values_on={"easyr1": ("vllm",)}
    )
    n: int = key(1, "responses a prompt: the size of a group", verl=f"{ROLLOUT}.n", gt=0)
    temperature: float = key(1.0, "sampling temperature", verl=f"{ROLLOUT}.temperature", gt=0)
    top_p: float = key(1.0, "nucleus", verl=f"{ROLLOUT}.top_p", gt=0, le=1)
    top_k: int = key(-1, "candidates; -1: all", verl=f"{ROLLOUT}.top_k", ge=-1)
    seed: int = key(1, "seed of sampling", verl=f"{ROLLOUT}.seed")
    limit_images: int = key(
        0, "images a prompt may hold; 0: text only", verl=f"{ROLLOUT}.limit_images", via="null_if_zero", ge=0
    )
    dtype: Literal["bf16", "fp16", "fp32"] = key(
        "bf16", "precision of generation", verl=f"{ROLLOUT}.dtype", via="dtype"
    )
    gpu_memory_utilization: float = key(
        0.6,
        "share of a GPU's memory for weights and cache of vLLM",
        verl=f"{ROLLOUT}.gpu_memory_utilization",
        gt=0,
        lt=1,
    )
    ignore_eos: bool = key(False, "generate on after the end token", verl=f"{ROLLOUT}.ignore_eos")
    enforce_eager: bool = key(
        False, "no CUDA graphs: slower, starts sooner, takes less memory", verl=f"{ROLLOUT}.enforce_eager"
    )
    enable_chunked_prefill: bool = key(
        True,
        "split long prompts while others decode (EasyR1's own default is false)",
        verl=f"{ROLLOUT}.enable_chunked_prefill",
    )
    tensor_parallel_size: int = key(
        2, "GPUs that share one vLLM engine", verl=f"{ROLLOUT}.tensor_model_parallel_size", gt=0
    )
    max_model_len: int | None = key(
        None, "longest sequence of vLLM; null: prompt + response", verl=f"{ROLLOUT}.max_model_len", via="rule", gt=0
    )
    max_num_batched_tokens: int = key(
        8192, "tokens vLLM computes at once", verl=f"{ROLLOUT}.max_num_batched_tokens", gt=0
    )
    disable_log_stats: bool = key(True, "no statistics from vLLM in the log", verl=f"{ROLLOUT}.disable_log_stats")
    disable_tqdm: bool = key(
        False, "no progress bar of vLLM", not_on=only_easyr1("verl generates through a server, which shows no bar")
    )
    val_override_config: ValOverride = ValOverride()
    max_num_seqs: int = key(
        256, "responses vLLM decodes at once", verl=f"{ROLLOUT}.max_num_seqs", gt=0, not_on=only_verl()
    )
    load_format: Literal["auto", "dummy", "safetensors"] = key(
        "auto",
        "first weights of vLLM: random (dummy) or the model's; auto: the model's for LoRA and images, where it matters",
        verl=f"{ROLLOUT}.load_format",
        via="rule",
        not_on=only_verl(),
    )
    free_cache_engine: bool = key(
        True, "free vLLM's cache while training", verl=f"{ROLLOUT}.free_cache_engine", not_on=only_verl()
    )
    enable_prefix_caching: bool = key(
        True, "share the cache of a group's prompt", verl=f"{ROLLOUT}.enable_prefix_caching", not_on=only_verl()
    )
    calculate_log_probs: bool = key(
        True,
        "compare vLLM's log-probabilities with the trainer's (rollout_corr/kl)",
        verl=f"{ROLLOUT}.calculate_log_probs",
        not_on=only_verl(),
    )
    agent_num_workers: int = key(
        8, "processes that drive generation", verl=f"{ROLLOUT}.agent.num_workers", gt=0, not_on=only_verl()
    )
    engine_kwargs: dict[str, Any] = key(
        dict, "further arguments of vLLM's engine", verl=f"{ROLLOUT}.engine_kwargs.vllm", not_on=only_verl()
    )
