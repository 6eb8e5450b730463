"""A fake ADB server, a scripted model server, and whether there is a Chromium to test with."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from recipes.tasks.number_game import screens
from recipes.tasks.number_game.rules import parse_deal

_spec = importlib.util.spec_from_file_location("fake_adb", Path(__file__).with_name("fake_adb.py"))
fake_adb = importlib.util.module_from_spec(_spec)
sys.modules["fake_adb"] = fake_adb
_spec.loader.exec_module(fake_adb)


@pytest.fixture(scope="session")
def chromium_path():
    """A Chromium, or a skip with the reason."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next((path for name in screens.NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium")
    return found


@pytest.fixture
def adb():
    """Start a server with phones: `adb(lambda: [DrawnPhone("a")])`."""
    servers = []

    def start(phones):
        servers.append(fake_adb.FakeAdb(phones))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def phones():
    """The module with the phones."""
    return fake_adb


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch):
    """Look at phones more often than a real one would stand."""
    monkeypatch.setattr("recipes.tasks.number_game.android.PAUSE", 0.01)


class ModelServer:
    """OpenAI's chat completions with scripted responses; `answers` is called with the request, and returns a text.

    A returned number is an HTTP status, None is a reply without choices, a dict is the whole reply.
    """

    def __init__(self, answers):
        self.requests = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments):
                pass

            def do_GET(self):
                self._send(
                    {"object": "list", "data": [{"id": "tiny", "object": "model", "created": 0, "owned_by": "me"}]}
                )

            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.requests.append(request)
                answer = answers(request)
                if isinstance(answer, int):
                    self._send({"error": {"message": "scripted"}}, answer)
                    return
                if isinstance(answer, dict):
                    self._send(answer)
                    return
                message = {"role": "assistant", "content": answer}
                choices = [] if answer is None else [{"index": 0, "finish_reason": "stop", "message": message}]
                self._send({"id": "x", "object": "chat.completion", "created": 0, "model": "tiny", "choices": choices})

            def _send(self, payload, status=200):
                body = json.dumps(payload).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.api_base = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self):
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def model_server():
    """Start a model server with scripted answers."""
    servers = []

    def start(answers):
        servers.append(ModelServer(answers))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def score():
    """A reward with the contract's keys, so that these tests do not depend on the real one's rules."""

    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        said = solution_str.rpartition("Answer: ")[2].strip()
        right = float(said == ground_truth)
        reason = "correct" if right else "wrong" if said in ("0", "1", "2") else "no_answer"
        return {"score": right, "accuracy": right, "reason": reason}

    return compute_score


@pytest.fixture
def deals():
    """Three rounds whose answers are 1, 2 and 0."""
    return [parse_deal(code) for code in ("g374", "r952", "y581")]
