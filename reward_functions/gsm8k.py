r"""GSM8K's reward: the last stated number equals the gold one, in exact arithmetic.

Score: 1.0 for the right number behind a marker (`#### 72`, `\boxed{72}`, `<answer>72</answer>`, or nothing but the
number), 0.9 where it had to be guessed from unmarked prose, 0.1 for a wrong number behind a marker. A number is taken
only if everything that touches it is known to leave it as it is: `72 kg` is 72, `72²` and `not 72` are not. The rules,
the table of decisions and the reason codes are in docs/REWARD_GSM8K.md.

Standalone, standard library only: trainers load this file by its path in worker processes. Every step is linear in
the response's length.
"""

from __future__ import annotations

import math
import re
import unicodedata
from functools import lru_cache
from typing import Any

REWARD_NAME = "gsm8k"  # EasyR1 prints this name
REWARD_TYPE = "batch"  # and calls `compute_score_batch` with a list

FORMAT_CREDIT = 0.1

REASONS = (
    "correct",
    "wrong",  # another number
    "percent",  # 72% where the gold is 72 and the question does not ask for a share
    "ambiguous",  # several numbers, a mark or word that changes the number, a negation, a hedge, a retraction
    "unparsable",  # a marker without a number that can be read
    "no_answer",  # no number anywhere
    "answer_in_think",  # the only statement stands inside the thinking
    "truncated",  # the response ends inside the thinking, an answer block, a \boxed{, or right behind ####
    "gold_unparsable",  # the ground truth is no number: the row's fault, not the policy's
)

MAX_STATEMENT = 200  # characters behind a marker
MAX_DIGITS = 30
TAIL = 2000  # characters behind a marker that can take it back, and at the end in which full-width digits are read
WINDOW = 160  # characters at the end that are searched first for an unmarked number
REACH = 48  # characters on each side of an unmarked number that can change it

Number = tuple[int, int, bool]  # numerator, denominator (positive, reduced), is a percentage
Reading = tuple[int, int, bool, str]  # the same, and its one spelling; or 0, 0, False and the reason
Gold = tuple[int, int, bool, str, str]  # the same, spelled without its percent sign, alone and behind `#### `

# --- One spelling for each character and LaTeX command ---

_VULGAR = "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_CHARACTERS: dict[int, str | None] = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}  # full-width forms
_CHARACTERS |= dict.fromkeys(map(ord, "\u2212\u2013\u2010\u2011\u2012\u2014\ufe63"), "-")
_CHARACTERS |= dict.fromkeys([0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000], " ")
_CHARACTERS |= dict.fromkeys([0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0xAD], None)  # without a width
_CHARACTERS |= dict.fromkeys(map(ord, "\u2019\u2018\u02bc\u00b4"), "'")
_CHARACTERS |= dict.fromkeys(map(ord, "\u2044\u2215\u00f7"), "/")
_CHARACTERS |= {ord("\u066a"): "%", ord("\ufe6a"): "%", ord("\u201c"): '"', ord("\u201d"): '"', ord("\u3002"): ". "}
_CHARACTERS |= {ord(each): unicodedata.normalize("NFKC", each).replace("\u2044", "/") for each in _VULGAR}
_MIXED = re.compile(rf"(?<=\d)(?=[{_VULGAR}])|(?<=[0-9])(?=\\[dt]?frac)")
_FRACTION = re.compile(r"\\[dt]?frac\s*(?:\{(-?[0-9]+)\}\s*\{([0-9]+)\}|([0-9])\s*([0-9]))")
_NOTE = re.compile(r"<<[^<>]{0,80}>>")  # GSM8K's calculator notes
_COMMAND = re.compile(r"\\(?:([A-Za-z]+)|(.))", re.DOTALL)
_COMMANDS = {
    **dict.fromkeys([*",;: ()[]\\\n", "quad", "qquad", "space", "enspace", "thinspace"], " "),
    **dict.fromkeys(["!", "left", "right", "displaystyle", "boxed", "large", "Large", "bf", "rm"], ""),
    **dict.fromkeys(["text", "textbf", "textit", "textrm", "mathbf", "mathrm", "mathit", "mathsf", "mbox", "emph"], ""),
    **dict.fromkeys(["ge", "geq", "geqslant", "gt", "le", "leq", "leqslant", "lt"], "\u2260"),
    **dict.fromkeys(["ne", "neq", "neg", "lnot"], "\u2260"),
    **dict.fromkeys(["times", "cdot", "ast"], "\u00d7"),
    **dict.fromkeys(["approx", "sim", "simeq"], "\u2248"),
    **{each: each for each in "%$#&_{}"},
    "div": "/", "sqrt": "\u221a", "pi": "\u03c0", "pm": "\u00b1", "circ": "\u00b0", "degree": "\u00b0",
}  # fmt: skip


