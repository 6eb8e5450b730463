"""From a plan to a folder with the report: the signal probe, one model, or base against trained."""

import json
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from recipes import paths
from recipes.dumps import ROW_ID
from recipes.errors import RecipeError
from recipes.evaluation.cache import ResponseFile, responses_for
from recipes.evaluation.models import EvaluatedModel
from recipes.evaluation.plan import EvaluationPlan, target_folder
from recipes.evaluation.questions import Question, load_questions, with_images
from recipes.evaluation.report import ModelResult, Result, Samples, draw_all, html_page
from recipes.evaluation.scoring import Reward
from recipes.evaluation.verdicts import compare, headline_of_one, probe, write_filtered
from recipes.files import whole_folder, write_whole
from recipes.progress_bar import progress_bar
from recipes.responses.measures import Measures, Sampling, ScoredResponse


@dataclass(frozen=True)
class Pass:
    """One model under one sampling, "greedy" or "sampled", with its answers and its figures."""

    subject: EvaluatedModel
    name: str
    sampling: Sampling
    file: ResponseFile
    measures: Measures

    @property
    def key(self) -> str:
        """The pass's name in files and figures, such as "trained_greedy"."""
        return f"{self.subject.label}_{self.name}"


def passes_of(plan: EvaluationPlan) -> list[Pass]:
    """The passes of a plan; two with equal sampling (`--temperature 0 --rollout_n 1`) share one file of responses."""
    passes: list[Pass] = []
    files: dict[Path, ResponseFile] = {}
    for subject in plan.subjects:
        for name, sampling in (("greedy", plan.greedy), ("sampled", plan.sampled)):
            if sampling is not None:
                generator = subject.generator(plan.engine)
                file = responses_for(subject.model_hash, plan.prompts_hash, sampling, generator)
                file = files.setdefault(file.path, file)
                passes.append(Pass(subject, name, sampling, file, Measures(sampling)))
    return passes


def run(plan: EvaluationPlan) -> tuple[Result, Path]:
    """Generate missing responses, score and judge them; write `filter_out` if asked for, and the report's folder.

    Returns the result and the folder, which is written whole or not at all.
    """
    questions = load_questions(plan.data, plan.options.limit, plan.read)
    identity = plan.identity(len(questions))
    target = target_folder(plan, identity)
    passes = passes_of(plan)
    if plan.options.fresh:
        for each in passes:
            each.file.forget()
    _generate(plan, passes, questions)
    judged = _judge(plan.reward, passes, questions)
    questions = [question for question in questions if question.row in judged]
    if not questions:
        what = f"every prompt has more tokens than data.max_prompt_length, {plan.engine.prompt_tokens}"
        raise RecipeError(what, where=str(plan.data), fix="raise data.max_prompt_length")
    with whole_folder(target, "--output_dir") as folder:
        samples = Samples(plan.kind, plan.samples)
        _collect(passes, questions, judged, folder, samples)
        for each in passes:
            if each.measures.failures == sum(each.measures.sizes):  # its figures would say nothing of the model
                what = f"the reward judged none of the responses of {each.key}: {each.measures.first_failure}"
                fix = "mend it; the responses are kept, and the same command scores them again"
                raise RecipeError(what, where="the reward", fix=fix)
        result = _result(plan, identity, passes, questions, target)
        figures = draw_all({each.subject.label: each.measures for each in passes if each.name == "sampled"})
        text = json.dumps(asdict(result), indent=2, ensure_ascii=False, allow_nan=False)
        write_whole(folder / "report.json", text + "\n")
        write_whole(folder / "report.html", html_page(result, samples.entries(plan.data, questions), figures))
    return result, target


def _generate(plan: EvaluationPlan, passes: Sequence[Pass], questions: Sequence[Question]) -> None:
    """Fill the caches, one model after the other; a model is loaded alone, and only if it has answers to generate."""
    longest = max(each.sampling.max_tokens for each in passes)
    for subject in plan.subjects:
        mine = [each for each in passes if each.subject is subject]
        files = {each.file.path: each.file for each in mine if each.file.missing(questions)}
        if not files:
            continue
        with ExitStack() as stack:
            for file in files.values():
                stack.enter_context(file.for_writing())
            count = sum(len(file.missing(questions)) for file in files.values())
            bars = stack.enter_context(progress_bar())
            bar = bars.add_task(f"generate: {subject.name}", total=count)
            sampler = stack.enter_context(closing(subject.start(questions, longest, plan.engine, plan.data)))
            for each in mine:
                stream = with_images(plan.data, each.file.missing(questions))
                try:
                    for group in sampler.generate(stream, each.sampling):
                        each.file.append(group)
                        bars.advance(bar)
                except RecipeError as error:
                    ready = len(questions) - len(each.file.missing(questions))
                    hint = f"{ready} of {len(questions)} questions are answered: the same command goes on from there"
                    raise RecipeError(error.what, where=error.where, fix=f"{error.fix}; {hint}") from error


