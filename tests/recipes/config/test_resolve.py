"""Four layers, each key with the layer that set it, and every mistake in a layer with its name and place."""

import copy
import itertools
import os
import shutil

import pytest

from recipes.config import check, load, path_keys, remarks, tasks, to_yaml
from recipes.config.resolve import algorithm, algorithms
from recipes.config.schema import Recipe, Source, leaves
from recipes.engines.easyr1 import translation as easyr1
from recipes.engines.verl import translation as verl
from recipes.paths import ROOT, artifacts, in_artifacts
from recipes.runs.summary import in_words
from recipes.settings import settings_of
from recipes.yaml_text import read
from tests.mistakes import mistake

HIGH = "worker.actor.clip_ratio_high"


def test_variables_are_read_from_the_environment_that_the_process_has_now(monkeypatch):
    monkeypatch.setattr(os, "environ", copy.deepcopy(os.environ))  # as datasets leaves it: `map` of several processes
    monkeypatch.setenv("MAX_STEPS", "7")
    assert load("countdown", hardware="cpu").trainer.max_steps == 7


def test_later_layers_win_and_every_key_knows_its_layer(resolve, tmp_path):
    mistake(lambda: load("countdwn"), "did you mean countdown")
    assert "mend the path" in mistake(lambda: load(str(tmp_path / "none.yaml")), "does not exist").fix
    assert resolve().data.rollout_batch_size == 64
    assert resolve(hardware="cpu").data.rollout_batch_size == 8
    assert resolve(hardware="cpu", ROLLOUT_BATCH_SIZE="16").data.rollout_batch_size == 16
    assert resolve("data.rollout_batch_size=32", ROLLOUT_BATCH_SIZE="16").data.rollout_batch_size == 32
    assert (resolve().trainer.n_gpus_per_node, resolve(hardware="cpu").trainer.n_gpus_per_node) == (8, 1)
    recipe = resolve("worker.rollout.n=4", hardware="cpu", LR="2e-6")
    keys = ("algorithm.kl_coef", "data.rollout_batch_size", "worker.rollout.dtype", "worker.rollout.top_p")
    assert [recipe.source_of(key).layer for key in keys] == ["recipe", "tiny", "hardware", "default"]
    assert recipe.source_of("worker.rollout.dtype").where == "configs/hardware/cpu.yaml"
    assert recipe.source_of("worker.actor.optim.lr").where == "variable LR=2e-6"
    assert recipe.source_of("worker.rollout.n").where == "argument worker.rollout.n=4"


OF_A_KIND_OF_MACHINE = """
worker:
  actor:
    padding_free: false
    use_fused_kernels: false
    recompute_old_log_probs: true
    max_token_len_per_device: 20000
    model: {use_liger: false, enable_gradient_checkpointing: true}
    fsdp: {mp_param_dtype: fp16}
  rollout: {dtype: fp16, max_num_seqs: 64, max_num_batched_tokens: 4096}
"""


def test_a_file_wins_over_defaults_for_gpus_and_what_cpus_replace_is_named_once(write):
    path = write(OF_A_KIND_OF_MACHINE)
    written = {setting.path: setting.value for setting in settings_of(Recipe, read(path), Source("recipe", "here"))}
    recipe = load(str(path), environ={}, arguments=["--gpus", "8x80"])
    assert {key: recipe.value(key) for key in written} == written
    assert remarks(recipe) == []
    recipe = load(str(path), environ={}, hardware="cpu")
    (note,) = [remark for remark in remarks(recipe) if "cpu.yaml replaces" in remark]
    assert "worker.rollout.dtype is fp32, not fp16" in note
    assert all((key in note) == (recipe.value(key) != value) for key, value in written.items())


def test_further_files_lie_over_the_first(write):
    over = write(
        "worker: {rollout: {n: 4}}\ntiny: {data: {seed: 2}}\nactor_rollout_ref: {rollout: {top_p: 0.9}}", "b.yaml"
    )
    path = str(write("worker: {rollout: {n: 8, top_p: 1.0}}\ntrainer: {val_freq: 5}"))
    recipe = load(path, arguments=[str(over), "--lr", "1e-5"], environ={}, hardware="cpu")
    assert (recipe.name, recipe.worker.rollout.n, recipe.worker.rollout.top_p, recipe.data.seed) == ("toy", 4, 0.9, 2)
    assert (recipe.trainer.val_freq, recipe.worker.actor.optim.lr) == (5, 1e-5)
    mistake(lambda: load(path, arguments=["c.yaml"]), "does not exist")
    recipe = load(path, arguments=[f"config={over}", "--lr", "1e-5"], environ={}, hardware="cpu")
    assert (recipe.name, recipe.worker.rollout.n) == ("toy", 4)
    assert "the path alone" in mistake(lambda: load(path, arguments=["trainer.max_steps=1", f"config={over}"])).fix


