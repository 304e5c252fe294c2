"""What a topic may hold and take in, and how long it keeps what has fired: attributes of the topic, or settings.

An attribute is set with the topic's others (`mqadmin updateTopic -a +max.held.messages=1000`); a topic without it has
what the setting of the same name says (`max_held_messages`). 0 is no limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final, NamedTuple

from gateway.config import Config
from gateway.setting_values import LONGEST, parse_duration, parse_size


class Limits(NamedTuple):
    """A topic's own limits; None where it has none."""

    held_messages: int | None = None
    """Messages that have not fired."""
    held_bytes: int | None = None
    """Bytes of them as they are stored, with their properties."""
    send_rate: int | None = None
    """Messages a second, for now or for later."""
    max_delay_ms: int | None = None
    """How far ahead a message may be sent for."""
    retention_ms: int | None = None
    """How long what has fired stays readable."""


_NONE: Final = Limits()
"""Most topics have none, and there can be a hundred thousand of them."""


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
    if not timedelta(0) < duration <= LONGEST:
        raise ValueError("a duration of at most 100 years, longer than 0")
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
"""The attributes in the order of `Limits`, with how their values are read. A ValueError's text is what to write."""

_SETTINGS: Final = {
    HELD_MESSAGES: "max_held_messages",
    HELD_BYTES: "max_held_bytes",
    SEND_RATE: "max_send_rate",
    MAX_DELAY: "max_delay",
}


def limits_of(attributes: Mapping[str, str]) -> Limits:
    """The limits among a topic's attributes, which have been checked."""
    if not attributes:
        return _NONE
    return Limits(
        *(ATTRIBUTES[name](attributes[name]) if name in attributes else None for name in ATTRIBUTES)
    )


def without_own(config: Config) -> Limits:
    """The limits of a topic that has none of its own."""
    return Limits(
        config.max_held_messages,
        config.max_held_bytes,
        config.max_send_rate,
        config.max_delay_ms,
        config.retention_ms,
    )


def origin(name: str, own: int | None) -> str:
    """Where a limit can be changed, for the end of a refusal."""
    return f"attribute {name} of the topic" if own is not None else f"setting {_SETTINGS[name]}"
