"""What verl's trainer writes of a validation."""

from concurrent.futures import ThreadPoolExecutor

from recipes.engines.verl import trainer
from recipes.responses.files import read_responses


def test_no_part_of_a_reward_takes_the_place_of_prompt_response_truth_or_score(tmp_path):
    verls = object.__new__(trainer.Trainer)
    verls._results, verls.global_steps, verls._dump_futures = {}, 3, []
    verls._dump_executor = ThreadPoolExecutor(1)
    keys = ["a_0_0", "b_0_0"]
    trainer._known.update({"a": {"row_id": "r0"}, "b": {"row_id": "r1"}})
    parts = {"input": ["stdin"] * 2, "output": ["42"] * 2, "gts": ["tests"] * 2, "score": [1.0] * 2, "length": [7, 8]}
    texts = (["what?", "who?"], ["this", "they"], ["truth", "none"])
    verls._dump_generations(*texts, [0.4, 0.2], {**parts, "uid": keys}, str(tmp_path))
    verls._dump_executor.shutdown()
    responses = read_responses(tmp_path / "3.jsonl").responses
    assert [(each.prompt, each.text, each.truth) for each in responses] == list(zip(*texts, strict=True))
    assert [(each.score, each.row_id) for each in responses] == [(0.4, "r0"), (0.2, "r1")]
    assert '"length": 8' in (tmp_path / "3.jsonl").read_text()
