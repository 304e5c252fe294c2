"""The audit log: who aborted, moved or administered what, and when. One JSON object a line, beside the data.

`note` is called where a change is made, and its line is written once the change is on disk. Whose request is under way
is set around each request (`acting`), so that whoever notes a change need not know it.

A line has `at` (UTC), `who` (a user's name; nobody's where users are not asked for theirs), `from` (the address),
`action`, the `request` as the log names it, and what the action tells of itself; `stored` is there, and false, where
the batch of the change was refused.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from twisted.logger import Logger

from gateway.clock import Clock
from gateway.config import Config
from gateway.router import Call
from gateway.wire.codes import RequestCode as Code
from gateway.wire.signatures import FIELDS as SIGNATURE_FIELDS

FILE: Final = "audit.jsonl"
"""The newest lines, in the data folder; `audit.jsonl.1` has those before them, and so on."""

_MOST_BODY: Final = 4_096
"""Bytes of a request's body that a line has at most."""

ADMINISTRATION: Final = frozenset(
    {
        *(Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_AND_CREATE_TOPIC_LIST),
        *(Code.DELETE_TOPIC_IN_BROKER, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP),
        *(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, Code.DELETE_SUBSCRIPTIONGROUP),
        *(Code.SET_MESSAGE_REQUEST_MODE, Code.INVOKE_BROKER_TO_RESET_OFFSET),
        *(Code.CLONE_GROUP_OFFSET, Code.UPDATE_BROKER_CONFIG, Code.PUT_KV_CONFIG),
        *(Code.DELETE_KV_CONFIG, Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER),
        *(Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.CLEAN_UNUSED_TOPIC, Code.DELETE_EXPIRED_COMMITLOG),
        *(Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER),
        *(Code.AUTH_CREATE_ACL, Code.AUTH_UPDATE_ACL, Code.AUTH_DELETE_ACL),
    }
)
"""Requests that are noted when they were carried out."""

_WITH_SECRETS: Final = frozenset({Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER})
"""Requests whose bodies have passwords."""


_LEFT_OUT: Final = SIGNATURE_FIELDS | {"at", "who", "from", "action", "request", "stored", "body"}
"""Fields of a request that a line has not: its signature, and names of what the line says itself, so that nobody writes
a line of somebody else's."""


class Actor(Protocol):
    """Whoever asks for something; a `Call` is one."""

    @property
    def name(self) -> str:
        """The user; empty where nobody is asked for a name."""

    @property
    def address(self) -> str:
        """Where the request came from."""


class Named(NamedTuple):
    """An actor by name and address."""

    name: str
    address: str


GATEWAY: Final = Named("", "gateway")
"""Acts where no request is under way."""


class AuditLog:
    """Writes the lines.

    :param has_changes: whether a batch is open that what is noted now may be part of.
    """

    log = Logger()

    def __init__(self, config: Config, clock: Clock, has_changes: Callable[[], bool]) -> None:
        self._clock = clock
        self._has_changes = has_changes
        self._lines: list[dict[str, Any]] = []
        self._actor: Actor = GATEWAY
        self._file = _File(config) if config.audit else None

    def begin(self, actor: Actor) -> None:
        """What is noted until `end` is this one's doing."""
        self._actor = actor

    def end(self) -> None:
        """Nobody's request is under way."""
        self._actor = GATEWAY

    @property
    def actor(self) -> Actor:
        """Whose request is under way."""
        return self._actor

    @contextmanager
    def acting(self, actor: Actor) -> Iterator[None]:
        """What is noted meanwhile is this one's doing."""
        self.begin(actor)
        try:
            yield
        finally:
            self.end()

    def note(self, action: str, /, **what: str | int | bool | None) -> None:
        """Write a line when the batch that is open is stored, or at once where there is none.

        :param action: a word or two, such as `abort`.
        :param what: the topic, the message id (`msgId`) and whatever else tells what was done; None is left out.
        """
        if self._file is None:
            return
        at = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        line = {
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "who": self._actor.name,
            "from": self._actor.address,
            "action": action,
        }
        if isinstance(self._actor, Call):
            line["request"] = self._actor.request
        self._lines.append(
            line | {name: value for name, value in what.items() if value is not None}
        )
        if not self._has_changes():
            self.write()

    def handled(self, call: Call) -> None:
        """Note a request of `ADMINISTRATION` that was carried out."""
        code = call.command.code
        if self._file is None or code not in ADMINISTRATION:
            return
        fields = {
            name: value for name, value in call.command.ext().items() if name not in _LEFT_OUT
        }
        body = None
        if call.command.body and code not in _WITH_SECRETS:
            body = call.command.body[:_MOST_BODY].decode(errors="replace")
        self.note(Code(code).name.lower(), **fields, body=body)

    def write(self) -> None:
        """The batch is stored: write what was noted with it."""
        if self._lines and self._file is not None:
            lines, self._lines = self._lines, []
            try:
                self._file.append(b"\n".join(map(msgspec.json.encode, lines)).decode())
            except OSError as error:
                self.log.error(
                    "{count} lines could not be written to {file}: {error}",
                    count=len(lines),
                    file=FILE,
                    error=error.strerror,
                )

    def reload(self) -> None:
        """The batch was refused: say so in what was noted with it."""
        for line in self._lines:
            line["stored"] = False
        self.write()

    def close(self) -> None:
        """Write what is left, and close the file."""
        self.write()
        if self._file is not None:
            self._file.close()


class _File(RotatingFileHandler):
    """The log's file, which is put aside when it is full, and made with the first line. What goes wrong is for whoever
    writes. The files are for their owner alone."""

    def __init__(self, config: Config) -> None:
        super().__init__(
            config.data / FILE,
            maxBytes=config.audit_file_size,
            backupCount=config.audit_files - 1,
            encoding="utf-8",
            delay=True,
        )

    def append(self, text: str) -> None:
        """Write whole lines. Raises OSError."""
        self.emit(logging.makeLogRecord({"msg": text}))

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.fdopen(os.open(self.baseFilename, flags, 0o600), "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exception()
        assert error is not None
        raise error


def read_lines(data: Path) -> Iterator[dict[str, Any]]:
    """All lines of a data folder's log, the oldest first; what cannot be read, such as the last line after a power cut,
    is left out.
    """
    read: set[int] = set()
    # Each stays open until the end: the inode of one that is deleted meanwhile could be that of a new one.
    with ExitStack() as opened:
        while (file := _oldest(data, read)) is not None:
            try:
                lines = opened.enter_context(file.open("rb"))
            except FileNotFoundError:
                continue
            number = os.fstat(lines.fileno()).st_ino
            if number in read:
                continue
            read.add(number)
            for line in lines:
                try:
                    yield msgspec.json.decode(line, type=dict[str, Any])
                except (msgspec.DecodeError, UnicodeDecodeError):
                    continue


def _oldest(data: Path, read: AbstractSet[int]) -> Path | None:
    """The oldest of the log's files but those that are read, by their inodes: a gateway that serves gives them other
    names meanwhile."""
    ages: dict[int, str] = {}
    with os.scandir(data) as entries:
        for entry in entries:
            age = "0" if entry.name == FILE else entry.name.removeprefix(f"{FILE}.")
            with suppress(FileNotFoundError):
                if age.isdecimal() and entry.is_file() and entry.stat().st_ino not in read:
                    ages[int(age)] = entry.path
    return Path(ages[max(ages)]) if ages else None
