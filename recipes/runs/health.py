"""Health rules: each judges the metrics of a run over windows of steps, and gives a status with its evidence.

Most rules look at the last window of steps, some also at the first. `RULES` says what a warning usually means and
what to try. Rules change nothing in a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Literal, NamedTuple

from recipes.config import Recipe, objective
from recipes.config.layers import read
from recipes.config.resolve import algorithm
from recipes.drawing import markdown
from recipes.errors import counted
from recipes.rewards.contract import RIGHT, SAME
from recipes.rewards.metrics import TRAINING_ACCURACY, ZERO_VARIANCE
from recipes.runs import rollout_mismatch
from recipes.runs.metrics import KL, Series, Step, number, series
from recipes.runs.responses import Measured, measured, of_last_measure
from recipes.statistics import asked

Status = Literal["ok", "explained", "unknown", "warning", "failure"]
"""`explained`: a value that looks wrong and is not; `unknown`: too few steps, or no such metric."""
WINDOW = 5  # steps
COLLAPSED_ENTROPY = 0.01  # nats a token
ENTROPY_CHANGE = 3.0  # factor from the first window
MOST_KL = 0.5  # nats a token to the reference
MOST_GRAD_NORM = 5.0  # before clipping, median of a window
MOST_ZERO_VARIANCE = 0.8  # share of groups
MOST_TRUNCATED = 0.25  # share of responses
# Rise of the training score that the validation should follow, and fall of the validation that is an alarm: parts of
# what can be reached, which is 1 for an accuracy, and for a score the span of the training scores.
GAIN = 0.1
SHARE_OF_GAIN = 0.1  # least part of the training score's rise that the validation should rise by
UNSURE = 2.0  # standard errors by which two validations must differ


Verdict = tuple[Status, str]
"""Status and evidence that a rule gives a run."""


class Unknown(Exception):
    """Raised by a rule that cannot judge; its text says why."""


@dataclass(frozen=True)
class Evidence:
    """Facts for the rules."""

    history: Sequence[Step]  # every step, including steps that have only a validation
    recipe: Recipe | None = None  # None where its file cannot be read
    # Step -> its validation; step 0 is the model before training.
    validations: Mapping[int, Measured] = field(default_factory=dict)

    def series(self, *names: str) -> Series:
        """(step, value) of the first of these metrics that each trained step has. Raises Unknown for fewer than two."""
        values = series(self.history, *names)
        if len(values) < 2:
            raise Unknown("too few steps" if values else "the run does not log this")
        return values

    def last(self, *names: str) -> list[float]:
        """The values of the last window."""
        return [value for _, value in self.series(*names)[-WINDOW:]]

    @property
    def solved(self) -> bool:
        """Return whether every response of the last window is right."""
        last = series(self.history, TRAINING_ACCURACY)[-WINDOW:]
        return bool(last) and all(value >= RIGHT for _, value in last)


def _windows(values: Series) -> tuple[float, float]:
    """Means of the first and of the last window, which do not overlap; a short run has smaller windows."""
    size = min(WINDOW, len(values) // 2)
    if size < 2:
        raise Unknown("too few steps")
    return fmean(value for _, value in values[:size]), fmean(value for _, value in values[-size:])


def _warning_if(alarming: bool, evidence: str) -> Verdict:
    return ("warning" if alarming else "ok"), evidence


def _numbers(run: Evidence) -> Verdict:
    broken = {
        name: step.step
        for step in run.history
        for name, value in step.data.items()
        if name.startswith(("actor/", "critic/"))
        and (value is None or (isinstance(value, float) and not math.isfinite(value)))
    }
    if not broken:
        return "ok", f"every value of {counted(len(run.history), 'step')} is finite"
    last = max(broken.values())
    recent = last >= run.history[-WINDOW:][0].step
    return ("failure" if recent else "warning"), f"{', '.join(broken)}: not a number, last at step {last}"


def _entropy(run: Evidence) -> Verdict:
    values = run.series("actor/entropy")
    latest = fmean(value for _, value in values[-2:])
    if latest < COLLAPSED_ENTROPY:
        return "failure", f"{number(latest)} nats a token over the last steps: entropy collapse"
    first, last = _windows(values)
    changed = last > ENTROPY_CHANGE * first or last * ENTROPY_CHANGE < first
    return _warning_if(changed, f"{number(first)} at first, {number(last)} now, nats a token")


def _kl(run: Evidence) -> Verdict:
    recipe, by_design = run.recipe, ""
    if recipe:
        in_reward, in_loss = objective.kl_in_reward(recipe), objective.kl_in_loss(recipe)
        if not any(term and term.coefficient > 0 for term in (in_reward, in_loss)):
            preset = recipe.algorithm.preset
            if preset and recipe.algorithm.disable_kl and algorithm(preset).values.get(objective.NO_KL):
                return "explained", f"{preset} has no KL term: the distance to the reference is not measured"
            return "warning", f"{objective.NO_KL} is true or the coefficient 0: nothing holds the policy"
        by_design = "" if in_loss else "; taken from the reward, so actor/kl_loss is absent or 0 by design"
    latest = fmean(run.last(*KL)[-2:])
    evidence = f"{number(latest)} nats a token over the last steps, bound {MOST_KL:g}"
    return _warning_if(latest > MOST_KL, evidence + by_design)


def _grad_norm(run: Evidence) -> Verdict:
    last = run.last("actor/grad_norm")
    if max(last) == 0 and run.solved:
        return "explained", "0, as it has to be: every response of the last steps is right"
    if max(last) == 0:
        return "failure", f"0 over the last {counted(len(last), 'step')}: no response has an advantage"
    return _warning_if(median(last) > MOST_GRAD_NORM, f"median {number(median(last))} over the last {len(last)} steps")


def _groups(run: Evidence) -> Verdict:
    last = run.last(ZERO_VARIANCE)
    share = fmean(last)
    evidence = f"{share:.0%} of the groups have zero variance, over the last {len(last)} steps"
    if share == 1 and run.solved:
        return "explained", f"{evidence}: the task is solved, and nothing is left to learn from it"
    if share == 1:
        return "failure", evidence
    return _warning_if(share > MOST_ZERO_VARIANCE, evidence)


def truncated(step: Step, limit: int) -> float | None:
    """Share of a step's responses that reach the limit; None where the trainer logs no lengths.

    verl's `response_length/clip_ratio` counts responses as long as the longest of the step, which is the share of
    truncated ones only where the longest reaches the limit.

    Args:
        limit: `data.max_response_length`, in tokens.
    """
    longest = step.get("response_length/max")
    return 0.0 if longest is not None and longest < limit else step.get("response_length/clip_ratio")


def _truncation(run: Evidence) -> Verdict:
    if run.recipe is None:
        raise Unknown("the recipe is not known, and so is the limit")
    run.series("response_length/clip_ratio")
    limit = run.recipe.data.max_response_length
    shares = [share for step in run.history if (share := truncated(step, limit)) is not None]
    last = fmean(shares[-WINDOW:])
    return _warning_if(last > MOST_TRUNCATED, f"{last:.0%} of the responses are truncated")


def _rollout(run: Evidence) -> Verdict:
    worst = max(map(abs, run.last(rollout_mismatch.KL)))
    evidence = f"at most {number(worst)} nats a token over the last steps, bound {rollout_mismatch.MOST:g}"
    return ("ok" if worst <= rollout_mismatch.MOST else "failure"), evidence


def _reward_and_validation(run: Evidence) -> Verdict:
    validations = of_last_measure(run.validations)
    steps = sorted(validations)
    if len(steps) < 2:
        raise Unknown("fewer than two validations")
    last, every = validations[steps[-1]], [validations[step] for step in steps]
    if all(each.error == 0 for each in every):
        raise Unknown("every question has the same value in each validation")
    before, now = _windows([entry for entry in run.series("critic/score/mean") if entry[0] <= steps[-1]])
    most, least = (run.series(f"critic/score/{end}") for end in ("max", "min"))
    # A reward may have any scale, so that its scores compare with an accuracy only as parts of their span.
    span = max(SAME, max(value for _, value in most) - min(value for _, value in least))
    unit = 1.0 if last.measure == "accuracy" else span
    gain = (now - before) / span
    best = max(every, key=lambda each: each.value)
    falls = best.value - last.value > max(GAIN * unit, UNSURE * math.hypot(best.error, last.error))
    first = best if falls else every[0]
    lag, noise = gain - (last.value - first.value) / unit, UNSURE * math.hypot(first.error, last.error) / unit
    hollow = gain > GAIN and lag > max((1 - SHARE_OF_GAIN) * gain, noise)
    return _warning_if(
        falls or hollow,
        f"training score {number(before)} -> {number(now)}, validation {last.measure} {number(first.value)} -> "
        f"{number(last.value)} on {asked(last.questions, last.different)}, to step {steps[-1]}",
    )


class Rule(NamedTuple):
    """A rule with what its warning usually means."""

    name: str  # what messages call it
    judge: Callable[[Evidence], Verdict]  # gives status and evidence
    healthy: str  # range in a good run, as text
    meaning: str  # what a warning or failure usually means
    advice: str  # what to try


JUDGES: dict[str, Callable[[Evidence], Verdict]] = {
    "numbers": _numbers,
    "entropy": _entropy,
    "KL": _kl,
    "grad-norm": _grad_norm,
    "groups": _groups,
    "truncation": _truncation,
    "vLLM and trainer": _rollout,
    "reward and validation": _reward_and_validation,
}
TEXTS = read(Path(__file__).with_suffix(".yaml"))
RULES = tuple(Rule(name, judge, **TEXTS[name]) for name, judge in JUDGES.items())


class Finding(NamedTuple):
    """Verdict of one rule on a run."""

    rule: Rule
    status: Status
    evidence: str

    @property
    def alarming(self) -> bool:
        return self.status in ("warning", "failure")

    def line(self) -> str:
        """The finding in one line; an alarm also says what it usually means and what to try."""
        text = f"{self.status}: {self.rule.name}: {self.evidence}"
        return f"{text} | usually: {self.rule.meaning} | try: {self.rule.advice}" if self.alarming else text


def findings(run: Evidence) -> list[Finding]:
    """Return what every rule says, in the order of `RULES`."""
    found = []
    for rule in RULES:
        try:
            found.append(Finding(rule, *rule.judge(run)))
        except Unknown as unknown:
            found.append(Finding(rule, "unknown", str(unknown)))
    return found


class Health:
    """Judges a run after each step, and prints a line where a rule raises, changes or drops an alarm.

    Args:
        recipe: the run's recipe.
        history: the run's steps up to the checkpoint that it resumes.
        folder: the run's folder, where its validations are.
        log: prints a line to the user.
    """

    def __init__(self, recipe: Recipe, history: Sequence[Step], folder: Path, log: Callable[[str], None]) -> None:
        self._recipe, self._history, self._folder, self._log = recipe, list(history), folder, log
        self._alarms: dict[str, Status] = {}

    def add_step(self, step: Step) -> None:
        """Take in a step's metrics, and print what changed."""
        self._history.append(step)
        validations = measured(self._folder, self._recipe, self._history)
        for finding in findings(Evidence(self._history, self._recipe, validations)):
            before = self._alarms.pop(finding.rule.name, None)
            if finding.alarming:
                self._alarms[finding.rule.name] = finding.status
            if self._alarms.get(finding.rule.name) != before:
                self._log(finding.line() if finding.alarming else f"passed: {finding.rule.name}: {finding.evidence}")


def documented() -> str:
    """The rules as a table in Markdown, for docs/MONITORING.md."""
    rows = [(each.name, each.healthy, each.meaning, each.advice) for each in RULES]
    return markdown(("rule", "healthy", "what a warning usually means", "what to try"), rows)
