"""Ports that nobody else is given while their server is down.

Those that the system hands out to clients are: one of our own many connections could take it in between, and
a client that knocks at a port nobody listens on can even be connected to itself.
"""

from __future__ import annotations

import socket
from random import SystemRandom
from typing import Final

_BELOW_EPHEMERAL: Final = range(15_000, 30_000)  # Linux hands out 32768 and up, macOS 49152 and up
_random = SystemRandom()


def lasting_port() -> int:
    """A port of the loopback interface that is free now."""
    while True:
        port = _random.choice(_BELOW_EPHEMERAL)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
