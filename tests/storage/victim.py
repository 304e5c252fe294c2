"""A process that works on a data folder until it is killed, and reports what the store has acknowledged.

Each line on its standard output is one batch, as JSON, printed after `commit` has returned:

    batch      its number
    accepted   ids of the messages that were sent or held in it
    aborted    ids whose abort was answered with success
    fired      how many messages fired
"""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path
from random import Random

from storage import Aborted, abort, fire_due, logged
from tests.storage.folder import Folder
from tests.storage.sample import Sample, clean_up, hold, send

SENT, HELD = 3, 6
"""Messages that are sent, and that are held, in each batch."""

ROWS = 100
"""Rows after which a checkpoint is due: those of two batches or so."""

LONG_AGO_MS = 0
BODIES = [Random(size).randbytes(size) for size in (300, 3_000, 9_000, 70_000)]
"""None of them can be packed, and those of all sizes but the first are cut into parts."""


def ids_of_batch(run: int, batch: int) -> list[str]:
    """Return the ids of the messages that a run accepts in a batch."""
    return [f"{run}-{batch}-{number}" for number in range(SENT + HELD)]


def work(path: Path, run: int) -> None:
    """Accept, fire and abort, batch after batch. Time goes on from run to run."""
    random = Random(run)
    logged.CHECKPOINT_ROWS = ROWS  # type: ignore[misc]
    store = Folder(path).open(sync=True, map_size=1 << 20)
    for batch in count():
        now_ms = run * 1_000_000 + batch * 10
        ids = ids_of_batch(run, batch)
        for number, message_id in enumerate(ids):
            body = BODIES[number % len(BODIES)]
            message = Sample(message_id.encode(), queue=number % 2, keys=(b"k",), body=body)
            if number < SENT:
                send(store, message, now_ms)
            else:
                hold(store, message, now_ms + random.randrange(100), now_ms)
        aborted = []
        for _ in range(3):
            message_id = random.choice(ids_of_batch(run, random.randrange(batch + 1)))
            if abort(store, message_id.encode(), now_ms)[0].outcome is Aborted.ABORTED:
                aborted.append(message_id)
        fired = fire_due(store, now_ms, now_ms, 10)
        # This finds nothing, as all messages are young, but a kill may hit it.
        clean_up(store, LONG_AGO_MS, 10, lambda topic: False)
        store.commit()
        line = {"batch": batch, "accepted": ids, "aborted": aborted, "fired": fired.messages}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        store.checkpoint_if_due()


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]))
