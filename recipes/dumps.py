"""The lines of a dump of responses, which a run writes in training and validation.

A dump is JSON Lines, one file `<step>.jsonl` a step, the same for every engine. A line has `DUMPED`, `ROW_ID`,
`DATA_SOURCE`, and the reward's parts, except parts with one of these names.
"""

from collections.abc import Iterable, Mapping
from typing import Any

COLUMN = "id"
"""Column of the data with a row's id."""
ROW_ID, DATA_SOURCE = "row_id", "data_source"
"""Fields of a line: the id of its row, which is the same in every run, and the data source of its row."""
CONVERSATION = "conversation"
"""Key under which a loop with tools hands a response on: `turns`, a list of role, content and, of a tool's,
failed; `model_turns`; `tool_calls`, those that were run, and `failed_calls`; `ended`, which is "answer", "length" or
"turns"; and `last_text`, the model's last turn without calls. All but the last are fields of a line too."""
TURNS, ENDED = "turns", "ended"
DUMPED = ("input", "output", "gts", "score", "step", "uid")
"""Fields that verl writes of a response: prompt, response, the row's ground truth, the score that training uses, the
trainer's step (0 before the first update), and `<uid>_<session>_<index>`. `<uid>` is drawn anew for each batch;
responses that share it are a group."""


def as_text(turns: Iterable[Mapping[str, Any]]) -> str:
    """The turns of a conversation for a reader; what a tool wrote is marked as not the model's."""
    return "\n".join(
        turn["content"]
        if turn["role"] == "assistant"
        else f"[{turn['role']}, not the model{', failed' if turn.get('failed') else ''}: {turn['content']}]"
        for turn in turns
    )
