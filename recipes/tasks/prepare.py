"""The data of a task, written whole: every solution earns 1.0 under the task's reward, and splits share no problem."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from recipes.data.manifests import Manifest
from recipes.data.rows import CountedBy, Dropped, Row, Split, write_data
from recipes.engines.worked_answers import last_text
from recipes.errors import RecipeError, counted
from recipes.paths import command_line
from recipes.progress_bar import progress_bar
from recipes.rewards.loading import load_reward


def require_full_marks(row: Row, score: Callable[..., Any]) -> None:
    """Raise RecipeError, with the reward's own reason, where a row's `extra_info.solution` does not score 1.0."""
    truth, info = row["reward_model"]["ground_truth"], row["extra_info"]
    solution = last_text(info["solution"])
    result = score(row["data_source"], solution, truth, info)
    parts = result if isinstance(result, dict) else {"score": result}
    if parts["score"] != 1.0:
        reason = parts.get("reason", "no reason given")
        raise RecipeError(
            f"the solution of {info['split']} row {info['index']} scores {parts['score']}, not 1.0 ({reason})",
            where=f"ground truth {truth!r}, solution {solution[-200:]!r}",
            fix="mend the row or the reward; a reward that denies the gold answer teaches the wrong thing",
        )


def prepare(
    task: str,
    splits: Iterable[Split],
    folder: Path,
    *,
    problem: Callable[[Row], Hashable] = lambda row: row["problem"],
    once: bool = False,
    counted_by: CountedBy = lambda row: {},
    force: bool = False,
) -> list[Manifest]:
    """Write the splits of a task into `folder`, all or none, and print what was written.

    Args:
        task: every row's `extra_info.solution` must earn 1.0 under its reward, `reward_functions/<task>.py`.
        problem: row -> key of its problem; no key may be in two splits.
        once: forbid a key to occur twice within one split, too.
        counted_by: row -> {table: value}, for the manifest's counts.
        force: replace files that hold other data.

    Raises:
        RecipeError: a solution that does not score 1.0, a repeated problem, other data without `force`.
    """
    command = command_line()
    score = load_reward(f"reward_functions/{task}.py:compute_score").compute_score
    split_of: dict[Hashable, str] = {}

    def passed(split: Split, advance: Callable[[], None]) -> Iterator[Row | Dropped]:
        for row in split.rows:
            if isinstance(row, Dropped):
                yield row
                continue
            advance()
            require_full_marks(row, score)
            key = problem(row)
            other = split_of.get(key, split.name)
            if other != split.name or (once and key in split_of):
                what = f"{split.name} row {row['extra_info']['index']} repeats the problem of a row of {other}"
                raise RecipeError(what, where=str(key)[:80], fix="remove one of the two")
            split_of[key] = split.name
            yield row

    def checked() -> Iterator[Split]:
        with progress_bar() as progress:
            for split in splits:
                facts = {"task": task, "split": split.name, "command": command, **split.facts}
                bar = progress.add_task(split.name, total=split.size)
                rows = passed(split, partial(progress.advance, bar))
                yield split._replace(rows=rows, facts=facts, counted_by=counted_by)

    manifests, status = write_data(folder, checked(), force=force)
    for manifest in manifests:
        dropped = ", ".join(f"{name} {count:,}" for name, count in manifest.dropped.items() if count)
        facts = f"{counted(manifest.rows, 'row')}, {status}, SHA-256 {manifest.sha256[:16]}"
        print(f"{folder / manifest.file}: {facts}{dropped and f'; dropped: {dropped}'}")
    return manifests
