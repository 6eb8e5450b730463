"""Health rules: each judges the metrics of a run over windows of steps, and gives a status with its evidence.

A rule compares the first and the last window (`monitor.window` steps); its bounds are keys under `monitor`. `RULES`
says what a warning usually means and what to try. Rules change nothing in a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, median
from typing import Literal, NamedTuple

from recipes.config import Recipe, objective
from recipes.config.resolve import algorithm
from recipes.config.schema import Monitor
from recipes.drawing import markdown
from recipes.engines.verl.translation import is_on_policy
from recipes.errors import counted
from recipes.runs import rollout_mismatch
from recipes.runs.folder import Run
from recipes.runs.metrics import Step, mean_validation, number
from recipes.runs.responses import Groups, Responses

Status = Literal["ok", "explained", "unknown", "warning", "failure"]
"""`explained`: a value that looks wrong and is not; `unknown`: too few steps, or no such metric."""
Series = list[tuple[int, float]]
"""(step, value), in order."""
UNSURE = 2.0
"""Standard errors by which two validations must differ."""


class Verdict(NamedTuple):
    """Status and evidence that a rule gives a run."""

    status: Status
    evidence: str


class Unknown(Exception):
    """Raised by a rule that cannot judge; its text says why."""


@dataclass(frozen=True)
class Evidence:
    """Facts for the rules.

    Attributes:
        history: every step, validations alone among them.
        recipe: the recipe, where its file can be read; without it the bounds are the defaults.
        groups: step -> its training responses, where they were written.
        validations: step -> its validation responses; step 0 is the model before training.
        silent_s: seconds since the last sign of life; None for a run that has ended.
    """

    history: Sequence[Step]
    recipe: Recipe | None = None
    groups: Mapping[int, Groups] = field(default_factory=dict)
    validations: Mapping[int, Groups] = field(default_factory=dict)
    silent_s: float | None = None

    @cached_property
    def steps(self) -> list[Step]:
        """The trained steps, in order."""
        return [step for step in self.history if "timing_s/step" in step.data or "critic/score/mean" in step.data]

    @property
    def bounds(self) -> Monitor:
        return self.recipe.monitor if self.recipe else Monitor()

    def values(self, *names: str) -> Series:
        """(step, value) of the first of these metrics that a step has; numbers that are not finite are left out."""
        values = ((step.step, step.get(*names)) for step in self.steps)
        return [(step, value) for step, value in values if value is not None and math.isfinite(value)]

    def series(self, *names: str) -> Series:
        """The same. Raises Unknown where fewer than two steps have one."""
        values = self.values(*names)
        if len(values) < 2:
            raise Unknown("too few steps" if values else "the run does not log this")
        return values

    def last(self, series: Series) -> list[float]:
        """The values of the last window."""
        return [value for _, value in series[-self.bounds.window :]]

    def windows(self, series: Series) -> tuple[list[float], list[float]]:
        """Values of the first and of the last window, which do not overlap; a short run has smaller windows.

        Raises Unknown where they have fewer than two steps.
        """
        size = min(self.bounds.window, len(series) // 2)
        if size < 2:
            raise Unknown("too few steps")
        values = [value for _, value in series]
        return values[:size], values[-size:]

    @cached_property
    def last_groups(self) -> list[Groups]:
        """The training responses of the last window of steps."""
        return [self.groups[step] for step in sorted(self.groups)[-self.bounds.window :]]


def _warning_if(alarming: bool, evidence: str) -> Verdict:
    return Verdict("warning" if alarming else "ok", evidence)


def _changed(first: float, last: float, factor: float) -> bool:
    return last > factor * first or last * factor < first


def _numbers(run: Evidence) -> Verdict:
    broken = {
        name: step.step
        for step in run.steps
        for name, value in step.data.items()
        if name.startswith(("actor/", "critic/"))
        and (value is None or (isinstance(value, float) and not math.isfinite(value)))
    }
    if not broken:
        return Verdict("ok", f"every value of {counted(len(run.steps), 'step')} is finite")
    last = max(broken.values())
    recent = last >= run.steps[-run.bounds.window :][0].step
    return Verdict("failure" if recent else "warning", f"{', '.join(broken)}: not a number, last at step {last}")


def _entropy(run: Evidence) -> Verdict:
    series = run.series("actor/entropy")
    latest = fmean(value for _, value in series[-2:])
    if latest < run.bounds.entropy_collapse:
        return Verdict("failure", f"{number(latest)} nats a token over the last steps: entropy collapse")
    first, last = map(fmean, run.windows(series))
    alarming = _changed(first, last, run.bounds.entropy_change) or last < run.bounds.entropy_low
    return _warning_if(alarming, f"{number(first)} at first, {number(last)} now, nats a token")


def _kl(run: Evidence) -> Verdict:
    recipe = run.recipe
    terms = [term for term in (objective.kl_in_reward(recipe), objective.kl_in_loss(recipe)) if term] if recipe else []
    if recipe and not terms:
        preset = recipe.algorithm.preset
        if preset and algorithm(preset).values.get(objective.NO_KL):
            return Verdict("explained", f"{preset} has no KL term: the distance to the reference is not measured")
        return Verdict("warning", f"{objective.NO_KL} is true: nothing holds the policy near the reference")
    if terms and not any(term.coefficient > 0 for term in terms):
        return Verdict("warning", "the coefficient is 0: KL is measured and has no effect")
    in_loss = recipe is not None and objective.kl_in_loss(recipe)
    names = ("actor/kl_loss",) if in_loss else ("actor/reward_kl_penalty", "actor/kl_loss")
    if recipe and run.steps and not run.values(*names):
        return Verdict("warning", "KL is asked for, and no step logs it")
    series = run.series(*names)
    latest = fmean(value for _, value in series[-2:])
    if latest > run.bounds.kl:
        return Verdict("warning", f"{number(latest)} nats a token over the last steps, bound {run.bounds.kl:g}")
    size = len(run.windows(series)[1])
    before, now = (fmean(value for _, value in part) for part in (series[-2 * size : -size], series[-size:]))
    grows = now > run.bounds.kl / 5 and now > run.bounds.kl_growth * max(before, 0.0)
    evidence = f"{number(before)} in the window before, {number(now)} in the last, nats a token"
    if recipe and not in_loss:
        evidence += "; taken from the reward, so actor/kl_loss is absent or 0 by design"
    return _warning_if(grows, evidence)


def _grad_norm(run: Evidence) -> Verdict:
    series = run.series("actor/grad_norm")
    last, typical = run.last(series), median(value for _, value in series)
    if max(last) == 0 and run.last_groups and all(each.all_right == each.groups for each in run.last_groups):
        return Verdict("explained", "0, as it has to be: every response of the last steps is right")
    if max(last) == 0:
        return Verdict("failure", f"0 over the last {counted(len(last), 'step')}: no response has an advantage")
    spikes = [step for step, value in series[-run.bounds.window :] if value > run.bounds.grad_norm_spike * typical > 0]
    evidence = f"median {number(median(last))} over the last {len(last)} steps, {number(typical)} over all"
    evidence += f"; spike at step {', '.join(map(str, spikes))}" if spikes else ""
    return _warning_if(bool(spikes) or median(last) > run.bounds.grad_norm, evidence)


def _groups(run: Evidence) -> Verdict:
    last = run.last_groups
    if not last:
        highest, lowest = (run.last(run.series(f"critic/advantages/{end}")) for end in ("max", "min"))
        if highest == lowest:
            return Verdict("failure", f"all advantages are equal over the last {counted(len(highest), 'step')}")
        return Verdict("ok", "advantages differ; the share of groups is not known, since no rollouts were written")
    if len(last) < 2:
        raise Unknown("too few steps")
    count, zero_variance = sum(each.groups for each in last), sum(each.zero_variance for each in last)
    right = sum(each.all_right for each in last)
    evidence = (
        f"{zero_variance} of {count} groups have zero variance ({right} all right), over the last {len(last)} steps"
    )
    if right == count:
        return Verdict("explained", f"{evidence}: the task is solved, and nothing is left to learn from it")
    if zero_variance == count:
        return Verdict("failure", evidence)
    return _warning_if(zero_variance > run.bounds.zero_variance_groups * count, evidence)


def _clipping(run: Evidence) -> Verdict:
    last = fmean(run.last(run.series("actor/pg_clipfrac")))
    if last == 0 and run.recipe and is_on_policy(run.recipe):
        return Verdict("explained", "0, as it has to be: with one update a step the ratio is 1 and nothing is clipped")
    return _warning_if(last > run.bounds.clip_fraction, f"{number(last)} of the tokens")


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
    shares = [share for step in run.steps if (share := truncated(step, limit)) is not None]
    last = fmean(shares[-run.bounds.window :])
    return _warning_if(last > run.bounds.truncation, f"{number(last)} of the responses are truncated")


def _length(run: Evidence) -> Verdict:
    first, last = map(fmean, run.windows(run.series("response_length/mean")))
    return _warning_if(_changed(first, last, run.bounds.length_change), f"{first:.0f} tokens at first, {last:.0f} now")


def _rollout(run: Evidence) -> Verdict:
    # The mean of log p(vLLM) - log p(trainer) is not negative but for noise, so the size alone counts.
    worst = max(map(abs, run.last(run.series(rollout_mismatch.KL))))
    evidence = f"at most {number(worst)} nats a token over the last steps, bound {run.bounds.rollout_kl:g}"
    return Verdict("ok" if worst <= run.bounds.rollout_kl else "failure", evidence)


_SHARE_OF_GAIN = 0.1
"""A validation that gains less than this part of what the training score gains is counted as no gain."""


def _reward_and_validation(run: Evidence) -> Verdict:
    steps = sorted(run.validations)
    if len(steps) < 2:
        raise Unknown("fewer than two validations")
    last, measured = run.validations[steps[-1]], [run.validations[step] for step in steps]
    if all(each.error == 0 for each in measured):
        raise Unknown("every question has the same value in each validation")
    scores = [entry for entry in run.values("critic/score/mean") if entry[0] <= steps[-1]]
    before, now = map(fmean, run.windows(scores))
    gain = now - before
    best = max(measured, key=lambda each: each.value)
    falls = best.value - last.value > max(run.bounds.reward_gain, UNSURE * math.hypot(best.error, last.error))
    first = best if falls else measured[0]
    lag, noise = gain - (last.value - first.value), UNSURE * math.hypot(first.error, last.error)
    hollow = gain > run.bounds.reward_gain and lag > max((1 - _SHARE_OF_GAIN) * gain, noise)
    return _warning_if(
        falls or hollow,
        f"training score {number(before)} -> {number(now)}, validation {last.measure} {number(first.value)} -> "
        f"{number(last.value)} on {counted(last.groups, 'question')}, to step {steps[-1]}",
    )


def _step_time(run: Evidence) -> Verdict:
    """Validation and saving are left out, and so is the first step, which warms up."""
    times = [
        seconds - (step.get("timing_s/save_checkpoint") or 0.0)
        for step in run.steps[1:]
        if (seconds := step.get("timing_s/step")) is not None
    ]
    size = run.bounds.window  # and no smaller one, since the time of single steps jumps
    if len(times) < 2 * size:
        raise Unknown("too few steps")
    before, now = median(times[:size]), median(times[-size:])
    return _warning_if(now > run.bounds.step_time * before, f"{before:.1f} s at first, {now:.1f} s now")


def _silence(run: Evidence) -> Verdict:
    if run.silent_s is None:
        return Verdict("ok", "the run has ended")
    usual = median([step.get("timing_s/step") or 0.0 for step in run.steps] or [0.0])
    longest = max([step.get("timing_s/testing") or 0.0 for step in run.steps] or [0.0])
    allowed = max(120.0, run.bounds.silence * usual, 2 * longest)
    evidence = f"last sign of life {run.silent_s:.0f} s ago, usual for a step {usual:.0f} s"
    return Verdict("failure" if run.silent_s > allowed else "ok", evidence)


class Rule(NamedTuple):
    """A rule with what its warning usually means.

    Attributes:
        name: what messages call it.
        judge: gives status and evidence.
        healthy: range in a good run, as text.
        meaning: what a warning or failure usually means.
        advice: what to try.
    """

    name: str
    judge: Callable[[Evidence], Verdict]
    healthy: str
    meaning: str
    advice: str


RULES = (
    Rule(
        name="numbers",
        judge=_numbers,
        healthy="every value is finite",
        meaning="the update overflowed, or divided by an empty batch; the weights may be corrupt",
        advice="go back to a checkpoint before that step; lower LR, use bf16 or fp32 instead of fp16",
    ),
    Rule(
        name="entropy",
        judge=_entropy,
        healthy="steady or slightly rising, 0.2 to 0.3 for a 3 to 4 B model; below 0.01 it has collapsed",
        meaning="falling: entropy collapse, groups lose their variance; rising without end: noise",
        advice="lower LR, raise KL_COEF or clip_ratio_high, keep temperature 1; resume from an earlier checkpoint",
    ),
    Rule(
        name="KL",
        judge=_kl,
        healthy="rises slowly and levels off, 0.01 to 0.1",
        meaning="the policy drifts far from the reference, often reward hacking",
        advice="lower LR, raise KL_COEF; read the responses",
    ),
    Rule(
        name="grad-norm",
        judge=_grad_norm,
        healthy="0.05 to 0.2 for a 3 to 4 B model, up to 1 for a tiny one",
        meaning="spikes: LR too high, or most groups have zero variance; 0: all groups have zero variance",
        advice="lower LR, more prompts a step (ROLLOUT_BATCH_SIZE), max_grad_norm 1",
    ),
    Rule(
        name="groups",
        judge=_groups,
        healthy="less than half of the groups have zero variance",
        meaning="problems too easy or too hard for the model, or a reward that gives everything the same score",
        advice="probe the data (scripts/eval.py ... analyse), larger ROLLOUT_N, online_filtering; check the reward",
    ),
    Rule(
        name="clipping",
        judge=_clipping,
        healthy="0 with one update a step, below 0.1 otherwise",
        meaning="many updates on the same responses: the policy is far from the one that sampled",
        advice="fewer updates a step (larger GLOBAL_BATCH_SIZE), lower LR",
    ),
    Rule(
        name="truncation",
        judge=_truncation,
        healthy="below 0.1",
        meaning="over-long responses: the limit is short, or the policy does not stop; truncated responses score 0",
        advice="raise MAX_RESPONSE_LENGTH, or penalise length (overlong_buffer)",
    ),
    Rule(
        name="length",
        judge=_length,
        healthy="changes slowly",
        meaning="length bias: the reward or the loss favours long responses, or short ones",
        advice="read the responses; Dr.GRPO's loss_agg_mode, overlong_buffer",
    ),
    Rule(
        name="vLLM and trainer",
        judge=_rollout,
        healthy="rounding: below 0.01 in float32, below 0.02 in 16 bits",
        meaning="vLLM and the trainer have different policies: old weights, another image, another temperature",
        advice="see actor_rollout_ref.rollout.load_format and the keys below verl; compare with enforce_eager=true",
    ),
    Rule(
        name="reward and validation",
        judge=_reward_and_validation,
        healthy="both rise",
        meaning="reward hacking, or the policy overfits the training data",
        advice="read the responses with the highest scores; fix the reward; more data; trainer.keep_best",
    ),
    Rule(
        name="step time",
        judge=_step_time,
        healthy="steady, or growing with the responses",
        meaning="longer responses, memory that runs full, another program on the machine",
        advice="see which phase grows; gpu_memory_utilization, MAX_RESPONSE_LENGTH",
    ),
    Rule(
        name="silence",
        judge=_silence,
        healthy="a line or a step in every step's time",
        meaning="a hung worker or a very long response; the launcher's watchdog ends the run after WATCHDOG_MINUTES",
        advice="see the end of train.log",
    ),
)


class Finding(NamedTuple):
    """Verdict of one rule on a run."""

    rule: Rule
    status: Status
    evidence: str

    @property
    def alarming(self) -> bool:
        return self.status in ("warning", "failure")

    def line(self) -> str:
        """One line; of an alarm also what it usually means and what to try."""
        text = f"{self.rule.name}: {self.evidence}"
        return (
            f"{self.status}: {text} | usually: {self.rule.meaning} | try: {self.rule.advice}" if self.alarming else text
        )


def findings(run: Evidence) -> list[Finding]:
    """Return what every rule says, in the order of `RULES`."""
    found = []
    for rule in RULES:
        try:
            found.append(Finding(rule, *rule.judge(run)))
        except Unknown as unknown:
            found.append(Finding(rule, "unknown", str(unknown)))
    return found


def findings_of(run: Run, responses: Responses | None = None) -> list[Finding]:
    """Return what every rule says of a run's folder. Pass the same `Responses` again: they read files once."""
    written = responses or run.responses()
    steps = [step.step for step in run.history]
    groups, validations = written.training.among([step for step in steps if step]), written.validation.among(steps)
    return findings(Evidence(run.history, run.recipe, groups, validations, run.silent_s))


