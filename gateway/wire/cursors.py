"""Cursors into a list that is spread over several brokers: the place to go on from at each of them.

A cursor is text such as `broker-a-0:0000018F,broker-a-1:`. It names each broker with the broker's own cursor, which is
empty before the broker's first page. A broker whose part is complete is not named.
"""

from __future__ import annotations

from collections.abc import Mapping


def join_cursors(parts: Mapping[str, str]) -> str:
    """Join the cursors of several brokers, given by broker name, into one."""
    return ",".join(f"{broker}:{cursor}" for broker, cursor in parts.items())


def own_cursor(text: str, broker: str) -> str | None:
    """Return a broker's own part of a cursor, or None when the broker's part of the list is complete.

    A cursor without names is for any broker that reads it.
    """
    if ":" not in text:
        return text
    parts = dict(part.partition(":")[::2] for part in text.split(","))
    return parts.get(broker)
