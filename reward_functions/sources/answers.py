r"""Stated answers: where a response states its answer, and how it is read; for all tasks but Countdown and programs.

The last marker counts: `#### x`, `Answer: x` and `the answer is x` to the end of the line, `\boxed{x}`,
`<answer>x</answer>`. A numeric answer is the first number in the marker; any other is the marker's whole content. A
response of one line counts as marked if the whole line is the answer. docs/REWARD_ANSWERS.md has the table.

`gsm8k.py`, `number_game.py` and `dispatch.py` load this file. Standard library only; every step takes linear time.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

LONGEST = 2000  # characters of a statement
LONGEST_NUMBER = 90  # characters
MARKED = ("line", "field")

# Character normalisation: full-width forms, dashes that stand for a minus, currency signs.
SPELLINGS: dict[int, str] = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)} | {0x3000: " ", 0xA0: " "}
SPELLINGS |= dict.fromkeys(map(ord, "\u2212\u2010\u2011\u2012\u2013\u2014\ufe63"), "-")
SPELLINGS |= dict.fromkeys(map(ord, "€£¥￥"), "$")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_PHRASE = re.compile(r"answer(?:[*_]{0,3}[:：]| is\b[*_]{0,3}[:：]?)", re.IGNORECASE)
_BEFORE = re.compile(r"^(?:[ \t\n*_]|(?:\\\[|\$\$)(?=[ \t]*\n))*")  # Markdown, and `\[` on a line of its own
_END = re.compile(r"\n|<[|/]")  # a line's answer also ends before `<|im_end|>` or `</answer>`


class Statement(NamedTuple):
    """The answer that a response states."""

    text: str  # the marker's content, or the whole last line where there is no marker
    # "line" behind `####` or a phrase, "field" in `\boxed{}` or `<answer>`, "last" for the last line without a marker;
    # or the reason why there is no answer: "no_answer" or "truncated".
    how: str
    response: str  # the text that was searched, the response without its thinking

    @property
    def asked_for(self) -> bool:
        """Whether the answer is in a marker, or the response is a single line."""
        return self.how in MARKED or (self.how == "last" and "\n" not in self.response.strip())

    @property
    def unread(self) -> str:
        """The reason code if no answer can be read from the statement."""
        return "unparsable" if self.how in MARKED else "no_answer" if self.how == "last" else self.how


def find(response: str) -> Statement:
    """The statement of a response; thinking, closed or not, is not searched."""
    text, thinking, _ = response.rpartition("</think>")[2].partition("<think>")
    marks = [(text.rfind(mark), mark) for mark in ("####", "\\boxed{", "<answer>")]
    at, mark = max(*marks, *(_last_phrase(text, word) for word in ("answer", "Answer", "ANSWER")))
    if at == -1:
        line = _line(text.rstrip().rpartition("\n")[2])
        return Statement(line, "truncated" if thinking else "last" if line else "no_answer", text)
    rest = text[at + len(mark) :]
    if mark in ("\\boxed{", "<answer>"):
        end = rest.find("</answer>") if mark == "<answer>" else closing_brace(rest)
        return Statement(rest[: max(end, 0)].strip()[: LONGEST + 1], "field" if end != -1 else "truncated", text)
    if not rest.strip():
        return Statement("", "truncated", text)
    return Statement(_line(rest if mark == "####" else _BEFORE.sub("", rest)), "line", text)


def _last_phrase(text: str, word: str) -> tuple[int, str]:
    """Find the last phrase that begins with `word`; a case-insensitive search would take ten times as long."""
    at = text.rfind(word)
    while at != -1:
        if match := _PHRASE.match(text, at):
            return at, match[0]
        at = text.rfind(word, 0, at)
    return -1, ""


def _line(text: str) -> str:
    return _END.split(text, maxsplit=1)[0].strip()[: LONGEST + 1]


def closing_brace(text: str) -> int:
    """Return the position of the brace that closes a brace opened before `text`; -1 if no brace does."""
    depth = 1
    for match in _BRACE.finditer(text):
        depth += (match[0] == "{") - (match[0] == "}")
        if depth == 0:
            return match.start()
    return -1


# --- Numbers ---

_SPACING = re.compile(r"\\[,;:!]|\{,\}")  # 1\,234 and 1{,}234 are 1,234
_RUN = re.compile(r"(?<![0-9A-Za-z_.])(-?)\$?(-?)(\.?[0-9][0-9.,]*)")
_WELL_FORMED = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?").fullmatch
_EXPONENT = re.compile(r"[eE][-+]?[0-9]").match
_NAME = re.compile(r"\\[A-Za-z]+")
_ANOTHER = re.compile(r"\W*(?:(?:or|and)\W+)?[0-9]").match  # behind a number: `5 or 7`, `8 \times 9`, `2^3`, `1/5`
_GOLD = re.compile(r"[-+]?\$?-?[0-9.,]+").fullmatch
_QUOTIENT = re.compile(r"([-+]?[0-9.,]+)/([0-9.,]+)").fullmatch


def number(stated: Statement) -> str:
    """Return the number in a marker, or the number that the response consists of; "" if there is none."""
    if stated.how in MARKED:
        return read_number(stated.how, stated.text)
    return gold_number(plain(stated.text)) if stated.asked_for else ""


def last_number(response: str) -> str:
    """The last number of a response, wherever it stands; "" where there is none."""
    return read_number.__wrapped__("last", response)  # not cached: responses are long


@lru_cache(maxsize=16_384)  # the responses of one group repeat each other's answers
def read_number(how: str, text: str) -> str:
    """Return a statement's number in canonical form; "" if there is none.

    Args:
        how: "line": the first number; "field": the same, but none if another follows directly; "last": the last one.
        text: the statement, or the whole response where `how` is "last".
    """
    if how != "last" and len(text) > LONGEST:
        return ""
    text = _SPACING.sub(lambda match: "," if match[0] == "{,}" else "", text.translate(SPELLINGS)).replace("\\$", "$")
    text = "-" + text[2:].lstrip() if text.startswith("- ") else text
    match = None
    for match in _RUN.finditer(text):  # noqa: B007
        if how != "last":
            break
    if match is None:
        return ""
    digits = match[3].rstrip(".,")
    end = match.start(3) + len(digits)
    if len(digits) > LONGEST_NUMBER or not _WELL_FORMED(digits) or text[end : end + 1].isnumeric():
        return ""  # 1,23 and 1.2.3; 72² and 1½
    if _EXPONENT(text, end) or (how == "field" and _ANOTHER(_NAME.sub(" ", text[end:]))):
        return ""
    whole, _, part = digits.replace(",", "").partition(".")
    number = (whole.lstrip("0") or "0") + f".{part}".rstrip("0").rstrip(".")
    return "-" + number if (match[1] or match[2]) and number != "0" else number


@lru_cache(maxsize=4096)
def gold_number(text: str) -> str:
    """The gold number, alone or behind the `####` of a worked solution; "" where it is not just a number."""
    text = text.rpartition("####")[2].strip().removesuffix("%").removesuffix(".")
    return read_number("line", text) if _GOLD(text) else ""


def value(text: str) -> Fraction | None:
    r"""The exact value of a text that is a number or a quotient of two (`0.5`, `1/2`, `\frac{1}{2}`); else None."""
    text = bare(text)
    parts = match.groups() if (match := _QUOTIENT(text)) else (text,)
    numbers = [gold_number(part) for part in parts if len(part) <= LONGEST_NUMBER]
    if len(numbers) != len(parts) or not all(numbers) or numbers[1:] == ["0"]:
        return None
    return Fraction(numbers[0]) / Fraction(numbers[-1] if match else "1")


# --- Text ---

_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|left|right|quad|qquad)(?![A-Za-z])|\\[,;:! ()\[\]]|[{}~]|\\?\$")
_EDGE = " \t\r\n*_`\"'“”‘’「」『』$"
_LOOSE_BLANK = re.compile(r" (?![0-9A-Za-z])|(?<![0-9A-Za-z]) ")  # `x + 1` is `x+1`, and `5 7` is not `57`


def plain(text: str) -> str:
    r"""The text with one spelling for full-width forms and minus signs, and without LaTeX's `\text{}` and spacing."""
    text = text.translate(SPELLINGS)
    if "\\" in text or "{" in text or "$" in text:
        text = _COMMAND.sub("", _FRACTION.sub(r"\1/\2", text))
    return " ".join(text.lstrip(_EDGE).rstrip(_EDGE + ".。").split())


def bare(text: str) -> str:
    """Like `plain`, but case-folded and without blanks beside signs; the case-folded text if that leaves nothing."""
    return _LOOSE_BLANK.sub("", plain(text).casefold()) or text.strip().casefold()
