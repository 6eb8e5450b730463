"""Changes inside verl, vLLM and transformers for which they have no hook: one function each.

docs/ARCHITECTURE.md has the list and what a change has to gain. What each one gains, and the pull request that would
replace it, stand in tools/pages/upstream.yaml, which no trainer reads. `RECIPES_PATCHES=0` leaves out all but those
that machines without a GPU need.
"""

import functools
import importlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

SWITCH = "RECIPES_PATCHES"
SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"

Place = Literal["model", "server", "agent loops", "driver", "cpu verl", "cpu vllm"]
"""Kinds of process, in this order: with a model; with vLLM's server; workers of agent loops; the driver; on machines
without a GPU any that imports verl, and any with vLLM."""


@dataclass(frozen=True)
class Patch:
    """A change, and where it is made."""

    apply: Callable[[], None]
    place: Place
    needed: bool  # by machines without a GPU


CHANGES: list[Patch] = []


def change(place: Place, *, needed: bool = False) -> Callable[..., Any]:
    """List a function that replaces something upstream; it is called at most once in a process."""

    def listed(function: Callable[[], None]) -> Callable[[], None]:
        once = functools.cache(function)
        CHANGES.append(Patch(once, place, needed))
        return once

    return listed


def are_on() -> bool:
    """Return whether changes are made in this process."""
    return os.environ.get(SWITCH) != "0"


def apply(*places: Place) -> None:
    """Make the changes of these processes; with `RECIPES_PATCHES=0` only those that a machine without a GPU needs."""
    for each in CHANGES:
        if each.place in places and (each.needed or are_on()):
            each.apply()


def _replace(place: str, name: str, by: Any) -> None:
    """Replace an attribute of a module, or of a class (`module:Class`)."""
    setattr(_owner(place), name, by)


def _wrap(place: str, name: str, by: Callable[..., Any]) -> None:
    """Replace a function, or a class where it is called, by `by`, whose first argument is the original."""
    ordinary = getattr(_owner(place), name)

    @functools.wraps(ordinary, updated=())
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return by(ordinary, *args, **kwargs)

    _replace(place, name, wrapped)


def _owner(place: str) -> Any:
    module, _, name = place.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found


@change("model")
def log_probabilities() -> None:
    """Without flash-attn verl computes log-probabilities in a Python loop over tokens.

    verl/utils/torch_functional.py:197 (`for logit in logits`). For hidden sizes that Triton's head does not take, verl
    has a head in PyTorch, which rounds sums to bf16. `log_probs.py` takes the place of both.
    """
    from recipes.engines.verl import log_probs

    functions = "verl.utils.torch_functional"
    _replace(functions, "logprobs_from_logits_v2", log_probs.of_logits)
    for name in ("entropy_from_logits", "entropy_from_logits_with_chunking"):
        _replace(functions, name, log_probs.entropies)

    def head(verls: Any, chunk_size: int = 512, impl_backend: str = "torch") -> Any:
        return log_probs.FusedHead() if impl_backend == "torch" else verls(chunk_size, impl_backend)

    _wrap("verl.utils.experimental.torch_functional", "FusedLinearForPPO", head)


@change("model")
def head_in_root() -> None:
    """verl's fused kernels read the weight of the head without calling the head, which FSDP2 gathers at its call.

    verl/models/transformers/dense_common.py:191 (`self.lm_head.weight`), verl/utils/fsdp_utils.py:559
    (`{"embed_tokens", "lm_head"}`). Here the head is sharded with the root, which is gathered for the whole pass.
    """

    def without_head(select: Any, model: Any, layers: Any) -> list[Any]:
        units = select(model, layers)
        has_fused_head = hasattr(model, "_verl_fused_kernels_backend")
        head = model.get_output_embeddings() if has_fused_head else None
        return [unit for unit in units if unit is not head]

    _wrap("verl.utils.fsdp_utils", "_select_fsdp2_wrap_targets", without_head)


@change("model")
def merged_adapters() -> None:
    """verl saves a model with adapters under peft's names, with the weights that are not adapted.

    verl/utils/checkpoint/fsdp_checkpoint_manager.py:425 (`state_dict = get_fsdp_full_state_dict(`). What a resumed run
    reads is not touched.
    """
    from recipes.engines.checkpoints import scalings, with_adapters

    def gather_merged(gather: Any, model: Any, *args: Any, **options: Any) -> dict[str, Any]:
        tensors = gather(model, *args, **options)
        if not tensors or not hasattr(model, "peft_config"):  # rank 0 alone has the tensors
            return tensors
        return with_adapters(tensors, scalings(model), next(model.parameters()).device)

    _wrap("verl.utils.checkpoint.fsdp_checkpoint_manager", "get_fsdp_full_state_dict", gather_merged)


