r"""Where a response states its answer, for every source whose answer is text: the same markers as GSM8K's reward.

Only what stands behind the last `</think>` counts; there, the last of `<answer>`, `\boxed{}` and `####`; without a
marker, what follows "answer is" or "答案", or the last line.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from . import gsm8k

LONGEST = 2000  # characters of a statement
SHORT = 120  # a response of one line and at most this length is nothing but its answer
END_MARKS = re.compile(r"(?:<\|im_end\|>|<\|endoftext\|>|\s)*\Z")

_LEAD = re.compile(
    r"(?=[acol答标分])(?:answer|label|category|option|choice|答案|标签|分类)\s*(?:is|was|:|：|是|为)[\s:：]*",
    re.IGNORECASE,
)
_BEFORE_LEAD = re.compile(r"(?:(?:the|my) )?(?:(?:final|correct|right|best) )?", re.IGNORECASE).fullmatch
_NOT_FOLDED = re.compile("([²³¹⁰-₟¼-¾⅐-↋①-⓿]+)")  # NFKC would make 72² of 722 and 1½ of 11⁄2
_POWER = re.compile("[²³¹⁰⁴-⁹]")
_WRAPPERS = "*_`\"'“”‘’«»「」『』《》$ \t\r\n"
# The end of a sentence; "72!" and "n!" are factorials, and "B?" is a question.
_END = re.compile(r"(?:[.,;:。，；：\s]|(?<=[^\W\d_]{2})!)+\Z")


def find(response: str) -> tuple[str, str]:
    r"""The statement of a response: (statement, how).

    `how` is "marked" behind a marker, or where a short line is all there is; "unmarked" where the place was guessed;
    else the reason why there is none, "ambiguous" where what stands behind it takes it back.
    """
    close = response.rfind("</think>")
    if response.find("<think>", close + 1) != -1:
        return "", "truncated"
    text = response[close + 8 :] if close != -1 else response
    text = text[: END_MARKS.search(text, max(0, len(text.rstrip()) - 40)).start()]
    hashes, boxed, tag = text.rfind("####"), text.rfind("\\boxed"), text.rfind("<answer>")
    if hashes != -1 and "\n" in text[hashes:].strip():
        hashes = -1  # a heading, with text below it
    last, behind = max(hashes, boxed, tag), ""
    if last == -1:
        return _unmarked(text.strip(), response[: max(close, 0)])
    if last == tag:
        end = text.find("</answer>", tag)
        content, behind = (text[tag + 8 : end], text[end + 9 :]) if end != -1 else (None, "")
        inner = content.rfind("\\boxed") if content else -1
        content = braced(content, inner + 6) if inner != -1 else content
    elif last == boxed:
        content = braced(text, boxed + 6)
        behind = text[boxed + 6 + len(content or "") :].lstrip(" {}$")
    else:
        content = text[hashes + 4 :].strip() or None
    if content is None:
        return "", "truncated"
    if behind and gsm8k.RETRACTS(behind[: gsm8k.TAIL]):
        return "", "ambiguous"
    content = content.strip()
    if len(content) > LONGEST:
        return "", "too_long"
    return (content, "marked") if content else ("", "no_answer")


def braced(text: str, at: int) -> str | None:
    """What stands between the braces that open at `at`; "" where none open there, None where they never close."""
    start = text.find("{", at, at + 4)
    if start == -1 or text[at:start].strip():
        return ""
    depth = 0
    for end in range(start, min(len(text), start + LONGEST + 2)):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0:
            return text[start + 1 : end]
    return None


def _unmarked(text: str, thought: str) -> tuple[str, str]:
    if not text:
        marked = any(marker in thought for marker in ("</answer>", "\\boxed", "####"))
        return "", "answer_in_think" if marked else "no_answer"
    tail = text[-LONGEST:]
    last = None
    for last in _LEAD.finditer(tail):  # noqa: B007
        pass
    line = tail[last.end() :].partition("\n")[0].strip() if last else ""
    alone = "\n" not in text and len(text) <= SHORT
    if line:
        return line, "marked" if alone and _BEFORE_LEAD(text, 0, last.start()) else "unmarked"
    return (text, "marked") if alone else (tail.rpartition("\n")[2].strip(), "unmarked")


def bare(text: str) -> str:
    """The statement without quotation marks, Markdown, a `\\text{}` around it, and the point behind it; case folded."""
    text = plain_text(folded(text).strip(_WRAPPERS))
    text = text[: _END.search(text).start()] if text[-1:] in ".,;:!。，；：" and _END.search(text) else text
    return " ".join(text.strip(_WRAPPERS).casefold().split())


def folded(text: str) -> str:
    """One form for each character, by NFKC; powers as `^2`, so that `x²` is `x^2` and not `x2`."""
    if text.isascii():
        return text
    parts = _NOT_FOLDED.split(text)
    parts[::2] = [unicodedata.normalize("NFKC", part) for part in parts[::2]]
    powers = _POWER.sub(lambda match: f"^{unicodedata.normalize('NFKC', match[0])}", "".join(parts))
    return powers.replace("\u2212", "-")


def plain_text(text: str) -> str:
    r"""What is in the `\text{}` that is all there is; else the same."""
    for command in ("\\text", "\\textbf", "\\mathrm", "\\mathbf"):
        if text.startswith(command + "{") and text.endswith("}"):
            return text[len(command) + 1 : -1]
    return text


# Sentences that state an option and nothing else: "the correct option is b", "i choose (b)", "b is the right answer".
_CARRIER = (
    r"(?:(?:(?:i|we|so|thus|therefore|hence|the|my|our|this|that|it|it's|is|was|would be|must be|should be|has to be"
    r"|correct|right|best|final|only|answer|option|choice|letter|choose|pick|select|go with|think|believe|conclude)\b"
    r"|=|正确|选项|选择|答案|应该|选|是|为)[\s:,]*)*"
)
_LETTER = re.compile(
    rf"{_CARRIER}[(\[]?([a-j])[)\]]?"
    r"(?: (?:is|as)(?: the| my)?(?: correct| right| best| final| only)*(?: answer| option| choice| one)?)?"
).fullmatch
# A letter and the option's text: "b. 42", "(b) the dog", "option b: x"; neither "a dog" nor "(a) + b".
_OPTION = re.compile(
    rf"{_CARRIER}(?:[(\[]([a-j])[)\]][.:]?|([a-j])[.:)\]]{{1,2}}) (?![-+*/^=<>&|~] |\\[a-z]+ )(.+)"
).fullmatch
# In that text: a second option, so that none is chosen; "and a dog" is none.
_SECOND = re.compile(
    r"(?<!\w)[(\[]?[a-j][.:)\]](?!\w)|(?:(?<!\w)(?:or|and|not)|[/或和]) ?(?:[(\[][a-j]|[b-hj](?!\w)|[ai](?! ?\w))"
    r"|^[a-j]$|[.,;:?!] ?[(\[]?[b-hj][)\]]?$"
).search
_COMMAND = re.compile(r"\\(?:text[a-z]{0,6}|math[a-z]{2,4}|mbox|emph|underline|boxed|bf|rm)(?![a-z])|[{}$*]")
_BLANKS = re.compile(r"\\left|\\right|\\[,;:! ]|\\displaystyle|\s|\$")


def same_text(statement: str, gold: str) -> bool:
    """Do two statements read the same, but for case, blanks, quotation marks and LaTeX's spacing?"""
    ours, theirs = bare(statement), bare(gold)
    return ours == theirs or tight(ours) == tight(theirs)


