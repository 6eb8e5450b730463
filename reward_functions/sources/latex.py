r"""LaTeX answers: equal as text, or equal to math-verify, which runs in a helper process with bounded time and memory.

Trainers call rewards from threads, where math-verify's own limit on time raises; and SymPy can be led into minutes of
work that no signal ends (`9^{9^{9^9}}`). So one helper process per reward process answers questions, and is ended and
started anew where it is late.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from functools import lru_cache
from pathlib import Path

from . import answers, gsm8k

HELPER = Path(__file__).resolve().parent / "latex_helper.py"
SECONDS = 2  # of processor time, for each of: reading the gold answer, reading the answer, comparing
HARD_S = 20.0  # by the clock on the wall; then the helper is ended
START_S = 60.0  # for importing SymPy, on a busy machine
LONGEST = 1000  # characters of an answer; MATH's longest gold answer has 159
_FORMULA = re.compile(r"(?<!\\)\$|\\[(\[]").search
_WHOLE = re.compile(r"-?[0-9]{1,15}").fullmatch
# Of the environment: what Python needs to find math-verify; no keys, no tokens.
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE", "TMPDIR")


class HelperMissing(RuntimeError):
    """math-verify cannot be used; the message says what to install."""


class Helper:
    """The helper process, started at the first question; one question at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.owner = 0

    def ask(self, gold: str, answer: str) -> str:
        """math-verify's verdict: "correct", "wrong", "unparsable", "gold_unparsable" or "timeout".

        Raises:
            HelperMissing: the helper does not start.
        """
        question = json.dumps({"gold": gold, "answer": answer, "seconds": SECONDS}).encode() + b"\n"
        with self.lock:
            if self.process is None or self.owner != os.getpid():  # a forked process needs its own
                self._start()
            try:
                self.process.stdin.write(question)  # shorter than a pipe's buffer, so it goes at once
                verdict = self._line(HARD_S)
            except BrokenPipeError:
                verdict = ""
            if not verdict:
                self.end()
            return verdict or "timeout"

    def end(self) -> None:
        """End the helper; the next question starts another."""
        process, self.process = self.process, None
        if process is not None and self.owner == os.getpid():
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()

    def _start(self) -> None:
        check_installed()
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, str(HELPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=environment | {"OMP_NUM_THREADS": "1"},
        )
        self.owner = os.getpid()
        if self._line(START_S) != "ready":
            self.end()
            raise HelperMissing(f"math-verify's helper does not start; try it: {sys.executable} {HELPER}")

    def _line(self, seconds: float) -> str:
        """The next line; "" where it does not come in time, or the helper is gone."""
        fd, line, deadline = self.process.stdout.fileno(), b"", time.monotonic() + seconds
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            block = os.read(fd, 4096) if ready else b""
            if not block:
                return ""
            line += block
        return line.decode("ascii", "replace").strip()


HELPER_PROCESS = Helper()
atexit.register(HELPER_PROCESS.end)


def check_installed() -> None:
    """Raise HelperMissing where math-verify is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise HelperMissing("the source `math` needs math-verify: pip install math-verify")


def check() -> None:
    """Ask the helper one question. Raises HelperMissing: with what to install."""
    check_installed()
    if HELPER_PROCESS.ask("$\\frac{1}{2}$", "$0.5$") != "correct":
        raise HelperMissing(f"math-verify does not find 1/2 equal to 0.5; try it: {sys.executable} {HELPER}")


def read_gold(text: str) -> str | None:
    r"""The gold expression, out of its `\boxed{}` or from behind `####`; None where it is empty or huge."""
    at = text.rfind("\\boxed")
    inner = answers.braced(text, at + 6) if at != -1 else text.rpartition("####")[2]
    inner = (inner or "").strip()
    if len(inner) > 1 and inner.startswith("$") and inner.endswith("$") and not inner.endswith("\\$"):
        inner = inner.strip("$").strip()
    return inner if 0 < len(inner) <= LONGEST else None


@lru_cache(maxsize=16_384)  # the responses of one group repeat each other's answers
def judge(statement: str, gold: str) -> str:
    """The verdict on a stated answer: a reason of the dispatcher.

    "correct", "wrong", "ambiguous", "unparsable", "too_long", "timeout" or "gold_unparsable".

    Raises:
        HelperMissing: math-verify is not installed.
    """
    if len(statement) > LONGEST:
        return "too_long"
    ours, theirs = answers.tight(statement).rstrip("."), answers.tight(gold)
    if ours == theirs:
        return "correct"
    if _WHOLE(ours) and _WHOLE(theirs):  # the most frequent answers need nothing more
        return "correct" if int(ours) == int(theirs) else "wrong"
    letter = answers.option(gold)
    if letter and answers.stated_option(statement) == letter:
        return "correct"
    if _doubtful(statement) and not _doubtful(gold):
        return "ambiguous"
    if verdict := _numbers(statement, gold):
        return verdict
    verdict = HELPER_PROCESS.ask(formula(gold), formula(statement))
    return "correct" if verdict == "wrong" and answers.same_text(statement, gold) else verdict


def _doubtful(text: str) -> bool:
    """Does the text deny, hedge, or take back? "or" may join solutions where there are several."""
    match = gsm8k.DOUBTS(text)
    return (match is not None and match[0].lower() != "or") or gsm8k.RETRACTS(text) is not None


def _numbers(statement: str, gold: str) -> str:
    """The verdict where both are one number by GSM8K's rules, with a unit each if the gold has one; else ""."""
    unit, gold_unit = _unit(statement), _unit(gold)
    if unit and gold_unit and unit != gold_unit:
        return "wrong"
    read = gsm8k.read_gold(gsm8k.plain(gold))
    if read is None and gold_unit is not None:
        read = gsm8k.read_gold(gsm8k.read_statement(gold)[3])
    if read is None:
        return ""
    reading = gsm8k.read_statement(statement)
    if not reading[1]:
        text = gsm8k.plain(statement)
        return "ambiguous" if gsm8k.DOUBTS(text) or re.search("[<>≠]", text) else ""
    return gsm8k.compare(reading, read, None)[0]


