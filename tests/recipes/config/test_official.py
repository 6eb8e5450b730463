"""A recipe beside official examples: facts with a source, every difference with a kind and a reason, three views."""

from __future__ import annotations

import io
import re
import subprocess
from html.parser import HTMLParser

import pytest
from rich.console import Console

from recipes.config import load, official, official_checkout
from recipes.config.layers import read
from recipes.config.official import (
    ABSENT,
    AS_WRITTEN,
    OF_DEFAULTS,
    OUTSIDE,
    SNAPSHOTS,
    Official,
    Row,
    Table,
    block,
    comments,
    compare,
    examples,
    has_counterpart,
    html,
    markdown,
    names,
    page,
    repeats,
    snapshot,
    terminal,
    to_schema,
)
from recipes.config.official_checkout import (
    EASYR1_CLASSES,
    EASYR1_CONFIG,
    REPOSITORIES,
    VERL_DEFAULTS,
    arguments,
    defaults,
    write,
)
from recipes.config.resolve import tasks
from recipes.config.schema import Recipe, leaves
from recipes.engines.verl import translate
from recipes.errors import RecipeError
from recipes.paths import ROOT

COMMITS = {
    "easyr1": "b44b311b669bf1fd1aa2fc36f2251482ba33cb16",
    "verl": "b178a3cd56f58b2d502255daba591e92833930a7",
}


@pytest.mark.parametrize("stem", sorted(path.stem for path in SNAPSHOTS.glob("*.yaml")))
def test_a_snapshot_has_a_source_and_only_keys_that_are_known(stem):
    tree = snapshot(stem)
    assert (tree["repository"], tree["commit"]) == (REPOSITORIES[tree["engine"]], COMMITS[tree["engine"]])
    assert tree["file"]
    values = tree["values"]
    assert values
    if tree["engine"] == "easyr1":
        assert [key for key in values if key not in leaves(Recipe)] == []
    else:
        assert [k for k in values if not (has_counterpart(k) or repeats(k, values) or k in OUTSIDE)] == []


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "easyr1:3b",
            {
                "trainer.n_gpus_per_node": 2,
                "trainer.val_freq": 5,
                "data.rollout_batch_size": 512,
                "worker.actor.clip_ratio_high": 0.3,
                "worker.rollout.tensor_parallel_size": 2,
                "worker.ref.fsdp.enable_cpu_offload": True,
                "algorithm.use_kl_loss": True,
            },
        ),
        ("easyr1:7b", {"trainer.n_gpus_per_node": 8, "worker.actor.model.model_path": "Qwen/Qwen2.5-VL-7B-Instruct"}),
        ("easyr1:qwen2_5_vl_3b_android_gui", {"trainer.n_gpus_per_node": 2, "algorithm.kl_coef": 0.04}),
        (
            "verl:3b",
            {
                "data.rollout_batch_size": 16,
                "worker.actor.model.lora.rank": 64,
                "algorithm.kl_coef": 0.001,
                "algorithm.kl_penalty": "low_var_kl",
                "algorithm.use_kl_in_reward": False,
                "algorithm.disable_kl": False,
                "worker.ref.offload.offload_params": True,
                "trainer.save_limit": -1,
                "data.seed": None,
                "worker.rollout.dtype": "bf16",
            },
        ),
        ("verl:qwen3_4b_gsm8k_npu", {"trainer.n_gpus_per_node": 16, "worker.actor.max_token_len_per_device": 3000}),
    ],
)
def test_official_facts(name, facts):
    (example,) = examples([name])
    assert {key: example.values[key] for key in facts} == facts
    assert "worker.actor.clip_ratio_high" not in example.chosen or "npu" in name, "a default of the engine"


def test_examples_by_name_once_each():
    assert [each.title for each in examples(["easyr1", "easyr1:7b,verl:3b"])] == [
        "EasyR1, Qwen2.5-VL-3B, geo3k",
        "EasyR1, Qwen2.5-VL-7B, geo3k",
        "verl, Qwen2.5-3B with LoRA, GSM8K",
    ]
    for wrong in ("trl:toy", "easyr1:qwen3_4b_maths"):
        with pytest.raises(RecipeError, match="unknown official example") as raised:
            examples([wrong])
        assert raised.value.fix


@pytest.mark.parametrize("task", tasks())
def test_a_recipe_on_the_page_gives_a_reason_for_every_difference(task):
    text = (ROOT / "docs/COMPARISON.md").read_text(encoding="utf-8")
    blocks = re.findall(rf"<!-- generated: comparison {task}((?: [\w:.-]+)+) -->", text)
    if not blocks:
        pytest.skip("a recipe that is compared with no official example")
    for against in [words.split() for words in blocks] + ([[name] for name in names()] if task == "countdown" else []):
        compare(task, examples(against)).require_reasons()


