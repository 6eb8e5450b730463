"""Launchers on the real trainer: a user's data and reward with the kit, and the number game's screenshots.

Countdown's launcher runs in tests/recipes/engines/cpu/test_faults.py, GSM8K's recipe in test_real_trainer.py beside it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from recipes.paths import ROOT
from recipes.responses.files import read_responses
from recipes.rewards.metrics import ZERO_VARIANCE, is_flat
from recipes.runs.health import ROLLOUT_KL as KL
from recipes.runs.metrics import read_history, validation
from tests.recipes.engines.conftest import DIFFERENCE, EXACT, variables

pytestmark = pytest.mark.trainer(seconds=60)

NUMBER_GAME = ROOT / "examples" / "number_game_agent" / "qwen2_5_vl_3b_numgame_grpo.sh"
CUSTOM = ROOT / "examples" / "custom_task" / "train.sh"
TINY_NUMBER_GAME = ROOT / "recipes" / "tasks" / "number_game" / "tiny"
SCREENSHOTS = ROOT / "recipes" / "tasks" / "number_game" / "tiny_data" / "test.parquet"
SHOWN = 12  # screenshots
ASYNC_REWARD = '''
async def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """Half a point for an answer in the asked form, the rest for a short one."""
    return 0.5 * ("<answer>" in solution_str) + 0.5 / (1 + len(solution_str) // 16)
'''


def one_step(launcher: Path, artifacts: Path, *arguments: str, folder: Path = ROOT) -> str:
    """Output of `MAX_STEPS=1 bash LAUNCHER ARGUMENTS`, from `folder`, with this Python and artifacts of its own."""
    environ = variables(artifacts, MAX_STEPS="1")
    command = ["bash", str(launcher), *arguments]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    logs = [log.read_text(errors="replace")[-4000:] for log in artifacts.glob("runs/*/train.log")]
    assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *logs])
    assert "step 1/1 | reward " in done.stdout
    return done.stdout


def require_a_step(artifacts: Path, task: str, architecture: str = "", checkpoints: str = "checkpoints") -> Path:
    """Check the metrics of step 0 and 1 and the checkpoint's files; returns the checkpoint's model."""
    run = artifacts / "runs" / task
    steps = read_history(run / "metrics.jsonl")
    assert [step.step for step in steps] == [0, 1]
    assert all(0 <= mean <= 1 for each in map(validation, steps) if each for mean in each.means.values())
    groups = read_responses(run / "rollouts" / "1.jsonl").groups.values()
    flat = [is_flat(each.score for each in group) for group in groups]
    assert steps[1].get(ZERO_VARIANCE) == pytest.approx(sum(flat) / len(flat))
    assert steps[1].get("actor/grad_norm") > 0 or all(flat)
    assert steps[1].get(DIFFERENCE) < EXACT
    assert abs(steps[1].get(KL)) < EXACT
    model = artifacts / checkpoints / task / "global_step_1" / "actor" / "huggingface"
    assert architecture in json.loads((model / "config.json").read_text())["architectures"][0]
    assert list(model.glob("*.safetensors"))
    return model


def test_the_kit_makes_a_step_with_a_users_async_reward_on_mixed_data(tmp_path):
    (tmp_path / "my_reward.py").write_text(ASYNC_REWARD)
    words = ("--reward_func", "./my_reward.py", "trainer.val_freq=1", "trainer.save_freq=1")
    text = one_step(CUSTOM, tmp_path / "artifacts", *words, folder=tmp_path)
    require_a_step(tmp_path / "artifacts", "custom", checkpoints="outputs/checkpoints")
    run = tmp_path / "artifacts" / "runs" / "custom"
    first, last = read_history(run / "metrics.jsonl")
    for step in (first, last):
        assert validation(step).measure == "score", "the reward states no accuracy"
        assert set(validation(step).means) == {"classification", "math"}
    for each in read_responses(run / "rollouts" / "1.jsonl").responses:
        assert each.score == pytest.approx(0.5 * ("<answer>" in each.text) + 0.5 / (1 + len(each.text) // 16), abs=1e-5)
    assert "MAX_STEPS=2" in text
    assert "--reward_func ./my_reward.py" in text


@pytest.fixture(scope="module")
def number_game(tmp_path_factory):
    """The checkpoint of `MAX_STEPS=1 bash examples/number_game_agent/qwen2_5_vl_3b_numgame_grpo.sh`."""
    artifacts = tmp_path_factory.mktemp("number_game")
    # Passes are filled by tokens, as on GPUs: each row keeps its own image. All screenshots would take minutes.
    filled = ("worker.actor.dynamic_batching=true", "worker.actor.max_token_len_per_device=1024", "worker.rollout.n=4")
    few = ("data.rollout_batch_size=8", "worker.actor.global_batch_size=8", f"data.val_max_samples={SHOWN}")
    one_step(NUMBER_GAME, artifacts, *few, *filled)
    return require_a_step(artifacts, "number_game", "Qwen2_5_VLForConditionalGeneration")


def test_the_number_games_checkpoint_is_a_model_with_its_processor(number_game):
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    processor, original = (AutoProcessor.from_pretrained(folder) for folder in (number_game, TINY_NUMBER_GAME))
    assert processor.chat_template == original.chat_template
    assert processor.image_processor.to_dict() == original.image_processor.to_dict()
    model, report = AutoModelForImageTextToText.from_pretrained(number_game, dtype="auto", output_loading_info=True)
    assert model.dtype == torch.float32
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


GENERATE = """
import json, sys
from pathlib import Path
from recipes.evaluation.questions import load_questions, with_images
from recipes.responses.measures import Sampling
from recipes.evaluation.vllm_engine import Engine, VllmSampler
model, data = Path(sys.argv[1]), Path(sys.argv[2])
questions = load_questions(data)
sampler = VllmSampler(model, questions, 24, Engine())
found = {}
for name, sampling in {
    "sampled": Sampling(n=2, temperature=0.8, top_p=0.9, max_tokens=24, seed=4),
    "again": Sampling(n=2, temperature=0.8, top_p=0.9, max_tokens=24, seed=4),
    "greedy": Sampling(n=1, temperature=0.0, max_tokens=24),
}.items():
    groups = {group.row: [(r.text, r.tokens, r.logprob) for r in group.responses]
              for group in sampler.generate(with_images(data, questions), sampling)}
    found[name] = [groups[question.row] for question in questions]
