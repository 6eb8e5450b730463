"""Phones behind a fake ADB server, a scripted model server, and whether there is a Chromium to test with."""

from __future__ import annotations

import io
import json
import re
import shutil
import socketserver
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image, ImageDraw

from recipes.tasks.number_game import chromium
from recipes.tasks.number_game.pixels import colours
from recipes.tasks.number_game.rules import parse_deal


@pytest.fixture(scope="session")
def chromium_path():
    """A Chromium, or a skip with the reason."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next((path for name in chromium.NAMES if (path := shutil.which(name))), None)
    return path or pytest.skip("no Chromium: apt-get install chromium")


@pytest.fixture
def score():
    """A reward with the contract's keys, so that these tests do not depend on the real one's rules."""

    def compute_score(data_source, solution_str, ground_truth, extra_info=None):
        answer = solution_str.rpartition("Answer: ")[2].strip()
        right = float(answer == ground_truth)
        return {"score": right, "accuracy": right, "reason": "wrong" if answer in ("0", "1", "2") else "no_answer"}

    return compute_score


@pytest.fixture
def deals():
    """Three rounds whose answers are 1, 2 and 0."""
    return [parse_deal(code) for code in ("g374", "r952", "y581")]


class DrawnPhone:
    """The game drawn with Pillow in 360 x 780 pixels, behind the shell commands that Android has.

    Args:
        drops_after: shell commands until it is gone; `deaf`: taps that it ignores.
        cut: which screenshot is cut short (0-based); `crlf`: it writes line feeds as shells before Android 7 did.
        loads: whether its browser shows the page.
    """

    CARDS = ((18, 330, 114, 458), (129, 330, 225, 458), (240, 330, 336, 458))
    BUTTON = (100, 640, 260, 690)

    def __init__(self, serial, *, drops_after=None, deaf=0, cut=None, crlf=False, loads=True):
        self.serial, self.alive, self.ways, self.games, self.screenshots = serial, True, {}, 0, 0
        self._drops_after, self._deaf, self._cut, self._crlf, self._loads = drops_after, deaf, cut, crlf, loads
        self.deals, self.round, self.choice = [], 0, None

    def shell(self, command):
        if self._drops_after is not None:
            self._drops_after -= 1
            self.alive = self._drops_after >= 0
        if not self.alive:
            return b""
        if command == "screencap -p":
            out = io.BytesIO()
            self.draw().save(out, "PNG")
            self.screenshots += 1
            data = out.getvalue()
            if self._cut == self.screenshots - 1:
                return data[: len(data) // 2]
            return data.replace(b"\n", b"\r\n") if self._crlf else data
        if tap := re.fullmatch(r"input tap (\d+) (\d+)", command):
            self._deaf -= 1
            if self._deaf < 0:
                self.tap(int(tap[1]), int(tap[2]))
        elif self._loads:
            address = re.fullmatch(r"am start -a android\.intent\.action\.VIEW -d '([^']+)'", command)[1]
            port = urlsplit(address).port
            self.view(address.replace(f":{port}/", f":{self.ways[f'tcp:{port}'].removeprefix('tcp:')}/"))
        return b""

    def view(self, address):
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert b"game.js" in answer.read()
        options = parse_qs(urlsplit(address).query)
        self.show(options["theme"][0], options["deal"][0].split(","))

    def show(self, theme, codes):
        self.theme, self.deals, self.round, self.choice = theme, [parse_deal(code) for code in codes], 0, None
        self.games += 1

    def tap(self, x, y):
        def inside(box):
            return box[0] <= x < box[2] and box[1] <= y < box[3]

        if self.choice is None:
            self.choice = next((position for position, box in enumerate(self.CARDS) if inside(box)), None)
        elif inside(self.BUTTON):
            self.round, self.choice = self.round + 1, None

    def draw(self):
        picture = Image.new("RGB", (360, 780), (255, 255, 255))
        if self.round < len(self.deals):
            pen, shades, deal = ImageDraw.Draw(picture), colours(self.theme), self.deals[self.round]
            pen.rectangle((0, 60, 360, 780), fill=(128, 140, 150))  # Android's own bar is above
            for position, (left, top, right, bottom) in enumerate(self.CARDS):
                chosen = shades.right if position == deal.answer else shades.wrong
                fill = chosen if self.choice == position else shades.face
                pen.rounded_rectangle((left, top, right - 1, bottom - 1), 12, fill=fill)
                pen.text((left + 40, top + 50), str(deal.digits[position]), fill=(0, 0, 0))
            if self.choice is not None:
                left, top, right, bottom = self.BUTTON
                pen.rounded_rectangle((left, top, right - 1, bottom - 1), 10, fill=shades.button)
        return picture


class FakeAdb(socketserver.ThreadingTCPServer):
    """Answers host:version, host:devices, host:tport:serial, host:transport, shell and reverse."""

    daemon_threads = True

    def __init__(self, phones):
        self.commands, self.phones = [], {phone.serial: phone for phone in phones}
        super().__init__(("127.0.0.1", 0), _Connection)
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()


class _Connection(socketserver.StreamRequestHandler):
    def handle(self):
        phone = None
        while length := self.rfile.read(4):
            command = self.rfile.read(int(length, 16)).decode()
            self.server.commands.append(command)
            if command == "host:version":
                self.wfile.write(b"OKAY00040029")
            elif command == "host:devices":
                lines = "".join(f"{each.serial}\tdevice\n" for each in self.server.phones.values() if each.alive)
                self.wfile.write(f"OKAY{len(lines):04x}{lines}".encode())
            elif transport := re.fullmatch(r"host:(tport:serial|transport):(.+)", command):
                phone = self.server.phones.get(transport[2])
                if phone is None or not phone.alive:
                    reason = f"device '{transport[2]}' not found"
                    self.wfile.write(f"FAIL{len(reason):04x}{reason}".encode())
                    return
                self.wfile.write(b"OKAY" + (bytes(8) if transport[1].startswith("tport") else b""))
            elif command.startswith("reverse:"):
                self.wfile.write(b"OKAYOKAY")
                if way := re.fullmatch(r"reverse:forward:(.+);(.+)", command):
                    phone.ways[way[1]] = way[2]
            else:
                self.wfile.write(b"OKAY" + phone.shell(command.removeprefix("shell:")))
                return


@pytest.fixture
def phone():
    """The class of phones."""
    return DrawnPhone


@pytest.fixture
def adb(monkeypatch):
    """Start a server with phones, `adb(phone("a"), phone("b"))`; screens look more often than at a real one."""
    monkeypatch.setattr("recipes.tasks.number_game.android.PAUSE", 0.01)
    servers = []

    def start(*phones):
        servers.append(FakeAdb(phones))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class ModelServer(ThreadingHTTPServer):
    """OpenAI's chat completions; `answers` is called with the request, and returns a text.

    A returned number is an HTTP status, None is a reply without choices, a dict is the whole reply.
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
        elif isinstance(answer, dict):
            self._send(answer)
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