def plain(text: str) -> str:
    r"""The text with one spelling for each character: full-width forms, minus signs, blanks, fractions, LaTeX."""
    if not text.isascii() or "\\" in text:
        text = _MIXED.sub(" ", text).translate(_CHARACTERS)
    if "\\" in text or "{" in text:
        text = _FRACTION.sub(lambda match: f"{match[1] or match[3]}/{match[2] or match[4]}", text.replace("{,}", ","))
        text = _COMMAND.sub(lambda match: _COMMANDS.get(match[1] or match[2], match[0]), text)
        text = text.replace("{", "").replace("}", "").replace("^\u00b0", "\u00b0")
    return _NOTE.sub("", text).replace("=>", "→").replace("->", "→") if ">" in text else text


# --- Numbers ---

# Digits in groups: 1,234 and 1 234 and 1'234 and 1_234; 12,34,567 as in India. Counted, so that reading stays linear.
_GROUPS = "|".join(rf"(?:{separator}[0-9]{{3}}){{1,9}}" for separator in (",", " ", "'", "_"))
_WHOLE = rf"(?:[0-9]{{1,3}}(?:{_GROUPS})(?![0-9])|[0-9]{{1,2}}(?:,[0-9]{{2}}){{1,9}},[0-9]{{3}}(?![0-9])|[0-9]+)"
# 1.234,56 and 1 234,56 and 1'234,56 and 1.234.567; alone, 1.234 has a decimal point, and 7,2 has two readings.
_CONTINENTAL = r"[0-9]{1,3}(?:(?:\.[0-9]{3}){1,9},[0-9]{1,2}|(?:[ '][0-9]{3}){1,9},[0-9]{1,2}|(?:\.[0-9]{3}){2,9})"
_DECIMAL = rf"(?:{_CONTINENTAL}(?![0-9])(?![.,][0-9])|{_WHOLE}(?:\.[0-9]+)?|\.[0-9]+)"
# A number, a fraction or a mixed number ("1 1/2"); not a digit inside a word, an exponent ("m^2"), a version ("v1.5").
_NUMBER = re.compile(
    rf"(?<![0-9A-Za-z_^])(?<![0-9]\.)"
    rf"(?:([0-9]+) +([0-9]+)/([0-9]+)|({_DECIMAL})(?: ?/ ?({_DECIMAL}))?)([eE][+-]?[0-9])?"
)
_GOLD = re.compile(rf"-?\$?-?{_DECIMAL}(?:/{_DECIMAL})?%?")
_SIMPLE = re.compile(r"\$?([0-9]{1,3}(?:,[0-9]{3}){1,5}|[0-9]{1,18})\.?(?: ([a-z]{3,})\.?)?").fullmatch  # "$1,234 eggs"

