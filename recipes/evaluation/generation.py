"""Draws what the cache lacks, and keeps whatever was drawn when something goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from recipes.errors import RecipeError
from recipes.evaluation.questions import Question
from recipes.evaluation.records import ResponseFile, check_group
from recipes.evaluation.sampling import Sampler, Sampling


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
