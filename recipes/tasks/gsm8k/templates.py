"""Templates of one- and two-step word problems: what is calculated, how it is asked, and how it is explained.

Fields: {a} {b} {c} given numbers, {x} {y} results of the first and second step, {one} {two} names, {items} things that
are counted, {boxes} things that hold them; {step1} and {step2} stand for a calculation such as `5 + 3 = <<5+3=8>>8`.
"""

from __future__ import annotations

from typing import NamedTuple


class Template(NamedTuple):
    """`steps` as (left, operator, right); one of `questions` is asked, and `sentences` explain the steps."""

    name: str
    steps: tuple[tuple[str, str, str], ...]
    questions: tuple[str, ...]
    sentences: tuple[str, ...]


TEMPLATES = (
    Template(
        "receive",
        (("a", "+", "b"),),
        (
            "{one} has {a} {items}. {two} gives {one} {b} more. How many {items} does {one} have now?",
            "{one} finds {a} {items} in the morning and {b} in the evening. How many {items} does {one} find?",
        ),
        ("{one} has {step1} {items}.",),
    ),
    Template(
        "give away",
        (("a", "-", "b"),),
        (
            "{one} has {a} {items} and gives {b} of them to {two}. How many {items} does {one} have left?",
            "There are {a} {items} on the table. {one} takes {b} away. How many {items} are left?",
        ),
        ("There are {step1} {items} left.",),
    ),
    Template(
        "boxes",
        (("a", "*", "b"),),
        (
            "{one} has {a} {boxes} with {b} {items} in each. How many {items} does {one} have?",
            "There are {b} {items} in a full box. {one} fills {a} {boxes}. How many {items} is that?",
        ),
        ("That is {step1} {items}.",),
    ),
    Template(
        "share",
        (("a", "/", "b"),),
        (
            "{one} shares {a} {items} equally among {b} friends. How many {items} does each friend get?",
            "{one} puts {a} {items} into {b} {boxes}, the same number in each. How many {items} are in each?",
        ),
        ("Each gets {step1} {items}.",),
    ),
    Template(
        "receive and give",
        (("a", "+", "b"), ("x", "-", "c")),
        (
            "{one} has {a} {items}, buys {b} more and gives {c} to {two}. How many {items} does {one} have left?",
            "{one} picks {a} {items} and {two} picks {b}. They give {c} away. How many {items} are left?",
        ),
        ("First there are {step1} {items}.", "Then there are {step2} {items}."),
    ),
    Template(
        "more than",
        (("a", "+", "b"), ("a", "+", "x")),
        (
            "{one} has {a} {items}. {two} has {b} more than {one}. How many {items} do they have together?",
            "{one} sells {a} {items} on Monday and {b} more than that on Tuesday. How many {items} in both days?",
        ),
        ("The second number is {step1} {items}.", "Together that is {step2} {items}."),
    ),
    Template(
        "times as many",
        (("a", "*", "b"), ("a", "+", "x")),
        (
            "{one} has {a} {items}. {two} has {b} times as many. How many {items} do they have together?",
            "{one} reads {a} pages on Monday and {b} times as many on Tuesday. How many pages does {one} read?",
        ),
        ("The second number is {step1}.", "Together that is {step2}."),
    ),
    Template(
        "boxes and more",
        (("a", "*", "b"), ("x", "+", "c")),
        (
            "{one} buys {a} {boxes} of {b} {items} and already has {c}. How many {items} does {one} have in all?",
            "{one} fills {a} {boxes} with {b} {items} each and has {c} {items} left. How many {items} are there?",
        ),
        ("The {boxes} hold {step1} {items}.", "In all there are {step2} {items}."),
    ),
    Template(
        "boxes and fewer",
        (("a", "*", "b"), ("x", "-", "c")),
        (
            "{one} has {a} {boxes} of {b} {items} and gives {c} {items} to {two}. How many {items} are left?",
            "There are {a} {boxes} with {b} {items} each, but {c} of the {items} are bad. How many {items} are good?",
        ),
        ("The {boxes} hold {step1} {items}.", "There remain {step2} {items}."),
    ),
    Template(
        "change",
        (("a", "*", "b"), ("c", "-", "x")),
        (
            "{one} buys {a} {items} for {b} dollars each and pays with {c} dollars. How many dollars come back?",
            "One of the {items} costs {b} dollars. {one} has {c} dollars and buys {a}. How many dollars are left?",
        ),
        ("The {items} cost {step1} dollars.", "There remain {step2} dollars."),
    ),
    Template(
        "put together and share",
        (("a", "+", "b"), ("x", "/", "c")),
        (
            "{one} has {a} {items} and {two} has {b}. They share them equally among {c} friends. "
            "How many {items} does each friend get?",
            "{one} bakes {a} cakes, {two} bakes {b}, and they put them into {c} {boxes}, the same number in each. "
            "How many cakes are in each?",
        ),
        ("Together there are {step1}.", "Each gets {step2}."),
    ),
    Template(
        "share and give",
        (("a", "/", "b"), ("x", "-", "c")),
        (
            "{one} and friends share {a} {items} equally among {b} children. {one} gives {c} of this share away. "
            "How many {items} does {one} have left?",
            "They put {a} {items} into {b} {boxes}, the same number in each. {one} takes {c} out of one of them. "
            "How many {items} are left in it?",
        ),
        ("Each share is {step1} {items}.", "Then {step2} {items} are left."),
    ),
)

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Iris", "Jack", "Kim", "Leo", "Mia", "Noah")
ITEMS = ("apples", "books", "cards", "coins", "eggs", "flowers", "marbles", "nuts", "pears", "pens", "shells", "stamps")
BOXES = ("bags", "baskets", "boxes", "jars")
