"""Health rules: each judges the metrics of a run over its last steps, some also its first, and changes nothing."""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Literal, NamedTuple

from recipes.config import Recipe, objective, path_keys
from recipes.config.resolve import algorithm
from recipes.config.variables import control
from recipes.data.rows import find_manifest
from recipes.drawing import markdown
from recipes.errors import counted
from recipes.files import sha256
from recipes.paths import ROOT
from recipes.rewards.contract import RIGHT, SAME
from recipes.rewards.metrics import CALLS, CUT_BY_TURNS, FAILED_CALLS, TRAINING_ACCURACY, ZERO_VARIANCE
from recipes.runs.folder import Run, compares_since
from recipes.runs.metrics import KL, Measured, Series, Step, measured, number, of_last_measure, series, validation
from recipes.statistics import counted_questions
from recipes.yaml_text import read

Status = Literal["ok", "explained", "unknown", "warning", "failure"]
"""`explained`: a value that looks wrong and is not; `unknown`: not judged, for the reason that its evidence gives."""
WINDOW = 5  # steps
COLLAPSED_ENTROPY = 0.01  # nats a token
ENTROPY_CHANGE = 3.0  # factor from the first steps
MOST_ENTROPY = 3.0  # nats a token: as if each token were drawn from 20 equally likely ones
MOST_KL = 0.5  # nats a token to the reference
MOST_GRAD_NORM = 5.0  # before clipping, median of a window
MOST_ZERO_VARIANCE = 0.8  # share of groups
MOST_TRUNCATED = 0.25  # share of responses
MOST_FAILED = 0.5  # share of calls of tools
LEAST_CALLS = 0.2  # part of the first steps' calls a response
# Rise of the training score that the validation should follow, and fall of the validation that is an alarm: parts of
# what can be reached, which is 1 for an accuracy, and for a score the span of the training scores.
GAIN = 0.1
SHARE_OF_GAIN = 0.1  # least part of the training score's rise that the validation should rise by
UNSURE = 2.0  # standard errors by which two validations must differ

Verdict = tuple[Status, str] | tuple[Status, str, str]
"""Status and evidence that a rule gives a run, and the name of other texts than the rule's where its cause differs."""
HELD_OUT = "reward and validation"
BOTH_FALL = f"{HELD_OUT}, both falling"
EXAMPLE = ROOT / "examples" / "custom_task" / "data" / "tiny.jsonl"
"""The rows of the recipe `custom`'s tiny model."""
STAND_IN = (
    "a tiny model stands in for one of your choice (MODEL_PATH): the run tries file, reward and trainer; its scores "
    "say nothing about the task, and no rule judges them"
)


class Unknown(Exception):
    """Raised by a rule that cannot judge; its text says why."""


class Evidence:
    """Facts for the rules, kept while a run grows: a new step costs the same after any number of steps."""

    def __init__(
        self,
        history: Iterable[Step],
        recipe: Recipe | None,  # None where its file cannot be read
        validations: Mapping[int, Measured],  # by step; step 0 is the model before training
        since: int = 0,  # the first step whose validation compares with the last one; training scores compare after it
    ) -> None:
        self.history: list[Step] = []
        self.recipe, self.since, self.validations = recipe, since, dict(validations)
        self.broken: dict[str, int] = {}  # metric -> the last step at which it was no number
        self.stand_in = recipe is not None and stands_in(recipe)
        self._kept: dict[tuple[str, ...], tuple[Callable[[Step], float | None], Series]] = {}
        for step in history:
            self.add(step)

    def add(self, step: Step) -> None:
        self.history.append(step)
        for name, value in step.data.items():
            is_broken = value is None or (isinstance(value, float) and not math.isfinite(value))
            if is_broken and name.startswith(("actor/", "critic/")):
                self.broken[name] = step.step
        for value_of, kept in self._kept.values():
            kept += series([step], value_of)

    def series(self, *names: str, value_of: Callable[[Step], float | None] | None = None) -> Series:
        """(step, value) of each trained step that has one. Raises Unknown for fewer than two.

        The first metric of `names` that a step has counts; with `value_of`, `names` is the name of what this returns.
        """
        if names not in self._kept:
            value_of = value_of or (lambda step: step.get(*names))
            self._kept[names] = value_of, series(self.history, value_of)
        values = self._kept[names][1]
        if len(values) < 2:
            raise Unknown("too few steps" if values else "the run does not log this")
        return values

    def last(self, *names: str) -> list[float]:
        """The values of the last window."""
        return [value for _, value in self.series(*names)[-WINDOW:]]

    @property
    def solved(self) -> bool:
        """Every response of the last window is right."""
        try:
            return all(value >= RIGHT for value in self.last(TRAINING_ACCURACY))
        except Unknown:
            return False


def stands_in(recipe: Recipe) -> bool:
    """True for a tiny model of this repository that trains on the user's rows, not its own."""
    if not Path(str(recipe.worker.actor.model.model_path)).is_relative_to(ROOT / "recipes"):
        return False
    files = [Path(entry.path) for entry in path_keys(recipe) if entry.key == "data.train_files"]
    manifests = [find_manifest(path) for path in files if path.is_file()]
    own = [each and (each.task != "custom" or sha256(EXAMPLE) in each.settings["files"].values()) for each in manifests]
    return not all(own)


