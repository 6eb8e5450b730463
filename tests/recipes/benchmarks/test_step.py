"""The benchmark of a step: its arithmetic, and models with random weights that end as often as asked."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.benchmarks import shapes, step
from recipes.benchmarks.watching import Watched
from recipes.config import load
from recipes.errors import RecipeError
from recipes.monitor.metrics import Step


def metrics_at(number, seconds, **more):
    timings = {"gen": 2.0, "old_log_prob": 1e-3, "ref": 1.0, "update_actor": 4.0, "step": seconds}
    return Step(number, {f"timing_s/{name}": value for name, value in timings.items()} | more)


def test_utilisation_counts_the_model_and_the_gpus():
    steps = [
        Step(0, {"val-core/x": 1.0}),
        metrics_at(1, 100.0),
        *(
            metrics_at(number, 10.0, **{"perf/total_num_tokens": 1000, "actor/rollout_corr/kl": 1e-3})
            for number in (2, 3)
        ),
    ]
    found = step.measured("ours", 0, steps, parameters=1_000_000, gpus=2, rate=2e9)
    assert found.step_s == 10.0
    assert found.tokens_per_gpu_s == 50.0
    assert found.utilisation["update"] == pytest.approx(6 * 1e6 * 1000 / 4.0 / 2 / 2e9)
    assert found.utilisation["reference"] == pytest.approx(2 * 1e6 * 1000 / 1.0 / 2 / 2e9)
    assert "old log-probabilities" not in found.utilisation, "the trainer left the pass out"
    assert found.rollout_kl == 1e-3
    assert found.steps == 2
    alone = step.measured("other", 0, steps[2:], parameters=1, gpus=1, rate=1.0)
    rows = {row[0]: row[1:] for row in step.table([found, alone])}
    assert rows["tokens/s/GPU"] == ["50", "100"]
    assert rows["ours is faster by"] == ["1.00", "0.50"]
    with pytest.raises(RecipeError, match="completed no step"):
        step.measured("ours", 137, steps[:1], parameters=1, gpus=1, rate=1.0)


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """A pretended launcher that completes some steps, prints a line and ends with an exit code; its commands."""
    commands = []

    def build(steps, exit_code):
        def watch(command, *, environment, metrics, log, interval_s):
            commands.append(command)
            log.write_text("torch.OutOfMemoryError\n")
            more = {"perf/total_num_tokens": 1000}
            lines = [
                json.dumps(metrics_of._asdict())
                for metrics_of in (metrics_at(n + 1, 10.0, **more) for n in range(steps))
            ]
            metrics.write_text("".join(line + "\n" for line in lines))
            return Watched(exit_code=exit_code)

        monkeypatch.setattr(step, "watch", watch)
        return commands

    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    return build


SIZES = {"task": "countdown", "parameters": 1, "prompts": 32, "n": 8, "max_response": 64, "steps": 3, "gpus": 1}


def test_nothing_moves_between_the_steps_of_any_run(launcher, tmp_path):
    commands = launcher(3, 0)
    for name in step.VALUES:
        step.run(name, model=tmp_path / "model", rate=1.0, **SIZES)
    for command in commands:
        recipe = load("countdown", arguments=[word for word in command if "=" in word], environ={})
        weight = torch.nn.Parameter(torch.tensor([1e-3, 0.02, 1.0]))
        weight.grad = torch.ones(3)
        before = weight.detach().clone()
        torch.optim.AdamW([weight], lr=recipe.worker.actor.optim.lr).step()
        assert torch.equal(weight, before)


def test_a_run_that_fails_shows_its_end_and_the_steps_before(launcher, tmp_path, capsys):
    launcher(2, 143)
    found = step.run("ours", model=tmp_path / "model", rate=1.0, **SIZES)
    assert (found.steps, found.exit_code) == (1, 143)
    assert "ended with 143; its last lines:\ntorch.OutOfMemoryError" in capsys.readouterr().out
    assert step.table([found])[1] == ["steps counted", "1, then exit code 143"]
    launcher(0, 1)
    with pytest.raises(RecipeError, match=r"completed no step \(exit code 1\)"):
        step.run("ours", model=tmp_path / "model", rate=1.0, **SIZES)
    assert "torch.OutOfMemoryError" in capsys.readouterr().out


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
