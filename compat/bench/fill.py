"""`python -m compat.bench.fill DATA COUNT`: fills a gateway's data folder with messages that wait.

They go straight through the gateway's own storage, with records as the gateway makes them, some ten times as fast as
sends. What `message_id`, `key` and `topic` say of a number is true of the message that has it.
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
"""One message in so many has a key, and nobody else has the same."""

SOONEST_MS: Final = 3_600_000
SPAN_MS: Final = 30 * 24 * 3_600_000
"""When the messages are due: from in an hour on, even over 30 days."""

_BATCH: Final = 500
"""Messages of one commit. As many timers leave the inbox with each, so it is as full as after sends."""

_MAP_BYTES: Final = 1 << 30
_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
_BODY_BYTES: Final = 256


def message_id(number: int) -> str:
    """The id of a message, of the form that the Java client gives: 32 hexadecimal digits that count up."""
    return f"7F000001{number:024X}"


def key(number: int) -> str:
    """The key of a message whose number `KEYED` divides."""
    return f"order-{number}"


def topic(number: int) -> str:
    """The topic of a message."""
    return f"held-{number % TOPICS}"


def fill(data: Path, count: int) -> None:
    """Put so many timed messages into a folder; the disk holds them when it returns."""
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
    """Have the kernel forget the files, so that whoever opens them next reads the disk."""
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
