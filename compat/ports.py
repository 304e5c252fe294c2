"""Chooses TCP ports for servers on loopback whose port must be set before they start."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

# From this range Linux takes the ports of outgoing connections, and the port for a bind to port 0.
_LENT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST: Final = 10_000
_FEWEST: Final = 2_000
"""The fewest ports to choose from."""

_MOST_STARTS: Final = 5
TAKEN: Final = "Address already in use"
"""What Java programs print before they end over a taken port (text of java.net.BindException)."""

_chance = random.Random()  # the shared one may have the same seed in several processes


class PortTakenError(Exception):
    """A program did not start: another process has taken one of its ports since they were chosen."""


def start_on_free_ports(start: Callable[[], None], move: Callable[[], None]) -> None:
    """Start a program, again after `move` has chosen other ports while `start` raises PortTakenError."""
    for _ in range(_MOST_STARTS - 1):
        try:
            start()
        except PortTakenError:
            move()
        else:
            return
    start()


def free_port(*neighbours: int) -> int:
    """Return a port that is free on every address, as are the ports at these distances from it.

    The port is below the range that the kernel lends to outgoing connections, if enough ports are:
    thousands of connections may be made before the server listens on its port.
    """
    highest = _lent_from() - 1 - max(0, *neighbours, 0)
    if highest - _LOWEST < _FEWEST:
        highest = 65_000
    while True:
        port = _chance.randint(_LOWEST, highest)
        if all(_is_free(port + distance) for distance in (0, *neighbours)):
            return port


def _lent_from() -> int:
    try:
        return int(_LENT_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104  it does not listen
        except OSError:
            return False
        return True