sampler.close()
print("RESULT" + json.dumps(found))
"""


def test_evaluation_samples_from_the_checkpoint_and_sees_what_transformers_sees(number_game, tmp_path):
    """In a process of its own, without verl: the same probabilities for what vLLM chose."""
    data = tmp_path / "shown.parquet"
    pq.write_table(pq.read_table(SCREENSHOTS).slice(0, SHOWN), data)
    command = [sys.executable, "-c", GENERATE, str(number_game), str(data)]
    environ = {**os.environ, "VLLM_CACHE_ROOT": str(tmp_path)}  # where vLLM has not seen this model's class
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))[6:])
    assert found["sampled"] == found["again"], "one seed, one answer"
    assert any(first != second for first, second in found["sampled"]), (
        "a group's samples differ"
    )  # 7 to 12 of 12, by ten seeds
    assert all(log_prob is None for [(_, _, log_prob)] in found["greedy"])
    first = [group[0] for group in found["sampled"]]
    assert largest_difference(number_game, data, first) < 2e-2, "sums in float32; 3e-5 by ten seeds"
    # With the next screenshot a sampled token is outside of top_p, by each of ten seeds: the answers depend on it.
    assert largest_difference(number_game, data, first, moved=1) > 1.0


def largest_difference(model: Path, data: Path, responses: list, moved: int = 0) -> float:
    """The largest difference between a response's log-probability in vLLM and in transformers, by its own warpers.

    Args:
        responses: (text, tokens, log-probability under temperature 0.8 and top_p 0.9) for each screenshot.
        moved: by how many places the screenshots are moved on.
    """
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor, TemperatureLogitsWarper, TopPLogitsWarper

    from tools.tiny_models.number_game import inputs, read

    processor = AutoProcessor.from_pretrained(model)
    network = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32).eval()
    shown = read(data, "test")
    differences = []
    for (text, count, log_prob), each in zip(responses, shown[moved:] + shown[:moved], strict=True):
        batch = inputs(processor, [each.image])
        tokens = processor.tokenizer(text, add_special_tokens=False)["input_ids"]
        response = torch.tensor([[*tokens, processor.tokenizer.eos_token_id][:count]])
        assert response.shape[1] == count, "the text's tokens are those that were sampled"
        prompt = batch["input_ids"]
        batch["input_ids"] = torch.cat([prompt, response], dim=1)
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        batch["mm_token_type_ids"] = torch.cat([batch["mm_token_type_ids"], torch.zeros_like(response)], dim=1)
        with torch.no_grad():
            logits = network(**batch).logits[0, prompt.shape[1] - 1 : -1]
        warped = TopPLogitsWarper(0.9)(None, TemperatureLogitsWarper(0.8)(None, logits)).log_softmax(-1)
        differences.append(abs(warped.gather(-1, response[0][:, None]).sum().item() - log_prob))
    return max(differences)
