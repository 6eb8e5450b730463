"""The reward file, tried on real rows in a process of its own before the trainer starts."""

from __future__ import annotations

import json
import subprocess
import sys

from recipes.config import Recipe
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.preflight import data

TRIED_ROWS = 4
LIMIT_S = 60.0


def inspect(recipe: Recipe) -> list[str]:
    """Raise where the reward fails at import, lacks its function, or answers with something that is not a score."""
    reward = recipe.worker.reward
    if reward.reward_function is None:
        return []
    where = f"worker.reward.reward_function, from {recipe.source_of('worker.reward.reward_function')}"
    rows = data.sample(recipe, TRIED_ROWS)
    question = {
        "location": reward.reward_function,
        "engine": recipe.engine,
        "kwargs": reward.reward_function_kwargs,
        "rows": [_plain(row, recipe) for row in rows],
    }
    command = [sys.executable, "-m", "recipes.preflight.reward_worker"]
    try:
        answer = subprocess.run(
            command,
            input=json.dumps(question, default=str),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RecipeError(
            f"the reward took more than {LIMIT_S:.0f} s for {len(rows)} rows",
            where=where,
            fix="make it linear in the response's length",
        ) from error
    return _judged(answer, reward.reward_function, where)


def _judged(answer: subprocess.CompletedProcess[str], location: str, where: str) -> list[str]:
    said = next((line for line in answer.stdout.splitlines() if line.startswith('{"verdict"')), None)
    if said is None:
        last = answer.stderr.strip().splitlines()[-1:] or [f"exit code {answer.returncode}"]
        raise RecipeError(
            f"the reward ended its process: {last[0]}", where=f"{location} ({where})", fix="mend the reward file"
        )
    verdict = json.loads(said)
    if verdict["verdict"] == "wrong":
        raise RecipeError(verdict["what"], where=f"{verdict['where']} ({where})", fix=verdict["fix"])
    return []


def _plain(row: dict, recipe: Recipe) -> dict:
    """What a reward sees of a row, without images."""
    if recipe.engine == "easyr1":
        return {"ground_truth": row.get(recipe.data.answer_key)}
    reward_model = row.get("reward_model") or {}
    return {
        "data_source": row.get("data_source"),
        "ground_truth": reward_model.get("ground_truth"),
        "extra_info": row.get("extra_info"),
    }
