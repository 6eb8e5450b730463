"""The lines of a dump of responses, which a run writes in training and validation.

A dump is JSON Lines, one file `<step>.jsonl` a step, the same for every engine. A line has `DUMPED`, `ROW_ID`,
`DATA_SOURCE`, and the reward's parts, except parts with one of these names.
"""

COLUMN = "id"
"""Column of the data with a row's id."""
ROW_ID, DATA_SOURCE = "row_id", "data_source"
"""Fields of a line: the id of its row, which is the same in every run, and the data source of its row."""
DUMPED = ("input", "output", "gts", "score", "step", "uid")
"""What verl writes of a response: prompt, response, the row's ground truth, the score that training uses, the trainer's
step (0 before the first update), and `<uid>_<session>_<index>`. `<uid>` is drawn anew for each batch; responses that
share it are a group."""