def test_a_reason_for_a_default_is_for_a_key_that_differs_somewhere():
    every = examples(names())
    for key in OF_DEFAULTS:
        assert any(each.values.get(key, leaves(Recipe)[key].default) != leaves(Recipe)[key].default for each in every)


ROUND_TRIPS = (
    (),
    ("algorithm.use_kl_loss=true", "algorithm.kl_loss_coef=0.3", "algorithm.kl_loss_type=mse"),
    ("algorithm.disable_kl=true",),
    ("worker.actor.loss_avg_mode=seq", "worker.actor.loss_type=gspo_token", "worker.actor.dynamic_batching=true"),
    ("worker.actor.model.lora.rank=8", "worker.actor.model.lora.target_modules=q_proj,v_proj"),
    ("worker.rollout.limit_images=1", "data.min_pixels=1000", "data.max_pixels=2000", "worker.rollout.dtype=fp16"),
    ("trainer.save_limit=-1", "trainer.save_model_only=true", "trainer.find_last_checkpoint=false"),
    ("trainer.save_hf_model=false", "data.val_batch_size=32", "worker.actor.optim.lr_warmup_steps=5"),
    ("worker.rollout.val_override_config.temperature=0.6", "worker.rollout.val_override_config.n=4"),
)


@pytest.mark.parametrize("given", ROUND_TRIPS, ids=" ".join)
def test_what_is_translated_to_verl_reads_back(given):
    always = ["worker.actor.recompute_old_log_probs=true"]
    recipe = load("countdown", arguments=[*always, *given], environ=AS_WRITTEN, hardware="gpu")
    keys = dict(translate(recipe))
    keys["custom_reward_function.path"] = keys.pop("reward.custom_reward_function.path")
    before = official._effective({path: recipe.value(path) for path in leaves(Recipe)})
    after = official._effective(to_schema(keys))
    before["data.prompt_key"] = "prompt"
    filled = ("worker.rollout.max_model_len", "worker.actor.max_token_len_per_device")
    without = ("algorithm.kl_coef", "algorithm.kl_penalty") if recipe.algorithm.disable_kl else ()
    pairs = {key: (before[key], after[key]) for key in after if key in before and key not in (*filled, *without)}
    assert len(pairs) > 70
    assert {key: pair for key, pair in pairs.items() if pair[0] != pair[1]} == {}


RECIPE = """
data:
  train_files: artifacts/data/toy/train.parquet  # data.train_files; ours
  val_files: artifacts/data/toy/test.parquet  # data.val_files; ours
  rollout_batch_size: 64  # data.train_batch_size; small
  seed: 1  # data.seed
algorithm:
  norm_adv_by_std: false  # algorithm.norm_adv_by_std_in_grpo; Dr.GRPO
worker:
  actor:
    global_batch_size: 64  # one update a step
    model: {model_path: org/model}
  rollout: {n: 16, tensor_parallel_size: 1}
verl:
  data.truncation: left  # keeps the question
"""