# What multiplies a number; a dozen is a unit, since questions ask for dozens.
FACTORS: dict[str, int] = {
    "hundred": 10**2, "lakh": 10**5, "crore": 10**7, "千": 10**3, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8,
    **dict.fromkeys(["thousand", "k"], 10**3),
    **dict.fromkeys(["million", "m", "mm", "mn", "mln", "mio"], 10**6),
    **dict.fromkeys(["billion", "b", "bn", "bln"], 10**9),
    **dict.fromkeys(["trillion", "t", "tn", "trn"], 10**12),
}  # fmt: skip
_SCALE = re.compile(
    r"[\s*-]{0,3}(?i:(hundred|thousand|lakh|million|crore|billion|trillion|bln|bn|mln|mn|mio|trn|tn)s?)(?![A-Za-z])"
    r"|\s?(MM|[kKMBT])(?![A-Za-z0-9&])|\s?([千万萬亿億])"
).match
_MILLION = re.compile(r"m(?![A-Za-z0-9^])").match  # behind a currency; else metres
_PERCENT = re.compile(r"[\s*_`'\")\]]{0,4}(?:%|(?i:per ?cent(?:age)?(?: points?)?|pct)(?![A-Za-z]))").match

# Words that make another number of the one before them.
_ALTERS = (
    r"squared|cubed|factorial|to the (?:[a-z]+ )?power|mod(?:ulo)?|choose|plus|minus|mils?|permille|per mill?e?"
    r"|half(?!-)|halves|quadrillion|thirds|fourths|fifths|sixths|sevenths|eighths|ninths|tenths?|hundredths?|thousandths?|millionths?"
    r"|and (?:an?|one|two|three|half|maybe|perhaps)|point (?:zero|one|two|three|four|five|six|seven|eight|nine)"
    r"|or (?:so|more|less|fewer|maybe|perhaps|not)|(?:is|was)(?:n't| not| never| wrong| incorrect| false)"
    r"|(?:[a-z]+ ){0,2}below (?:zero|freezing|sea)"
)
_ALTERS_ALONE = re.compile(rf"(?:{_ALTERS}|{'|'.join(FACTORS)}|percent|pct)s?").fullmatch
_LETTER = "[AaCcdFgGhHJlLmNpsStVWy]"  # units of one letter; others are variables
# What may stand behind a number and leave it as it is: a closing mark, an end, a unit, a word.
_LEAVES = re.compile(
    rf"[*_`\"')\]|$€£¥¢°′″℃℉]*(?:$"
    rf"|[.,:;…=](?![0-9\\])|-(?=[A-Za-z]{{2}})|/ ?(?=[A-Za-z]{{2}}|{_LETTER}\b)|<(?=[/|A-Za-z])"
    rf"|(?![πℯ∞¹²³⁰-₟①-⓿十百兆分成折半点點又或])[^\W\dA-Za-z_]|(?=分(?!之))"
    rf"|\s*(?!(?i:{_ALTERS})\b)(?:[A-Za-z]{{2,}}|{_LETTER})(?:\^?-?[0-9]|[²³])?(?![\w^(])"
    rf"|\s+(?![+×·⋅∙√^±≠≤≥<>!?%‰‱&@²³πA-Za-z(]|[*/]+ ?[\w(]|- ?(?:[0-9(]|[A-Za-z]\b|$))"
    rf"|\s+/ ?(?=[A-Za-z]{{2}})|\s+\((?!\s*[0-9])|\s+I\b)"
).match
_OPENERS = " \t\n*_`\"'([|#$€£¥"
_VARIABLE = re.compile(r"(?:(?<![A-Za-z])[A-Za-z]|[0-9)\]])$").search
_FACTOR = re.compile(r"[*(\[]|.*\* $").match  # between a variable and a number
_CURRENCY = re.compile(r"(?:[$€£¥]|\b(?i:us|usd|eur|gbp|rs))[ *_(-]*$").search
# Words that make another number of the one behind them, or no answer.
_MISLEADS = (
    r"\b(?:half|third|quarter|fourth|fifth|tenth|root|log|ln|sin|sine|cos|tan|sqrt|abs|square|cube|reciprocal|inverse"
    r"|opposite|power|twice|double|triple|quadruple)(?: of| the)*"
    r"|\b(?:more|less|fewer|greater|larger|smaller|higher|lower|other|rather) than"
    r"|(?:[0-9]%?|\bper ?cent) of|\bbetween [^.,;]{1,20} and"
    r"|\b(?:instead of|except(?: for)?|up to|over|under|above|below|nearly|almost|exceeds|plus|times|between|doubt)"
    r"|\b(?:maybe|perhaps|possibly|either|or|neither|nor)(?: (?:it|that|is|it's))*"
    r"|\b(?:might|could|may)(?: possibly| just| well)? be|或|或者|可能是?|也许是?|不是|并非|不等于|非"
)
_DENIAL = r"(?:\b(?:not|never|cannot|no longer|nowhere near|anything but|far from|hardly)\b|n't\b)"
_FILLERS = (
    r"(?: (?:be|is|it|equal|equals|to|exactly|actually|just|only|really|simply|the|a|an|right|correct|final|answer"
    r"|number|value|case|that)){0,7}"
)
_MINUS = re.compile(r"(?:\bminus|\bnegative|[负負])$", re.IGNORECASE).search
_MISLED = re.compile(rf"(?:{_MISLEADS}|{_DENIAL}{_FILLERS})$", re.IGNORECASE).search
_DENIED = re.compile(
    rf"{_DENIAL}(?:(?!\b(?:but|so|then|because)\b)[^,.;:!?\n])*$", re.IGNORECASE
).search  # in its clause
# Behind another word than these, a plain number is what it is, and needs none of the searches above.
_CAREFUL = frozenset(re.findall("[a-z]+", f"minus negative {_MISLEADS} {_DENIAL} {_FILLERS}"))
_QUICK = re.compile(r"([a-z]{2,}|=) ([0-9]{1,18})(?![0-9,/])(?: ([a-z]{3,}))?(?:\.?\n|\.?$)").match
# A statement with one of these chooses nothing, unless the gold answer has it, too.
DOUBTS = re.compile(
    r"\b(?:not|never|neither|nor|cannot|no longer|either|or|maybe|perhaps|possibly|unsure|uncertain|wrong|incorrect"
    r"|anything but|far from|nowhere near|hardly|other than|instead of)\b|n't\b|不是|并非|或者|可能|也许",
    re.IGNORECASE,
).search
_COMPARES = re.compile(r"[≠≤≥∓]|[!<>]=|<(?![/|A-Za-z])|(?<![A-Za-z/|=\"-])>").search
_UNSURE = re.compile(r"(?i:\b(?:not sure|unsure|uncertain|no idea|do(?:n't| not) know)\b)").search
RETRACTS = re.compile(
    r"(?i:(?:^|[.!?,;:\n(…*-]|\bbut)[\s*]{0,3}(?:no[,.!;:]|no wait|wait\b(?! (?:time|for|until|in))|hold on|oops"
    r"|hmm|scratch that|sorry\b|correction\b|actually\b|on second thought|i mean\b|my mistake"
    r"|(?:or|maybe|perhaps|possibly) "
    r"|(?:that|this|it)(?:'s| is| was) (?:wrong|incorrect|a mistake|not (?:right|correct))))"
).search

