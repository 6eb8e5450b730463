"""A recipe beside the official examples of EasyR1 and verl: which keys are equal, and why the others differ."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import yaml

from recipes.config.layers import flatten, flow, read, shown_path
from recipes.config.resolve import find, load
from recipes.config.schema import Leaf, Recipe, leaves
from recipes.errors import RecipeError, did_you_mean
from recipes.paths import CONFIGS

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Engine = Literal["easyr1", "verl"]
Status = Literal["aligned", "task", "hardware"]
SNAPSHOTS = CONFIGS / "official"
SHORT: dict[str, dict[str, str]] = {
    "easyr1": {"3b": "qwen2_5_vl_3b_geo3k", "7b": "qwen2_5_vl_7b_geo3k"},
    "verl": {"3b": "qwen2_5_3b_gsm8k_lora", "7b": "qwen2_7b_gsm8k"},
}
"""Short names of examples; an engine's name alone means both of its own."""


@dataclass(frozen=True)
class Official:
    """One official example, in the recipe's keys.

    Attributes:
        title: head of its column.
        origin: repository, commit and file.
        values: every key that the example determines, its engine's defaults included.
        chosen: the keys that its launcher or shared configuration sets; the others are defaults.
        outside: keys of the engine that the schema has no counterpart for.
    """

    title: str
    origin: str
    values: Mapping[str, Any]
    chosen: frozenset[str]
    outside: Mapping[str, Any] = field(default_factory=dict)


def names() -> list[str]:
    """The examples that have a snapshot, as `engine:name`."""
    return [path.stem.replace("_", ":", 1) for path in sorted(SNAPSHOTS.glob("*.yaml")) if "launcher" in _head(path)]


def _head(path: Path) -> str:
    return path.read_text(encoding="utf-8").split("\nlayer: ", 1)[-1].splitlines()[0]


def snapshot(stem: str) -> dict[str, Any]:
    """One file of configs/official as it is."""
    return read(SNAPSHOTS / f"{stem}.yaml")


def examples(words: Iterable[str], checkout: Path | None = None) -> list[Official]:
    """The examples that `--against` asks for: `easyr1`, `easyr1:7b`, `verl:qwen3_8b_gsm8k`; each once, in order.

    With a checkout, its own files are read, and every launcher in it has a name. Raises RecipeError for an unknown one.
    """
    wanted = dict.fromkeys(pair for word in words for part in word.split(",") for pair in _named(part.strip()))
    if checkout is not None:
        from recipes.config.official_checkout import example

        return [_joined(engine, *example(checkout, engine, name)) for engine, name in wanted]
    return [_from_snapshot(engine, name) for engine, name in wanted]


def _named(word: str) -> list[tuple[Engine, str]]:
    engine, _, name = word.partition(":")
    if engine not in get_args(Engine):
        raise RecipeError(
            f"unknown official example {word!r}",
            where="--against",
            fix=did_you_mean(word, names()) or "begin with easyr1 or verl, for instance easyr1:7b",
        )
    return [(engine, SHORT[engine].get(each, each)) for each in ([name] if name else SHORT[engine])]


def _from_snapshot(engine: Engine, name: str) -> Official:
    if f"{engine}:{name}" not in names():
        listed = [each for each in names() if each.startswith(f"{engine}:")]
        raise RecipeError(
            f"unknown official example '{engine}:{name}'",
            where="--against",
            fix=did_you_mean(f"{engine}:{name}", listed) or f"use one of {', '.join(listed)}, or name a checkout",
        )
    tree = snapshot(f"{engine}_{name}")
    shared, hidden = (
        snapshot(f"{engine}_{layer}")["values"] if layer in tree["below"] else {} for layer in ("config", "defaults")
    )
    origin = f"{tree['repository']}, commit {tree['commit']}, {tree['file']}"
    return _joined(engine, tree["title"], origin, hidden, shared, tree["values"])


def _joined(engine: Engine, title: str, origin: str, hidden: Mapping, shared: Mapping, launcher: Mapping) -> Official:
    """An example of its engine's defaults, the configuration that its launchers share, and the launcher."""
    values, said = {**hidden, **shared, **launcher}, {**shared, **launcher}
    if engine == "easyr1":
        return Official(title, origin, values, frozenset(said))
    outside = {key: value for key, value in launcher.items() if not has_counterpart(key) and not repeats(key, launcher)}
    return Official(title, origin, to_schema(values), frozenset(to_schema(said)), outside)


