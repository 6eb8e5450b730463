"""Generating and scoring the responses of one model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.evaluation.cache import responses_for
from recipes.evaluation.models import Subject
from recipes.evaluation.questions import Question
from recipes.evaluation.records import Group, JsonLines, ResponseFile, check_group
from recipes.evaluation.sampling import Sampler, Sampling
from recipes.evaluation.sampling.vllm_engine import Engine
from recipes.evaluation.scoring import Reward, Score
from recipes.evaluation.statistics import Collector, QuestionStats, question_stats
from recipes.evaluation.suspicious import RULES, SAME_ANSWER, SameAnswer, flags


class CompletionLog:
    """Sorts responses into success (full marks) and fail, and lists suspicious ones in `<name>_suspicious.jsonl`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._files = {kind: JsonLines(folder / f"{name}_{kind}.jsonl") for kind in ("success", "fail", "suspicious")}
        self._flags: Counter[str] = Counter()
        self._same = SameAnswer()

    def add_group(
        self, shared: dict[str, Any], records: list[dict[str, Any]], scores: list[Score], raised: list[list[str]]
    ) -> None:
        """Write one question's responses.

        `shared` is what all have in common and holds `ground_truth`; each record holds `response`; `raised` are the
        suspicious flags of each response.
        """
        for record, score, names in zip(records, scores, raised, strict=True):
            line = shared | record | {"score": score.value, "accuracy": score.accuracy, "reason": score.reason}
            line |= {"parts": score.parts, "suspicious": names}
            self._files["success" if score.full else "fail"].write(line)
            if names:
                self._files["suspicious"].write(line)
            self._flags.update(names)
        rewarded = [record["response"] for record, score in zip(records, scores, strict=True) if score.value > 0]
        self._same.add(shared["ground_truth"], rewarded)

    def close(self) -> dict[str, Any]:
        """Finish the files; `success` and `fail` count responses, `flags` each rule, `same_answer` lists answers."""
        for file in self._files.values():
            file.close()
        same = self._same.found()
        counts = {rule: self._flags[rule] for rule in RULES} | {SAME_ANSWER: len(same)}
        totals = {kind: self._files[kind].count for kind in ("success", "fail", "suspicious")}
        return totals | {"flags": counts, "same_answer": same}


def fill(
    store: ResponseFile,
    questions: Sequence[Question],
    sampling: Sampling,
    sampler: Callable[[], Sampler],
    advance: Callable[[int], None] = lambda count: None,
) -> int:
    """Generate the groups that `store` lacks; returns how many. `sampler` is called only if there are any.

    Args:
        advance: told of each number of questions that became ready, beginning with those from the cache.

    Raises:
        RecipeError: generation failed; what was finished stays in the store, so that the same command resumes.
    """
    missing = [question for question in questions if question.row not in store]
    advance(len(questions) - len(missing))
    if not missing:
        return 0
    store.open_for_append()
    done = 0
    try:
        for group in sampler().generate(missing, sampling):
            check_group(group, sampling.n)
            store.append(group)
            done += 1
            advance(1)
    except RecipeError as error:
        raise _with_hint(error, store, len(questions) - len(missing) + done, len(questions)) from error
    if done < len(missing):
        raise RecipeError(f"the generator stopped after {done} of {len(missing)} questions", where=str(store.path))
    return done


def _with_hint(error: RecipeError, store: ResponseFile, ready: int, total: int) -> RecipeError:
    if not ready:
        return error
    hint = f"{ready} of {total} questions are kept in {store.path}: the same command goes on from there"
    return RecipeError(error.what, where=error.where, fix=f"{error.fix}; {hint}" if error.fix else hint)


@dataclass(frozen=True)
class Scored:
    """One question's responses with scores, figures and raised flags (one list per response)."""

    group: Group
    scores: list[Score]
    stats: QuestionStats
    flags: list[list[str]]


class Pass:
    """`name` is "greedy" or "sampled"; `key` names it in files, such as "trained_greedy"."""

    def __init__(self, subject: Subject, name: str, sampling: Sampling, data_hash: str, engine: Engine) -> None:
        self.subject, self.name, self.sampling = subject, name, sampling
        self.key = f"{subject.label}_{name}"
        generator = engine.generator if subject.generator == "vllm" else subject.generator
        self.store = responses_for(subject.model_hash, data_hash, sampling, generator)
        self.collector = Collector(sampling.n, sampling.max_tokens)
        self._log: CompletionLog | None = None

    def forget(self) -> None:
        """Throw the cached responses away."""
        self.store.close()
        self.store.path.unlink(missing_ok=True)
        self.store = type(self.store)(self.store.path)

    def open_log(self, folder: Path) -> None:
        """Begin the completion log in `folder`."""
        self._log = CompletionLog(folder, self.key)

    def scored(self, question: Question, reward: Reward) -> Scored:
        """Read and score one question's responses, without adding them up."""
        group = self.store.read(question.row)
        scores = [reward.score(question, response.text) for response in group.responses]
        raised = [
            flags(each.text, question.ground_truth, score) for each, score in zip(group.responses, scores, strict=True)
        ]
        return Scored(group, scores, question_stats(question.row, group.responses, scores), raised)

    def take(self, question: Question, reward: Reward) -> Scored:
        """Score one question, add it to the collector and to the log."""
        scored = self.scored(question, reward)
        self.collector.add(scored.stats, scored.group.responses, scored.scores)
        if self._log is None:
            return scored
        shared = {
            "row": question.row,
            "data_source": question.data_source,
            "prompt": question.text,
            "ground_truth": question.ground_truth,
        }
        records = [
            {"sample": number, "response": response.text, "tokens": response.tokens, "truncated": response.truncated}
            for number, response in enumerate(scored.group.responses)
        ]
        self._log.add_group(shared, records, scored.scores, scored.flags)
        return scored

    def finish(self, seed: int) -> dict[str, Any]:
        """The pass as the report holds it."""
        logs = None if self._log is None else self._log.close()
        return {"sampling": asdict(self.sampling), **self.collector.summary(seed), "completions": logs}


def draw(
    passes: Sequence[Pass], questions: Sequence[Question], engine: Engine, advance: Callable[[int], None]
) -> dict[str, int]:
    """Fill the caches of one subject's passes with one generator; returns how many questions each pass had to ask."""
    sampler: Sampler | None = None

    def start() -> Sampler:
        nonlocal sampler
        if sampler is None:
            longest = max(each.sampling.max_tokens for each in passes)
            sampler = passes[0].subject.start(questions, longest, engine)
        return sampler

    try:
        return {each.key: fill(each.store, questions, each.sampling, start, advance) for each in passes}
    finally:
        if sampler is not None:
            sampler.close()
        for each in passes:
            each.store.close()
