r"""Stated answers: where a response states its answer, and how it is read; for all tasks but Countdown and programs.

The last marker counts: `#### x`, `Answer: x` and `the answer is x` to the end of the line, in many languages,
`\boxed{x}`, `<answer>x</answer>`. A numeric answer is the first number in the marker; any other is the marker's whole
content. A response of one line counts as marked if the whole line is the answer. docs/REWARD_ANSWERS.md has the table.
`words.toml` has the words and signs. Standard library only; every step takes linear time.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

LONGEST = 2000  # characters of a statement
LONGEST_NUMBER = 90  # characters
MARKED = ("line", "field")
WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
SIGNS, LATEX, UNITS = WORDS["signs"], WORDS["latex"], WORDS["units"]
# Part -> kind -> a pattern for any of its words.
ANY = {part: {kind: "|".join(map(re.escape, map(str, words))) for kind, words in WORDS[part].items()} for part in WORDS}

# Full-width forms and other scripts' digits as ASCII, one minus, one quotation mark, one blank; nothing invisible.
SPELLINGS: dict[int, str | None] = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
SPELLINGS |= {zero + digit: str(digit) for zero in SIGNS["zeros"] for digit in range(10)}
SPELLINGS |= {code: " " for first, last in SIGNS["blanks"] for code in range(first, last + 1)}
SPELLINGS |= {code: None for first, last in SIGNS["invisible"] for code in range(first, last + 1)}
SPELLINGS |= {ord(sign): one for signs, one in SIGNS["spellings"] for sign in signs}


def tidy(text: str) -> str:
    """The text in its one form: NFC, with one spelling of each sign. For short texts: NFC may take quadratic time."""
    return unicodedata.normalize("NFC", text.translate(SPELLINGS))


# --- Where the answer stands ---

FIELDS = dict.fromkeys(("\\boxed{", "\\boxed {", "\\fbox{", "\\framebox{"), "")  # opening -> closing; "": the brace's
FIELDS |= {f"<{name}>": f"</{name}>" for name in ("answer", "Answer", "ANSWER", "final_answer")}
_SAID, _CLOSING = ANY["markers"], r"[*_\"'`”’)\]】}]{0,4}"
# An option or a number that ends the line, which needs no colon before it.
_ALONE = rf"[(（]?(?:[A-J]|[-+$]?[0-9][0-9.,/%]*)[)）]?(?: ?(?:{_SAID['endings']})|'\w+)?[.。।]?\s*(?:\n|$)"
_UNDENIED = "(?<![不没沒未别別])(?<![不没沒无無][能要应應该該可会會有法])"  # 不能选B states no B
_PHRASE = re.compile(
    rf"(?:(?<![a-z])ans\b\.?|{_SAID['nouns']})(?: ?(?:{_SAID['adjectives']}))?{_CLOSING}"
    rf"(?: ?[:：=]| [-–—](?= )|(?: (?:{_SAID['copulas']})\b| ?(?:{_SAID['attached']})){_CLOSING} ?[:：]?"
    rf"|(?<=[】\]])|(?= {_ALONE}))|{_UNDENIED}(?<=[故应應])[选選][择擇]?(?![项項])[:：]?"
    rf"|{_UNDENIED}[选選][择擇]?[:：]? ?(?={_ALONE})",
    re.IGNORECASE,
)
_NOUNS = [form for noun in ("ans", *WORDS["markers"]["nouns"]) for form in {noun, noun.capitalize(), noun.upper()}]
_BEFORE = re.compile(r"^(?:[ \t\n*_}]|(?:\\\[|\$\$)(?=[ \t]*\n))*")  # Markdown, and `\[` on a line of its own
_AFTER = re.compile(rf" ?(?:{_SAID['endings']}|(?<=[0-9A-Za-z)])(?:だ|이다|'d[iıuü]r))[.。।]?$")
_IN_JSON = re.compile(r'(?<!\\)" *[,}]|, *"')
_END = re.compile(r"\n|<[|/]")  # a line's answer also ends before `<|im_end|>` or `</answer>`
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


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
    at, mark = _last_phrase(text, *max((text.rfind(mark), mark) for mark in ("####", *FIELDS)))
    if at == -1:
        line = _line(text.rstrip().rpartition("\n")[2])
        return Statement(line, "truncated" if thinking else "last" if line else "no_answer", text)
    rest = text[at + len(mark) :]
    if mark in FIELDS:
        end = rest.find(FIELDS[mark]) if FIELDS[mark] else closing_brace(rest)
        return Statement(rest[: max(end, 0)].strip()[: LONGEST + 1], "field" if end != -1 else "truncated", text)
    if not rest.strip():
        return Statement("", "truncated", text)
    rest = _IN_JSON.split(rest, maxsplit=1)[0] if '"' in mark else rest
    return Statement(_line(rest) if mark == "####" else _AFTER.sub("", _line(_BEFORE.sub("", rest))), "line", text)


def _last_phrase(text: str, start: int, mark: str) -> tuple[int, str]:
    """Return where the last phrase behind `start` begins, and the phrase; (start, mark) if there is none."""
    for word in (*_NOUNS, "选", "選"):  # a case-insensitive search would take ten times as long
        at = text.rfind(word, start + 1)
        while at != -1 and (match := _PHRASE.match(text, at)) is None:
            at = text.rfind(word, start + 1, at)
        start, mark = (at, match[0]) if at != -1 and match else (start, mark)
    return start, mark


def _line(text: str) -> str:
    line = _END.split(text, maxsplit=1)[0]
    end = closing_brace(line)  # of a brace before the marker, as in `{"answer": 5}`
    return (line[:end] if end != -1 else line).strip()[: LONGEST + 1]


def closing_brace(text: str) -> int:
    """Return the position of the brace that closes a brace opened before `text`; -1 if no brace does."""
    depth = 1
    for match in _BRACE.finditer(text):
        depth += (match[0] == "{") - (match[0] == "}")
        if depth == 0:
            return match.start()
    return -1


# --- Formulas on one line ---

_COMMANDS = LATEX["commands"] | dict.fromkeys(LATEX["nothing"], "") | dict.fromkeys(LATEX["blank"], " ")
WRITTEN = {f"\\{name}": text for name, text in _COMMANDS.items()} | LATEX["characters"]
# Three Greek letters in a row are of a word, and no variables.
_SIGN = re.compile(rf"\\[A-Za-z]+|\\.|[\u0370-\u03ff\u1f00-\u1fff]{{3,}}|[{''.join(LATEX['characters'])}]", re.DOTALL)
_BARE = re.compile(r"([\^_]|\\sqrt) *(-?[0-9]+|\\(?![a-z]?frac|sqrt)[A-Za-z]+|[^\s{}\[(\\])")  # 2^10 is read as 2^{10}
_ARGUMENT = r" *(?:\{([^{}]*)\}|([0-9A-Za-z]|\\[A-Za-z]+))"
_GROUP = re.compile(
    rf"(\\[a-z]?frac){_ARGUMENT}{_ARGUMENT}|([\^_)]|\\(?![a-z]?frac)[A-Za-z]+(?:\[[^\[\]]*\])?) *\{{([^{{}}]*)\}}"
    r"|(?<!frac)(?<!\})\{([^{}]*)\}"
)
_ONE_SIGN = re.compile(r"\\[A-Za-z]+|.?", re.DOTALL).fullmatch
_ONE_FACTOR = re.compile(r"(?:[0-9.]+|\\[A-Za-z]+ *|.|(?:\\sqrt)?\([^()]*\))(?:[_^](?:.|\([^()]*\)))*").fullmatch
_SUM = re.compile(r".[-+±=<>,/]").search
_FACTOR_ENDS, _FACTOR_BEGINS = re.compile(r"[0-9A-Za-z)}^_°]$").search, re.compile(r"[0-9A-Za-z({^]|\\[A-Za-z]").match


def formula(text: str) -> str:
    r"""LaTeX on one line: `\frac{x+1}{2}` is `(x+1)/2`, `e^{2x}` is `e^(2x)`, `\text{cm}` is ` cm`, `\{1\}` is `⟦1⟧`.

    The group of a command, `^` or `_` stands in brackets where it has more than one sign.
    """
    text = _BARE.sub(r"\1{\2}", _SIGN.sub(lambda match: WRITTEN.get(match[0], match[0]), text))
    changed, depth = 1, 0
    while changed and depth < 60:  # the innermost groups first
        (text, changed), depth = _GROUP.subn(_on_the_line, text), depth + 1
    return text.replace("^°", "°")


def _on_the_line(group: re.Match[str]) -> str:
    """Write a fraction or a group without its braces, in brackets where it would have another value without."""
    _, above, digit_above, below, digit_below, command, inside, alone = group.groups()
    if command:
        inside = inside.strip()
        return command + (inside if command in "^_" and _ONE_SIGN(inside) else f"({inside})")
    if alone is not None:
        return alone
    above, below = (above or digit_above or "").strip(), (below or digit_below or "").strip()
    before, behind = group.string[: group.start()].rstrip(), group.string[group.end() :]
    if above.isdigit() and below.isdigit() and before[-1:].isdigit():
        return f" {above}/{below}"  # a mixed number
    above = f"({above})" if _SUM(above) and not _ONE_FACTOR(above) else above
    below = below if _ONE_FACTOR(below) else f"({below})"
    return f"({above}/{below})" if _FACTOR_ENDS(before) or _FACTOR_BEGINS(behind) else f"{above}/{below}"


_EDGE = " \t\r\n*_`\"'「」『』《》«»$"
_END_MARKS = _EDGE + ".。,;؛।"
LOOSE_BLANK = re.compile(r" (?![0-9A-Za-z])|(?<![0-9A-Za-z]) |(?<=[0-9]) (?=[a-z])|(?<=[a-z]) (?=[0-9])")


def plain(text: str) -> str:
    r"""The text in its one form, on one line, without Markdown, quotation marks and a full stop at its edges."""
    text = formula(tidy(text).strip().lstrip(_EDGE).rstrip(_END_MARKS))
    text = text[:-1] if text[-1:] == "!" and text[-3:-1].isalpha() else text
    return " ".join(text.lstrip(_EDGE).rstrip(_END_MARKS).split())


def folded(text: str) -> str:
    return text.casefold().replace("i\u0307", "i")  # as İ would be


def bare(text: str) -> str:
    """Like `plain`, but case-folded and without blanks beside signs; the case-folded text if that leaves nothing."""
    return LOOSE_BLANK.sub("", folded(plain(text))) or folded(text.strip())


# --- Numbers ---

# 12 000 and 12'000 with a decimal comma or point; 1.234.567 and 1.234,56; 1,234,567 and 1,00,000, all with a point.
_GROUPED = r"[0-9]{1,3}(?:[ '][0-9]{3})+(?![0-9])(?:[.,][0-9]+)?"
_WELL_FORMED = re.compile(
    rf"{_GROUPED}|[0-9]{{1,3}}(?:\.[0-9]{{3}}){{2,}}|[0-9]{{1,3}}(?:\.[0-9]{{3}})+,[0-9]{{1,2}}"
    r"|(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,2}(?:,[0-9]{2})*,[0-9]{3}|[0-9]+)?(?:\.[0-9]+)?"
).fullmatch
_RUN = re.compile(rf"(?<![0-9A-Za-z_.])(-?)\$?(-?)({_GROUPED}|\.?[0-9][0-9.,]*)")
# 7.2e1, 72², 72 1/2, 5万, 5分之3, 5又2分之1; 5千克 is 5 of a unit
_SCALED = rf"(?!千[克米瓦卡帕伏赫焦])[{UNITS['numerals']}]"
_TIMES = r"(?!千[克米瓦卡帕伏赫焦]|百[分合货貨]|[万萬][用能])[百千万萬亿億]"
_MORE_OF_IT = re.compile(rf"[eE][-+]?[0-9]|\^|[⁻ⁿ]|_[0-9(]| +[1-9][0-9]*/[0-9]| ?{_TIMES}|分之|又[0-9]").match
# A sign in words where a value begins; 负5场 are five lost games.
_SIGN_IN_WORDS = rf"(?:minus|negative|{ANY['units']['minus']}) ?(?=\$?[0-9]+(?! ?[0-9场場局盘盤]))"
_SIGNED = re.compile(rf"^- +|(?:^|(?<==)){_SIGN_IN_WORDS}", re.IGNORECASE)
# In a field: another number behind a number (`5 or 7`, `8 \times 9`, `1/5`), and a formula around it: `5x`, `y+5`.
_ANOTHER = re.compile(r"(?:\W|\\[A-Za-z]+)*(?:(?:or|and|[或和与與及到至])(?:\W|\\[A-Za-z]+)*)?[0-9]").match
# A number that one of these multiplies: between braces `5 \text{ million}` is not 5.
_TIMES_IN_FONT = rf"(?:[ {{}}]|\\[a-z]+)*({_TIMES})"
SCALES = re.compile(rf"[0-9](?:[\W_]*({ANY['units']['scales']})s?\b|{_TIMES_IN_FONT})", re.IGNORECASE)
_OPERATOR = re.compile(r"(?![mgshL]\b)[A-Za-z](?![A-Za-z])| ?(?:[*/_!<>≤≥]|[-+] ?[A-Za-z(\\]|\\[A-Za-z])").match
_OPERAND = re.compile(r"(?:[-+*/^_<>≤≥±≠]|\\[A-Za-z]+|(?<![^\W\d_])[A-Za-z])$").search


def number(stated: Statement) -> str:
    """Return the number in a marker, or the number that the response consists of; "" if there is none."""
    if stated.how in MARKED:
        return read_number(stated.how, stated.text)
    return gold_number(stated.text.strip(_END_MARKS)) if stated.asked_for else ""


def last_number(response: str) -> str:
    """The last number of a response, wherever it stands; "" where there is none."""
    return read_number.__wrapped__("last", response)  # not cached: responses are long


@lru_cache(maxsize=16_384)  # the responses of one group repeat each other's answers
def read_number(how: str, text: str) -> str:
    """Return a statement's number in canonical form; "" if there is none.

    `how` is "line": the first number; "field": the same, but none if another follows directly, or if it is part of a
    formula; "last": the last one of a whole response.
    """
    if how != "last" and len(text) > LONGEST:
        return ""
    text = text.translate(SPELLINGS) if how == "last" else formula(tidy(text))
    text = _SIGNED.sub("-", text)
    match = None
    for match in _RUN.finditer(text):  # noqa: B007
        if how != "last":
            break
    if match is None:
        return ""
    digits = match[3].rstrip(".,")
    end = match.start(3) + len(digits)
    behind, digits = text[end : end + LONGEST], ungrouped(digits)
    before = text[: match.start()].rstrip(" ")
    is_named = before.endswith(("\\angle", "\\triangle"))  # ∠1 is a name, and △3 may be -3
    if (behind[:1].isnumeric() and behind[0] != "千") or _MORE_OF_IT(behind) or is_named:
        return ""
    if how == "field" and (
        _ANOTHER(behind) or SCALES.match(text, end - 1) or _OPERATOR(behind) or _OPERAND(before.rstrip(" ("))
    ):
        return ""
    return "-" + digits if (match[1] or match[2]) and digits not in ("", "0") else digits


def ungrouped(digits: str) -> str:
    """The canonical form of a number without a sign: 1,234.50 is 1234.5; "" where it is none, as 1,23 and 1.2.3."""
    if not 0 < len(digits) <= LONGEST_NUMBER or not _WELL_FORMED(digits):
        return ""
    before, comma, behind = digits.rpartition(",")
    if comma and set(before) & set(" '."):  # a decimal comma
        digits = before.replace(".", "") + "." + behind
    digits = digits.replace(".", "") if digits.count(".") > 1 else digits
    whole, _, part = re.sub("[ ',]", "", digits).partition(".")
    return (whole.lstrip("0") or "0") + f".{part}".rstrip("0").rstrip(".")


@lru_cache(maxsize=4096)
def gold_number(text: str) -> str:
    """The gold number, alone or behind the `####` of a worked solution; "" where it is not just a number."""
    text = tidy(text.rpartition("####")[2]).strip().removesuffix("%").removesuffix(".")
    return read_number("line", text) if _RUN.fullmatch(text.lstrip("+")) else ""


Measure = tuple[Fraction, str, str]  # a value, its unit, and the variable that it is the value of


def equal(some: Measure | None, other: Measure | None) -> bool:
    """Whether two values are equal, and their units and variables where both have one."""
    if some is None or other is None:
        return False
    return all(ours in ("", theirs) or theirs == "" for ours, theirs in zip(some, other, strict=True))


# Units: words of three letters or more behind a blank, Chinese and Japanese ones, % and °. Shorter ones are variables.
_NAMED = rf"(?!(?:{ANY['units']['none']}|{ANY['units']['scales']})\b)(?:[^\W\d_]{{3,}}|(?:{ANY['units']['short']})\b)"
_UNIT = rf" ?[%°]| {_NAMED}(?:[ /*-]+[^\W\d_]+)*(?:\^[23])?| ?(?!{_SCALED})[\u3040-\u9fff\uac00-\ud7af]+"
_DIGITS = r"([0-9.][0-9.,' ]*?)"
_MEASURE = re.compile(
    rf"([-+]?) ?(?:([0-9]+) (?=[1-9][0-9]*/))?(?:{_DIGITS}(?: ?/ ?{_DIGITS})?)?"
    rf"(?:(?:e| ?\* ?10\^|(?<![0-9.])10\^)\(?([-+]?[0-9]{{1,3}})\)?)?({_UNIT})?"
).fullmatch
_SCALE, _PARTS = re.compile(r"(?<=[0-9]) ?([万萬亿億])(?![0-9])"), re.compile(r"([0-9]+)分之([0-9]+)")
_VARIABLE = r"(?:\\?[a-z](?![a-z])(?:_(?:[0-9a-z]|\([0-9a-z]+\)))?|\\[a-z]+)'?(?:\([^()]*\))?"  # f(2), too
_EQUATION = re.compile(rf"(?:({_VARIABLE}) ?=)?(?:[-0-9+*/^(). ]+=)*")


def parted(text: str) -> str:
    """A text with a blank before the letters that end it behind a number: `6kg` is `6 kg`."""
    return re.sub(r"(?<=[0-9])(?=[A-Za-z]+$)", " ", plain(text)) if len(text) <= LONGEST else ""


@lru_cache(maxsize=16_384)
def measure(text: str) -> Measure | None:
    r"""The exact value of a text that is one: `\frac12`, `2 1/2`, `12 000`, `1e3`, `50\%`, `5 apples`, `x = 2+3=5`."""
    text = _SIGNED.sub("-", folded(plain(text))) if len(text) <= LONGEST else ""
    text = _SCALE.sub(lambda match: f"*10^{8 if match[1] in '亿億' else 4}", _PARTS.sub(r"\2/\1", text))
    equation = _EQUATION.match(text)
    match = _MEASURE(text[equation.end() :].strip()) if equation else None
    if equation is None or match is None:
        return None
    sign, whole, above, below, exponent, unit = match.groups()
    parts = [
        ungrouped(part.strip().rstrip(".,")) for part in (whole or "0", above or (exponent and "1") or "", below or "1")
    ]
    if not all(parts) or parts[2] == "0":
        return None
    value = Fraction(parts[0]) + Fraction(parts[1]) / Fraction(parts[2])
    value *= (-1 if sign == "-" else 1) * Fraction(10) ** int(exponent or 0)
    unit = (unit or "").strip()
    return value, UNITS["same"].get(unit, unit), (equation[1] or "").replace(" ", "")