# From verl's keys to the recipe's: the reverse of recipes/engines/verl.py for the keys that it computes.
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_IN_REWARD, _IN_LOSS = "algorithm.use_kl_in_reward", f"{_ACTOR}.use_kl_loss"
_CONTENTS, _KEPT = f"{_ACTOR}.checkpoint.save_contents", "trainer.max_actor_ckpt_to_keep"
Reading = tuple[tuple[str, ...], Callable[..., Any]]


def _where_kl_acts(in_loss: str, in_reward: str) -> Reading:
    return (_IN_LOSS, in_loss, in_reward), lambda loss, for_loss, for_reward: for_loss if loss else for_reward


_COMPUTED: dict[str, Reading] = {
    "algorithm.disable_kl": ((_IN_REWARD, _IN_LOSS), lambda reward, loss: not (reward or loss)),
    "algorithm.use_kl_in_reward": ((_IN_REWARD,), lambda value: value),
    "algorithm.kl_coef": _where_kl_acts(f"{_ACTOR}.kl_loss_coef", "algorithm.kl_ctrl.kl_coef"),
    "algorithm.kl_penalty": _where_kl_acts(f"{_ACTOR}.kl_loss_type", "algorithm.kl_penalty"),
    "data.min_pixels": (("data.mm_processor_kwargs.min_pixels",), lambda value: value),
    "data.max_pixels": (("data.mm_processor_kwargs.max_pixels",), lambda value: value),
    "worker.actor.dynamic_batching": ((f"{_ACTOR}.use_dynamic_bsz",), lambda value: value),
    "worker.actor.max_token_len_per_device": (
        (f"{_ACTOR}.ppo_max_token_len_per_gpu", f"{_ACTOR}.use_dynamic_bsz"),
        lambda tokens, dynamic: tokens if dynamic else None,
    ),
    "worker.actor.loss_avg_mode": (
        (f"{_ACTOR}.loss_agg_mode",),
        lambda mode: "token" if (mode or "token").startswith("token") else "seq",
    ),
    "worker.actor.fsdp.enable_cpu_offload": ((f"{_ACTOR}.fsdp_config.offload_policy",), lambda value: value),
    "worker.rollout.max_model_len": ((f"{_ROLLOUT}.max_model_len",), lambda value: value),
    "worker.rollout.load_format": ((f"{_ROLLOUT}.load_format",), lambda value: value),
    "worker.reward.reward_function": (("custom_reward_function.path",), lambda value: value),
    "trainer.save_limit": ((_KEPT,), lambda value: -1 if value is None else value),
    "trainer.save_model_only": ((_CONTENTS,), lambda contents: "optimizer" not in contents),
    "trainer.save_hf_model": ((_CONTENTS,), lambda contents: "hf_model" in contents),
    "trainer.find_last_checkpoint": (("trainer.resume_mode",), lambda value: value == "auto"),
    "trainer.load_checkpoint_path": (("trainer.resume_from_path",), lambda value: value),
}
"""Key of the recipe -> verl's keys that decide it, and how they do."""
_IN_ANOTHER = ("algorithm.kl_loss_coef", "algorithm.kl_loss_type", "worker.actor.loss_agg_mode")
"""Keys of the recipe whose value another key of that table has already."""

OUTSIDE = {
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": "follows from worker.actor.dynamic_batching here",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": "follows from the actor's micro-batches here",
    "actor_rollout_ref.ref.use_torch_compile": "the reference follows the actor",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache": "an argument of one vLLM version",
    "actor_rollout_ref.rollout.layered_summon": "sends weights layer by layer, to save memory",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": "follows from the actor's micro-batches here",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": "follows from worker.actor.dynamic_batching here",
    "data.truncation": "error is the default; overlong prompts are filtered out before",
}
"""verl's keys in official launchers that the schema has no counterpart for, and why."""


