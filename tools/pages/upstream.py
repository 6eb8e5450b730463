"""Lines and names of verl, vLLM, Ray, transformers and EasyR1 that this repository patches or relies on.

A citation stands in a docstring or comment, in one form: `verl/utils/model.py:641` and, in brackets and backticks, code
that the line has. `vllm-0.24.0/...` is a line of that version only, `EasyR1/...` one of its tested commit.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from recipes.drawing import markdown
from recipes.paths import ROOT

CITATION = re.compile(
    r"\b(?P<package>verl|vllm|vllm-[\d.]+|ray|transformers|torch|torchvision|EasyR1)/(?P<path>[\w/]+\.py):(?P<line>\d+)"
    r"(?:\s+(?:#\s+)?\(`(?P<code>[^`]+)`\))?"
)
PACKAGES = ("verl", "vllm", "ray", "transformers")
REAL_TRAINER = "tests/recipes/engines/test_real_trainer.py"
EASYR1_TRAINER = "tests/recipes/engines/test_easyr1_trainer.py"


@dataclass(frozen=True)
class Citation:
    """One line of another package, and the function or module here that cites it."""

    package: str
    path: str
    line: int
    code: str
    module: Path
    owner: str

    @property
    def location(self) -> str:
        return f"{self.package}/{self.path}:{self.line}"

    @property
    def package_version(self) -> str:
        """The only version that has the line; empty for the installed one."""
        return self.package.partition("-")[2]


@dataclass(frozen=True)
class Name:
    """One name of another package that a module here imports, replaces or reads from what it imported."""

    origin: str
    name: str
    module: Path


def modules() -> list[Path]:
    """Every module of the package, as paths from the root of the repository."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / "recipes").rglob("*.py"))


def citations() -> list[Citation]:
    """Every citation of the package's modules, by upstream line."""
    found = []
    for module in modules():
        if module == Path(__file__).relative_to(ROOT):
            continue
        text = (ROOT / module).read_text(encoding="utf-8")
        for match in CITATION.finditer(text):
            owner = _owner(ast.parse(text), text.count("\n", 0, match.start()) + 1)
            code = match["code"] or ""
            found.append(Citation(match["package"], match["path"], int(match["line"]), code, module, owner))
    return sorted(found, key=lambda each: (each.package, each.path, each.line))


def _owner(tree: ast.Module, line: int) -> str:
    """The innermost function or class around a line; empty for the module itself."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno).name if around else ""


def names() -> list[Name]:
    """Every name that the engines take from inside another package; what a package shows at its top is left out."""
    found: set[Name] = set()
    for module in modules():
        if module.parts[1] == "engines":
            found |= set(_names(module))
    return sorted(found, key=lambda each: (each.origin, each.name, each.module))


def _names(module: Path) -> Iterator[Name]:
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    imported: dict[str, str] = {}
    packages = PACKAGES[1:] if "easyr1" in module.parts else PACKAGES  # there `verl` is EasyR1's
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in packages:
            for alias in node.names:
                if "." in node.module or source(f"{node.module}.{alias.name}"):
                    imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    if not source(f"{node.module}.{alias.name}"):
                        yield Name(node.module, alias.name, module)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            if node.attr.startswith("__"):
                continue
            yield Name(imported[node.value.id], node.attr, module)


@cache
def source(dotted: str) -> Path | None:
    """The file of an installed module, found without importing it; None for what is no module."""
    top, *rest = dotted.split(".")
    spec = find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        return None
    base = Path(spec.submodule_search_locations[0]).joinpath(*rest)
    candidates = (base / "__init__.py", base.with_suffix(".py"))
    return next((path for path in candidates if path.is_file()), None)


def defined_in(origin: str) -> Path | None:
    """The file of a module, or the one that defines a class or function, through what packages import again."""
    found = source(origin)
    if found is not None:
        return found
    module, _, name = origin.rpartition(".")
    file = source(module)
    if file is None:
        return None
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            package = module if file.name == "__init__.py" else module.rpartition(".")[0]
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            return defined_in(".".join([*above, *filter(None, [node.module]), name]))
    return file


def stale_citation(citation: Citation, easyr1: Path | None = None) -> str | None:
    """Say what is wrong with a citation, or return None.

    Args:
        citation: a line of an installed package, of another version of it, or of EasyR1.
        easyr1: folder of EasyR1's source; without it, its lines are not looked at.
    """
    here = f"{citation.module} ({citation.owner or 'module'}) cites {citation.location}"
    if not citation.code:
        return f"{here} without the code that the line has"
    package = citation.package.partition("-")[0]
    if package == "EasyR1":
        file = easyr1 / citation.path if easyr1 else None
    elif citation.package_version not in ("", _version(package)):
        file = None
    else:
        top = source(package)
        file = top.parent / citation.path if top else None
    if file is None:
        return None
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    if citation.line <= len(lines) and citation.code in lines[citation.line - 1]:
        return None
    now = [number for number, line in enumerate(lines, 1) if citation.code in line]
    return f"{here} for {citation.code!r}, which is in lines {now}"


def _version(package: str) -> str:
    for name in (package, f"{package}-cpu"):
        try:
            return version(name).split("+")[0]
        except PackageNotFoundError:
            continue
    return ""


@cache
def tests_of(module: Path) -> tuple[str, ...]:
    """The module's own test, else up to two that import it, else that of the trainer, which runs everything here."""
    mirror = Path("tests", module.parent, f"test_{module.name}")
    if (ROOT / mirror).is_file():
        return (str(mirror),)
    package, name = ".".join(module.with_suffix("").parts).rsplit(".", 1)
    imports = re.compile(rf"{re.escape(package)}\.{name}\b|from {re.escape(package)} import [^\n]*\b{name}\b")
    tests = sorted((ROOT / "tests" / "recipes").rglob("test_*.py"))
    found = [str(path.relative_to(ROOT)) for path in tests if imports.search(path.read_text(encoding="utf-8"))]
    return tuple(found[:2]) or (EASYR1_TRAINER if "easyr1" in module.parts else REAL_TRAINER,)


def uses_table() -> str:
    """Module here, the lines it cites with their code, the inner names it takes, and its tests."""
    lines: dict[Path, list[str]] = {}
    for each in citations():
        lines.setdefault(each.module, []).append(f"`{each.location}` (`{each.code}`)")
    taken: dict[Path, list[str]] = {}
    for name in names():
        taken.setdefault(name.module, []).append(f"`{name.origin}.{name.name}`")
    rows = [
        (
            f"`{module.relative_to('recipes')}`",
            "<br>".join(dict.fromkeys(lines.get(module, []))),
            "<br>".join(taken.get(module, [])),
            ", ".join(f"`{test.removeprefix('tests/recipes/')}`" for test in tests_of(module)),
        )
        for module in sorted({*lines, *taken})
    ]
    return markdown(("here", "lines, and what they have", "inner names", "tests"), rows)
