"""Sends recorded requests again, each at its time, and keeps the answers. It does not depend on Spark.

One `Player` plays many connections in one event loop. Requests are sent by time, in the order of their
connection, whether or not earlier ones have been answered. Only a request with an id from an answer,
such as a recall, about a message in one, such as its return, or that goes on where a pull ended, waits
for that answer.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from gateway.wire.addresses import show_address
from gateway.wire.codes import CommandFlag, RequestCode, ResponseCode
from gateway.wire.commands import (
    Command,
    CommandError,
    decode_command,
    encode_command,
    encode_response,
)
from gateway.wire.frames import FrameBuffer, FrameError
from spark_jobs.errors import JobError
from spark_jobs.exchanges import TEXTS
from spark_jobs.latest import Latest
from spark_jobs.messages import PULLS, SENDS
from spark_jobs.popped import ACKS
from spark_jobs.rewriting import Learned, Rewriter, Rules, ids_needed, ids_told
from spark_jobs.schemas import ddl

RESULTS: Final = pa.schema(
    [
        ("file", pa.string()),
        ("position", pa.int64()),
        ("connection", pa.string()),
        ("code", pa.int32()),
        ("feature", pa.string()),
        ("asked_ns", pa.int64()),
        ("outcome", pa.string()),
        ("due_ns", pa.int64()),
        ("sent_ns", pa.int64()),
        ("answered_ns", pa.int64()),
        ("answer_code", pa.int32()),
        ("answer_remark", pa.string()),
        ("answer_ext", TEXTS),
        ("answer_body", pa.binary()),
        ("unmapped", pa.string()),
        ("ext", TEXTS),
        ("body", pa.binary()),
    ]
)
"""The columns of results, one row for each request; docs/replay-reference.md describes them."""

DDL: Final = ddl(RESULTS)

_KEPT: Final = ("file", "position", "connection", "code", "feature", "asked_ns")
"""Columns that a result copies from the recorded request."""

_KEPT_CODES: Final = SENDS | {
    RequestCode.RECALL_MESSAGE,
    RequestCode.ABORT_TIMERS,
    RequestCode.RESCHEDULE_TIMERS,
    RequestCode.BULK_CHANGE_TIMERS,
    RequestCode.END_TRANSACTION,
    RequestCode.PAUSE_TOPIC,
    RequestCode.RESUME_TOPIC,
}
_KEPT_BODIES: Final = frozenset({RequestCode.SEND_BATCH_MESSAGE})
"""Sends whose results keep the body: it has the delays of a batch's messages. Others have them in the properties."""

ANSWERED: Final = "answered"
ONEWAY: Final = "oneway"
UNANSWERED: Final = "no answer"
CLOSED: Final = "closed"
"""The target closed the connection before it answered."""
REFUSED: Final = "not connected"
SENT_BEFORE: Final = "sent before"
"""An earlier, interrupted run of the same replay has sent the request."""

NAME_SERVER_CODES: Final = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.GET_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_ALL_TOPIC_LIST,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.GET_NAMESRV_CONFIG,
    }
)
"""Requests that go to the name server; all others go to the broker."""

_LATER: Final = ACKS | PULLS | {RequestCode.CONSUMER_SEND_MSG_BACK}
"""Requests that wait for what a pop or a pull gets while later requests are sent."""
_MOST_OPEN: Final = 500
"""Above so many connections of a task, one that waits for no answer is closed for each new one."""
_MOST_CONNECTIONS: Final = 10_000
"""Of so many connections it is known what their answers said: those that sent a request last."""
MARK_BYTES: Final = 8
"""The size of a request's mark in a journal."""
_TEACHING_S: Final = 2.0
"""The longest wait of a request for an earlier answer that has its ids."""
_RETRY_CONNECT_S: Final = 1.0
_SPIN_S: Final = 0.0005
_CATCH_UP_NS: Final = 100_000_000
"""How much of a delay requests catch up with under a rate: a task's own pauses do not lower it, and a target that
stalled does not get at once what it was not sent meanwhile."""


class Pacing(NamedTuple):
    """When requests are sent, and how long their answers are waited for.

    :param start_ns: epoch ns at which the recording's first moment is played.
    :param first_ns: the recording's first moment.
    :param speed: how much faster than recorded; 0 is as fast as possible.
    :param rate: the most requests per second of this player; 0 is no limit.
    :param outstanding: the most unanswered requests; at this number no more are sent.
    :param patience_s: how long to wait for an answer.
    :param keeps_sends: whether the results have the sends as they were sent, for `verify`.
    """

    start_ns: int
    first_ns: int
    speed: float = 1.0
    rate: float = 0.0
    outstanding: int = 4096
    patience_s: float = 30.0
    keeps_sends: bool = False


