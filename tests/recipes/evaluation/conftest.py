"""A small task, a scripted model and a scripted OpenAI-compatible server."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.evaluation.sampling import Group, Response, Sampling

REWARD = '''
"""Right where the answer tag holds the gold answer; a credit of 0.1 for the tag."""

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    tagged = "<answer>" in solution_str
    right = tagged and solution_str.split("<answer>")[-1].split("</answer>")[0].strip() == ground_truth
    return {
        "score": 1.0 if right else 0.1 * tagged,
        "accuracy": float(right),
        "format": float(tagged),
        "reason": "correct" if right else "wrong_answer" if tagged else "no_answer",
    }
'''


@pytest.fixture(autouse=True)
def artifacts(tmp_path, monkeypatch) -> Path:
    """Everything that a test makes lies in its own folder."""
    monkeypatch.setenv("ARTIFACTS_DIR", str(tmp_path / "artifacts"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path / "artifacts"


@pytest.fixture
def reward_path(tmp_path) -> Path:
    path = tmp_path / "reward_file.py"
    path.write_text(REWARD, encoding="utf-8")
    return path


def row(index: int, **changes: Any) -> dict[str, Any]:
    """A row as the data scripts write it; its gold answer is twice its index."""
    return {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": f"What is {index} + {index}?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(2 * index)},
        "extra_info": {"split": "train", "index": index},
        "problem": f"What is {index} + {index}?",
        "answer": str(2 * index),
    } | changes


@pytest.fixture
def make_row() -> Callable[..., dict[str, Any]]:
    return row


@pytest.fixture
def make_data(tmp_path) -> Callable[..., Path]:
    def make(count: int = 8, name: str = "train", rows: list[dict[str, Any]] | None = None) -> Path:
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.Table.from_pylist([row(i) for i in range(count)] if rows is None else rows), path)
        return path

    return make


@pytest.fixture
def make_model(tmp_path) -> Callable[..., Path]:
    """A folder that looks like a model; `weights` decide its hash."""

    def make(name: str = "model", weights: bytes | None = b"weights") -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}", encoding="utf-8")
        if weights is not None:
            (folder / "model.safetensors").write_bytes(weights)
        return folder

    return make


def scripted_text(index: int, sample: int, skill: float, salt: str = "") -> str:
    """Right for a fixed share `skill` of (question, sample) pairs; every tenth wrong one states nothing."""
    lot = hashlib.sha256(f"{salt}{index}:{sample}".encode()).digest()
    if lot[0] / 256 < skill:
        return f"<think>adding {index} and {index} gives {2 * index}</think><answer>{2 * index}</answer>"
    return "I do not know." if lot[1] < 26 else f"<think>a guess</think><answer>{2 * index + 1}</answer>"


class ScriptedSampler:
    """A `Sampler` without a model."""

    def __init__(self, skill: float = 0.5, salt: str = "") -> None:
        self.skill, self.salt = skill, salt
        self.die_after: int | None = None
        self.logprob = -0.25
        self.finish = "stop"
        self.asked: list[int] = []
        self.closed = False

    def generate(self, questions: Any, sampling: Sampling) -> Iterator[Group]:
        for question in questions:
            if self.die_after is not None and len(self.asked) >= self.die_after:
                raise KeyboardInterrupt
            self.asked.append(question.row)
            texts = [scripted_text(question.row, sample, self.skill, self.salt) for sample in range(sampling.n)]
            yield Group(
                question.row,
                tuple(
                    Response(t, len(t.split()), self.finish, None if sampling.greedy else self.logprob * len(t.split()))
                    for t in texts
                ),
            )

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def scripted() -> type[ScriptedSampler]:
    return ScriptedSampler


class Script:
    """What the server does; tests change it before and look at `requests` behind."""

    def __init__(self) -> None:
        self.models = [{"id": "tiny", "owned_by": "someone"}]
        self.requests: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.retry_after = ""  # header of replies that are not 200
        self.statuses: list[int] = []  # statuses of the next replies; 0 closes the connection
        self.die_after: int | None = None  # replies with status 200 until every connection is cut
        self.most_choices = 1_000
        self.skill = 0.5
        self.logprob: Any = -0.5
        self.logprobs_known = True
        self.nan_from: int | None = None  # number of the reply from which log-probabilities are NaN
        self.finish = "stop"
        self.served = 0
        self.running = 0
        self.most_running = 0
        self.lock = threading.Lock()
        self.slow = 0.0  # seconds before a reply with status 200
        self.wait_for = 0  # hold replies back until so many requests were in flight together

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        index = int(request["messages"][-1]["content"].split()[2])
        count = min(request.get("n", 1), self.most_choices)
        texts = [scripted_text(index, sample + request["seed"] % 1000, self.skill) for sample in range(count)]
        return {
            "id": "reply",
            "object": "chat.completion",
            "model": request["model"],
            "choices": [self._choice(number, text) for number, text in enumerate(texts)],
            "usage": {"completion_tokens": sum(len(text.split()) for text in texts)},
        }

    def _choice(self, number: int, text: str) -> dict[str, Any]:
        broken = self.nan_from is not None and len(self.requests) >= self.nan_from
        logprob = float("nan") if broken else self.logprob
        content = [{"token": token, "logprob": logprob} for token in text.split()]
        return {
            "index": number,
            "message": {"role": "assistant", "content": text},
            "finish_reason": self.finish,
            "logprobs": {"content": content} if self.logprobs_known else None,
        }


class Handler(BaseHTTPRequestHandler):
    """`/v1/models` and `/v1/chat/completions`, by the server's script."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        script: Script = self.server.script
        if script.die_after is not None and script.served >= script.die_after:
            self.connection.close()
            self.close_connection = True
            return
        self._send(200, {"object": "list", "data": script.models})

    def do_POST(self) -> None:
        script: Script = self.server.script
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with script.lock:
            script.requests.append(request | {"path": self.path})
            script.times.append(time.monotonic())
            script.running += 1
            script.most_running = max(script.most_running, script.running)
            status = script.statuses.pop(0) if script.statuses else 200
            if script.die_after is not None and script.served >= script.die_after:
                status = 0
            script.served += status == 200
        deadline = time.monotonic() + 5
        while script.most_running < script.wait_for and time.monotonic() < deadline:
            time.sleep(0.005)
        if status == 200:
            time.sleep(script.slow)
            self._send(200, script.reply(request))
        elif status == 0:
            self.close_connection = True
            self.connection.close()
        else:
            self._send(status, {"error": {"message": f"scripted {status}"}})
        with script.lock:
            script.running -= 1

    def _send(self, status: int, payload: dict[str, Any]) -> None:
        body = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status != 200 and self.server.script.retry_after:
            self.send_header("Retry-After", self.server.script.retry_after)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def api_base(script) -> Iterator[str]:
    """The address of a running scripted server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.script = script
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</pre></details><img src=x onerror='window.hacked = 1'>",
    "{{ 7 * 7 }} {% raw %} \u202e reversed \x00 \x1b[31m",
    "<!-- <script> --> ]]> </script>",
)


@pytest.fixture(scope="session")
def hostile() -> tuple[str, ...]:
    """Texts that a page must show and not obey."""
    return HOSTILE


@pytest.fixture(scope="session")
def reports(tmp_path_factory) -> dict[str, tuple[Any, list[Any], list[Any]]]:
    """Result, samples and figures of each kind, from scripted models; the first questions get hostile answers."""
    from recipes.evaluation import evaluate
    from recipes.evaluation.models import Subject
    from recipes.evaluation.plan import EvaluationPlan
    from recipes.evaluation.scoring import Reward

    folder = tmp_path_factory.mktemp("reports")
    (folder / "reward_file.py").write_text(REWARD, encoding="utf-8")
    pq.write_table(pa.Table.from_pylist([row(i) for i in range(40)]), folder / "test.parquet")

    class Scripted(Subject):
        def start(self, *args: Any) -> Any:
            return HostileSampler({"old": 0.35, "new": 0.7}[self.name], salt=self.name)

    def subject(label: str, name: str) -> Subject:
        return Scripted(label, name, name, f"hash of {name}", folder, "a <b>note</b>" if name == "old" else "")

    sampled, greedy = Sampling(8, 1.0, 1.0, 32, 0), Sampling(1, 0.0, 1.0, 32, 0)
    one, two = (subject("model", "new"),), (subject("base", "old"), subject("trained", "new"))
    kinds = {"analyse": (one, None), "evaluation": (one, greedy), "comparison": (two, greedy)}
    captured: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARTIFACTS_DIR", str(folder / "artifacts"))
        for kind, (subjects, first) in kinds.items():
            patch.setattr(
                evaluate, "write_report", lambda folder, *content, kind=kind: captured.update({kind: content})
            )
            reward = Reward(str(folder / "reward_file.py"))
            plan = EvaluationPlan("sums", subjects, folder / "test.parquet", reward, sampled, first, batch=32, shown=60)
            evaluate.run(plan, _silent)
    return captured


@pytest.fixture(scope="session")
def pages(reports) -> dict[str, str]:
    """The HTML page of each report."""
    from recipes.evaluation.report.page import html_page

    return {kind: html_page(*content) for kind, content in reports.items()}


@contextlib.contextmanager
def _silent(words: str, total: int) -> Iterator[Callable[[int], None]]:
    yield lambda count: None


class HostileSampler(ScriptedSampler):
    """The first answers to the first questions are the hostile texts, and three right ones without a thought."""

    def generate(self, questions: Any, sampling: Sampling) -> Iterator[Group]:
        for group in super().generate(questions, sampling):
            bare = [f"<answer>{2 * row}</answer>" for row in range(len(HOSTILE), len(HOSTILE) + 3)]
            first = dict(enumerate((*HOSTILE, *bare))).get(group.row)
            if first is None:
                yield group
            else:
                response = Response(first, 3, "length", None if sampling.greedy else -1.0)
                yield Group(group.row, (response, *group.responses[1:]))
