"""Keys under `worker`: actor, reference, rollout and reward."""

import re
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from recipes.settings import ONLY_EASYR1, ONLY_VERL, SEED, Resume, Section, key

Precision = Literal["fp32", "bf16", "fp16"]
VERL_PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def _joined(value: Any) -> Any:
    """Names joined by commas; they may come as a list, or in brackets as verl's and peft's examples write them."""
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        value = value[1:-1].split(",")
    return ",".join(str(name).strip(" '\"") for name in value) if isinstance(value, list) else value


def module_names(value: str) -> str | list[str]:
    """Names joined by commas as a list; all-linear, or a regular expression, which may have commas, stays text."""
    names = [name.strip() for name in value.split(",") if name.strip()]
    return names if names and all(re.fullmatch(r"[\w.]+", name) for name in names) else value.strip()


def verl_loss(name: str) -> str:
    """verl's name of a policy loss.

    verl's gspo is the token form that EasyR1 calls gspo_token; with one advantage per response, as in GRPO, both forms
    have the same gradient (arXiv:2507.18071, section 4.3).
    """
    return {"default": "vanilla", "gspo_token": "gspo"}.get(name, name)


OTHER_ADAPTERS = "the checkpoint has other adapters"


class Lora(Section):
    """Low-rank adapters; on when `rank` is positive."""

    rank: int = key(0, "LORA_RANK", verl="{model}.lora_rank", ge=0, fixed=OTHER_ADAPTERS)
    """rank of the adapters; 0: train all weights"""
    alpha: int = key(64, "LORA_ALPHA", verl="{model}.lora_alpha", gt=0, needs="rank")
    """the adapters are scaled by alpha / rank"""
    target_modules: Annotated[str, BeforeValidator(_joined)] = key(
        "all-linear", verl="{model}.target_modules", convert=module_names, fixed=OTHER_ADAPTERS, needs="rank"
    )
    """modules to adapt: all-linear, or names joined by commas"""
    exclude_modules: str | None = key(None, verl="{model}.exclude_modules", fixed=OTHER_ADAPTERS, needs="rank")
    """regular expression of modules to leave alone"""


class Model(Section):
    """The weights, and how transformers loads them."""

    when_resumed: ClassVar[Resume] = "setting"

    model_path: str | None = key(None, "MODEL_PATH", verl="{model}.path", path="model", option="model")
    """model folder or name on a hub"""
    tokenizer_path: str | None = key(None, path="model")
    """tokenizer folder or name; null: the model's"""
    override_config: dict[str, Any] = key(dict, resume="content")
    """values that replace those in the model's config"""
    enable_gradient_checkpointing: bool | None = key(True, left_open=True)
    """recompute activations in the backward pass, to save memory; null: on if a GPU's memory is short"""
    use_liger: bool = key(False, engines=ONLY_VERL)
    """liger's kernels for norms, rotary embedding and MLP"""
    trust_remote_code: bool = key(False, verl=("{model}.trust_remote_code", "data.trust_remote_code"))
    """run code that comes with the model (EasyR1's own default is true)"""
    freeze_vision_tower: bool = key(False, engines=ONLY_EASYR1, resume="content")
    """do not train the vision tower"""
    lora: Lora = Lora()


class Optim(Section):
    """AdamW and its schedule.

    In a resumed run verl restores the optimiser's old values; engines/checkpoints.py sets the command's again, so
    a new option that may change on resume has to be set there too.
    """

    lr: float = key(1e-6, "LR LEARNING_RATE", gt=0)
    """learning rate"""
    weight_decay: float = key(1e-2, "WEIGHT_DECAY", ge=0)
    """decoupled weight decay"""
    strategy: Literal["adamw", "adamw_bf16"] = key("adamw", verl=(), computed=True, values_on={"verl": ("adamw",)})
    """optimiser; adamw_bf16 keeps its state in bf16"""
    fused: bool | None = key(
        False,
        left_open=True,
        verl="{actor}.optim.override_optimizer_config.fused",
        computed=True,
        engines=ONLY_VERL,
        resume="setting",
    )
    """AdamW in one kernel, without a copy of the weights; null: on if a GPU's memory is short"""
    lr_warmup_ratio: float = key(0.0, "LR_WARMUP_RATIO", verl="{actor}.optim.lr_warmup_steps_ratio", ge=0, le=1)
    """share of the steps in which the rate rises"""
    lr_warmup_steps: int | None = key(
        None, "LR_WARMUP_STEPS", convert=lambda value: -1 if value is None else value, ge=-1
    )
    """steps in which the rate rises from 0; null: by lr_warmup_ratio"""
    lr_scheduler_type: Literal["constant", "cosine"] = key("constant", "LR_SCHEDULER_TYPE")
    """schedule after the warm-up; cosine falls until the last step"""


