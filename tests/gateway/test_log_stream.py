"""Log lines whose reader does not read, or whose disk is full."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import Logger, globalLogPublisher

from gateway.monitoring.log_stream import LogStream
from gateway.monitoring.logs import Logs
from gateway.settings.config import Config

log = Logger()


class Pipe:
    """A pipe that is full until somebody reads it."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self.writer, False)
        try:
            while True:
                os.write(self.writer, bytes(4096))
        except BlockingIOError:
            # From now on a writer waits for room, as with standard error.
            os.set_blocking(self.writer, True)

    def read(self) -> str:
        """Return what was written after the pipe was full."""
        found = b""
        while True:
            try:
                found += os.read(self.reader, 1 << 20)
            except BlockingIOError:
                return found.lstrip(b"\0").decode()

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


class Logging:
    """Send all log lines to a descriptor meanwhile."""

    def __init__(self, descriptor: int) -> None:
        logs = Logs(Config(data=Path("unused"), log_format="logfmt"), LogStream(descriptor))
        self._observe: Any = logs.observe

    def __enter__(self) -> None:
        globalLogPublisher.addObserver(self._observe)

    def __exit__(self, *_: object) -> None:
        globalLogPublisher.removeObserver(self._observe)


def messages(text: str) -> list[str]:
    """Return the messages of the log's lines, each of which must be whole."""
    assert text.endswith("\n")
    return [
        line.partition(" message=")[2].partition(" count=")[0].strip('"')
        for line in text.splitlines()
    ]


def test_a_pipe_that_nobody_reads_is_not_waited_for(pipe: Pipe) -> None:
    with Logging(pipe.writer):
        for number in range(50):
            log.info("event {number}", number=number)
        assert pipe.read() == ""
        log.info("behind")
        said = messages(pipe.read())
    assert [one.partition(" number=")[0].strip('"') for one in said] == [
        "event 0",
        "49 events are left out of the log here: nobody read it, or it could not be written",
        "behind",
    ]


def test_an_event_that_is_longer_than_the_room_is_not_cut(pipe: Pipe) -> None:
    long = "x" * 100_000
    with Logging(pipe.writer):
        pipe.read()
        log.info(long)
        read = pipe.read()
        assert len(read) == 65_536
        log.info("behind")
        read += pipe.read()
    assert messages(read) == [long, "behind"]


def test_a_disk_that_is_full_and_has_room_again(tmp_path: Path) -> None:
    file = tmp_path / "log"
    full = os.open("/dev/full", os.O_WRONLY)
    with Logging(full), file.open("wb") as room:
        for _ in range(3):
            log.info("lost")
        os.dup2(room.fileno(), full)
        log.info("kept")
    os.close(full)
    assert messages(file.read_text()) == [
        "3 events are left out of the log here: nobody read it, or it could not be written",
        "kept",
    ]


def test_a_line_after_one_that_a_full_disk_took_in_part_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, room = os.write, 30

    def write(descriptor: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room -= (done := real(descriptor, data[:room]))
        return done

    file = tmp_path / "log"
    with file.open("wb") as opened, Logging(opened.fileno()):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write)
            for _ in range(3):
                log.info("lost")
        log.info("kept")
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines[0]) == 31
    assert messages("".join(lines[1:])) == [
        "3 events are left out of the log here: nobody read it, or it could not be written",
        "kept",
    ]


@pytest.mark.parametrize(
    ("left", "begin"),
    [("level=info mess", "level=info mess\n"), ("whole\n", "whole\n"), ("", "")],
)
def test_a_line_that_the_process_before_wrote_in_part_does_not_spoil_the_first_one(
    tmp_path: Path, left: str, begin: str
) -> None:
    file = tmp_path / "log"
    file.write_text(left)
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
    with Logging(descriptor):
        log.info("first")
        log.info("second")
    os.close(descriptor)
    text = file.read_text()
    assert text.startswith(begin)
    assert messages(text.removeprefix(begin)) == ["first", "second"]


def test_control_characters_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with file.open("wb") as opened:
        LogStream(opened.fileno()).write("closed \x1b[2J\r\x7f\x9b grün\n\tmore\n")
    assert file.read_text() == "closed \\u001b[2J\\u000d\\u007f\\u009b grün\n\tmore\n"


def test_a_line_of_json_has_any_character(tmp_path: Path) -> None:
    file = tmp_path / "log"
    every = "".join(map(chr, range(0x100))) + "\ud800"
    with file.open("wb") as opened:
        logs = Logs(Config(log_format="json"), LogStream(opened.fileno()))
        observe: Any = logs.observe
        globalLogPublisher.addObserver(observe)
        try:
            log.info("closed {client}", client=every)
        finally:
            globalLogPublisher.removeObserver(observe)
    (line,) = file.read_text().splitlines()
    assert json.loads(line)["client"] == every
