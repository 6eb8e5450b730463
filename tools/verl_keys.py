"""`python -m tools.verl_keys`: write recipes/config/verl_unread.yaml, the keys of verl that nothing in it reads.

A group stands for its keys where nothing reads any of them. A key counts as read if a module that a run can load has
its name as an attribute or in a string, or if an attribute of `self` in the dataclass that verl makes of the key's
group. That finds too many rather than too few: `path` is read somewhere. A key is unread too where its group is.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from recipes.config import names
from recipes.config.names import UNREAD, verl_package
from recipes.files import write_whole

# Not loaded by a run of GRPO on FSDP and vLLM: other trainers, other backends, and dataclasses that repeat the keys.
OTHERS = re.compile(
    r"main_ppo_v0|ray_trainer|main_eval|main_generation|sft_trainer|tinker|model_merger|third_party|reward_manager/|"
    r"experimental/(fully_async|separation|one_step|vla|dynamic|agent_gateway)|trainer/config/|"
    r"megatron|mcore|mindspeed|torchtitan|veomni|automodel|turbo|trtllm|npu|mstx"
)
FILE = Path(names.__file__).parent / UNREAD
WHOLE = ("transfer_queue", "ray_kwargs", "nsys", "engine_kwargs", "reward_kwargs", "override_config", "kw_args")
"""Groups that verl hands on as a whole, so that the names inside are another library's."""


class Reads(ast.NodeVisitor):
    """Names that a module reads: `anywhere` as attributes and in strings, `own` as attributes of self in a class."""

    def __init__(self) -> None:
        self.anywhere: set[str] = set()
        self.own: defaultdict[str, set[str]] = defaultdict(set)
        self.bases: dict[str, list[str]] = {}
        self.inside: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
        self.inside.append(node.name)
        self.generic_visit(node)
        self.inside.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            of_self = isinstance(node.value, ast.Name) and node.value.id == "self" and self.inside
            (self.own[self.inside[-1]] if of_self else self.anywhere).add(node.attr)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and re.fullmatch(r"[\w.]+", node.value):
            self.anywhere.update(node.value.split("."))

    def has(self, name: str, kind: str) -> bool:
        """Return whether `name`, a key of the dataclass `kind`, is read."""
        inherited = any(self.has(name, base) for base in self.bases.get(kind, []))
        return name in self.anywhere or name in self.own[kind] or inherited


def unread_keys(package: Path) -> list[str]:
    """The dotted keys of verl's trainer that no module of the package reads."""
    reads = Reads()
    for path in sorted(package.rglob("*.py")):
        if not OTHERS.search(str(path.relative_to(package))):
            reads.visit(ast.parse(path.read_text(encoding="utf-8")))
    tree = yaml.safe_load((package / "trainer/config/_generated_ppo_trainer.yaml").read_text(encoding="utf-8"))

    def walk(group: dict[str, Any], prefix: str, is_read: bool) -> tuple[list[str], bool]:
        """The unread keys of a group, and whether these are all that it has."""
        kind, found, whole = str(group.get("_target_", "")).rpartition(".")[2], list[str](), len(group) > 1
        for name, value in group.items():
            if name == "_target_":
                continue
            known, inside, all_of_it = name in WHOLE or (is_read and reads.has(name, kind)), list[str](), False
            if isinstance(value, dict) and value and name not in WHOLE:
                inside, all_of_it = walk(value, f"{prefix}{name}.", known)
            elif not known:
                all_of_it = True
            found += [f"{prefix}{name}"] if all_of_it else inside
            whole = whole and all_of_it
        return found, whole

    return walk(tree, "", True)[0]


def content() -> str:
    """The file's text."""
    package = verl_package()
    assert package is not None, "verl is not installed"
    lines = ["# Keys that nothing in this version of verl reads; written by `python -m tools.verl_keys`."]
    lines += [f"version: {version('verl')}", "names:", *(f"  - {name}" for name in unread_keys(package))]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    write_whole(FILE, content())
