"""Official values read from a git checkout of EasyR1 or verl, as its launchers would run."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recipes.config.layers import dump, flatten, parse, read, shown_path
from recipes.config.official import SNAPSHOTS, Engine, has_counterpart, names, snapshot
from recipes.errors import RecipeError, did_you_mean

REPOSITORIES: dict[Engine, str] = {
    "easyr1": "https://github.com/hiyouga/EasyR1",
    "verl": "https://github.com/volcengine/verl",
}
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
FREE_MAPPING = "worker.rollout.val_override_config"


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
        return {key: value for key, value in values.items() if key != FREE_MAPPING}
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
        found[match[1]] = parse(match[2])
    return found


def example(
    checkout: Path, engine: Engine, name: str
) -> tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Title, origin, and the values of the defaults, the shared configuration and the launcher of that name.

    The name is that of a snapshot, or of any launcher in the checkout's examples.
    """
    held = engine_of(checkout)
    if held != engine:
        raise RecipeError(
            f"{engine}:{name} is not in a checkout of {held}", where=str(checkout), fix=f"name one of {held}'s"
        )
    title, file = _title_and_file(checkout, engine, name)
    origin = f"{REPOSITORIES[engine]}, commit {commit_of(checkout)}, {file}"
    hidden, shared = hidden_defaults(checkout, engine), shared_configuration(checkout, engine)
    return title, origin, hidden, shared, launcher_values(checkout, file)


def _title_and_file(checkout: Path, engine: Engine, name: str) -> tuple[str, str]:
    if f"{engine}:{name}" in names():
        tree = snapshot(f"{engine}_{name}")
        if (checkout / tree["file"]).is_file():
            return tree["title"], tree["file"]
    folder = "examples" if engine == "easyr1" else "examples/grpo_trainer"
    stems = {path.stem: path for path in sorted((checkout / folder).glob("*.sh"))}
    for stem in (name, f"{name}_grpo", f"run_{name}"):
        if stem in stems:
            label = {"easyr1": "EasyR1", "verl": "verl"}[engine]
            return f"{label}, {name}", str(stems[stem].relative_to(checkout))
    raise RecipeError(
        f"there is no example {name!r}",
        where=str(checkout / folder),
        fix=did_you_mean(name, stems) or "see that folder",
    )


def launcher_values(checkout: Path, file: str) -> dict[str, Any]:
    """What the launcher itself sets, without the name of the configuration file."""
    try:
        text = (checkout / file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"cannot read the launcher: {error}", where=str(checkout / file), fix="check out the whole repository"
        ) from error
    return {key: value for key, value in arguments(text, file).items() if key != "config"}


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
    source: dict[str, Any] = {"engine": engine, "repository": REPOSITORIES[engine], "commit": commit_of(checkout)}
    shared = shared_configuration(checkout, engine)
    below = ["config", "defaults"] if shared else ["defaults"]
    found = {f"{engine}_defaults": {"layer": "defaults", **source, **_defaults(checkout, engine)}}
    if shared:
        found[f"{engine}_config"] = {"layer": "config", **source, "file": EASYR1_CONFIG, "values": shared}
    for name in (known.partition(":")[2] for known in names() if known.startswith(f"{engine}:")):
        title, file = _title_and_file(checkout, engine, name)
        found[f"{engine}_{name}"] = {
            "layer": "launcher",
            **source,
            "file": file,
            "title": title,
            "below": below,
            "values": launcher_values(checkout, file),
        }
    return found


def _defaults(checkout: Path, engine: Engine) -> dict[str, Any]:
    file = list(EASYR1_CLASSES) if engine == "easyr1" else VERL_DEFAULTS
    return {"file": file, "values": hidden_defaults(checkout, engine)}