@change("model")
def client_of_this_cluster() -> None:
    """verl names the socket for weights by Ray's job, and every new cluster gives its first job the same id; verl's
    sender of weights waits for each acknowledgement without a limit.

    verl/workers/rollout/vllm_rollout/vllm_rollout.py:140 (`get_job_id()`) and
    verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py:136 (`self.socket.recv()`). `vllm_client.py` has both.
    """
    from verl.workers.rollout import base

    base._ROLLOUT_REGISTRY["vllm", "async"] = "recipes.engines.verl.vllm_client.WatchfulServerAdapter"


@change("model")
def rows_selected_together() -> None:
    """verl unbinds each column of the whole batch for each pass that it selects rows for.

    verl/utils/tensordict_utils.py:495 (`tensor_lst = tensor.unbind()`): passes times columns times rows. For many short
    responses of a small model that takes longer than the passes themselves.
    """
    import torch

    def selected(column: Any, rows: Any) -> Any:
        offsets = column.offsets()
        lengths = offsets.diff()[rows]
        bounds = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        moved = (offsets[rows] - bounds[:-1]).repeat_interleave(lengths)
        values = column.values()[moved + torch.arange(len(moved), device=moved.device)]
        limits = {"min_seqlen": int(lengths.min()), "max_seqlen": int(lengths.max())}
        return torch.nested.nested_tensor_from_jagged(values, bounds, **limits)

    def select(verls: Any, batch: Any, indices: Any) -> Any:
        if batch is None:
            return None
        rows = torch.as_tensor(indices)
        plain = [key for key, column in batch.items() if isinstance(column, torch.Tensor) and _one_row_each(column)]
        found = verls(batch.exclude(*plain), rows)
        for key in plain:
            found[key] = selected(batch[key], rows)
        return found

    _wrap("verl.utils.tensordict_utils", "index_select_tensor_dict", select)


def _one_row_each(column: Any) -> bool:
    """Return whether a column is a contiguous jagged tensor, without gradient, with one vector a row."""
    jagged = column.is_nested and hasattr(column, "offsets")  # the other layout of torch's nested tensors has none
    return jagged and column.dim() == 2 and column.is_contiguous() and not column.requires_grad


@change("model")
def positions_of_equal_rows() -> None:
    """verl takes the positions of prompts with pictures for ragged in their last dimension, where its queue made them
    ragged in the first: where all rows have one length.

    verl/utils/tensordict_utils.py:915 (`data["position_ids"]._ragged_idx = 2`).
    """
    from verl.utils.tensordict_utils import nested_tensor_from_tensor_list

    def mark(verls: Any, data: Any) -> None:
        ids = data.get("position_ids", None)
        if ids is not None and ids.is_nested and ids.dim() == 3 and len(ids.values()) == ids.offsets()[-1]:
            rows = ids.values().unflatten(0, (ids.size(0), -1))
            data["position_ids"] = nested_tensor_from_tensor_list(list(rows))
        verls(data)

    for caller in ("verl.workers.engine_workers", "verl.workers.engine.base"):
        _wrap(caller, "maybe_fix_3d_position_ids", mark)


@change("model")
def no_value_head_of_trl() -> None:
    """Where TRL is installed verl patches its model with a value head, a class that TRL no longer has.

    verl/models/transformers/monkey_patch.py:352 (`if is_trl_available():`). GRPO has no value head.
    """
    _replace("verl.models.transformers.monkey_patch", "is_trl_available", lambda: False)


@change("driver")
def one_rank_has_all_rows() -> None:
    """On one GPU verl divides a batch by length into one part.

    verl/trainer/ppo/v1/trainer_base.py:1626 (`get_seqlen_balanced_partitions`): the part has all rows in their order.
    """

    def divide(verls: Any, seqlen_list: Any, k_partitions: int, equal_size: bool) -> Any:
        return verls(seqlen_list, k_partitions, equal_size) if k_partitions > 1 else [list(range(len(seqlen_list)))]

    _wrap("verl.trainer.ppo.v1.trainer_base", "get_seqlen_balanced_partitions", divide)


@change("server")
def name_of_the_receiving_socket() -> None:
    """vLLM's processes read the job's id from a variable that verl's server sets.

    verl/workers/rollout/vllm_rollout/vllm_async_server.py:143 (`VERL_RAY_JOB_ID`).
    """

    def post_init(ordinary: Any, *args: Any, **kwargs: Any) -> None:
        os.environ["VERL_RAY_JOB_ID"] = job()
        ordinary(*args, **kwargs)

    _wrap(f"{SERVER}:vLLMHttpServer", "_post_init", post_init)


def job() -> str:
    """Ray's job id and the cluster's address, as a part of a file's name."""
    import ray

    context = ray.get_runtime_context()
    address = re.sub(r"[^0-9A-Za-z]+", "-", context.gcs_address).strip("-")
    return f"{context.get_job_id()}-{address}"