Judged = dict[int, dict[str, list[ScoredResponse]]]
"""Row of each question that was asked -> the scores of its responses by pass."""


def _judge(reward: Reward, passes: Sequence[Pass], questions: Sequence[Question]) -> Judged:
    judged: Judged = {}
    with progress_bar() as bars:
        for question in bars.track(questions, description="score"):
            answers = {each.key: each.file.read(question.row).responses for each in passes}
            if all(answers.values()):  # it has none where its prompt is longer than those of training
                judged[question.row] = {key: reward.score(question, responses) for key, responses in answers.items()}
    every = [each for passed in judged.values() for scored in passed.values() for each in scored]
    # A failed response has 0 here, which is the best of negative scores: it counts as the worst of all passes.
    lowest = min((each.score for each in every), default=0.0)
    worst = 0.0 if any(each.accuracy is not None for each in every if not each.failure) else None
    for passed in judged.values():
        for key, scored in passed.items():
            passed[key] = [replace(each, score=lowest, accuracy=worst) if each.failure else each for each in scored]
    return judged


def _collect(
    passes: Sequence[Pass], questions: Sequence[Question], judged: Judged, folder: Path, samples: Samples
) -> None:
    """Add every response to its measures, to the logs, and to the samples if it is picked."""
    (folder / "completions").mkdir()
    with ExitStack() as stack:
        files = [folder / "questions.jsonl", *(folder / "completions" / f"{each.key}.jsonl" for each in passes)]
        table, *logs = [stack.enter_context(file.open("w", encoding="utf-8")) for file in files]
        for question in questions:
            passed = judged[question.row]
            scored: dict[str, list[ScoredResponse]] = {}
            figures = {}
            for each, log in zip(passes, logs, strict=True):
                responses = each.file.read(question.row).responses
                figures[each.key] = each.measures.add(passed[each.key], question.key)
                scored[each.key] = []
                for number, (response, score) in enumerate(zip(responses, passed[each.key], strict=True)):
                    scored[each.key].append(replace(score, text=response.shown))
                    record = {
                        "row": question.row,
                        ROW_ID: question.id or None,
                        "images": question.image_count,
                        "data_source": question.data_source,
                        "sample": number,
                        "tokens": response.tokens,
                        "truncated": response.truncated,
                        "prompt": question.text,
                        "ground_truth": question.ground_truth,
                        "response": response.text,
                        "score": score.score,
                        "accuracy": score.accuracy,
                        "reason": score.reason,
                        "parts": score.parts,
                        "failure": score.failure,
                    }
                    _write_line(log, {**record, **(response.conversation or {})})
            _write_line(table, {"row": question.row, "passes": figures})
            samples.add(question, scored)


def _write_line(file: TextIO, record: dict[str, Any]) -> None:
    """Write one record of JSON lines; NaN and infinity are refused, since JSON has neither."""
    print(json.dumps(record, ensure_ascii=False, allow_nan=False), file=file)


def _result(
    plan: EvaluationPlan, identity: dict[str, Any], passes: Sequence[Pass], questions: Sequence[Question], target: Path
) -> Result:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    models = {
        subject.label: ModelResult(
            name=subject.name,
            hash=subject.model_hash,
            generator=subject.generator(plan.engine),
            source=subject.address,
            note=subject.note,
            passes={each.name: each.measures.summary for each in passes if each.subject is subject},
        )
        for subject in plan.subjects
    }
    judged = compared = filtered = None
    if plan.kind == "analyse":
        judged = probe(models["model"].passes["sampled"], plan.batch)
        headline = judged.recommendation
    elif plan.kind == "comparison":
        compared = compare({each.key: each.measures for each in passes}, [question.row for question in questions])
        headline = compared.headline
    else:
        headline = headline_of_one(models["model"].passes, plan.sampled.n)
    if plan.options.filter_out is not None:
        decided_by = {"report": str(target), **identity}
        plan.check_filter_out()
        filtered = write_filtered(plan.data, plan.options.filter_out, questions, passes[0].measures, decided_by)
    return Result(
        kind=plan.kind,
        task=plan.task,
        identity=identity,
        made_by={"command": paths.command_line(), "commit": paths.git_commit(), "time": now},
        models=models,
        headline=headline,
        probe=judged,
        comparison=compared,
        filtered=filtered,
    )
