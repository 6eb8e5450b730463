"""A recipe beside the official configurations of EasyR1 and verl."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import yaml

from recipes.config.layers import dump, flatten, flow, parse, read, shown_path
from recipes.config.names import aliases as same_in_schema
from recipes.config.resolve import find, load
from recipes.config.schema import Recipe, leaves
from recipes.errors import RecipeError, did_you_mean
from recipes.paths import CONFIGS


def defaults(files: Iterable[Path], root: str) -> dict[str, Any]:
    """Dotted key -> default of every field below the dataclass `root`, without those that the constructor refuses.

    Tuples become lists, as in YAML. Raises RecipeError for a file that is missing or a default that is no constant.
    """
    classes: dict[str, ast.ClassDef] = {}
    for path in files:
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError) as error:
            raise RecipeError(f"cannot read the defaults in {path.name}: {error}", where=str(path)) from error
        classes.update({node.name: node for node in tree.body if isinstance(node, ast.ClassDef)})
    if root not in classes:
        raise RecipeError(f"there is no class {root}", where=", ".join(map(str, files)))
    return _fields(classes, root, "")


def _fields(classes: Mapping[str, ast.ClassDef], name: str, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in classes[name].body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None):
            continue
        key = f"{prefix}{node.target.id}"
        options = _options(node.value)
        if options is None:
            found[key] = _constant(node.value, key)
        elif isinstance(options.get("init"), ast.Constant) and options["init"].value is False:
            continue
        elif isinstance(factory := options.get("default_factory"), ast.Name) and factory.id in classes:
            found.update(_fields(classes, factory.id, f"{key}."))
        elif isinstance(factory, ast.Name) and factory.id in ("dict", "list"):
            found[key] = {} if factory.id == "dict" else []
        else:
            found[key] = _constant(options.get("default", node.value), key)
    return found


def _options(value: ast.expr) -> dict[str | None, ast.expr] | None:
    """The keywords of `field(...)`; None for any other default."""
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "field":
        return {keyword.arg: keyword.value for keyword in value.keywords}
    return None


def _constant(value: ast.expr, key: str) -> Any:
    try:
        constant = ast.literal_eval(value)
    except ValueError as error:
        raise RecipeError(f"the default of {key} is no constant", where=ast.unparse(value)) from error
    return list(constant) if isinstance(constant, tuple) else constant


_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(.+?)\s*$")
_WITH_DEFAULT = re.compile(r"\$\{(\w+):-([^{}]*)\}")
_PLAIN = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_ARGUMENT = re.compile(r"^\+{0,2}([A-Za-z_][\w.]*)=(.*)$", re.DOTALL)
_TRAINER = re.compile(r"-m verl\.trainer\.main\w*\s")

_SUBSTITUTION = re.compile(r"\$\([^()]*\)")

BLANK = "\0"
"""Stands for a blank inside `$(...)`, which does not end a word."""
ENDS = "|>&;"
"""Characters that end the command, or send its output elsewhere."""
DEPTH = 20
"""Variables inside variables; more than a launcher has, and an end where one names itself."""


def arguments(text: str, where: str) -> dict[str, Any]:
    """Dotted key -> value. Variables that the launcher sets are filled in, by their default where one may override it.

    Others, such as $HOME, stay as they are. Raises RecipeError where the text starts no trainer of verl or EasyR1,
    or hands it an array.
    """
    joined = re.sub(r"\\\n", " ", text)
    variables: dict[str, str] = {}
    for line in joined.splitlines():
        trainer = _TRAINER.search(line)
        if trainer:
            return _parsed(_filled(line[trainer.end() :], variables), where)
        assigned = _ASSIGNMENT.match(re.sub(r"\s#.*$", "", line))
        if assigned:
            variables[assigned[1]] = _filled(assigned[2].strip("\"'"), variables)
    raise RecipeError("the launcher starts no trainer of verl or EasyR1", where=where)


def _filled(text: str, variables: dict[str, str]) -> str:
    """`${X}`, `$X` and `${X:-default}` replaced, innermost first, until nothing changes."""
    for _ in range(DEPTH):
        filled = _WITH_DEFAULT.sub(lambda match: variables.get(match[1], match[2]), text)
        filled = _PLAIN.sub(lambda match: variables.get(match[1] or match[2], f"${match[1] or match[2]}"), filled)
        if filled == text:
            break
        text = filled
    return text


def _parsed(command: str, where: str) -> dict[str, Any]:
    if "[@]" in command:
        raise RecipeError("the launcher keeps its arguments in arrays, which are not read", where=where)
    whole = _SUBSTITUTION.sub(lambda match: match[0].replace(" ", BLANK), command)
    lexer = shlex.shlex(whole, posix=True, punctuation_chars=ENDS)
    lexer.whitespace_split = True
    found: dict[str, Any] = {}
    for word in lexer:
        if set(word) <= set(ENDS):
            break
        match = _ARGUMENT.match(word.replace(BLANK, " "))
        if match is None:
            continue
        try:
            found[match[1]] = parse(match[2])
        except yaml.YAMLError as error:
            raise RecipeError(f"cannot read {word!r}", where=where) from error
    return found


Values = Mapping[str, Any]
Read = tuple[tuple[str, ...], Callable[[Values], Any]]

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
IN_REWARD, IN_LOSS = "algorithm.use_kl_in_reward", f"{ACTOR}.use_kl_loss"
REWARD_COEF, LOSS_COEF = "algorithm.kl_ctrl.kl_coef", f"{ACTOR}.kl_loss_coef"
REWARD_TYPE, LOSS_TYPE = "algorithm.kl_penalty", f"{ACTOR}.kl_loss_type"
CONTENTS = f"{ACTOR}.checkpoint.save_contents"


def _kl(in_loss: str, in_reward: str) -> Read:
    """The value that acts: the loss's where KL is in the loss, the reward's otherwise."""
    return (in_loss, in_reward), lambda v: v.get(in_loss) if v.get(IN_LOSS) else v.get(in_reward)


def _average(values: Values) -> str:
    return "token" if values.get(f"{ACTOR}.loss_agg_mode", "token-mean").startswith("token") else "seq"


RULES: dict[str, Read] = {
    "algorithm.disable_kl": ((IN_REWARD, IN_LOSS), lambda v: not (v.get(IN_REWARD) or v.get(IN_LOSS))),
    "algorithm.use_kl_in_reward": ((IN_REWARD,), lambda v: v.get(IN_REWARD)),
    "algorithm.kl_coef": _kl(LOSS_COEF, REWARD_COEF),
    "algorithm.kl_penalty": _kl(LOSS_TYPE, REWARD_TYPE),
    "data.min_pixels": (("data.mm_processor_kwargs.min_pixels",), lambda v: v["data.mm_processor_kwargs.min_pixels"]),
    "data.max_pixels": (("data.mm_processor_kwargs.max_pixels",), lambda v: v["data.mm_processor_kwargs.max_pixels"]),
    "worker.actor.dynamic_batching": ((f"{ACTOR}.use_dynamic_bsz",), lambda v: v[f"{ACTOR}.use_dynamic_bsz"]),
    "worker.actor.max_token_len_per_device": (
        (f"{ACTOR}.ppo_max_token_len_per_gpu",),
        lambda v: v[f"{ACTOR}.ppo_max_token_len_per_gpu"] if v.get(f"{ACTOR}.use_dynamic_bsz") else None,
    ),
    "worker.actor.loss_avg_mode": ((f"{ACTOR}.loss_agg_mode",), _average),
    "worker.actor.fsdp.enable_cpu_offload": (
        (f"{ACTOR}.fsdp_config.offload_policy",),
        lambda v: v[f"{ACTOR}.fsdp_config.offload_policy"],
    ),
    "worker.rollout.max_model_len": ((f"{ROLLOUT}.max_model_len",), lambda v: v[f"{ROLLOUT}.max_model_len"]),
    "worker.rollout.load_format": ((f"{ROLLOUT}.load_format",), lambda v: v[f"{ROLLOUT}.load_format"]),
    "worker.reward.reward_function": (("custom_reward_function.path",), lambda v: v["custom_reward_function.path"]),
    "trainer.save_limit": (
        ("trainer.max_actor_ckpt_to_keep",),
        lambda v: -1 if v["trainer.max_actor_ckpt_to_keep"] is None else v["trainer.max_actor_ckpt_to_keep"],
    ),
    "trainer.save_model_only": ((CONTENTS,), lambda v: "optimizer" not in v[CONTENTS]),
    "trainer.save_hf_model": ((CONTENTS,), lambda v: "hf_model" in v[CONTENTS]),
    "trainer.find_last_checkpoint": (("trainer.resume_mode",), lambda v: v["trainer.resume_mode"] == "auto"),
    "trainer.load_checkpoint_path": (("trainer.resume_from_path",), lambda v: v["trainer.resume_from_path"]),
}
"""Key of the schema -> verl's keys that decide it, and how they do."""

