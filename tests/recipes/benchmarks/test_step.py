"""The benchmark of a step: its arithmetic, and models with random weights that end as often as asked."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.benchmarks import shapes, step
from recipes.errors import RecipeError
from recipes.monitor.metrics import Step


def metrics(number, seconds, **more):
    timings = {"gen": 2.0, "old_log_prob": 1.0, "ref": 1.0, "update_actor": 4.0, "step": seconds}
    return Step(number, {f"timing_s/{name}": value for name, value in timings.items()} | more)


def test_utilisation_counts_the_model_and_the_gpus():
    steps = [
        Step(0, {"val-core/x": 1.0}),
        metrics(1, 100.0),
        *(metrics(number, 10.0, **{"perf/total_num_tokens": 1000, "rollout_corr/kl": 1e-3}) for number in (2, 3)),
    ]
    found = step.measured("ours", 0, steps, parameters=1_000_000, gpus=2, rate=1e9)
    assert found.step_s == 10.0
    assert found.tokens_per_gpu_s == 50.0
    assert found.utilisation["update"] == pytest.approx(6 * 1e6 * 1000 / 4.0 / 2 / 1e9)
    assert found.utilisation["reference"] == pytest.approx(2 * 1e6 * 1000 / 1.0 / 2 / 1e9)
    alone = step.measured("other", 0, steps[2:], parameters=1, gpus=1, rate=1.0)
    rows = {row[0]: row[1:] for row in step.table([found, alone])}
    assert rows["tokens/s/GPU"] == ["50", "100"]
    assert rows["ours is faster by"] == ["1.00", "0.50"]
    with pytest.raises(RecipeError, match="completed no step"):
        step.measured("ours", 137, steps[:1], parameters=1, gpus=1, rate=1.0)


def test_random_weights_end_as_often_as_asked(tmp_path):
    shapes.build("tiny", tmp_path, ["Use 3 and 4 to make 12."], mean_tokens=40, device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert len(tokenizer) == model.config.vocab_size == shapes.SHAPES["tiny"]["vocab_size"]
    assert shapes.parameters(tmp_path) == sum(weight.numel() for weight in model.parameters())
    torch.manual_seed(1)
    logits = model(input_ids=torch.randint(0, 1024, (8, 64))).logits
    ends = torch.softmax(logits, -1)[..., tokenizer.eos_token_id]
    assert ends.mean().item() == pytest.approx(1 / 40, rel=0.2)
    assert ends.std().item() < 0.01
    with pytest.raises(RecipeError, match="unknown shape"):
        shapes.build("gpt", tmp_path, [], mean_tokens=40, device="cpu")