# --- Where the answer stands ---

# Begins with its number, or with a mark or a word that belongs to it.
_STATES = re.compile(
    r"(?:[^\w\n#]|_|(?i:minus|negative|about|approximately|approx|around|roughly|exactly|only|not|maybe|perhaps|either"
    r"|[dt]?frac|sqrt|text[a-z]{0,2}|math[a-z]{2}|usd|us|rs|负|負|百分之)(?![A-Za-z]))*[\d¼-¾⅐-⅞]"
).match
_STOP = re.compile(r" \(|[.!?](?=\s)").search  # behind the number: a remark in brackets, or the end of the sentence
# The last number, in the reversed text, where it is no part of a fraction, a word or an exponent.
_BACKWARDS = re.compile(r"[^0-9]*([0-9](?:[0-9,.]*[0-9])?)(?![0-9,./A-Za-z_^{]| /)").match
_DIGIT = re.compile(r"\d").search
_MARKER = re.compile(r"####|\\boxed|</answer>").search
_WORD = re.compile(r"\b(?!or\b|and\b|to\b)[A-Za-z]{2}").search
# A question whose answer is a share: GSM8K's gold numbers for these have no percent sign.
_SHARE = re.compile(r"%|per ?cent|probab|likel|chance|\bodds\b|\brate", re.IGNORECASE).search