class Target(NamedTuple):
    """The addresses to send to. Name server and broker may be the same.

    :param brokers: how many brokers the name server knows; requests go to one of them.
    """

    name_server: tuple[str, int]
    broker: tuple[str, int]
    brokers: int = 1


class Journal:
    """The requests that have been sent. Each is noted on disk before the send, so the next run does not send it again.

    Each request has `MARK_BYTES`: a hash of its file and position.

    :param name: the task's. If the same task runs already, this waits until it has ended.
    """

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        # After the loss of an executor, Spark may run a task again that still sends elsewhere.
        self._lock = os.open(folder / f"{name}.lock", os.O_WRONLY | os.O_CREAT, 0o644)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        marks = [np.fromfile(file, np.uint64) for file in folder.glob("*.sent")]
        self._sent = np.sort(np.concatenate([np.empty(0, np.uint64), *marks]))
        """Those of earlier runs, sorted: a set would take nine times the memory. A run has each request only once."""
        self._file = os.open(
            folder / f"{name}-{os.getpid()}-{time.time_ns()}.sent",
            os.O_WRONLY | os.O_CREAT | os.O_APPEND,
            0o644,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)
        os.close(self._lock)

    def has(self, file: str, position: int) -> bool:
        """Whether an earlier run has noted a request."""
        if not self._sent.size:
            return False
        mark = np.frombuffer(_mark(file, position), np.uint64)
        first, end = (np.searchsorted(self._sent, mark, side) for side in ("left", "right"))
        return bool(first < end)

    def note(self, file: str, position: int) -> None:
        """Note that a request is about to be sent. Raises JobError, as on a full disk."""
        try:
            os.write(self._file, _mark(file, position))
        except OSError as error:
            raise JobError(f"cannot write to {self._folder}: {error.strerror}") from error


def _mark(file: str, position: int) -> bytes:
    return hashlib.blake2b(f"{file}\0{position}".encode(), digest_size=MARK_BYTES).digest()