def _windows(values: Series) -> tuple[float, float]:
    """Means of the first and of the last window, which do not overlap; a short run has smaller windows."""
    size = min(WINDOW, len(values) // 2)
    if size < 2:
        raise Unknown("too few steps")
    return fmean(value for _, value in values[:size]), fmean(value for _, value in values[-size:])


def _warning_if(alarming: bool, evidence: str) -> Verdict:
    return ("warning" if alarming else "ok"), evidence


def _numbers(run: Evidence) -> Verdict:
    if not run.broken:
        return "ok", f"every value of {counted(len(run.history), 'step')} is finite"
    last = max(run.broken.values())
    recent = last >= run.history[-WINDOW:][0].step
    return ("failure" if recent else "warning"), f"{', '.join(run.broken)}: not a number, last at step {last}"


def _entropy(run: Evidence) -> Verdict:
    values = run.series("actor/entropy")
    latest = fmean(value for _, value in values[-2:])
    if latest < COLLAPSED_ENTROPY:
        return "failure", f"{number(latest)} nats a token over the last steps: entropy collapse"
    if latest > MOST_ENTROPY:
        return "failure", f"{number(latest)} nats a token over the last steps, bound {MOST_ENTROPY:g}: noise"
    first, last = _windows(values)
    # A rise within the first window is one as well.
    lowest = min(value for _, value in values[:WINDOW])
    if last > ENTROPY_CHANGE * lowest:
        return "warning", f"{number(lowest)} before it rose, {number(last)} now, nats a token"
    return _warning_if(last * ENTROPY_CHANGE < first, f"{number(first)} at first, {number(last)} now, nats a token")


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
    """Share of a step's responses that reach the limit, in tokens; None where the trainer logs no lengths.

    verl's `response_length/clip_ratio` counts those as long as the longest, whether that reaches the limit or not.
    """
    longest = step.get("response_length/max")
    return 0.0 if longest is not None and longest < limit else step.get("response_length/clip_ratio")


def _truncation(run: Evidence) -> Verdict:
    if run.recipe is None:
        raise Unknown("the recipe is not known, and so is the limit")
    limit = run.recipe.data.max_response_length
    shares = run.series("truncated", value_of=lambda step: truncated(step, limit))
    last = fmean(share for _, share in shares[-WINDOW:])
    return _warning_if(last > MOST_TRUNCATED, f"{last:.0%} of the responses are truncated")


def _calls(run: Evidence) -> Verdict:
    calls, failed, cut = (fmean(run.last(name)) for name in (CALLS, FAILED_CALLS, CUT_BY_TURNS))
    first = fmean(value for _, value in run.series(CALLS)[:WINDOW])
    evidence = f"{calls:.2g} calls a response ({first:.2g} at first), {failed:.0%} failed, {cut:.0%} cut by the turns"
    return _warning_if(failed > MOST_FAILED or cut > MOST_TRUNCATED or calls < LEAST_CALLS * first, evidence)


def _rollout(run: Evidence) -> Verdict:
    worst = max(map(abs, run.last(ROLLOUT_KL)))
    evidence = f"at most {number(worst)} nats a token over the last steps, bound {MOST_ROLLOUT_KL:g}"
    return ("ok" if worst <= MOST_ROLLOUT_KL else "failure"), evidence


def _reward_and_validation(run: Evidence) -> Verdict:
    validations = of_last_measure({step: each for step, each in run.validations.items() if step >= run.since})
    steps = sorted(validations)
    if len(steps) < 2:
        raise Unknown("fewer than two validations")
    last, every = validations[steps[-1]], [validations[step] for step in steps]
    if all(each.error == 0 for each in every):
        known = any(each.questions for each in every)
        what = "every question has the same value in" if known else "no responses are there of"
        raise Unknown(f"{what} each validation")
    scores, most, least = (
        _between(run.series(f"critic/score/{name}"), run.since, steps[-1]) for name in ("mean", "max", "min")
    )
    before, now = _windows(scores)
    # A reward may have any scale, so that its scores compare with an accuracy only as parts of their span.
    span = max(SAME, max(value for _, value in most) - min(value for _, value in least))
    unit = 1.0 if last.measure == "accuracy" else span
    gain = (now - before) / span
    best = max(every, key=lambda each: each.value)
    falls = best.value - last.value > max(GAIN * unit, UNSURE * math.hypot(best.error, last.error))
    first = best if falls else every[0]
    lag, noise = gain - (last.value - first.value) / unit, UNSURE * math.hypot(first.error, last.error) / unit
    hollow = gain > GAIN and lag > max((1 - SHARE_OF_GAIN) * gain, noise)
    fall = first.value - last.value
    by = f"{100 * fall:.0f} points" if last.measure == "accuracy" else number(fall)
    evidence = f"held-out {last.measure} fell by {by}; " * falls + (
        f"training score {number(before)} -> {number(now)}, validation {last.measure} {number(first.value)} -> "
        f"{number(last.value)} on {counted_questions(last.questions, last.different)}, to step {steps[-1]}"
    )
    if falls and gain < 0:
        return "warning", evidence, BOTH_FALL
    return _warning_if(falls or hollow, evidence)


def _between(values: Series, after: int, to: int) -> Series:
    """The values of the steps behind `after`, up to `to`."""
    return values[bisect_right(values, (after, math.inf)) : bisect_right(values, (to, math.inf))]


ROLLOUT_KL = "rollout_corr/kl"
MOST_ROLLOUT_KL = 0.02
"""The largest mismatch, in nats a token, that counts as rounding."""
MOST_WITH_IMAGES = "MAX_ROLLOUT_KL"
MISMATCH_ADVICE = (
    "look at actor_rollout_ref.rollout.load_format (images need safetensors) and at what the verl section "
    f"changes; {MOST_WITH_IMAGES} takes another bound"
)


def mismatch_bound(recipe: Recipe, environ: Mapping[str, str]) -> float:
    """The largest `ROLLOUT_KL` that a step may have; infinite for a run without images or without this metric.

    A model that does not see the images still answers. `ROLLOUT_KL`, the mean of log p(vLLM) - log p(trainer) over the
    sampled tokens, is 0 up to rounding where both saw the same image with the same weights, and far above the bound
    where vLLM saw none (docs/RESULTS.md).

    Raises RecipeError where `MAX_ROLLOUT_KL` is no positive number.
    """
    rollout = recipe.worker.rollout
    if not rollout.limit_images or not (rollout.calculate_log_probs or recipe.engine == "easyr1"):
        return math.inf
    return control(environ, MOST_WITH_IMAGES) or MOST_ROLLOUT_KL


def mismatch(step: Step, most: float) -> str | None:
    """One line on what is wrong with a step; None where nothing is, or where it has no `ROLLOUT_KL`."""
    value = step.get(ROLLOUT_KL)
    # Only noise makes the mean negative, so its absolute value counts; NaN compares as false and is reported.
    if value is None or math.isinf(most) or abs(value) <= most:
        return None
    what = f"{ROLLOUT_KL} is {value:.3g} nats a token, at most {most:g} is rounding"
    return f"step {step.step}: vLLM and the trainer do not see the same image ({what})"


class Rule(NamedTuple):
    """A rule and its texts, of health.yaml."""

    name: str
    judge: Callable[[Evidence], Verdict]
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
    "tools": _calls,
    "vLLM and trainer": _rollout,
    HELD_OUT: _reward_and_validation,
}
TEXTS = read(Path(__file__).with_suffix(".yaml"))
RULES = tuple(Rule(name, judge, **TEXTS[name]) for name, judge in JUDGES.items())
OTHER_CAUSES = {name: texts for name, texts in TEXTS.items() if name not in JUDGES}


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
    """The verdict of every rule, in the order of `RULES`."""
    found = []
    for rule in RULES:
        if run.stand_in and rule.judge is not _numbers:
            found.append(Finding(rule, "unknown", "not judged: the tiny model stands in for one of your choice"))
            continue
        try:
            status, evidence, *other = rule.judge(run)
            found.append(Finding(rule._replace(**OTHER_CAUSES[other[0]]) if other else rule, status, evidence))
        except Unknown as unknown:
            found.append(Finding(rule, "unknown", str(unknown)))
    return found


