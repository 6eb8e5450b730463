"""`scripts/serve.py` answers a request of OpenAI's form with a run's model; vLLM's own command would not start here."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from recipes.paths import ROOT
from tests.ports import free_port

pytestmark = pytest.mark.trainer(seconds=15)
TINY = ROOT / "recipes" / "tasks" / "countdown" / "tiny"


def test_the_last_step_of_a_run_is_served_and_answers(tmp_path: Path) -> None:
    port, run = free_port(), tmp_path / "run"
    shutil.copytree(TINY, run / "global_step_1" / "actor" / "huggingface")
    options = ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "96", "--served-model-name", "tiny"]
    command = [sys.executable, str(ROOT / "scripts" / "serve.py"), str(run), *options, "--dtype", "float32"]
    environment = {**os.environ, "no_proxy": "127.0.0.1"}
    log = tmp_path / "log"
    with log.open("w") as stream:
        pipes = {"stdout": stream, "stderr": subprocess.STDOUT}
        server = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True, **pipes)
    try:
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "3 5 7"}], "max_tokens": 8, "temperature": 0}
        reply = ask(f"http://127.0.0.1:{port}/v1/chat/completions", asked, server)
        assert reply, log.read_text()[-3000:]
        assert reply["choices"][0]["message"]["content"]
        assert 1 <= reply["usage"]["completion_tokens"] <= 8
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def ask(url: str, asked: dict[str, object], server: subprocess.Popen[bytes]) -> dict | None:
    """The answer, once the server is up; None where it ended, or was not up within five minutes."""
    request = urllib.request.Request(url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with opener.open(request, timeout=60) as response:
                return json.load(response)
        except urllib.error.HTTPError:
            raise
        except OSError:
            time.sleep(0.5)
    return None