def _rational(text: str) -> tuple[int, int] | None:
    """`1,234.50` as (123450, 100); None where it has too many digits."""
    if text.isdecimal():
        return (int(text), 1) if len(text) <= MAX_DIGITS else None
    if text.count(".") > 1 or 0 <= text.find(".") < text.find(",") or " " in text or "'" in text:
        comma = text.rfind(",") if text.count(",") == 1 and len(text) - text.rfind(",") <= 3 else len(text)
        grouped = text[:comma] if comma < len(text) or text.count(".") > 1 else ""
        text = f"{grouped.replace('.', '')}.{text[comma + 1 :]}" if grouped else text
    whole, _, part = re.sub("[, '_]", "", text).partition(".")
    return (int(whole + part or "0"), 10 ** len(part)) if len(whole) + len(part) <= MAX_DIGITS else None


@lru_cache(maxsize=4096)
def _is_unit(word: str | None) -> bool:
    """Does this word behind a number leave it as it is? No word does."""
    return word is None or not _ALTERS_ALONE(word)


def _sign(before: str, alone: bool) -> int:
    """1, or -1 behind a minus sign or "minus"; 0 where what stands before the number makes another one of it.

    Args:
        before: the text before the number.
        alone: nothing but this number is stated, so that `x - 72` is no 72, and a negation covers its whole clause.
    """
    lead, sign = before.rstrip(_OPENERS), 1
    marks = before[len(lead) :]
    if _FACTOR(marks) and _VARIABLE(lead):  # x*72, 2(72)
        return 0
    mark = lead[-1:]
    if mark and mark in "+-":
        left = lead[:-1].rstrip("$€£¥")
        rest = left.rstrip(_OPENERS)
        glued = left[-1:].isalnum() or left[-1:] in (")", "]", "%")
        if glued or (
            before.endswith(" ") and rest[-1:] not in ("", ":", "=", "≈", "→")
        ):  # no sign, but a dash or "x - "
            if mark == "+" or (_VARIABLE(rest) and (alone or rest[-1].isalpha())):
                return 0
        elif rest[-1:] in ("-", "+"):
            return 0
        elif mark == "-":
            sign = -1
        lead = rest
    elif minus := _MINUS(lead):
        lead, sign = lead[: minus.start()].rstrip(_OPENERS), -1
        if alone and _VARIABLE(lead):  # x minus 72
            return 0
    last = lead[-1:]
    if last and not (last.isalnum() or last in ".,:;?!)]=~≈→⇒>…%-{"):
        return 0
    if last == "%" or (last == ">" and "<" not in lead) or (last == "!" and lead[-2:-1].isalnum() and alone):
        return 0
    if _MISLED(lead[-REACH:]) or (alone and _DENIED(lead[-MAX_STATEMENT:])):
        return 0
    return sign


def _value(text: str, match: re.Match[str], alone: bool) -> Number | str:
    """The number at a match of `_NUMBER`, with all that touches it; or the reason why there is none."""
    mixed, above, below, whole, divisor, exponent = match.groups()
    first, second = (_rational(above), _rational(below)) if mixed else (_rational(whole), _rational(divisor or "1"))
    extra = _rational(mixed or "0")
    if exponent or first is None or second is None or extra is None or second[0] == 0:
        return "unparsable"
    num, den = first[0] * second[1] + extra[0] * second[0] * first[1], first[1] * second[0]
    end, before = match.end(), text[: match.start()]
    if _CURRENCY(before) and _MILLION(text, end):
        num, end = num * 10**6, end + 1
    for _ in range(2):  # "3 hundred thousand"
        if scale := _SCALE(text, end):
            num, end = num * FACTORS[(scale[1] or scale[2] or scale[3]).lower()], scale.end()
    percent = _PERCENT(text, end)
    sign = _sign(before.removesuffix("百分之"), alone)
    if not sign or not _LEAVES(text, percent.end() if percent else end):
        return "ambiguous"
    common = math.gcd(num, den)
    return sign * num // common, den // common, percent is not None or before.endswith("百分之")