def test_the_tiny_block_applies_as_a_whole_and_to_its_own_model_alone(resolve):
    assert not resolve().resolution.is_tiny
    assert resolve("tiny=yes").data.rollout_batch_size == 8

    def custom(**environ):
        return load("custom", environ=environ, hardware="cpu")

    full, tiny, other = custom(TINY="0"), custom(TRAIN_FILES="a.json"), custom(MODEL_PATH="org/other")
    assert tiny.resolution.is_tiny
    assert tiny.data.train_files.endswith("a.json")
    for key in ("worker.actor.optim.lr", "data.max_prompt_length", "data.train_files"):
        assert other.value(key) == full.value(key) != tiny.value(key)
    assert [note for note in remarks(other) if "MODEL_PATH=org/other" in note and "TINY=1" in note]
    own = custom(MODEL_PATH=tiny.worker.actor.model.model_path, TRAIN_FILES="a.json")
    assert own.model_dump() == tiny.model_dump()
    assert custom(MODEL_PATH="org/other", TINY="1", TRAIN_FILES="a.json").data == tiny.data


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data: {rollout_batchsize: 3}", ["unknown key data.rollout_batchsize", "toy.yaml", "rollout_batch_size?"]),
        ("worker: {rollout: {n: many}}", ["worker.rollout.n is 'many'", "integer", "toy.yaml", "give "]),
        ("trainer: {experiment_name: 3, logger: x}", ["trainer.experiment_name is 3", "also wrong: trainer.logger"]),
        ("algorithm: {adv_estimator: gpro}", ["'gpro'", "did you mean grpo?"]),
        ("data: {seed: 1,\n seed: 2}", ["duplicate key seed", "toy.yaml", "line 2"]),
        ("3", ["toy.yaml"]),
        ("worker: &x {rollout: *x}", ["cannot read", "toy.yaml", "in itself"]),
        ("worker: &x [*x]", ["cannot read", "toy.yaml", "in itself"]),
        (f"worker: {'[' * 3000}{']' * 3000}", ["cannot read", "toy.yaml", "nested too deep"]),
        ("verl: {actor_rollout_ref: {rollout: {sed: 1}}}", ["verl has no key actor_rollout_ref.rollout.sed", "seed?"]),
        (
            "data: {rollout_batch_size: 8}\nverl: {data: {train_batch_size: 4}}",
            ["data.rollout_batch_size is 8", "4 as verl: data: train_batch_size", "give one of the two"],
        ),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_place(write, text, words):
    text = str(mistake(lambda: load(str(write(text)), environ={}, hardware="gpu")))
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("worker.rollout.n", "worker: {rollout: {n"),
        ("worker: {rollout: {n", "worker.rollout: {n"),
        ("tiny: {worker.rollout.n", "worker: {rollout: {n"),
        ("worker.rollout.engine_kwargs.a.b", "worker: {rollout: {engine_kwargs: {a: {b"),
        ("worker: {rollout: {engine_kwargs: {a", "actor_rollout_ref: {rollout: {engine_kwargs: {vllm: {a"),
        ("actor_rollout_ref.actor.data_loader_seed", "actor_rollout_ref: {actor: {data_loader_seed"),
        ("verl: {actor_rollout_ref.actor.data_loader_seed", "actor_rollout_ref: {actor: {data_loader_seed"),
        ('"+actor_rollout_ref.actor.data_loader_seed"', "actor_rollout_ref: {actor: {data_loader_seed"),
    ],
)
def test_two_spellings_of_a_key_in_one_file_have_one_value(write, one, other):
    """The last one won in silence."""

    def loaded(first, last):
        inside = one.startswith("tiny")
        text, rest = f"{one}: {first}", f"{other}: {last}" + "}" * other.count("{")
        text += f", {rest}}}" if inside else "}" * one.count("{") + f"\n{rest}"
        return load(str(write(text)), environ={}, hardware="cpu")

    both = str(mistake(lambda: loaded(7, 8), "give one of the two"))
    for spelled in (one, other):
        words = spelled.removeprefix("tiny: {").replace("{", "").strip('"')
        assert f" as {words}" in both
    loaded(7, 7)


def test_a_later_file_wins_in_another_spelling(write):
    files = [write("worker.rollout.n: 4"), write("actor_rollout_ref: {rollout: {n: 8}}", "later.yaml")]
    assert load(str(files[0]), arguments=[str(files[1])], environ={}, hardware="cpu").worker.rollout.n == 8


