"""The harms that are done to a gateway. Each returns when it is over; the load goes on meanwhile."""

from __future__ import annotations

import os
import random
import resource
import selectors
import signal
import socket
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.client import ClientError, RefusalError
from gateway.wire.codes import RequestCode
from gateway.wire.commands import encode_command
from tests.live.ledger import QUEUES, TOPIC
from tests.torture.site import MAX_CONNECTIONS, Site

LONGEST_STEP_S: Final = 30
_CHUNK: Final = bytes(1 << 20)
_SLOW_READERS: Final = 20
_QUESTIONS: Final = 400
"""Requests that a slow reader sends at once; each answer has up to 32 messages."""

_RESERVED_FILES: Final = 500


class Terms(NamedTuple):
    """How severe the harms are."""

    pause_s: float
    """How long a process is stopped."""
    spell_s: float
    """How long other harms last that take time, up to twice over."""
    connections: int
    """The connections of a crowd."""


def kill(site: Site, chance: random.Random, terms: Terms) -> str:
    """Kill all processes at once, and perhaps again while they start."""
    times = chance.choice((1, 1, 2))
    for _ in range(times):
        for pid in site.worker_pids():
            os.kill(pid, signal.SIGKILL)
        site.gateway.kill()
        site.gateway.start()
        time.sleep(chance.uniform(0, 0.2))
    site.wait_until_serving()
    return f"{times} times"


def kill_worker(site: Site, chance: random.Random, terms: Terms) -> str:
    """Kill one worker; its leader starts it again."""
    victim = chance.choice(site.worker_pids())
    os.kill(victim, signal.SIGKILL)
    # The leader must notice before it can report that the worker serves again.
    time.sleep(0.2)
    site.wait_until_serving()
    return f"process {victim}"


def stop_and_continue(site: Site, chance: random.Random, terms: Terms) -> str:
    """Stop a process for a while, as on a machine that swaps or is migrated."""
    victim = chance.choice(site.worker_pids())
    os.kill(victim, signal.SIGSTOP)
    try:
        time.sleep(terms.pause_s)
    finally:
        os.kill(victim, signal.SIGCONT)
    site.wait_until_serving()
    return f"{terms.pause_s:g} s"


def step_clock(site: Site, chance: random.Random, terms: Terms) -> str:
    """Step the wall clock, and later step it back."""
    step = chance.choice((-1, 1)) * chance.randint(2, LONGEST_STEP_S)
    site.set_clock(step)
    time.sleep(chance.uniform(1, 2) * terms.spell_s)
    site.set_clock(0)
    time.sleep(1)
    return f"{step:+d} s"


def fill_disk(site: Site, chance: random.Random, terms: Terms) -> str:
    """Fill the disk completely, and then free it again."""
    refused = site.ledger.refused
    filler = site.folder / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            status = os.statvfs(site.folder)
            free = status.f_bavail * status.f_frsize
            # First allocate all but a little, as the gateway takes some meanwhile; then the rest, and what the gateway
            # frees.
            os.posix_fallocate(file.fileno(), 0, max(1, free - 32 * len(_CHUNK)))
            file.seek(0, os.SEEK_END)
            end = time.monotonic() + chance.uniform(1, 2) * terms.spell_s
            while time.monotonic() < end:
                try:
                    file.write(_CHUNK)
                except OSError:
                    time.sleep(0.01)
    finally:
        filler.unlink()
    site.wait_until_serving()
    return f"{site.ledger.refused - refused:,} requests refused"


def crowd(site: Site, chance: random.Random, terms: Terms) -> str:
    """Open many connections that send nothing, and close them all at once."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(terms.connections, MAX_CONNECTIONS, most - _RESERVED_FILES)
    connections: list[socket.socket] = []
    try:
        address = site.address(chance.randrange(site.workers))
        for _ in range(count):
            connections.append(socket.create_connection(address, timeout=180))
        time.sleep(1)
        site.watch_memory()
    finally:
        for connection in connections:
            connection.close()
    site.wait_until_serving()
    return f"{len(connections):,} connections"


def read_slowly(site: Site, chance: random.Random, terms: Terms) -> str:
    """Send many requests from clients that read little of the answers."""
    address = site.address(chance.randrange(site.workers))
    question = {"consumerGroup": "slow", "topic": TOPIC, "queueOffset": "0", "maxMsgNums": "32"}
    question |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
    question |= {"subVersion": "0", "subscription": "*"}
    readers: list[socket.socket] = []
    selector = selectors.DefaultSelector()
    received = 0
    try:
        for number in range(_SLOW_READERS):
            reader = socket.create_connection(address, timeout=180)
            readers.append(reader)
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            ext = question | {"queueId": str(number % QUEUES)}
            frames = (
                encode_command(RequestCode.PULL_MESSAGE, opaque, ext=ext)
                for opaque in range(1, _QUESTIONS + 1)
            )
            reader.setblocking(False)
            # As much as the gateway accepts: it stops reading from a client with too many unread answers.
            reader.send(b"".join(frames))
            selector.register(reader, selectors.EVENT_READ)
        end = time.monotonic() + terms.spell_s
        while time.monotonic() < end:
            for chosen, _ in selector.select(0.1):
                assert isinstance(chosen.fileobj, socket.socket)
                received += len(chosen.fileobj.recv(512))
            time.sleep(0.05)
        site.watch_memory()
    except ConnectionError:
        pass  # The gateway may close a connection that costs it too much.
    finally:
        selector.close()
        for reader in readers:
            reader.close()
    site.wait_until_serving()
    return f"{_SLOW_READERS} readers took {received:,} bytes"


Harm = Callable[[Site, random.Random, Terms], str]


def possible(site: Site) -> tuple[dict[str, Harm], list[str]]:
    """Return the harms that can be done to this site, by name, and the reasons for those left out."""
    found: dict[str, Harm] = {
        "kill -9": kill,
        "SIGSTOP": stop_and_continue,
        "crowd": crowd,
        "slow readers": read_slowly,
    }
    missing = []
    if site.workers > 1:
        found["kill -9 of a worker"] = kill_worker
    if site.has_own_disk:
        found["full disk"] = fill_disk
    else:
        missing.append("full disk: a file system of its own can be mounted by root only")
    if site.has_own_clock:
        found["clock step"] = step_clock
    else:
        missing.append(
            "clock step: libfaketime is not installed (Debian: apt-get install faketime)"
        )
    return found, missing


def raise_file_limit(count: int) -> None:
    """Let this process and those that it starts open so many files, if that is allowed."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _RESERVED_FILES
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), max(most, wanted)))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


KNOWN_ERRORS: Final = (ClientError, RefusalError, OSError)
"""Errors of a harm that met the gateway at a bad moment: it is tried again later."""
