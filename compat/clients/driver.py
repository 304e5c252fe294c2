"""A child process that runs a real client, driven by JSON lines on its standard input.

Each request is an object with `id` and `do`. Its answer has the same `id` and `done` or `error`.
A line with `consumer` and `message` is a message that a push consumer received, or one that the
server checked.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, Self

import msgspec

from compat import children

Decision = Literal["commit", "rollback", "unknown"]
"""What a producer decides about its transaction."""

PATIENCE_S: Final = 180.0
"""How long to wait for events that are sure to happen. Even on a busy machine none takes so long."""


class DriverError(Exception):
    """The driver ended, or did not answer in time; the text has the end of what it logged."""


class ClientFailure(Exception):  # noqa: N818  it is the client's failure, not the driver's
    """A real client raised an exception.

    `kind` is the exception's class name, `code` its response code of the protocol, if it has one.
    """

    def __init__(self, kind: str, message: str, code: int | None) -> None:
        super().__init__(f"{kind}: {message}" + (f" (code {code})" if code is not None else ""))
        self.kind = kind
        self.message = message
        self.code = code

    @classmethod
    def of(cls, error: Mapping[str, Any]) -> Self:
        return cls(error["class"], error["message"], error.get("code"))


class Outgoing(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A message to send. Usually at most one of the delays and times is given; all given ones are set.

    `size` is the length of a body that the driver makes itself, for bodies too long for a JSON line.
    """

    topic: str
    body: bytes = b""
    size: int | None = None
    tags: str | None = None
    keys: str | None = None
    level: int | None = None
    deliver_time_ms: int | None = None
    delay_time_ms: int | None = None
    delay_time_sec: int | None = None
    properties: dict[str, str] = {}
    queue: int | None = None

    def as_json(self) -> dict[str, Any]:
        value: dict[str, Any] = msgspec.to_builtins(self)
        if self.size is None:
            value["body"] = msgspec.to_builtins(self.body)
        return value


class Sent(msgspec.Struct, rename="camel", kw_only=True):
    """A client's result of a send. The C++ client has only the status, the id and the queue offset."""

    status: str
    msg_id: str
    queue_offset: int
    queue: int | None = None
    broker: str | None = None
    offset_msg_id: str | None = None
    transaction_id: str | None = None
    region_id: str | None = None
    recall_handle: str | None = None


class Received(msgspec.Struct, rename="camel", kw_only=True):
    """A message as a client handed it to its user. `received_ms` is the time of that, for a push consumer.

    `body` is None if it is over 16 KiB. Its length and SHA-256 are always there.
    """

    msg_id: str
    topic: str
    queue: int
    queue_offset: int
    tags: str | None = None
    keys: str | None = None
    reconsume_times: int
    born_ms: int
    stored_ms: int
    store_size: int
    body: bytes | None = None
    body_length: int
    body_sha256: str
    properties: dict[str, str] = {}
    offset_msg_id: str | None = None
    commit_log_offset: int
    flag: int | None = None
    sys_flag: int | None = None
    born_host: str | None = None
    store_host: str | None = None
    received_ms: int = 0


