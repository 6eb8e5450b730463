"""Recorded rounds as rows of both engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from recipes.tasks.number_game.episodes import Round
from recipes.tasks.number_game.pixels import size
from recipes.tasks.number_game.prompt import ABILITY, DATA_SOURCE, PROMPT, gold_response
from recipes.tasks.rows import make_row


def rows(rounds: Iterable[Round], split: str) -> Iterator[dict[str, Any]]:
    """One row for each round; `extra_info` has the state, the look, and where in which episode the round stood."""
    for index, each in enumerate(rounds):
        deal, episode = each.deal, each.episode
        width, height = size(each.image)
        yield make_row(
            data_source=DATA_SOURCE,
            prompt=PROMPT,
            ground_truth=str(deal.answer),
            ability=ABILITY,
            images=[each.image],
            extra_info={
                "split": split,
                "index": index,
                "deal": deal.code,
                "light": deal.light,
                "digits": list(deal.digits),
                "answer": deal.answer,
                "score": each.score,
                "episode": episode.number,
                "round": each.index,
                "rounds": len(episode.deals),
                "source": each.source,
                "width": width,
                "height": height,
                **episode.look.facts(),
            },
        )


def row_gold_response(row: dict[str, Any]) -> str:
    """The response that a row's answer stands for."""
    return gold_response(int(row["answer"]))
