"""The recipe's keys and environment variables, and their resolution.

Later layers win: configs/pointer_selector/recipe.yaml, the preset, environment variables, `key=value` arguments.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from recipes.config.path_keys import located
from recipes.config.schema import Section, Source, key
from recipes.config.variables import argument_settings, variable_settings
from recipes.paths import CONFIGS
from recipes.settings import SEED, Resolved, flatten, known_name, merge, settings_of, validated
from recipes.yaml_text import read, shown_path


class FilterConfig(Section):
    """Candidates left out of the training part, and queries that then have none; the other parts are not filtered."""

    score: Literal["beam_score", "vqa_acc_score", "vqa_gt_prob"] = key("vqa_gt_prob")
    """number that drop_incorrect_below looks at"""
    drop_incorrect_below: float | None = key(None)
    """leave out incorrect candidates whose score is below this; null: none"""


class DataConfig(Section):
    """Files, and what is taken from them."""

    candidates: str | None = key(None, "CANDIDATES", path="input", resume="place")
    """logged candidates, JSON lines; null: the embedded workload"""
    query_embeddings: str | None = key(None, "QUERY_EMBEDDINGS", path="input", resume="place")
    """safetensors or npz with query_embeddings; null: the embedded workload"""
    candidate_embeddings: str | None = key(None, "CANDIDATE_EMBEDDINGS", path="input", resume="place")
    """safetensors or npz with candidate_embeddings; null: the file of the queries"""
    shot_num: int = key(4, "SHOT_NUM", ge=1, le=32)
    """most picks of the sequences that are trained on"""
    batch_size: int = key(16, "BATCH_SIZE", ge=1)
    """queries in a batch, each with all its candidates"""
    train_queries: int = key(0, ge=0)
    """train on so many of the training queries, 100 of them among 200; 0: on all"""
    filters: FilterConfig = FilterConfig()


class PolicyConfig(Section):
    """The pointer network."""

    hidden: int = key(256, ge=8, multiple_of=4)
    """width of the projection and of the state, divided among 4 attention heads"""
    layers: int = key(1, "NUM_LAYERS", ge=1, le=3)
    """layers of cross-attention of the query over its pool"""
    temperature: float = key(0.1, gt=0)
    """temperature of the cosine scores"""
    dropout: float = key(0.1, ge=0, lt=1)
    """dropout in towers and attention"""


class RewardConfig(Section):
    """Definition of the reward."""

    mode: Literal["combined", "hard_soft", "separated", "correctness", "probability", "quality"] = key(
        "probability", "REWARD_MODE"
    )
    """which reward; see the table of rewards; combined where REWARD_BETA is set and the mode is not"""
    alpha: float = key(1.0, "REWARD_ALPHA", ge=0)
    """weight of the soft part (quality, accuracy score or probability)"""
    beta: float = key(1.0, "REWARD_BETA", ge=0)
    """weight of correctness"""


class RceConfig(Section):
    """The warm-up by reward-conditioned cross-entropy."""

    epochs: int = key(5, "RCE_EPOCHS", ge=0)
    """passes over the training groups"""
    lr: float = key(1e-3, "RCE_LR", gt=0)
    """peak learning rate"""
    tau_start: float = key(0.02, gt=0)
    """temperature of the weights at the first step"""
    tau_end: float = key(0.005, gt=0)
    """temperature of the weights at the last step"""


class KlConfig(Section):
    """The penalty for leaving the warm-up policy."""

    beta: float = key(0.0, "KL_BETA", ge=0)
    """weight of k3; the first one where it adapts"""
    over: Literal["logged", "policy"] = key("policy")
    """average k3 over all logged candidates alike, or by the probability that the policy gives them"""
    adaptive: bool = key(False)
    """change the weight after every epoch, so that the KL stays between 0.01 and 0.1"""


class CurriculumConfig(Section):
    """Few candidates of each group in the early epochs (early top-k), more of them later (late top-k)."""

    early_candidates: int = key(3, ge=0)
    """best candidates of each group used in the early epochs; 0: all"""
    late_candidates: int = key(0, ge=0)
    """best candidates of each group used after them; 0: all"""
    early_share: float = key(0.0, ge=0, le=1)
    """share of the GRPO epochs that counts as early; 0: no curriculum"""


class GrpoConfig(Section):
    """The second phase."""

    epochs: int = key(10, "GRPO_EPOCHS", ge=0)
    """passes over the training groups"""
    lr: float = key(1e-3, "GRPO_LR", gt=0)
    """peak learning rate"""
    clip: float = key(0.2, gt=0, lt=1)
    """PPO's clip of the ratio"""
    level: Literal["sequence", "step"] = key("step")
    """one ratio per candidate, or one per pick"""
    advantage: Literal["zscore", "rank"] = key("rank")
    """how rewards of a group become advantages"""
    kl: KlConfig = KlConfig()
    curriculum: CurriculumConfig = CurriculumConfig()


