"""Hosts and ports as text: `1.2.3.4:5`, `[::1]:5`, `broker.example:5`."""

from __future__ import annotations

import ipaddress
from typing import Final

LAST_PORT: Final = 65_535

VIP_CHANNEL_DISTANCE: Final = 2
"""Old clients send to a broker's port minus this number (upstream: MixAll.brokerVIPChannel)."""

_LONGEST_PORT: Final = len(str(LAST_PORT))


def show_address(host: str, port: int) -> str:
    """Return `1.2.3.4:5`, or `[::1]:5`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of `HOST:PORT`; the host may be a name.

    :raises ValueError: when there is no host, or no port to connect to; its text is a sentence.
    """
    host, _, port_text = text.rpartition(":")
    try:
        port = parse_port(port_text)
    except ValueError:
        port = 0
    if not host or not port or "/" in host:  # as in http://127.0.0.1:9876
        raise ValueError(f"{text[:100]!r} is not HOST:PORT, such as 127.0.0.1:9876")
    return host.removeprefix("[").removesuffix("]"), port


def parse_port(text: str) -> int:
    """Return a port, or 0.

    :raises ValueError: for anything else; its text is a sentence.
    """
    is_short = text.isascii() and text.isdigit() and len(text) <= _LONGEST_PORT
    if not is_short or int(text) > LAST_PORT:
        raise ValueError(f"{text[:20]!r} is not a port from 0 to {LAST_PORT}")
    return int(text)


def unmapped(host: str) -> str:
    """Return an address as it is, but an IPv4-mapped IPv6 address, as dual-stack sockets show it, as IPv4."""
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped) if mapped is not None else host
