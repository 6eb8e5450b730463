"""Keys under `worker`: actor, reference, rollout and reward."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from recipes.config.schema.keys import ONLY_EASYR1, ONLY_VERL, Resume, Section, key

Precision = Literal["fp32", "bf16", "fp16"]
_VERL_PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def _split_names(value: str) -> str | list[str]:
    """Names joined by commas as a list; a single one stays text."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    return names if len(names) > 1 else value.strip()


def verl_loss(name: str) -> str:
    """verl's name of a policy loss.

    verl's gspo is the token form that EasyR1 calls gspo_token; with one advantage per response, as in GRPO, both forms
    have the same gradient (arXiv:2507.18071, section 4.3).
    """
    return {"default": "vanilla", "gspo_token": "gspo"}.get(name, name)


OTHER_ADAPTERS = "the checkpoint has other adapters"


class Lora(Section):
    """Low-rank adapters; on when `rank` is positive."""

    rank: int = key(
        0,
        "rank of the adapters; 0: train all weights",
        "LORA_RANK",
        verl="{model}.lora_rank",
        ge=0,
        fixed=OTHER_ADAPTERS,
    )
    alpha: int = key(64, "scale of the adapters", "LORA_ALPHA", verl="{model}.lora_alpha", gt=0, needs="rank")
    target_modules: str = key(
        "all-linear",
        "modules to adapt: all-linear, or names joined by commas",
        verl="{model}.target_modules",
        convert=_split_names,
        fixed=OTHER_ADAPTERS,
        needs="rank",
    )
    exclude_modules: str | None = key(
        None,
        "regular expression of modules to leave alone",
        verl="{model}.exclude_modules",
        fixed=OTHER_ADAPTERS,
        needs="rank",
    )


class Model(Section):
    """The weights, and how transformers loads them."""

    when_resumed: ClassVar[Resume] = "setting"

    model_path: str | None = key(
        None, "model folder or name on a hub", "MODEL_PATH", verl="{model}.path", path="model", option="model"
    )
    tokenizer_path: str | None = key(None, "tokenizer folder or name; null: the model's", path="model")
    override_config: dict[str, Any] = key(dict, "values that replace those in the model's config", resume="content")
    enable_gradient_checkpointing: bool | None = key(
        True,
        "compute activations again in the backward pass, to save memory; null: where memory asks for it",
        left_open=True,
    )
    use_liger: bool = key(False, "liger's kernels for norms, rotary embedding and MLP", engines=ONLY_VERL)
    trust_remote_code: bool = key(
        False,
        "run code that comes with the model (EasyR1's own default is true)",
        verl=("{model}.trust_remote_code", "data.trust_remote_code"),
    )
    freeze_vision_tower: bool = key(False, "do not train the vision tower", engines=ONLY_EASYR1, resume="content")
    lora: Lora = Lora()


class Optim(Section):
    """AdamW and its schedule.

    In a resumed run verl restores the optimiser's old values; engines/checkpoints.py sets the command's again, so
    a new option that may change on resume has to be set there too.
    """

    lr: float = key(1e-6, "learning rate", "LR LEARNING_RATE", gt=0)
    weight_decay: float = key(1e-2, "decoupled weight decay", "WEIGHT_DECAY", ge=0)
    strategy: Literal["adamw", "adamw_bf16"] = key(
        "adamw", "optimiser; adamw_bf16 keeps its state in bf16", verl=(), computed=True, values_on={"verl": ("adamw",)}
    )
    fused: bool | None = key(
        False,
        "AdamW in one kernel, without a copy of the weights; null: where a GPU's memory asks for it",
        left_open=True,
        verl="{role}.optim.override_optimizer_config",
        computed=True,
        engines=ONLY_VERL,
        resume="setting",
    )
    lr_warmup_ratio: float = key(
        0.0,
        "share of the steps in which the rate rises",
        "LR_WARMUP_RATIO",
        verl="{role}.optim.lr_warmup_steps_ratio",
        ge=0,
        le=1,
    )
    lr_warmup_steps: int | None = key(
        None,
        "steps in which the rate rises from 0; null: by lr_warmup_ratio",
        "LR_WARMUP_STEPS",
        convert=lambda value: -1 if value is None else value,
    )
    lr_scheduler_type: Literal["constant", "cosine", "linear"] = key(
        "constant",
        "schedule after the warm-up: the last two fall until the last step",
        "LR_SCHEDULER_TYPE",
        convert=lambda value: "cosine" if value == "linear" else value,
        alias=True,
        values_on={"easyr1": ("constant", "cosine")},
    )