class _Line(asyncio.Protocol):
    """A connection to the target.

    Its write buffer is empty before the next request is noted as sent, so a kill loses at most one
    request of a connection.
    """

    def __init__(self, player: Player) -> None:
        self._player = player
        self._frames = FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self._written = asyncio.Event()
        self._written.set()
        self.waiting: dict[int, _Sent] = {}
        self.next_opaque = 1
        self.later = 0
        """How many requests will be sent on it once an earlier answer has arrived."""

    @property
    def is_unused(self) -> bool:
        """Whether no answer is outstanding, and no delayed request will use it."""
        return not self.waiting and not self.later

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(0)

    def pause_writing(self) -> None:
        self._written.clear()

    def resume_writing(self) -> None:
        self._written.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._written.set()
        for sent in self.waiting.values():
            self._player.finish(sent, CLOSED)
        self.waiting.clear()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            frames = self._frames.feed(data)
            for frame in frames:
                command = decode_command(frame)
                if command.is_response:
                    if sent := self.waiting.pop(command.opaque, None):
                        self._player.answer(sent, command)
                elif command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
                    # Without an answer the target would refuse the reply, after a while.
                    self.send(encode_response(command.opaque, ResponseCode.SUCCESS))
        except (FrameError, CommandError):
            self._transport.abort()

    def send(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def end(self) -> None:
        """Close the connection once all data has been written."""
        if self._transport is not None:
            self._transport.close()

    async def written(self, patience_s: float) -> None:
        """Wait until all data has been written; close the connection to a target that does not read."""
        if self._written.is_set():
            return
        try:
            await asyncio.wait_for(self._written.wait(), patience_s)
        except TimeoutError:
            self.close()
            await self._written.wait()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _Sent(NamedTuple):
    row: Mapping[str, Any]
    result: dict[str, Any]
    rewriter: Rewriter
    line: _Line
    opaque: int
    left_s: float
    """When it left, by the monotonic clock."""
    teaches: Collection[str] = ()
    """Recorded ids whose new values are in its answer."""


class Player:
    """Sends the requests in rows of `exchanges.ROWS`, which must be in the order of their times."""

    def __init__(self, target: Target, pacing: Pacing, rules: Rules, journal: Journal) -> None:
        self._target = target
        self._pacing = pacing
        self._rules = rules
        self._journal = journal
        self._lines: dict[tuple[str, tuple[str, int]], _Line] = {}
        """Open connections, the least recently used first."""
        self._failed: dict[tuple[str, int], tuple[float, str]] = {}
        self._rewriters = Latest[str, Rewriter](_MOST_CONNECTIONS)
        self._learned = Learned(rules)
        self._finished: list[dict[str, Any]] = []
        self._outstanding: dict[int, _Sent] = {}
        # A clock that is set during the replay changes nothing in its pace.
        self._epoch_ns = time.time_ns() - time.monotonic_ns()
        self._gap_ns = round(1e9 / pacing.rate) if pacing.rate else 0
        self._last_due_ns = 0
        self._next_ns = 0
        """Under a rate: the next request leaves no sooner."""
        self._room = asyncio.Event()
        self._teachers: dict[str, dict[str, Any]] = {}
        """By recorded id: the result, not finished yet, of the request whose answer has the id of this run."""
        self._taught: dict[int, asyncio.Event] = {}
        """By the `id` of such a result: set when it is finished. Only of those that other requests wait for."""
        self._later: set[asyncio.Task[None]] = set()
        """Requests that wait for an id while later requests are sent."""
        self._failure: BaseException | None = None
        """Why such a request was not sent, as where the journal cannot be written."""

    def play(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send all requests and yield their results, as batches of `RESULTS`."""
        loop = asyncio.new_event_loop()
        try:
            for batch in batches:
                loop.run_until_complete(self._play_rows(batch.to_pylist()))
                if self._finished:
                    yield self._results()
            loop.run_until_complete(self._wait_for_answers())
            for sent in list(self._outstanding.values()):
                self.finish(sent, UNANSWERED)
            yield self._results()
        finally:
            loop.run_until_complete(self._end())
            loop.close()

    async def _end(self) -> None:
        for task in self._later:
            task.cancel()
        for line in self._lines.values():
            line.waiting.clear()
            line.close()
        await asyncio.sleep(0)

    def finish(self, sent: _Sent, outcome: str) -> None:
        """Finish a request with its outcome."""
        self._outstanding.pop(id(sent.result), None)
        self._has_taught(sent.result, sent.teaches)
        sent.result["outcome"] = outcome
        self._finished.append(sent.result)
        self._room.set()

    def answer(self, sent: _Sent, command: Command) -> None:
        """Take the target's answer to a request."""
        ext = command.ext()
        sent.result.update(
            answered_ns=time.time_ns(),
            answer_code=command.code,
            answer_remark=command.remark,
            answer_ext=list(ext.items()),
            answer_body=command.body,
        )
        row = sent.row
        if row["answer_code"] is not None:
            sent.rewriter.answer(
                row["code"],
                dict(row["ext"] or ()),
                (dict(row["answer_ext"] or ()), row["answer_body"] or b""),
                (ext, command.body),
            )
        self.finish(sent, ANSWERED)

    def _now_ns(self) -> int:
        """Return the time by which requests leave, epoch ns."""
        return self._epoch_ns + time.monotonic_ns()

    def _due_ns(self, recorded_ns: int) -> int:
        pacing = self._pacing
        due_ns = pacing.start_ns
        if pacing.speed:
            due_ns += round((recorded_ns - pacing.first_ns) / pacing.speed)
        if pacing.rate:
            due_ns = max(due_ns, self._last_due_ns + self._gap_ns)
        return due_ns

    async def _play_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            await self._play_row(row)
            if self._failure is not None:
                raise self._failure

    async def _play_row(self, row: Mapping[str, Any]) -> None:
        result: dict[str, Any] = {name: row.get(name) for name in _KEPT}
        if self._journal.has(row["file"], row["position"]):
            self._finished.append(result | {"outcome": SENT_BEFORE})
            return
        result["due_ns"] = due_ns = self._due_ns(row["asked_ns"])
        leave_ns = max(due_ns, self._next_ns)
        await _sleep_for((leave_ns - self._now_ns()) / 1e9)
        await self._make_room()
        if self._pacing.rate:
            self._last_due_ns = due_ns
            self._next_ns = max(leave_ns, self._now_ns() - _CATCH_UP_NS) + self._gap_ns
        address = self._target.broker
        if row["code"] in NAME_SERVER_CODES:
            address = self._target.name_server
        line = await self._line(row["connection"], address)
        if line is None:
            self._finished.append(
                result | {"outcome": REFUSED, "answer_remark": self._failed[address][1]}
            )
            return
        ext = dict(row["ext"] or ())
        body = row["body"] or b""
        asked = row["server"], row["code"], ext
        needed = ids_needed(*asked, body) if self._teachers else ()
        waits = self._waits_for(needed)
        if row["code"] in ACKS:
            waits += self._waits_for_pops(*asked, body)
        answer = dict(row["answer_ext"] or ()), row["answer_body"] or b""
        self._learned.popped.expect(*asked, answer)
        teaches = ids_told(*asked, *answer)
        for taught in teaches:
            self._teachers[taught] = result
        if waits and row["code"] in _LATER and len(self._later) < self._pacing.outstanding:
            # A pop or a pull may wait long, and consumers do this in parallel to their other requests.
            line.later += 1
            task = asyncio.create_task(
                self._send_when_taught(waits, row, ext, line, result, teaches)
            )
            self._later.add(task)
            task.add_done_callback(self._is_done)
            return
        await self._be_taught(waits, result)
        self._send(row, ext, line, result, teaches)

    def _is_done(self, task: asyncio.Task[None]) -> None:
        self._later.discard(task)
        if not task.cancelled():
            self._failure = task.exception() or self._failure

    async def _send_when_taught(
        self,
        waits: Collection[asyncio.Event],
        row: Mapping[str, Any],
        ext: Mapping[str, str],
        line: _Line,
        result: dict[str, Any],
        teaches: Collection[str],
    ) -> None:
        await self._be_taught(waits, result)
        line.later -= 1
        self._send(row, ext, line, result, teaches)

    def _send(
        self,
        row: Mapping[str, Any],
        ext: Mapping[str, str],
        line: _Line,
        result: dict[str, Any],
        teaches: Collection[str],
    ) -> None:
        if not line.is_open:
            self._has_taught(result, teaches)
            self._finished.append(result | {"outcome": CLOSED})
            return
        self._journal.note(row["file"], row["position"])
        rewriter = self._rewriters.get(row["connection"])
        if rewriter is None:
            rewriter = Rewriter(self._rules, self._learned, row["server"])
        self._rewriters[row["connection"]] = rewriter
        changed = rewriter.request(
            row["code"],
            ext,
            row["body"] or b"",
            row["asked_ns"] // 1_000_000,
            time.time_ns() // 1_000_000,
            is_in_vain=_is_in_vain(row),
        )
        opaque = line.next_opaque
        line.next_opaque += 1
        result |= {"sent_ns": time.time_ns(), "unmapped": ",".join(changed.unmapped) or None}
        if self._pacing.keeps_sends and row["code"] in _KEPT_CODES:
            result |= {"ext": list(changed.ext.items())}
            result |= {"body": changed.body if row["code"] in _KEPT_BODIES else b""}
        line.send(
            encode_command(
                row["code"],
                opaque,
                flag=row["flag"],
                ext=changed.ext,
                body=changed.body,
                language=row["language"] or "JAVA",
                version=row["version"],
            )
        )
        if (row["flag"] or 0) & CommandFlag.ONEWAY:
            self._finished.append(result | {"outcome": ONEWAY})
            return
        sent = _Sent(row, result, rewriter, line, opaque, time.monotonic(), teaches)
        line.waiting[opaque] = sent
        self._outstanding[id(result)] = sent

    def _waits_for(self, needed: Collection[str]) -> list[asyncio.Event]:
        """Return an event for each outstanding answer that has this run's values of these ids."""
        teachers = {id(one): one for name in needed if (one := self._teachers.get(name))}
        return [self._taught.setdefault(number, asyncio.Event()) for number in teachers]

    def _waits_for_pops(
        self, server: str | None, code: int, ext: Mapping[str, str], body: bytes
    ) -> Iterator[asyncio.Event]:
        """Yield an event for each popped message of a request that no pop of this run has got yet."""
        for message in self._learned.popped.missing(server, code, ext, body):
            event = asyncio.Event()
            self._learned.popped.call_when_popped(message, event.set)
            yield event

    def _has_taught(self, result: dict[str, Any], teaches: Collection[str]) -> None:
        """Note that a request will teach nothing more."""
        for taught in teaches:
            if self._teachers.get(taught) is result:
                del self._teachers[taught]
        if (event := self._taught.pop(id(result), None)) is not None:
            event.set()

    async def _be_taught(self, waits: Collection[asyncio.Event], result: dict[str, Any]) -> None:
        """Wait for answers, but not for ever. The request is due then."""
        if not waits:
            return
        # Not `wait_for`: Python 3.11's forgets that its task was cancelled if the event comes at the same moment.
        with suppress(TimeoutError):
            async with asyncio.timeout(min(_TEACHING_S, self._pacing.patience_s)):
                for event in waits:
                    await event.wait()
        result["due_ns"] = self._now_ns()

    async def _make_room(self) -> None:
        """Wait while too many answers are outstanding; give up those that take too long."""
        while len(self._outstanding) >= self._pacing.outstanding:
            self._room.clear()
            oldest = next(iter(self._outstanding.values()))
            age_s = time.monotonic() - oldest.left_s
            if age_s >= self._pacing.patience_s:
                oldest.line.waiting.pop(oldest.opaque, None)
                self.finish(oldest, UNANSWERED)
                continue
            try:
                await asyncio.wait_for(self._room.wait(), self._pacing.patience_s - age_s)
            except TimeoutError:
                continue

    async def _wait_for_answers(self) -> None:
        await asyncio.gather(*self._later)
        if self._failure is not None:
            raise self._failure
        deadline = time.monotonic() + self._pacing.patience_s
        while self._outstanding and (left_s := deadline - time.monotonic()) > 0:
            self._room.clear()
            try:
                await asyncio.wait_for(self._room.wait(), left_s)
            except TimeoutError:
                return

    async def _line(self, connection: str, address: tuple[str, int]) -> _Line | None:
        line = self._lines.pop((connection, address), None)
        if line is not None:
            await line.written(self._pacing.patience_s)
            if line.is_open:
                self._lines[connection, address] = line
                return line
        if len(self._lines) >= _MOST_OPEN:
            self._end_unused()
        failed_at, _ = self._failed.get(address, (float("-inf"), ""))
        if time.monotonic() - failed_at < _RETRY_CONNECT_S:
            return None
        try:
            line = await self._connect(address)
        except OSError as error:
            self._failed[address] = (time.monotonic(), f"{show_address(*address)}: {error}")
            return None
        self._lines[connection, address] = line
        return line

    async def _connect(self, address: tuple[str, int]) -> _Line:
        """Open a connection. If the process may open no more, close an unused one first. Raises OSError."""
        deadline = time.monotonic() + self._pacing.patience_s
        while True:
            try:
                loop = asyncio.get_running_loop()
                connecting = loop.create_connection(lambda: _Line(self), *address)
                # A machine that is gone refuses nothing, and the system would wait minutes for it.
                _, line = await asyncio.wait_for(connecting, self._pacing.patience_s)
                return line
            except TimeoutError as error:
                raise OSError(f"it did not answer in {self._pacing.patience_s:g} s") from error
            except OSError as error:
                left_s = deadline - time.monotonic()
                if error.errno != errno.EMFILE or left_s <= 0:
                    raise
            self._room.clear()
            if self._end_unused():
                await asyncio.sleep(0)  # lets the loop close it
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._room.wait(), left_s)

    def _end_unused(self) -> bool:
        """Close an unused connection; its later requests use a new one. Return False if there is none."""
        unused = next((key for key, line in self._lines.items() if line.is_unused), None)
        if unused is None:
            return False
        self._lines.pop(unused).end()
        return True

    def _results(self) -> pa.RecordBatch:
        rows, self._finished = self._finished, []
        return pa.RecordBatch.from_pylist(rows, schema=RESULTS)


def _is_in_vain(row: Mapping[str, Any]) -> bool:
    """Whether the recorded answer of a poll has no message; of other requests it means nothing."""
    if row["answer_code"] != ResponseCode.SUCCESS:
        return True
    is_notified = row["code"] == RequestCode.NOTIFICATION
    return is_notified and dict(row["answer_ext"] or ()).get("hasMsg") == "false"


async def _sleep_for(left_s: float) -> None:
    """Sleep. Answers are processed meanwhile, even if no time is left."""
    await asyncio.sleep(max(left_s - _SPIN_S, 0) if left_s > _SPIN_S else 0)
