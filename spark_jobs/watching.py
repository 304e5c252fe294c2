"""Consumes the messages of a replay while it runs, so that `verify` knows when they were delivered.

Every queue of the replayed topics is pulled, from its end at the start on, with long polling and
without a filter. No offset is committed, so the target's consumers are not affected. The module does
not depend on Spark.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from gateway.wire.codes import PullSysFlag, RequestCode, ResponseCode
from gateway.wire.commands import Command, CommandError, decode_command, encode_command
from gateway.wire.dialect import DialectError, to_json
from gateway.wire.frames import FrameBuffer, FrameError
from spark_jobs import messages
from spark_jobs.errors import JobError
from spark_jobs.replaying import Target

WATCHED: Final = "watched"
"""The folder, within that of a replay, with the deliveries, as rows of `messages.MESSAGES`."""

GROUP: Final = "tidegate-replay-watch"

_SUSPEND_MS: Final = 1_000
_ANSWER_LIMIT_S: Final = 10.0
_AGAIN_S: Final = 0.2
"""The pause before a missing topic or server is tried again."""
_ROWS_AT_ONCE: Final = 10_000
_UNFINISHED: Final = ".unfinished"
"""Within the folder, a file that is being written; Spark reads none whose name begins so."""


class Watcher:
    """Pulls in a thread of its own. `with` starts it, and at its end writes all rows.

    While the disk is full, rows wait. The end of `with` raises JobError if they cannot be written.
    """

    def __init__(self, target: Target, topics: Iterable[str], folder: Path) -> None:
        self._name_server, self._broker = _Line(target.name_server), _Line(target.broker)
        self._topics = sorted(set(topics))
        self._folder = folder / WATCHED
        self._rows: list[dict[str, Any]] = []
        self._drained: dict[tuple[str, int], dict[str, Any]] = {}
        """By queue: its last `drained` event. The first one is in the rows, and those between add nothing."""
        self._files = 0
        self._failure: OSError | None = None
        """Why the last rows could not be written."""
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        self._ready.wait(_ANSWER_LIMIT_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._failure is not None and error is None:
            raise JobError(f"cannot write what was watched: {self._failure}") from self._failure

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._watch())
        except OSError as error:
            self._failure = error
        finally:
            self._loop.close()

    async def _watch(self) -> None:
        starts = [asyncio.Event() for _ in self._topics]
        tasks = [
            asyncio.create_task(self._watch_topic(topic, started))
            for topic, started in zip(self._topics, starts, strict=True)
        ]
        for started in starts:
            await started.wait()
        self._ready.set()
        await self._stop.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._name_server.close()
        await self._broker.close()
        self._rows += self._drained.values()
        self._write()

    async def _watch_topic(self, topic: str, started: asyncio.Event) -> None:
        """Find the topic's queues and pull them. If the topic is created later, pull from the beginning."""
        is_new = False
        try:
            while (queues := await self._queues(topic)) == 0:
                is_new = True
                started.set()
                await asyncio.sleep(_AGAIN_S)
            ends = [0 if is_new else await self._end(topic, queue) for queue in range(queues)]
        finally:
            started.set()
        await asyncio.gather(
            *(self._watch_queue(topic, queue, end) for queue, end in enumerate(ends))
        )

    async def _queues(self, topic: str) -> int:
        answer = await self._name_server.try_to_ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}
        )
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return 0
        try:
            queues = json.loads(to_json(answer.body))["queueDatas"]
            return max(int(one["readQueueNums"]) for one in queues)
        except (DialectError, ValueError, KeyError, TypeError):
            return 0

    async def _end(self, topic: str, queue: int) -> int:
        ext = {"topic": topic, "queueId": str(queue)}
        answer = await self._broker.try_to_ask(RequestCode.GET_MAX_OFFSET, ext)
        return int(answer.ext().get("offset", "0")) if answer is not None else 0

    async def _watch_queue(self, topic: str, queue: int, offset: int) -> None:
        ext = {
            "consumerGroup": GROUP,
            "topic": topic,
            "queueId": str(queue),
            "maxMsgNums": "32",
            "sysFlag": str(PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(_SUSPEND_MS),
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        while True:
            with suppress(OSError):
                ext["queueOffset"] = str(offset)
                asked_ns = time.time_ns()
                answer = await self._broker.ask(RequestCode.PULL_MESSAGE, ext)
                offset = int(answer.ext().get("nextBeginOffset", offset))
                if self._note(ext, asked_ns, answer):
                    continue
            await asyncio.sleep(_AGAIN_S)

    def _note(self, ext: Mapping[str, str], asked_ns: int, answer: Command) -> bool:
        """Keep the events of an answer, and return whether the pull succeeded, with or without messages."""
        pair = {
            "file": WATCHED,
            "position": len(self._rows) + self._files * _ROWS_AT_ONCE,
            "connection": WATCHED,
            "code": int(RequestCode.PULL_MESSAGE),
            "ext": list(ext.items()),
            "asked_ns": asked_ns,
            "answered_ns": time.time_ns(),
            "answer_code": answer.code,
            "answer_body": answer.body,
        }
        for event in messages.messages_of_pair(pair, ()):
            if event["event"] == messages.DRAINED:
                queue = event["topic"], event["queue_id"]
                if queue not in self._drained:
                    self._rows.append(event)
                self._drained[queue] = event
            else:
                self._rows.append(event)
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._write()
        return answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND)

    def _write(self) -> None:
        table = pa.Table.from_batches([messages.message_batch(self._rows)])
        file = self._folder / f"part-{time.time_ns()}-{self._files:05}.parquet"
        unfinished = self._folder / _UNFINISHED
        pq.write_table(table, unfinished)
        unfinished.rename(file)
        self._files += 1
        self._rows = []


class _Line:
    """A connection for any number of requests at once. It is opened when it is needed, and again after it was lost.

    With a connection for each queue, a few hundred topics would have more than a process may open.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._opaque = 0
        self._answers: dict[int, asyncio.Future[Command]] = {}
        self._opening: asyncio.Task[asyncio.StreamWriter] | None = None
        """Opens the connection, or has opened it."""
        self._reading: asyncio.Task[None] | None = None

    async def ask(self, code: int, ext: Mapping[str, str]) -> Command:
        """Send a request and return its answer. Raises OSError."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        writer = await asyncio.shield(self._opening)
        if writer.is_closing():
            raise ConnectionResetError("the connection was lost")
        self._opaque = opaque = self._opaque + 1
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._answers[opaque] = answer
        writer.write(encode_command(code, opaque, ext=ext))
        try:
            # Not `wait_for`: of a task that is cancelled as its answer comes, Python 3.11 forgets that it was.
            async with asyncio.timeout(_ANSWER_LIMIT_S):
                return await answer
        finally:
            self._answers.pop(opaque, None)

    async def try_to_ask(self, code: int, ext: Mapping[str, str]) -> Command | None:
        """Send a request and return its answer, or None if there is none."""
        with suppress(OSError):
            return await self.ask(code, ext)
        return None

    async def close(self) -> None:
        """Close the connection. Nobody may be waiting for an answer."""
        tasks = [task for task in (self._opening, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _open(self) -> asyncio.StreamWriter:
        try:
            async with asyncio.timeout(_ANSWER_LIMIT_S):
                reader, writer = await asyncio.open_connection(*self._address)
        except OSError:
            self._opening = None
            raise
        self._reading = asyncio.create_task(self._read(reader, writer))
        return writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on answers until the connection is lost, or silent for too long."""
        frames = FrameBuffer()
        try:
            with suppress(OSError, FrameError, CommandError):
                while True:
                    async with asyncio.timeout(_ANSWER_LIMIT_S):
                        data = await reader.read(65_536)
                    if not data:
                        break
                    for frame in frames.feed(data):
                        command = decode_command(frame)
                        if not command.is_response:
                            continue
                        answer = self._answers.get(command.opaque)
                        if answer is not None and not answer.done():
                            answer.set_result(command)
        finally:
            self._opening = None
            writer.close()
            answers, self._answers = self._answers, {}
            for answer in answers.values():
                if not answer.done():
                    answer.set_exception(ConnectionResetError("the connection was lost"))
