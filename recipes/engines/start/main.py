"""`python -m recipes.engines.start.main key=value ...`: verl's PPO entry point, with a shorter start.

verl's own `verl.trainer.main_ppo` trains with the same keys, without the changes of the driver in `upstream.py`. Here
verl's task runner runs in the driver instead of in one more Ray actor.
"""

import gc
import os
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from subprocess import Popen
from types import SimpleNamespace
from typing import Any, NoReturn

import yaml

from recipes.engines import versions
from recipes.engines.start import cuda, forkserver, ray_head
from recipes.memory import gpus

SWITCH = "RECIPES_FORK_WORKERS"
"""Variable; 0 starts every process anew, which is slower and easier to debug."""
RAY_INIT = "ray_kwargs.ray_init"
FIRST_JOB = "01000000"
"""The id that a new Ray cluster gives its first driver."""
VERLS_OWN = ("trainer.use_v1=false", "global_profiler.tool=nsys")
"""Settings with which verl uses another task runner, or starts the task runner in another way."""
BEFORE_RAY = ("numpy", "pandas", "pyarrow.parquet", "transformers", "peft")
"""Modules that do not import Ray; importing them fills the time in which Ray starts."""
VERL = ("ray._private.workers.setup_worker", "recipes.engines.verl.agent_loops")
AFTER_RAY = {
    "cpu": (
        *VERL,
        "recipes.engines.cpu.engine",
        "recipes.engines.cpu.rollout",
        "vllm.v1.engine.core",
        "vllm.v1.worker.cpu_worker",
    ),
    "gpu": (
        *VERL,
        "verl.workers.engine_workers",
        "verl.workers.rollout.vllm_rollout.vllm_async_server",
        "recipes.engines.verl.engine",
        "vllm.entrypoints.openai.api_server",
        "vllm.v1.engine.core",
        "vllm.v1.engine.async_llm",
        "vllm.v1.worker.gpu_worker",
        "torch._inductor.compile_fx",
        "liger_kernel.transformers",
    ),
}
"""Modules that the driver, Ray's workers and vLLM's processes import."""


def main() -> int:
    """Run the trainer or, in a forked process, another process of the run; return the exit status."""
    hardware = "cpu" if "trainer.device=cpu" in [argument.lstrip("+") for argument in sys.argv] else "gpu"
    if hardware == "cpu":
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # if it is empty, Ray refuses the logical slots that verl counts
    if os.environ.get("RAY_ADDRESS"):  # Ray refuses cluster sizes in a call that only connects
        sizes = tuple(f"{RAY_INIT}.{name}=" for name in ray_head.PARAMETERS)
        sys.argv[1:] = [argument for argument in sys.argv[1:] if not argument.lstrip("+").startswith(sizes)]
    ray_init = ray_arguments(sys.argv[1:])
    if not can_fork(ray_init, sys.argv[1:]):
        return ordinary(hardware)
    return forked(train, ray_init, AFTER_RAY[hardware], __spec__.name, on_gpu=hardware == "gpu")


def forked(
    train: Callable[[str], int], ray_init: dict[str, Any], modules: Sequence[str], program: str, on_gpu: bool = False
) -> int:
    """Run `train`, and every process that Ray and vLLM then start, in forks of this process; return the exit status.

    If this process cannot be forked, it becomes `program`, which then starts each process anew.

    Args:
        train: called with the address of the Ray head node that this function has started.
        ray_init: sizes of that node.
        modules: what the processes import besides `BEFORE_RAY`.
        program: a module for `python -m`, with this process's arguments.
    """
    given, server, owner = dict(os.environ), forkserver.ForkServer(), os.getpid()
    starting = ray_head.launch(ray_init)
    gc.disable()  # imported objects are never freed; the collector would visit them again and again, for 2 of 10 s
    reason, node = import_all(modules, starting, ray_init, on_gpu)
    gc.enable()
    if reason is None:
        try:
            job = server.serve(partial(train, node.address))
        except OSError as error:
            reason = f"no process can be forked: {error}"
        else:
            if os.getpid() != owner:
                return job()
            node.stop()
            return end_now(job())
    print(f"every process is started anew, which takes longer: {reason}", file=sys.stderr, flush=True)
    node.stop()
    server.close()
    return os.execve(sys.executable, [sys.executable, "-m", program, *sys.argv[1:]], {**given, SWITCH: "0"})