class Inbox:
    """The messages that a push consumer has received, or that were checked for a transactor."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: list[Received] = []

    def put(self, message: Received) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def messages(self) -> list[Received]:
        """Return all messages so far, in order of arrival."""
        with self._changed:
            return list(self._messages)

    def wait_until(
        self, is_enough: Callable[[list[Received]], bool], timeout: float = PATIENCE_S
    ) -> list[Received]:
        """Wait until the messages are enough and return all. Raises TimeoutError after `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: is_enough(self._messages), timeout):
                raise TimeoutError(f"{len(self._messages)} messages came in {timeout:g} s")
            return list(self._messages)


class Driver:
    """The child process, run by `with` or by `start` and `close`. Several threads may call it."""

    def __init__(
        self,
        name: str,
        command: Callable[[Path], Sequence[str | Path]],
        environment: Callable[[Path], Mapping[str, str]] | None = None,
    ) -> None:
        """Make a driver. Both functions get the scratch folder for the client's files."""
        self._name = name
        self._command = command
        self._environment = environment
        self._folder = Path()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._inboxes: dict[str, Inbox] = {}
        self._ready = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the program, unless it runs, and return when it is ready for requests."""
        with self._starting:
            if not self.is_alive:
                self._start()

    def _start(self) -> None:
        self.close()
        self._folder = Path(tempfile.mkdtemp(prefix=f"tidegate-{self._name}-"))
        try:
            self._launch()
        except BaseException:
            self.close()
            shutil.rmtree(self._folder, ignore_errors=True)  # if there is nothing to close
            raise

    def _launch(self) -> None:
        self._ready.clear()
        environment = self._environment(self._folder) if self._environment else {}
        with self._log.open("ab") as log:
            self._process = children.start(
                self._command(self._folder),
                folder=self._folder,
                environment=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        if not self._ready.wait(PATIENCE_S) or not self.is_alive:
            raise DriverError(f"the driver {self._name} did not start: {self._said()}")

    def close(self) -> None:
        """Kill the program, if it runs, and remove its files."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # a request that was still in the buffer
            self._process.stdin.close()
        self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, do: str, *, timeout: float = PATIENCE_S, **fields: object) -> Any:
        """Send one request and wait for its answer. Raises ClientFailure or DriverError."""
        number = next(self._ids)
        future: Future[Any] = Future()
        line = msgspec.json.encode({"id": number, "do": do, **fields}) + b"\n"
        with self._lock:
            if not self.is_alive:
                raise DriverError(f"the driver {self._name} has ended: {self._said()}")
            assert self._process is not None
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(line)
                self._process.stdin.flush()
            except OSError as error:
                raise DriverError(f"the driver {self._name} has ended: {self._said()}") from error
            self._waiting[number] = future
        try:
            return future.result(timeout)
        except TimeoutError:
            raise DriverError(
                f"the driver {self._name} did not {do} in {timeout:g} s: {self._said()}"
            ) from None
        finally:
            with self._lock:
                del self._waiting[number]

    def inbox(self, consumer: str) -> Inbox:
        """Return the inbox for the messages of the push consumer or transactor with that name."""
        return self._inboxes.setdefault(consumer, Inbox())

    @property
    def _log(self) -> Path:
        return self._folder / "driver.log"

    def _said(self) -> str:
        status = f"status {self._process.poll()}: " if self._process else ""
        try:
            said = self._log.read_text(errors="replace")[-2000:]
        except OSError:
            said = "(its log is gone)"
        return status + (said or "(it logged nothing)")

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        try:
            with process.stdout as lines:
                for line in lines:
                    self._take(msgspec.json.decode(line))
        except msgspec.MsgspecError as error:
            process.kill()
            with suppress(OSError), self._log.open("a") as log:
                log.write(f"a line of its output cannot be read: {error}\n")
        process.wait()  # so that it is not alive for the next caller
        self._ready.set()
        with self._lock:
            for future in self._waiting.values():
                if not future.done():  # else its caller has not taken the answer yet
                    future.set_exception(
                        DriverError(f"the driver {self._name} ended: {self._said()}")
                    )

    def _take(self, line: dict[str, Any]) -> None:
        if "message" in line:
            message = msgspec.convert(line["message"], Received)
            self.inbox(line["consumer"]).put(message)
        elif "id" in line:
            with self._lock:
                future = self._waiting.get(line["id"])
            if future is None:  # the caller has given up
                return
            if "error" in line:
                future.set_exception(ClientFailure.of(line["error"]))
            else:
                future.set_result(line.get("done"))
        else:
            self._ready.set()


def signing_fields(credentials: tuple[str, str] | None) -> dict[str, Any]:
    """Return the fields of a client's start that make it sign requests: access key and secret key."""
    if credentials is None:
        return {}
    return {"accessKey": credentials[0], "secretKey": credentials[1]}


def until(
    is_so: Callable[[], bool], what: str, timeout: float = PATIENCE_S, pause: float = 0.2
) -> None:
    """Poll a condition until it is true. Raises TimeoutError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {timeout:g} s: {what}")
        time.sleep(pause)
