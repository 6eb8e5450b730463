"""Keys that actor, critic and reference share: the model, its optimiser, and how FSDP lays it out.

verl's names hold `{role}`, `{model}` or `{fsdp}`, which `field.VERL_PLACES` fills in for each of the three.
"""

from __future__ import annotations

from typing import Any, Literal

from recipes.config.schema.field import Section, key, only_easyr1, only_verl

Precision = Literal["fp32", "bf16", "fp16"]


class Lora(Section):
    """Low-rank adapters; on when `rank` is positive."""

    rank: int = key(0, "rank of the adapters; 0: train all weights", verl="{model}.lora_rank", ge=0)
    alpha: int = key(64, "scale of the adapters", verl="{model}.lora_alpha", gt=0)
    target_modules: str = key(
        "all-linear",
        "modules to adapt: all-linear, or names joined by commas",
        verl="{model}.target_modules",
        via="comma_list",
    )
    exclude_modules: str | None = key(
        None, "regular expression of modules to leave alone", verl="{model}.exclude_modules"
    )


class Model(Section):
    """The weights, and how transformers loads them."""

    model_path: str | None = key(
        None,
        "model folder or name on a hub (critic: null is the actor's)",
        verl="{model}.path",
        via="rule",
        twin=True,
        path="model",
    )
    tokenizer_path: str | None = key(
        None, "tokenizer folder or name; null: the model's", verl="{model}.tokenizer_path", path="model"
    )
    override_config: dict[str, Any] = key(
        dict, "values that replace those in the model's config", verl="{model}.override_config"
    )
    enable_gradient_checkpointing: bool = key(
        True,
        "compute activations again in the backward pass, to save memory",
        verl="{model}.enable_gradient_checkpointing",
    )
    trust_remote_code: bool = key(
        False,
        "run code that comes with the model (EasyR1's own default is true)",
        verl="{model}.trust_remote_code",
        via="rule",
        twin=True,
    )
    freeze_vision_tower: bool = key(
        False,
        "do not train the vision tower",
        not_on=only_easyr1("verl 0.9.1 accepts actor.freeze_vision_tower, but its FSDP engine never reads it"),
    )
    lora: Lora = Lora()


class Optim(Section):
    """AdamW and its schedule."""

    lr: float = key(1e-6, "learning rate", verl="{role}.optim.lr", gt=0)
    betas: list[float] = key(
        lambda: [0.9, 0.999], "decay of the two moments", verl="{role}.optim.betas", min_length=2, max_length=2
    )
    weight_decay: float = key(1e-2, "decoupled weight decay", verl="{role}.optim.weight_decay", ge=0)
    strategy: Literal["adamw", "adamw_bf16"] = key(
        "adamw", "optimiser; adamw_bf16 keeps its state in bf16", via="rule", values_on={"verl": ("adamw",)}
    )
    lr_warmup_ratio: float = key(
        0.0, "share of the steps in which the rate rises", verl="{role}.optim.lr_warmup_steps_ratio", ge=0, le=1
    )
    lr_warmup_steps: int | None = key(
        None,
        "steps in which the rate rises; null: by lr_warmup_ratio",
        verl="{role}.optim.lr_warmup_steps",
        via="minus_one_if_null",
    )
    min_lr_ratio: float | None = key(
        None,
        "rate at the end of a cosine, as a share of lr; null: 0",
        verl="{role}.optim.min_lr_ratio",
        via="zero_if_null",
    )
    lr_scheduler_type: Literal["constant", "cosine"] = key(
        "constant", "schedule after the warm-up", verl="{role}.optim.lr_scheduler_type"
    )


