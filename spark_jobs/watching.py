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

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command, CommandError, decode_command, encode_command
from gateway.wire.dialect import DialectError, to_json
from gateway.wire.frames import FrameBuffer, FrameError
from spark_jobs import messages
from spark_jobs.errors import JobError
from spark_jobs.replaying import Target

WATCHED: Final = "watched"
"""The folder, within that of a replay, with the deliveries, as rows of `messages.MESSAGES`."""

GROUP: Final = "tidegate-replay-watch"

_SUSPEND: Final = 2
_HAS_SUBSCRIPTION: Final = 4
"""PullSysFlag: wait for a message; the filter is in the request."""
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
        self._target = target
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
        answer = await _ask_once(
            self._target.name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}
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
        answer = await _ask_once(self._target.broker, RequestCode.GET_MAX_OFFSET, ext)
        return int(answer.ext().get("offset", "0")) if answer is not None else 0

    async def _watch_queue(self, topic: str, queue: int, offset: int) -> None:
        ext = {
            "consumerGroup": GROUP,
            "topic": topic,
            "queueId": str(queue),
            "maxMsgNums": "32",
            "sysFlag": str(_SUSPEND | _HAS_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(_SUSPEND_MS),
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        while True:
            with suppress(OSError, FrameError, CommandError, TimeoutError):
                async with _Line(self._target.broker) as line:
                    while True:
                        ext["queueOffset"] = str(offset)
                        asked_ns = time.time_ns()
                        answer = await line.ask(RequestCode.PULL_MESSAGE, ext)
                        offset = int(answer.ext().get("nextBeginOffset", offset))
                        if not self._note(ext, asked_ns, answer):
                            await asyncio.sleep(_AGAIN_S)
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
    """A connection with one request at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._frames = FrameBuffer()
        self._opaque = 0

    async def __aenter__(self) -> Self:
        opening = asyncio.open_connection(*self._address)
        self._reader, self._writer = await asyncio.wait_for(opening, _ANSWER_LIMIT_S)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()

    async def ask(self, code: int, ext: Mapping[str, str]) -> Command:
        """Send a request and return its answer. Raises OSError, TimeoutError, FrameError or CommandError."""
        self._opaque += 1
        self._writer.write(encode_command(code, self._opaque, ext=ext))
        async with asyncio.timeout(_ANSWER_LIMIT_S):
            while data := await self._reader.read(65_536):
                for frame in self._frames.feed(data):
                    command = decode_command(frame)
                    if command.is_response and command.opaque == self._opaque:
                        return command
        raise ConnectionResetError("the server closed the connection")


async def _ask_once(address: tuple[str, int], code: int, ext: Mapping[str, str]) -> Command | None:
    with suppress(OSError, FrameError, CommandError, TimeoutError):
        async with _Line(address) as line:
            return await line.ask(code, ext)
    return None
