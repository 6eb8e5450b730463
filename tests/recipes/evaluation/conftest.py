"""A small task, a scripted model and a scripted OpenAI-compatible server."""

import hashlib
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import openai._base_client
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recipes.evaluation import evaluate
from recipes.evaluation.models import EvaluatedModel
from recipes.evaluation.options import Options
from recipes.evaluation.plan import EvaluationPlan
from recipes.evaluation.report import Result, html_page
from recipes.evaluation.scoring import Reward
from recipes.responses.measures import Group, Response, Sampling

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
# The client's HTTP library: httpx, or httpx2 from openai 3 on.
httpx = importlib.import_module(openai.DefaultHttpxClient.__base__.__module__.partition(".")[0])
SAMPLED, GREEDY = Sampling(8, 1.0, 1.0, 32, 0), Sampling(1, 0.0, 1.0, 32, 0)


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
        for name in ("config.json", "tokenizer.json"):
            (folder / name).write_text("{}", encoding="utf-8")
        if weights is not None:
            (folder / "model.safetensors").write_bytes(weights)
        return folder

    return make


def scripted_text(index: int, sample: int, skill: float) -> str:
    """Right for a fixed share `skill` of (question, sample) pairs; every tenth wrong one states nothing."""
    lot = hashlib.sha256(f"{index}:{sample}".encode()).digest()
    if lot[0] / 256 < skill:
        return f"<think>adding {index} and {index} gives {2 * index}</think><answer>{2 * index}</answer>"
    return "I do not know." if lot[1] < 26 else f"<think>a guess</think><answer>{2 * index + 1}</answer>"


class ScriptedSampler:
    """A `Sampler` without a model; `first` are texts for the first answer to a row, `ending` ends every other one."""

    ending = ""

    def __init__(self, skill: float) -> None:
        self.skill, self.closed = skill, False
        self.first: dict[int, str] = {}
        self.asked: list[int] = []

    def generate(self, questions: Any, sampling: Sampling) -> Iterator[Group]:
        for question in questions:
            self.asked.append(question.row)
            texts = [scripted_text(question.row, sample, self.skill) + self.ending for sample in range(sampling.n)]
            texts[0] = self.first.get(question.row, texts[0])
            lengths = [len(text.split()) for text in texts]
            logprobs = [None if sampling.greedy else -0.25 * length for length in lengths]
            yield Group(question.row, tuple(map(Response, texts, lengths, [False] * sampling.n, logprobs)))

    def close(self) -> None:
        self.closed = True


class ScriptedServer:
    """What a server answers, below the HTTP client; tests change it before and look at `requests` behind."""

    api_base = "http://scripted/v1"

    def __init__(self) -> None:
        self.models = [{"id": "tiny", "owned_by": "someone"}]
        self.requests: list[dict[str, Any]] = []
        self.statuses: list[int] = []  # statuses of the next replies; 0 breaks the connection
        self.die_after: int | None = None  # replies until every connection breaks
        self.running = self.most_running = 0
        self.meet: Callable[[], Any] = lambda: None  # called while a request runs
        self.reply: Callable[[dict[str, Any]], Any] = self.completion

    def answer(self, request: Any) -> Any:
        if self.die_after is not None and len(self.requests) >= self.die_after:
            raise httpx.ConnectError("scripted", request=request)
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"object": "list", "data": self.models}, request=request)
        asked = json.loads(request.read())
        self.requests.append(asked | {"path": request.url.path})
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.meet()
        self.running -= 1
        status = self.statuses.pop(0) if self.statuses else 200
        if status == 0:
            raise httpx.ReadError("scripted", request=request)
        if status != 200:
            return httpx.Response(status, json={"error": {"message": f"scripted {status}"}}, request=request)
        return httpx.Response(200, json=self.reply(asked), request=request)

    def completion(self, request: dict[str, Any]) -> dict[str, Any]:
        index = int(request["messages"][-1]["content"].split()[2])
        text = scripted_text(index, request["seed"] % 1000, 0.5)
        return {
            "model": request["model"],
            "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"completion_tokens": len(text.split())},
        }


@pytest.fixture
def server(monkeypatch) -> ScriptedServer:
    """A scripted server that every HTTP request of the test goes to; pauses between tries are short."""
    scripted = ScriptedServer()
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", lambda transport, request: scripted.answer(request))
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 0.02)
    return scripted


HOSTILE = (
    "<script>window.hacked = 1</script>",
    "</pre></details><img src=x onerror='window.hacked = 1'>",
    "{{ 7 * 7 }} {% raw %} \u202e reversed \x00 \x1b[31m",
    "<!-- <script> --> ]]> </script>",
)


class World:
    """Evaluations with scripted models named "model", "old" and "new" in a folder of their own."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, count: int = 30) -> None:
        self.data, self.reward_path = folder / "world.parquet", folder / "reward_file.py"
        self.reward_path.write_text(REWARD, encoding="utf-8")
        pq.write_table(pa.Table.from_pylist([row(i) for i in range(count)]), self.data)
        self.samplers = {"model": ScriptedSampler(0.5), "old": ScriptedSampler(0.3), "new": ScriptedSampler(0.7)}
        self.started: list[str] = []

        def start(subject: EvaluatedModel, *args: Any) -> ScriptedSampler:
            self.started.append(subject.name)
            return self.samplers[subject.name]

        patch.setenv("ARTIFACTS_DIR", str(folder / "artifacts"))
        patch.setattr(EvaluatedModel, "start", start)

    def subject(self, label: str, name: str) -> EvaluatedModel:
        return EvaluatedModel(label, name, f"hash of {name}", self.reward_path.parent)

    def plan(self, **changes: Any) -> EvaluationPlan:
        own = {"task": "sums", "subjects": (self.subject("model", "model"),), "data": self.data}
        own |= {"reward": Reward(str(self.reward_path)), "sampled": SAMPLED, "greedy": None, "batch": 32}
        typed = {name: changes.pop(name) for name in list(changes) if name in Options.__dataclass_fields__.keys() - own}
        own["options"] = Options(**typed)
        return EvaluationPlan(**(own | changes))

    def two(self, **changes: Any) -> EvaluationPlan:
        subjects = (self.subject("base", "old"), self.subject("trained", "new"))
        return self.plan(subjects=subjects, greedy=GREEDY, batch=None, **changes)

    def run(self, plan: EvaluationPlan) -> tuple[Result, Path]:
        return evaluate.run(plan)


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    monkeypatch.setattr(evaluate, "draw_all", lambda result: [])  # a second for every report; test_report.py draws
    return World(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def reports(tmp_path_factory) -> dict[str, tuple[Any, list[Any], list[Any]]]:
    """Result, samples and figures of a probe and of a comparison; the first answers are hostile."""
    captured: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        world = World(tmp_path_factory.mktemp("reports"), patch, count=40)
        for sampler in world.samplers.values():
            sampler.first = dict(enumerate((*HOSTILE, *(f"<answer>{2 * index}</answer>" for index in range(4, 7)))))
        patch.setattr(evaluate, "html_page", lambda *content: captured.update({content[0].kind: content}) or "")
        for plan in (world.plan(samples=60), world.two(samples=60)):
            world.run(plan)
    return captured


@pytest.fixture(scope="session")
def pages(reports) -> dict[str, str]:
    """The HTML page of each report."""
    return {kind: html_page(*content) for kind, content in reports.items()}
