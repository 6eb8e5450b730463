"""A scripted model server, the reward and three rounds."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from recipes.data.rewards import load_reward
from recipes.tasks.number_game.rules import parse_deal


@pytest.fixture
def score():
    """The reward."""
    return load_reward("reward_functions/number_game.py").compute_score


@pytest.fixture
def deals():
    """Three rounds whose answers are 1, 2 and 0."""
    return [parse_deal(code) for code in ("g374", "r952", "y581")]


class ModelServer(ThreadingHTTPServer):
    """OpenAI's chat completions; `answers` is called with the request, and returns a text.

    A returned number is an HTTP status, None is a reply without choices.
    """

    def __init__(self, answers):
        self.answers, self.requests = answers, []
        super().__init__(("127.0.0.1", 0), _Completions)
        self.api_base = f"http://127.0.0.1:{self.server_address[1]}/v1"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class _Completions(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        model = {"id": "tiny", "object": "model", "created": 0, "owned_by": "me"}
        self._send({"object": "list", "data": [model]})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append(request)
        answer = self.server.answers(request)
        if isinstance(answer, int):
            self._send({"error": {"message": "scripted"}}, answer)
        else:
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


@pytest.fixture
def model_server():
    """Start a model server with scripted answers."""
    servers = []

    def start(answers):
        servers.append(ModelServer(answers))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
