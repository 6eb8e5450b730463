"""Held-out splits: what must not be split is not, and the share bounds rows and prompts of each data source."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import example, given, settings
from hypothesis import strategies as st

from recipes.data.splits import MOST_VALIDATION, Prompts


def prompts(rows, seed=1):
    """Prompts of (data source, text, images) rows."""
    result = Prompts(seed)
    for source, text, images in rows:
        result.add(source, [text], images)
    return result


ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.integers(0, 12).map(str),
        st.lists(st.sampled_from([b"1", b"2", b"3", b"4", b"5", b"6", b"7"]), max_size=2),
    ),
    min_size=1,
    max_size=50,
)


def by_hand(rows):
    """The group of each row: rows are joined one by one, without the graph."""
    group = list(range(len(rows)))
    for i, (_, text, images) in enumerate(rows):
        for j, (_, other, others) in enumerate(rows[:i]):
            if set(images) & set(others) or (not images and not others and text == other):
                old, new = group[i], group[j]
                group = [new if each == old else each for each in group]
    return group


TWO_TOO_SMALL = [
    ("b", "0", [b"1"]),
    *3 * [("a", "0", [b"1"])],
    *3 * [("a", "1", [])],
    *2 * [("b", "0", [])],
    ("a", "0", []),
]
"""Two sources of which none has a group within its share, and a group that both have."""


@example(rows=TWO_TOO_SMALL, share=0.25, seed=0)
@settings(max_examples=200, deadline=None)
@given(rows=ROWS, share=st.floats(0.01, 0.99), seed=st.integers(0, 2**40))
def test_the_share_bounds_rows_and_prompts_and_no_group_is_on_both_sides(rows, share, seed):
    held = prompts(rows, seed).held_out(share)
    groups = by_hand(rows)
    sides = defaultdict(set)
    for group, side in zip(groups, held, strict=True):
        sides[group].add(side)
    assert all(len(both) == 1 for both in sides.values())
    for source in {row[0] for row in rows}:
        here = [(group, side) for row, group, side in zip(rows, groups, held, strict=True) if row[0] == source]
        different, chosen = {group for group, _ in here}, {group for group, side in here if side}
        sizes = Counter(group for group, _ in here)
        assert len(different) == 1 or different - chosen, "something is left to train on"
        assert len(chosen) <= max(1, round(share * len(different)))
        assert sum(sizes[group] for group in chosen) <= max(1, round(share * len(here))) or len(chosen) == 1
    order = list(reversed(range(len(rows))))
    again = prompts([rows[index] for index in order], seed).held_out(share)
    assert [held[index] for index in order] == again, "the order of the rows plays no part"


def test_training_rows_with_a_prompt_or_an_image_of_the_validation_data_are_found():
    val = prompts([("vision", "another question", [b"seen"]), ("qa", "Text  only", ())])
    train = prompts([("v", "q", [b"new"]), ("v", "q", [b"new", b"seen"]), ("x", "text ONLY", ()), ("x", "other", ())])
    assert train.shared_with(val) == [False, True, True, False]


def test_large_sources_have_an_upper_bound_and_every_source_gives_something():
    many = [("a", str(index), ()) for index in range(2 * MOST_VALIDATION)]
    held = prompts([*many, ("b", "x", ()), ("b", "y", ()), ("c", "alone", ())]).held_out(0.9)
    assert sum(held[: len(many)]) == MOST_VALIDATION
    assert held[len(many) :] in ([True, False, False], [False, True, False])
    assert prompts([("a", "alone", ())]).held_out(0.5) == [False]