class Fsdp(Section):
    """Sharding and precision of the trained model."""

    enable_full_shard: bool = key(True, verl="{fsdp}.reshard_after_forward", resume="setting")
    """shard parameters too (ZeRO-3); false: ZeRO-2"""
    enable_cpu_offload: bool | None = key(
        False, left_open=True, verl="{fsdp}.offload_policy", computed=True, resume="setting"
    )
    """FSDP keeps parameters in CPU memory (verl: only with strategy fsdp2); null: on with adapters if a GPU's memory is
    short"""
    enable_rank0_init: bool = key(True, engines=ONLY_EASYR1, resume="setting")
    """load weights on rank 0 and send them to the others"""
    torch_dtype: Precision | None = key(None, verl="{fsdp}.model_dtype", computed=True)
    """precision of trained weights; null: fp32 (reference on EasyR1 with GPUs: bf16). On verl weights that are not
    trained, of a reference or below adapters, have mp_param_dtype"""
    mp_param_dtype: Precision = key("bf16", verl="{fsdp}.mixed_precision.param_dtype", computed=True)
    """precision of forward and backward"""


class RefFsdp(Fsdp):
    """Sharding and precision of the reference, which is never trained."""

    enable_cpu_offload: bool = key(True, engines=ONLY_EASYR1, resume="setting")
    """FSDP keeps the reference in CPU memory; by default only with several GPUs"""


class RefOffload(Section):
    """Moving weights to CPU memory between their uses."""

    when_resumed: ClassVar[Resume] = "setting"

    offload_params: bool | None = key(False, left_open=True, verl="{fsdp}.param_offload")
    """keep weights in CPU memory between their uses; null: on if a GPU's memory is short"""


class Offload(RefOffload):
    """Moving weights and optimiser state to CPU memory between their uses."""

    offload_optimizer: bool | None = key(False, left_open=True, verl="{fsdp}.optimizer_offload")
    """keep optimiser state in CPU memory between its uses; null: on if a GPU's memory is short"""


class OverlongBuffer(Section):
    """DAPO's soft penalty for responses that come close to the limit (arXiv:2503.14476)."""

    engines: ClassVar[tuple[str, ...]] = ONLY_VERL

    enable: bool = key(False, computed=True)
    """lower the score of responses that end inside the buffer"""
    len: int | None = key(None, computed=True, gt=0, needs="enable")
    """tokens before the limit in which the penalty grows; null: a fifth of data.max_response_length, as published"""
    penalty_factor: float = key(1.0, computed=True, ge=0, needs="enable")
    """penalty at the limit"""


class Reward(Section):
    """The reward function, or several, whose weighted sum is a response's score."""

    reward_function: str | list[str] | None = key(
        None,
        "REWARD_FUNCTION REWARD_FUNC",
        verl=("reward.custom_reward_function.path", "reward.custom_reward_function.name"),
        computed=True,
        path="input",
        resume="setting",
        option="reward_func",
    )
    """Python file, or file:function; the function defaults to compute_score (verl) or compute_score_batch (EasyR1); a
    list: several, whose weighted sum is the score"""
    reward_weights: list[Annotated[float, Field(ge=0, allow_inf_nan=False)]] = key(
        list, "REWARD_WEIGHTS", launcher=True
    )
    """one weight for each of several reward functions; empty: each counts 1"""
    reward_function_kwargs: dict[str, Any] = key(dict, verl="reward.custom_reward_function.reward_kwargs")
    """further arguments of the function; the run's files show them: a secret belongs in an environment variable"""
    skip_special_tokens: bool = key(True, engines=ONLY_EASYR1)
    """decode responses without special tokens"""
    overlong_buffer: OverlongBuffer = OverlongBuffer()


key_of_tools = partial(key, engines=ONLY_VERL, needs="tools", resume="content")


# What vllm/sampling_params.py:569 (`if self.temperature > 2.0:`) and the lines around it take; `top_k` has 32 bits.
MOST_RESPONSES, HOTTEST, COLDEST = 16384, 2, 0.01  # below the coldest vLLM takes it instead, and verl would not
TOP_P: dict[str, Any] = {"gt": 0, "le": 1}
TOP_K: dict[str, Any] = {"ge": -1, "lt": 1 << 31}


class ValOverride(Section):
    """Sampling in validation; for a null key the value of training is used."""

    when_resumed: ClassVar[Resume] = "setting"

    temperature: float | None = key(None, ge=0, le=HOTTEST)
    """temperature; 0: greedy"""
    top_p: float | None = key(None, **TOP_P)
    """share of the probability mass to sample from (nucleus sampling)"""
    top_k: int | None = key(None, **TOP_K)
    """number of most probable tokens to sample from; -1: all"""
    n: int = key(1, gt=0, le=MOST_RESPONSES)
    """responses per prompt"""


