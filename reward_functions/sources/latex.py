r"""LaTeX answers: math-verify decides, in a helper process with bounded time and memory.

Trainers call rewards from threads, where math-verify's own time limit raises an error; and an input such as
`9^{9^{9^9}}` can keep SymPy busy for minutes, which nothing in its process can interrupt. So each reward process has a
helper process, which is restarted if the kernel has killed it or it answers too late.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import subprocess
import sys
import threading
from functools import lru_cache
from pathlib import Path

from . import answers, labels

HELPER = Path(__file__).resolve().parent / "latex_helper.py"
SECONDS = 4  # CPU seconds per question, so that a loaded machine does not turn verdicts into timeouts
HARD_S = 60.0  # wall-clock seconds per question
START_S = 60.0  # for importing SymPy, on a busy machine
LONGEST = 1000  # characters of an answer; MATH's longest gold answer has 159
# Markdown at the edges. A phrase may leave one side of it; a single star or bar may be the formula's own: x^*, _5C_2.
_BOLD, _ITALIC = re.compile(r"^(?:\*\*+|__+|`+)|(?:\*\*+|__+|`+)(?=\.?$)"), re.compile(r"^([*_])(.+)\1(\.?)$")
_DELIMITER = re.compile(r"(?<!\\)\$|\\[()\[\]]")
_ASKED = re.compile(answers.ANY["latex"]["asked"])
_WORD, _SET = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{2}").search, re.compile(r"⟦|\\emptyset|∈|\\in").search
_WORDS = re.compile(r"[^\W\d_]{3,}(?: [^\W\d_]+)*|[^\W\d_a-zA-Z\u0370-\u03ff]+").fullmatch
_LOOSE_BLANK = re.compile(f"(?<!,)(?:{answers.LOOSE_BLANK.pattern})").sub  # `1, 234` is a list
_BASE = re.compile(r"\(?[0-9][0-9A-Fa-f]*\)?_(?:[0-9]|\([0-9]+\))").fullmatch
# Words between two numbers, or a text with numbers; `or` and `and` list values.
_FONT, _SPACE = r"\\(?:text|math|mbox)[a-z]* *", r"[^\w\\^]*(?:\\[ ,;])*"
_UNITS = re.compile(
    rf"[0-9]{_SPACE}{_FONT}\{{ *(?!(?:or|and)\b)[^{{}}0-9]*[^\W\d_][^{{}}0-9]*\}}{_SPACE}[0-9]"
    rf"|{_FONT}\{{[^{{}}]*[0-9] *[^\W\d_]{{2,}}[^{{}}]*[0-9]|[0-9)}}][\u3040-\u9fff\uac00-\ud7af]+[-0-9\\(]"
).search
# The helper's environment variables: what Python needs to find math-verify; no keys, no tokens.
KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "PYTHONUSERBASE", "TMPDIR")


class Helper:
    """The helper process: it starts at the first question and answers one question at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.owner = 0

    def ask(self, gold: str, answer: str) -> str:
        """Return math-verify's verdict: "correct", "wrong", "unparsable" (the gold or the answer) or "timeout".

        Raises:
            RuntimeError: the helper does not start; the message says what to install.
        """
        question = json.dumps({"gold": gold, "answer": answer, "seconds": SECONDS}).encode() + b"\n"
        with self.lock:
            process = self.process
            if process is None or self.owner != os.getpid():  # a forked process needs its own
                process = self._start()
            assert process.stdin is not None
            try:
                process.stdin.write(question)  # fits a pipe's buffer, so this does not block
                verdict = _line(process, HARD_S)
            except BrokenPipeError:
                verdict = ""
            if not verdict:
                self.end()
            return verdict or "timeout"

    def end(self) -> None:
        """End the helper; the next question starts another."""
        process, self.process = self.process, None
        if process is not None and self.owner == os.getpid():
            with process:  # closes the pipes and waits
                process.kill()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        process = self.process = subprocess.Popen(
            [sys.executable, str(HELPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=environment | {"OMP_NUM_THREADS": "1"},
        )
        self.owner = os.getpid()
        if _line(process, START_S) != "ready":
            self.end()
            fix = f"pip install math-verify; if it is there, see what stops the helper: {sys.executable} {HELPER}"
            raise RuntimeError(f"the source `math` needs math-verify, whose helper does not start here: {fix}")
        return process


def _line(process: subprocess.Popen[bytes], seconds: float) -> str:
    """Return the helper's next line; "" if none comes in time or the helper has ended."""
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    return process.stdout.readline().decode("ascii", "replace").strip() if poll.poll(seconds * 1000) else ""


HELPER_PROCESS = Helper()
atexit.register(HELPER_PROCESS.end)


def check() -> None:
    """Raise RuntimeError, with what to install, where the helper answers no question."""
    HELPER_PROCESS.ask("\\boxed{\\frac{1}{2}}", "\\boxed{0.5}")


def read_gold(text: str) -> str | None:
    r"""The gold expression, out of its `\boxed{}` or from behind `####`; None where it is empty or huge."""
    at = text.rfind("\\boxed{")
    inside = text[at + 7 :]
    inner = inside[: max(answers.closing_brace(inside), 0)] if at != -1 else text.rpartition("####")[2]
    return inner.strip() if 0 < len(inner.strip()) <= LONGEST else None


@lru_cache(maxsize=16_384)  # the responses of one group repeat each other's answers
def judge(statement: str, gold: str) -> str:
    """The verdict on a stated answer: "correct", "wrong", "unparsable" (too long) or "timeout". Raises as `check`."""
    if len(statement) > LONGEST:
        return "unparsable"
    if letter := labels.gold_option(gold):
        return "correct" if labels.read_option(statement) == letter else "wrong"
    several = labels.several(gold)  # two letters alone may be a segment's ends
    if (len(several) > 2 or several not in ("", gold.strip())) and several == labels.several(statement):
        return "correct"
    ours, theirs = formula(statement), formula(gold)
    verdict = decided(ours, theirs) or HELPER_PROCESS.ask(*(f"\\boxed{{{text}}}" for text in (theirs, ours)))
    if verdict == "unparsable":
        verdict = "correct" if answers.bare(statement) == answers.bare(gold) else "wrong"
    return verdict


def decided(ours: str, theirs: str) -> str:
    """Return "correct" or "wrong" where math-verify is not asked, as docs/REWARD_CUSTOM.md has it; else ""."""
    lines, measure = [answers.formula(text).strip() for text in (ours, theirs)], answers.measure(theirs)
    same_words = _WORD(lines[1]) and answers.bare(ours) == answers.bare(theirs)
    same = len({_LOOSE_BLANK("", line) for line in lines}) == 1
    if same or same_words or answers.equal(measure, answers.measure(ours)):
        return "correct"
    # `abc` and `cab`; `3 \text{ hours } 20 \text{ minutes}`; `52_8`; `5 \text{ million}` and `5`; `\{1,2\}` and `1,2`
    words, units, base = all(map(_WORDS, lines)), any(map(_UNITS, (ours, theirs))), any(map(_BASE, lines))
    scales = answers.SCALES.findall(lines[0]) != answers.SCALES.findall(lines[1])
    return "wrong" if words or units or scales or base or ("⟦" in lines[1] and not _SET(lines[0])) else ""


def formula(text: str) -> str:
    """Return the whole text as one formula in its one form, without Markdown and marks around it."""
    inner = _BOLD.sub("", _DELIMITER.sub("", answers.tidy(text)).strip().strip('"').rstrip(",;"))
    inner = _ITALIC.sub(r"\2\3", inner).strip().removesuffix(".")
    return _ASKED.sub(lambda match: answers.LATEX["asked"][match[0]], inner)
