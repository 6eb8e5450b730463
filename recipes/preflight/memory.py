"""Memory check: a run that does not fit GPUs or host is refused, with the nearest changes that fit.

`recipes/memory/estimates.py` estimates each phase, and `recipes/memory/fit.py` chooses the settings.
"""

from recipes.config import Recipe
from recipes.config import gpus as plans
from recipes.config.resolve import MODEL
from recipes.errors import RecipeError, counted
from recipes.memory import fit, gpus
from recipes.memory.estimates import GENERATE, GIGABYTE, HOST, MemoryPlan, Phase, gpu_phases, host_phase
from recipes.memory.shape import SIZES, published_config
from recipes.model_files import indivisible, local_model, model_config
from recipes.settings import require_resolved

SHARE = fit.KEYS["utilization"]
MOST_WAYS = 6
"""The most changes that an error proposes."""
COSTS = {
    "recompute": "activations are computed again in the backward pass, which makes the update a sixth slower",
    "fused_adam": "Adam updates in one kernel, without a copy of the weights, which costs nothing",
    "offload_params": "weights rest on the host between their uses: 4 bytes of each move back and forth in every phase",
    "offload_optimizer": "Adam's moments rest on the host: 8 bytes a weight move back and forth in every step",
    "offload_all": "weights stay on the host: 2 bytes of each move to the GPU in every forward and backward pass",
}
"""Cost of each setting that saves memory."""


def check_memory(recipe: Recipe) -> list[str]:
    """Raise where a phase surely does not fit; return remarks on choices, each phase's estimate and close fits.

    The error names the phase that exceeds its limit most, the processes that use the GPUs, and what would fit.
    """
    _check_bf16(recipe)
    chosen = plans.gpus_of(recipe) if recipe.hardware == "gpu" else []
    busy = [gpu for gpu in chosen if gpu.used > gpus.IDLE]
    lines = [*map(str, busy)]
    plan = plans.plan_of(recipe)
    if plan is None:
        share = recipe.value(SHARE)
        if any(gpu.free < share * gpu.total for gpu in busy):
            raise recipe.error(f"{'; '.join(lines)}; vLLM will ask for {share:.0%} of each", _elsewhere(), SHARE)
        return [*lines, _unknown(recipe, chosen)]
    on_gpus = list(gpu_phases(plan)) if plan.gpu else []
    on_host = host_phase(plan)
    every = [*on_gpus, on_host]
    failing = [phase for phase in every if not phase.fits]
    if failing or (plan.gpu and fit.holds_too_few(plan)):
        raise _does_not_fit(recipe, plan, failing, busy)
    if plan.gpu:
        most, *rest = sorted(on_gpus, key=lambda phase: -phase.whole)
        less = ", ".join(f"{phase.name} {phase.whole / GIGABYTE:.1f}" for phase in rest)
        if recipe.resolution.planned_gpus and plan.free < 40 * GIGABYTE:  # older GPUs have less
            lines.append("for a GPU with bf16 (Nvidia's Ampere or later): a T4, a V100 or an RTX 20 is refused")
        lines += [*_chosen(recipe, plan), f"memory of a GPU, estimated: {most}; {less}"]
    lines.append(f"memory of the host, estimated: {on_host}")
    for phase in every:
        if phase.is_close:
            above = phase.need > (phase.limit or 0)
            state = "is above the limit, by an estimate that may be too high" if above else "comes close to the limit"
            ways = _proposed(recipe, plan) if phase is not on_host else []
            lines.append(f"{phase.name} {state}" + (f"; if memory runs out: {ways[0].text}" if ways else ""))
    return lines


PRECISIONS = ("worker.actor.fsdp.mp_param_dtype", "worker.rollout.dtype")
WITH_BF16 = (8, 0)
"""Compute capability from which GPUs have bf16: vLLM refuses it on older ones."""


def _check_bf16(recipe: Recipe) -> None:
    """Raise where the GPUs of this machine lack the format of passes or of generation."""
    here = gpus.model() if recipe.hardware == "gpu" and recipe.resolution.planned_gpus is None else None
    if here and here[1] < WITH_BF16 and "bf16" in map(recipe.value, PRECISIONS):
        fix = "take a GPU of Nvidia's Ampere or later (RTX 30, A10, A100); what was never tried on older ones: "
        fix += " ".join(f"{key}=fp16" for key in PRECISIONS)
        what = f"{here[0]} has no bf16, in which passes and generation compute here"
        raise recipe.error(what, fix, *PRECISIONS)


