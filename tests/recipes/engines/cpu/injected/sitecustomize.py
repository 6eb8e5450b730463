"""Injects one fault into a run. Python imports this module first in every process, since its folder is on PYTHONPATH.

`FAULT=victim@phase` says what happens to whom, `FAULT_FIRED` names the file that is written at that moment. The fault
strikes once, in the first such phase after the attempt has completed a step.

Victims: `worker` (the rank of the trainer), `driver` (the process that runs verl's loop), `vllm` (its server),
`trainer` (the process that the launcher started), `raylet`, `gcs`; killed with SIGKILL. `vllm-stopped` is stopped
instead, `raises` raises an error where it is, and `disk` lets no file of the rank grow. Phases: `generate`, `update`,
`save` (after the first of its files), `sync`, `receive` (the process of vLLM that holds the model gets weights), `log`
(the step is saved, and its metrics are not written yet).
"""

import asyncio
import functools
import importlib.abc
import importlib.machinery
import os
import resource
import signal
import sys
import time
from pathlib import Path

ROLLOUT = "verl.workers.rollout.vllm_rollout"
PLACES = {
    "generate": (f"{ROLLOUT}.vllm_async_server", "vLLMHttpServer", "generate"),
    "update": ("verl.workers.engine_workers", "ActorRolloutRefWorker", "update_actor"),
    "save": ("verl.workers.engine_workers", "ActorRolloutRefWorker", "save_checkpoint"),
    "sync": (f"{ROLLOUT}.bucketed_weight_transfer", "BucketedWeightSender", "async_send_weights"),
    "receive": (f"{ROLLOUT}.utils", "vLLMColocateWorkerExtension", "update_weights_from_ipc"),
    "log": ("verl.utils.tracking", "Tracking", "log"),
}
NAMES = {"raylet": "raylet", "gcs": "gcs_server"}


def strike(victim: str) -> None:
    """Do it, unless it was done or the attempt has no step yet."""
    metrics = Path(os.environ["VERL_FILE_LOGGER_PATH"])
    if not metrics.exists() or "actor/" not in metrics.read_text():
        return
    try:
        with open(os.environ["FAULT_FIRED"], "x") as fired:
            fired.write(repr(time.time()))
    except FileExistsError:
        return
    if victim == "raises":
        raise RuntimeError("injected")
    if victim == "disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))
        return
    number = signal.SIGSTOP if victim == "vllm-stopped" else signal.SIGKILL
    for pid in processes(victim):
        os.kill(pid, number)


def processes(victim: str) -> list[int]:
    """Process ids; every process of Ray's was forked by, or started below, the one that the launcher started."""
    import psutil

    if victim in ("worker", "driver"):
        return [os.getpid()]
    if victim == "trainer":
        return [os.getppid()]
    everything = psutil.Process(os.getppid()).children(recursive=True)
    if victim in NAMES:
        return [process.pid for process in everything if process.name() == NAMES[victim]]
    return [process.pid for process in everything if "HttpServer" in " ".join(process.cmdline())]


def wrapped(function, phase: str, victim: str):
    """`function`, which strikes when it begins; a save strikes after its first file."""
    if asyncio.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args, **kwargs):
            strike(victim)
            return await function(*args, **kwargs)

    elif phase == "save" and victim != "disk":

        @functools.wraps(function)
        def call(*args, **kwargs):
            import torch

            save = torch.save

            def save_and_strike(*save_args, **save_kwargs):
                save(*save_args, **save_kwargs)
                strike(victim)

            torch.save = save_and_strike
            return function(*args, **kwargs)

    else:

        @functools.wraps(function)
        def call(*args, **kwargs):
            strike(victim)
            return function(*args, **kwargs)

    return call


class Injector(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Wraps one method of one module as it is imported."""

    def __init__(self, victim: str, phase: str) -> None:
        self.victim, self.phase = victim, phase
        self.module, self.owner, self.method = PLACES[phase]

    def find_spec(self, name, path=None, target=None):
        if name != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        owner = getattr(module, self.owner)
        setattr(owner, self.method, wrapped(getattr(owner, self.method), self.phase, self.victim))


if os.environ.get("FAULT"):
    sys.meta_path.insert(0, Injector(*os.environ["FAULT"].split("@")))
