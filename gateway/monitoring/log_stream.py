"""Writes the log's lines to standard error or a file, without waiting long for a slow reader."""

from __future__ import annotations

import io
import os
import select
from pathlib import Path
from typing import Final

from twisted.logger import Logger

from gateway.control_characters import SHOWN

_PIECE: Final = select.PIPE_BUF
"""Bytes that fit into a pipe that is ready for writing (pipe(7))."""

PATIENCE_MS: Final = 100
"""How long a line waits for a reader that may only be slow. Lines that follow meanwhile do not wait."""


class LogStream(io.TextIOBase):
    """Writes lines to a descriptor, and drops lines that nobody reads, as when the reader of a pipe is stopped or a
    terminal holds its output: a gateway that waited for the reader would answer no request and fire nothing.

    Once lines are read again, or a full disk has room again, the log says how many were dropped.
    """

    log = Logger()

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._waiting = b""
        self._left_out = 0
        self._is_cut = _ends_within_line(descriptor)
        """Whether only a part of the last line is written."""

    def write(self, text: str) -> int:
        """Write the lines of one event as a whole, or drop them."""
        self._go_on(0)
        if self._waiting:
            self._left_out += 1
            return len(text)
        if self._left_out:
            count, self._left_out = self._left_out, 0
            self.log.error(
                "{count} events are left out of the log here: nobody read it, or it could not be written",
                count=count,
            )
            if self._left_out:  # that event was dropped too
                self._left_out = count + 1
                return len(text)
        # A line that a full disk took in part must not make the next one unreadable.
        begin = b"\n" if self._is_cut else b""
        self._waiting += begin + text.translate(SHOWN).encode(errors="backslashreplace")
        self._go_on(PATIENCE_MS)
        return len(text)

    def _go_on(self, patience_ms: int) -> None:
        """Write waiting bytes, as far as there is room for them."""
        while self._waiting and self._poll.poll(patience_ms):
            try:
                written = os.write(self._descriptor, self._waiting[:_PIECE])
            except BlockingIOError:
                # Other processes write to the same pipe, and have taken the room.
                return
            except OSError:
                self._waiting = b""
                self._left_out += 1
                return
            self._waiting = self._waiting[written:]
            self._is_cut = bool(self._waiting)


def _ends_within_line(descriptor: int) -> bool:
    """Return whether a file's last line is one that an earlier process wrote in part, as on a full disk."""
    try:
        # Pipes and terminals have no size.
        size = os.fstat(descriptor).st_size
        if not size:
            return False
        # The descriptor may be for writing alone.
        with Path(f"/proc/self/fd/{descriptor}").open("rb") as file:
            return os.pread(file.fileno(), 1, size - 1) != b"\n"
    except OSError:
        return False
