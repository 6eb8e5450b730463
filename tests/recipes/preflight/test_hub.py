"""A hub that is silent, refuses, does not know the model, or answers."""

from __future__ import annotations

import http.server
import socket
import threading
import time

import pytest

from recipes.errors import RecipeError
from recipes.preflight import hub


@pytest.fixture
def asks(make, monkeypatch, tmp_path):
    def ask(port):
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        return hub.check_hub(make("worker.actor.model.model_path=org/model"))

    return ask


def test_a_silent_hub_is_an_error_in_seconds(asks, monkeypatch):
    assert hub.TIMEOUT_S < 10
    monkeypatch.setattr(hub, "TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        start = time.monotonic()
        with pytest.raises(RecipeError, match="has not answered") as caught:
            asks(server.getsockname()[1])
    assert time.monotonic() - start < 5
    assert "MODEL_PATH" in caught.value.fix
    assert "worker.actor.model.model_path" in caught.value.where


def test_a_hub_that_refuses_is_an_error(asks):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(RecipeError, match="cannot be reached: .*refused"):
        asks(port)


@pytest.mark.parametrize(("code", "message"), [(200, None), (404, "no model org/model"), (503, "answers with 503")])
def test_what_a_hub_answers(asks, code, message):
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            self.send_response(code)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        if message is None:
            assert asks(server.server_port) == []
        else:
            with pytest.raises(RecipeError, match=message):
                asks(server.server_port)
        server.shutdown()
    assert asked == ["/org/model/resolve/main/config.json"]
