"""The trainer's log, and the error that ended it."""

import re
from collections.abc import Iterable
from itertools import islice, takewhile
from pathlib import Path
from typing import NamedTuple

from recipes.errors import RESPONSE_FAILED
from recipes.files import Tail
from recipes.yaml_text import read

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(
    r"(?:\[rank\d+\]: ?)?(?P<ray>(?:\((?:[\w.:]+ )?pid=\d+(?:, ip=[\d.]+)?\) ?)*)"
    r"(?P<vllm>(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]+\] ?)?"
    r"(?:[A-Z]+:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}:)?(?P<text>.*)",
    re.DOTALL,
)

DATA = read(Path(__file__).with_suffix(".yaml"))
PHASES: dict[str, str] = DATA["phases"]
"""A line of the trainer at which a phase begins -> the phase as a user reads it."""


class Line(NamedTuple):
    """One line: the process that wrote it (empty for the trainer itself) and its text without decoration."""

    speaker: str
    text: str


def clean(raw: str) -> Line:
    """Strip colours, torchrun's `[rank0]: `, one or more of Ray's `(Name pid=1)`, vLLM's
    `ERROR 01-02 03:04:05 [file.py:1]`, and verl's `INFO:2026-01-02 03:04:05,678:`."""
    line = _PREFIX.fullmatch(_ANSI.sub("", raw))
    assert line is not None  # every part may be empty
    return Line(line["ray"].strip() + "vllm" * bool(line["vllm"]), line["text"].rstrip())


class LogReader:
    """A growing log from an offset on; a progress bar's carriage returns end lines too."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._tail = Tail(path, b"\r\n", offset)

    def read(self) -> list[Line]:
        """Lines that were completed since the last call."""
        return [clean(raw.decode("utf-8", "replace")) for raw in self._tail.read() if raw.strip()]


def phase_of(line: Line) -> str | None:
    """The phase of the start that this line announces; None for all other lines."""
    return next((phase for printed, phase in PHASES.items() if printed in line.text), None)


_ROWS = re.compile(r"(filter dataset len: |dataset len: |selected )(\d+)")
"""verl's lines on a data set that it reads: its rows, those that it takes, and those that its filter leaves."""


class DroppedRows:
    """The rows that verl's filter drops while it reads the data, whatever was counted before the start."""

    def __init__(self) -> None:
        self._rows = 0
        self._said: set[tuple[int, int]] = set()

    def read(self, line: Line) -> str | None:
        """A note where the filter dropped rows; None for all other lines, and for numbers that were said already."""
        if not (found := _ROWS.match(line.text)):
            return None
        rows, before = int(found[2]), self._rows
        self._rows = rows
        if not found[1].startswith("filter") or rows == before or (rows, before) in self._said:
            return None
        self._said.add((rows, before))
        return f"the trainer dropped {before - rows:,} of {before:,} rows: prompts that are too long or cannot be read"


_REWARD_ERROR = "rewards.contract.RewardError: "
"""Marks an exception whose message names the reward's source line, the row and the response."""
_OF_REWARD = re.compile(
    r"(?P<error>.*\((?:row [^,]*, )?(?P<place>\S[^()]*:\d+)(?: (?P<function>\w*))?, response .*\)); (?P<fix>.*)"
)
"""Its text: what (where); fix."""
_START = "Traceback (most recent call last):"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
"""Sentences between two tracebacks of one error."""
_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
# A line at the margin that ends a traceback: the exception, whose name tells where there is no message.
_EXCEPTION = re.compile(r"(?P<name>(?:\w+\.)*[A-Z]\w*)(?:\(\w+\))?(?:: (?P<message>.*))?$")
_ENDINGS = ("Error", "Exception", "Exit", "Interrupt", "Warning", "Timeout")
_WRAPPERS = ("ray.exceptions.", "ray::")
_FAILED_PROMPT = "Error in _run_prompt"
"""verl's line before the traceback of a response that was not generated or not judged."""
_CONSEQUENCES = (f"RuntimeError: {RESPONSE_FAILED}", "SystemExit")
"""Consequences of an error elsewhere: a response failed, or a process was asked to end."""
_NO_CORE, _CORE = "RuntimeError: Engine core initialization failed", "(EngineCore "
"""vLLM's error whose cause its engine's process has written, and the beginning of that process's name."""
_DEAD = "ray.exceptions.ActorDiedError"
_SILENT = "ray.exceptions.ActorUnavailableError"
_DEAD_RAY = (("Raylet is terminated.", "Ray's raylet"), ("GCS may have been killed", "Ray's GCS"))
_DEAD_ACTOR = re.compile(r"\s*class_name: (?:.*\.)?(\w+)")
_ERROR_LINE = re.compile(r"(\w+Error|[Ee]rror(?! executing job)|Killed|Fatal|Could not)\b")
_PYDANTICS_LINK = "For further information visit"
_NOISE = ("Exception ignored in", "ImportWarning", "UserWarning")

