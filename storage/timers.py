"""Works on the keys of timers: finds a topic's next timer among those of all topics, and the earlier of two."""

from __future__ import annotations

import lmdb

from storage.keys import pack_u64


def seek_topic(
    cursor: lmdb.Cursor, name: bytes, bound: bytes, most: int | None = None
) -> int | None:
    """Leap from the cursor's timer to the next one of a topic, which may be that timer itself. Return how many leaps
    that took; None when there is none before `bound`.

    :param name: the topic and a zero byte, as in the timers' keys.
    :param most: return None also after so many leaps, a microsecond each. The cursor is then at another topic's timer
        before `bound`, and may go on.
    """
    leaps = 0
    while True:
        key = cursor.key()
        if not key or key >= bound:
            return None
        own = key[8:]
        if own.startswith(name):
            return leaps
        if leaps == most:
            return None
        leaps += 1
        time = key[:8] if own < name else pack_u64(int.from_bytes(key[:8]) + 1)
        if not cursor.set_range(time + name):
            return None


def earlier(one: bytes, other: bytes) -> bytes:
    """Return the smaller of two keys. An empty key stands for none and is ignored."""
    if not one or not other:
        return one or other
    return min(one, other)