class Rollout(Section):
    """Generation of responses."""

    when_resumed: ClassVar[Resume] = "setting"

    name: Literal["vllm", "sglang"] = key("vllm", values_on={"easyr1": ("vllm",)})
    """inference engine"""
    n: int = key(1, "ROLLOUT_N", gt=0, le=MOST_RESPONSES, resume="content")
    """responses per prompt: the size of a group"""
    temperature: float = key(1.0, "TEMPERATURE", ge=COLDEST, le=HOTTEST, resume="content")
    """sampling temperature"""
    top_p: float = key(1.0, "TOP_P", **TOP_P, resume="content")
    """share of the probability mass to sample from (nucleus sampling)"""
    top_k: int = key(-1, "TOP_K", **TOP_K, resume="content")
    """number of most probable tokens to sample from; -1: all"""
    seed: int = key(1, "SEED", **SEED, resume="content")
    """seed of sampling"""
    limit_images: int = key(0, convert=lambda value: value or None, ge=0)
    """images a prompt may hold; 0: text only"""
    dtype: Literal["bf16", "fp16", "fp32"] = key("bf16", convert=VERL_PRECISIONS.get, resume="content")
    """precision of generation"""
    gpu_memory_utilization: float | None = key(
        0.6, "GPU_MEMORY_UTIL GPU_MEMORY_UTILIZATION", left_open=True, gt=0, lt=1
    )
    """share of a GPU's memory for weights and cache of vLLM; null: 0.6, or what fits the free memory"""
    enforce_eager: bool = key(False)
    """no CUDA graphs: slower, starts sooner, takes less memory"""
    enable_chunked_prefill: bool = key(True)
    """split long prompts while others decode (EasyR1's own default is false)"""
    tensor_parallel_size: int = key(2, "TENSOR_PARALLEL_SIZE", verl="{rollout}.tensor_model_parallel_size", gt=0)
    """GPUs that share one vLLM engine"""
    max_num_batched_tokens: int | None = key(8192, left_open=True, gt=0)
    """most tokens in one forward pass of vLLM; null: 16,384, or fewer if a GPU's memory is short"""
    disable_tqdm: bool = key(False, engines=ONLY_EASYR1)
    """no progress bar of vLLM"""
    val_override_config: ValOverride = ValOverride()
    max_num_seqs: int | None = key(256, left_open=True, gt=0, engines=ONLY_VERL)
    """most responses that a vLLM engine decodes at once; null: its share of a step's responses, 256 to 1,024,
    or fewer if a GPU's memory is short"""
    cudagraph_capture_sizes: list[int] | None = key(None, engines=ONLY_VERL)
    """batch sizes with a CUDA graph; null: some up to max_num_seqs on GPUs"""
    calculate_log_probs: bool = key(True, engines=ONLY_VERL)
    """compare vLLM's log-probabilities with the trainer's (rollout_corr/kl)"""
    engine_kwargs: dict[str, Any] = key(dict, verl="{rollout}.engine_kwargs.vllm", engines=ONLY_VERL)
    """further arguments of vLLM's engine"""
    tools: str | None = key(None, "TOOLS", verl=(), computed=True, path="input", engines=ONLY_VERL, resume="content")
    """Python file whose functions the model may call (docs/TOOLS.md); their texts are not trained"""
    tool_format: str = key_of_tools("hermes", "TOOL_FORMAT", verl="{rollout}.multi_turn.format")
    """how calls are written: hermes (<tool_call>{"name": ..., "arguments": ...}</tool_call>), one of verl's others, or
    one that the tools' file registers"""
    max_turns: int = key_of_tools(8, "MAX_TURNS", verl="{rollout}.multi_turn.max_assistant_turns", gt=0)
    """turns of the model in a response, at least 2 with tools; a call in the last one is not run"""
    tool_seconds: float = key_of_tools(10.0, verl=(), computed=True, gt=0)
    """seconds after which a call has failed"""
    max_tool_characters: int = key_of_tools(
        1024, verl="{rollout}.multi_turn.max_tool_response_length", gt=len("... (cut)")
    )
    """characters of a tool's answer, which is cut at its end"""


LossType = Literal[
    "default", "gspo", "gspo_token", "cispo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dppo_tv", "dppo_kl"
]
EASYR1_LOSSES = ("default", "gspo", "gspo_token", "cispo", "sapo")
AggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
EASYR1_MODES = {"token": "token-mean", "seq": "seq-mean-token-mean"}
"""EasyR1's loss_avg_mode -> worker.actor.loss_agg_mode."""


