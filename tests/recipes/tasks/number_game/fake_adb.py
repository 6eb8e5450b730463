"""An ADB server on a free port that speaks the protocol, and phones behind it: one drawn here, one with a real page."""

from __future__ import annotations

import io
import re
import socketserver
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit

from PIL import Image, ImageDraw

from recipes.tasks.number_game.rules import parse_deal
from recipes.tasks.number_game.screens import colours

BARS = 60  # pixels of Android's own above the page


class FakeAdb:
    """Answers host:version, host:devices, host:tport:serial, host:transport, shell and reverse.

    Phones live in one thread of their own, where `phones` makes them: a browser belongs to the thread that starts it.
    """

    def __init__(self, phones):
        self.commands = []
        self._worker = ThreadPoolExecutor(1)
        self.phones = {phone.serial: phone for phone in self._worker.submit(phones).result()}
        talk = self._talk

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                with suppress(OSError):
                    talk(self.request)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        for phone in self.phones.values():
            self._worker.submit(phone.close).result()
        self._worker.shutdown()

    def _talk(self, connection):
        phone = None
        while length := _exactly(connection, 4):
            command = _exactly(connection, int(length, 16)).decode()
            self.commands.append(command)
            if command == "host:version":
                connection.sendall(b"OKAY" + _block(b"0029"))
            elif command == "host:devices":
                lines = "".join(f"{phone.serial}\tdevice\n" for phone in self.phones.values() if phone.alive)
                connection.sendall(b"OKAY" + _block(lines.encode()))
            elif found := re.fullmatch(r"host:(tport:serial|transport):(.+)", command):
                phone = self.phones.get(found[2])
                if phone is None or not phone.alive:
                    connection.sendall(b"FAIL" + _block(f"device '{found[2]}' not found".encode()))
                    return
                connection.sendall(b"OKAY" + (bytes(8) if found[1].startswith("tport") else b""))
            elif command.startswith("reverse:") and phone:
                connection.sendall(b"OKAYOKAY")
                if found := re.fullmatch(r"reverse:forward:(.+);(.+)", command):
                    phone.ways[found[1]] = found[2]
            elif command.startswith("shell:") and phone:
                done = self._worker.submit(phone.shell, command.removeprefix("shell:"))
                connection.sendall(b"OKAY" + done.result())
                return
            else:
                connection.sendall(b"FAIL" + _block(f"unknown command {command}".encode()))
                return


class Phone:
    """What all phones do: count commands, drop out after so many, take screenshots and taps."""

    def __init__(self, serial, *, drops_after=None, broken=0, deaf=0, crlf=False):
        self.serial, self.alive, self.ways = serial, True, {}
        self._drops_after, self._broken, self._deaf, self._crlf = drops_after, broken, deaf, crlf

    def shell(self, command):
        if self._drops_after is not None:
            self._drops_after -= 1
            if self._drops_after < 0:
                self.alive = False
                return b""
        if command == "screencap -p":
            data = self.screencap()
            if self._broken:
                self._broken -= 1
                return data[: len(data) // 2]
            return data.replace(b"\n", b"\r\n") if self._crlf else data
        if found := re.fullmatch(r"input tap (\d+) (\d+)", command):
            if self._deaf:
                self._deaf -= 1
            else:
                self.tap(int(found[1]), int(found[2]))
            return b""
        found = re.fullmatch(r"am start -a android\.intent\.action\.VIEW -d '([^']+)'", command)
        assert found, command
        self.view(self._forwarded(found[1]))
        return b"Starting: Intent\n"

    def _forwarded(self, address):
        """The address as the phone's browser reaches it, through what `reverse` set up."""
        port = urlsplit(address).port
        way = self.ways.get(f"tcp:{port}")
        return address.replace(f":{port}/", f":{way.removeprefix('tcp:')}/") if way else address

    def close(self):
        pass


class DrawnPhone(Phone):
    """The game drawn with Pillow in 360 x 780 pixels: no browser, so quick."""

    FIRST_CARD, CARD, GAP = (18, 330), (96, 128), 15
    BUTTON = (100, 640, 260, 690)

    def __init__(self, serial, *, loads=True, **faults):
        super().__init__(serial, **faults)
        self._loads = loads
        self.deals, self.round, self.choice, self.games = [], 0, None, 0

    def view(self, address):
        if not self._loads:
            return
        with urllib.request.urlopen(address, timeout=5) as answer:
            assert b"game.js" in answer.read()
        options = parse_qs(urlsplit(address).query)
        self.theme = options["theme"][0]
        self.deals = [parse_deal(code) for code in options["deal"][0].split(",")]
        self.round, self.choice = 0, None
        self.games += 1

    def screencap(self):
        picture = Image.new("RGB", (360, 780), (255, 255, 255))
        if self.round < len(self.deals):
            self._draw(ImageDraw.Draw(picture))
        out = io.BytesIO()
        picture.save(out, "PNG")
        return out.getvalue()

    def tap(self, x, y):
        if self.round >= len(self.deals):
            return
        if self.choice is None:
            boxes = [self._box(position) for position in range(3)]
            hit = [p for p, (left, top, right, bottom) in enumerate(boxes) if left <= x < right and top <= y < bottom]
            self.choice = hit[0] if hit else None
        elif self.BUTTON[0] <= x < self.BUTTON[2] and self.BUTTON[1] <= y < self.BUTTON[3]:
            self.round, self.choice = self.round + 1, None

    def _box(self, position):
        left = self.FIRST_CARD[0] + position * (self.CARD[0] + self.GAP)
        return left, self.FIRST_CARD[1], left + self.CARD[0], self.FIRST_CARD[1] + self.CARD[1]

    def _draw(self, pen):
        shades, deal = colours(self.theme), self.deals[self.round]
        pen.rectangle((0, BARS, 360, 780), fill=(128, 140, 150))
        for position, digit in enumerate(deal.digits):
            fill = shades.face
            if self.choice == position:
                fill = shades.right if position == deal.answer else shades.wrong
            box = self._box(position)
            pen.rounded_rectangle((box[0], box[1], box[2] - 1, box[3] - 1), 12, fill=fill)
            pen.text((box[0] + 40, box[1] + 50), str(digit), fill=(0, 0, 0))
        if self.choice is not None:
            left, top, right, bottom = self.BUTTON
            pen.rounded_rectangle((left, top, right - 1, bottom - 1), 10, fill=shades.button)
            pen.text((left + 60, top + 20), "Next", fill=(255, 255, 255))


class RealPhone(Phone):
    """The real page in headless Chromium on a phone's screen of 720 x 1600 pixels, under Android's own bars."""

    def __init__(self, serial, launch, **faults):
        super().__init__(serial, **faults)
        self._engine, self._browser = launch()
        self._page = self._browser.new_page(
            viewport={"width": 360, "height": (1600 - BARS) // 2}, device_scale_factor=2, has_touch=True
        )

    def view(self, address):
        self._page.goto(address)

    def screencap(self):
        picture = Image.new("RGB", (720, 1600), (255, 255, 255))
        picture.paste(Image.open(io.BytesIO(self._page.screenshot())), (0, BARS))
        out = io.BytesIO()
        picture.save(out, "PNG")
        return out.getvalue()

    def tap(self, x, y):
        self._page.touchscreen.tap(x / 2, (y - BARS) / 2)

    def close(self):
        self._browser.close()
        self._engine.stop()


def _exactly(connection, count):
    data = b""
    while len(data) < count and (part := connection.recv(count - len(data))):
        data += part
    return data


def _block(data):
    return f"{len(data):04x}".encode() + data