class Health:
    """Judges a run after each step: a line where a rule begins to object, and where it no longer does.

    Args:
        recipe: of the run.
        history: its steps up to the checkpoint that it goes on from.
        responses: those that it writes.
        log: prints a line to the user.
    """

    def __init__(
        self, recipe: Recipe, history: Sequence[Step], responses: Responses, log: Callable[[str], None]
    ) -> None:
        self._recipe, self._history, self._responses, self._log = recipe, list(history), responses, log
        self._known: dict[str, Status] = {}

    def add_step(self, step: Step) -> None:
        """Take in a step's metrics, and print what changed."""
        self._history.append(step)
        trained = [each.step for each in self._history if "timing_s/step" in each.data]
        validated = [each.step for each in self._history if mean_validation(each) is not None]
        groups = self._responses.training.among(trained[-4 * self._recipe.monitor.window :])
        evidence = Evidence(self._history, self._recipe, groups, self._responses.validation.among(validated))
        for finding in findings(evidence):
            name, before = finding.rule.name, self._known.get(finding.rule.name, "ok")
            self._known[name] = finding.status
            if finding.alarming and finding.status != before:
                self._log(finding.line())
            elif before in ("warning", "failure") and not finding.alarming:
                self._log(f"passed: {finding.rule.name}: {finding.evidence}")


def documented() -> str:
    """The rules as a table in Markdown, for docs/MONITORING.md."""
    rows = [(each.name, each.healthy, each.meaning, each.advice) for each in RULES]
    return markdown(("rule", "healthy", "what a warning usually means", "what to try"), rows)