def _unknown(recipe: Recipe, chosen: list[gpus.Gpu]) -> str:
    """The reason why nothing is estimated. Raises RecipeError where the user asked for the estimate."""
    if recipe.hardware == "gpu" and not chosen:
        why = "memory is not estimated, and nothing was chosen by it: nvidia-smi tells of no GPU here"
        return f"{why}; --gpus 1x80 plans for one of 80 GB"
    name, why = str(recipe.worker.actor.model.model_path), "it is not listed, and no folder with config.json"
    if local_model(name):
        why = f"its config.json is not a dense decoder's, with {', '.join(SIZES)}"
    what = f"memory is not estimated: the sizes of {name} are not known; {why}"
    if recipe.resolution.planned_gpus is not None:
        fix = "set MODEL_PATH to a folder with such a config.json, or to the model that this one is made from"
        raise recipe.error(what, fix, MODEL)
    return f"{what}; GPU_MEMORY_UTILIZATION and worker.actor.max_token_len_per_device are yours to lower"


def _chosen(recipe: Recipe, plan: MemoryPlan) -> list[str]:
    """Lines on the settings that were chosen to fit the memory, with their cost."""
    decided = [name for name, key in fit.KEYS.items() if recipe.source_of(key).layer == "hardware"]
    costs = [text for name, text in COSTS.items() if name in decided and getattr(plan, name)]
    held = plan.cached_responses
    share = f"{plan.utilization:.0%} of a GPU for vLLM, whose cache holds {held:,} responses of full length"
    waits = f"; {plan.sequences:,} at once wait for one another when long" if held < plan.sequences else ""
    tokens = f"passes of {plan.update_tokens:,} tokens, {plan.forward_tokens:,} without gradients"
    return [f"fitted to {plan.free / GIGABYTE:.1f} GB free: {share}{waits}; {tokens}", *costs]


def _does_not_fit(recipe: Recipe, plan: MemoryPlan, failing: list[Phase], busy: list[gpus.Gpu]) -> RecipeError:
    name = recipe.worker.actor.model.model_path
    worst = max(failing, key=lambda phase: phase.need / (phase.limit or 1), default=None)
    held = f"vLLM's cache holds {counted(plan.cached_responses, 'response')} of full length, fewer than is of use"
    what = f"{name} does not fit: {worst or held}"
    rest = ", ".join(phase.name for phase in failing if phase is not worst)
    what += f"; nor does {rest}" if rest else ""
    fix = f"set MODEL_PATH to a model that docs/FITS.md shows to fit, or LORA_RANK={fit.LORA_RANK}"
    if worst and worst.name == HOST:
        fix = f"take a machine with {worst.need / GIGABYTE:.0f} GB free, or GPUs; or {fix}"
    else:
        lines = ["  # ".join(filter(None, (way.text, way.cost))) for way in _proposed(recipe, plan)]
        lines = ["add one of these to the command, in place of what it says on the same:", *lines] if lines else []
        fix = "\n         ".join([*([_elsewhere()] if busy else []), *lines]) or fix
    keys = (MODEL, SHARE) if worst is None or worst.name == GENERATE else (MODEL,)
    return recipe.error("; ".join([what, *map(str, busy)]), fix, *keys)


def _proposed(recipe: Recipe, plan: MemoryPlan) -> list[fit.Way]:
    """The nearest changes that fit the GPUs."""
    planned, number = recipe.resolution.planned_gpus, "GPUS_PER_NODE={}"
    if planned:  # the argument `--gpus 1x24` names the size
        number = "--gpus {}x" + recipe.source_of("trainer.n_gpus_per_node").where.rpartition("x")[2]
    responses = require_resolved(recipe.worker.actor.global_batch_size) * recipe.worker.rollout.n
    here, lr = 0 if planned else len(gpus.chosen_gpus()), recipe.worker.actor.optim.lr
    name = recipe.worker.actor.model.model_path or ""
    config = model_config(local_model(name)) or published_config(name)
    tensors = tuple(size for size in fit.Machine.tensors if not indivisible(config, size))
    by_user = {name for name, key in fit.KEYS.items() if recipe.source_of(key).by_user}
    fixed = tuple(plans.fixed_settings(recipe, plan).keys() - by_user)
    machine = fit.Machine(here, lr, recipe.engine, number, responses, tensors, fixed)
    return fit.ways_out(plan, plans.explicit_settings(recipe, plan), machine)[:MOST_WAYS]


def _elsewhere() -> str:
    free = [gpu.index for gpu in gpus.gpus_here() if gpu.used <= gpus.IDLE]
    choose = f"CUDA_VISIBLE_DEVICES={','.join(free)} GPUS_PER_NODE={len(free)}" if free else "wait until it has ended"
    return f"end that process if it is yours, or {choose}"
