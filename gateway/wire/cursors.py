"""Cursors into a list of which several brokers have a part each: where to go on at each of them.

It is text: `broker-a-0:0000018F,broker-a-1:`, by broker the cursor that it understands, and none where it is still to
begin. A broker that has told all of its part is not named.
"""

from __future__ import annotations

from collections.abc import Mapping


def join_cursors(parts: Mapping[str, str]) -> str:
    """One cursor for several brokers, from the cursor of each by name."""
    return ",".join(f"{broker}:{cursor}" for broker, cursor in parts.items())


def own_cursor(text: str, broker: str) -> str | None:
    """What a cursor says to a broker: where to go on, or nothing more to tell (None).

    A cursor without names is for whoever reads it.
    """
    if ":" not in text:
        return text
    parts = dict(part.partition(":")[::2] for part in text.split(","))
    return parts.get(broker)