def _reading(number: Number | str) -> Reading:
    if isinstance(number, str):
        return 0, 0, False, number
    num, den, percent = number
    return num, den, percent, f"{num}{'' if den == 1 else f'/{den}'}{'%' if percent else ''}"


@lru_cache(maxsize=16_384)  # the responses of one group repeat each other's answers
def read_statement(text: str) -> Reading:
    """The one number that a statement holds, or the reason why it holds none: "unparsable" or "ambiguous"."""
    simple = _SIMPLE(text)
    if simple and _is_unit(simple[2]):  # only for speed; what follows reads the same from it
        number = int(simple[1].replace(",", ""))
        return number, 1, False, str(number)
    text = plain(text)
    if _COMPARES(text) or _UNSURE(text):
        return 0, 0, False, "ambiguous" if _NUMBER.search(text) else "unparsable"
    right = text.rpartition("=")[2]
    text = right if _NUMBER.search(right) else text  # of an equation, the right-hand side
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return 0, 0, False, "unparsable"
    stop = _STOP(text, numbers[0].end())
    end = stop.start() if stop else len(text)
    values: set[Number | str] = set()
    for match in numbers:
        if match.start() < end and len(values) < 2:
            values.add(_value(text, match, True))
    if len(values) > 1 or RETRACTS(text[numbers[0].end() :]):
        return 0, 0, False, "ambiguous"
    return _reading(values.pop())


@lru_cache(maxsize=16_384)
def read_last(text: str) -> Reading:
    """The last number of a piece of prose with what touches it, or the reason why it is no answer."""
    text, last = plain(text), None
    for last in _NUMBER.finditer(text):  # noqa: B007
        pass
    if last is None:
        return 0, 0, False, "no_answer"
    if _COMPARES(text, max(0, last.start() - 4), last.end() + 4) or RETRACTS(text[last.end() :]):
        return 0, 0, False, "ambiguous"
    return _reading(_value(text, last, False))


@lru_cache(maxsize=16_384)
def read_gold(text: str) -> Gold | None:
    """The gold number, plain or behind the `####` of an original solution; None where it is not just a number."""
    text = text.rpartition("####")[2].strip()
    if len(text) > MAX_STATEMENT or not _GOLD.fullmatch(text):
        return None
    reading = read_statement(text)
    spelled = reading[3].rstrip("%")
    return (*reading[:3], spelled, f"#### {spelled}") if reading[1] else None


def _hashes(text: str, at: int) -> tuple[str, int]:
    """The last `####` line, from the one at `at`, that states something; headings ("#### Step 2") are passed over."""
    while at != -1:
        rest = text[at + 4 : at + 4 + MAX_STATEMENT].strip()
        line, _, below = rest.partition("\n")
        if "answer" in line.lower() and not _DIGIT(line):
            line = below.lstrip().partition("\n")[0]  # a heading "Answer" over its number
        if not line or _STATES(line) or "=" in line or "answer" in line.lower():
            return line, at
        at = text.rfind("####", 0, at)
    return "", -1


def _boxed(text: str, at: int) -> str | None:
    r"""The braces' content of the `\boxed` at this position; None where they do not close."""
    content = text[at + 6 : at + 6 + MAX_STATEMENT].lstrip()
    end = content.find("}")
    if content.startswith("{") and content.find("{", 1, end) == -1 < end:
        return content[1:end]
    depth = 0
    for end, character in enumerate(content):
        depth += (character == "{") - (character == "}")
        if depth <= 0:
            return content[1:end] if end else ""
    return None if at + 6 + MAX_STATEMENT > len(text) else ""


def _last_number(text: str) -> str:
    """The last number of the text with `REACH` characters around it; "" where there is none."""
    match = _BACKWARDS(text[: -WINDOW - 1 : -1])
    if match and match.end() < WINDOW - MAX_DIGITS:  # not cut by the window
        start, end = len(text) - match.end(), len(text) - match.start(1)
    else:
        last = None
        for last in _NUMBER.finditer(text):  # noqa: B007
            pass
        if last is None:
            return ""
        start, end = last.span()
    quick = _QUICK(text, text.rfind(" ", max(0, start - 20), max(0, start - 1)) + 1)  # only for speed
    if quick and quick.start(2) == start and quick[1] not in _CAREFUL and _is_unit(quick[3]):
        return quick[2]
    line = text.rfind("\n", max(0, start - REACH), start) + 1 or max(0, start - REACH)
    return text[line : end + REACH].partition("\n")[0] if line else text[: end + REACH].partition("\n")[0]


