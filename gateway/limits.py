"""Limits of a topic: how much it may hold, how fast it accepts, and how long it keeps fired messages.

A limit is an attribute of the topic (`mqadmin updateTopic -a +max.held.messages=1000`). For a topic without the
attribute, the setting of the same name counts (`max_held_messages`). Of numbers, sizes and rates 0 means no limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, NamedTuple

from gateway.settings.config import Config
from gateway.settings.values import LONGEST, parse_duration, parse_size


class Limits(NamedTuple):
    """A topic's own limits; None where the setting counts."""

    held_messages: int | None = None
    """Pending messages."""
    held_bytes: int | None = None
    """Bytes of the pending messages as stored, with their properties."""
    send_rate: int | None = None
    """Messages a second, with or without a delay."""
    max_delay_ms: int | None = None
    """The longest delay."""
    retention_ms: int | None = None
    """How long messages stay readable after they entered their queues."""


_NONE: Final = Limits()
"""Shared by all topics without limits of their own, of which there can be a hundred thousand."""


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise ValueError("a whole number; 0 is no limit")
    return int(text)


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError:
        size = -1
    if not 0 <= size < 1 << 60:
        raise ValueError("a size such as 64MiB or 1GiB; 0 is no limit")
    return size


def _duration_ms(text: str) -> int:
    try:
        duration = parse_duration(text)
    except ValueError:
        raise ValueError("a duration such as 30m, 48h or 730d") from None
    if not timedelta(milliseconds=1) <= duration <= LONGEST:
        raise ValueError("a duration from 1ms to 100 years")
    return duration // timedelta(milliseconds=1)


HELD_MESSAGES: Final = "max.held.messages"
HELD_BYTES: Final = "max.held.bytes"
SEND_RATE: Final = "max.send.rate"
MAX_DELAY: Final = "max.delay"
RETENTION: Final = "retention"

ATTRIBUTES: Final[Mapping[str, Callable[[str], int]]] = {
    HELD_MESSAGES: _count,
    HELD_BYTES: _size,
    SEND_RATE: _count,
    MAX_DELAY: _duration_ms,
    RETENTION: _duration_ms,
}
"""The attributes in the order of `Limits`, with their parsers. The text of a parser's ValueError says what is valid."""

_SETTINGS: Final = {
    HELD_MESSAGES: "max_held_messages",
    HELD_BYTES: "max_held_bytes",
    SEND_RATE: "max_send_rate",
    MAX_DELAY: "max_delay",
}


def limits_of(attributes: Mapping[str, str]) -> Limits:
    """Return the limits among a topic's attributes, which have been checked."""
    if not attributes:
        return _NONE
    return Limits(
        *(ATTRIBUTES[name](attributes[name]) if name in attributes else None for name in ATTRIBUTES)
    )


def without_own(config: Config) -> Limits:
    """Return the limits of a topic without limits of its own."""
    return Limits(
        config.max_held_messages,
        config.max_held_bytes,
        config.max_send_rate,
        config.max_delay_ms,
        config.retention_ms,
    )


def origin(name: str, own: int | None) -> str:
    """Return where a limit can be changed, for the end of a refusal."""
    return f"attribute {name} of the topic" if own is not None else f"setting {_SETTINGS[name]}"