class Actor(Section):
    """The policy that is trained."""

    strategy: Literal["fsdp", "fsdp2"] = key(
        "fsdp",
        verl=("{actor}.strategy", "{fsdp}.strategy"),
        values_on={"easyr1": ("fsdp",)},
        fixed="FSDP 1 and 2 write weights in different forms",
    )
    """FSDP version"""
    global_batch_size: int | None = key(
        256, "GLOBAL_BATCH_SIZE PPO_MINI_BATCH_SIZE", left_open=True, verl="{actor}.ppo_mini_batch_size", gt=0
    )
    """prompts (not responses) an update sees; null: all of a step's"""
    micro_batch_size_per_device_for_update: int | None = key(
        4,
        "MICRO_BATCH_SIZE MICRO_BATCH_SIZE_FOR_UPDATE",
        left_open=True,
        verl="{actor}.ppo_micro_batch_size_per_gpu",
        gt=0,
        resume="setting",
    )
    """responses in one forward and backward pass of a GPU; unused by verl where a token budget fills the passes, as on
    GPUs; null: 4, or the largest number below 4 that divides a GPU's responses of an update"""
    max_grad_norm: float = key(1.0, "MAX_GRAD_NORM", verl="{actor}.optim.clip_grad", gt=0)
    """gradients are clipped to this norm"""
    ppo_epochs: int = key(1, "PPO_EPOCHS", gt=0)
    """passes over a step's responses"""
    padding_free: bool = key(True, "PADDING_FREE", verl="{model}.use_remove_padding", resume="setting")
    """pack responses without padding"""
    dynamic_batching: bool = key(True, verl="{actor}.use_dynamic_bsz", resume="setting")
    """fill micro-batches by tokens, up to max_token_len_per_device"""
    max_token_len_per_device: int | None = key(
        None, verl="{actor}.ppo_max_token_len_per_gpu", computed=True, engines=ONLY_VERL, gt=0, resume="setting"
    )
    """tokens of a dynamic micro-batch; null: as many as fit a GPU (verl), or micro-batch size x (prompt + response)"""
    ulysses_size: int = key(1, verl="{actor}.ulysses_sequence_parallel_size", gt=0, resume="setting")
    """GPUs that share one sequence"""
    model: Model = Model()
    optim: Optim = Optim()
    fsdp: Fsdp = Fsdp()
    offload: Offload = Offload()
    micro_batch_size_per_device_for_experience: int | None = key(
        16,
        "MICRO_BATCH_SIZE_FOR_EXPERIENCE",
        left_open=True,
        verl=("{rollout}.log_prob_micro_batch_size_per_gpu", "{ref}.log_prob_micro_batch_size_per_gpu"),
        gt=0,
        resume="setting",
    )
    """responses in one forward pass of a GPU, for log-probabilities of policy and reference; null: 8, or the largest
    number below 8 that divides a GPU's responses of a step"""
    clip_ratio_low: float = key(0.2, "CLIP_RATIO_LOW", ge=0)
    """lower clip of the ratio"""
    clip_ratio_high: float = key(0.3, "CLIP_RATIO_HIGH", ge=0)
    """upper clip of the ratio (DAPO: higher than the lower)"""
    loss_agg_mode: Annotated[AggMode, BeforeValidator(lambda value: EASYR1_MODES.get(value, value))] = key(
        "token-mean", "LOSS_AGG_MODE", values_on={"easyr1": ("token-mean", "seq-mean-token-mean")}
    )
    """aggregation of the token losses: over all tokens (token-...), or first in each response (seq-mean-token-...)"""
    loss_scale_factor: int | None = key(None, engines=ONLY_VERL, gt=0)
    """constant length that seq-mean-token-sum-norm (Dr.GRPO) divides by; null: data.max_response_length"""
    loss_type: LossType = key(
        "default", verl="{actor}.policy_loss.loss_mode", convert=verl_loss, values_on={"easyr1": EASYR1_LOSSES}
    )
    """policy loss (default: PPO's clip)"""
    entropy_coeff: float = key(0.0, "ENTROPY_COEFF", engines=ONLY_VERL)
    """weight of the entropy bonus"""
    max_token_len_per_device_for_experience: int | None = key(
        None,
        verl=("{rollout}.log_prob_max_token_len_per_gpu", "{ref}.log_prob_max_token_len_per_gpu"),
        computed=True,
        engines=ONLY_VERL,
        gt=0,
        resume="setting",
    )
    """as max_token_len_per_device, for log-probabilities; null: as many as fit a GPU (verl), or as that key says"""
    use_fused_kernels: bool = key(False, verl="{model}.use_fused_kernels", engines=ONLY_VERL, resume="setting")
    """the head's product and log-probabilities in one step, in Triton or PyTorch, without all logits in memory"""
    recompute_old_log_probs: bool | None = key(True, verl=(), computed=True, engines=ONLY_VERL)
    """compute the policy's log-probabilities in a pass before the update too; null: only where the update's own cannot
    replace them, as with several updates in a step"""


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