class ValidationConfig(Section):
    """Measurements after every epoch."""

    shots: list[int] = key(lambda: [1, 2, 3, 4])
    """numbers of picks to validate at"""
    train_queries: int = key(300, ge=0)
    """training queries measured in the same way, so that over-fitting shows"""


class TrainerConfig(Section):
    """The loop and what it writes."""

    experiment_name: str = key("pointer_selector", "EXPERIMENT_NAME", resume="place")
    """name of the run and of its folders"""
    seed: int = key(1, "SEED", **SEED)
    """initial weights, order of the data, dropout"""
    early_stop_patience: int = key(5, "EARLY_STOP_PATIENCE", ge=0)
    """epochs without a better validation before a phase stops; 0: never stop"""
    weight_decay: float = key(0.01, ge=0)
    """AdamW's weight decay"""
    warmup_share: float = key(0.1, ge=0, lt=1)
    """share of a phase's steps with a rising learning rate"""
    max_grad_norm: float = key(1.0, gt=0)
    """gradients are scaled down to this norm"""
    start_from: str | None = key(None, path="input")
    """checkpoint whose weights training begins with, for instance of supervised training"""
    device: Literal["auto", "cpu", "gpu"] = key("auto", "HARDWARE", resume="setting")
    """auto: a GPU if there is one"""
    threads: int = key(1, resume="setting", ge=1)
    """CPU threads of torch; more than there are free cores cost time"""


class PointerRecipe(Resolved):
    data: DataConfig = DataConfig()
    policy: PolicyConfig = PolicyConfig()
    reward: RewardConfig = RewardConfig()
    rce: RceConfig = RceConfig()
    grpo: GrpoConfig = GrpoConfig()
    validation: ValidationConfig = ValidationConfig()
    trainer: TrainerConfig = TrainerConfig()


FOLDER = CONFIGS / "pointer_selector"
RECIPE = FOLDER / "recipe.yaml"
TOP_K = {
    "grpo_early_top_k": "grpo.curriculum.early_candidates",
    "grpo_late_top_k": "grpo.curriculum.late_candidates",
}
"""Names of other implementations -> keys."""

OF_BETA = Source("default", "REWARD_BETA, a weight of correctness")
"""The source of a mode that follows from the weights: REWARD_ALPHA and REWARD_BETA alone are those of beam_score and
vqa_correct."""


def presets() -> list[str]:
    """The names that `--preset` takes, of files in configs/pointer_selector."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml") if path != RECIPE)


def resolve(
    arguments: Sequence[str] = (), *, preset: str | None = None, environ: Mapping[str, str] | None = None
) -> PointerRecipe:
    """The recipe after all layers; `arguments` are `key=value` or `VARIABLE=value`, `preset` is one of `presets`.

    Raises RecipeError, which names the key and the layer, for an unknown key or preset, or a wrong type.
    """
    settings = []
    for file in [RECIPE] if preset is None else [RECIPE, FOLDER / f"{preset}.yaml"]:
        settings += settings_of(PointerRecipe, read(file), Source("recipe", shown_path(file)))
    name = partial(known_name, schema=PointerRecipe, documentation="docs/POINTER_SELECTOR.md", named_elsewhere=TOP_K)
    settings += variable_settings(os.environ if environ is None else environ, PointerRecipe)
    settings += argument_settings(arguments, name, PointerRecipe)
    values, sources = merge(PointerRecipe, settings)
    if preset is None and sources["reward.beta"].by_user and not sources["reward.mode"].by_user:
        values["reward.mode"], sources["reward.mode"] = "combined", OF_BETA
    return validated(PointerRecipe, values | located(PointerRecipe, values, sources), sources)


def differences(recipe: PointerRecipe) -> list[str]:
    """The arguments of an evaluation: data, validation and experiment keys that differ from the shipped file."""
    shipped = flatten(resolve(environ={}).model_dump())
    kept = ("data.", "validation.", "trainer.experiment_name")
    values = flatten(recipe.model_dump()).items()
    return [f"{path}={value}" for path, value in values if path.startswith(kept) and value != shipped[path]]
