"""The samples of a report: a question with the answers that tell most about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipes.evaluation.passes import Scored
from recipes.evaluation.questions import Question

MOST_ANSWERS = 4
LONGEST_TEXT = 20_000


def outcome_of(kind: str, scored: Mapping[str, Scored]) -> tuple[str, tuple[str, ...]]:
    """What a question is filtered by: its outcome and its reason codes.

    The outcome is "all right", "mixed" or "all wrong" for the signal probe; "right" or "wrong" under greedy decoding
    for one model; "won", "lost", "both right" or "both wrong" under greedy decoding for two.
    """
    if kind == "analyse":
        stats = scored["model_sampled"].stats
        return stats.outcome, tuple(sorted(stats.reasons))
    if kind == "evaluation":
        score = scored["model_greedy"].scores[0]
        return ("right" if score.full else "wrong"), (score.reason,)
    base, trained = scored["base_greedy"].scores[0], scored["trained_greedy"].scores[0]
    if base.full == trained.full:
        outcome = "both right" if base.full else "both wrong"
    else:
        outcome = "won" if trained.full else "lost"
    return outcome, (base.reason, trained.reason)


def sample_entry(kind: str, question: Question, scored: Mapping[str, Scored]) -> dict[str, Any]:
    """One question as the report's table shows it; texts are raw, and escaped where they are rendered."""
    outcome, _ = outcome_of(kind, scored)
    if kind == "analyse":
        answers = _varied("", scored["model_sampled"], MOST_ANSWERS)
    elif kind == "evaluation":
        answers = _varied("greedy", scored["model_greedy"], 1) + _varied("sampled", scored["model_sampled"], 2)
    else:
        answers = _varied("base", scored["base_greedy"], 1) + _varied("trained", scored["trained_greedy"], 1)
    return {
        "row": question.row,
        "outcome": outcome,
        "reasons": sorted({answer["reason"] for answer in answers}),
        "flags": sorted({flag for answer in answers for flag in answer["flags"]}),
        "prompt": question.text,
        "ground_truth": question.ground_truth,
        "groups": [_group_line(key, one) for key, one in scored.items() if one.stats.n > 1],
        "answers": answers,
    }


def _group_line(key: str, scored: Scored) -> dict[str, Any]:
    stats = scored.stats
    label = key.removesuffix("_sampled").removeprefix("model")
    return {"who": label, "right": stats.full_marks, "n": stats.n, "score": stats.mean_score}


def _varied(who: str, scored: Scored, most: int) -> list[dict[str, Any]]:
    """The first answer of each reason, then the first ones of all, `most` together, in the order of sampling."""
    first_of_reason: dict[str, int] = {}
    for number, score in enumerate(scored.scores):
        first_of_reason.setdefault(score.reason, number)
    order = [*first_of_reason.values(), *(n for n in range(len(scored.scores)) if n not in first_of_reason.values())]
    return [_answer(who, scored, number) for number in sorted(order[:most])]


def _answer(who: str, scored: Scored, number: int) -> dict[str, Any]:
    response, score = scored.group.responses[number], scored.scores[number]
    cut = len(response.text) - LONGEST_TEXT
    return {
        "who": who or f"answer {number + 1}",
        "text": response.text[:LONGEST_TEXT] + (f"\n[... {cut} more characters]" if cut > 0 else ""),
        "score": score.value,
        "full": score.full,
        "reason": score.reason,
        "tokens": response.tokens,
        "truncated": response.truncated,
        "flags": scored.flags[number],
    }