def test_rows_have_a_kind_and_the_reason_behind_the_key(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(RECIPE, encoding="utf-8")

    def rows(*sides):
        every = [Official("Toy", "here", side, frozenset(side) - {"data.shuffle"}) for side in sides]
        return {row.key: row for row in compare(str(path), every).rows}

    found = rows({
        "data.rollout_batch_size": 64.0, "data.seed": 2, "data.shuffle": True, "worker.rollout.n": True,
        "worker.actor.global_batch_size": 128, "worker.rollout.tensor_parallel_size": 2,
        "worker.rollout.enable_chunked_prefill": False, "data.format_prompt": "a.jinja",
    })  # fmt: skip
    kinds = {
        "data.rollout_batch_size": "aligned",
        "data.seed": "task",
        "worker.rollout.n": "task",  # true is not 1
        "algorithm.norm_adv_by_std": "task",
        "worker.rollout.tensor_parallel_size": "hardware",
        "worker.rollout.enable_chunked_prefill": "hardware",
    }
    assert {key: found[key].status for key in kinds} == kinds
    assert "data.shuffle" not in found, "no side chose it, and it is the same"
    assert found["algorithm.norm_adv_by_std"].official == (ABSENT,)
    assert found["worker.actor.global_batch_size"].reason == "one update a step"
    assert found["worker.rollout.enable_chunked_prefill"].reason
    assert found["data.format_prompt"].ours is ABSENT
    assert "finished chat messages" in found["data.format_prompt"].reason
    native = found["verl.data.truncation"]
    assert (native.ours, native.status, native.reason) == ("left", "task", "keeps the question")
    one, other = {"data.rollout_batch_size": 64}, {"data.rollout_batch_size": 512}
    assert rows(one, other)["data.rollout_batch_size"].status == "task"
    assert rows(one, {})["data.rollout_batch_size"].status == "aligned"
    with pytest.raises(RecipeError, match=r"no reason is given for .*data\.seed") as raised:
        compare(str(path), [Official("Toy", "here", {"data.seed": 2}, frozenset())]).require_reasons()
    assert "toy.yaml" in raised.value.where


def test_comments(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "data:\n  seed: 1  # data.seed\n  shuffle: true  # data.shuffle; every epoch; anew\n"
        "  image_key: 'a # b'  # the column\n  train_files: [a, b]  # data.train_files: two\n  val_files: c\n"
        "worker:\n  rollout: {n: 4}  # a group\n  # alone\n"
        "trainer:\n  logger: [console]  # scripts/launch.sh; reads it\n",
        encoding="utf-8",
    )
    assert comments(path) == {
        "data.shuffle": "every epoch; anew",
        "data.image_key": "the column",
        "worker.rollout": "a group",
        "trainer.logger": "scripts/launch.sh; reads it",
    }


EXAMPLE = Official("Toy <1>", "https://example.org, commit abc, a.sh", {}, frozenset(), {"data.x": 1})
ROWS = (
    Row("data.seed", 1, (1,), (True,), "aligned", "never shown"),
    Row("data.train_files", "a|b", ("<c>",), (False,), "task", "ours & theirs"),
    Row("worker.rollout.n", 4, (ABSENT,), (True,), "hardware", ""),
)
TABLE = Table("configs/toy.yaml", (EXAMPLE,), ROWS, 3)


class Cells(HTMLParser):
    """The text of each cell of the body."""

    def __init__(self):
        super().__init__()
        self.cells, self._inside = [], False

    def handle_starttag(self, tag, attrs):
        if tag == "td":
            self.cells.append("")
        self._inside = tag == "td"

    def handle_data(self, data):
        if self._inside:
            self.cells[-1] += data

    def handle_endtag(self, tag):
        self._inside = False


def test_three_views_show_every_row_and_escape_what_they_must():
    assert markdown(TABLE, "aligned").splitlines()[0::2] == [
        "| key | ours | Toy <1> |",
        "| `data.seed` | `1` | `1` (default) |",
    ]
    assert markdown(TABLE, "task").splitlines()[2] == "| `data.train_files` | `a\\|b` | `<c>` | ours & theirs |"
    assert markdown(TABLE, "hardware").splitlines()[2] == "| `worker.rollout.n` | `4` | — | NO REASON GIVEN |"
    text = page(TABLE)
    assert "1 keys aligned, 1 different for the task, 1 for the hardware; 3 more" in text
    assert "- Toy <1>: https://example.org, commit abc, a.sh." in text
    assert "`data.x: 1`" in text

    reader = Cells()
    reader.feed(html(TABLE))
    assert reader.cells[:5] == ["data.seed", "1", "1 (default)", "aligned", ""]
    assert reader.cells[5:10] == ["data.train_files", "a|b", "<c>", "task", "ours & theirs"]
    assert not [tag for tag in ("<c>", "Toy <1>", "<script", "src=") if tag in html(TABLE)]

    console = Console(width=200, record=True, file=io.StringIO())
    console.print(terminal(TABLE))
    shown = console.export_text()
    assert all(row.key in shown for row in ROWS)
    with pytest.raises(RecipeError, match="names a recipe and official examples"):
        block("countdown")


CLASSES = """
@dataclass
class Optim:
    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.999)
    training_steps: int = field(default=-1, init=False)

@dataclass
class PPOConfig:
    seed: int = 1
    optim: Optim = field(default_factory=Optim)
    val_override_config: dict[str, Any] = field(default_factory=dict)
"""


@pytest.fixture
def checkout(tmp_path):
    """`checkout(files)`: a git repository with these files, and its commit."""

    def build(files: dict[str, str]):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
            subprocess.run([*git, *words], check=True)
        return tmp_path, subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()

    return build


EASYR1 = dict.fromkeys(EASYR1_CLASSES, "") | {
    EASYR1_CLASSES[0]: CLASSES,
    EASYR1_CONFIG: "data:\n  seed: 2\n  max_prompt_length: 100\n",
    "examples/toy_grpo.sh": "MODEL=org/m  # yours\npython3 -m verl.trainer.main \\\n  config=examples/config.yaml \\\n"
    "  data.max_prompt_length=7 \\\n  worker.actor.model.model_path=${MODEL}\n",
}


def test_a_checkout_of_easyr1_has_three_layers(checkout, tmp_path_factory, monkeypatch):
    folder, revision = checkout(EASYR1)
    (example,) = examples(["easyr1:toy"], folder)
    expected = {"data.max_prompt_length": 7, "data.seed": 2, "optim.lr": 1e-6, "optim.betas": [0.9, 0.999]}
    assert {key: example.values[key] for key in expected} == expected
    assert example.values["worker.actor.model.model_path"] == "org/m"
    assert "data.seed" in example.chosen
    assert "optim.lr" not in example.chosen
    assert revision in example.origin
    with pytest.raises(RecipeError, match="no example 'toi'"):
        examples(["easyr1:toi"], folder)
    with pytest.raises(RecipeError, match="not in a checkout of easyr1"):
        examples(["verl:toy"], folder)

    monkeypatch.setattr(official_checkout, "names", lambda: ["easyr1:toy"])
    monkeypatch.setattr(official_checkout, "snapshot", lambda _: {"title": "Toy", "file": "examples/toy_grpo.sh"})
    out = tmp_path_factory.mktemp("official")
    assert len(write(folder, out)) == 3
    tree = read(out / "easyr1_toy.yaml")
    assert (tree["commit"], tree["below"], tree["title"]) == (revision, ["config", "defaults"], "Toy")
    assert tree["values"] == {"data.max_prompt_length": 7, "worker.actor.model.model_path": "org/m"}


def test_a_checkout_of_verl_is_read_in_the_recipes_keys(checkout, tmp_path_factory):
    folder, _ = checkout({
        VERL_DEFAULTS: "data: {train_batch_size: 1024, seed: null}\nactor_rollout_ref:\n  rollout:\n"
        "    dtype: bfloat16\n    ignore_eos: '${oc.select:data.seed,false}'\n    top_k: '${oc.select:no.such,-1}'\n",
        "examples/grpo_trainer/run_toy.sh": "x=1\npython3 -m verl.trainer.main_ppo data.train_batch_size=$x "
        'data.truncation=error $@ 2>&1 | tee "a=b"\n',
    })  # fmt: skip
    (example,) = examples(["verl:toy"], folder)
    expected = {"data.rollout_batch_size": 1, "worker.rollout.dtype": "bf16", "worker.rollout.top_k": -1}
    assert {key: example.values[key] for key in expected} == expected
    assert example.values["worker.rollout.ignore_eos"] is None
    assert example.chosen == {"data.rollout_batch_size"}
    assert example.outside == {"data.truncation": "error"}
    with pytest.raises(RecipeError, match="no checkout"):
        examples(["verl:toy"], tmp_path_factory.mktemp("empty"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python3 -m verl.trainer.main a.b=1e-6 c=True", {"a.b": 1e-6, "c": True}),
        ("""python -m verl.trainer.main l='["a","b"]'""", {"l": ["a", "b"]}),
        ("X=${X:-${Y:-${HOME}/v}/m}\npython3 -m verl.trainer.main_ppo p=${X}", {"p": "$HOME/v/m"}),
        ("N=n_$(date +%Y %m)\npython3 -m verl.trainer.main n=${N} k=1", {"n": "n_$(date +%Y %m)", "k": 1}),
        ("X=$X/a\npython3 -m verl.trainer.main +p=1", {"p": 1}),
        ("python3 -m verl.trainer.main a=1 2>&1 | tee log=2.txt\n", {"a": 1}),
        ("echo hello", "starts no trainer"),
        ('D=(a=1)\npython3 -m verl.trainer.main_ppo "${D[@]}" b=2', "arrays"),
    ],
)
def test_launchers_text(text, expected):
    if isinstance(expected, dict):
        assert arguments(text, "toy.sh") == expected
    else:
        with pytest.raises(RecipeError, match=expected):
            arguments(text, "toy.sh")


def test_defaults_that_cannot_be_read(tmp_path):
    (tmp_path / "c.py").write_text("class PPOConfig:\n    a: int = compute()\n")
    for file, root, words in (
        ("c.py", "PPOConfig", "default of a is no constant"),
        ("c.py", "Other", "no class Other"),
        ("none.py", "PPOConfig", "cannot read"),
    ):
        with pytest.raises(RecipeError, match=words):
            defaults([tmp_path / file], root)
