"""The Countdown prompt, its gold response and its ground truth: one place, for every model and every script."""

from __future__ import annotations

from collections.abc import Sequence

DATA_SOURCE = "countdown"
ABILITY = "math"

# One fixed sentence: the tiny tokenizer is trained on it, so a change here asks for a new tiny model.
TEMPLATE = (
    "Make {target} from the numbers {numbers}. Use each number exactly once, with +, -, * and /. "
    "Reason in <think> </think>, then write the equation in <answer> </answer>, "
    "for example <answer>(1 + 2) / 3</answer>."
)


def prompt(numbers: Sequence[int], target: int) -> str:
    """The user's message for one problem, numbers in the order given."""
    return TEMPLATE.format(target=target, numbers=", ".join(map(str, numbers)))


def gold_response(solution: str, reasoning: str | None = None) -> str:
    """A response that earns full marks: `<think>REASONING</think>`, a line break, `<answer>SOLUTION</answer>`.

    Args:
        solution: an expression such as `(8 - 3 + 1) * 4`, without `= target`.
        reasoning: the text between the think tags; the solution itself where none is given.
    """
    return f"<think>{solution if reasoning is None else reasoning}</think>\n<answer>{solution}</answer>"


def ground_truth(numbers: Sequence[int], target: int) -> str:
    """What the reward reads, as JSON: `{"target": 24, "numbers": [3, 8, 1, 1]}`."""
    return f'{{"target": {target}, "numbers": [{", ".join(map(str, numbers))}]}}'
