"""The lines of EasyR1 b44b311 that do not fit: one entry each, with what is read instead, and why.

A line takes part only where `when` says so: those of `VERSIONS` where an installed package has moved on, so none on
EasyR1's own pins; those of `DEVICES` on a machine without a GPU; those of `FAULTS` (wrong with any versions) and
`REPORTS` (what this repository reads of a run) always.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

from recipes.config.gpus import PACKED_ATTENTION
from recipes.errors import RecipeError

HERE = "recipes.engines.easyr1_compat"


def always() -> bool:
    """True: the entry takes part in every run."""
    return True


@dataclass(frozen=True)
class Line:
    """One line of EasyR1.

    Attributes:
        file, number: where it stands, from the folder of EasyR1's source.
        old, new: a part of the line, and what is read in its place; the number of lines stays.
        why: for people.
        when: whether this machine asks for it.
    """

    file: str
    number: int
    old: str
    new: str
    why: str
    when: Callable[[], bool] = always

    @property
    def module(self) -> str:
        """The module that has the line."""
        return self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _lacks(module: str, name: str) -> Callable[[], bool]:
    return lambda: not hasattr(importlib.import_module(module), name)


def _without_flash_attn() -> bool:
    return find_spec("flash_attn") is None


def _without_lora_models() -> bool:
    return find_spec("vllm.lora.models") is None


def _towers_answer_with_objects() -> bool:
    return int(version("transformers").split(".")[0]) >= 5


def _templates_give_dicts() -> bool:
    from transformers import PreTrainedTokenizerBase

    return inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters["return_dict"].default is True


def _cache_is_sized() -> bool:
    from vllm.engine.arg_utils import EngineArgs

    return "disable_mm_preprocessor_cache" not in inspect.signature(EngineArgs).parameters


def _vllm_normalises() -> bool:
    from vllm.engine.arg_utils import EngineArgs

    return "mm_device_do_normalize" in inspect.signature(EngineArgs).parameters


def _ends_are_fixed() -> bool:
    from vllm import SamplingParams

    ends = getattr(SamplingParams, "eos_token_id", None)
    return isinstance(ends, property) and ends.fset is None


def _lora_lost_embeddings() -> bool:
    from vllm.lora.lora_model import LoRAModel

    return "embedding_modules" not in inspect.signature(LoRAModel.from_lora_tensors).parameters


def _peft_asks_the_tuner() -> bool:
    from peft.tuners.tuners_utils import BaseTuner

    return hasattr(BaseTuner, "_get_adapter_state_dict")


_ROLLOUT = "verl/workers/rollout/vllm_rollout_spmd.py"
_SHARDING = "verl/workers/sharding_manager/fsdp_vllm.py"
_WORKERS = "verl/workers/fsdp_workers.py"
_ATTENTION = "verl/models/transformers/flash_attention_utils.py"
_TRAINER = "verl/trainer/ray_trainer.py"
_SAVES = "verl/utils/checkpoint/fsdp_checkpoint_manager.py"
_FLASH = "there is no flash-attn; torch has the same kernel (recipes/engines/packed_attention.py)"
_TOWER = "transformers 5: the vision tower answers with an object"
_NO_GPU = "no GPU"

VERSIONS = (
    Line(
        *("verl/utils/vllm_utils.py", 20, "vllm.lora.models", "vllm.lora.lora_model"),
        *("vLLM moved the class", _without_lora_models),
    ),
    Line(
        *(_WORKERS, 40, "from transformers.modeling_utils import", "from transformers.initialization import"),
        *("transformers 5 moved the function", _lacks("transformers.modeling_utils", "no_init_weights")),
    ),
    Line(
        *(_WORKERS, 42, "import apply_ulysses_patch"),
        "import apply_ulysses_patch; from recipes.engines.packed_attention import registered",
        *(_FLASH, _without_flash_attn),
    ),
    *(
        Line(_WORKERS, number, '="flash_attention_2"', "=registered()", _FLASH, _without_flash_attn)
        for number in (215, 225)
    ),
    Line(
        *("verl/models/monkey_patch.py", 45, '"flash_attention_2"', f'"{PACKED_ATTENTION}"'),
        *(_FLASH, _without_flash_attn),
    ),
    Line(_ATTENTION, 34, "is_flash_attn_2_available()", "True", _FLASH, _without_flash_attn),
    Line(
        *(_ATTENTION, 35, "from flash_attn import flash_attn_func, flash_attn_varlen_func"),
        "from recipes.engines.packed_attention import batched_attention as flash_attn_func, "
        "packed_attention as flash_attn_varlen_func",
        *(_FLASH, _without_flash_attn),
    ),
    Line(_ATTENTION, 40, "not is_flash_attn_greater_or_equal_2_10()", "False", _FLASH, _without_flash_attn),
    Line(
        *(_ATTENTION, 135, "**kwargs", f'attn_implementation="{PACKED_ATTENTION}", **kwargs'),
        *(_FLASH, _without_flash_attn),
    ),
    Line(
        *("verl/workers/actor/dp_actor.py", 40),
        "from flash_attn.bert_padding import index_first_axis, pad_input, rearrange, unpad_input",
        "from transformers.modeling_flash_attention_utils import _pad_input as pad_input, "
        "_unpad_input as unpad_input; index_first_axis = lambda tensor, indices: tensor[indices]",
        *(_FLASH, _without_flash_attn),
    ),
    Line(
        *(_ROLLOUT, 121, '["disable_mm_preprocessor_cache"] = True', '["mm_processor_cache_gb"] = 0'),
        *("vLLM gave the cache a size in place of the switch", _cache_is_sized),
    ),
    Line(
        *(_ROLLOUT, 131, "if not self.lora_kwargs else", "if not self.lora_kwargs and processor is None else"),
        *("vLLM normalises images by buffers, which random weights would fill and no sync sends", _vllm_normalises),
    ),
    Line(
        *(_ROLLOUT, 125, "VLLMHijack.hijack()", f"from {HERE}.adapters import load_tensors; load_tensors()"),
        *("the arguments of vLLM's LoRA loader changed", _lora_lost_embeddings),
    ),
    Line(
        *(_ROLLOUT, 170, "hasattr(self.sampling_params, key)", "key in self.sampling_params.__struct_fields__"),
        *("vLLM: `eos_token_id` became a property that cannot be set", _ends_are_fixed),
    ),
    Line(
        *(_SHARDING, 62, "get_tensor_model_parallel_group", "get_tp_group"),
        "vLLM renamed the function",
        _lacks("vllm.distributed.parallel_state", "get_tensor_model_parallel_group"),
    ),
    *(
        Line(
            *("verl/models/transformers/qwen2_vl.py", number, f"{rows}_grid_thw)", f"{rows}_grid_thw).pooler_output"),
            *(_TOWER, _towers_answer_with_objects),
        )
        for number, rows in ((145, "image"), (163, "video"), (184, "image"))
    ),
    *(
        Line(
            *("verl/models/transformers/qwen3_vl.py", number, "= model.visual("),
            f"= __import__('{HERE}.devices', fromlist=['features']).features(model.visual)(",
            *(_TOWER, _towers_answer_with_objects),
        )
        for number in (148, 166, 211)
    ),
    Line(
        *(
            "verl/utils/dataset.py",
            216,
            "add_generation_prompt=True)",
            "add_generation_prompt=True, return_dict=False)",
        ),
        "transformers 5 gives a dict of length 2: no prompt would ever be too long",
        _templates_give_dicts,
    ),
    *(
        Line(
            *(file, number, "PeftModel, get_peft_model_state_dict"),
            f"PeftModel; from {HERE}.adapters import get_peft_model_state_dict",
            *("peft looks for other names, finds none, and vLLM would get an empty adapter", _peft_asks_the_tuner),
        )
        for file, number in ((_SHARDING, 23), (_SAVES, 22))
    ),
)

FAULTS = (
    Line(
        *(_WORKERS, 495, "load_checkpoint(path)"),
        f"load_checkpoint(path); from {HERE} import models; models.set_again(self, path)",
        "a resumed run would keep the checkpoint's learning rate, whatever its command says",
    ),
    *(
        Line(
            *("verl/utils/logger/logger.py", number, '"w"', '"a"'),
            "a resumed run would empty its own history",
        )
        for number in (72, 75)
    ),
    Line(
        *(_ROLLOUT, 158, "if hasattr(", 'if key != "seed" and hasattr('),
        "the engine's seed would be every request's: the same noise in every step",
    ),
    Line(
        *(_WORKERS, 258, "model = model.to(torch_dtype)"),
        "[setattr(weight, 'data', weight.data.to(torch_dtype)) for weight in model.parameters()]",
        "the rotary embedding's frequencies, which are no weights, would be rounded to the reference's bf16",
    ),
    Line(
        *("verl/utils/flops_counter.py", 39, '"H800" in device_name', '"H800" in device_name or "H200" in device_name'),
        "H200 has H20 in its name: utilisation would be counted against 148 TFLOP/s, not 989",
    ),
    Line(
        *(_TRAINER, 691, "is not None:", "is not None and self.config.trainer.val_freq > 0:"),
        "val_freq -1 is no validation, says the key; one came at the end all the same",
    ),
    Line(
        *(_TRAINER, 702, "save_freq <= 0 or", "save_freq > 0 and"),
        "save_freq -1 is no saving, says the key; the last step was saved all the same",
    ),
)

REPORTS = (
    Line(
        *("verl/trainer/main.py", 17, "import ray", f"import ray; from {HERE}.imports import ray_arguments"),
        "imports what the next line calls",
    ),
    Line(
        *("verl/trainer/main.py", 115, "runtime_env=runtime_env", "**ray_arguments(runtime_env)"),
        "Ray as the launcher wants it; its workers read these lines too",
    ),
    Line(
        *("verl/workers/reward/function.py", 25, "import DataProto", f"import DataProto; from {HERE} import reports"),
        "imports what the next line calls",
    ),
    Line(
        *("verl/workers/reward/function.py", 104, "reward_tensor, reward_metrics"),
        "reward_tensor, reports.Parts(reward_metrics, scores)",
        "which response each part of a reward belongs to: parts may differ from one to the next",
    ),
    Line(
        *(_TRAINER, 41, "import Tracker", f"import Tracker; from {HERE} import reports"),
        "imports what the lines below call",
    ),
    Line(
        *(
            _TRAINER,
            421,
            "remote(test_batch))",
            "remote(test_batch)); reports.validated(self, test_batch, reward_tensor, reward_metrics)",
        ),
        "the validation's responses",
    ),
    Line(
        *(_TRAINER, 447, "**val_length_metrics}", "**val_length_metrics, **reports.end_validation(self)}"),
        "validation by data source",
    ),
    Line(
        *(_TRAINER, 519, "remote(new_batch))", "remote(new_batch)); reports.scored(new_batch, reward_metrics)"),
        "each response keeps the parts of its reward",
    ),
    Line(
        *(_TRAINER, 629, "ray.get(reward_ref)", "ray.get(reward_ref); reports.scored(batch, reward_metrics)"),
        "each response keeps the parts of its reward",
    ),
    Line(
        *(
            _TRAINER,
            683,
            "use_critic=self.use_critic))",
            "use_critic=self.use_critic)); reports.end_step(self, batch, metrics)",
        ),
        "the step's responses, and whether vLLM and the trainer agree",
    ),
    *(
        Line(
            *(_TRAINER, number, "self._save_checkpoint()", "self._save_checkpoint(); reports.saved(self)"),
            "a run that was asked to end ends after a save",
        )
        for number in (679, 703)
    ),
    Line(
        *("verl/utils/logger/logger.py", 26, "GenerationsLogger", f"GenerationsLogger; from {HERE} import reports"),
        "imports what the next line calls",
    ),
    Line(
        *("verl/utils/logger/logger.py", 181, "in self.loggers", "in reports.logged(self.loggers, data, step)"),
        "the file that this repository reads",
    ),
    Line(
        *(_ROLLOUT, 152, '"max_tokens"', '"logprobs": 0, "max_tokens"'),
        "vLLM's log-probability of each sampled token",
    ),
    Line(
        *(_ROLLOUT, 31, "import VLLMHijack", f"import VLLMHijack; from {HERE} import reports"),
        "imports what the next line calls",
    ),
    Line(
        *(_ROLLOUT, 267, '"response_mask": response_mask,'),
        '"response_mask": response_mask, "rollout_log_probs": reports.sampled(completions, response_ids),',
        "vLLM's log-probability of each sampled token",
    ),
    Line(
        *(_SAVES, 158, "dist.barrier()", f"from {HERE} import models; models.write(self.model, path); dist.barrier()"),
        "weights for vLLM and transformers",
    ),
)

DEVICES = (
    Line(
        *("verl/__init__.py", 17, "import is_package_available"),
        f"import is_package_available; from {HERE} import devices; devices.stand_in()",
        "torch.cuda answers for the CPU",
    ),
    Line(
        *("verl/protocol.py", 741, "data.batch.cuda(device=torch.cuda.current_device())", "data.batch"),
        _NO_GPU,
    ),
    *(
        Line(file, number, '"cuda"', '"cpu"', _NO_GPU)
        for file, numbers in (
            (_SAVES, (141,)),
            ("verl/utils/fsdp_utils.py", (129, 163, 195)),
            ("verl/utils/seqlen_balancing.py", (255,)),
            (_WORKERS, (123, 126, 132, 216, 387)),
        )
        for number in numbers
    ),
    Line(_WORKERS, 83, '"nccl"', '"gloo"', _NO_GPU),
    *(
        Line(_WORKERS, number, "torch.cuda.current_device()", 'torch.device("cpu")', _NO_GPU)
        for number in (317, 555, 637, 673, 702, 724)
    ),
    *(
        Line("verl/trainer/data_loader.py", number, "num_workers=8", "num_workers=0", "each would be one more process")
        for number in (62, 95)
    ),
    Line(_ROLLOUT, 143, "enable_sleep_mode=True", "enable_sleep_mode=False", "vLLM's CPU build cannot sleep"),
    Line(_ROLLOUT, 149, "self.inference_engine.sleep(level=1)", "pass", "vLLM's CPU build cannot sleep"),
    Line(_SHARDING, 182, 'self.inference_engine.wake_up(tags=["weights"])', "pass", "it does not sleep"),
    Line(_SHARDING, 189, 'self.inference_engine.wake_up(tags=["kv_cache"])', "pass", "it does not sleep"),
    Line(_SHARDING, 204, "self.inference_engine.sleep(level=1)", "pass", "vLLM's CPU build cannot sleep"),
    Line(
        *(_ROLLOUT, 31, "import VLLMHijack", f"import VLLMHijack; from {HERE} import devices; devices.prepare_vllm()"),
        "vLLM's CPU build keeps weights that can be replaced",
    ),
    Line(_ATTENTION, 91, "target_dtype=torch.bfloat16", "target_dtype=None", "the CPU's attention computes in fp32"),
)


def chosen(on_cpu: bool) -> tuple[Line, ...]:
    """The entries that may take part on this machine, in the order in which they are applied."""
    return VERSIONS + FAULTS + REPORTS + (DEVICES if on_cpu else ())


def applied(source: str, file: str, entries: tuple[Line, ...]) -> str:
    """The source of a file with its lines replaced; as many lines as before.

    Raises:
        RecipeError: a line does not read as it should, and no other line of the file does.
    """
    text = source.splitlines(keepends=True)
    original = list(text)
    for entry in entries:
        if entry.file != file or not entry.when():
            continue
        place = _place(entry, original)
        text[place] = text[place].replace(entry.old, entry.new)
    return "".join(text)


def _place(entry: Line, text: list[str]) -> int:
    """The line's index: at its number, or, in another commit, where the only such line stands."""
    if entry.number <= len(text) and entry.old in text[entry.number - 1]:
        return entry.number - 1
    found = [index for index, line in enumerate(text) if entry.old in line]
    if len(found) != 1:
        raise RecipeError(
            f"EasyR1 has changed: {len(found)} lines of {entry.file} read {entry.old!r} ({entry.why})",
            where=f"{entry.file}:{entry.number} of EASYR1_HOME",
            fix="check out the tested commit: bash scripts/setup_env.sh easyr1",
        )
    return found[0]
