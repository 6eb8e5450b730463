"""Folders, loggers and the disk: what the machine lacks is found before the start."""

import json
import shutil
from types import SimpleNamespace

import pytest
from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager

from recipes import preflight
from recipes.config import load
from recipes.config.names import REWARD_KEY
from recipes.memory.shape import shape
from recipes.paths import ROOT
from recipes.preflight import machine
from recipes.preflight.cli import main
from tests.mistakes import mistake


@pytest.fixture
def free(monkeypatch):
    """Sets the free bytes that every disk reports."""

    def set_free(count):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=int(count)))

    return set_free


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("trainer.save_checkpoint_path={}/taken", "taken"),
        ("trainer.save_checkpoint_path=/proc/nope", "/proc/nope"),
        ("trainer.logger=[console,swanlab]", "swanlab"),
    ],
)
def test_folders_must_be_writable_and_loggers_installed(make, files, monkeypatch, change, named):
    (files / "taken").write_text("")
    monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
    assert change.partition("=")[0] in mistake(lambda: machine.check_machine(make(change.format(files))), named).where


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"TMPDIR": "/tmp/short", "HOME": "{}", "RAY_ADDRESS": "10.0.0.1:6379"}, {}),
        ({"RAY_ADDRESS": "local", "HOME": "{}"}, {"RAY_ADDRESS": None}),
        ({"TMPDIR": "/tmp/slurm_jobdir/job.1355700/user.someone", "HOME": "{}"}, {"TMPDIR": "/tmp"}),
        ({"HOME": "/proc"}, {"HOME": "{}/artifacts/home"}),
        ({"HOME": ""}, {}),
    ],
)
def test_an_environment_that_no_trainer_could_use_is_made_usable(files, given, changed):
    given = {name: value.format(files) for name, value in given.items()}
    environ = dict(given)
    assert len(machine.make_usable(environ)) == sum(value is not None for value in changed.values())
    assert {name: environ.get(name, "").format(files) or None for name in changed} == {
        name: value and value.format(files) for name, value in changed.items()
    }
    assert environ.items() >= {name: value for name, value in given.items() if name not in changed}.items()


def test_the_command_reports_what_is_wrong_in_a_users_file_beside_the_rest(files, capsys):
    (files / "mine.json").write_text('[{"prompt": "p", "data_source": "qa"}]')
    with pytest.raises(SystemExit):
        main("custom", ["--data", f"{files}/mine.json", "hardware=cpu", "worker.actor.model.model_path=/no/model"])
    printed = capsys.readouterr()
    assert "not checked: chat template, data, tools, prompt lengths, disk, reward, weights, images" in printed.out
    assert "no column ground_truth" in printed.err
    assert "the model /no/model does not exist" in printed.err


@pytest.mark.parametrize(
    "key", ["data.override_chat_template", "data.system_prompt", "worker.rollout.tools", REWARD_KEY]
)
def test_a_file_that_a_key_names_is_there_before_anything_reads_it(make, key):
    error = mistake(lambda: preflight.check_before_data(make(f"{key}=/no/such.file")), "/no/such.file does not exist")
    assert key in error.where
    assert "commas" not in error.fix
    if key == REWARD_KEY:
        error = mistake(lambda: preflight.check_before_data(make(f"{key}=a.py:f b.py:g")))
        assert "separate several by commas" in error.fix


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("worker.rollout.name=sglang", "sglang is not installed"),
        ("actor_rollout_ref.rollout.max_model_len=64", "may have 112 tokens"),
        ("worker.rollout.engine_kwargs={max_num_seq: 3}", "no argument max_num_seq"),
        ("worker.rollout.engine_kwargs={enforce-eager: false}", "passes by worker.rollout.enforce_eager"),
        ("data.custom_cls.path=/nope.py", "/nope.py does not exist"),
    ],
)
def test_what_verls_server_would_refuse_after_a_minute_is_refused(change, said):
    assert said in mistake(lambda: preflight.check_before_data(load("countdown", arguments=[change]))).what
    fits = ["actor_rollout_ref.rollout.max_model_len=112", "worker.rollout.engine_kwargs={enable-prefix-caching: true}"]
    machine.check_rollout(load("countdown", arguments=fits))


def test_a_text_in_the_place_of_its_file_is_told_to_be_written_into_one(make):
    text = 'data.system_prompt="Think step by step."'
    assert "write the text into a file" in mistake(lambda: preflight.check_before_data(make(text)), "step by").fix


def test_artifacts_below_a_file_are_refused(files, monkeypatch):
    (files / "taken").write_text("")
    monkeypatch.setenv("ARTIFACTS_DIR", f"{files}/taken/artifacts")
    assert "ARTIFACTS_DIR=" in mistake(lambda: load("countdown", environ={}), "taken").where


