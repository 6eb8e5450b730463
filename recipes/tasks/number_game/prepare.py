"""The number game's train and test files, from recorded episodes or from the hub, both or neither."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.tasks.number_game.episodes import Episode, Journal
from recipes.tasks.number_game.looks import tokens
from recipes.tasks.number_game.rows import row_gold_response, rows
from recipes.tasks.rewards import Score, gold_checked
from recipes.tasks.rows import Staged, publish, stage_split

SPLITS = ("train", "test")


@dataclass
class Counts:
    """What passed by: filled while rows stream to disk."""

    answers: Counter[str] = field(default_factory=Counter)
    cells: Counter[str] = field(default_factory=Counter)
    screens: Counter[str] = field(default_factory=Counter)
    deals: set[str] = field(default_factory=set)
    most_tokens: int = 0

    def over(self, passing: Iterable[dict]) -> Iterator[dict]:
        """Hand rows on and count them."""
        for row in passing:
            info = row["extra_info"]
            self.answers[row["answer"]] += 1
            self.screens[f"{info['width']}x{info['height']}"] += 1
            self.most_tokens = max(self.most_tokens, tokens(info["width"], info["height"]))
            if "deal" in info:
                self.cells[f"{info['light']} {row['answer']}"] += 1
                self.deals.add(info["deal"])
            yield row

    def facts(self) -> dict[str, Any]:
        """For the manifest: rows by answer, by light and answer, by screen; different deals; the largest image."""
        facts: dict[str, Any] = {"answers": dict(sorted(self.answers.items()))}
        if self.cells:
            facts |= {"light_and_answer": dict(sorted(self.cells.items())), "different_deals": len(self.deals)}
        return facts | {"screens": dict(sorted(self.screens.items())), "most_image_tokens": self.most_tokens}


def from_journal(journal: Journal, episodes: dict[str, list[Episode]]) -> dict[str, Callable[[], Iterator[dict]]]:
    """For `prepare`: the rows of each split's episodes, which the journal must hold."""
    return {split: lambda split=split: rows(journal.rounds(episodes[split]), split) for split in SPLITS}


def prepare(
    sources: dict[str, Callable[[], Iterable[dict]]],
    folder: Path,
    *,
    score: Score,
    manifest: dict[str, Any],
    dropped: dict[str, Counter[str]] | None = None,
    force: bool,
) -> list[dict[str, Any]]:
    """Write `train.parquet` and `test.parquet` with their manifests into `folder`.

    Args:
        sources: for each split a function that makes its rows.
        score: the reward under which every gold answer must earn 1.0.
        manifest: facts about the source; counts are added.
        dropped: for each split what was left out and why, complete once its rows were made.

    Returns:
        The manifests, each with its `status` (see `recipes.tasks.rows.publish`).
    """
    staged: list[Staged] = []
    counts = {split: Counts() for split in SPLITS}
    try:
        for split in SPLITS:
            passing = counts[split].over(gold_checked(sources[split](), score, row_gold_response))
            head = {"task": "number_game", "split": split, **manifest}
            found = stage_split(folder / f"{split}.parquet", passing, manifest=head)
            more = {"counts": counts[split].facts(), "dropped": dict((dropped or {}).get(split, {}))}
            staged.append(found._replace(manifest=found.manifest | more))
        shared = counts["train"].deals & counts["test"].deals
        if shared:
            raise RecipeError(f"train and test share the deal {min(shared)}", where=str(folder), fix="report this bug")
        return publish(staged, force=force)
    finally:
        for split in staged:
            split.draft.unlink(missing_ok=True)
