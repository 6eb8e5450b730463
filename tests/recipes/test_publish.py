"""The model card says what the run's files say, and a hub receives what lies in the folder."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from recipes import publish
from recipes.config import load, to_yaml
from recipes.errors import RecipeError
from recipes.paths import ROOT, checkpoint_dir, run_dir

WEIGHTS = bytes(range(256)) * 8


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run: checkpoint of step 2, validations at 0, 2 and 4, the last one later than the checkpoint."""
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path))
    recipe = load("countdown", environ={}, hardware="cpu")
    folder, model = run_dir("countdown"), checkpoint_dir("countdown") / "global_step_2" / "actor" / "huggingface"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(WEIGHTS)
    (model / "config.json").write_text("{}")
    (checkpoint_dir("countdown") / "latest_checkpointed_iteration.txt").write_text("2")
    (folder / "validation").mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(recipe))
    with (folder / "metrics.jsonl").open("w") as metrics:
        for step, right in ((0, 2), (2, 9), (4, 10)):
            same = {"input": "q", "output": "1", "gts": "1", "score": 0.0}
            answers = [same | {"acc": float(i < right), "row_id": f"r{i}"} for i in range(10)]
            (folder / "validation" / f"{step}.jsonl").write_text("\n".join(map(json.dumps, answers)) + "\n")
            data = {"val-core/countdown/acc/mean@1": right / 10}
            metrics.write(json.dumps({"step": step, "data": data}) + "\n")
    manifest = {"rows": 2048, "source": "generated", "sha256": "ab" * 32}
    (tmp_path / "data" / "countdown_tiny").mkdir(parents=True)
    (tmp_path / "data" / "countdown_tiny" / "train.manifest.json").write_text(json.dumps(manifest))
    return model


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "publish.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", **variables},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


def test_the_card_states_steps_data_and_accuracy_with_intervals(run: Path) -> None:
    recipe, checkpoint = publish.find("countdown", None)
    path = publish.write_card(recipe, checkpoint, licence="mit")
    text = path.read_text(encoding="utf-8")
    fields = yaml.safe_load(text.split("---\n")[1])

    assert path == run / "README.md"
    assert fields["license"] == "mit"
    assert fields["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.9
    rows = [line for line in text.splitlines() if line.startswith("| ") and "| countdown |" in line]
    assert [row.split(" | ")[0::2][0].strip("| ") for row in rows] == ["0", "2"], "none after the checkpoint"
    # Wilson's interval of 9 in 10; the seven questions gained and none lost give McNemar's 2 / 2**7.
    assert "0.900 | 0.596 to 0.982 | 10" in rows[1]
    assert "same 10 questions: +0.700" in text
    assert "p = 0.016" in text
    assert "| training | train.parquet | 2048 | generated | " + "ab" * 32 in text
    assert "vllm serve . --served-model-name countdown --max-model-len 112" in text
    assert str(run_dir("countdown").parents[1]) not in text, "no folder of this machine"
    configuration = text.split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(configuration)["worker"]["actor"]["optim"]["lr"] == recipe.worker.actor.optim.lr


def test_an_edited_card_stays_unless_asked(run: Path) -> None:
    (run / "README.md").write_text("mine")
    (run_dir("countdown") / "metrics.jsonl").write_text("")
    recipe, checkpoint = publish.find("countdown", 2)

    assert publish.write_card(recipe, checkpoint).read_text() == "mine"
    assert "The run was not validated." in publish.write_card(recipe, checkpoint, overwrite=True).read_text()


@pytest.mark.parametrize(
    ("experiment", "step", "names"), [("countdwn", None, "countdown"), ("countdown", 3, "one of 2")]
)
def test_what_is_not_there_is_named_with_what_is(run: Path, experiment: str, step: int | None, names: str) -> None:
    with pytest.raises(RecipeError) as caught:
        publish.find(experiment, step)
    assert names in str(caught.value)


class Hub(ThreadingHTTPServer):
    """The calls that an upload makes of a hub: create, preupload, commit."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubRequest)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.files: dict[str, bytes] = {}


class HubRequest(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Authorization") != "Bearer good":
            self.answer({"error": "who are you?"}, 401)
        elif self.path == "/api/repos/create":
            self.answer({"url": f"{self.server.address}/me/model", "name": "me/model"})
        elif "/preupload/" in self.path:
            files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
            self.answer({"files": files})
        elif "/commit/" not in self.path:
            self.answer({})
        else:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer({"commitUrl": f"{self.server.address}/me/model/commit/1", "commitOid": "1", "success": True})

    def do_GET(self) -> None:
        self.answer({"error": "not found"}, 404)

    def answer(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def test_a_push_uploads_the_folder_and_a_refusal_says_what_to_do(run: Path, hub: Hub) -> None:
    pushed = command("countdown", "--push", "me/model", "--private", HF_ENDPOINT=hub.address, HF_TOKEN="good")

    assert pushed.returncode == 0, pushed.stderr
    assert f"pushed: {hub.address}/me/model/commit/1" in pushed.stdout
    assert hub.files == {path.name: path.read_bytes() for path in run.iterdir()}
    assert hub.files["model.safetensors"] == WEIGHTS

    refused = command("countdown", "--push", "me/model", HF_ENDPOINT=hub.address, HF_TOKEN="bad")
    unreachable = command("countdown", "--push", "me/model", HF_ENDPOINT="http://127.0.0.1:9", HF_TOKEN="good")
    for done, fix in ((refused, "hf auth login"), (unreachable, "HF_ENDPOINT")):
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert fix in done.stderr