SUPERSEDED = ("algorithm.kl_coef", "algorithm.kl_loss_coef", "algorithm.kl_loss_type", "worker.actor.loss_agg_mode")
"""Keys of the schema whose value another key of this table already tells."""

OUTSIDE = {
    "actor_rollout_ref.model.use_fused_kernels": "a choice of kernels; the values do not change",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu": "follows from the actor's micro-batches here",
    "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": "follows from worker.actor.dynamic_batching here",
    "actor_rollout_ref.ref.use_torch_compile": "the reference follows the actor",
    "actor_rollout_ref.rollout.engine_kwargs.vllm.disable_mm_preprocessor_cache": "an argument of one vLLM version",
    "actor_rollout_ref.rollout.layered_summon": "sends weights layer by layer, to save memory",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu": "follows from the actor's micro-batches here",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": "follows from worker.actor.dynamic_batching here",
    "data.truncation": "error is the default; overlong prompts are filtered out before",
}
"""verl's keys in official launchers that the schema has no counterpart for, and why."""


@cache
def reads() -> dict[str, Read]:
    """Every key of the schema that verl's keys tell, with the names to read and how."""
    table: dict[str, Read] = {
        path: ((name,), _same(name)) for name, path in same_in_schema().items() if path not in SUPERSEDED
    }
    for path, leaf in leaves(Recipe).items():
        if leaf.info.convert is not None and leaf.info.verl:
            table[path] = ((leaf.info.verl[0],), _undone(leaf.info.verl[0], leaf.info.convert.from_verl))
    return {**table, **RULES}