def test_mappings_are_merged_and_verls_own_keys_are_kept(write):
    path = write("worker: {reward: {reward_function_kwargs: {credit: {format: 0.1, numbers: 0.2}}}}")
    arguments = ["worker.reward.reward_function_kwargs.credit.format=0.3", "+ray_kwargs.x=2"]
    native = {"actor_rollout_ref.rollout.ignore_eos": True}
    arguments += [
        "worker.reward.reward_function_kwargs.weights={math.v1: 2, 3: 1}",
        "actor_rollout_ref.model={path: '2024'}",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=-5",
        "actor_rollout_ref.rollout.ignore_eos=true",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.a.b=1",
    ]
    recipe = load(str(path), environ={"KL_COEF": "2E-3"}, hardware="gpu", arguments=arguments)
    given = recipe.worker.reward.reward_function_kwargs
    assert given == {"credit": {"format": 0.3, "numbers": 0.2}, "weights": {"math.v1": 2, 3: 1}}
    assert recipe.worker.actor.model.model_path == "2024"
    assert recipe.worker.actor.optim.lr_warmup_steps is None
    assert recipe.algorithm.kl_coef == 2e-3
    assert recipe.worker.rollout.engine_kwargs["a"] == {"b": 1}
    assert recipe.verl == {**native, "+ray_kwargs.x": 2}


def test_later_wins_in_verls_spelling_too(write):
    path = write("algorithm: {preset: dapo}\nverl: {actor_rollout_ref.actor.policy_loss.loss_mode: gspo}")
    recipe = load(str(path), environ={"ROLLOUT_N": "8"}, arguments=["actor_rollout_ref.rollout.n=4"], hardware="gpu")
    assert recipe.worker.rollout.n == 4
    assert verl.translate(recipe)["actor_rollout_ref.actor.policy_loss.loss_mode"] == "gspo"


@pytest.mark.parametrize("task", tasks())
def test_every_recipe_passes_its_checks_with_and_without_its_tiny_model(task):
    tiny = {"TINY": "1", "GPUS_PER_NODE": "1"}
    for hardware, environ in itertools.product(("cpu", "gpu"), ({"TINY": "0"}, tiny)):
        check(recipe := load(task, environ=environ, hardware=hardware))
        verl.translate(recipe)


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
def test_a_resolved_recipe_loads_as_itself(write, hardware):
    arguments = ["trainer.n_gpus_per_node=2", "trainer.use_v1=false"]
    recipe = load("countdown", environ={"LR": "3e-6", "ALGORITHM": "dr_grpo"}, arguments=arguments, hardware=hardware)
    text = to_yaml(recipe)
    again = load(str(write(text)), environ={})
    assert again.model_dump() == recipe.model_dump()
    assert "  preset: dr_grpo\n" in text
    other = load(str(write(text)), environ={"ALGORITHM": "rloo"})
    assert (other.algorithm.adv_estimator, other.algorithm.norm_adv_by_std) == ("rloo", True)
    assert other.worker.actor.loss_agg_mode == "token-mean"


