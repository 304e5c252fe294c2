"""TCP ports for servers on loopback that have to be told theirs before they start."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

# Linux takes the port of an outgoing connection, and one that is asked for as 0, from this range.
_LENT_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST: Final = 10_000
_FEWEST: Final = 2_000
"""How many ports there are to be to choose from."""

_chance = random.Random()  # the shared one may be seeded, alike in several processes


def free_port(*neighbours: int) -> int:
    """A port that nobody uses at the moment on any address, nor those at these distances from it.

    It is none that the kernel lends to outgoing connections, of which there may be thousands before
    the server that it is meant for has come so far as to listen.
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
            probe.bind(("0.0.0.0", port))  # noqa: S104  it only asks
        except OSError:
            return False
        return True
