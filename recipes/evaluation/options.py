"""Options of an evaluation: each field of `Options` is an option, which typer reads from its annotation."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from recipes.errors import RecipeError
from recipes.paths import in_artifacts

MODES = ("reward", "analyse")
TWINS = {
    "rollout_n": "worker.rollout.n",
    "temperature": "worker.rollout.temperature",
    "top_p": "worker.rollout.top_p",
    "max_tokens": "data.max_response_length",
    "seed": "worker.rollout.seed",
    "tensor_parallel_size": "worker.rollout.tensor_parallel_size",
}
"""Option -> the recipe's key of the same quantity."""
BOUNDED_AS = {**TWINS, "temperature": "worker.rollout.val_override_config.temperature"}  # 0 is greedy
"""Option -> the recipe's key whose bounds it has."""


def _option(*names: str, help: str, **rules: Any) -> Any:
    return typer.Option(*(f"--{name}" for name in names), help=help, show_default=False, **rules)


@dataclass(frozen=True)
class Options:
    """Options of a command; None and "" leave a value to the recipe or the run."""

    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TASK] [reward|analyse] [key=value ...]",
            help="a recipe in configs/; reward: how good is the model? analyse: is there a signal for GRPO? key=value, "
            "such as max_prompt_length=600, and further YAML files: of the recipe, as the launcher takes them",
            show_default=False,
        ),
    ] = field(default=None)
    model_path: Annotated[str, _option("model_path", help="folder, checkpoint, or name on the hub or server")] = ""
    base_model_path: Annotated[str, _option("base_model_path", help="model before training, to compare with")] = ""
    run: Annotated[
        Path | None,
        _option("run", help="artifacts/runs/NAME: its data and reward, and its last checkpoint against its base"),
    ] = None
    data: Annotated[
        Path | None,
        _option("data", help="data file; default: the recipe's test set, for analyse its training set"),
    ] = None
    reward_func: Annotated[str, _option("reward_func", help="file or file:function; default: the recipe's")] = ""
    prompt_key: Annotated[str, _option("prompt_key", help="column of --data with the question")] = ""
    answer_key: Annotated[str, _option("answer_key", help="column of --data with the gold answer")] = ""
    data_source: Annotated[str, _option("data_source", help="of all rows of --data")] = ""
    limit: Annotated[int | None, _option("limit", help="ask this many questions, the first ones", min=1)] = None
    rollout_n: Annotated[int | None, _option("rollout_n", help="responses a question", min=1)] = None
    temperature: Annotated[float | None, _option("temperature", help="of sampling; 0: greedy")] = None
    top_p: Annotated[float | None, _option("top_p", help="size of the nucleus")] = None
    max_tokens: Annotated[int | None, _option("max_tokens", help="longest response", min=1)] = None
    seed: Annotated[int | None, _option("seed", help="of sampling and of the bootstrap", min=0)] = None
    filter_out: Annotated[Path | None, _option("filter_out", help="analyse: write the data that give a signal")] = None
    api_base: Annotated[str, _option("api_base", help="OpenAI-compatible server, such as http://host:8000/v1")] = ""
    base_api_base: Annotated[str, _option("base_api_base", help="server of the base model; default: --api_base")] = ""
    concurrency: Annotated[int, _option("concurrency", help="requests to a server in flight", min=1)] = 64
    tensor_parallel_size: Annotated[int | None, _option("tensor_parallel_size", help="GPUs a model", min=1)] = None
    gpu_memory_utilization: Annotated[
        float, _option("gpu_memory_utilization", help="share of a GPU for vLLM", min=0.01, max=1)
    ] = 0.85
    output_dir: Annotated[Path | None, _option("output_dir", help="of the report; default: under artifacts")] = None
    overwrite: Annotated[bool, _option("overwrite", help="replace --output_dir and --filter_out")] = False
    fresh: Annotated[bool, _option("fresh", help="generate again what the cache holds")] = False

    def __post_init__(self) -> None:
        """Hold values to types and bounds, find what lies in `artifacts/`; a model's name may be that on a server."""
        for name, adapter in _adapters().items():
            given = getattr(self, name)
            try:
                object.__setattr__(self, name, adapter.validate_python(given))
            except ValidationError as error:
                what, where = f"--{name} is {given}: {error.errors()[0]['msg']}", f"the option --{name}"
                raise RecipeError(what, where=where, fix="give a value that fits, or leave it out") from error
        for name in ("run", "data"):
            if given := getattr(self, name):
                object.__setattr__(self, name, Path(in_artifacts(str(given))))
        for name in ("output_dir", "filter_out"):  # a tool or a reward may change the folder
            if given := getattr(self, name):
                object.__setattr__(self, name, Path(given).absolute())

    @property
    def words(self) -> list[str]:
        """Return the options and arguments that change the recipe, as arguments of a launcher."""
        names = ("reward_func", "prompt_key", "answer_key", "data_source")
        options = [word for name in names if getattr(self, name) for word in (f"--{name}", getattr(self, name))]
        others = [argument for argument in self.arguments or () if argument not in (*MODES, self.task)]
        return [*sorted(others, key=lambda word: "=" in word), *options]  # files come first

    @property
    def analyse(self) -> bool:
        """Return whether this is the signal probe."""
        return "analyse" in (self.arguments or ())

    @property
    def task(self) -> str:
        """The task that is named, or "". Raises RecipeError for more than one, and for both modes."""
        if set(MODES) <= {*(self.arguments or ())}:
            raise RecipeError(f"{' and '.join(MODES)} are two modes", where="the arguments", fix="name one of the two")
        tasks = [argument for argument in self.arguments or () if argument not in MODES and "=" not in argument]
        if strange := [each for each in tasks[1:] if not each.endswith((".yaml", ".yml"))]:
            what = f"{strange[0]} is neither an option, key=value, a YAML file, nor one of {', '.join(MODES)}"
            raise RecipeError(what, where="the arguments", fix="see --help")
        return tasks[0] if tasks else ""


@cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    """What holds each option to its type and bounds."""
    from recipes.config.schema import Recipe, leaves

    found = {}
    for name, hint in get_type_hints(Options, include_extras=True).items():
        kind, option = get_args(hint)
        own = [Field(ge=option.min, le=option.max)]
        bounds = leaves(Recipe)[BOUNDED_AS[name]].field.metadata if name in BOUNDED_AS else own
        bounded: Any = Annotated[(kind | None, *bounds)]
        found[name] = TypeAdapter(bounded, config=ConfigDict(allow_inf_nan=False))
    return found