def import_all(
    modules: Sequence[str], starting: Popen[str], ray_init: dict[str, Any], on_gpu: bool
) -> tuple[str | None, ray_head.Head]:
    """Import `modules` while Ray starts; return why this process must not be forked, or None, and Ray's head node."""
    begin = time.monotonic()
    gpu = gpus.model() if on_gpu else None
    if gpu:
        os.environ[cuda.NVML_CHECK] = "1"
    import torch

    with cuda.imports_without_cuda(torch.cuda, *gpu) if gpu else nullcontext():
        forkserver.preload(BEFORE_RAY)
        node = ray_head.connect(starting, ray_init)
        if "ray" in sys.modules:
            return "a module of BEFORE_RAY has imported Ray", node
        os.environ.update(RAY_JOB_ID=FIRST_JOB, RAY_RAYLET_PID=str(node.raylet_pid))  # before Ray is imported
        if on_gpu and gpu is None:
            return "nvidia-smi does not name the GPU", node
        ray_head.own_actor_ids()
        forkserver.preload(modules)
    threads = len(os.listdir("/proc/self/task"))
    print(f"imports made once, in {time.monotonic() - begin:.1f} s; threads: {threads}", file=sys.stderr, flush=True)
    return cuda.why_children_lack_cuda() if on_gpu else None, node


def can_fork(ray_init: dict[str, Any], arguments: list[str]) -> bool:
    """Return whether the fork server can be used; otherwise verl and Ray start each process."""
    plain = [argument.lstrip("+").lower() for argument in arguments]
    return (
        os.environ.get(SWITCH, "1") != "0"
        and sys.platform.startswith("linux")
        and set(ray_init) <= set(ray_head.PARAMETERS)
        and not os.environ.get("RAY_ADDRESS")
        and not any(argument in VERLS_OWN for argument in plain)
        and versions.installed("ray") == versions.TESTED_RAY
    )


def ray_arguments(overrides: list[str]) -> dict[str, Any]:
    """The plain values that the command line gives `ray_kwargs.ray_init`."""
    given = (override.lstrip("+").partition("=") for override in overrides)
    prefix = f"{RAY_INIT}."
    return {key.removeprefix(prefix): yaml.safe_load(value) for key, _, value in given if key.startswith(prefix)}


def ordinary(hardware: str) -> int:
    """Train with processes that verl, Ray and vLLM start themselves."""
    if hardware == "cpu" or not any(argument.lstrip("+").lower() in VERLS_OWN for argument in sys.argv):
        return train(None, in_driver=hardware == "cpu")
    runpy.run_module("verl.trainer.main_ppo", run_name="__main__", alter_sys=True)
    return 0


def train(address: str | None, in_driver: bool = True) -> int:
    """Compose verl's configuration from the command line and train.

    Args:
        address: address of a Ray cluster that runs already, or None.
        in_driver: whether verl's task runner runs in this process, instead of in a Ray actor as in verl.
    """
    import hydra
    import ray
    from omegaconf import OmegaConf, open_dict
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    from recipes.engines.verl.agent_loops import TaskRunner

    # In this process, the task runner stands behind the two calls that `run_ppo` makes of a Ray actor's class.
    run_here = SimpleNamespace(remote=lambda config: ray.put(TaskRunner().run(config)))
    local = SimpleNamespace(remote=lambda: SimpleNamespace(run=run_here))

    @hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)
    def run(config: Any) -> None:
        validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
        if address is not None:
            with open_dict(config):  # the node has its sizes already, and Ray refuses them in a call that only connects
                OmegaConf.update(config, RAY_INIT, {"address": address}, merge=False)
        run_ppo(config, task_runner_class=local if in_driver else ray.remote(TaskRunner))

    run()
    ray.shutdown()
    return end_now(0)


def end_now(status: int) -> NoReturn:
    """End this process without Python's clean-up, which takes a second."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
