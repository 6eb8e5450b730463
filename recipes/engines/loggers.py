"""The places where a trainer's loggers write, as variables of its environment."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from recipes.config.resolve import logged_in

_PLACES = {
    "wandb": ("WANDB_DIR", "{folder}"),
    "tensorboard": ("TENSORBOARD_DIR", "{folder}/tensorboard"),
    "swanlab": ("SWANLAB_LOG_DIR", "{folder}/swanlab"),
    "mlflow": ("MLFLOW_TRACKING_URI", "sqlite:///{folder}/mlflow.db"),
}
"""Logger -> variable of its output folder, and our value. Loggers default to the working folder, mlflow to /tmp."""


def logger_environment(loggers: Sequence[str], folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The trainer's variables: loggers write to the run's `folder`, offline where there is no login.

    The user's `WANDB_ENTITY` and `WANDB_MODE` are among them, so that they hold on the run's other machines too.
    """
    taking_part = (_PLACES[name] for name in loggers if name in _PLACES)
    places = {name: text.format(folder=folder) for name, text in taking_part if not environ.get(name)}
    if "swanlab" in loggers and not (environ.get("SWANLAB_API_KEY") or environ.get("SWANLAB_MODE")):
        places["SWANLAB_MODE"] = "offline"
    if "wandb" not in loggers:
        return places
    given = {name: environ[name] for name in ("WANDB_ENTITY", "WANDB_MODE") if environ.get(name)}
    return {**places, **({} if logged_in(environ) else {"WANDB_MODE": "offline"}), **given}
