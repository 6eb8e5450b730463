"""The generated data stays as it is."""

import hashlib
import json

from recipes.tasks.countdown import problems as countdown
from recipes.tasks.gsm8k import problems as gsm8k


def test_the_tiny_presets_have_the_problems_of_the_published_runs():
    tiny = countdown.generated(countdown.PRESETS["tiny"], seed=0)
    for splits, digest in ((tiny, "a8e517499c39d6f9"), (gsm8k.generated(seed=0), "1af4f9b8a26de58c")):
        found = hashlib.sha256()
        for split in splits:
            for row in split.rows:
                found.update(json.dumps([row["prompt"], row["answer"]]).encode())
        assert found.hexdigest()[:16] == digest
