"""GSM8K's gold numbers: one spelling of each, and an error where there is none."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.errors import RecipeError
from recipes.tasks.gsm8k.rows import canonical, count_steps, gold_response, prompt, split_answer


@pytest.mark.parametrize(
    ("tail", "gold"),
    [
        (" 72", "72"),
        ("72", "72"),
        (" 1,234", "1234"),
        (" 12,345,678 ", "12345678"),
        (" $18", "18"),
        (" 18.", "18"),
        (" 2.50", "2.5"),
        (" 10", "10"),
        (" 100.0", "100"),
        (" 007", "7"),
        (" -5", "-5"),
        (" -0", "0"),
        (" 0.05", "0.05"),
    ],
)
def test_gold_numbers_have_one_spelling(tail, gold):
    assert split_answer(f"First 1 + 1 = <<1+1=2>>2.\nSo.\n####{tail}") == ("First 1 + 1 = <<1+1=2>>2.\nSo.", gold)


@pytest.mark.parametrize(
    "answer", ["72", "#### ", "#### seven", "#### 7 apples", "#### 1,23", "#### 1e3", "#### 3/4", ""]
)
def test_answers_without_a_gold_number_are_refused(answer):
    with pytest.raises(RecipeError, match="no number behind"):
        split_answer(answer)


@given(st.decimals(-(10**9), 10**9, places=3))
def test_canonical_keeps_the_value_and_is_its_own_canonical(value):
    once = canonical(f"{value:,f}")
    assert Decimal(once) == value
    assert canonical(once) == once
    assert "," not in once
    assert not (("." in once) and once.endswith(("0", ".")))


def test_the_last_mark_counts_and_the_response_ends_in_the_gold():
    assert split_answer("It is #### 3? No.\n#### 4") == ("It is #### 3? No.", "4")
    assert gold_response("So 4.", "4") == "So 4.\n#### 4"
    assert prompt("How many?").startswith("How many?\n")
    assert "####" in prompt("How many?")
    assert count_steps("48/2 = <<48/2=24>>24, 48+24 = <<48+24=72>>72") == 2
    assert count_steps("none") == 0