# A number and its unit: `10\text{ m}`, `10 cm`, `3\,\mathrm{km/h}`, `5\sqrt{2}\text{ cm}^2`.
_COMMANDED = re.compile(
    r"(.*[0-9})\]])\s*(?:\\[,;: ]|~)*\s*\\(?:text|textrm|mathrm|mbox|textbf|rm)\s*\{([^{}]{1,40})\}(.{0,8})"
)
_SPELLED = re.compile(r"(-?[0-9][0-9.,/]*)(?:\s|\\[,;: ]|~)+([A-Za-z°µ][A-Za-z°µ./ ]{0,40})((?:\^\{?-?[0-9]\}?)?)")
_EXPONENT = re.compile(r"(?:\^\{?(-?[0-9])\}?)?\$?\.?")
# One name for each unit; others are compared as they are written, without case and plural.
_UNITS = {
    "m": "meter metre", "cm": "centimeter centimetre", "mm": "millimeter millimetre", "km": "kilometer kilometre",
    "in": "inch inche", "ft": "foot feet", "yd": "yard", "mi": "mile", "g": "gram gramme", "kg": "kilogram kilogramme",
    "mg": "milligram", "lb": "pound lbs", "oz": "ounce", "s": "second sec", "min": "minute", "h": "hour hr",
    "l": "liter litre",
    "ml": "milliliter millilitre", "mph": "miles/hour miles/h mi/h", "km/h": "kmh kph kilometers/hour kilometres/hour",
    "m/s": "meters/second metres/second", "usd": "dollar", "cent": "penny", "deg": "degree °",
}  # fmt: skip
_ONE_NAME = {spelling: name for name, spellings in _UNITS.items() for spelling in spellings.split()}


def _unit(text: str) -> str | None:
    """The unit of a text that is a value with a unit; "" where it is a multiplier, None of any other text."""
    text = answers.folded(text).strip().strip("$").strip()
    match = _COMMANDED.fullmatch(text) or _SPELLED.fullmatch(text)
    tail = _EXPONENT.fullmatch(match[3].strip()) if match else None
    if tail is None:
        return None
    unit = " ".join(match[2].replace(".", " ").replace(" per ", "/").split())
    power = tail[1] or ""
    for word, number in (("square ", "2"), ("sq ", "2"), ("cubic ", "3"), ("cu ", "3")):
        if unit.casefold().startswith(word):
            unit, power = unit[len(word) :], number
    name = unit if len(unit) <= 2 else unit.casefold()
    name = _ONE_NAME.get(name) or _ONE_NAME.get(name.removesuffix("s")) or name.casefold().removesuffix("s") or name
    return "" if len(name) > 3 and name.removesuffix("s") in gsm8k.FACTORS else name + power


_GROUPED = re.compile(r"(?<![0-9.])[0-9]{1,3}(?:(?:\\[,;! ]|[ '_\u2019]|\{,\})[0-9]{3}){1,9}(?![0-9])")
_ROOT = re.compile(r"√\s*(?:([0-9]+|[A-Za-z])|\(([^()]{0,80})\))")
_LATEX = str.maketrans({
    "–": "-", "—": "-", "－": "-", "÷": "/", "⁄": "/", "π": "\\pi ", "θ": "\\theta ", "∞": "\\infty ",
    "×": "\\times ", "·": "\\cdot ", "±": "\\pm ", "∪": "\\cup ", "°": "^\\circ ", "≤": "\\le ", "≥": "\\ge ",
    "≠": "\\ne ",
})  # fmt: skip
_VULGAR = re.compile("[¼-¾⅐-⅞]")


def formula(text: str) -> str:
    r"""The text as LaTeX of which math-verify reads one formula.

    Grouped digits are joined, and Unicode's signs become commands. All of it stands in a `\boxed{}`, unless it says
    itself where its formula is.
    """
    text = _GROUPED.sub(lambda match: re.sub("[^0-9]", "", match[0]), answers.folded(text))
    if not text.isascii():
        text = _VULGAR.sub(lambda match: "\\frac{{{}}}{{{}}}".format(*gsm8k.plain(match[0]).split("/")), text)
        text = _ROOT.sub(lambda match: f"\\sqrt{{{match[1] or match[2]}}}", text).translate(_LATEX)
    return text if _FORMULA(text) else f"\\boxed{{{text}}}"
