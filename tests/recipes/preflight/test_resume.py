"""A run goes on from itself alone: by content, with two ways on where something differs."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from recipes.engines.checkpoints import EVERYTHING, MODEL, VERL, last_checkpoint
from recipes.paths import run_dir
from recipes.preflight import resume
from recipes.runs.folder import RECORD, read_changes
from tests.mistakes import mistake
from tests.recipes.engines.test_checkpoints import archive
from tests.recipes.preflight.conftest import write_rows


def save(recipe, step=2, parts=EVERYTHING):
    folder = resume.folder(recipe)
    saved = folder / f"global_step_{step}"
    for file in VERL.files_of(saved, recipe.n_gpus, parts):
        archive(file, "data/0")
    (folder / VERL.tracker).write_text(str(step))
    return saved


def attempt(recipe, step=2, parts=EVERYTHING):
    """What an attempt leaves: the record of its checkpoints, and a checkpoint."""
    resume.record(recipe, resume.start(recipe))
    return save(recipe, step, parts)


@pytest.fixture
def refused(make):
    """`refused(named, *changes)`: the error of a recipe with these changes, which names something."""
    return lambda named, *changes: mistake(lambda: resume.check_resume(make(*changes)), named)


@pytest.fixture
def resumes(make):
    """`resumes(step, *changes)`: whether a recipe with these changes goes on from a step."""
    begins = "resuming from step {}"
    return lambda step, *changes: resume.check_resume(make(*changes)).remarks[0].startswith(begins.format(step))


CONTENTS = "actor_rollout_ref.actor.checkpoint.load_contents"
LOOPS = "actor_rollout_ref.rollout.agent.agent_loop_config_path"
ANYWAY = "trainer.find_last_checkpoint=changed"


@pytest.fixture
def reward(files):
    """A reward with a helper beside it, in a folder of its own."""
    folder = files / "rewards"
    folder.mkdir()
    (folder / "mine.py").write_text("import helper\n\ndef compute_score(*args, **kwargs):\n    return helper.score()\n")
    (folder / "helper.py").write_text("def score():\n    return 1.0\n")
    (folder / "unrelated.py").write_text("x = 1\n")
    return folder / "mine.py"


def test_the_same_recipe_resumes_and_settings_that_take_effect_are_listed(make):
    assert resume.check_resume(make()).remarks == ()
    attempt(make())
    changed = make("trainer.max_steps=8", "trainer.val_freq=3", "worker.actor.micro_batch_size_per_device_for_update=2")
    first, *changes = resume.check_resume(changed).remarks
    assert first.startswith("resuming from step 2")
    assert sorted(changes) == [
        "changed since the last attempt: trainer.max_steps: 4 -> 8",
        "changed since the last attempt: trainer.val_freq: 20 -> 3",
        "changed since the last attempt: worker.actor.micro_batch_size_per_device_for_update: 32 -> 2",
    ]


CHANGES = [
    ("algorithm.kl_coef=0.5", "algorithm.kl_coef: 0.01 -> 0.5", "takes effect"),
    ("worker.actor.optim.lr=1e-6", "worker.actor.optim.lr: ", "takes effect"),
    ("worker.rollout.n=4", "worker.rollout.n: 8 -> 4", "takes effect"),
    ("worker.actor.fsdp.torch_dtype=bf16", "worker.actor.fsdp.torch_dtype", "takes effect"),
    ("trainer.save_model_only=true", "trainer.save_model_only: False -> True", "takes effect"),
    ("data.seed=7", "data.seed: 1 -> 7", "the data begins anew"),
]


@pytest.mark.parametrize(("change", "shown", "effect"), CHANGES)
def test_changed_content_is_refused_with_two_ways_on(make, change, shown, effect, refused, resumes):
    attempt(make())
    error = refused("", change)
    assert shown in error.what
    assert "EXPERIMENT_NAME" in error.fix
    assert "RESUME=changed" in error.fix
    assert resume.check_resume(make(change, "trainer.experiment_name=another")).remarks == ()
    again = make(change, ANYWAY)
    remarks = resume.check_resume(again).remarks
    assert remarks[0].startswith("resuming from step 2")
    assert remarks[1].startswith(f"changed: {shown}")
    assert effect in remarks[1]
    resume.record(again, resume.start(again))
    (changed,) = read_changes(run_dir("countdown"))
    assert (changed.after_step, changed.changes[0].name) == (2, change.partition("=")[0])
    # The old content made step 2 still; the new one made what comes after.
    assert resumes(2)
    save(again, 3, {MODEL} if "model_only" in change else EVERYTHING)
    assert resumes(3, change)
    refused("")


def test_rows_rewards_and_models_are_their_content_wherever_they_lie(make, files, reward, refused, resumes):
    mine = f"worker.reward.reward_function={reward}"
    attempt(make(mine))
    for name in ("train.parquet", "model", "rewards"):
        copy = shutil.copytree if (files / name).is_dir() else shutil.copy
        copy(files / name, files / f"moved-{name}")
    moved = make(
        f"data.train_files={files}/moved-train.parquet",
        f"worker.actor.model.model_path={files}/moved-model",
        f"worker.reward.reward_function={files}/moved-rewards/mine.py",
    )
    assert resume.check_resume(moved).remarks[0].startswith("resuming from step 2")
    (reward.parent / "unrelated.py").write_text("x = 2\n")
    assert resumes(2, mine)
    (reward.parent / "helper.py").write_text("def score():\n    return 0.0\n")
    refused("helper.py", mine)
    reward.rename(reward.parent / "other.py")
    refused("other.py", mine.replace("mine.py", "other.py"))


def test_other_rows_in_the_same_file_and_other_weights_in_the_same_folder_are_seen(make, files, refused, resumes):
    attempt(make())
    write_rows(files / "test.parquet", 5)
    refused("validation rows: ")
    write_rows(files / "test.parquet", 4)
    assert resumes(2)
    write_rows(files / "train.parquet", prompt="Use the numbers 4, 8.")
    anew = resume.for_trainer(make(ANYWAY), resume.start(make(ANYWAY))).trainer.load_checkpoint_path
    assert anew == f"{resume.folder(make())}/.begun_anew/global_step_2"
    assert [path.name for path in Path(anew).iterdir()] == ["actor"]
    write_rows(files / "train.parquet")
    (files / "model" / "model.safetensors").write_bytes(b"other weights".ljust(4096))
    assert "MODEL_PATH" not in refused("model: ").fix, "the new run trains the model that was given"
    refused("model: ", ANYWAY)


IMPOSSIBLE = ["trainer.n_gpus_per_node=2", "worker.actor.strategy=fsdp2", "worker.actor.model.lora.rank=4"]


@pytest.mark.parametrize("change", [*IMPOSSIBLE, "trainer.find_last_checkpoint=false"])
def test_what_no_checkpoint_can_do_is_refused_whatever_is_asked(make, change, refused):
    attempt(make())
    assert "EXPERIMENT_NAME" in refused("", change, *[ANYWAY] * ("find_last" not in change)).fix


def test_a_step_that_was_saved_without_its_optimiser_gives_its_weights(make, refused):
    without = make("trainer.save_model_only=true")
    attempt(without, parts={MODEL})
    remarks = resume.check_resume(without).remarks
    assert any("begin anew" in each for each in remarks)
    assert resume.for_trainer(without, resume.start(without)).verl[CONTENTS] == ["model"]
    refused("save_model_only")
    assert any("begin anew" in each for each in resume.check_resume(make(ANYWAY)).remarks)


def test_what_an_earlier_save_of_a_step_left_is_not_gone_on_with(make):
    attempt(make(), 1)
    for file in save(make(), 2).glob("actor/model*"):
        file.unlink()  # cut off while it was saved
    without = make("trainer.save_model_only=true", ANYWAY)
    resume.begin_attempt(without, resume.start(without))
    save(without, 2, {MODEL})
    again = make("trainer.save_model_only=true")
    assert resume.for_trainer(again, resume.start(again)).verl[CONTENTS] == ["model"]
    assert any("step 2 was saved without the optimiser's state" in each for each in resume.check_resume(again).remarks)


def test_a_damaged_last_step_is_passed_over_and_the_tracker_mended(make, refused):
    attempt(make(), 1)
    saved = save(make(), 2)
    for file in saved.glob("actor/*"):
        file.unlink()
    remarks = resume.check_resume(make()).remarks
    assert "global_step_2/actor/" in remarks[0]
    assert remarks[1].startswith("resuming from step 1")
    assert last_checkpoint(resume.folder(make())).step == 2
    resume.begin_attempt(make(), resume.start(make()))
    assert last_checkpoint(resume.folder(make())).step == 1
    shutil.rmtree(resume.folder(make()) / "global_step_1" / "actor")
    refused("global_step_1")


def test_where_no_step_is_whole_the_last_model_that_is_begins_another_run(make, refused):
    saved = attempt(make())
    next(saved.glob("actor/*")).unlink()
    assert "MODEL_PATH" not in refused("no checkpoint is whole").fix
    model = saved / "actor" / "huggingface"
    model.mkdir(exist_ok=True)
    save_file({"a": np.zeros(2)}, model / "model.safetensors")
    assert f"MODEL_PATH={model}" in refused("the model of step 2 is whole").fix


OF_ANOTHER_FORM = '{"attempts": [{"after_step": 0, "content": null, "settings": null}]}'


@pytest.mark.parametrize("text", [None, "{", OF_ANOTHER_FORM])
def test_checkpoints_without_a_record_are_gone_on_from_only_when_asked(make, text, refused):
    attempt(make())
    record = resume.folder(make()) / RECORD
    record.write_text(text) if text else record.unlink()
    refused(RECORD)
    changed = make(ANYWAY)
    assert any("cannot be known" in remark for remark in resume.check_resume(changed).remarks)
    resume.record(changed, resume.start(changed))
    assert read_changes(run_dir("countdown"))[0].changes[0].old == "not recorded"


def test_a_checkpoint_of_another_run_is_compared_too(make, files, refused, resumes):
    saved = attempt(make("trainer.experiment_name=first"))
    other = f"trainer.load_checkpoint_path={saved}"
    assert resumes(2, other)
    refused("algorithm.kl_coef", other, "algorithm.kl_coef=0.5")
    assert "load_checkpoint_path" in refused("", f"trainer.load_checkpoint_path={files}").where
    for file in VERL.files_of(saved, 1, EVERYTHING):
        if "rank_0" in file.name:
            for rank in (0, 1):
                shutil.copy(file, file.with_name(file.name.replace("1_rank_0", f"2_rank_{rank}")))
            file.unlink()
    refused("ranks: 2 -> 1", other)


VERLS_OWN = [
    "actor_rollout_ref.actor.optim.min_lr_ratio=0.1",
    "algorithm.rollout_correction.rollout_is=token",
    "+actor_rollout_ref.rollout.repetition_penalty=1.1",
    "+data.apply_chat_template_kwargs.tools_in_user_message=false",
]


@pytest.mark.parametrize("key", VERLS_OWN)
def test_a_key_of_verls_that_one_attempt_has_is_another_run(make, key, refused, resumes):
    name = key.lstrip("+").partition("=")[0]
    attempt(make())
    refused(name, key)
    resume.record(make(key, ANYWAY), resume.start(make(key, ANYWAY)))
    save(make(), 3)
    refused(name)
    assert resumes(3, key)


def test_verls_default_is_no_change_and_its_settings_take_effect(make):
    attempt(make())
    remarks = resume.check_resume(make("algorithm.gamma=1.0", "ray_kwargs.ray_init.num_cpus=9")).remarks
    assert [name for name in ("algorithm.gamma", "ray_init.num_cpus") if name in str(remarks)] == ["ray_init.num_cpus"]


@pytest.mark.parametrize(
    "file", ["tokenizer.model", "merges.txt", "preprocessor_config.json", "generation_config.json", "modeling_own.py"]
)
def test_every_file_of_the_model_that_decides_responses_is_compared(make, files, file, refused, resumes):
    trusting = "worker.actor.model.trust_remote_code=true"
    (files / "model" / file).write_text("{}")
    attempt(make(trusting))
    assert resumes(2, trusting)
    (files / "model" / file).write_text("{ }")
    refused("model: ", trusting)


def test_a_generation_config_that_appears_or_vanishes_is_another_model(make, files, refused):
    file = files / "model" / "generation_config.json"
    attempt(make())
    file.write_text("{}")
    refused("generation_config.json")
    resume.record(make(ANYWAY), resume.start(make(ANYWAY)))
    save(make(), 3)
    file.unlink()
    refused("generation_config.json")


def test_files_that_a_reward_opens_and_its_arguments_name_are_compared(make, reward, refused, resumes):
    words, judge = reward.with_name("words.txt"), reward.parent / "judge" / "prompt.txt"
    judge.parent.mkdir()
    for file in (words, judge, beside := reward.with_name("beside.py")):
        file.write_text("one")
    reward.write_text('import helper\n\nWORDS = open("words.txt")\n')
    tools, calls = reward.with_name("tools.yaml"), reward.with_name("calls.py")
    tools.write_text("one")
    calls.write_text("import beside")
    arguments = f"worker.reward.reward_function_kwargs={{prompt: [{{file: {judge}}}]}}"
    called = f"worker.rollout.tools={calls}"
    given = (f"worker.reward.reward_function={reward}", arguments, f"verl.{LOOPS}={tools}", called)
    attempt(make(*given))
    assert resumes(2, *given)
    for file, name in ((words, "words.txt"), (judge, "prompt"), (tools, LOOPS), (beside, "rollout.tools")):
        file.write_text("two")
        refused(name, *given)
        file.write_text("one")
    written = reward.with_name("timeline.json")
    timeline = (*given, f"verl.ray_kwargs.timeline_json_file={written}")
    for text in ("one", "two"):  # by verl itself
        written.write_text(text)
        assert resumes(2, *timeline)
