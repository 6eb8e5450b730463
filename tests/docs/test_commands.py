"""Commands of the pages and of the five reference documents: each launch is a plan."""

import json
import re
from shutil import copyfile

import pytest
from PIL import Image

from recipes import launch
from recipes.config import load
from recipes.config.checks import require_supported
from recipes.data.readers import Place, checked
from recipes.engines.easyr1 import source
from recipes.paths import ROOT
from recipes.preflight import Findings
from recipes.preflight.reward import try_reward
from recipes.rewards.function import Call
from tests.docs import docs_markdown

LAUNCHED = [command for page in docs_markdown.pages() for command in docs_markdown.commands(page) if command.launch]
KIT, TRL = ROOT / "docs" / "CUSTOM_TASK.md", ROOT / "docs" / "COMING_FROM_TRL.md"
REWARD = re.compile(r"```python my_reward.py\n(.*?)```", re.DOTALL)


@pytest.fixture
def users_folder(tmp_path, monkeypatch):
    """A folder with the files of the pages: data in two formats, templates, the kit's own example of a reward."""
    rows = [{"prompt": f"{i} + 1?", "ground_truth": str(i + 1), "data_source": "gsm8k"} for i in range(300)]
    (tmp_path / "my.json").write_text(json.dumps(rows))
    (tmp_path / "my.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("my.csv", "val.csv"):
        (tmp_path / name).write_text("prompt,ground_truth\n" + "".join(f"{name} {i}?,{i}\n" for i in range(300)))
    (tmp_path / "questions.csv").write_text("question,answer\n" + "".join(f"{i} + 1?,{i + 1}\n" for i in range(300)))
    (tmp_path / "system.txt").write_text("Be brief.")
    (tmp_path / "template.jinja").write_text("{{ content }} Think first.")
    for name, task in (("my_recipe.yaml", "countdown"), ("my_task.yaml", "custom")):
        copyfile(ROOT / "configs" / f"{task}.yaml", tmp_path / name)
    (tmp_path / "my_reward.py").write_text(REWARD.search(KIT.read_text(encoding="utf-8"))[1])
    chats = [{"prompt": [{"role": "user", "content": f"{i} + 1?"}], "answer": i + 1} for i in range(300)]
    (tmp_path / "chat.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    pictures = [{"images": f"{i}.png", "problem": f"<image>{i}?", "answer": "red"} for i in range(300)]
    for name, part in (("train.jsonl", pictures[:270]), ("test.jsonl", pictures[270:])):
        (tmp_path / name).write_text("".join(json.dumps(picture) + "\n" for picture in part))
    for i in range(300):
        Image.new("RGB", (32, 32), (i % 256, i // 256, 0)).save(tmp_path / f"{i}.png")
    for name in ("reward.py", "style.py"):
        copyfile(tmp_path / "my_reward.py", tmp_path / name)
    copyfile(tmp_path / "my_recipe.yaml", tmp_path / "my_config.yaml")
    functions = re.search(r"```python rewards.py\n(.*?)```", TRL.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "rewards.py").write_text(functions[1])
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_launch_on_every_page_is_a_plan(users_folder, capsys, monkeypatch):
    monkeypatch.setattr(launch.preflight, "dry", lambda recipe: Findings())  # checks in other processes, tested there
    monkeypatch.setattr(source, "find", lambda environ: users_folder)
    monkeypatch.setattr(source, "patched", lambda home, on_cpu: home)
    once = {(str(command.launch), str(command.variables)): command for command in reversed(LAUNCHED)}  # both languages
    for command in once.values():
        task, arguments = command.launch
        arguments = [word for word in arguments if word != "--dry_run"]
        for hardware in ("cpu", "gpu") if command.page.endswith("ALGORITHMS.md") else ("gpu",):
            environ = {"HARDWARE": hardware, **command.variables}
            print(command)  # what a failure shows
            launch.show_plan(load(task, arguments=arguments, environ=environ))
            shown = capsys.readouterr().out
            assert "# responses per step" in shown, command
            assert "known when the data is made" not in shown or task != "custom", command


# Task, what the reference documents type (keys in full), and the values that the recipe must have afterwards.
TYPED = r"""
countdown | data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.temperature=1.0 actor_rollout_ref.actor.optim.lr=2e-6 \
    algorithm.kl_ctrl.kl_coef=0.01 actor_rollout_ref.actor.strategy=fsdp \
    trainer.test_freq=5 trainer.resume_mode=auto trainer.nnodes=1 trainer.max_actor_ckpt_to_keep=3 \
    trainer.log_val_generations=3 | worker.actor.global_batch_size=64 worker.rollout.n=16 algorithm.kl_coef=0.01 \
    worker.actor.micro_batch_size_per_device_for_update=4 worker.actor.optim.lr=2e-06 worker.actor.strategy=fsdp \
    trainer.val_freq=5 trainer.save_limit=3
number_game | MODEL_PATH=Qwen/Qwen2.5-VL-7B-Instruct GPUS_PER_NODE=4 TENSOR_PARALLEL_SIZE=2 ROLLOUT_BATCH_SIZE=256 \
    GLOBAL_BATCH_SIZE=128 MAX_STEPS=1 TOTAL_EPOCHS=15 GPU_MEMORY_UTIL=0.4 | worker.rollout.tensor_parallel_size=2 \
    worker.actor.global_batch_size=128 trainer.max_steps=1 trainer.total_epochs=15 trainer.n_gpus_per_node=4 \
    worker.rollout.gpu_memory_utilization=0.4
number_game | max_prompt_length=1024 max_response_length=128 rollout_batch_size=128 global_batch_size=64 lr=1.0e-6 \
    lr_warmup_ratio=0.0 rollout_n=5 tensor_parallel_size=1 worker.actor.offload.offload_params=false \
    worker.actor.offload.offload_optimizer=false | data.rollout_batch_size=128 \
    worker.actor.offload.offload_params=False
number_game | trainer.total_epochs=15 trainer.max_steps=null trainer.n_gpus_per_node=2 trainer.max_try_make_batch=20 \
    trainer.val_freq=5 trainer.val_before_train=true trainer.val_generations_to_log=3 trainer.save_freq=5 \
    trainer.save_limit=3 trainer.find_last_checkpoint=true | trainer.save_freq=5
number_game | ENGINE=easyr1 worker.ref.fsdp.enable_cpu_offload=false worker.actor.fsdp.torch_dtype=bf16 \
    worker.actor.optim.strategy=adamw_bf16 | worker.ref.fsdp.enable_cpu_offload=False \
    worker.actor.optim.strategy=adamw_bf16
custom | --model Qwen/Qwen2.5-7B --rollout_n 8 --epochs 20 --kl_coef 0.01 --lr 5e-7 --n_gpus 8 \
    actor_rollout_ref.model.lora_rank=8 actor_rollout_ref.model.lora_alpha=16 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 actor_rollout_ref.ref.fsdp_config.param_offload=true | \
    trainer.total_epochs=20 worker.actor.model.lora.alpha=16 worker.rollout.tensor_parallel_size=4 \
    algorithm.kl_coef=0.01 worker.actor.optim.lr=5e-07 worker.ref.offload.offload_params=True
custom | ROLLOUT_N=5 NORM_ADV_BY_STD=true USE_KL_LOSS=true KL_LOSS_COEF=0.001 KL_LOSS_TYPE=low_var_kl \
    TRAIN_BATCH_SIZE=256 LEARNING_RATE=1e-6 TOTAL_EPOCHS=15 MAX_RESPONSE_LENGTH=1024 | worker.rollout.n=5 \
    data.rollout_batch_size=256
"""


@pytest.mark.parametrize("line", TYPED.strip().replace("\\\n", "").splitlines(), ids=lambda line: line[:60])
def test_what_the_reference_documents_type(line):
    task, typed, expected = (part.split() for part in line.split("|"))
    variables = [word for word in typed if word.split("=")[0].isupper()]
    arguments = [word for word in typed if word not in variables]
    environ = dict(word.split("=", 1) for word in variables)
    require_values(load(task[0], arguments=arguments, environ=environ, hardware="gpu"), expected)


def require_values(recipe, expected):
    assert [f"{pair.split('=')[0]}={recipe.value(pair.split('=')[0])}" for pair in expected] == expected
    require_supported(recipe, recipe.engine)


OFFLOADED = "actor_rollout_ref:\n  ref:\n    fsdp_config:\n      param_offload: true"


@pytest.mark.parametrize(
    ("task", "written", "expected"),
    [
        ("custom", "actor_rollout_ref: {actor: {ppo_epochs: 2}}", "worker.actor.ppo_epochs=2"),
        ("custom", OFFLOADED, "worker.ref.offload.offload_params=True"),
        ("countdown", "worker.actor.fsdp.torch_dtype: bf16", "worker.actor.fsdp.torch_dtype=bf16"),
    ],
)
def test_what_the_reference_documents_write_into_a_file(task, written, expected, tmp_path):
    recipe = (ROOT / "configs" / f"{task}.yaml").read_text(encoding="utf-8").split("\ntiny:")[0]
    (tmp_path / "mine.yaml").write_text(f"{recipe}\n{written}\n")
    require_values(load(str(tmp_path / "mine.yaml"), environ={}, hardware="gpu"), [expected])


@pytest.mark.parametrize("page", [KIT, ROOT / "examples" / "custom_task" / "README.md"], ids=lambda page: page.name)
def test_the_kits_pages_show_a_reward_and_rows_that_are_right(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    path = tmp_path / "my_reward.py"
    path.write_text(REWARD.search(text)[1])
    assert try_reward(str(path), "verl", [Call("x", "", "42")]) == []
    for example in re.findall(r"```json\n(.*?)\n```", text, re.DOTALL):
        assert checked(json.loads(example), Place("page", 1)).ground_truth == "42"