def find_statement(text: str, at: int) -> tuple[str, str]:
    r"""Where the response states its answer: (statement, how); `at` is where its last `####` stands, or -1.

    `how` is "marked" behind the last of `####`, `\boxed{}` and `<answer>`, or where the number is all there is;
    "unmarked" behind "answer is", "last" for the last number of the text; else the reason why there is no statement.
    """
    tags = "<" in text
    if at != -1 and not tags:
        line = text[at + 4 :].strip()
        if len(line) <= 40 and "\\" not in line and "\n" not in line and _STATES(line):
            return line, "marked"
    thought = ""
    if tags:
        close = text.rfind("</think>")
        if text.find("<think>", close + 1) != -1:
            return "", "truncated"
        if close != -1:
            thought, text = text[:close], text[close + 8 :]
            at = text.rfind("####")
    statement, at = _hashes(text, at) if at != -1 else ("", -1)
    boxed = text.rfind("\\boxed", at + 1) if "\\" in text else -1
    tag = text.rfind("<answer>", max(at, boxed) + 1) if tags else -1
    if tag != -1:
        end = text.find("</answer>", tag)
        content = text[tag + 8 : end][:MAX_STATEMENT].strip() if end != -1 else None
        behind = end + 9
    elif boxed != -1:
        content = _boxed(text, boxed)
        behind = boxed + 8 + len(content or "")
    elif at != -1:
        content = statement or None
        behind = text.find(statement, at) + len(statement)
    else:
        return _unmarked(text.strip()) or ("", "answer_in_think" if _MARKER(thought) else "no_answer")
    if content is None:
        return "", "truncated"
    return ("", "ambiguous") if behind < len(text) and RETRACTS(text[behind : behind + TAIL]) else (content, "marked")


def _unmarked(text: str) -> tuple[str, str] | None:
    """The statement of a response without a marker, and how; None where it has no number."""
    if not text.isascii():
        text = text[:-TAIL] + _MIXED.sub(" ", text[-TAIL:]).translate(_CHARACTERS)
    if len(text) <= 60 and "\n" not in text and _STATES(text):
        reading = read_statement(text)
        if reading[1] or (reading[3] == "ambiguous" and not _WORD(text)):
            return text, "marked"  # nothing but the answer
    if len(text) <= MAX_STATEMENT and _UNSURE(text):
        return "", "ambiguous"
    weak = text.rfind("nswer", -MAX_STATEMENT)
    if weak != -1 and text.startswith((" is", ":"), weak + 5):
        rest = text[weak + 6 :].lstrip("is: \n").partition("\n")[0]
        if _STATES(rest) and not rest.startswith("not "):  # "not 70, but 72"
            return rest, "unmarked"
    number = _last_number(text)
    return (number, "last") if number else None


def _asks_for_share(extra_info: Any) -> bool:
    """Does the question ask for a share? Where the question is not known, it may; EasyR1 hands rewards none."""
    question = extra_info.get("question") if isinstance(extra_info, dict) else None
    return not isinstance(question, str) or _SHARE(question) is not None


def compare(reading: Reading, gold: Gold, extra_info: Any) -> tuple[str, str]:
    """(reason, prediction). A share may be stated as N% or as N, and N% is N/100 where one of both has no sign."""
    num, den, percent, pred = reading
    if num == gold[0] and den == gold[1]:
        if not percent or gold[2]:
            return "correct", pred.rstrip("%") if gold[2] else pred
        return ("correct", gold[3]) if _asks_for_share(extra_info) else ("percent", pred)
    if percent and not gold[2] and gold[1] != 1:
        equal = num * gold[1] == gold[0] * den * 100
    else:
        equal = gold[2] and not percent and num * gold[1] * 100 == gold[0] * den
    return ("correct", gold[3]) if equal else ("wrong", pred)


