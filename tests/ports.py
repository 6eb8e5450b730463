"""A port for a server that a test starts."""

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """A free port below those that the system gives to connections: none of these takes it before the server does."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_768)
        with suppress(OSError), socket.socket() as tried:
            tried.bind(("", port))
            return port