class Fsdp(Section):
    """Sharding and precision of the trained model."""

    enable_full_shard: bool = key(
        True, "shard parameters too (ZeRO-3); false: ZeRO-2", verl="{fsdp}.reshard_after_forward", resume="setting"
    )
    enable_cpu_offload: bool = key(
        False,
        "FSDP keeps parameters in CPU memory (verl: only with strategy fsdp2)",
        verl="{fsdp}.offload_policy",
        computed=True,
        resume="setting",
    )
    enable_rank0_init: bool = key(
        True, "load weights on rank 0 and send them to the others", engines=ONLY_EASYR1, resume="setting"
    )
    torch_dtype: Precision | None = key(
        None,
        "precision of the master weights; null: fp32 (reference: bf16 on EasyR1)",
        verl="{fsdp}.model_dtype",
        computed=True,
    )
    mp_param_dtype: Precision = key(
        "bf16", "precision of forward and backward", verl="{fsdp}.mixed_precision.param_dtype", computed=True
    )


class RefFsdp(Fsdp):
    """The reference is never trained, so it rests in CPU memory."""

    enable_cpu_offload: bool = key(
        True, "FSDP keeps the reference in CPU memory", engines=ONLY_EASYR1, resume="setting"
    )


class RefOffload(Section):
    """Moving weights to CPU memory between their uses."""

    when_resumed: ClassVar[Resume] = "setting"

    offload_params: bool | None = key(
        False,
        "weights rest in CPU memory; null: where a GPU's memory asks for it",
        left_open=True,
        verl="{fsdp}.param_offload",
    )


class Offload(RefOffload):
    """Moving weights and optimiser state to CPU memory between their uses."""

    offload_optimizer: bool | None = key(
        False,
        "optimiser state rests in CPU memory; null: where a GPU's memory asks for it",
        left_open=True,
        verl="{fsdp}.optimizer_offload",
    )


class OverlongBuffer(Section):
    """DAPO's soft penalty for responses that come close to the limit (arXiv:2503.14476)."""

    engines: ClassVar[tuple[str, ...]] = ONLY_VERL

    enable: bool = key(False, "lower the score of responses that end inside the buffer", computed=True)
    len: int | None = key(
        None,
        "tokens before the limit in which the penalty grows; null: a fifth of data.max_response_length, as published",
        computed=True,
        gt=0,
        needs="enable",
    )
    penalty_factor: float = key(1.0, "penalty at the limit", computed=True, ge=0, needs="enable")


class Reward(Section):
    """The reward function, or several, whose weighted sum is a response's score."""

    reward_function: str | list[str] | None = key(
        None,
        "Python file, or file:function; the function defaults to compute_score (verl) or compute_score_batch (EasyR1); "
        "a list: several, whose weighted sum is the score",
        "REWARD_FUNCTION REWARD_FUNC",
        verl=("reward.custom_reward_function.path", "reward.custom_reward_function.name"),
        computed=True,
        path="input",
        resume="setting",
        option="reward_func",
    )
    reward_weights: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]] = key(
        list, "one weight for each of several reward functions; empty: each counts 1", "REWARD_WEIGHTS", launcher=True
    )
    reward_function_kwargs: dict[str, Any] = key(
        dict,
        "further arguments of the function; the run's files show them: a secret belongs in an environment variable",
        verl="reward.custom_reward_function.reward_kwargs",
    )
    skip_special_tokens: bool = key(True, "decode responses without special tokens", engines=ONLY_EASYR1)
    overlong_buffer: OverlongBuffer = OverlongBuffer()


ROLLOUT = "actor_rollout_ref.rollout"


class ValOverride(Section):
    """Sampling in validation; for a null key the value of training is used."""

    when_resumed: ClassVar[Resume] = "setting"

    temperature: float | None = key(None, "temperature; 0: greedy", ge=0)
    top_p: float | None = key(None, "nucleus", gt=0, le=1)
    top_k: int | None = key(None, "candidates; -1: all", ge=-1)
    n: int = key(1, "responses a prompt", gt=0)


