"""The store: everything a gateway keeps, behind typed calls.

Changes are collected in a batch. The first change of a reactor turn opens the batch, and `commit` writes it to the redo
log. Only then may the gateway answer the requests behind it. Messages are only listed at first: they become rows at the
commit, or when another kind of change joins their batch. Look-ups read stored rows alone: they have an open batch that
has rows committed first, and do not see messages that are only listed. Only one thread may call the store.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import wraps
from pathlib import Path
from time import perf_counter
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar

import lmdb

from storage.environment import Environment
from storage.errors import (
    DamagedError,
    StorageError,
    StorageFullError,
    as_told,
    cannot_read,
    way_out,
)
from storage.fronts import Fronts
from storage.held import Held
from storage.inbox import INBOX_SIZE, Inbox, recover
from storage.inbox_copy import has_copy, read_copy, write_copy
from storage.keys import (
    MARK,
    MAX_KEY,
    NEVER_MOVED,
    NOT_TIMED,
    NOTE,
    QUEUE_COLUMNS,
    TIMER_VALUE,
    Terms,
    TermsOf,
    key_prefix,
    pack_u64,
    queue_prefix,
    split_timer_key,
    term,
    time_of,
)
from storage.logged import LoggedTransaction
from storage.parts import Cutter, join
from storage.paused import PausedTopics
from storage.progress import Progress
from storage.queues import (
    MAX_RECORDS_JUDGED,
    Page,
    Queue,
    count_queues,
    offset_at,
    open_queue,
    read_page,
    row_at,
    rows_from,
)
from storage.read_ahead import Rows
from storage.reader import rows_with_prefix
from storage.records import pack, read_terms, unpack
from storage.sequences import first_free_sequence
from storage.timers import earlier

P = ParamSpec("P")
Result = TypeVar("Result")


MANY_UNUSED: Final = 10_000
"""So many queues without a message are kept in memory, beside those that somebody waits for."""


class Growth(NamedTuple):
    """A queue that a commit added messages to: its first new offset, and the tag hashes of the new messages (0 for a
    message without a tag)."""

    queue: Queue
    first: int
    tag_hashes: AbstractSet[int]


def in_batch(
    change: Callable[Concatenate[Store, P], Result],
) -> Callable[Concatenate[Store, P], Result]:
    """Mark a method that changes the batch's transaction.

    A change that fails half-way spoils the batch: nobody can tell which of its rows were written. So `commit` refuses
    the whole batch and stores nothing of it. Where the change was the only one in the batch, nobody else waits for the
    batch, and it is dropped at once.
    """

    @wraps(change)
    def guarded(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        alone = not store.has_changes
        try:
            return change(store, *args, **kwargs)
        except Exception as error:
            failure = store.spoil(error)
            if alone:
                store.abandon()
            if failure is error:
                raise
            raise failure from error

    return guarded


class Store:
    """An open data folder and the batch that is being written.

    :param path: the data folder.
    :param terms_of: reads topic, id and keys out of a record, for retention, look-ups and checks.
    :param sync: see `Environment`.
    :param inbox_size: see `INBOX_SIZE`.
    :raises DataFolderError: as from `Environment`, and when a row that is read at the start makes no sense.
    """

    def __init__(
        self,
        path: Path,
        terms_of: TermsOf,
        *,
        sync: bool = True,
        map_size: int = 1 << 30,
        inbox_size: int = INBOX_SIZE,
    ) -> None:
        self.environment = Environment(path, sync=sync, map_size=map_size)
        self.tables = self.environment.tables
        self.terms_of = terms_of
        self._queues: dict[bytes, dict[int, Queue]] = {}
        # Topics that `forget_topics` must check: their settings were changed, or one of their queues was opened.
        self._touched: set[bytes] = set()
        # Those of them that it has still to check, as it does not check all at once.
        self._unchecked: list[bytes] = []
        # Queues in memory that had never held a message when they were opened, and how many of them were kept when they
        # were last looked through.
        self._unused: list[Queue] = []
        self._unused_kept = 0
        self.timed: Counter[bytes] = Counter()
        """Timed messages accepted since the store was opened, by topic."""
        self.timed_total = 0
        """Timed messages accepted since the store was opened, of all topics, deleted ones included."""
        self.fired: Counter[bytes] = Counter()
        """Timed messages that have fired since the store was opened, by topic. They may have been accepted before."""
        self.commits = 0
        """Batches stored since the store was opened."""
        self.write_seconds = 0.0
        """How long the last commit took to write its rows to the redo log and, with `sync`, to sync them to disk."""
        self.damaged: set[bytes] = set()
        """What was found damaged: packed sequences of messages that cannot be read or fired, key prefixes of queues
        that cannot be read, and keys of other rows that were skipped."""
        # Records whose rows are not made yet, and rows that are not in the batch's transaction yet.
        self._records: list[tuple[bytes, bytes]] = []
        self._messages: list[tuple[bytes, bytes]] = []
        self._parts: list[tuple[bytes, bytes]] = []
        self._replaced: list[tuple[bytes, bytes]] = []
        self._timers: list[tuple[bytes, bytes]] = []
        self._ids: list[tuple[bytes, bytes]] = []
        self._keys: list[tuple[bytes, bytes]] = []
        self._rows: list[tuple[bytes, bytes]] = []
        # Of each table, and whether they come behind all others.
        self._unwritten = (
            (self.tables.messages, self._replaced, False),
            (self.tables.timers, self._timers, False),
            (self.tables.ids, self._ids, False),
            (self.tables.keys, self._keys, False),
            (self.tables.messages, self._messages, True),
            (self.tables.parts, self._parts, True),
            (self.tables.queues, self._rows, False),
        )
        self.cutter = Cutter(self.environment.page_size)
        self.fronts = Fronts()
        self.settle: Callable[[], object] = self.commit
        """Commits an open batch; a look-up calls it first where the batch has rows."""
        try:
            self._txn = LoggedTransaction(self.environment)
            self._load(inbox_size)
        except StorageError:
            self.environment.close()
            raise
        except (lmdb.Error, ValueError, struct.error) as error:
            self.environment.close()
            raise cannot_read(path, error) from error
        self._new_batch()

    def _load(self, inbox_size: int) -> None:
        """Load the state that is kept in memory."""
        txn, tables = self._txn, self.tables
        self._next_sequence = self._committed_sequence = first_free_sequence(
            txn, tables, self.damaged
        )
        self.progress = Progress(txn, tables, self.damaged)
        self.paused = PausedTopics(txn, tables, self.damaged)
        self.inbox = Inbox(inbox_size, self._inbox_rows())
        self._is_mark_wrong = MARK in self.damaged
        self.held = Held(txn, tables, self.inbox.rows(), self.damaged)

    def _inbox_rows(self) -> Iterable[tuple[bytes, bytes]]:
        """Return the timers that are only in memory. They come from the copy that the last stop left, if it can be read
        and nothing was stored since."""
        if not self.environment.log.size and self._has_inbox_copy():
            with suppress(ValueError, struct.error):
                return list(read_copy(self._txn, self.tables))
        touch = self.environment.ahead.touch
        return recover(self._txn, self.tables, self.terms_of, touch, self.damaged)

    def _new_batch(self) -> None:
        self._is_open = False
        self._is_broken = False
        self._failure: StorageError | None = None
        self._bytes = 0
        self._changes = 0
        # Not Counters, which take much longer to create and to add up.
        self._timed: defaultdict[bytes, int] = defaultdict(int)
        self._fired: defaultdict[bytes, int] = defaultdict(int)
        self._grown: dict[Queue, set[int]] = {}
        self._shortened: dict[Queue, int] = {}

    # -- writing: every call joins the batch

    @property
    def next_sequence(self) -> int:
        """The sequence that `new_sequence` returns next."""
        return self._next_sequence

    @property
    def committed_sequence(self) -> int:
        """The value of `next_sequence` after the last commit. The open batch may still be refused."""
        return self._committed_sequence

    def new_sequence(self) -> int:
        """Return the sequence of the next message, which its record carries as the physical offset."""
        sequence = self._next_sequence
        self._next_sequence = sequence + 1
        return sequence

    def append(
        self,
        queue: Queue,
        sequence: int,
        record: bytes,
        tag_hash: int,
        message_id: bytes,
        keys: Iterable[bytes],
        stored_ms: int,
    ) -> int:
        """Put a message at the end of a queue.

        :param sequence: from `new_sequence`, in the order in which they were handed out. Or the sequence of a half
            message that `take_half` has just taken; the record replaces the one of the half.
        :returns: its offset in the queue.
        """
        number = pack_u64(sequence)
        # This comes first: a number that has no room in the row must leave nothing of the message.
        offset = self._enter(queue, number, tag_hash, len(record), stored_ms)
        self._add_record(sequence, number, queue.topic, record, message_id, keys, NOT_TIMED)
        return offset

    def schedule(
        self,
        due_ms: int,
        topic: bytes,
        queue: int,
        sequence: int,
        record: bytes,
        tag_hash: int,
        message_id: bytes,
        keys: Iterable[bytes],
    ) -> None:
        """Hold a message until `due_ms`, when `fire_due` puts it at the end of its queue.

        :param sequence: see `append`.
        """
        number = pack_u64(sequence)
        due = pack_u64(due_ms)
        timer = TIMER_VALUE.pack(queue | NEVER_MOVED, tag_hash, len(record))
        message_id = self._add_record(sequence, number, topic, record, message_id, keys, due)
        key = b"%b%b\0%b%b" % (due, topic, number, message_id)
        if len(key) > MAX_KEY:
            # From the inbox it would reach LMDB, which refuses it, only long after the message was accepted.
            self.spoil(StorageError(f"a timer's key has {len(key)} bytes"))
        elif sequence >= self._committed_sequence:
            self.inbox.add(key, timer)
        else:
            # The sequence of a half message can be lower than the mark from which `recover` reads.
            self._timers.append((key, timer))
            self.fronts.enter(topic, key)
            self.held.count_timer(topic, due_ms, 1, len(record))
        self.held.count(topic, 1, len(record))
        self._timed[topic] += 1

    def _enter(self, queue: Queue, number: bytes, tag_hash: int, size: int, stored_ms: int) -> int:
        """Put a message's row at the end of its queue, and return the offset there."""
        offset = queue.next
        row = number + QUEUE_COLUMNS.pack(tag_hash, size, stored_ms)
        self._rows.append((queue.prefix + pack_u64(offset), row))
        queue.next = offset + 1
        queue.next_bytes += size
        tags = self._grown.get(queue)
        if tags is None:
            tags = self._grown[queue] = set()
        tags.add(tag_hash)
        return offset

    def _add_record(
        self,
        sequence: int,
        number: bytes,
        topic: bytes,
        record: bytes,
        message_id: bytes,
        keys: Iterable[bytes],
        due: bytes,
    ) -> bytes:
        message_id = term(message_id)
        if self._committed_sequence <= sequence == self._next_sequence - 1:
            self._records.append((number, record))
        else:
            # A half that is committed has its own record, or later messages behind it.
            self._replaced.append((number, pack(record)))
        self._ids.append((b"%b\0%b" % (message_id, number), due))
        for key in keys:
            self._keys.append((key_prefix(topic, term(key)) + number, b""))
        self._bytes += len(record) + 200
        self._changes += 1
        return message_id

    def take_timer(self, txn: LoggedTransaction, key: bytes, size: int) -> bool:
        """Remove a timer from wherever it is. Return False when the message is not pending.

        :param size: of the message's record. The size in the timer is not used, as the timer may be damaged.
        """
        due_ms, topic, _, _ = split_timer_key(key)
        if self.inbox.take(key) is None:
            if txn.delete(key, db=self.tables.timers):
                self.held.count_timer(topic, due_ms, -1, size)
            elif self.paused.take(txn, topic, key):
                self.held.count_waiting(topic, -1, size)
            else:
                return False
        self.held.count(topic, -1, size)
        return True

    def put_timer(self, txn: LoggedTransaction, key: bytes, value: bytes) -> None:
        """Store the new timer of a pending message whose old timer `take_timer` has removed."""
        self.put_back(txn, key, value)
        _, topic, _, _ = split_timer_key(key)
        self.held.count(topic, 1, TIMER_VALUE.unpack(value)[2])

    def put_back(self, txn: LoggedTransaction, key: bytes, value: bytes) -> None:
        """Put the timer of a message that counts as pending all along into `timers`."""
        due_ms, topic, _, _ = split_timer_key(key)
        # Not into the inbox: the sequence can be lower than the mark from which `recover` reads.
        txn.put(key, value, db=self.tables.timers)
        self.fronts.enter(topic, key)
        self.held.count_timer(topic, due_ms, 1, TIMER_VALUE.unpack(value)[2])

    def first_timer(self, cursor: lmdb.Cursor) -> bytes:
        """Return the timer key of the message that fires next, from wherever it is; empty when there is none.

        :param cursor: in `timers`. It is left at the first message there that is to fire, if any.
        """
        cursor.set_range(self.fronts.of_all)
        return earlier(cursor.key(), self.inbox.first())

    def put_aside(self, txn: LoggedTransaction, key: bytes, value: bytes) -> None:
        """Leave a due message in `timers` because a row that firing needs cannot be read. The message stays pending and
        does not keep others from firing. The next start tries it again.

        :param key: its key in `timers`, where it need not be yet.
        """
        if txn.get(key, db=self.tables.timers) is None:
            self.put_back(txn, key, value)
            self.count_bytes(400)
        number = key.find(b"\0", 8) + 1
        self.damaged.add(key[number : number + 8])

    def enqueue(
        self, queue: Queue, number: bytes, tag_hash: int, size: int, stored_ms: int
    ) -> None:
        """Put a message that no longer waits at the end of its queue.

        :param number: its sequence, packed.
        :param tag_hash: from its timer, like the size.
        """
        self.held.count(queue.topic, -1, size)
        self._fired[queue.topic] += 1
        self._enter(queue, number, tag_hash, size, stored_ms)
        self._bytes += 200
        self._changes += 1

    def count_bytes(self, count: int) -> None:
        """Count bytes that a change elsewhere in this package adds to the batch, so that the map has room for it."""
        self._bytes += count

    def shorten(self, queue: Queue, first: int) -> None:
        """Let a queue begin at offset `first`, unless it begins later. The messages before it have expired, or will
        do so, as `begin_of` of `expire_messages` says."""
        self._shortened.setdefault(queue, queue.first)
        queue.first = max(queue.first, first)

    @in_batch
    def put_note(self, name: bytes, value: bytes) -> None:
        """Store a small value for the caller under a name."""
        self.batch_transaction().put(NOTE + name, value, db=self.tables.meta)

    @in_batch
    def delete_note(self, name: bytes) -> None:
        """Delete a note. A note that does not exist is no error."""
        self.batch_transaction().delete(NOTE + name, db=self.tables.meta)

    @in_batch
    def put_topic(self, topic: bytes, settings: bytes) -> None:
        """Store a topic's settings."""
        self._touched.add(topic)
        self.batch_transaction().put(topic, settings, db=self.tables.topics)

    @in_batch
    def delete_topic(self, topic: bytes) -> None:
        """Delete a topic's settings. Its messages stay until retention removes them."""
        self._touched.add(topic)
        self.batch_transaction().delete(topic, db=self.tables.topics)

    @in_batch
    def put_group(self, group: bytes, settings: bytes) -> None:
        """Store a consumer group's settings."""
        self.batch_transaction().put(group, settings, db=self.tables.groups)

    @in_batch
    def delete_group(self, group: bytes) -> None:
        """Delete a consumer group's settings."""
        self.batch_transaction().delete(group, db=self.tables.groups)

    # -- the batch

    @property
    def has_changes(self) -> bool:
        """Whether `commit` has anything to write. Consumer progress counts only once `progress` has included it in the
        batch."""
        return (
            self._is_open
            or bool(self._records)
            or self.progress.is_included
            or self._failure is not None
        )

    @property
    def batch_bytes(self) -> int:
        """Roughly how many bytes the open batch has."""
        return self._bytes

    def commit(self) -> list[Growth]:
        """Store the batch. When this returns, the disk has it (with `sync`), and look-ups see it.

        :returns: the queues that grew.
        :raises StorageFullError: when there is no room. Nothing of the batch is stored, and the store goes on as
            before.
        :raises StorageError: likewise, for another reason.
        """
        grown = [Growth(queue, queue.visible, tags) for queue, tags in self._grown.items()]
        try:
            txn = self.batch_transaction()
            self._move_timers(txn)
            self.held.write(txn, self.environment.ahead)
            self.paused.write(txn)
            self.progress.write(txn)
            begun = perf_counter()
            txn.commit()
            self.write_seconds = perf_counter() - begun
        except Exception as error:
            failure = self.spoil(error)
            self.abandon()
            if failure is error:
                raise
            raise failure from error
        for topic, count in self._timed.items():
            self.timed[topic] += count
            self.timed_total += count
        for topic, count in self._fired.items():
            self.fired[topic] += count
        self.held.commit()
        self.inbox.commit(self._changes)
        self.paused.commit()
        self.progress.commit()
        self.fronts.commit()
        self._is_mark_wrong = False
        self._committed_sequence = self._next_sequence
        self.commits += 1
        for queue, _, _ in grown:
            queue.visible = queue.next
            queue.added_bytes = queue.next_bytes
        self._new_batch()
        return grown

    def spoil(self, error: Exception) -> StorageError:
        """Make the next `commit` refuse the batch.

        :returns: the error that it will raise.
        """
        if isinstance(error, lmdb.MapFullError):
            self.environment.was_full(self._bytes)
        self._is_broken = self._is_broken or isinstance(error, lmdb.Error)
        if self._failure is None:
            if isinstance(error, StorageError):
                self._failure = error
            elif isinstance(error, (lmdb.MapFullError, lmdb.DiskError)):
                self._failure = StorageFullError(f"no room for the batch: {error}")
            elif isinstance(error, struct.error):
                # Without the folder's path: the text is sent to clients.
                self._failure = StorageError(
                    f"the batch was not stored, as a row cannot be read ({error}): see 'tidegate fsck'"
                )
            else:
                self._failure = StorageError(f"the batch was not stored: {error!r}{way_out(error)}")
        return self._failure

    def abandon(self) -> None:
        """Drop the batch. All offsets and sequences that it handed out are free again."""
        if self._is_broken or self._txn.has_changes:
            self._is_broken = False
            with suppress(StorageError):
                # If this fails, the next batch tries again, and reports why it cannot.
                self._txn.roll_back()
        self._records.clear()
        for _, rows, _ in self._unwritten:
            rows.clear()
        for queue in self._grown:
            queue.next = queue.visible
            queue.next_bytes = queue.added_bytes
        for queue, first in self._shortened.items():
            queue.first = first
        self._next_sequence = self._committed_sequence
        self.fronts.reset()
        self.inbox.abandon()
        self.held.abandon()
        self.paused.abandon()
        self.progress.abandon()
        self._new_batch()

    def reopen(self) -> None:
        """Make the store readable again where it could not be read after a batch was refused.

        :raises StorageError: when it still cannot be read.
        """
        self._txn.reopen()

    def batch_transaction(self) -> LoggedTransaction:
        """Return the batch's transaction with all rows so far written to it, so that reads through it see the earlier
        changes."""
        if self._failure is not None:
            raise self._failure
        txn = self._txn
        if not self._is_open:
            txn.reserve(self._bytes)
            self._is_open = True
        if self._keys:
            # Ids come nearly in order, keys in random order.
            keys = [key for key, _ in self._keys]
            self.environment.ahead.touch(txn, Rows(self.tables.keys, keys))
        # All together: zstd's code then stays in the processor's caches.
        cut, parts = self.cutter.cut, self._parts
        self._messages += [
            (number, cut(number, pack(record), parts)) for number, record in self._records
        ]
        self._records.clear()
        for table, rows, append in self._unwritten:
            if rows:
                txn.put_all(rows, db=table, append=append)
                rows.clear()
        return txn

    def _move_timers(self, txn: LoggedTransaction) -> None:
        """Move timers from the inbox into `timers` when there are enough of them."""
        if self.inbox.is_ripe:
            mark = self.inbox.ripen() or pack_u64(self._next_sequence)
            txn.put(MARK, mark, db=self.tables.meta)
        elif self._is_mark_wrong:
            # New sequences may reach the damaged mark, which would then be taken as valid.
            txn.delete(MARK, db=self.tables.meta)
        moved = self.inbox.take_latest()
        if not moved:
            return
        self.environment.ahead.touch(txn, Rows(self.tables.timers, [key for key, _ in moved]))
        for key, value in moved:
            due_ms, topic, _, _ = split_timer_key(key)
            self.held.count_timer(topic, due_ms, 1, TIMER_VALUE.unpack(value)[2])
            self.fronts.lower(topic, key)
        txn.put_all(moved, db=self.tables.timers)

    # -- checkpoints: see `logged`

    def checkpoint_if_due(self) -> bool:
        """Make a checkpoint if one is due and no batch is open. Call it after a commit, when no request waits. It takes
        some milliseconds; the disk then takes some more in the background.

        :returns: whether it made one.
        :raises StorageError: as from `checkpoint`.
        """
        if not self._txn.is_due or self.has_changes:
            return False
        self._begin_checkpoint()
        return True

    def checkpoint(self) -> None:
        """Write everything to LMDB's file and sync it, so that other processes see it and a start need not apply the
        redo log. No batch may be open.

        :raises StorageError: when it cannot be written. Everything stays stored as before, and a later checkpoint will
            do.
        """
        self._begin_checkpoint()
        self.environment.durable.wait()

    def _begin_checkpoint(self) -> None:
        try:
            self._txn.checkpoint()
        except lmdb.Error as error:
            self._txn.roll_back()
            raise StorageError(f"a checkpoint could not be written: {error}") from error

    # -- reading: only what is committed

    def queue(self, topic: bytes, number: int) -> Queue:
        """Return a queue's ends, from memory after the first call.

        :raises DamagedError: when they cannot be read.
        :raises StorageError: when LMDB cannot read its file. It then accepts no more changes to the open batch.
        """
        try:
            return self._queues[topic][number]
        except KeyError:
            try:
                queue = open_queue(self.reader(), self.tables, topic, number)
            except DamagedError:
                self.damaged.add(queue_prefix(topic, number))
                raise
            except lmdb.Error as error:
                raise as_told(error) from error
        self._touched.add(topic)
        self._queues.setdefault(topic, {})[number] = queue
        if not queue.next:
            self._unused.append(queue)
        return queue

    def readable_queues(self, topic: bytes, count: int) -> Iterator[Queue]:
        """Return those of a topic's first `count` queues whose ends can be read. The others are added to `damaged`."""
        for number in range(count):
            with suppress(DamagedError):
                yield self.queue(topic, number)

    def read(
        self,
        queue: Queue,
        offset: int,
        limit: int,
        max_bytes: int,
        tag_hashes: AbstractSet[int] | None = None,
        matches: Callable[[bytes], bool] | None = None,
        most_judged: int = MAX_RECORDS_JUDGED,
    ) -> Page:
        """See `read_page`.

        :raises StorageError: as from `queue`.
        """
        if offset >= queue.visible:
            return Page([], offset)
        try:
            return read_page(
                self.reader(),
                self.tables,
                self.environment.ahead,
                queue,
                offset,
                limit,
                max_bytes,
                tag_hashes,
                matches,
                most_judged,
                self.record,
            )
        except DamagedError:
            self.damaged.add(queue.prefix)
            raise
        except lmdb.Error as error:
            raise as_told(error) from error

    def record(self, number: bytes) -> bytes | None:
        """Return a message's record; None when there is none, or when it cannot be read and is added to `damaged`.

        :param number: its sequence, packed.
        """
        value = self._txn.get(number, db=self.tables.messages)
        if value is None:
            return None
        stored = join(self._txn, self.tables, number, value)
        record = unpack(stored) if stored is not None else None
        # A record that is not packed has no checksum.
        if record is stored and read_terms(self.terms_of, record) is None:
            record = None
        if record is None:
            self.damaged.add(number)
        return record

    def record_with_terms(self, number: bytes) -> tuple[bytes, Terms] | None:
        """Return a message's record as `record` does, with the terms that `terms_of` reads out of it."""
        record = self.record(number)
        if record is None:
            return None
        terms = read_terms(self.terms_of, record)
        if terms is None:
            self.damaged.add(number)
            return None
        return record, terms

    def offset_at(self, queue: Queue, stored_ms: int) -> int:
        """Return the first offset stored at `stored_ms` or later, or the queue's end when there is none."""
        return offset_at(self.reader(), self.tables, queue, stored_ms)

    def stored_ms(self, queue: Queue, offset: int) -> int | None:
        """Return when the message at an offset entered its queue."""
        row = row_at(self.reader(), self.tables, queue, offset)
        return row[1] if row is not None else None

    def rows(self, queue: Queue, offset: int, limit: int) -> Iterator[tuple[int, int, int]]:
        """See `rows_from`."""
        return rows_from(self.reader(), self.tables, queue, offset, limit)

    def next_due(self) -> int | None:
        """Return when the earliest timed message is due, in epoch ms. Messages of the open batch count, but for
        committed halves that are not rows yet."""
        earliest = self.first_timer(self.reader().cursor(db=self.tables.timers))
        return time_of(earliest) if earliest else None

    def count_queues(self, topic: bytes) -> int:
        """See `count_queues`."""
        return count_queues(self.reader(), self.tables, topic)

    def topics(self) -> list[tuple[bytes, bytes]]:
        """Return all topics with their settings."""
        return list(self.reader().cursor(db=self.tables.topics))

    def topic(self, name: bytes) -> bytes | None:
        """Return a topic's settings."""
        return self.reader().get(name, db=self.tables.topics)

    def groups(self) -> list[tuple[bytes, bytes]]:
        """Return all consumer groups with their settings."""
        return list(self.reader().cursor(db=self.tables.groups))

    def group(self, name: bytes) -> bytes | None:
        """Return a consumer group's settings."""
        return self.reader().get(name, db=self.tables.groups)

    def note(self, name: bytes) -> bytes | None:
        """Return a note's value."""
        return self.reader().get(NOTE + name, db=self.tables.meta)

    def notes(self, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
        """Return all notes whose names begin with `prefix`, in the order of names. The prefix is cut off the names."""
        begin = NOTE + prefix
        rows = rows_with_prefix(self.reader(), self.tables.meta, begin)
        return [(name[len(begin) :], value) for name, value in rows]

    def held_totals(self) -> Mapping[bytes, int]:
        """Return how many messages are pending, for each topic that has any."""
        return self.held.messages

    def open_topics(self) -> list[bytes]:
        """Return the topics of which this process has opened a queue."""
        return list(self._queues)

    def open_queues(self, topic: bytes) -> Iterable[Queue]:
        """Return the queues of a topic that this process has opened."""
        return self._queues.get(topic, {}).values()

    def forget_topics(
        self, is_known: Callable[[bytes], bool], is_awaited: Callable[[Queue], bool], limit: int
    ) -> tuple[list[bytes], bool]:
        """Drop unknown topics from memory, except for awaited queues, whose objects the waiting requests hold. Check at
        most `limit` of those that were touched since they were checked last: it can be all topics. No batch may be
        open.

        :returns: the unknown topics among them, and whether others are left to check.
        """
        if not self._unchecked:
            self._unchecked = list(self._touched)
            self._touched.clear()
        checked = self._unchecked[-limit:]
        del self._unchecked[-limit:]
        unknown = [topic for topic in checked if not is_known(topic)]
        for topic in unknown:
            queues = self._queues.pop(topic, {})
            awaited = {number: queue for number, queue in queues.items() if is_awaited(queue)}
            if awaited:
                self._queues[topic] = awaited
                self._touched.add(topic)
            del self.timed[topic], self.fired[topic]
        return unknown, bool(self._unchecked)

    def forget_unused(self, is_awaited: Callable[[Queue], bool]) -> None:
        """Drop from memory the queues that have never held a message, 370 bytes each: a topic may have thousands
        that somebody only asked about. Awaited ones stay. Nobody else may hold their objects."""
        if len(self._unused) < self._unused_kept + MANY_UNUSED:
            return
        unused, self._unused = self._unused, []
        for queue in unused:
            if queue.next:
                continue
            if is_awaited(queue):
                self._unused.append(queue)
            elif self._queues.get(queue.topic, {}).get(queue.number) is queue:
                del self._queues[queue.topic][queue.number]
        self._unused_kept = len(self._unused)

    def oldest_record(self) -> bytes | None:
        """Return the record of the oldest message still held; None when it cannot be read."""
        cursor = self.reader().cursor(db=self.tables.messages)
        return self.record(cursor.key()) if cursor.first() else None

    def pending_count(self) -> int:
        """Return how many messages are pending."""
        return sum(self.held.messages.values())

    def reader(self) -> LoggedTransaction:
        """Return the transaction through which the other files of this package read. It includes the rows of an open
        batch, but not the messages that are no rows yet."""
        self._txn.reopen()
        return self._txn

    def settled_reader(self) -> LoggedTransaction:
        """Return the same transaction. An open batch that has rows is committed first, so that all rows read are
        stored."""
        if self._txn.has_changes:
            self.settle()
        return self.reader()

    @property
    def log_trouble(self) -> str | None:
        """A warning for the operator that the redo log may have lost stored batches: see `RedoLog`."""
        return self.environment.log.trouble

    @property
    def upgraded(self) -> str | None:
        """See `Environment.upgraded`."""
        return self.environment.upgraded

    def sync(self) -> None:
        """Sync what was committed without `sync` to disk, when no checkpoint does: see `Environment.unheld_seconds`.
        Another thread may call it.

        :raises StorageError: when the disk fails.
        """
        try:
            self.environment.log.sync()
        except OSError as error:
            raise StorageError(f"the redo log could not be synced: {error.strerror}") from error

    def close(self) -> None:
        """Write consumer progress, sync, and close the folder. The folder is closed even if that fails."""
        try:
            while self.progress.include() or self.has_changes:
                self.commit()
            if self.environment.log.size:
                self.checkpoint()
            self.environment.durable.wait()
        finally:
            self.abandon()
            self._txn.close()
            self._leave_inbox()
            self.environment.close()

    def _leave_inbox(self) -> None:
        # If this fails, the next start works without the copy.
        with suppress(StorageError, lmdb.Error):
            if not self.environment.log.size and not self._has_inbox_copy():
                write_copy(self.environment, self.tables, self.inbox.rows())

    def _has_inbox_copy(self) -> bool:
        with self.environment.view() as txn:
            return has_copy(txn, self.tables)