def _result(reason: str, formatted: bool) -> dict[str, Any]:
    accuracy, marked = float(reason == "correct"), float(formatted)
    score = 1.0 if accuracy and formatted else (1.0 - FORMAT_CREDIT) * accuracy + FORMAT_CREDIT * marked
    return {"score": score, "acc": accuracy, "accuracy": accuracy, "format": marked, "pred": "", "reason": reason}


# Templates: copied, never handed out.
_MARKED = {reason: _result(reason, True) for reason in ("correct", "wrong", "percent")}
_UNMARKED = {reason: _result(reason, False) for reason in REASONS}
_READERS = {"marked": read_statement, "unmarked": read_statement, "last": read_last}
_correct, _wrong = _MARKED["correct"].copy, _MARKED["wrong"].copy


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str | int,
    extra_info: dict[str, Any] | None = None,
    format_credit: float = FORMAT_CREDIT,
    **kwargs: Any,
) -> dict[str, Any]:
    """verl's entry: the reward of one response.

    Args:
        solution_str: the response, without the prompt.
        ground_truth: the gold number (`72`, `1,234`, `3/4`, `72%`), or an original solution that ends in `#### 72`.
        extra_info: of the row; `question`, where it is there, decides whether 72% states a gold of 72.
        format_credit: the part of the score that a marker earns.
        data_source, kwargs: what verl hands over; not used.

    Returns:
        score, acc (verl's name) and accuracy, format: floats in [0, 1]; pred: the number read, for majority votes;
        reason: one of `REASONS`.
    """
    if type(ground_truth) is not str:
        ground_truth = str(ground_truth) if type(ground_truth) is int else ""
    gold = read_gold(ground_truth)
    if gold is None:
        return _UNMARKED["gold_unparsable"].copy()
    if solution_str.endswith(gold[4]) and "<" not in solution_str:  # the common case: `#### 72`, and then the end
        result = _correct()
        result["pred"] = gold[3]
        return result
    at = solution_str.rfind("####")
    pred = solution_str[at + 4 :].strip() if at != -1 else ""
    if pred.isdecimal() and pred.isascii() and pred[0] != "0" and len(pred) <= MAX_DIGITS and "<" not in solution_str:
        result = _wrong() if pred != gold[3] else _correct()  # as common: `#### 70`
        result["pred"] = pred
        if format_credit != FORMAT_CREDIT and not result["accuracy"]:
            result["score"] = format_credit
        return result
    statement, how = find_statement(solution_str, at)
    if how not in _READERS:
        return _UNMARKED[how].copy()
    reading = _READERS[how](statement)
    if not reading[1]:
        return _UNMARKED[reading[3]].copy()
    if reading[2] or gold[2]:
        reason, pred = compare(reading, gold, extra_info)
    else:
        reason, pred = "correct" if reading[0] == gold[0] and reading[1] == gold[1] else "wrong", reading[3]
    result = (_MARKED if how == "marked" else _UNMARKED)[reason].copy()
    result["pred"] = pred
    if format_credit != FORMAT_CREDIT and result["accuracy"] != result["format"]:
        result["score"] = 1.0 - format_credit if result["accuracy"] else format_credit
    return result


def compute_score_batch(reward_inputs: list[dict[str, Any]], **kwargs: Any) -> list[dict[str, float]]:
    """EasyR1's entry: one dict of numbers per input (`response`, `ground_truth`), since EasyR1 averages every key.

    `overall` is `compute_score`'s score; the reason becomes one 0/1 key `reason/<code>` per code.
    """
    results = []
    for item in reward_inputs:
        parts = compute_score("", item["response"], item["ground_truth"], item.get("extra_info"), **kwargs)
        reason = parts["reason"]
        result = {"overall": parts["score"], "accuracy": parts["accuracy"], "format": parts["format"]}
        results.append(result | {f"reason/{code}": float(code == reason) for code in REASONS})
    return results
