"""A user's mistake, as tests look at it."""

from collections.abc import Callable
from typing import Any

import pytest

from recipes.errors import RecipeError


def mistake(call: Callable[[], Any], named: str = "") -> RecipeError:
    """Return the error that a call raises: it has a place and a fix, and names something."""
    with pytest.raises(RecipeError) as raised:
        call()
    error = raised.value
    assert named in str(error), str(error)
    assert error.where
    assert error.fix
    return error
