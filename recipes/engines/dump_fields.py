"""The fields of a dump: JSON Lines, one file `<step>.jsonl` a step, one response a line, the same for every engine.

| field | |
|---|---|
| `input`, `output` | prompt and response as text |
| `gts` | ground truth of the row |
| `score` | the number that training sees |
| `step` | of the trainer; 0 before the first update |
| `uid` | `<uid>_<session>_<index>`, drawn anew for each batch: responses with one `<uid>` are a group; verl only |
| `row_id` | `id` of the row (`recipes/data/rows.py`): the same question in every dump of every run |
| `data_source` | of the row |
| others | whatever else the reward returned: `accuracy`, `acc`, `reason`, ... |

verl writes the first six, `verl/trainer.py` adds the rest; `recipes/runs/responses.py` reads them. An engine without
`uid` writes `row_id`, and the responses to one row are a group.
"""

ROW_ID, DATA_SOURCE = "row_id", "data_source"
OWN = ("input", "output", "gts", "score", "step", "uid")
"""The trainer's own fields; a part of a reward's result with such a name is not written, as it would replace them."""