def test_paths_are_absolute_and_listed(resolve, tmp_path, monkeypatch):
    monkeypatch.delenv("ARTIFACTS_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    recipe = resolve("worker.reward.reward_function=./mine.py:score", "data.train_files=none.parquet")
    keys = {item.key: (item.path, item.on_hub) for item in path_keys(recipe)}
    assert recipe.worker.reward.reward_function == f"{tmp_path}/mine.py:score"
    assert keys["worker.reward.reward_function"] == (f"{tmp_path}/mine.py", False)
    assert keys["data.train_files"] == (f"{tmp_path}/none.parquet", False)
    assert keys["data.val_files"][0].endswith("artifacts/data/toy/test.parquet")
    assert keys["worker.actor.model.model_path"] == ("org/model", True)
    (tmp_path / "org/model").mkdir(parents=True)
    for given, path in (("org/model", tmp_path), ("recipes/tasks", ROOT), ("a/b/c", tmp_path)):
        assert resolve(MODEL_PATH=given).worker.actor.model.model_path == f"{path}/{given}"


def test_a_tilde_is_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ARTIFACTS_DIR", "~/art")
    assert artifacts() == tmp_path / "art"
    assert in_artifacts("~/report") == f"{tmp_path}/report"


def test_a_model_below_moved_artifacts_that_was_trained_from_the_tiny_one_has_its_sizes(tmp_path, monkeypatch):
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    shutil.copytree(ROOT / "recipes" / "tasks" / "gsm8k" / "tiny", tmp_path / "models" / "mine")
    assert load("gsm8k", environ={"MODEL_PATH": "artifacts/models/mine"}, hardware="cpu").resolution.is_tiny


@pytest.mark.parametrize(
    ("arguments", "environ", "high", "layer"),
    [
        ([], {"ALGORITHM": "dapo"}, 0.28, "algorithm"),
        (["algorithm.preset=dapo"], {"CLIP_RATIO_HIGH": "0.4"}, 0.4, "environment"),
        (["actor_rollout_ref.actor.clip_ratio_high=0.5"], {"CLIP_RATIO_HIGH": "0.4"}, 0.5, "argument"),
        (["algorithm.preset=cispo"], {"ALGORITHM": "dapo"}, 4.0, "algorithm"),
        (["--algorithm", "none"], {"ALGORITHM": "dapo"}, 0.3, "default"),
    ],
)
def test_an_algorithm_wins_over_files_and_loses_to_the_user(resolve, arguments, environ, high, layer):
    recipe = resolve(*arguments, **environ)
    assert (recipe.value(HIGH), recipe.source_of(HIGH).layer) == (high, layer)


def test_an_algorithm_named_in_a_file_loses_to_the_files_keys_and_both_are_named(write):
    path = write("algorithm: {preset: gspo}\nworker: {actor: {clip_ratio_high: 0.001}}")
    recipe = load(str(path), environ={}, hardware="cpu")
    assert (recipe.value(HIGH), recipe.worker.actor.clip_ratio_low) == (0.001, 3e-4)
    other = load(str(path), environ={"ALGORITHM": "dapo"}, hardware="cpu")
    assert (other.value(HIGH), other.worker.actor.loss_type) == (0.28, "default"), "nothing of GSPO is left"
    assert [note for note in remarks(recipe) if "asks" in note] == [
        f"gspo asks for {HIGH} 0.0004, and {path} says 0.001"
    ]
    assert any(f"dapo.yaml replaces values of {path}: {HIGH} is 0.28, not 0.001" in note for note in remarks(other))
    assert (in_words(recipe), in_words(other)) == (f"gspo with {HIGH} 0.001", "dapo")


def test_a_later_file_is_told_what_the_tiny_block_of_the_first_replaces(write):
    path = write("data: {rollout_batch_size: 64}")
    notes = remarks(load("countdown", arguments=[str(path)], environ={}, hardware="cpu"))
    assert f"configs/countdown.yaml, tiny replaces values of {path}: data.rollout_batch_size is 8, not 64" in notes


# Where KL acts not, its estimator is left to the recipe; only DAPO filters.
OPTIONAL = {"algorithm.kl_penalty", "algorithm.kl_loss_type", "algorithm.filter_key"}
OPTIONAL |= {"worker.reward.overlong_buffer.len", "worker.reward.overlong_buffer.penalty_factor"}
EASYR1_LACKS = ("dr_grpo", "dapo", "reinforce_plus_plus_baseline")


@pytest.mark.parametrize("name", algorithms())
def test_every_recipe_takes_every_algorithm_which_leaves_nothing_of_another(name):
    chosen = algorithm(name)
    assert set(chosen.values) - OPTIONAL == set(algorithm("grpo").values) - OPTIONAL
    for task in tasks():
        for hardware in ("cpu", "gpu"):
            check(recipe := load(task, environ={"ALGORITHM": name}, hardware=hardware))
            assert verl.translate(recipe)["algorithm.adv_estimator"] == chosen.values["algorithm.adv_estimator"]
            assert not any(line.startswith("KL in the") for line in remarks(recipe)), "an estimator in the wrong place"
    recipe = load("countdown", environ={"ALGORITHM": name, "ENGINE": "easyr1"}, hardware="gpu")
    if name in EASYR1_LACKS:
        wrong = str(mistake(lambda: easyr1.translate(recipe)))
        assert wrong.startswith("EasyR1 cannot do ")
        assert f"configs/algorithms/{name}.yaml" in wrong
    else:
        assert easyr1.translate(recipe)["worker.actor.loss_type"] == chosen.values["worker.actor.loss_type"]


@pytest.mark.parametrize("hardware", ["cpu", "gpu"])
def test_what_is_left_to_the_machine_is_never_null_afterwards(resolve, hardware):
    left_open = [key for key, leaf in leaves(Recipe).items() if leaf.info.left_open]
    recipe = resolve(*(f"{key}=null" for key in left_open), hardware=hardware)
    assert not [key for key in left_open if recipe.value(key) is None]
    check(recipe)


def test_null_names_no_data(resolve, write):
    assert resolve("data.val_files=null").data.val_files == ""
    assert resolve("--val_data", "none").data.val_files == ""
    assert load(str(write("data: {val_files: null}"))).data.val_files == ""
