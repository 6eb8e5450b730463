"""Keys under `monitor`: bounds of the health rules (recipes/monitor/rules.py), which change nothing in a run."""

from __future__ import annotations

from recipes.config.schema.field import Section, key


class Monitor(Section):
    """From where on a rule warns. Windows of steps are compared, never single ones."""

    window: int = key(5, "steps in a window", ge=2)
    entropy_collapse: float = key(0.01, "nats a token; below it the policy has collapsed", ge=0)
    entropy_low: float = key(0.03, "nats a token; below it a warning", ge=0)
    entropy_change: float = key(3.0, "warn where entropy is so many times its first window's, or that part of it", gt=1)
    kl: float = key(0.5, "nats a token to the reference", gt=0)
    kl_growth: float = key(4.0, "warn where KL grows by this factor from window to window, above a fifth of kl", gt=1)
    grad_norm: float = key(5.0, "norm of the gradient before clipping, median of a window", gt=0)
    grad_norm_spike: float = key(10.0, "warn where a step's norm is so many times the median", gt=1)
    flat_groups: float = key(0.8, "share of zero-variance groups (all responses have the same score)", gt=0, le=1)
    clip_fraction: float = key(0.3, "share of tokens whose ratio is clipped", gt=0, le=1)
    truncation: float = key(0.25, "share of responses cut at max_response_length", gt=0, le=1)
    length_change: float = key(3.0, "warn where responses are so many times their first length, or that part", gt=1)
    rollout_kl: float = key(0.02, "nats a token between vLLM and the trainer; rounding in 16 bits stays below", gt=0)
    reward_gain: float = key(0.1, "rise of the training score that a held-out accuracy should follow", gt=0)
    step_time: float = key(1.5, "warn where steps take so many times as long as the first window's", gt=1)
    silence: float = key(10.0, "warn after so many times a step's usual time without a sign of life", gt=1)