@cache
def _readings() -> dict[str, Reading]:
    table: dict[str, Reading] = {}
    for path, leaf in leaves(Recipe).items():
        renamed = (leaf.info.alias or leaf.info.convert) and not leaf.is_open and path not in _IN_ANOTHER
        if renamed and leaf.info.verl:
            back = leaf.info.convert.from_verl if leaf.info.convert else lambda value: value
            table[path] = ((leaf.info.verl[0],), back)
    return {**table, **_COMPUTED}


def has_counterpart(name: str) -> bool:
    """Whether one of verl's keys says something that the recipe's keys can say."""
    return any(name in verls for verls, _ in _readings().values())


def repeats(name: str, values: Mapping[str, Any]) -> bool:
    """Whether a key is a further name of one that `values` holds with the same value, such as the reference's batch."""
    first = [leaf.info.verl[0] for leaf in leaves(Recipe).values() if name in leaf.info.verl[1:]]
    return bool(first) and first[0] in values and values[first[0]] == values[name]


def to_schema(values: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe's keys and values that a set of verl's keys amounts to."""
    return {
        path: convert(*(values.get(name) for name in verls))
        for path, (verls, convert) in _readings().items()
        if any(name in values for name in verls)
    }


class _Absent:
    """The type of ABSENT, which stands for a key that a side does not have."""

    def __repr__(self) -> str:
        return "—"


ABSENT = _Absent()
AS_WRITTEN = {"EMBEDDED": "0", "CUDA_VISIBLE_DEVICES": "-1", "WANDB_API_KEY": "unused"}
"""No variable of this shell, no embedded model, no lack of this machine's, and W&B kept: the recipe as it is meant."""
_LAUNCHERS = ("name", "engine", "hardware", "prepare", "verl")
_VALIDATION, _LORA = "worker.rollout.val_override_config", "worker.actor.model.lora"
_DETAILS = {
    f"{_LORA}.rank": (f"{_LORA}.alpha", f"{_LORA}.target_modules", f"{_LORA}.exclude_modules"),
    "worker.rollout.limit_images": ("data.min_pixels", "data.max_pixels"),
    "worker.actor.dynamic_batching": ("worker.actor.max_token_len_per_device",),
    "algorithm.online_filtering": ("algorithm.filter_low", "algorithm.filter_high", "algorithm.filter_key"),
}
"""Switch -> keys that mean nothing in our recipe while it is off."""
HARDWARE = (
    "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.balance_batch", "*.micro_batch_size_*",
    "*.padding_free", "*.dynamic_batching", "*.max_token_len_*", "*.ulysses_size", "*.offload.*", "*.fsdp.*",
    "worker.*.strategy", "*.enable_gradient_checkpointing", "*.use_*kernels", "*.use_liger",
    "*.use_torch_compile", "*.recompute_old_log_probs", "*_workers", "*.num_workers", "*.num_cpus",
    "worker.rollout.gpu_memory_utilization", "worker.rollout.enforce_eager", "worker.rollout.enable_*",
    "worker.rollout.tensor_parallel_size", "worker.rollout.max_num_*", "worker.rollout.cudagraph_*",
    "worker.rollout.load_format", "worker.rollout.free_cache_engine", "worker.rollout.dtype",
    "worker.rollout.disable_*", "worker.rollout.engine_kwargs",
)  # fmt: skip
"""Keys that a machine decides, and that leave what is learned as it is up to rounding; all others are the task's."""


@dataclass(frozen=True)
class Row:
    """One key.

    Attributes:
        key: dotted key of the recipe; `verl.` before one of verl's own.
        ours: our value, or ABSENT where our engine cannot do it.
        official: the examples' values in their order, or ABSENT.
        defaults: for each example, whether it leaves the key to its engine's default.
        status: aligned with every example that has the key, or whose choice the difference is: the task's or the
            hardware's.
        reason: why, in one line; empty where nothing says it.
    """

    key: str
    ours: Any
    official: tuple[Any, ...]
    defaults: tuple[bool, ...]
    status: Status
    reason: str


@dataclass(frozen=True)
class Table:
    """A recipe beside official examples; `same` counts the keys that no side sets and that are equal everywhere."""

    recipe: str
    official: tuple[Official, ...]
    rows: tuple[Row, ...]
    same: int

    def of(self, status: Status) -> list[Row]:
        return [row for row in self.rows if row.status == status]

    def require_reasons(self) -> None:
        """Raise RecipeError naming the differences that the recipe gives no reason for."""
        bare = [row.key for row in self.rows if row.status != "aligned" and not row.reason]
        if bare:
            raise RecipeError(
                f"no reason is given for {', '.join(bare)}",
                where=self.recipe,
                fix="set the key there, with a comment that says why: `key: value  # verl's name; reason`",
            )


def compare(task_or_path: str, official: Sequence[Official]) -> Table:
    """Our recipe, resolved for GPUs from its files alone, beside the examples."""
    recipe = load(task_or_path, environ=AS_WRITTEN, hardware="gpu")
    mine, theirs = _effective(_ours(recipe, task_or_path)), [_effective(each.values) for each in official]
    idle = {key for switch, keys in _DETAILS.items() if not mine.get(switch) for key in keys}
    reasons = {
        "recipe": comments(find(task_or_path)),
        "hardware": comments(CONFIGS / "hardware" / f"{recipe.hardware}.yaml"),
    }
    rows, same = [], 0
    for key in _keys(recipe, mine, theirs):
        leaf, layer = leaves(Recipe).get(key), recipe.source_of(key).layer
        values = tuple(each.get(key, ABSENT) for each in theirs)
        defaults = tuple(key not in each.chosen for each in official)
        value, ours_alone = mine.get(key, ABSENT), all(other is ABSENT for other in values)
        if layer == "default" and (key in idle or ours_alone):
            continue
        equal = all(other is ABSENT or _equal(value, other) for other in values)
        if equal and not ours_alone and layer == "default" and all(defaults):
            same += 1
            continue
        status: Status = "hardware" if any(fnmatch(key, pattern) for pattern in HARDWARE) else "task"
        if equal and not ours_alone:
            status = "aligned"
        unable = leaf.info.not_on.get(recipe.engine, "") if leaf and layer == "default" else ""
        reason = reasons[layer].get(key, "") if layer in reasons else unable or OF_DEFAULTS.get(key, "")
        rows.append(Row(key, ABSENT if unable and status != "aligned" else value, values, defaults, status, reason))
    return Table(shown_path(find(task_or_path)), tuple(official), tuple(rows), same)


def _equal(one: Any, other: Any) -> bool:
    """1 is 1.0, but true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _keys(recipe: Recipe, mine: Mapping[str, Any], theirs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of both sides in the schema's order, verl's own at the end; the critic's only where we have one."""
    wanted = set(mine).union(*theirs)
    known = [key for key in leaves(Recipe) if key in wanted and (recipe.has_critic or ".critic." not in key)]
    return known + sorted(key for key in mine if key.startswith("verl."))


def _ours(recipe: Recipe, task_or_path: str) -> dict[str, Any]:
    """Our recipe's keys and values; paths, and what a machine's size decides, as the files write them."""
    written = flatten(read(find(task_or_path)))
    machine = flatten(read(CONFIGS / "hardware" / "gpu.yaml"))

    def value(key: str, leaf: Leaf) -> Any:
        if leaf.info.path is not None:
            return written.get(key)
        by_machine = recipe.source_of(key).layer == "hardware" and machine.get(key, ABSENT) is None
        return None if by_machine else recipe.value(key)

    values = {key: value(key, leaf) for key, leaf in leaves(Recipe).items() if key not in _LAUNCHERS}
    values["data.prompt_key"] = values["data.prompt_key"] or ("problem" if recipe.engine == "easyr1" else "prompt")
    return values | {f"verl.{name}": value for name, value in flatten(recipe.verl).items()}


def _effective(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings with nulls that mean another key filled in, and without keys that have no effect."""
    result = dict(values)
    in_loss = bool(result.get("algorithm.use_kl_loss"))
    in_reward = result.pop("algorithm.use_kl_in_reward", None)
    if in_reward is not None and in_reward != (not in_loss and not result.get("algorithm.disable_kl")):
        result["algorithm.use_kl_in_reward"] = in_reward
    coefficient, estimator = result.pop("algorithm.kl_loss_coef", None), result.pop("algorithm.kl_loss_type", None)
    if in_loss and not in_reward:
        result["algorithm.kl_coef"] = result.get("algorithm.kl_coef") if coefficient is None else coefficient
        result["algorithm.kl_penalty"] = estimator or result.get("algorithm.kl_penalty")
    for name in ("temperature", "top_p", "top_k"):
        if result.get(f"{_VALIDATION}.{name}") is None and f"worker.rollout.{name}" in result:
            result[f"{_VALIDATION}.{name}"] = result[f"worker.rollout.{name}"]
    result.setdefault(f"{_VALIDATION}.n", 1)
    if result.get("worker.rollout.load_format") == "auto":
        needs_weights = result.get(f"{_LORA}.rank") or result.get("worker.rollout.limit_images")
        result["worker.rollout.load_format"] = "safetensors" if needs_weights else "dummy"
    return result


# Where a recipe says nothing, because the schema's default fits: why that default is not the official one.
OF_DEFAULTS = {
    "data.filter_overlong_prompts_workers": "as EasyR1; measuring prompts is faster",
    "data.prompt_key": "a row has one column for each engine",
    "data.shuffle": "as both engines' default",
    "data.val_batch_size": "all of the validation at once: the engine queues by itself",
    "trainer.save_hf_model": "a checkpoint loads in vLLM and transformers without merging",
    "worker.actor.clip_ratio_high": "as EasyR1's own default",
    "worker.actor.entropy_coeff": "no bonus, as GRPO was published",
    "worker.actor.model.lora.rank": "all weights are trained",
    "worker.actor.model.trust_remote_code": "running downloaded code is a choice",
    "worker.actor.use_torch_compile": "as both engines' default",
    "worker.ref.offload.offload_params": "verl keeps a forward-only model in CPU memory either way",
    "worker.rollout.calculate_log_probs": "compares vLLM with the trainer at every step: a wrong rollout shows",
    "worker.rollout.enable_chunked_prefill": "vLLM's present engine prefills in chunks",
    "worker.rollout.enforce_eager": "CUDA graphs, as both engines' default",
    "worker.rollout.gpu_memory_utilization": "as EasyR1's own default",
    "worker.rollout.limit_images": "prompts are text",
    "worker.rollout.load_format": "every weight is sent before its first use; LoRA and images read the model's",
}

_COMMENT = re.compile(r"\s#\s*(.*)$")
_FILES = (".sh", ".py", ".yaml", ".json", ".jinja")


def comments(path: Path) -> dict[str, str]:
    """Dotted key -> the reason in the comment behind its value, `verl's name; reason` or the reason alone."""
    text = path.read_text(encoding="utf-8")
    root, lines = yaml.compose(text, Loader=yaml.SafeLoader), text.splitlines()
    reasons = {}
    for key, end in _ends(root, "") if isinstance(root, yaml.MappingNode) else ():
        behind = _COMMENT.search(lines[end.line][end.column :])
        if behind:
            head, _, rest = behind[1].partition(";")
            word = head.split()[0].rstrip(":,") if head.split() else ""
            leaf = leaves(Recipe).get(key)
            known = leaf is None or any(name == word or name.endswith(f".{word}") for name in leaf.info.verl)
            is_name = "." in word and not word.endswith(_FILES) and known
            reasons[key] = (rest if is_name else behind[1]).strip()
    return {key: reason for key, reason in reasons.items() if reason}


def _ends(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, yaml.Mark]]:
    """Every value with its key and where it ends; a block's own end is none."""
    for name, value in node.value:
        key = f"{prefix}{name.value}"
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from _ends(value, f"{key}.")
        elif value.end_mark.line == value.start_mark.line:
            yield key, value.end_mark


STEPS = (
    "`val_freq` and `save_freq` count steps and batch sizes count prompts, on every side. A dash: that side has no "
    'such key. "default": the example leaves it to its engine.'
)
KINDS: dict[Status, str] = {
    "aligned": "Aligned: as in every example that has the key",
    "task": "Different for the task: what is learned, from what, for how long",
    "hardware": "Different for the hardware: what is learned stays the same up to rounding",
}


def header(table: Table) -> list[str]:
    """Heads of the columns."""
    return ["key", "ours", *(each.title for each in table.official), "kind", "reason"]


def cells(row: Row) -> list[str]:
    """The row as plain text; an official value that is its engine's default says so."""
    official = [
        shown(value) + (" (default)" if default and value is not ABSENT else "")
        for value, default in zip(row.official, row.defaults, strict=True)
    ]
    reason = "" if row.status == "aligned" else row.reason or "NO REASON GIVEN"
    return [row.key, shown(row.ours), *official, row.status, reason]


def shown(value: Any) -> str:
    """A value as YAML on one line; a dash where a side does not have the key."""
    return repr(value) if value is ABSENT else flow(value)


def summary(table: Table) -> str:
    """How many keys are as in the examples, and how many are not."""
    counts = [len(table.of(status)) for status in ("aligned", "task", "hardware")]
    return (
        f"{counts[0]} keys aligned, {counts[1]} different for the task, {counts[2]} for the hardware; "
        f"{table.same} more are set by no side and equal everywhere."
    )


def notes(table: Table) -> list[str]:
    """Where the official values are from, and what they set that has no counterpart here."""
    outside = {key: value for each in table.official for key, value in each.outside.items()}
    return [f"{each.title}: {each.origin}." for each in table.official] + [
        f"Outside the schema: `{key}: {shown(value)}` ({OUTSIDE.get(key, 'not known here')})."
        for key, value in outside.items()
    ]


def markdown(table: Table, status: Status) -> str:
    """The rows of one kind as a Markdown table, without the columns that are empty or equal for all of them."""
    from recipes.config.docs import markdown as laid_out

    def code(cell: str) -> str:
        value, default, _ = cell.partition(" (default)")
        return cell if cell == repr(ABSENT) else f"`{value}`{default}"

    def styled(row: Row) -> list[str]:
        *values, _, reason = cells(row)
        return [*map(code, values), *([] if status == "aligned" else [reason])]

    heads = [name for name in header(table) if name != "kind"]
    return laid_out(heads[:-1] if status == "aligned" else heads, [styled(row) for row in table.of(status)])


def page(table: Table, level: str = "##") -> str:
    """Summary, the tables of the three kinds, and notes."""
    parts = [f"{summary(table)} {STEPS}"]
    for status, title in KINDS.items():
        parts += [f"{level} {title}", markdown(table, status)]
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in notes(table))]) + "\n"