class Fsdp(Section):
    """Sharding and precision of the trained model."""

    enable_full_shard: bool = key(
        True, "shard parameters too (ZeRO-3); false: ZeRO-2", verl="{fsdp}.reshard_after_forward"
    )
    enable_cpu_offload: bool = key(
        False,
        "FSDP keeps parameters in CPU memory (verl: only with strategy fsdp2)",
        verl="{fsdp}.offload_policy",
        via="rule",
    )
    enable_rank0_init: bool = key(
        True, "load weights on rank 0 and send them to the others", not_on=only_easyr1("verl always loads on rank 0")
    )
    use_orig_params: bool = key(False, "FSDP1 keeps the original parameters", verl="{fsdp}.use_orig_params")
    torch_dtype: Precision | None = key(
        None,
        "precision of the master weights; null: fp32 (reference: bf16 on EasyR1)",
        verl="{fsdp}.model_dtype",
        via="rule",
    )
    fsdp_size: int = key(-1, "ranks that share one copy of the model; -1: all", verl="{fsdp}.fsdp_size")
    mp_param_dtype: Precision = key(
        "bf16", "precision of forward and backward", verl="{fsdp}.mixed_precision.param_dtype", via="rule"
    )
    mp_reduce_dtype: Precision = key(
        "fp32", "precision of the gradients' reduction", verl="{fsdp}.mixed_precision.reduce_dtype", via="rule"
    )
    mp_buffer_dtype: Precision = key(
        "fp32", "precision of buffers", verl="{fsdp}.mixed_precision.buffer_dtype", via="rule"
    )


class RefFsdp(Fsdp):
    """The reference is never trained, so it rests in CPU memory."""

    enable_cpu_offload: bool = key(
        True,
        "FSDP keeps the reference in CPU memory",
        not_on=only_easyr1("verl's FSDP engine always keeps a forward-only model in CPU memory"),
    )


class Offload(Section):
    """Moving weights and optimiser state to CPU memory between their uses."""

    offload_params: bool = key(False, "weights rest in CPU memory", verl="{fsdp}.param_offload")
    offload_optimizer: bool = key(False, "optimiser state rests in CPU memory", verl="{fsdp}.optimizer_offload")


class Updates(Section):
    """What every trained network has: batch sizes, clipping, packing, and its model."""

    strategy: Literal["fsdp", "fsdp2"] = key(
        "fsdp", "FSDP version", verl=("{role}.strategy", "{fsdp}.strategy"), values_on={"easyr1": ("fsdp",)}
    )
    global_batch_size: int = key(
        256,
        "prompts (not responses) an update sees; null in a file: all of a step's",
        verl="{role}.ppo_mini_batch_size",
        gt=0,
    )
    micro_batch_size_per_device_for_update: int = key(
        4,
        "responses in one forward and backward pass of a GPU; null in a file: 4, or fewer where they have to divide",
        verl="{role}.ppo_micro_batch_size_per_gpu",
        gt=0,
    )
    max_grad_norm: float = key(
        1.0, "gradients are clipped to this norm", verl=("{role}.optim.clip_grad", "{role}.grad_clip"), gt=0
    )
    ppo_epochs: int = key(1, "passes over a step's responses", verl="{role}.ppo_epochs", gt=0)
    padding_free: bool = key(
        True, "pack responses without padding (needs flash-attn on a GPU)", verl="{model}.use_remove_padding"
    )
    dynamic_batching: bool = key(
        True,
        "fill micro-batches by tokens, up to micro-batch size x longest sequence",
        verl="{role}.use_dynamic_bsz",
        via="rule",
    )
    max_token_len_per_device: int | None = key(
        None,
        "tokens of a dynamic micro-batch; null: micro-batch size x (prompt + response)",
        verl="{role}.ppo_max_token_len_per_gpu",
        via="rule",
        not_on=only_verl("EasyR1 always derives it from the micro-batch size"),
        gt=0,
    )
    ulysses_size: int = key(1, "GPUs that share one sequence", verl="{role}.ulysses_sequence_parallel_size", gt=0)
    model: Model = Model()
    optim: Optim = Optim()
    fsdp: Fsdp = Fsdp()
    offload: Offload = Offload()
