"""A recipe beside the official examples of EasyR1 and verl: which keys are equal, and why the others differ."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

import yaml

from recipes.config.resolve import find, load
from recipes.config.schema import Leaf, Recipe, leaves
from recipes.drawing import markdown
from recipes.engines.easyr1.translation import AVERAGE, AVERAGES
from recipes.engines.verl.translation import equal
from recipes.errors import RecipeError, unknown
from recipes.paths import CONFIGS
from recipes.settings import flatten
from recipes.yaml_text import flow, read, shown_path

Status = Literal["aligned", "task", "hardware"]
SNAPSHOTS = CONFIGS / "official"
SHARED = ("defaults", "config")
"""Files of an engine that its examples build on, in this order."""
SHORT: dict[str, dict[str, str]] = {
    "easyr1": {"3b": "qwen2_5_vl_3b_geo3k", "7b": "qwen2_5_vl_7b_geo3k"},
    "verl": {"4b": "qwen3_4b_gsm8k", "8b": "qwen3_8b_math"},
}
"""Engine -> short name -> example. An engine's name alone means all of its short names."""
TEXT = ("easyr1:qwen3_4b_math", "verl:8b")
"""The examples beside a text recipe where nothing is asked for; beside one with images are EasyR1's two."""


@dataclass(frozen=True)
class Official:
    """One official example, in the recipe's keys."""

    title: str
    origin: str  # repository, commit and file, and those of its engine's defaults where they are of another version
    values: Mapping[str, Any]  # every key that the example determines, its engine's defaults included
    chosen: frozenset[str]  # the keys that its launcher or shared configuration sets; the others are defaults
    respelled: Mapping[str, Any] = field(default_factory=dict)  # defaults that the engine's own file writes otherwise
    # Keys of the engine that the schema does not have -> (value, why the schema does not have it).
    outside: Mapping[str, tuple[Any, str]] = field(default_factory=dict)


def names() -> list[str]:
    """The examples, as `engine:name`."""
    stems = sorted(path.stem for path in SNAPSHOTS.glob("*.yaml"))
    return [stem.replace("_", ":", 1) for stem in stems if stem.partition("_")[2] not in ("", *SHARED)]


def examples(requested: Iterable[str]) -> list[Official]:
    """The examples that `--against` names: `easyr1`, `easyr1:7b,verl:qwen3_8b_gsm8k`; each once, in order."""
    parts = (part.strip() for text in requested for part in text.split(","))
    return [_read(name) for name in dict.fromkeys(name for part in parts for name in _full_names(part))]


def _full_names(text: str) -> list[str]:
    engine, _, name = text.partition(":")
    short = SHORT.get(engine, {})
    full = [f"{engine}:{short.get(each, each)}" for each in ([name] if name else short)]
    if full and set(full) <= set(names()):
        return full
    raise unknown("official example", text, names(), "--against")


def _read(name: str) -> Official:
    engine = name.partition(":")[0]
    tree, defaults = (read(SNAPSHOTS / f"{each.replace(':', '_')}.yaml") for each in (name, f"{engine}_defaults"))
    config = SNAPSHOTS / f"{engine}_config.yaml"
    origin = f"{tree['repository']}, commit {tree['commit']}, {tree['file']}"
    if defaults.get("commit") != tree["commit"]:
        origin += f"; defaults of {defaults['repository']}, {defaults['file']}"
    own = {**(read(config)["values"] if config.is_file() else {}), **tree["values"]}
    return Official(
        tree["title"],
        origin,
        {**defaults["values"], **own},
        frozenset(own),
        defaults.get("respelled", {}),
        tree.get("outside", {}),
    )


ABSENT = "—"
"""Stands for a key that a side does not have; compared by identity."""
AS_WRITTEN = {"TINY": "0", "CUDA_VISIBLE_DEVICES": "-1", "WANDB_API_KEY": "unused"}
"""Environment in which a recipe resolves as its file says: it hides this shell's variables and this machine's GPUs."""
_LAUNCHERS = ("name", "engine", "hardware", "prepare", "verl", "easyr1")
_VALIDATION = "worker.rollout.val_override_config"
_NEEDS = {
    **{key: leaf.info.needs for key, leaf in leaves(Recipe).items() if leaf.info.needs},
    "worker.actor.max_token_len_per_device": "worker.actor.dynamic_batching",
}
"""Key -> the switch without which it has no effect in our recipe."""
_OURS = read(SNAPSHOTS / "ours.yaml")
HARDWARE, OF_DEFAULTS = _OURS["hardware"], _OURS["reasons_of_defaults"]
"""Patterns of the keys that the machine decides, and why defaults of the schema differ; `ours.yaml` says more."""


