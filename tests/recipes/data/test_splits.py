"""Held-out splits: a prompt or image is on one side, and the share bounds rows and prompts of each data source."""

from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

from recipes.data.splits import MOST_VALIDATION, Prompts


def prompts(rows, seed=1):
    """Prompts of (data source, text, images) rows."""
    result = Prompts(seed)
    for source, text, images in rows:
        result.add(source, [text], images)
    return result


IMAGES = st.lists(st.sampled_from([b"1", b"2", b"3", b"4", b"5", b"6", b"7"]), max_size=2)
ROW = st.tuples(st.sampled_from("ab"), st.integers(0, 12).map(str), IMAGES)
NONE_SMALL_ENOUGH = [*3 * [("a", "0", [])], *3 * [("a", "1", [])], *2 * [("b", "0", [])]]


@example(rows=NONE_SMALL_ENOUGH, share=0.25, seed=0)
@settings(max_examples=200, deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=50), share=st.floats(0.01, 0.99), seed=st.integers(0, 2**40))
def test_the_share_bounds_rows_and_prompts_and_nothing_is_on_both_sides(rows, share, seed):
    found = prompts(rows, seed)
    held = found.held_out(share)
    shared = found.shared_with(found.keys(held))
    sides = [set(), set()]  # of training and of validation: texts of rows without images, and images
    for (_, text, images), validates, is_dropped in zip(rows, held, shared, strict=True):
        if validates or not is_dropped:
            sides[validates].update(images or [text])
    assert not sides[0] & sides[1]
    for source in {row[0] for row in rows}:
        here = [(images or text, side) for (name, text, images), side in zip(rows, held, strict=True) if name == source]
        sizes = Counter(str(prompt) for prompt, _ in here)
        chosen = {str(prompt) for prompt, side in here if side}
        assert len(here) == 1 or not all(side for _, side in here), "something is left to train on"
        if not any(images for name, _, images in rows if name == source):
            assert len(chosen) <= max(1, round(share * len(sizes)))
            assert sum(sizes[each] for each in chosen) <= max(1, round(share * len(here))) or len(chosen) == 1
            assert chosen or len(sizes) == 1
    order = list(reversed(range(len(rows))))
    again = prompts([rows[index] for index in order], seed).held_out(share)
    assert [held[index] for index in order] == again, "the order of the rows plays no part"


def test_training_rows_with_a_prompt_or_an_image_of_the_validation_data_are_found():
    spelled = ("où?", "ou\u0300 ?", "１ + 1", "\u200b1\u00a0+ 1")
    seen = [("v", "q", [b"new", b"seen"]), ("x", "text ONLY", ()), ("x", spelled[1], ()), ("x", spelled[3], ())]
    val = prompts(
        [("vision", "another", [b"seen"]), *[("qa", text, ()) for text in ("Text  only", *spelled[::2], "not")]]
    )
    train = prompts([("v", "q", [b"new"]), *seen, ("x", "not", ())])
    assert train.shared_with(val.keys([True] * 4 + [False])) == [False, True, True, True, True, False]


def test_large_sources_have_an_upper_bound_and_every_source_gives_something():
    many = [("a", str(index), ()) for index in range(2 * MOST_VALIDATION)]
    held = prompts([*many, ("b", "x", ()), ("b", "y", ()), ("c", "alone", ())]).held_out(0.9)
    assert sum(held[: len(many)]) == MOST_VALIDATION
    assert held[len(many) :] in ([True, False, False], [False, True, False])
