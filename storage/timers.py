"""Walking the timers of one topic among those of all."""

from __future__ import annotations

import lmdb

from storage.keys import pack_u64


def seek_topic(cursor: lmdb.Cursor, name: bytes, bound: bytes) -> bool:
    """Leap, from the timer that the cursor stands on, if any, to the next one of a topic; False when there
    is none before `bound`.

    :param name: the topic and a zero byte, as in the timers' keys.
    """
    while True:
        key = cursor.key()
        if not key or key >= bound:
            return False
        own = key[8:]
        if own.startswith(name):
            return True
        time = key[:8] if own < name else pack_u64(int.from_bytes(key[:8]) + 1)
        if not cursor.set_range(time + name):
            return False
