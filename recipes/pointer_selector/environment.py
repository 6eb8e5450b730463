"""The environment variables of this recipe, in the form of the table that the other recipes share."""

from __future__ import annotations

from recipes.config.environment import Variable

VARIABLES: tuple[Variable, ...] = (
    Variable("RCE_EPOCHS", "rce.epochs"),
    Variable("GRPO_EPOCHS", "grpo.epochs"),
    Variable("BATCH_SIZE", "data.batch_size"),
    Variable("RCE_LR", "rce.lr"),
    Variable("GRPO_LR", "grpo.lr"),
    Variable("KL_BETA", "grpo.kl.beta"),
    Variable("REWARD_ALPHA", "reward.alpha"),
    Variable("REWARD_BETA", "reward.beta"),
    Variable("REWARD_MODE", "reward.mode"),
    Variable("NUM_LAYERS", "policy.layers"),
    Variable("SHOT_NUM", "data.shot_num"),
    Variable("EARLY_STOP_PATIENCE", "trainer.early_stop_patience"),
    Variable("SEED", "trainer.seed"),
    Variable("CANDIDATES", "data.candidates"),
    Variable("QUERY_EMBEDDINGS", "data.query_embeddings"),
    Variable("CANDIDATE_EMBEDDINGS", "data.candidate_embeddings"),
    Variable("EXPERIMENT_NAME", "trainer.experiment_name"),
    Variable("PROJECT_NAME", "trainer.project_name"),
    Variable("LOGGER", "trainer.logger"),
    Variable("RESUME", "trainer.resume"),
)
