"""The page over HTTP on this machine alone, for devices that reach it through `adb reverse`."""

from __future__ import annotations

import threading
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WEB = Path(__file__).with_name("web")
PORT = 8931  # on the device; here any free port


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


@cache
def serve_page() -> int:
    """Serve the page on 127.0.0.1 until the process ends; the port, the same at every call."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(WEB)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]
