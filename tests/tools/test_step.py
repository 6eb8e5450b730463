"""The benchmark of a step: arithmetic, a launcher that fails, and random weights that end as often as asked."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.runs.metrics import Step
from tests.mistakes import mistake
from tools.benchmarks import shapes, step

WORK = step.Workload("countdown", Path("model"), 1, 1.0, prompts=32, n=8, max_response=64, steps=3, gpus=1)


def metrics_at(number, seconds, **more):
    timings = {"gen": 2.0, "old_log_prob": 1e-3, "ref": 1.0, "update_actor": 4.0, "step": seconds}
    return Step(number, {f"timing_s/{name}": value for name, value in timings.items()} | more)


def test_figures_are_of_the_steps_after_the_first_and_a_failure_names_the_log(tmp_path, monkeypatch):
    codes = [0, 1]

    def launched(command, stdout, **given):
        more = {"perf/total_num_tokens": 1000, "actor/rollout_corr/kl": 1e-3}
        done = [metrics_at(1, 100.0), *(metrics_at(number, 10.0, **more) for number in (2, 3))]
        lines = "".join(json.dumps(each._asdict()) + "\n" for each in done)
        Path(stdout.name).with_name("metrics.jsonl").write_text(lines)
        stdout.write(b"error: KeyError: 'prompt'")
        return CompletedProcess(command, codes.pop(0))

    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    monkeypatch.setattr(step, "subprocess", SimpleNamespace(run=launched, STDOUT=subprocess.STDOUT))
    found = step.run("easyr1", replace(WORK, parameters=1_000_000, gpus=2, rate=2e9))
    assert [found[name] for name in ("steps counted", "step", "tokens/s/GPU", "rollout_corr/kl")] == [2, 10, 50, 1e-3]
    assert found["update, of the matrix rate"] == pytest.approx(6 * 1e6 * 1000 / 4.0 / 2 / 2e9)
    assert found["old log-probabilities, of the matrix rate"] is None, "the trainer left that pass out"
    failed = mistake(lambda: step.run("ours", WORK))
    assert Path(failed.where).is_file()
    assert "KeyError" in failed.what
    assert failed.fix == "what these lines say"


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
