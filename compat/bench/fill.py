"""`python -m compat.bench.fill DATA COUNT`: fills a gateway's data folder with pending messages.

The messages are written directly through the gateway's own storage, with records as the gateway makes them. That is
about ten times as fast as sends. `message_id`, `key` and `topic` return the values of the message with a number.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Final

from gateway.intake import terms_of
from gateway.wire.messages import encode_message
from storage import Store

TOPICS: Final = 20
KEYED: Final = 10
"""One message in so many has a key, which no other message has."""

SOONEST_MS: Final = 3_600_000
SPAN_MS: Final = 30 * 24 * 3_600_000
"""The messages are due evenly over 30 days, from one hour from now on."""

_BATCH: Final = 500
"""Messages per commit. Each commit moves as many timers out of the inbox, so the inbox is as full as after sends."""

_MAP_BYTES: Final = 1 << 30
_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
_BODY_BYTES: Final = 256


def message_id(number: int) -> str:
    """Return the id of a message, in the form of the Java client: 32 hexadecimal digits that count up."""
    return f"7F000001{number:024X}"


def key(number: int) -> str:
    """Return the key of a message whose number is a multiple of `KEYED`."""
    return f"order-{number}"


def topic(number: int) -> str:
    """Return the topic of a message."""
    return f"held-{number % TOPICS}"


def fill(data: Path, count: int) -> None:
    """Write `count` timed messages into a folder and return when they are on disk."""
    chance = random.Random(count)
    now_ms = time.time_ns() // 1_000_000
    store = Store(data, terms_of, sync=False, map_size=max(_MAP_BYTES, count * 1_000))
    for number in range(count):
        name = topic(number).encode()
        due_ms = now_ms + SOONEST_MS + chance.randrange(SPAN_MS)
        message = message_id(number)
        keys = [key(number).encode()] if number % KEYED == 0 else []
        properties = f"TIMER_DELIVER_MS\x01{due_ms}\x02UNIQ_KEY\x01{message}\x02"
        properties += (
            f"REAL_TOPIC\x01{name.decode()}\x02REAL_QID\x010\x02TIMER_OUT_MS\x01{due_ms}\x02"
        )
        properties += "".join(f"KEYS\x01{one.decode()}\x02" for one in keys)
        sequence = store.new_sequence()
        record = encode_message(
            topic=name,
            queue_id=0,
            flag=0,
            sys_flag=0,
            born_ms=now_ms,
            born_host=_HOST,
            store_ms=now_ms,
            store_host=_HOST,
            reconsume_times=0,
            prepared_offset=0,
            physical_offset=sequence,
            queue_offset=0,
            body=chance.randbytes(_BODY_BYTES),
            properties=properties.encode(),
        )
        store.schedule(due_ms, name, 0, sequence, record, 0, message.encode(), keys)
        if number % _BATCH == _BATCH - 1:
            store.commit()
            store.checkpoint_if_due()
    store.close()


def _leave_the_page_cache(data: Path) -> None:
    """Drop the files from the page cache, so that the next process reads them from disk."""
    for file in data.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    fill(folder, int(sys.argv[2]))
    _leave_the_page_cache(folder)