def _same(name: str) -> Callable[[Values], Any]:
    return lambda values: values[name]


def _undone(name: str, undo: Callable[[Any], Any]) -> Callable[[Values], Any]:
    return lambda values: undo(values[name])


@cache
def _read_names() -> frozenset[str]:
    return frozenset(name for names, _ in reads().values() for name in names)


def has_counterpart(name: str) -> bool:
    """Whether one of verl's keys says something that the schema can say."""
    return name in _read_names()


def repeats(name: str, values: Values) -> bool:
    """Whether a key is a further name of one that `values` holds with the same value, such as the reference's batch."""
    for leaf in leaves(Recipe).values():
        if name in leaf.info.verl[1:]:
            return leaf.info.verl[0] in values and values[leaf.info.verl[0]] == values[name]
    return False


def to_schema(values: Values) -> dict[str, Any]:
    """The schema's keys and values that a set of verl's keys amounts to."""
    return {path: read(values) for path, (names, read) in reads().items() if any(name in values for name in names)}


def told_by(names: set[str]) -> set[str]:
    """The schema's keys that at least one of verl's `names` decides."""
    return {path for path, (read, _) in reads().items() if names & set(read)}


LAUNCHERS_OWN = ("name", "engine", "hardware", "prepare", "verl")
"""Keys that speak to the launcher, and verl's own, which have rows of their own."""
VALIDATION = "worker.rollout.val_override_config"
LORA = "worker.actor.model.lora"
DETAILS = {
    f"{LORA}.rank": (f"{LORA}.alpha", f"{LORA}.target_modules", f"{LORA}.exclude_modules"),
    "worker.rollout.limit_images": ("data.min_pixels", "data.max_pixels"),
    "worker.actor.dynamic_batching": ("worker.actor.max_token_len_per_device",),
    "algorithm.online_filtering": ("algorithm.filter_low", "algorithm.filter_high", "algorithm.filter_key"),
}
"""Switch -> keys that mean nothing in our recipe while it is off."""
OVERRIDES = ("temperature", "top_p", "top_k")


def ours(recipe: Recipe, task_or_path: str) -> dict[str, Any]:
    """Our recipe's keys and values; paths as its file writes them."""
    path = find(task_or_path)
    written = flatten(read(path, shown_path(path)))
    values: dict[str, Any] = {}
    for key, leaf in leaves(Recipe).items():
        if key in LAUNCHERS_OWN or (key.startswith("worker.critic.") and recipe.algorithm.adv_estimator != "gae"):
            continue
        if leaf.info.path is not None:
            values[key] = written.get(key)
        else:
            values[key] = recipe.value(key)
    values.update({f"verl.{name}": value for name, value in flatten(recipe.verl).items()})
    if values["data.prompt_key"] is None:
        values["data.prompt_key"] = "problem" if recipe.engine == "easyr1" else "prompt"
    return values