def block(task: str = "", *against: str) -> str:
    """The generated block `comparison TASK EXAMPLE...`. Raises RecipeError where a difference has no reason."""
    if not task or not against:
        raise RecipeError(
            "a comparison names a recipe and official examples", fix="<!-- generated: comparison countdown easyr1 -->"
        )
    table = compare(task, examples(against))
    table.require_reasons()
    return page(table, "####").rstrip("\n")


_COLOURS = {"aligned": "dim", "task": "yellow", "hardware": "cyan"}


def terminal(table: Table) -> RichTable:
    """A rich table; differences stand out."""
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(title=table.recipe, caption=f"{summary(table)} {STEPS}", show_lines=False)
    for name in header(table):
        drawn.add_column(name, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in cells(row)), style=_COLOURS[row.status])
    return drawn


_HTML = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title><style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 96rem; padding: 0 1rem; }
:root { color-scheme: light dark; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8884; padding: .3rem .6rem; text-align: left; vertical-align: top; }
td:not(:nth-last-child(-n+2)) { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere; }
tr.aligned { opacity: .6; } tr.task td:nth-last-child(2) { color: #b07a00; }
tr.hardware td:nth-last-child(2) { color: #0a7dba; }
</style></head><body>
<h1>{{ title }}</h1>
<p>{{ summary }} {{ steps }}</p>
<div class="wide"><table>
<thead><tr>{% for head in heads %}<th>{{ head }}</th>{% endfor %}</tr></thead>
<tbody>{% for status, row in rows %}
<tr class="{{ status }}">{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}
</tbody></table></div>
<ul>{% for note in notes %}<li>{{ note }}</li>{% endfor %}</ul>
</body></html>
"""


def html(table: Table) -> str:
    """One page, without scripts and without the network."""
    from jinja2 import Environment

    return (
        Environment(autoescape=True)
        .from_string(_HTML)
        .render(
            title=f"{table.recipe} beside official examples",
            summary=summary(table),
            steps=STEPS.replace("`", ""),
            heads=header(table),
            rows=[(row.status, cells(row)) for row in table.rows],
            notes=[note.replace("`", "") for note in notes(table)],
        )
    )