def findings_of(run: Run) -> list[Finding]:
    """The verdicts on a run as its files are."""
    return findings(Evidence(run.history, run.recipe, run.validations, run.since))


class Health:
    """Judges a run after each step, and logs a line where a rule raises, changes or drops an alarm."""

    def __init__(self, recipe: Recipe, history: Sequence[Step], folder: Path, log: Callable[[str], None]) -> None:
        """`history` has the steps up to the checkpoint that the run resumes, `folder` its files."""
        self._run = Evidence(history, recipe, measured(folder, recipe, history), compares_since(folder))
        self._folder, self._log = folder, log
        self._unread: list[Step] = []  # whose validation's dump is still being written
        self._alarms: dict[str, Status] = {}
        if self._run.stand_in:
            log(f"note: {STAND_IN}")

    def add_step(self, step: Step) -> None:
        """Take in a step's metrics, and log what changed."""
        self._run.add(step)
        self._unread.append(step)
        self._run.validations |= measured(self._folder, self._run.recipe, self._unread)
        self._unread = [each for each in self._unread if validation(each) and each.step not in self._run.validations]
        for finding in findings(self._run):
            before = self._alarms.pop(finding.rule.name, None)
            if finding.alarming:
                self._alarms[finding.rule.name] = finding.status
            if self._alarms.get(finding.rule.name) != before:
                self._log(finding.line() if finding.alarming else f"passed: {finding.rule.name}: {finding.evidence}")


def documented() -> str:
    """The rules as a table in Markdown, for docs/MONITORING.md."""
    rows = [(each.name, each.healthy, each.meaning, each.advice) for each in RULES]
    rows += [(name, "", texts["meaning"], texts["advice"]) for name, texts in OTHER_CAUSES.items()]
    return markdown(("rule", "healthy", "what a warning usually means", "what to try"), rows)
