"""The keys of timers: which comes first, and the next one of a topic among those of all."""

from __future__ import annotations

import lmdb

from storage.keys import pack_u64


def seek_topic(cursor: lmdb.Cursor, name: bytes, bound: bytes, leaps: int | None = None) -> bool:
    """Leap, from the timer that the cursor stands on, if any, to the next one of a topic; False when there
    is none before `bound`.

    :param name: the topic and a zero byte, as in the timers' keys.
    :param leaps: False as well after so many, a microsecond each; then the cursor stands on another topic's timer
        before `bound`, and may go on.
    """
    while True:
        key = cursor.key()
        if not key or key >= bound:
            return False
        own = key[8:]
        if own.startswith(name):
            return True
        if leaps is not None:
            if not leaps:
                return False
            leaps -= 1
        time = key[:8] if own < name else pack_u64(int.from_bytes(key[:8]) + 1)
        if not cursor.set_range(time + name):
            return False


def earlier(one: bytes, other: bytes) -> bytes:
    """The smaller of two keys; empty ones, which stand for none, do not count."""
    if not one or not other:
        return one or other
    return min(one, other)
