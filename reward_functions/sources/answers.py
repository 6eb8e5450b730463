r"""Where a response states its answer, and how it is read: the one rule for every source whose answer is no program.

The last marker counts: `#### x` to the end of its line, `\boxed{x}`, `<answer>x</answer>`. In it a number is the first
value, everything else is the whole. Without a marker the last number, or the last line behind `Answer:`, is taken.
docs/REWARD_ANSWERS.md has the table; `gsm8k.py` and `number_game.py` have their own copy, and a test compares them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

LONGEST = 2000  # characters of a statement
LONGEST_NUMBER = 90  # characters

# One spelling: full-width forms, dashes that are a minus, currency signs.
SPELLINGS: dict[int, str] = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)} | {0x3000: " ", 0xA0: " "}
SPELLINGS |= dict.fromkeys(map(ord, "\u2212\u2010\u2011\u2012\u2013\u2014\ufe63"), "-")
SPELLINGS |= dict.fromkeys(map(ord, "€£¥￥"), "$")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_ANSWER = re.compile(r"answer[*_]{0,3}[:：]", re.IGNORECASE)


class Statement(NamedTuple):
    """The answer that a response states.

    Attributes:
        text: in the marker, or the whole last line where there is none.
        how: "line" behind `####`, "field" in `\\boxed{}` or `<answer>`, "last" without a marker; else the reason why
            there is none: "no_answer" or "truncated".
        response: what was searched.
    """

    text: str
    how: str
    response: str

    @property
    def asked_for(self) -> bool:
        """Does it stand in a marker, or is the response a single line?"""
        return self.how != "last" or "\n" not in self.response.strip()


def find(response: str) -> Statement:
    """The statement of a response; thinking, closed or not, is not searched."""
    text, thinking, _ = response.rpartition("</think>")[2].partition("<think>")
    hashes, boxed, tag = text.rfind("####"), text.rfind("\\boxed{"), text.rfind("<answer>")
    last = max(hashes, boxed, tag)
    if last == -1:
        line = _last_line(text)
        return Statement(line[: LONGEST + 1], "last" if line else "truncated" if thinking else "no_answer", text)
    if last == hashes:
        line, rest = text[last + 4 :].partition("\n")[0].partition("<|")[0].strip(), text[last + 4 :].strip()
        return Statement(line[: LONGEST + 1], "line" if rest else "truncated", text)
    start = last + (8 if last == tag else 7)
    end = text.find("</answer>", last) if last == tag else closing_brace(text, start)
    if end == -1:
        return Statement("", "truncated", text)
    return Statement(text[start:end].strip()[: LONGEST + 1], "field", text)


def closing_brace(text: str, start: int) -> int:
    """Return where the brace closes that opened before `start`; -1 where it does not."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        depth += (match[0] == "{") - (match[0] == "}")
        if depth == 0:
            return match.start()
    return -1


def _last_line(text: str) -> str:
    """The last line that is not empty, behind `Answer:` where that stands."""
    line = text.rstrip().rpartition("\n")[2].partition("<|")[0].strip()
    for match in _ANSWER.finditer(line):
        if rest := line[match.end() :].strip(" *_"):
            return rest
    return line


# --- Numbers ---

_SPACING = re.compile(r"\\[,;:!]|\{,\}")  # 1\,234 and 1{,}234 are 1,234
_RUN = re.compile(r"(?<![0-9A-Za-z_.])(-?)\$?(-?)(\.?[0-9][0-9.,]*)")
_WELL_FORMED = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?").fullmatch
_EXPONENT = re.compile(r"[eE][-+]?[0-9]").match
_NAME = re.compile(r"\\[A-Za-z]+")
_ANOTHER = re.compile(r"\W*(?:(?:or|and)\W+)?[0-9]").match  # behind a number: `5 or 7`, `8 \times 9`, `2^3`, `1/5`
_GOLD = re.compile(r"[-+]?\$?-?[0-9.,]+").fullmatch


@lru_cache(maxsize=16_384)  # the responses of one group repeat each other's answers
def read_number(how: str, text: str) -> str:
    """The number of a statement in its one spelling; "" where there is none.

    Args:
        how: "line": the first number; "field": the same, unless another stands right behind it; "last": the last one.
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


# --- Text ---

_FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|left|right|quad|qquad)(?![A-Za-z])|\\[,;:! ]|[{}~]|\\?\$")
_EDGE = " \t\r\n*_`\"'“”‘’「」『』$"
_LOOSE_BLANK = re.compile(r" (?![0-9A-Za-z])|(?<![0-9A-Za-z]) ")  # `x + 1` is `x+1`, and `5 7` is not `57`


def plain(text: str) -> str:
    r"""The text with one spelling for full-width forms and minus signs, and without LaTeX's `\text{}` and spacing."""
    text = text.translate(SPELLINGS)
    if "\\" in text or "{" in text or "$" in text:
        text = _COMMAND.sub("", _FRACTION.sub(r"\1/\2", text))
    return " ".join(text.lstrip(_EDGE).rstrip(_EDGE + ".。").split())


def bare(text: str) -> str:
    """`plain`, without case and the blanks beside signs; the text itself where that leaves nothing."""
    return _LOOSE_BLANK.sub("", plain(text).casefold()) or text.strip().casefold()
