"""The one exception that a user's mistake raises: what is wrong, where, and what to do."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher, get_close_matches

RESPONSE_FAILED = "the reward or vLLM raised"
"""Beginning of the trainer's error when a response was not generated or not scored; the log has the cause above it."""
# Control characters, those that change the direction of a text, which can disguise it, and those that are none.
HIDDEN = (*range(32), *range(127, 160), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFFFE, 0xFFFF)
WRITTEN = {each: f"\\x{each:02x}" if each < 256 else f"\\u{each:04x}" for each in HIDDEN if chr(each) not in "\t\n"}


def printable(text: object) -> str:
    """A text whose control characters, which a terminal or a browser would obey, are written out."""
    return str(text).translate(WRITTEN)


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
        where, fix = self.where and f"\n  where: {self.where}", self.fix and f"\n  fix:   {self.fix}"
        return printable(self.what + where + fix)


class RecipeErrors(RecipeError):
    """Several independent mistakes, printed one below the other; `what`, `where` and `fix` are the first one's."""

    def __init__(self, errors: Sequence[RecipeError]) -> None:
        super().__init__(errors[0].what, where=errors[0].where, fix=errors[0].fix)
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\nerror: ".join(map(str, self.errors))


def unknown(kind: str, name: str, known: Sequence[str], where: str) -> RecipeError:
    """The error for a name that is none of the `known` ones: a similar one, or all of them."""
    fix = did_you_mean(name, known) or f"use one of {', '.join(known)}"
    return RecipeError(f"unknown {kind} {name!r}", where=where, fix=fix)


def raise_together(errors: Sequence[RecipeError]) -> None:
    """Raise the errors as one exception; without errors, do nothing."""
    if errors:
        raise errors[0] if len(errors) == 1 else RecipeErrors(errors)


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its class where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def abbreviated(value: object) -> str:
    """A value as Python shows it, at most 60 characters of it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or None. Of dotted names, those with the same last part come first."""
    names, last = list(known), name.rpartition(".")[2]
    elsewhere = [other for other in names if "." in other and other.rpartition(".")[2] == last]
    close = get_close_matches(name, elsewhere or names, n=1, cutoff=0 if elsewhere else 0.6)
    return close[0] if close else None


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 step`, `2 steps`, `1,000 steps`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or an empty text."""
    meant = nearest(name, known)
    return f"did you mean {meant}?" if meant else ""


def resembling(name: str, known: Iterable[str], is_number: bool = True) -> list[str]:
    """The known names that `name` may have been meant for, the likeliest first; underscores separate words.

    A known name is likely if `name` is a misspelling of it, or consists of some of its words. Where the value is text,
    the first words must also be equal: MODEL suggests MODEL_PATH, and PATH does not. For numbers and truth values
    `name` may consist of any words of the known name.
    """
    words = name.upper().split("_")
    slip = 0.84 if len(name) > 4 else 0.79  # the ratio of LR and LRR is 0.8
    likeness: dict[str, float] = {}
    for other in known:
        parts = other.upper().split("_")
        ratio = SequenceMatcher(None, name.upper(), other.upper()).ratio()
        if ratio > slip or (set(words) < set(parts) and (is_number or words[0] == parts[0])):
            likeness[other] = ratio
    return sorted(likeness, key=lambda other: (-likeness[other], other))


@contextmanager
def reported_errors() -> Iterator[None]:
    """Print a `RecipeError` to standard error and exit with 2, and of Ctrl-C one line, with 130; let every other
    exception through, since it is a bug."""
    try:
        yield
    except RecipeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
