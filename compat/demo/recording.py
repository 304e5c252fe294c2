"""Runs a real broker whose clients are recorded in three ways at the same time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from compat import children
from compat.demo.traffic import Tell, talk
from compat.real_broker import PATIENT, RealBroker

_STOP_LIMIT_S: Final = 120
_LINES_BEFORE_IT_LISTENS: Final = 20

SETTINGS: Final = {**PATIENT, "transactionTimeOut": "3000", "transactionCheckInterval": "1000"}
"""The settings of each real broker of the demonstration."""

_SMALL_FILES: Final = {"mappedFileSizeCommitLog": str(64 * 1024 * 1024)}


class Recorded(NamedTuple):
    """The places of the recordings. `packets` is None if packets could not be recorded."""

    capture: Path
    packets: Path | None
    commit_log: Path
    ports: tuple[int, int]
    """The ports of name server and broker."""


def record(folder: Path, tell: Tell, *, briefly: bool = False) -> Recorded:
    """Let the clients `talk` to a fresh broker, and record them in every way that this machine allows."""
    capture, store = folder / "capture", folder / "broker"
    with (
        RealBroker(folder=store, settings={**SETTINGS, **_SMALL_FILES}) as broker,
        ExitStack() as stack,
    ):
        tell(f"RocketMQ 5.5.0: name server {broker.namesrv_address}, broker {broker.address}")
        ports = (broker.namesrv_port, broker.port)
        packets = stack.enter_context(_packets(folder / "packets.pcap", ports, tell))
        address = stack.enter_context(_capture(broker.namesrv_address, capture, tell))
        sent = talk(address, tell, briefly=briefly)
        tell(f"{sent} messages sent")
    return Recorded(capture, packets, store / "store" / "commitlog", ports)


@contextmanager
def _capture(server: str, folder: Path, tell: Tell) -> Iterator[str]:
    flags = ("capture", "--listen", "127.0.0.1:0", "--to", server, "--out", str(folder))
    tell(f"$ tidegate {' '.join(flags)}")
    output = folder.with_name("capture.log")
    with children.server("gateway", *flags, output=output) as proxy:
        yield proxy.address
    for line in output.read_text().splitlines():
        tell(f"  {line}")


@contextmanager
def _packets(file: Path, ports: tuple[int, int], tell: Tell) -> Iterator[Path | None]:
    """Record packets and yield their file. Without a working tcpdump, report the reason and yield None."""
    program = shutil.which("tcpdump")
    if program is None:
        tell("packets are NOT recorded: there is no tcpdump (Debian: apt-get install tcpdump)")
        yield None
        return
    which = " or ".join(f"tcp port {port}" for port in ports)
    command = [program, "-i", "lo", "-U", "-B", "16384", "-w", str(file), which]
    if os.geteuid() == 0:
        command[1:1] = ["-Z", "root"]  # else it drops its privileges before it opens the file
    tell(f"$ tcpdump -i lo -w {file} '{which}'")
    process = children.start(command, folder=file.parent, stderr=subprocess.PIPE)
    assert process.stderr is not None
    line = b""
    for _ in range(_LINES_BEFORE_IT_LISTENS):
        line = process.stderr.readline()
        if not line or b"listening on" in line:
            break
    if not line:
        _, said = process.communicate(timeout=_STOP_LIMIT_S)
        tell(f"packets are NOT recorded: tcpdump: {said.decode().strip() or 'it ended'}")
        yield None
        return
    try:
        yield file
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=_STOP_LIMIT_S)
        tell("  tcpdump: " + ", ".join(said.decode().split("\n")).strip(", "))
