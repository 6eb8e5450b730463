"""A calculator for GSM8K: a tool, and the form in which the data set's worked answers call it, `<<48/2>>`.

TOOLS=examples/gsm8k/calculator.py bash examples/gsm8k/...        # calls in hermes' form, 33 tokens each
TOOL_FORMAT=gsm8k TOOLS=... bash examples/gsm8k/...               # <<48/2>>, 6 tokens each
"""

from __future__ import annotations

import ast
import json
import operator
import re
import warnings
from fractions import Fraction
from typing import Any

from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.function_tool import function_tool

OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
LONGEST = 200  # characters of an expression
# Python warns of expressions such as 3and4, which a model may write: `ast.parse` names their file <unknown>.
warnings.filterwarnings("ignore", category=SyntaxWarning, module="<unknown>")


@function_tool
def calculator(expression: str) -> str:
    """Calculate with numbers, + - * / and brackets.

    Args:
        expression: what to calculate, such as 48/2

    Returns:
        The exact result, as a decimal number where it ends, else rounded to six places.

    >>> calculator("48/2")
    '24'
    """
    if len(expression) > LONGEST:
        raise ValueError(f"the expression is longer than {LONGEST} characters")
    try:
        tree = ast.parse(re.sub(r"(?<![\d.])\.(?=\d)", "0.", expression.strip()), mode="eval")
        return written(value(tree.body, expression.strip()))
    except SyntaxError:
        raise ValueError(f"{expression} is no expression") from None


def value(node: ast.expr, text: str) -> Fraction:
    """The value of an expression. Raises ValueError for anything but numbers, + - * / and brackets."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return Fraction(OPERATIONS[type(node.op)](value(node.left, text), value(node.right, text)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner = value(node.operand, text)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    raise ValueError(f"{text} has something else than numbers, + - * / and brackets")


def written(number: Fraction) -> str:
    """A number as text: 24, 0.5, or rounded to six places."""
    if number.denominator == 1:
        return str(number)
    return f"{float(number):.6f}".rstrip("0").rstrip(".")


@ToolParser.register("gsm8k")
class Annotations(ToolParser):
    """Reads `<<48/2>>` as a call of the calculator."""

    call = re.compile(r"<<([^<>\n]*)>>")

    async def extract_tool_calls(self, responses_ids: list[int], tools: Any = None) -> tuple[str, list[FunctionCall]]:
        text = self.tokenizer.decode(responses_ids)
        calls = [
            FunctionCall(name="calculator", arguments=json.dumps({"expression": expression}))
            for expression in self.call.findall(text)
        ]
        return self.call.sub("", text), calls

    @staticmethod
    def write(name: str, arguments: dict[str, Any]) -> str:
        """A call as the parser reads it."""
        return f"<<{arguments['expression']}>>"
