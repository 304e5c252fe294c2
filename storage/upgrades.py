"""Upgrades a data folder of an older version to the current format, when it is opened."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

import lmdb

from storage.keys import FORMAT, HELD_SPANS_OF_AN_HOUR, MARK, STAMP, TOTAL_VALUE, hour_key, pack_u64
from storage.reader import Reader
from storage.redo_log import new_stamp
from storage.sums import sum_topics

FORMAT_VERSION = 11
"""Raised with every change of `keys` that an older program would misread, together with a step in `STEPS`. Newer
formats are refused."""

_ROOM = 1 << 26
"""How much the map grows for a small file, in bytes."""


def format_of(txn: Reader, meta: lmdb._Database) -> int:
    """Return the format that a file states; 0 when it states no valid one."""
    found = txn.get(FORMAT, db=meta) or b""
    return int(found) if found.isdigit() else 0


def upgrade(environment: lmdb.Environment, found: int) -> None:
    """Upgrade from the format `found` to the current one, all steps or none.

    :raises ValueError, struct.error: when a row that a step reads makes no sense.
    """
    used = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    # The added rows are fewer than those of `held`, which are at most about a tenth of the file.
    environment.set_mapsize(max(environment.info()["map_size"], used + used // 4 + _ROOM))
    with environment.begin(write=True) as txn:
        meta = environment.open_db(b"meta", txn=txn)
        for version in range(found, FORMAT_VERSION):
            STEPS[version](environment, txn)
        txn.put(FORMAT, b"%d" % FORMAT_VERSION, db=meta)


def _mark_timers_complete(environment: lmdb.Environment, txn: lmdb.Transaction) -> None:
    """Format 2 searches the messages from a mark on for timers that are not in `timers`: there are none before the next
    message."""
    cursor = txn.cursor(db=environment.open_db(b"messages", txn=txn))
    behind_last = int.from_bytes(cursor.key()) + 1 if cursor.last() else 0
    meta = environment.open_db(b"meta", txn=txn)
    txn.put(MARK, pack_u64(behind_last), db=meta)


def _sum_up_held(environment: lmdb.Environment, txn: lmdb.Transaction) -> None:
    """Format 3 has sums of pending messages, by hour and by topic. This takes some 10 s for ten million messages."""
    names = (b"timers", b"waiting", b"held", b"hours", b"totals")
    timers, waiting, held, hours, totals = (environment.open_db(name, txn=txn) for name in names)
    for (hour, topic), rows in groupby(
        txn.cursor(db=held),
        lambda row: (int.from_bytes(row[0][-8:]) // HELD_SPANS_OF_AN_HOUR, row[0][:-9]),
    ):
        count = sum(int.from_bytes(value) for _, value in rows)
        txn.put(hour_key(hour, topic), pack_u64(count), db=hours)
    for topic, total in sum_topics(txn, timers=timers, waiting=waiting).items():
        txn.put(topic, TOTAL_VALUE.pack(*total), db=totals)


def _begin_redo_log(environment: lmdb.Environment, txn: lmdb.Transaction) -> None:
    """Format 4 has a redo log beside the file, which older programs would not apply."""
    txn.put(STAMP, new_stamp(), db=environment.open_db(b"meta", txn=txn))


def _use_two_logs(environment: lmdb.Environment, txn: lmdb.Transaction) -> None:
    """Format 5 has a second redo log file, which older programs would not apply. The file of format 4 is applied as it
    is."""


def _mark_timers(environment: lmdb.Environment, txn: lmdb.Transaction) -> None:
    """Format 6 marks timers (`keys.NEVER_MOVED`); older programs would take the mark for a part of the queue's number.
    Existing timers stay without it."""


def _pack_records(environment: lmdb.Environment, txn: lmdb.Transaction) -> None:
    """Format 7 packs records (`records`), which older programs could not read. Existing records stay unchanged."""


def _use_tables(environment: lmdb.Environment, txn: lmdb.Transaction) -> None:
    """Format 8 packs records with entropy tables (`records`), without which older programs could not read them.
    Existing records stay unchanged."""


def _cut_records(environment: lmdb.Environment, txn: lmdb.Transaction) -> None:
    """Format 9 cuts large records into `parts`, of which older programs know nothing. Existing records stay whole."""


def _fill_pages(environment: lmdb.Environment, txn: lmdb.Transaction) -> None:
    """Format 10 cuts any record that does not fit into the page that is being filled, and keeps its beginning in
    `messages`; older programs could not read it. Existing records stay as they are."""


def _note_expired(environment: lmdb.Environment, txn: lmdb.Transaction) -> None:
    """Format 11 has a table `expired`; older programs would take the messages that it names for pending or lost ones.
    There are none yet."""


STEPS: dict[int, Callable[[lmdb.Environment, lmdb.Transaction], None]] = {
    1: _mark_timers_complete,
    2: _sum_up_held,
    3: _begin_redo_log,
    4: _use_two_logs,
    5: _mark_timers,
    6: _pack_records,
    7: _use_tables,
    8: _cut_records,
    9: _fill_pages,
    10: _note_expired,
}
"""The upgrade steps, by the format from which they start."""
