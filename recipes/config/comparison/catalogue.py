"""Which official examples are compared with, under which names, and where they lie in their repositories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Engine = Literal["easyr1", "verl"]

REPOSITORIES: dict[Engine, str] = {
    "easyr1": "https://github.com/hiyouga/EasyR1",
    "verl": "https://github.com/volcengine/verl",
}


@dataclass(frozen=True)
class Example:
    """One official launcher.

    Attributes:
        title: head of its column.
        file: its path in the engine's repository.
    """

    title: str
    file: str


EXAMPLES: dict[Engine, dict[str, Example]] = {
    "easyr1": {
        "qwen2_5_vl_3b_geo3k": Example("EasyR1, Qwen2.5-VL-3B, geo3k", "examples/qwen2_5_vl_3b_geo3k_grpo.sh"),
        "qwen2_5_vl_7b_geo3k": Example("EasyR1, Qwen2.5-VL-7B, geo3k", "examples/qwen2_5_vl_7b_geo3k_grpo.sh"),
        "qwen2_5_vl_3b_android_gui": Example(
            "EasyR1, Qwen2.5-VL-3B, number game on Android", "examples/qwen2_5_vl_3b_android_gui_grpo.sh"
        ),
        "qwen3_4b_math": Example("EasyR1, Qwen3-4B, math12k", "examples/qwen3_4b_math_grpo.sh"),
        "qwen2_5_7b_math": Example("EasyR1, Qwen2.5-7B, math12k", "examples/qwen2_5_7b_math_grpo.sh"),
    },
    "verl": {
        "qwen2_5_3b_gsm8k_lora": Example(
            "verl, Qwen2.5-3B with LoRA, GSM8K", "examples/grpo_trainer/run_qwen2_5-3b_gsm8k_grpo_lora.sh"
        ),
        "qwen2_7b_gsm8k": Example("verl, Qwen2-7B, GSM8K", "examples/grpo_trainer/run_qwen2-7b.sh"),
        "qwen3_4b_gsm8k_npu": Example(
            "verl, Qwen3-4B on NPUs, GSM8K", "examples/grpo_trainer/run_qwen3_4b_grpo_vllm_1k_npu.sh"
        ),
        "qwen3_8b_gsm8k": Example("verl, Qwen3-8B, GSM8K", "examples/grpo_trainer/run_qwen3-8b.sh"),
        "qwen2_5_vl_7b_geo3k": Example("verl, Qwen2.5-VL-7B, geo3k", "examples/grpo_trainer/run_qwen2_5_vl-7b.sh"),
    },
}

# Short names; an engine's name alone means all of its own.
SHORT: dict[Engine, dict[str, str]] = {
    "easyr1": {"3b": "qwen2_5_vl_3b_geo3k", "7b": "qwen2_5_vl_7b_geo3k"},
    "verl": {"3b": "qwen2_5_3b_gsm8k_lora", "7b": "qwen2_7b_gsm8k"},
}