def same_statement(statement: str, gold: str) -> bool:
    """`same_text`; and where the gold answer is one letter, "(B)", "B. 42" and "the correct option is B" state it.

    Text may follow a letter only behind a bracket, a point or a colon: "a dog" and "a + b" do not state A.
    """
    letter = option(gold)
    return same_text(statement, gold) if letter is None else stated_option(statement) == letter


@lru_cache(maxsize=4096)
def option(gold: str) -> str | None:
    r"""The letter that a gold answer such as "B", "(B)" or `\text{(B)}` is; None where it is something else."""
    gold = _COMMAND.sub("", bare(gold)).strip().strip("()[]")
    return gold if len(gold) == 1 and "a" <= gold <= "j" else None


@lru_cache(maxsize=4096)  # the responses of one group repeat each other's answers
def stated_option(statement: str) -> str | None:
    """The letter of the one option that a statement chooses; None where it chooses none, or takes it back."""
    text = " ".join(_COMMAND.sub("", bare(statement)).split())
    if alone := _LETTER(text):
        return alone[1]
    match = _OPTION(text)
    if match is None or _SECOND(match[3]):
        return None
    back = gsm8k.RETRACTS(match[3])  # "b. no, it is not" states an option's text
    return None if back and not (back.start() == 0 and back[0] == "no,") else match[1] or match[2]


def hedged(text: str) -> bool:
    """Does the text deny, hedge, or take back?"""
    return gsm8k.DOUBTS(text.replace("’", "'")) is not None or gsm8k.RETRACTS(text) is not None


def tight(text: str) -> str:
    r"""LaTeX without blanks, `$`, `\left` and `\right`, and with one kind of fraction."""
    return _BLANKS.sub("", folded(text)).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
