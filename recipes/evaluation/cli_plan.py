"""From command line options to a plan, with the recipe's values where an option is not given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError
from recipes.evaluation.defaults import Defaults, existing, from_recipe
from recipes.evaluation.plan import Plan
from recipes.evaluation.sampling import Sampling
from recipes.evaluation.sampling.openai_server import Server
from recipes.evaluation.sampling.vllm_engine import Engine
from recipes.evaluation.scoring import Reward
from recipes.evaluation.subjects import Subject, local_subject, server_subject


def plan_of(task: str, options: dict[str, Any]) -> Plan:
    """The plan that the options of `recipes.evaluation.cli.make_app` ask for."""
    defaults = from_recipe(task)
    analyse = options["mode"].value == "analyse"
    if analyse and options["base_model_path"]:
        raise RecipeError("analyse looks at one model", where="--base_model_path", fix="leave out one of the two")
    sampled = Sampling(
        n=_given(options["rollout_n"], defaults.n),
        temperature=_given(options["temperature"], defaults.temperature),
        top_p=_given(options["top_p"], defaults.top_p),
        max_tokens=_given(options["max_tokens"], defaults.max_tokens),
        seed=options["seed"],
    )
    return Plan(
        task=task,
        subjects=_subjects(options),
        data=_data(options["data_path"], defaults, task, analyse=analyse),
        reward=Reward(
            options["reward_path"] or defaults.reward, None if options["reward_path"] else defaults.reward_arguments
        ),
        sampled=sampled,
        greedy=None if analyse else replace(sampled, n=1, temperature=0.0, top_p=1.0),
        limit=options["limit"],
        sample_seed=options["sample_seed"],
        batch=_given(options["batch_size"], defaults.batch) if analyse else None,
        engine=Engine(
            _given(options["tensor_parallel_size"], defaults.tensor_parallel_size),
            options["gpu_memory_utilization"],
            options["dtype"],
            defaults.chat_template,
        ),
        filter_out=options["filter_out"],
        output=options["output_dir"],
        overwrite=options["overwrite"],
        fresh=options["fresh"],
        shown=options["shown"],
    )


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


def _data(path: Path | None, defaults: Defaults, task: str, *, analyse: bool) -> Path:
    if path is not None:
        return path
    return existing(defaults.train_files if analyse else defaults.test_files, task)


def _subjects(options: dict[str, Any]) -> tuple[Subject, ...]:
    trained = _subject(
        "trained" if options["base_model_path"] else "model",
        options["model_path"],
        "--model_path",
        options["api_base"],
        options["served_model"],
        options,
    )
    if not options["base_model_path"]:
        return (trained,)
    base = _subject(
        "base",
        options["base_model_path"],
        "--base_model_path",
        options["base_api_base"] or options["api_base"],
        options["base_served_model"],
        options,
    )
    if base.model_hash == trained.model_hash:
        raise RecipeError(
            "base and trained are the same model, file by file",
            where="--base_model_path",
            fix="name the model that training began from",
        )
    return (base, trained)


def _subject(label: str, asked: str, option: str, api_base: str, served: str, options: dict[str, Any]) -> Subject:
    if not api_base:
        return local_subject(label, asked, option)
    server = Server(
        api_base=api_base,
        model=served or asked,
        concurrency=options["concurrency"],
        retries=options["retries"],
        timeout=options["timeout"],
        logprobs=options["logprobs"],
    )
    return server_subject(label, asked, option, server)