@dataclass(frozen=True)
class Row:
    """One key of the comparison."""

    key: str
    ours: Any  # our value, or ABSENT where our engine cannot do it
    official: tuple[Any, ...]  # the examples' values in their order, or ABSENT
    marks: tuple[str, ...]  # for each example "" or, where it leaves the key to its engine, " (default)"
    status: Status  # `aligned` if every example that has the key has our value; otherwise what decides the difference
    reason: str  # why the values differ, in one line; empty if no file gives a reason


@dataclass(frozen=True)
class Table:
    """A recipe beside official examples; `same` counts the keys that no side sets and that are equal everywhere."""

    recipe: str
    official: list[Official]
    differing: list[Row]  # from an example, those for the hardware last
    aligned: list[Row]  # with all examples
    ours_alone: list[Row]  # no example has these
    same: int

    def require_reasons(self) -> None:
        """Raise RecipeError naming the differences that the recipe gives no reason for."""
        bare = [row.key for row in (*self.differing, *self.ours_alone) if not row.reason]
        if bare:
            fix = "set the key there, with a comment that says why: `key: value  # verl's name; reason`"
            raise RecipeError(f"no reason is given for {', '.join(bare)}", where=self.recipe, fix=fix)


def compare(task_or_path: str, against: Sequence[str] = ()) -> Table:
    """Compare our recipe, resolved for GPUs from its files alone, with the examples that `against` names, or `TEXT`."""
    recipe, path = load(task_or_path, environ=AS_WRITTEN, hardware="gpu"), find(task_or_path)
    gpu, texts = CONFIGS / "hardware" / "gpu.yaml", not recipe.value("worker.rollout.limit_images")
    official = examples(against or (TEXT if texts else ["easyr1"]))
    mine = _effective(_ours(recipe, read(path), read(gpu)))
    theirs = [_effective(each.values) for each in official]
    idle = {key for key, switch in _NEEDS.items() if not mine.get(switch)}
    of_recipe = comments(path)
    reasons = {"default": OF_DEFAULTS, "recipe": of_recipe, "hardware": {**of_recipe, **comments(gpu)}}
    rows, same = [], 0
    known = set(mine).union(*theirs)
    keys = [key for key in leaves(Recipe) if key in known]
    for key in [*keys, *sorted(key for key in mine if key.startswith("verl."))]:
        leaf, layer = leaves(Recipe).get(key), recipe.source_of(key).layer
        values = tuple(each.get(key, ABSENT) for each in theirs)
        marks = tuple("" if key in each.chosen else _mark(each, key) for each in official)
        value, ours_alone = mine.get(key, ABSENT), all(other is ABSENT for other in values)
        if layer == "default" and (key in idle or ours_alone):
            continue
        aligned = not ours_alone and all(other is ABSENT or equal(value, other) for other in values)
        if aligned and layer == "default" and all(marks):
            same += 1
            continue
        by_machine = any(fnmatch(key, pattern) for pattern in HARDWARE)
        status: Status = "aligned" if aligned else "hardware" if by_machine else "task"
        if leaf and layer == "default" and not aligned and recipe.engine not in leaf.info.engines:
            value = ABSENT
        rows.append(Row(key, value, values, marks, status, reasons.get(layer, OF_DEFAULTS).get(key, "")))
    rows.sort(key=lambda row: row.status == "hardware")
    like = [row for row in rows if row.status == "aligned"]
    alone = [row for row in rows if all(value is ABSENT for value in row.official)]
    differing = [row for row in rows if row not in like and row not in alone]
    return Table(shown_path(path), official, differing, like, alone, same)


def _mark(example: Official, key: str) -> str:
    written = f", there {cell_text(example.respelled[key])}" if key in example.respelled else ""
    return f" (default{written})"


def _ours(recipe: Recipe, file: dict[str, Any], hardware: dict[str, Any]) -> dict[str, Any]:
    """Return our recipe's keys and values. Paths, and what the machine's size decides, stay as the files have them."""
    written, machine = flatten(file), flatten(hardware)

    def value(key: str, leaf: Leaf) -> Any:
        if leaf.info.path is not None:
            return written.get(key)
        by_machine = recipe.source_of(key).layer == "hardware" and machine.get(key, ABSENT) is None
        return None if by_machine or written.get(key, ABSENT) is None else recipe.value(key)

    values = {key: value(key, leaf) for key, leaf in leaves(Recipe).items() if key not in _LAUNCHERS}
    values["data.prompt_key"] = values["data.prompt_key"] or ("problem" if recipe.engine == "easyr1" else "prompt")
    values["data.answer_key"] = values["data.answer_key"] or "answer"
    return values | {f"verl.{name}": value for name, value in flatten(recipe.verl).items()}


