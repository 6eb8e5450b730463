"""The benchmark of a step: arithmetic, runs that fail, and random weights that end as often as asked."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from recipes.config import load
from recipes.runs.metrics import Step
from tools.benchmarks import shapes, step

WORK = step.Workload("countdown", Path("model"), 1, 1.0, prompts=32, n=8, max_response=64, steps=3, gpus=1)


def metrics_at(number, seconds, **more):
    timings = {"gen": 2.0, "old_log_prob": 1e-3, "ref": 1.0, "update_actor": 4.0, "step": seconds}
    return Step(number, {f"timing_s/{name}": value for name, value in timings.items()} | more)


def test_utilisation_counts_the_model_and_the_gpus():
    more = {"perf/total_num_tokens": 1000, "actor/rollout_corr/kl": 1e-3}
    steps = [Step(0, {"val-core/x": 1.0}), metrics_at(1, 100.0), *(metrics_at(n, 10.0, **more) for n in (2, 3))]
    found = step.measured("ours", 0, steps, replace(WORK, parameters=1_000_000, gpus=2, rate=2e9))
    assert (found.steps, found.step_s, found.tokens_per_gpu_s, found.rollout_kl) == (2, 10.0, 50.0, 1e-3)
    expected = {"update": 6 * 1e6 * 1000 / 4.0 / 2 / 2e9, "reference": 2 * 1e6 * 1000 / 1.0 / 2 / 2e9}
    assert found.utilisation == pytest.approx(expected), "the trainer left the pass for old log-probabilities out"
    alone = step.measured("other", 0, steps[2:], WORK)
    rows = {row[0]: row[1:] for row in step.table([found, alone])}
    assert (rows["tokens/s/GPU"], rows["ours, 2 GPUs is faster by"]) == (["50", "100"], ["1.00", "0.50"])


def test_steps_before_a_failure_count_and_nothing_moves_between_them(tmp_path, monkeypatch, capsys):
    commands = []

    def launched(command, environment, log):
        commands.append(command)
        log.write_text("torch.OutOfMemoryError\n")
        done = [metrics_at(number + 1, 10.0, **{"perf/total_num_tokens": 1000}) for number in range(2)]
        lines = "".join(json.dumps(each._asdict()) + "\n" for each in done)
        log.with_name("metrics.jsonl").write_text(lines)
        return 143

    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    monkeypatch.setattr(step, "launched", launched)
    for name in step.VALUES:
        found = step.run(name, WORK)
        assert (found.steps, found.exit_code) == (1, 143)
        assert "torch.OutOfMemoryError" in capsys.readouterr().out
        recipe = load("countdown", arguments=[word for word in commands.pop() if "=" in word], environ={})
        weight = torch.nn.Parameter(torch.tensor([1e-3, 0.02, 1.0]))
        weight.grad, before = torch.ones(3), weight.detach().clone()
        torch.optim.AdamW([weight], lr=recipe.worker.actor.optim.lr).step()
        assert torch.equal(weight, before)


def test_random_weights_end_as_often_as_asked(tmp_path):
    shapes.build("tiny", tmp_path, ["Use 3 and 4 to make 12."], mean_tokens=40, device="cpu")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert len(tokenizer) == model.config.vocab_size == shapes.SHAPES["tiny"]["vocab_size"]
    assert shapes.parameters(tmp_path) == sum(weight.numel() for weight in model.parameters())
    torch.manual_seed(1)
    ends = torch.softmax(model(input_ids=torch.randint(0, 1024, (8, 64))).logits, -1)[..., tokenizer.eos_token_id]
    assert ends.mean().item() == pytest.approx(1 / 40, rel=0.2)
    assert ends.std().item() < 0.01


def test_a_gpu_beside_others_is_compared_with_one_alone():
    more = {"perf/total_num_tokens": 1000}
    alone, four = (
        step.measured("ours", 0, [metrics_at(1, seconds, **more)], replace(WORK, gpus=gpus))
        for gpus, seconds in ((1, 10.0), (4, 3.125))
    )
    rows = {row[0]: row[1:] for row in step.table([alone, four])}
    assert (rows[""], rows["of one GPU's"]) == (["ours, 1 GPU", "ours, 4 GPUs"], ["1.00", "0.80"])


def test_settings_are_refused_before_anything_is_built():
    for option in (["--gpus", "two"], ["--values", "theirs"]):
        done = CliRunner().invoke(_app(), [*option])
        assert done.exit_code == 2
        assert repr(option[1]) in done.stderr


def _app():
    app = typer.Typer()
    app.command()(step.command)
    return app


def test_ctrl_c_ends_the_command_and_its_exit_code_is_reported(tmp_path):
    held = (
        "import os, signal, time\ntry:\n    os.kill(os.getppid(), signal.SIGINT); time.sleep(0.3)\nfinally: exit(130)"
    )
    log = tmp_path / "log"
    assert step.launched([sys.executable, "-c", f"print('begun', flush=True)\n{held}"], {}, log) == 130
    assert log.read_text() == "begun\n"
