"""Records the traffic between clients and the gateway, where the setting `capture` names a folder.

Frames are recorded once they are cut from the stream, so those of TLS connections are recorded too, and signed requests
are unchanged. The files are those of `tidegate capture`. Handing over a frame only appends it to a list; a thread
writes.
"""

from __future__ import annotations

import struct
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, cast

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from gateway.reactor import Reactor
from gateway.settings.config import Config
from gateway.wire.frames import Frame
from recording.format import Kind
from recording.writer import CaptureWriter, Counts, Rotation

if TYPE_CHECKING:
    from gateway.connections.connection import RemotingConnection, RemotingFactory

LOOK_SECONDS: Final = 1.0
"""Seconds between two checks whether writing fails."""

_pack_head = struct.Struct(">iI").pack


class Tap:
    """Takes the frames of connections.

    :param server: the server's name in the capture. Workers record into one folder, and their queues have the same
        numbers, so each needs a name of its own.
    """

    def __init__(self, writer: CaptureWriter, server: str) -> None:
        self.writer = writer
        self._server = server
        self._numbers: dict[RemotingConnection, int] = {}
        self._last = 0

    def received(self, connection: RemotingConnection, frame: Frame) -> None:
        """Record a frame that a client sent."""
        kind, header, body = frame
        head = _pack_head(4 + len(header) + len(body), (kind << 24) | len(header))
        number = self._numbers.get(connection) or self._open(connection)
        self.writer.record(number, Kind.FROM_CLIENT, head, header, body)

    def sent(self, connection: RemotingConnection, frame: bytes) -> None:
        """Record a frame to a client."""
        number = self._numbers.get(connection) or self._open(connection)
        self.writer.record(number, Kind.FROM_SERVER, frame)

    def closed(self, connection: RemotingConnection) -> None:
        """Record that a connection is gone."""
        number = self._numbers.pop(connection, None)
        if number is not None:
            self.writer.closed(number)

    def _open(self, connection: RemotingConnection) -> int:
        self._last += 1
        self._numbers[connection] = self._last
        self.writer.opened(self._last, self._server)
        return self._last


class Tapping:
    """Starts and ends the tap by the settings."""

    log = Logger()

    def __init__(self, reactor: Reactor, factory: RemotingFactory) -> None:
        self._factory = factory
        self._settings: tuple[object, ...] = (None,)
        # Of all recordings since the start. One that has ended may still be writing.
        self._writers: list[CaptureWriter] = []
        self._trouble: str | None = None
        self._looking = LoopingCall(self._look)
        self._looking.clock = cast(Any, reactor)

    def configure(self, config: Config) -> None:
        """Record by these settings from now on."""
        folder = config.capture if config.capture_active else None
        # Sends are refused when the disk has less than disk_reserve; a recording stops long before.
        least_free = 2 * config.disk_reserve
        settings = (folder, config.capture_file_size, config.capture_keep, least_free)
        if settings == self._settings:
            return
        self._end(wait=False)
        self._settings = settings
        if folder is None:
            return
        rotation = Rotation(file_bytes=config.capture_file_size, keep=config.capture_keep)
        writer = CaptureWriter(folder, rotation, least_free=least_free)
        try:
            writer.start()
        except OSError as error:
            self.log.error(
                "not recording: capture = {folder}: {reason}",
                folder=str(folder),
                reason=error.strerror,
            )
            self._trouble = str(error.strerror)
            return
        self.log.info("recording traffic into {folder}", folder=str(folder))
        self._factory.tap = Tap(writer, config.broker_name)
        self._writers.append(writer)
        self._looking.start(LOOK_SECONDS)

    def stop(self) -> None:
        """Write what was recorded, and record no more."""
        self._end(wait=True)

    @property
    def counts(self) -> Counts:
        """Counts of what was recorded since the start. `trouble` says why nothing is recorded though it should be."""
        tap = self._factory.tap
        each = [writer.counts for writer in self._writers]
        return Counts(
            sum(one.frames for one in each),
            sum(one.lost for one in each),
            sum(one.bytes for one in each),
            sum(one.files for one in each),
            each[-1].connections if tap is not None else 0,
            each[-1].trouble if tap is not None else self._trouble,
        )

    def _end(self, *, wait: bool) -> None:
        tap = self._factory.tap
        self._trouble = None
        if tap is None:
            return
        self._looking.stop()
        self._factory.tap = None
        if wait:
            tap.writer.stop()
        else:
            # The disk may be slow, and clients are waiting for their answers.
            Thread(target=tap.writer.stop, name="end of a capture").start()
        ended = tap.writer.counts
        self.log.info(
            "no longer recording: {frames} frames passed, {lost} records of them were lost so far",
            frames=ended.frames,
            lost=ended.lost,
        )

    def _look(self) -> None:
        trouble = self.counts.trouble
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if trouble is not None:
            self.log.error("not recording for now: {trouble}", trouble=trouble)
        else:
            lost = self.counts.lost
            self.log.info("recording again; {lost} frames were not recorded", lost=lost)
