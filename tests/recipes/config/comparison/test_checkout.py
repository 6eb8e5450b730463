"""A local checkout is read as its launchers would run: defaults, shared configuration, arguments."""

from __future__ import annotations

import subprocess

import pytest

from recipes.config import layers as text
from recipes.config import official
from recipes.config.official import EASYR1_CLASSES, EASYR1_CONFIG, VERL_DEFAULTS, chosen, defaults, write
from recipes.errors import RecipeError

CLASSES = '''
from dataclasses import dataclass, field
from typing import Any

@dataclass
class DataConfig:
    """Data."""
    max_prompt_length: int = 512
    seed: int = 1

@dataclass
class Optim:
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    training_steps: int = field(default=-1, init=False)

@dataclass
class Actor:
    optim: Optim = field(default_factory=Optim)

@dataclass
class Rollout:
    val_override_config: dict[str, Any] = field(default_factory=dict)

@dataclass
class Worker:
    actor: Actor = field(default_factory=Actor)
    rollout: Rollout = field(default_factory=Rollout)

@dataclass
class PPOConfig:
    data: DataConfig = field(default_factory=DataConfig)
    worker: Worker = field(default_factory=Worker)
'''


def commit(folder):
    git = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def put(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def easyr1(tmp_path):
    for name in EASYR1_CLASSES:
        put(tmp_path, name, CLASSES if name == EASYR1_CLASSES[0] else "")
    put(tmp_path, EASYR1_CONFIG, "data:\n  seed: 2\n  max_prompt_length: 100\nworker: {rollout: {n: 5}}\n")
    launcher = "MODEL=org/m  # yours\npython3 -m verl.trainer.main \\\n  config=examples/config.yaml \\\n"
    put(
        tmp_path,
        "examples/toy_grpo.sh",
        launcher + "  data.max_prompt_length=7 \\\n  worker.actor.model.model_path=${MODEL}\n",
    )
    return tmp_path


@pytest.fixture
def verl(tmp_path):
    put(
        tmp_path,
        VERL_DEFAULTS,
        "data: {train_batch_size: 1024, seed: null}\nactor_rollout_ref:\n  rollout:\n    dtype: bfloat16\n"
        "    ignore_eos: '${oc.select:data.seed,false}'\n    top_k: '${oc.select:no.such,-1}'\n",
    )
    text = 'x=1\npython3 -m verl.trainer.main_ppo data.train_batch_size=$x data.truncation=error $@ 2>&1 | tee "a=b"\n'
    put(tmp_path, "examples/grpo_trainer/run_toy.sh", text)
    return tmp_path


def test_easyr1s_three_layers(easyr1):
    revision = commit(easyr1)
    (official,) = chosen(["easyr1:toy"], easyr1)
    assert official.values == {
        "data.max_prompt_length": 7,
        "data.seed": 2,
        "worker.actor.optim.lr": 1e-6,
        "worker.actor.optim.betas": [0.9, 0.999],
        "worker.rollout.n": 5,
        "worker.actor.model.model_path": "org/m",
    }
    assert "data.seed" in official.said
    assert "worker.actor.optim.lr" not in official.said
    assert revision in official.origin
    assert "examples/toy_grpo.sh" in official.origin


def test_verls_names_become_the_schemas(verl):
    commit(verl)
    (official,) = chosen(["verl:toy"], verl)
    assert official.values["data.rollout_batch_size"] == 1
    assert official.values["worker.rollout.dtype"] == "bf16"
    assert official.values["worker.rollout.ignore_eos"] is None
    assert official.values["worker.rollout.top_k"] == -1
    assert official.said == {"data.rollout_batch_size"}
    assert official.outside == {"data.truncation": "error"}


def test_mistakes_are_named(easyr1, tmp_path_factory):
    commit(easyr1)
    with pytest.raises(RecipeError, match="no example 'toi'") as raised:
        chosen(["easyr1:toi"], easyr1)
    assert "toy" in str(raised.value) or "see that folder" in str(raised.value)
    with pytest.raises(RecipeError, match="not in a checkout of easyr1"):
        chosen(["verl:toy"], easyr1)
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(RecipeError, match="no checkout"):
        chosen(["verl:toy"], empty)
    with pytest.raises(RecipeError, match="begin with|did you mean|unknown official example"):
        chosen(["trl:toy"])
    with pytest.raises(RecipeError, match="unknown official example"):
        chosen(["easyr1:qwen3_4b_maths"])


def test_a_folder_without_git_is_no_source(easyr1):
    with pytest.raises(RecipeError, match="which commit"):
        chosen(["easyr1:toy"], easyr1)


def test_names_alone_and_twice():
    assert [each.name for each in chosen(["easyr1", "easyr1:7b,verl:3b"])] == [
        "qwen2_5_vl_3b_geo3k",
        "qwen2_5_vl_7b_geo3k",
        "qwen2_5_3b_gsm8k_lora",
    ]


def test_snapshots_hold_what_the_checkout_says(easyr1, tmp_path_factory, monkeypatch):
    from recipes.config import official
    from recipes.config.official import Example

    revision = commit(easyr1)
    monkeypatch.setattr(official, "EXAMPLES", {"easyr1": {"toy": Example("Toy", "examples/toy_grpo.sh")}})
    folder = tmp_path_factory.mktemp("official")
    assert len(write(easyr1, folder)) == 3
    tree = text.read(folder / "easyr1_toy.yaml", "toy")
    assert tree["commit"] == revision
    assert tree["below"] == ["config", "defaults"]
    assert tree["values"] == {"data.max_prompt_length": 7, "worker.actor.model.model_path": "org/m"}
    assert text.read(folder / "easyr1_defaults.yaml", "d")["values"]["data.max_prompt_length"] == 512


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python3 -m verl.trainer.main a.b=1e-6 c=True", {"a.b": 1e-6, "c": True}),
        ("""python -m verl.trainer.main l='["a","b"]'""", {"l": ["a", "b"]}),
        ("X=${X:-${Y:-${HOME}/v}/m}\npython3 -m verl.trainer.main_ppo p=${X}", {"p": "$HOME/v/m"}),
        ("N=n_$(date +%Y %m)\npython3 -m verl.trainer.main n=${N} k=1", {"n": "n_$(date +%Y %m)", "k": 1}),
        ("X=$X/a\npython3 -m verl.trainer.main +p=1", {"p": 1}),
        ("python3 -m verl.trainer.main a=1 2>&1 | tee log=2.txt\n", {"a": 1}),
    ],
)
def test_launchers_text(text, expected):
    assert official.arguments(text, "toy.sh") == expected


def test_a_launcher_that_starts_nothing():
    with pytest.raises(RecipeError, match="starts no trainer"):
        official.arguments("echo hello", "toy.sh")


def test_arrays_are_refused_rather_than_left_out():
    with pytest.raises(RecipeError, match="arrays"):
        official.arguments('D=(a=1)\npython3 -m verl.trainer.main_ppo "${D[@]}" b=2', "toy.sh")


def test_defaults_that_cannot_be_read(tmp_path):
    put(tmp_path, "c.py", "class PPOConfig:\n    a: int = compute()\n")
    with pytest.raises(RecipeError, match="default of a is no constant"):
        defaults([tmp_path / "c.py"], "PPOConfig")
    with pytest.raises(RecipeError, match="no class Other"):
        defaults([tmp_path / "c.py"], "Other")
    with pytest.raises(RecipeError, match="cannot read"):
        defaults([tmp_path / "none.py"], "PPOConfig")
