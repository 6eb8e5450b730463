"""LoRA between EasyR1's trainer, peft and vLLM: present versions have other names and arguments."""

from __future__ import annotations

from typing import Any


def get_peft_model_state_dict(model: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
    """The adapter's tensors in `state_dict`, by their names without the adapter's own.

    EasyR1 hands over the weights of one layer, by names relative to it
    (EasyR1/verl/workers/sharding_manager/fsdp_vllm.py:115 (`get_model_state_dict(submodule)`)), or those of the model.
    """
    return {name.replace(".default", ""): value for name, value in state_dict.items() if "lora_" in name}


def load_tensors() -> None:
    """Have vLLM load an adapter from tensors where a request of EasyR1 brings them.

    EasyR1/verl/utils/vllm_utils.py:33 (`def hijack`) does so for the arguments of an older vLLM.
    """
    from verl.utils.vllm_utils import TensorLoRARequest
    from vllm.lora.peft_helper import PEFTHelper
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager

    from_file = LRUCacheWorkerLoRAManager._load_adapter
    if getattr(from_file, "takes_tensors", False):
        return

    def load(self: Any, lora_request: Any) -> Any:
        if not isinstance(lora_request, TensorLoRARequest):
            return from_file(self, lora_request)
        helper = PEFTHelper.from_dict(lora_request.peft_config)
        helper.validate_legal(self.lora_config)
        model = self._adapter_manager.model
        mapper: Any = getattr(model, "hf_to_vllm_mapper", None)
        if hasattr(mapper, "get_unstacked_mapper"):  # vLLM 0.25 or newer: its maps also join what the manager joins
            mapper = mapper.get_unstacked_mapper()
        lora = self._lora_model_cls.from_lora_tensors(
            lora_model_id=lora_request.lora_int_id,
            tensors=lora_request.lora_tensors,
            peft_helper=helper,
            device="cpu",
            dtype=self.lora_config.lora_dtype,
            model_vocab_size=self.vocab_size,
            weights_mapper=mapper,
            skip_prefixes=getattr(model, "lora_skip_prefixes", None),
        )
        lora.is_3d_lora_weight = lora_request.is_3d_lora_weight
        return lora

    load.takes_tensors = True  # type: ignore[attr-defined]  # what is asked above
    LRUCacheWorkerLoRAManager._load_adapter = load
