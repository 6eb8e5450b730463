"""The one exception that a user's mistake raises: what is wrong, where, and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class RecipeError(Exception):
    """A mistake that the user can mend; printed without a traceback.

    Args:
        what: what is wrong, in one sentence that quotes the offending value.
        where: the file, key, variable or row that holds it.
        fix: what to do about it.
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(what)

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)


@contextmanager
def reported_errors() -> Iterator[None]:
    """Print a `RecipeError` to standard error and exit with 2; let every other exception through, since it is a bug."""
    try:
        yield
    except RecipeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