def _effective(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a form that can be compared between engines.

    A null that stands for another key's value gets that value, and keys without effect are left out.
    """
    result = dict(values)
    for wide, name in AVERAGES.items():
        if result.get(AVERAGE) == name:
            result["worker.actor.loss_agg_mode"] = wide
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
    return result


_COMMENT, _VERLS = re.compile(r"\s#\s*(.*)$"), re.compile(r"\w+(\.\w+)+")


def comments(path: Path) -> dict[str, str]:
    """Dotted key -> the reason in the comment behind its value, `verl's name; reason` or the reason alone."""
    text = path.read_text(encoding="utf-8")
    root, lines = yaml.compose(text, Loader=yaml.SafeLoader), text.splitlines()
    reasons = {}
    for key, end in _ends(root, "") if isinstance(root, yaml.MappingNode) else ():
        behind = _COMMENT.search(lines[end.line][end.column :])
        if behind:
            word, _, rest = behind[1].partition(";")
            leaf = leaves(Recipe).get(key)
            named = leaf is None or any(f".{name}".endswith(f".{word}") for name in leaf.info.verl)
            reasons[key] = (rest if named and _VERLS.fullmatch(word) else behind[1]).strip()
    return {key: reason for key, reason in reasons.items() if reason}


def _ends(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, yaml.Mark]]:
    """Yield each key with the position where its value ends.

    Blocks, and values of several lines, are left out: no comment stands behind them.
    """
    for name, value in node.value:
        key = f"{prefix}{name.value}"
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from _ends(value, f"{key}.")
        elif value.end_mark.line == value.start_mark.line:
            yield key, value.end_mark


def cell_text(value: Any) -> str:
    """A value as YAML on one line; a dash where a side does not have the key."""
    return ABSENT if value is ABSENT else flow(value)


def _summary(table: Table) -> str:
    """Return how many keys are as in the examples, and how many are not."""
    kinds = Counter(row.status for row in table.differing)
    return (
        f"{len(table.aligned)} keys aligned, {kinds['task']} different for the task, {kinds['hardware']} for the "
        f"hardware, {len(table.ours_alone)} that no example has; {table.same} more are set by no side and equal "
        "everywhere. "
        "`val_freq` and `save_freq` count steps and batch sizes count prompts, on every side. A dash: that side has no "
        'such key. "default": the example leaves it to its engine; "there": how the engine writes that default.'
    )


def page(table: Table) -> str:
    """Markdown: a summary, a table of the keys that differ, a line each of the others, and the values' sources."""
    heads = ["key", "ours", *(each.title for each in table.official), "differs for", "reason"]
    rows = [[*row_cells(row), row.status, row.reason or "NO REASON GIVEN"] for row in table.differing]
    outside = {key: pair for each in table.official for key, pair in each.outside.items()}
    notes = origins(table)
    if outside:
        listed_outside = "; ".join(f"`{key}: {cell_text(value)}` ({why})" for key, (value, why) in outside.items())
        notes += f"\n- Outside the schema: {listed_outside}."
    lists = [f"Aligned: {listed(table.aligned)}.", f"No example has these: {listed(table.ours_alone)}."]
    return "\n\n".join((_summary(table), markdown(heads, rows), *lists, notes)) + "\n"


def listed(rows: Iterable[Row]) -> str:
    """Keys with our values, on one line."""
    return ", ".join(f"`{row.key}` {cell_text(row.ours)}" for row in rows)


def origins(table: Table) -> str:
    """A list of the examples: repository, commit and file of each."""
    return "\n".join(f"- {each.title}: {each.origin}." for each in table.official)


def row_cells(row: Row) -> list[str]:
    """Key, our value and the official ones as code; the mark of a default stands behind the code."""
    values = [(row.key, ""), (row.ours, ""), *zip(row.official, row.marks, strict=True)]
    return [ABSENT if value is ABSENT else f"`{cell_text(value)}`{mark}" for value, mark in values]


def block(task: str, *against: str) -> str:
    """The generated block `comparison TASK EXAMPLE...`. Raises RecipeError where a difference has no reason."""
    table = compare(task, against)
    table.require_reasons()
    return page(table).rstrip("\n")
