"""The audit log: who aborted, rescheduled or administered what, and when. One JSON object a line, in the data folder.

`note` is called where a change is made, and its line is written once the change is on disk. `note_at_once` is for a
change in memory alone. The sender of the current request is set around each request (`acting`), so that callers of
neither need to know it.

A line has `at` (UTC), `who` (the user's name; empty without authentication), `from` (the address), `action`, the
`request` as the log names it, and the details of the action. If the batch with the change could not be stored, the line
also has `stored`, which is false.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
from twisted.logger import Logger

from gateway.clock import Clock
from gateway.router import GATEWAY, Actor, Call
from gateway.settings.config import Config
from gateway.wire.access_bodies import without_password
from gateway.wire.codes import RequestCode as Code
from gateway.wire.signatures import FIELDS as SIGNATURE_FIELDS

FILE: Final = "audit.jsonl"
"""The file of the newest lines, in the data folder; `audit.jsonl.1` has older lines, and so on."""

_MOST_BODY: Final = 4_096
"""Most bytes of a request's body in a line."""

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
"""Requests that are noted once they have been carried out."""

_IN_MEMORY: Final = frozenset(
    {
        Code.UPDATE_BROKER_CONFIG,
        Code.WIPE_WRITE_PERM_OF_BROKER,
        Code.ADD_WRITE_PERM_OF_BROKER,
    }
)
"""Those of them that change nothing in the store, and so are in force whatever becomes of the open batch."""

_WITH_SECRETS: Final = frozenset({Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER})
"""Requests whose bodies contain passwords."""


_LEFT_OUT: Final = SIGNATURE_FIELDS | {"at", "who", "from", "action", "request", "stored", "body"}
"""Fields of a request that are left out of its line: the signature, and fields with the names of the line's own fields,
so that a client cannot forge these."""


class AuditLog:
    """Writes the lines.

    :param has_changes: returns whether a batch is open, so that a change noted now may be part of it.
    """

    log = Logger()

    def __init__(self, config: Config, clock: Clock, has_changes: Callable[[], bool]) -> None:
        self._clock = clock
        self._has_changes = has_changes
        self._lines: list[dict[str, Any]] = []
        self.actor: Actor = GATEWAY
        """To whom notes are attributed: the sender of the current request."""
        self._file = _File(config) if config.audit else None

    @contextmanager
    def acting(self, actor: Actor) -> Iterator[None]:
        """Attribute all notes within the block to this actor."""
        before, self.actor = self.actor, actor
        try:
            yield
        finally:
            self.actor = before

    def note(self, action: str, /, **what: str | int | bool | None) -> None:
        """Write a line when the open batch is stored, or at once if none is open.

        :param action: a word or two, such as `abort`.
        :param what: the topic, the message id (`msgId`) and other details; None is left out.
        """
        if self._file is None:
            return
        self._lines.append(self._line(action, what))
        if not self._has_changes():
            self.write()

    def note_at_once(self, action: str, /, **what: str | int | bool | None) -> None:
        """Write a line now: the change is not in the store. The parameters are those of `note`."""
        self._append([self._line(action, what)])

    def _line(self, action: str, what: Mapping[str, str | int | bool | None]) -> dict[str, Any]:
        at = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        line: dict[str, Any] = {
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "who": self.actor.name,
            "from": self.actor.address,
            "action": action,
        }
        if isinstance(self.actor, Call):
            line["request"] = self.actor.request
        return line | {name: value for name, value in what.items() if value is not None}

    def handled(self, call: Call) -> None:
        """Note a request if it is one of `ADMINISTRATION`; it has been carried out."""
        code = call.command.code
        if self._file is None or code not in ADMINISTRATION:
            return
        fields = {
            name: value for name, value in call.command.ext().items() if name not in _LEFT_OUT
        }
        body = call.command.body
        if code in _WITH_SECRETS:
            body = without_password(body)
        text = body[:_MOST_BODY].decode(errors="replace") or None
        note = self.note_at_once if code in _IN_MEMORY else self.note
        note(Code(code).name.lower(), **fields, body=text)

    def write(self) -> None:
        """Write the lines of the batch, which is stored now."""
        if self._lines:
            lines, self._lines = self._lines, []
            self._append(lines)

    def _append(self, lines: list[dict[str, Any]]) -> None:
        if self._file is not None:
            try:
                self._file.append(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
            except OSError as error:
                self.log.error(
                    "cannot write to {file}: {error}; lines lost: {count}",
                    count=len(lines),
                    file=FILE,
                    error=error.strerror,
                )

    def reload(self) -> None:
        """Write the lines of the batch with `stored` false, as it could not be stored."""
        for line in self._lines:
            line["stored"] = False
        self.write()

    def close(self) -> None:
        """Write the remaining lines, and close the file."""
        self.write()
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self.log.error(
                    "the last lines may not have been written to {file}: {error}",
                    file=FILE,
                    error=error.strerror,
                )


class _File:
    """The log's file. It is created with the first line, and rotated when it is full. Only its owner can read it.

    Nothing is buffered: lines that were said to be lost must not be written later.
    """

    def __init__(self, config: Config) -> None:
        self._path = config.data / FILE
        self._most_bytes = config.audit_file_size
        self._ages = range(1, config.audit_files)
        self._descriptor: int | None = None

    def append(self, lines: bytes) -> None:
        """Write whole lines.

        :raises OSError: when they cannot be written. Then none of them is in the file.
        """
        descriptor = self._opened()
        size = os.fstat(descriptor).st_size
        if size and size + len(lines) > self._most_bytes:
            self._rotate()
            descriptor, size = self._opened(), 0
        elif size and os.pread(descriptor, 1, size - 1) != b"\n":
            # A power cut has left a part of a line, which would make the next one unreadable.
            lines = b"\n" + lines
        done = 0
        try:
            while done < len(lines):
                done += os.write(descriptor, lines[done:])
        except OSError:
            os.ftruncate(descriptor, size)
            raise

    def close(self) -> None:
        """Close the file; the next line opens it again.

        :raises OSError: as some file systems report only then that they could not write.
        """
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _opened(self) -> int:
        if self._descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o600)
        return self._descriptor

    def _rotate(self) -> None:
        self.close()
        files = [self._path, *(self._path.with_name(f"{FILE}.{age}") for age in self._ages)]
        for newer, older in reversed(list(pairwise(files))):
            with suppress(FileNotFoundError):
                newer.replace(older)


def read_lines(data: Path) -> Iterator[dict[str, Any]]:
    """Return all lines of a data folder's log, the oldest first. Unreadable lines, such as the last one after a power
    cut, are left out.
    """
    read: set[int] = set()
    # Each file stays open until the end: otherwise a new file could get the inode of one that is deleted meanwhile.
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
    """Return the oldest of the log's files that has not been read. Files are identified by their inodes, as a
    running gateway renames them meanwhile."""
    ages: dict[int, str] = {}
    with os.scandir(data) as entries:
        for entry in entries:
            age = "0" if entry.name == FILE else entry.name.removeprefix(f"{FILE}.")
            with suppress(FileNotFoundError):
                if age.isdecimal() and entry.is_file() and entry.stat().st_ino not in read:
                    ages[int(age)] = entry.path
    return Path(ages[max(ages)]) if ages else None
