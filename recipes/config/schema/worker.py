"""Keys under `worker`: actor, reference, critic."""

from __future__ import annotations

from typing import Literal

from recipes.config.schema.field import Section, key, only_verl
from recipes.config.schema.model import Offload, RefFsdp, Updates
from recipes.config.schema.reward import Reward
from recipes.config.schema.rollout import Rollout

LossType = Literal[
    "default", "gspo", "gspo_token", "cispo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dppo_tv", "dppo_kl"
]
EASYR1_LOSSES = ("default", "gspo", "gspo_token", "cispo", "sapo")
AggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


class Actor(Updates):
    """The policy that is trained."""

    micro_batch_size_per_device_for_experience: int = key(
        16,
        "responses in one forward pass of a GPU, for log-probabilities of policy and reference; null in a file: 8, "
        "or fewer where they have to divide",
        verl=(
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
        ),
        gt=0,
    )
    clip_ratio_low: float = key(
        0.2, "lower clip of the ratio", verl=("{role}.clip_ratio_low", "{role}.clip_ratio"), ge=0
    )
    clip_ratio_high: float = key(
        0.3, "upper clip of the ratio (DAPO: higher than the lower)", verl="{role}.clip_ratio_high", ge=0
    )
    clip_ratio_dual: float = key(3.0, "dual clip of negative advantages", verl="{role}.clip_ratio_c", gt=1)
    loss_avg_mode: Literal["token", "seq"] = key(
        "token", "average over all tokens, or over responses", verl="{role}.loss_agg_mode", via="rule"
    )
    loss_agg_mode: AggMode | None = key(
        None,
        "verl's finer choice of the average; null: by loss_avg_mode",
        verl="{role}.loss_agg_mode",
        via="rule",
        twin=True,
        not_on=only_verl(),
    )
    loss_scale_factor: int | None = key(
        None,
        "constant length that seq-mean-token-sum-norm (Dr.GRPO) divides by; null: data.max_response_length",
        verl="{role}.loss_scale_factor",
        via="rule",
        twin=True,
        not_on=only_verl(),
        gt=0,
    )
    loss_type: LossType = key(
        "default",
        "policy loss (default: PPO's clip)",
        verl="{role}.policy_loss.loss_mode",
        via="loss_type",
        values_on={"easyr1": EASYR1_LOSSES},
    )
    entropy_coeff: float = key(0.0, "weight of the entropy bonus", verl="{role}.entropy_coeff", not_on=only_verl())
    use_torch_compile: bool = key(
        True, "compile with torch.compile", verl=("{role}.use_torch_compile", "{fsdp}.use_torch_compile")
    )
    tau_positive: float = key(1.0, "temperature of SAPO for positive advantages", verl="{role}.tau_pos", gt=0)
    tau_negative: float = key(1.05, "temperature of SAPO for negative advantages", verl="{role}.tau_neg", gt=0)


class Ref(Section):
    """The reference policy of the KL term; batch sizes and packing are the actor's."""

    strategy: Literal["fsdp", "fsdp2"] = key(
        "fsdp", "FSDP version", verl="{role}.strategy", via="rule", values_on={"easyr1": ("fsdp",)}
    )
    fsdp: RefFsdp = RefFsdp()
    offload: Offload = Offload()


class Critic(Updates):
    """The value network of adv_estimator gae, laid out as the actor is unless a key says otherwise."""

    micro_batch_size_per_device_for_experience: int = key(
        16, "responses in one forward pass of a GPU, for values", verl="{role}.forward_micro_batch_size_per_gpu", gt=0
    )
    cliprange_value: float = key(0.5, "clip of the value", verl="{role}.cliprange_value", gt=0)
    loss_avg_mode: Literal["token", "seq"] = key(
        "token", "average over all tokens, or over responses", verl="{role}.loss_agg_mode", via="rule"
    )
    padding_free: bool = key(
        False,
        "pack responses without padding",
        verl=("{model}.use_remove_padding", "{fsdp}.use_remove_padding"),
        via="rule",
    )


class Worker(Section):
    """The networks, generation and the reward."""

    hybrid_engine: bool = key(
        True, "actor and rollout share the GPUs", verl="actor_rollout_ref.hybrid_engine", values_on={"easyr1": (True,)}
    )
    actor: Actor = Actor()
    ref: Ref = Ref()
    critic: Critic = Critic()
    rollout: Rollout = Rollout()
    reward: Reward = Reward()