@change("server")
def whole_responses() -> None:
    """verl uses only vLLM's last answer to a request, without its text; vLLM detokenises and answers at each token, and
    makes a dictionary for its log-probability.

    verl/workers/rollout/vllm_rollout/vllm_async_server.py:683 (`final_res = output`). `RequestOutputKind.FINAL_ONLY`
    is not enough: the first answer tells verl that the request was admitted
    (verl/workers/rollout/vllm_rollout/vllm_async_server.py:682 (`self._admitting -= 1`)), for which it waits up to 60 s
    before it aborts requests. `stream_interval` has no effect: for verl's cumulative answers the condition
    vllm/v1/engine/output_processor.py:304 (`self.sent_tokens_offset == 0`) stays true.
    """
    from vllm.sampling_params import RequestOutputKind

    def without_text(ordinary: Any, **given: Any) -> Any:
        return ordinary(**{"detokenize": bool(given.get("stop")), "flat_logprobs": True, **given})

    def first_and_last(
        ordinary: Any, self: Any, new_token_ids: Any, pooling_output: Any, finish_reason: Any, *rest: Any, **named: Any
    ) -> Any:  # vLLM names the arguments where it aborts
        if self.output_kind is RequestOutputKind.CUMULATIVE and finish_reason is None:
            if getattr(self, "answered", False):
                return None
            self.answered = True
        return ordinary(self, new_token_ids, pooling_output, finish_reason, *rest, **named)

    _wrap(SERVER, "SamplingParams", without_text)
    _wrap("vllm.v1.engine.output_processor:RequestState", "make_request_output", first_and_last)


@change("agent loops")
def rows_of_a_prompt_together() -> None:
    """verl puts each response into its queue alone: three requests to the queue's controller, and one to its storage.

    verl/trainer/ppo/v1/agent_loop_tq.py:222 (`await tq.async_kv_batch_put(`). Nothing reads a row before its prompt has
    ended, so `prompt_queue.py` puts the rows of a prompt with its status. A step's rows stand in the order of
    their arrival, and its updates are cut from it: they get whole prompts now, where the first got short responses.
    """
    from recipes.engines.verl.prompt_queue import PromptQueue

    _replace("verl.trainer.ppo.v1.agent_loop_tq", "tq", PromptQueue())
    _replace("verl.trainer.ppo.v1.agent_loop_tq", "list_of_dict_to_tensordict", lambda rows: rows)


@change("driver")
def rows_in_dumps() -> None:
    """verl's registry of trainers refuses a second one named `sync`, a name that the trainer compares itself with.

    verl/trainer/ppo/v1/trainer_base.py:2007 (`raise ValueError(`). `trainer.py` has the subclass.
    """
    from verl.trainer.ppo.v1 import trainer_base

    from recipes.engines.verl.trainer import Trainer

    trainer_base.TRAINER_REGISTRY["sync"] = Trainer


@change("cpu verl", needed=True)
def one_gloo_for_the_cpu() -> None:
    """verl names the CPU twice on a machine without a GPU, which torch refuses ("Duplicate device type").

    verl/utils/distributed.py:89 (`cpu:gloo,{get_device_name()}`). The function takes a `backend`, which its caller
    (verl/workers/engine_workers.py:89 (`initialize_global_process_group_ray(timeout_second=None)`)) does not use.
    """

    def initialize(ordinary: Any, timeout_second: float | None = None, backend: str | None = None) -> None:
        ordinary(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    _wrap("verl.utils.distributed", "initialize_global_process_group_ray", initialize)


@change("cpu vllm", needed=True)
def linear_weights_that_can_be_replaced() -> None:
    """vLLM repacks each Linear for oneDNN and deletes `layer.weight`, so that a weight sync has nothing to copy into.

    vllm/model_executor/layers/utils.py:269 (`def dispatch_cpu_unquantized_gemm`). Here the parameter is kept and
    multiplied by directly.
    """
    import torch

    def dispatch(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    _replace("vllm.model_executor.layers.utils", "dispatch_cpu_unquantized_gemm", dispatch)


@change("cpu vllm", needed=True)
def models_inspected_here() -> None:
    """vLLM starts a new interpreter to look at a model's class, "to avoid initializing CUDA".

    vllm/model_executor/models/registry.py:1031 (`_run_in_subprocess`). Without a GPU there is no CUDA. The new
    interpreter also fails beside a torch that torchvision's library was not built for (torchvision_operators.py).
    """
    registry = "vllm.model_executor.models.registry"
    information = _owner(f"{registry}:_ModelInfo")

    def inspect(self: Any) -> Any:
        return information.from_model_cls(self.load_model_cls())

    _replace(f"{registry}:_LazyRegisteredModel", "inspect_model_cls", inspect)
