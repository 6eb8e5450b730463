"""vLLM's look at a model's class, taken in a child: vLLM finds the answer, and a failure is only noted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own: the child is forked from one that has imported vLLM and started nothing.
LOOK = """
import json, os, sys
from functools import partial

from recipes.engines.start import forkserver, model_class
from recipes.engines.verl_cpu import patches

patches.name_vllm()
from vllm.model_executor.models import registry

def new_interpreter(function):
    raise AssertionError("a new interpreter")

registry._run_in_subprocess = new_interpreter
server, model, found = forkserver.ForkServer(), registry.ModelRegistry.models["Qwen3ForCausalLM"], []
for folder in sys.argv[1:]:
    server.run_beside(partial(model_class.inspect, ["a=1", f"actor_rollout_ref.model.path='{folder}'"]))
    _, status = os.wait()
    try:
        found.append([status, model.inspect_model_cls().is_text_generation_model])
    except AssertionError as error:
        found.append([status, str(error)])
server.close()
print(json.dumps(found))
"""
CONFIGS = {
    "missing": None,
    "unknown to vLLM": {"architectures": ["NoSuchModel"]},
    "broken": {"architectures": 3},
    "known": {"architectures": ["Qwen3ForCausalLM"]},
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the fork server is for Linux")
def test_vllm_finds_what_a_child_has_seen_of_the_class(tmp_path: Path) -> None:
    for name, config in CONFIGS.items():
        (tmp_path / name).mkdir()
        if config:
            (tmp_path / name / "config.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *(tmp_path / name for name in CONFIGS)],
        env={**os.environ, "VLLM_CACHE_ROOT": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [[0, "a new interpreter"]] * 3 + [[0, True]]
    assert done.stderr.count("done in advance, failed, and left to who needs it: TypeError") == 1