def canonical(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings with nulls that mean another key filled in, and without keys that have no effect."""
    result = dict(values)
    _kl_effective(result)
    for name in OVERRIDES:
        if result.get(f"{VALIDATION}.{name}") is None and f"worker.rollout.{name}" in result:
            result[f"{VALIDATION}.{name}"] = result[f"worker.rollout.{name}"]
    result.setdefault(f"{VALIDATION}.n", 1)
    if result.get("worker.rollout.load_format") == "auto":
        needs_weights = result.get(f"{LORA}.rank") or result.get("worker.rollout.limit_images")
        result["worker.rollout.load_format"] = "safetensors" if needs_weights else "dummy"
    return result


def idle(mine: Mapping[str, Any]) -> frozenset[str]:
    """Keys that say how to do what our recipe does not do at all; they compare to nothing."""
    return frozenset(key for switch, keys in DETAILS.items() if not mine.get(switch) for key in keys)


def _kl_effective(values: dict[str, Any]) -> None:
    """`use_kl_in_reward` is left out where it follows from `use_kl_loss`; the loss's own weight becomes the weight."""
    in_loss = bool(values.get("algorithm.use_kl_loss"))
    follows = not in_loss and not values.get("algorithm.disable_kl")
    in_reward = values.pop("algorithm.use_kl_in_reward", None)
    if in_reward is not None and in_reward != follows:
        values["algorithm.use_kl_in_reward"] = in_reward
    coefficient, estimator = values.pop("algorithm.kl_loss_coef", None), values.pop("algorithm.kl_loss_type", None)
    if in_loss and not in_reward:
        values["algorithm.kl_coef"] = values.get("algorithm.kl_coef") if coefficient is None else coefficient
        values["algorithm.kl_penalty"] = estimator or values.get("algorithm.kl_penalty")


EASYR1_CLASSES = (
    "verl/trainer/config.py",
    "verl/workers/config.py",
    "verl/workers/actor/config.py",
    "verl/workers/critic/config.py",
    "verl/workers/reward/config.py",
    "verl/workers/rollout/config.py",
)
EASYR1_CONFIG = "examples/config.yaml"
VERL_DEFAULTS = "verl/trainer/config/_generated_ppo_trainer.yaml"
VALIDATION_CHECKOUT = "worker.rollout.val_override_config"


def commit_of(checkout: Path) -> str:
    """The commit that is checked out. Raises RecipeError where git does not know it."""
    try:
        done = subprocess.run(
            ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RecipeError("git cannot say which commit this is", where=str(checkout)) from error
    return done.stdout.strip()


def engine_of(checkout: Path) -> Engine:
    """Which of the two repositories a folder holds. Raises RecipeError where it is neither."""
    if (checkout / EASYR1_CONFIG).is_file() and (checkout / EASYR1_CLASSES[0]).is_file():
        return "easyr1"
    if (checkout / VERL_DEFAULTS).is_file():
        return "verl"
    raise RecipeError(
        "this is no checkout of EasyR1 or verl", where=str(checkout), fix="name the folder that holds examples/"
    )


def hidden_defaults(checkout: Path, engine: Engine) -> dict[str, Any]:
    """What holds where neither configuration nor launcher says anything; of verl's, those the schema can express."""
    if engine == "easyr1":
        values = defaults([checkout / name for name in EASYR1_CLASSES], "PPOConfig")
        return {key: value for key, value in values.items() if key != VALIDATION_CHECKOUT}
    tree = flatten(read(checkout / VERL_DEFAULTS, VERL_DEFAULTS))
    return {key: _resolved(tree, value) for key, value in tree.items() if has_counterpart(key)}


def _resolved(tree: dict[str, Any], value: Any) -> Any:
    """verl's `${oc.select:other.key,default}` as its value; other interpolations stay text."""
    if not (isinstance(value, str) and value.startswith("${oc.select:")):
        return value
    key, _, default = value.removeprefix("${oc.select:").removesuffix("}").partition(",")
    return _resolved(tree, tree[key]) if key in tree else parse(default.strip())


def shared_configuration(checkout: Path, engine: Engine) -> dict[str, Any]:
    """EasyR1's launchers all start from one YAML file; verl's from the defaults."""
    return flatten(read(checkout / EASYR1_CONFIG, EASYR1_CONFIG)) if engine == "easyr1" else {}


def find_example(checkout: Path, engine: Engine, name: str) -> Example:
    """The launcher of that name: one that we know, or any in the checkout's examples."""
    folder = "examples" if engine == "easyr1" else "examples/grpo_trainer"
    known = EXAMPLES[engine].get(name)
    stems = {path.stem: path for path in sorted((checkout / folder).glob("*.sh"))}
    if known is not None and (checkout / known.file).is_file():
        return known
    for stem in (name, f"{name}_grpo", f"run_{name}"):
        if stem in stems:
            label = {"easyr1": "EasyR1", "verl": "verl"}[engine]
            return Example(f"{label}, {name}", str(stems[stem].relative_to(checkout)))
    raise RecipeError(
        f"there is no example {name!r}",
        where=str(checkout / folder),
        fix=did_you_mean(name, stems) or "see that folder",
    )


def launcher_values(checkout: Path, example: Example) -> dict[str, Any]:
    """What the launcher itself sets, without the name of the configuration file."""
    try:
        text = (checkout / example.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read the launcher: {error}", where=str(checkout / example.file)) from error
    return {key: value for key, value in arguments(text, example.file).items() if key != "config"}


SNAPSHOTS = CONFIGS / "official"


@dataclass(frozen=True)
class Official:
    """One official example, in the schema's keys.

    Attributes:
        engine: easyr1 or verl.
        name: its name in `--against`.
        title: head of its column.
        origin: repository, commit and file, in words.
        values: every key that the example determines, its engine's defaults included.
        said: the keys that its launcher or shared configuration sets; the others are defaults.
        outside: keys of the engine that the schema has no counterpart for.
    """

    engine: Engine
    name: str
    title: str
    origin: str
    values: Mapping[str, Any]
    said: frozenset[str]
    outside: Mapping[str, Any] = field(default_factory=dict)


def names() -> list[str]:
    """Every name that `--against` knows without a checkout."""
    return [f"{engine}:{name}" for engine, examples in EXAMPLES.items() for name in examples]


def chosen(words: Iterable[str], checkout: Path | None = None) -> list[Official]:
    """The examples that `--against` asks for: `easyr1`, `easyr1:7b`, `verl:qwen3_8b_gsm8k`; each once, in order.

    With a checkout, its own files are read, and every launcher in it has a name. Raises RecipeError for an unknown one.
    """
    wanted: dict[tuple[Engine, str], None] = {}
    for word in words:
        for part in word.split(","):
            wanted.update(dict.fromkeys(_named(part.strip(), checkout is None)))
    return [_read(engine, name) if checkout is None else _from(checkout, engine, name) for engine, name in wanted]


def _named(word: str, known_only: bool) -> list[tuple[Engine, str]]:
    engine, colon, name = word.partition(":")
    if engine not in get_args(Engine):
        raise RecipeError(
            f"unknown official example {word!r}",
            where="--against",
            fix=did_you_mean(word, names()) or "begin with easyr1 or verl, for instance easyr1:7b",
        )
    if not colon:
        return [(engine, each) for each in SHORT[engine].values()]
    name = SHORT[engine].get(name, name)
    if known_only and name not in EXAMPLES[engine]:
        listed = [each.partition(":")[2] for each in names() if each.startswith(f"{engine}:")]
        raise RecipeError(
            f"unknown official example {word!r}",
            where="--against",
            fix=did_you_mean(name, listed) or f"use one of {', '.join(listed)}, or name a checkout",
        )
    return [(engine, name)]


def _read(engine: Engine, name: str) -> Official:
    tree = snapshot(f"{engine}_{name}")
    below = [snapshot(f"{engine}_{layer}") for layer in tree["below"]]
    hidden = next((layer["values"] for layer in below if layer["layer"] == "defaults"), {})
    shared = next((layer["values"] for layer in below if layer["layer"] == "config"), {})
    return _joined(engine, name, tree["title"], tree["commit"], tree["file"], hidden, shared, tree["values"])


def snapshot(stem: str) -> dict[str, Any]:
    """One file of configs/official as it is."""
    return read(SNAPSHOTS / f"{stem}.yaml", f"configs/official/{stem}.yaml")


def _from(checkout: Path, engine: Engine, name: str) -> Official:

    held = engine_of(checkout)
    if held != engine:
        raise RecipeError(f"{engine}:{name} is not in a checkout of {held}", where=str(checkout))
    example = find_example(checkout, engine, name)
    hidden, shared = hidden_defaults(checkout, engine), shared_configuration(checkout, engine)
    said = launcher_values(checkout, example)
    return _joined(engine, name, example.title, commit_of(checkout), example.file, hidden, shared, said)


def _joined(
    engine: Engine,
    name: str,
    title: str,
    commit: str,
    file: str,
    hidden: Mapping[str, Any],
    shared: Mapping[str, Any],
    launcher: Mapping[str, Any],
) -> Official:
    origin = f"{REPOSITORIES[engine]}, commit {commit}, {file}"
    said, values = {**shared, **launcher}, {**hidden, **shared, **launcher}
    if engine == "easyr1":
        return Official(engine, name, title, origin, values, frozenset(said))
    outside = {key: value for key, value in launcher.items() if not has_counterpart(key) and not repeats(key, launcher)}
    return Official(engine, name, title, origin, to_schema(values), frozenset(told_by(set(said))), outside)


HEAD = {
    "defaults": "Values that hold where an official example says nothing: the engine's own defaults at this commit.",
    "config": "Values of the configuration that every launcher of the engine starts from.",
    "launcher": "Values that an official launcher sets; what it leaves unsaid is in the files named by `below`.",
}
FORM = "# Facts: keys and values, nothing else. Written by scripts/collect_official.py."
NATIVE = "# Keys are verl's own; recipes/config/official.py reads them as the schema's."


def write(checkout: Path, folder: Path = SNAPSHOTS) -> list[str]:
    """Write every snapshot of the checkout's engine into `folder`; returns the files' names as messages show them."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for stem, tree in snapshots(checkout).items():
        notes = [f"# {HEAD[tree['layer']]}", FORM, *([NATIVE] if tree["engine"] == "verl" else [])]
        path = folder / f"{stem}.yaml"
        path.write_text("\n".join(notes) + "\n" + dump(tree), encoding="utf-8")
        written.append(shown_path(path))
    return written


def snapshots(checkout: Path) -> dict[str, dict[str, Any]]:
    """Stem of the file -> its tree."""
    engine = engine_of(checkout)
    source: dict[str, Any] = {
        "engine": engine,
        "repository": REPOSITORIES[engine],
        "commit": commit_of(checkout),
    }
    shared = shared_configuration(checkout, engine)
    below = ["config", "defaults"] if shared else ["defaults"]
    found = {f"{engine}_defaults": {"layer": "defaults", **source, **_defaults(checkout, engine)}}
    if shared:
        found[f"{engine}_config"] = {"layer": "config", **source, "file": EASYR1_CONFIG, "values": shared}
    for name, example in EXAMPLES[engine].items():
        found[f"{engine}_{name}"] = {
            "layer": "launcher",
            **source,
            "file": example.file,
            "title": example.title,
            "below": below,
            "values": launcher_values(checkout, example),
        }
    return found


def _defaults(checkout: Path, engine: Engine) -> dict[str, Any]:
    file = list(EASYR1_CLASSES) if engine == "easyr1" else VERL_DEFAULTS
    return {"file": file, "values": hidden_defaults(checkout, engine)}


Status = Literal["aligned", "adjusted", "only ours"]

AS_WRITTEN = {"EMBEDDED": "0", "CUDA_VISIBLE_DEVICES": "-1", "WANDB_API_KEY": "unused"}
"""No variable of this shell, no embedded model, no lack of this machine's, and W&B kept: the recipe as it is meant."""


class _Absent:
    """The type of ABSENT."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()
"""Stands for a key that a side does not have."""


@dataclass(frozen=True)
class Row:
    """One key.

    Attributes:
        key: dotted key of the schema; `verl.` before one of verl's own.
        ours: our value, or ABSENT where our engine cannot do it.
        official: the examples' values in their order, or ABSENT.
        defaults: for each example, whether it leaves the key to its engine's default.
        status: aligned (as every example that has the key), adjusted, or only ours.
        reason: why, in one line; empty where nothing says it.
    """

    key: str
    ours: Any
    official: tuple[Any, ...]
    defaults: tuple[bool, ...]
    status: Status
    reason: str

    @property
    def lacks_reason(self) -> bool:
        return self.status != "aligned" and not self.reason


@dataclass(frozen=True)
class Table:
    """A recipe beside official examples.

    Attributes:
        recipe: the recipe's file.
        official: the examples, in the order of the columns.
        rows: in the schema's order.
        same: number of keys that nobody sets and that have one value everywhere.
    """

    recipe: str
    official: tuple[Official, ...]
    rows: tuple[Row, ...]
    same: int

    @property
    def differences(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.status != "aligned")

    @property
    def aligned(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.status == "aligned")

    def require_reasons(self) -> None:
        """Raise RecipeError naming the differences that the recipe gives no reason for."""
        bare = [row.key for row in self.rows if row.lacks_reason]
        if bare:
            raise RecipeError(
                f"no reason is given for {', '.join(bare)}",
                where=self.recipe,
                fix="set the key there, with a comment that says why: `key: value  # verl's name; reason`",
            )


def compare(task_or_path: str, official: Sequence[Official]) -> Table:
    """Our recipe, resolved for GPUs from its files alone, beside the examples."""
    recipe = load(task_or_path, environ=AS_WRITTEN, hardware="gpu")
    reasons = Reasons(recipe, task_or_path)
    mine = canonical(ours(recipe, task_or_path))
    theirs = [canonical(each.values) for each in official]
    meaningless = idle(mine)
    rows, same = [], 0
    for key in _keys(mine, theirs):
        set_by_us = recipe.source_of(key).layer != "default"
        if key in meaningless and not set_by_us:
            continue
        row = _row(key, mine, theirs, official, reasons, recipe)
        if row.status == "only ours" and not set_by_us:
            continue
        if row.status == "aligned" and not set_by_us and all(row.defaults):
            same += 1
        else:
            rows.append(row)
    return Table(shown_path(find(task_or_path)), tuple(official), tuple(rows), same)


def _keys(mine: Mapping[str, Any], theirs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of both sides in the schema's order, verl's own at the end; the critic's only where we have one."""
    has_critic = any(key.startswith("worker.critic.") for key in mine)
    wanted = set(mine).union(*theirs)
    known = [key for key in leaves(Recipe) if key in wanted and (has_critic or not key.startswith("worker.critic."))]
    return known + sorted(key for key in mine if key.startswith("verl."))


def _row(
    key: str,
    mine: Mapping[str, Any],
    theirs: Sequence[Mapping[str, Any]],
    official: Sequence[Official],
    reasons: Reasons,
    recipe: Recipe,
) -> Row:
    leaf = leaves(Recipe).get(key)
    values = tuple(each.get(key, ABSENT) for each in theirs)
    value = mine.get(key, ABSENT)
    status = _status(value, values)
    unable = leaf is not None and recipe.engine in leaf.info.not_on and recipe.source_of(key).layer == "default"
    return Row(
        key,
        ABSENT if unable and status == "adjusted" else value,
        values,
        tuple(key not in each.said for each in official),
        status,
        reasons.of(key),
    )


def _status(value: Any, official: Sequence[Any]) -> Status:
    present = [other for other in official if other is not ABSENT]
    if not present:
        return "only ours"
    return "aligned" if all(_equal(value, other) for other in present) else "adjusted"


def _equal(one: Any, other: Any) -> bool:
    """1 is 1.0, but true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


_COMMENT = re.compile(r"\s#\s*(.*)$")
FILES = (".sh", ".py", ".yaml", ".json", ".jinja")

# Where a recipe says nothing, because the schema's default fits: why that default is not the official one.
OF_DEFAULTS = {
    "data.filter_overlong_prompts_workers": "as EasyR1; measuring prompts is faster",
    "data.prompt_key": "a row has one column for each engine",
    "data.seed": "fixed, so that two runs see the same order",
    "data.shuffle": "as both engines' default",
    "data.val_batch_size": "all of the validation at once: the engine queues by itself",
    "trainer.save_hf_model": "a checkpoint loads in vLLM and transformers without merging",
    "worker.actor.clip_ratio_high": "as EasyR1's own default",
    "worker.actor.dynamic_batching": "as EasyR1's own default",
    "worker.actor.entropy_coeff": "no bonus, as GRPO was published",
    "worker.actor.max_token_len_per_device": "derived from micro-batch size and lengths",
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


def comments(path: Path) -> dict[str, str]:
    """Dotted key -> the reason in the comment behind its value; keys without one are left out.

    A comment is `verl's name; reason`, or the reason alone.
    """
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    lines = text.splitlines()
    found: dict[str, str] = {}
    for key, end in _values(root, "") if isinstance(root, yaml.MappingNode) else ():
        behind = _COMMENT.search(lines[end.line][end.column :])
        reason = _reason(behind[1], key) if behind else ""
        if reason:
            found[key] = reason
    return found


def _values(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, yaml.Mark]]:
    """Every value with its key and where it ends; a block's own end is none."""
    for name, value in node.value:
        key = f"{prefix}{name.value}"
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from _values(value, f"{key}.")
        elif value.end_mark.line == value.start_mark.line:
            yield key, value.end_mark


def _reason(comment: str, key: str) -> str:
    head, _, rest = comment.partition(";")
    word = head.split()[0].rstrip(":,") if head.split() else ""
    is_name = "." in word and not word.endswith(FILES) and _names(key, word)
    return (rest if is_name else comment).strip()


def _names(key: str, word: str) -> bool:
    leaf = leaves(Recipe).get(key)
    return leaf is None or any(name == word or name.endswith(f".{word}") for name in leaf.info.verl)


class Reasons:
    """The reasons of one recipe: its own comments, over those of the hardware's file, over what follows by itself."""

    def __init__(self, recipe: Recipe, task_or_path: str) -> None:
        self._recipe = recipe
        self._own = comments(find(task_or_path))
        self._hardware = comments(CONFIGS / "hardware" / f"{recipe.hardware}.yaml")

    def of(self, key: str) -> str:
        """Why our value differs; empty where nothing says it."""
        layer = self._recipe.source_of(key).layer
        if layer == "recipe":
            return self._own.get(key, "")
        if layer == "hardware":
            return self._hardware.get(key, "")
        leaf = leaves(Recipe).get(key)
        unable = leaf.info.not_on.get(self._recipe.engine, "") if leaf else ""
        return unable or OF_DEFAULTS.get(key, "")


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


STEPS = (
    "`val_freq` and `save_freq` count steps and batch sizes count prompts, on every side. A dash: that side has no "
    'such key. "default": the example leaves it to its engine.'
)
DASH = "—"


def header(table: Table) -> list[str]:
    """Heads of the columns."""
    return ["key", "ours", *(each.title for each in table.official), "status", "reason"]


def cells(row: Row) -> list[str]:
    """The row as plain text; an official value that is its engine's default says so."""
    official = [
        shown(value) + (" (default)" if default and value is not ABSENT else "")
        for value, default in zip(row.official, row.defaults, strict=True)
    ]
    return [row.key, shown(row.ours), *official, row.status, why(row)]


def shown(value: Any) -> str:
    """A value as YAML on one line; a dash where a side does not have the key."""
    return DASH if value is ABSENT else flow(value)


def why(row: Row) -> str:
    """The reason of a difference; an aligned value needs none."""
    if row.status == "aligned":
        return ""
    return row.reason or "NO REASON GIVEN"


def summary(table: Table) -> str:
    """How many keys are as in the examples, and how many are not."""
    adjusted = sum(row.status == "adjusted" for row in table.rows)
    return (
        f"{len(table.aligned)} keys aligned, {adjusted} adjusted, {len(table.differences) - adjusted} only ours; "
        f"{table.same} more are nobody's choice and the same everywhere."
    )


def notes(table: Table) -> list[str]:
    """Where the official values are from, and what they set that has no counterpart here."""
    lines = [f"{each.title}: {each.origin}." for each in table.official]
    outside = {key: value for each in table.official for key, value in each.outside.items()}
    lines += [
        f"Outside the schema: `{key}: {shown(value)}` ({OUTSIDE.get(key, 'not known here')})."
        for key, value in outside.items()
    ]
    return lines


def markdown(table: Table, rows: Sequence[Row] | None = None) -> str:
    """A Markdown table of all rows, or of some."""
    from recipes.config.docs import markdown as laid_out

    def styled(row: Row) -> list[str]:
        plain = cells(row)
        code = [_code(cell) for cell in plain[:-2]]
        return [*code, *plain[-2:]]

    return laid_out(header(table), [styled(row) for row in (table.rows if rows is None else rows)])


def _code(cell: str) -> str:
    if cell == DASH:
        return cell
    value, default, _ = cell.partition(" (default)")
    return f"`{value}`{default}"


def page(table: Table) -> str:
    """Summary, table and notes."""
    listed = "\n".join(f"- {note}" for note in notes(table))
    return f"{summary(table)} {STEPS}\n\n{markdown(table)}\n\n{listed}\n"


def block(task: str = "", *against: str) -> str:
    """The generated block `comparison TASK EXAMPLE...` of a README: differences first, aligned keys folded away.

    Raises RecipeError where a difference has no reason.
    """
    if not task or not against:
        raise RecipeError(
            "a comparison names a recipe and official examples", fix="<!-- generated: comparison countdown easyr1 -->"
        )
    table = compare(task, chosen(against))
    table.require_reasons()
    listed = "\n".join(f"- {note}" for note in notes(table))
    folded = f"<details><summary>{len(table.aligned)} aligned keys</summary>"
    return "\n\n".join(
        [
            f"{summary(table)} {STEPS}",
            markdown(table, table.differences),
            f"{folded}\n\n{markdown(table, table.aligned)}\n\n</details>",
            listed,
        ]
    )


if TYPE_CHECKING:
    from rich.table import Table as RichTable

COLOURS = {"aligned": "dim", "adjusted": "yellow", "only ours": "cyan"}

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 96rem; padding: 0 1rem; color: #1b1b1b; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #ddd; padding: .3rem .6rem; text-align: left; vertical-align: top; }
th { position: sticky; top: 0; background: #fff; }
td:first-child, td.value { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere; }
tr.aligned { color: #666; }
tr.adjusted td.status { color: #8a5a00; font-weight: 600; }
tr.only-ours td.status { color: #005a8a; font-weight: 600; }
@media (prefers-color-scheme: dark) {
  body { background: #16181b; color: #e6e6e6; } th { background: #16181b; } th, td { border-color: #3a3d42; }
  tr.aligned { color: #9a9a9a; } tr.adjusted td.status { color: #f0b95a; } tr.only-ours td.status { color: #6fc3f0; }
}
"""


def terminal(table: Table) -> RichTable:
    """A rich table; differences stand out."""
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(title=table.recipe, caption=f"{summary(table)} {STEPS}", show_lines=False)
    for name in header(table):
        drawn.add_column(name, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in cells(row)), style=COLOURS[row.status])
    return drawn


def html(table: Table) -> str:
    """One page, without scripts and without the network."""
    heads = "".join(f"<th>{escape(name)}</th>" for name in header(table))
    rows = []
    for row in table.rows:
        key, *values, status, reason = (escape(cell) for cell in cells(row))
        inner = "".join(f'<td class="value">{value}</td>' for value in values)
        name = status.replace(" ", "-")
        rows.append(f'<tr class="{name}"><td>{key}</td>{inner}<td class="status">{status}</td><td>{reason}</td></tr>')
    listed = "".join(f"<li>{_inline(note)}</li>" for note in notes(table))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(table.recipe)} beside official examples</title><style>{STYLE}</style></head><body>\n"
        f"<h1>{escape(table.recipe)} beside official examples</h1>\n<p>{escape(summary(table))} {_inline(STEPS)}</p>\n"
        f'<div class="wide"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + f"\n</tbody></table></div>\n<ul>{listed}</ul>\n</body></html>\n"
    )


def _inline(text: str) -> str:
    """Backticks of a note as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