@pytest.mark.parametrize(
    ("changes", "checkpoints_kept", "megabytes"),
    [
        (["trainer.max_steps=4", "trainer.save_limit=3"], 2, 16),
        (["trainer.max_steps=40", "trainer.save_limit=3", "trainer.save_hf_model=false"], 3, 12),
        (["trainer.max_steps=40", "trainer.save_limit=2", "worker.actor.fsdp.torch_dtype=bf16"], 2, 8),
        (["trainer.max_steps=40", "trainer.save_limit=1", "trainer.save_model_only=true"], 2, 8),
        (["trainer.max_steps=40", "trainer.save_limit=2", "trainer.keep_best=true"], 3, 16),
        (["trainer.max_steps=4", "trainer.save_limit=2", "trainer.keep_best=true"], 2, 16),
        (["trainer.max_steps=40", "trainer.save_limit=2", "engine=easyr1"], 2, 16),
    ],
)
def test_every_checkpoint_that_is_kept_must_fit(make, files, free, changes, checkpoints_kept, megabytes):
    """Of a model with a million float32 parameters: 16 MB each."""
    sizes = {"hidden_size": 100, "intermediate_size": 100, "num_hidden_layers": 10, "num_attention_heads": 1}
    config = {"architectures": ["LlamaForCausalLM"], **sizes, "vocab_size": 3_000, "tie_word_embeddings": True}
    (files / "model" / "config.json").write_text(json.dumps(config))
    needed = checkpoints_kept * megabytes * 10**6 + machine.MARGIN
    free(needed)
    assert machine.check_disk(make(*changes)) == []
    free(needed - 1)
    assert "ARTIFACTS_DIR" in mistake(lambda: machine.check_disk(make(*changes)), f"{checkpoints_kept} checkpoints").fix


def test_a_checkpoint_with_adapters_holds_them_and_one_whole_model():
    """12 bytes a trained weight, 2 for each of the model to load, in the format below the adapters."""
    tiny = ROOT / "recipes/tasks/countdown/tiny"
    recipe = load("custom", environ={"LORA_RANK": "8", "MODEL_PATH": str(tiny)}, hardware="gpu")
    sizes = shape(tiny)
    assert sizes is not None
    whole = 2 * sizes.parameters
    assert machine.checkpoint_bytes(recipe) == whole + 12 * sizes.adapter_parameters(8)
    environ = {"LORA_RANK": "8", "MODEL_PATH": str(tiny)}  # and without it the shards hold the whole model
    recipe = load("custom", arguments=["trainer.save_hf_model=false"], environ=environ, hardware="gpu")
    assert machine.checkpoint_bytes(recipe) == whole


@pytest.mark.parametrize(("limit", "at_once"), [(1, 2), (2, 2), (3, 3)])
def test_as_many_checkpoints_must_fit_as_verl_has_on_the_disk_at_once(make, monkeypatch, limit, at_once):
    manager, disk, most = object.__new__(BaseCheckpointManager), set(), 0
    manager.previous_saved_paths = []
    monkeypatch.setattr(manager, "remove_previous_save_local_path", disk.difference_update)
    for step in range(6):
        manager.ensure_checkpoint_capacity(limit)
        disk.add(step)
        most = max(most, len(disk))
        manager.register_checkpoint(step, limit)
    assert machine.most_checkpoints(make(f"trainer.save_limit={limit}"), 6) == most == at_once


def test_gpus_that_are_not_there_are_an_error_of_a_start_and_of_a_dry_run(monkeypatch):
    recipe = load("countdown", environ={"GPUS_PER_NODE": "2", "ROLLOUT_BATCH_SIZE": "8"}, hardware="gpu")
    for here, fix in ((1, "set GPUS_PER_NODE=1"), (0, "set HARDWARE=cpu")):
        monkeypatch.setattr(machine, "visible_gpus", lambda _environ, here=here: here)
        assert fix in mistake(lambda: preflight.check_before_data(recipe), "trainer.n_gpus_per_node is 2").fix
        assert any(fix in error.fix for error in preflight.dry(recipe).errors)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,7")
    monkeypatch.setattr(machine, "visible_gpus", lambda environ: 1 if environ else 2)
    assert "has 1 GPU within CUDA_VISIBLE_DEVICES=0,7" in mistake(lambda: machine.check_gpus(recipe)).what
    monkeypatch.setattr(machine, "visible_gpus", lambda _environ: 2)
    assert machine.check_gpus(recipe) == []
    for others in ({"arguments": ["--gpus", "8x80"]}, {"hardware": "cpu", "environ": {"GPUS_PER_NODE": "4"}}):
        other = load("countdown", **others)
        assert not [error for error in preflight.dry(other).errors if "n_gpus_per_node" in error.where]
