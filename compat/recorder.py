"""Runs the recording proxy in a thread of its own, with one capture file, and tracks unanswered requests."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from compat.questions import Questions
from recording.format import SUFFIX, Kind
from recording.proxy import Proxy, Route
from recording.writer import CaptureWriter, Rotation

_ONE_FILE: Final = Rotation(file_bytes=1 << 62, seconds=float("inf"))


class Recorder:
    """Passes on the traffic of its routes; `with` starts it, and at its end completes the file.

    Frames pass unchanged, so clients keep using the recorder only if the servers advertise the
    address where it listens.
    """

    def __init__(self, file: Path, routes: Sequence[Route]) -> None:
        self.questions = Questions()
        self._routes = routes
        self._path = file
        self._started = threading.Event()
        self._failure: Exception | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            self._end()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._end()

    def _end(self) -> None:
        self._thread.join()
        self._loop.close()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._record()
        except Exception as failure:  # noqa: BLE001  raised in the thread that uses the recorder
            self._failure = failure
        finally:
            self._started.set()

    def _record(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix=f".{self._path.name}-", dir=self._path.parent))
        try:
            with _Watched(folder, self.questions) as writer:
                self._loop.run_until_complete(self._serve(Proxy(writer)))
            (file,) = folder.glob(f"*{SUFFIX}")
            file.replace(self._path)
        finally:
            shutil.rmtree(folder)

    async def _serve(self, proxy: Proxy) -> None:
        try:
            for route in self._routes:
                await proxy.listen(route)
            self._started.set()
            await self._stop.wait()
        finally:
            await proxy.close()


class _Watched(CaptureWriter):
    """Writes one file, and reports the frames that pass to `questions`."""

    def __init__(self, folder: Path, questions: Questions) -> None:
        super().__init__(folder, _ONE_FILE)
        self._questions = questions

    def record(self, connection: int, kind: Kind, *frame: bytes) -> None:
        super().record(connection, kind, *frame)
        self._questions.passed(connection, kind, b"".join(frame))

    def closed(self, connection: int) -> None:
        super().closed(connection)
        self._questions.closed(connection)
