"""verl's fused head: the flags that keep Triton from compiling it for each kind of number."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from recipes.engines.verl import engine as fused_head


def compiled(names: list[str]) -> SimpleNamespace:
    """What Triton's autotuner holds of a function with these arguments."""
    flags = {"do_not_specialize": False, "do_not_specialize_on_alignment": False}
    return SimpleNamespace(fn=SimpleNamespace(params=[SimpleNamespace(name=name, **flags) for name in names]))


def test_values_of_the_named_arguments_are_not_distinguished():
    kernels = pytest.importorskip("verl.utils.kernel.kernels")
    source = ast.parse(Path(kernels.__file__).read_text())  # without Triton the decorators leave no function behind
    names = {
        function.name: [argument.arg for argument in function.args.args]
        for function in source.body
        if isinstance(function, ast.FunctionDef)
    }
    stand_in = SimpleNamespace(**{name: compiled(names[name]) for name in fused_head.KERNELS})
    fused_head.compile_once(stand_in)
    of_values, of_addresses = set(), set()
    for name in fused_head.KERNELS:
        for parameter in getattr(stand_in, name).fn.params:
            of_values |= {parameter.name} if parameter.do_not_specialize else set()
            of_addresses |= {parameter.name} if parameter.do_not_specialize_on_alignment else set()
    assert of_values == set(fused_head.ANY_VALUE), "verl's kernels have an argument of each of these names"
    assert of_addresses == set(fused_head.ANY_ADDRESS)
