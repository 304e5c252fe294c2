"""Runs a recording proxy as a program: it logs its progress, and ends on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from contextlib import suppress
from typing import Final

from gateway.wire.addresses import show_address
from recording.proxy import Proxy, Route
from recording.routes import Address
from recording.writer import CaptureWriter

_TELL_EVERY_S: Final = 10.0

log = logging.getLogger(__name__)


def run(listen: Address, server: Address, writer: CaptureWriter, *, advertise: str | None) -> None:
    """Record the traffic of a name server's clients until a signal.

    :raises OSError: when it cannot listen, or the folder cannot be written.
    """
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    asyncio.run(_run(listen, server, writer, advertise))


async def _run(
    listen: Address, server: Address, writer: CaptureWriter, advertise: str | None
) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    proxy = Proxy(writer, broker_host=listen[0], advertise=advertise)
    try:
        here = await proxy.listen(Route(show_address(*server), listen, server, is_followed=True))
        writer.start()  # only now, so that no empty file is left where it cannot listen
        log.info(
            "listening on %s for %s, into %s",
            show_address(*here),
            show_address(*server),
            writer.folder,
        )
        await _tell_until(stopping, proxy)
    finally:
        await proxy.close()
        writer.stop()
    log.info("ended: %s", _so_far(proxy))


async def _tell_until(stopping: asyncio.Event, proxy: Proxy) -> None:
    """Log progress when there is any, and at once when writing fails or works again, and what is not readable."""
    writer = proxy.writer
    told, told_at, trouble, is_unreadable_told = writer.counts, time.monotonic(), None, False
    while not stopping.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), timeout=1)
        counts, now = writer.counts, time.monotonic()
        if counts.trouble != trouble:
            trouble = counts.trouble
            log.warning("%s", f"not recording: {trouble}" if trouble else "recording again")
        if proxy.unreadable and not is_unreadable_told:
            is_unreadable_told = True
            log.warning(
                "a connection is unreadable, perhaps as it uses TLS: it is passed on, but not recorded, and a TLS "
                "client goes to the brokers directly"
            )
        if now - told_at >= _TELL_EVERY_S and counts != told:
            rate = (counts.frames - told.frames) / (now - told_at)
            log.info("%s; %.0f/s on %d connections", _so_far(proxy), rate, counts.connections)
            told, told_at = counts, now


def _so_far(proxy: Proxy) -> str:
    counts = proxy.writer.counts
    text = f"{counts.frames:,} frames, {counts.bytes / 2**20:,.1f} MiB in {counts.files} files"
    oddities = (
        (counts.lost, "records lost"),
        (proxy.refused, "connections not taken by their server"),
        (proxy.unreadable, "directions of connections unreadable (TLS?)"),
    )
    return text + "".join(f"; {number:,} {what}" for number, what in oddities if number)