class Rollout(Section):
    """Generation of responses."""

    when_resumed: ClassVar[Resume] = "setting"

    name: Literal["vllm", "sglang"] = key("vllm", "inference engine", values_on={"easyr1": ("vllm",)})
    n: int = key(1, "responses a prompt: the size of a group", "ROLLOUT_N", gt=0, resume="content")
    temperature: float = key(1.0, "sampling temperature", "TEMPERATURE", gt=0, resume="content")
    top_p: float = key(1.0, "nucleus", "TOP_P", gt=0, le=1, resume="content")
    top_k: int = key(-1, "candidates; -1: all", "TOP_K", ge=-1, resume="content")
    seed: int = key(1, "seed of sampling", "SEED", resume="content")
    limit_images: int = key(0, "images a prompt may hold; 0: text only", convert=lambda value: value or None, ge=0)
    dtype: Literal["bf16", "fp16", "fp32"] = key(
        "bf16", "precision of generation", convert=_VERL_PRECISIONS.get, resume="content"
    )
    gpu_memory_utilization: float | None = key(
        0.6,
        "share of a GPU's memory for weights and cache of vLLM; null: 0.6, or what fits the free memory",
        "GPU_MEMORY_UTIL GPU_MEMORY_UTILIZATION",
        left_open=True,
        gt=0,
        lt=1,
    )
    enforce_eager: bool = key(False, "no CUDA graphs: slower, starts sooner, takes less memory")
    enable_chunked_prefill: bool = key(True, "split long prompts while others decode (EasyR1's own default is false)")
    tensor_parallel_size: int = key(
        2, "GPUs that share one vLLM engine", "TENSOR_PARALLEL_SIZE", verl=f"{ROLLOUT}.tensor_model_parallel_size", gt=0
    )
    max_num_batched_tokens: int = key(8192, "tokens vLLM computes at once", gt=0)
    disable_tqdm: bool = key(False, "no progress bar of vLLM", engines=ONLY_EASYR1)
    val_override_config: ValOverride = ValOverride()
    max_num_seqs: int | None = key(
        256,
        "responses vLLM decodes at once; null: a step's responses over its engines, 256 to 1,024",
        left_open=True,
        gt=0,
        engines=ONLY_VERL,
    )
    cudagraph_capture_sizes: list[int] | None = key(
        None, "batch sizes with a CUDA graph; null: some up to max_num_seqs on GPUs", engines=ONLY_VERL
    )
    calculate_log_probs: bool = key(
        True, "compare vLLM's log-probabilities with the trainer's (rollout_corr/kl)", engines=ONLY_VERL
    )
    engine_kwargs: dict[str, Any] = key(
        dict, "further arguments of vLLM's engine", verl=f"{ROLLOUT}.engine_kwargs.vllm", engines=ONLY_VERL
    )


LossType = Literal[
    "default", "gspo", "gspo_token", "cispo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dppo_tv", "dppo_kl"
]
EASYR1_LOSSES = ("default", "gspo", "gspo_token", "cispo", "sapo")
AggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