HINTS: dict[str, str] = {"|".join(each["texts"]): each["advice"] for each in DATA["hints"]}
"""Regular expression for the error or the end of the log -> what to do."""


class TrainerError(NamedTuple):
    """Cause of a failure; fields are empty where nothing is known."""

    error: str = ""  # exception and message, such as `ValueError: boom`, or another line on an error
    frame: str = ""  # `file:line in function` where it was raised
    hint: str = ""  # what to do


class _Raised(NamedTuple):
    """An exception in a traceback: its line, the last frame, the process, and where the traceback begins."""

    error: str
    frame: str
    speaker: str
    position: int


def first_error(lines: Iterable[Line]) -> TrainerError:
    """The cause of a crash, of an attempt's lines in order."""
    everything = list(lines)
    tail = "\n".join(line.text for line in everything[-200:])
    raised = _raised(everything)
    real = [each for each in raised if not each.error.startswith((*_WRAPPERS, *_CONSEQUENCES))]
    of_trainer = [each for each in raised if not each.speaker]
    ended = [each.error for each in of_trainer if each.position == of_trainer[-1].position]
    ranks = (
        [each for each in real if _REWARD_ERROR in each.error],
        [each for each in real if _CORE in each.speaker and any(error.startswith(_NO_CORE) for error in ended)],
        [each for each in real if each.error in ended],  # the trainer survived the others
        [each for each in real if _FAILED_PROMPT in everything[max(0, each.position - 1)].text],
        real,
        [each for each in raised if each.error.startswith((_DEAD, _SILENT))],
        [each for each in raised if not each.error.startswith("SystemExit")],
    )
    chosen = next(filter(None, ranks), None)
    if chosen:
        error, frame, _, position = chosen[0]
        short = error.removeprefix("ray.exceptions.")
        if error.startswith(_DEAD):
            names = (match[1] for line in everything[position:] if (match := _DEAD_ACTOR.match(line.text)))
            error = f"the process of {next(names, 'an actor')} died ({short})"
        if _REWARD_ERROR in error and (found := _OF_REWARD.fullmatch(error)):
            frame = " in ".join(filter(None, found.group("place", "function")))
            return TrainerError(found["error"], frame, _hint(found["error"]) or found["fix"])
        if error.startswith(_SILENT):
            error = f"a process no longer answers ({short})"
        return TrainerError(error, frame, _hint(error) or _hint(tail))
    if process := next((name for line in everything for text, name in _DEAD_RAY if text in line.text), None):
        error = f"{process} was killed or crashed"
        return TrainerError(error, hint=_hint(error))
    error = next((line.text for line in reversed(everything) if _ERROR_LINE.match(line.text)), "")
    return TrainerError(error, hint=_hint(tail))


def _raised(lines: list[Line]) -> list[_Raised]:
    """The exceptions of all tracebacks, in the order of the tracebacks; each process is followed on its own."""
    begins: dict[str, int] = {}
    frames: dict[str, str] = {}
    found: list[_Raised] = []
    for position, (speaker, text) in enumerate(lines):
        if text.lstrip("| ").startswith(_START):
            before = [line.text for line in lines[begins.get(speaker, position) : position] if line.speaker == speaker]
            if not any(text.startswith(_CHAIN) for text in before[-2:]):
                begins[speaker] = position
            frames[speaker] = ""
        elif speaker not in frames or any(noise in text for noise in _NOISE):
            continue
        elif frame := _FRAME.match(text):
            frames[speaker] = f"{frame['file']}:{frame['line']} in {frame['function']}"
        elif (ends := _EXCEPTION.match(text)) and (ends["message"] is not None or ends["name"].endswith(_ENDINGS)):
            if "ValidationError: " in text:  # pydantic's first line only counts: the first error stands below
                below = (each.text.strip() for each in lines[position + 1 :] if each.speaker == speaker)
                text = " ".join([text, *takewhile(lambda line: not line.startswith(_PYDANTICS_LINK), islice(below, 2))])
            found.append(_Raised(text, frames[speaker], speaker, begins[speaker]))
            if not text.startswith(_WRAPPERS):
                del frames[speaker]
    return sorted(found, key=lambda each: each.position)


def _hint(text: str) -> str:
    return next((hint for pattern, hint in HINTS.items() if re.search(pattern, text, re.IGNORECASE | re.MULTILINE)), "")
