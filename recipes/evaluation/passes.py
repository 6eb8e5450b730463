"""One pass over the questions: a subject under one sampling, generated through the cache, scored and added up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recipes.evaluation.cache import responses_for
from recipes.evaluation.completions import CompletionLog
from recipes.evaluation.generation import fill
from recipes.evaluation.metrics import QuestionStats, question_stats
from recipes.evaluation.questions import Question
from recipes.evaluation.records import Group
from recipes.evaluation.sampling import Sampler, Sampling
from recipes.evaluation.sampling.vllm_engine import Engine
from recipes.evaluation.scoring import Reward, Score
from recipes.evaluation.subjects import Subject
from recipes.evaluation.summary import Collector
from recipes.evaluation.suspicious import flags


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