class Actor(Section):
    """The policy that is trained."""

    strategy: Literal["fsdp", "fsdp2"] = key(
        "fsdp",
        "FSDP version",
        verl=("{role}.strategy", "{fsdp}.strategy"),
        values_on={"easyr1": ("fsdp",)},
        fixed="FSDP 1 and 2 write weights in different forms",
    )
    global_batch_size: int | None = key(
        256,
        "prompts (not responses) an update sees; null: all of a step's",
        "GLOBAL_BATCH_SIZE PPO_MINI_BATCH_SIZE",
        left_open=True,
        verl="{role}.ppo_mini_batch_size",
        gt=0,
    )
    micro_batch_size_per_device_for_update: int | None = key(
        4,
        "responses in one forward and backward pass of a GPU; unused by verl where a token budget fills the passes, as "
        "on GPUs; null: 4, or fewer where they have to divide",
        "MICRO_BATCH_SIZE MICRO_BATCH_SIZE_FOR_UPDATE",
        left_open=True,
        verl="{role}.ppo_micro_batch_size_per_gpu",
        gt=0,
        resume="setting",
    )
    max_grad_norm: float = key(
        1.0,
        "gradients are clipped to this norm",
        "MAX_GRAD_NORM",
        verl=("{role}.optim.clip_grad", "{role}.grad_clip"),
        gt=0,
    )
    ppo_epochs: int = key(1, "passes over a step's responses", "PPO_EPOCHS", gt=0)
    padding_free: bool = key(
        True, "pack responses without padding", "PADDING_FREE", verl="{model}.use_remove_padding", resume="setting"
    )
    dynamic_batching: bool = key(
        True,
        "fill micro-batches by tokens, up to max_token_len_per_device",
        verl="{role}.use_dynamic_bsz",
        resume="setting",
    )
    max_token_len_per_device: int | None = key(
        None,
        "tokens of a dynamic micro-batch; null: as many as fit a GPU (verl), or micro-batch size x (prompt + response)",
        verl="{role}.ppo_max_token_len_per_gpu",
        computed=True,
        engines=ONLY_VERL,
        gt=0,
        resume="setting",
    )
    ulysses_size: int = key(
        1, "GPUs that share one sequence", verl="{role}.ulysses_sequence_parallel_size", gt=0, resume="setting"
    )
    model: Model = Model()
    optim: Optim = Optim()
    fsdp: Fsdp = Fsdp()
    offload: Offload = Offload()
    micro_batch_size_per_device_for_experience: int | None = key(
        16,
        "responses in one forward pass of a GPU, for log-probabilities of policy and reference; null: 8, "
        "or fewer where they have to divide",
        "MICRO_BATCH_SIZE_FOR_EXPERIENCE",
        left_open=True,
        verl=(
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
        ),
        gt=0,
        resume="setting",
    )
    clip_ratio_low: float = key(
        0.2, "lower clip of the ratio", "CLIP_RATIO_LOW", verl=("{role}.clip_ratio_low", "{role}.clip_ratio"), ge=0
    )
    clip_ratio_high: float = key(0.3, "upper clip of the ratio (DAPO: higher than the lower)", "CLIP_RATIO_HIGH", ge=0)
    loss_agg_mode: AggMode = key(
        "token-mean",
        "average of the loss: over all tokens, or first over those of a response",
        "LOSS_AGG_MODE",
        values_on={"easyr1": ("token-mean", "seq-mean-token-mean")},
    )
    loss_scale_factor: int | None = key(
        None,
        "constant length that seq-mean-token-sum-norm (Dr.GRPO) divides by; null: data.max_response_length",
        engines=ONLY_VERL,
        gt=0,
    )
    loss_type: LossType = key(
        "default",
        "policy loss (default: PPO's clip)",
        verl="{role}.policy_loss.loss_mode",
        convert=verl_loss,
        values_on={"easyr1": EASYR1_LOSSES},
    )
    entropy_coeff: float = key(0.0, "weight of the entropy bonus", "ENTROPY_COEFF", engines=ONLY_VERL)
    max_token_len_per_device_for_experience: int | None = key(
        None,
        "as max_token_len_per_device, for log-probabilities; null: as many as fit a GPU (verl), or as that key says",
        verl=(
            "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
            "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
        ),
        computed=True,
        engines=ONLY_VERL,
        gt=0,
        resume="setting",
    )
    use_fused_kernels: bool = key(
        False,
        "the head's product and log-probabilities in one Triton kernel, without logits in memory",
        verl="actor_rollout_ref.model.use_fused_kernels",
        engines=ONLY_VERL,
        resume="setting",
    )
    recompute_old_log_probs: bool | None = key(
        True,
        "compute the policy's log-probabilities before the update too; null: only where a step has several updates",
        verl="algorithm.rollout_correction.bypass_mode",
        computed=True,
        engines=ONLY_VERL,
    )


class Ref(Section):
    """The reference policy of the KL term; batch sizes and packing are the actor's."""

    fsdp: RefFsdp = RefFsdp()
    offload: RefOffload = RefOffload()


class Worker(Section):
    """The networks, generation and the reward."""

    actor: Actor = Actor()
    ref: Ref = Ref()
    rollout: Rollout = Rollout()
    reward: Reward = Reward()
