"""kill -9 under load: no acknowledged message is lost or doubled, no aborted one fires, and no message is early, not
even a rescheduled one."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from compat.clients.driver import until
from gateway.wire.messages import Message
from tests.live.ledger import Ledger, read_all, wait_until_fired, work
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live

SENDERS = 4
ROUNDS = 4


def start_senders(
    gateway: GatewayProcess, ledger: Ledger, first: int, numbers: itertools.count[int]
) -> list[threading.Thread]:
    """Start threads that work until the gateway is gone."""
    senders = [
        threading.Thread(
            target=work,
            args=(gateway.client(), ledger, first + n, numbers, threading.Event()),
            daemon=True,
        )
        for n in range(SENDERS)
    ]
    for sender in senders:
        sender.start()
    return senders


def drain(gateway: GatewayProcess) -> list[Message]:
    """Wait until everything has fired, and return all messages."""
    with gateway.client() as client:
        wait_until_fired(client)
    return read_all(gateway.client())


def assert_faultless(ledger: Ledger, found: list[Message]) -> None:
    """Check that no message is lost, doubled, early, or fired although it was aborted."""
    assert {kind: ids for kind, ids in ledger.faults(found).items() if ids} == {}


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_nothing_acknowledged_is_lost_or_doubled(tmp_path: Path, flush: str) -> None:
    ledger = Ledger()
    numbers = itertools.count()
    chance = random.Random(flush)
    with GatewayProcess(tmp_path / "data", "--flush", flush) as gateway:
        for round_ in range(ROUNDS):
            senders = start_senders(gateway, ledger, SENDERS * round_, numbers)
            time.sleep(chance.uniform(0.5, 1.5))
            gateway.kill()
            for sender in senders:
                sender.join()
            gateway.start()
        found = drain(gateway)
    assert len(ledger.sent) > 100
    assert ledger.aborted
    assert len(ledger.unanswered) <= ROUNDS * SENDERS
    assert_faultless(ledger, found)
    assert ledger.moved


def test_sigterm_finishes_what_is_under_way(tmp_path: Path) -> None:
    ledger = Ledger()
    with GatewayProcess(tmp_path / "data") as gateway:
        senders = start_senders(gateway, ledger, 0, itertools.count())
        time.sleep(1)
        assert gateway.terminate() == 0
        for sender in senders:
            sender.join()
        gateway.start()
        assert_faultless(ledger, drain(gateway))
    assert ledger.sent


_BROKEN_DISK = """
import signal
from pathlib import Path

def fail(*_):
    from tests.storage.faults import disk_takes_no_checkpoint
    global fault
    fault = disk_takes_no_checkpoint(Path({data!r}))
    fault.__enter__()

signal.signal(signal.SIGUSR1, fail)
"""
"""Code that the process runs before it serves, as `sitecustomize`."""


def test_where_the_disk_takes_no_checkpoint_it_ends_and_the_next_one_has_everything(
    tmp_path: Path,
) -> None:
    ledger = Ledger()
    data = tmp_path / "data"
    (tmp_path / "sitecustomize.py").write_text(_BROKEN_DISK.format(data=str(data)))
    root = Path(__file__).parent.parent.parent
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    with GatewayProcess(data, environment=environment) as gateway:
        senders = start_senders(gateway, ledger, 0, itertools.count())
        os.kill(gateway.pid, signal.SIGUSR1)
        assert gateway.ended() == 1
        for sender in senders:
            sender.join()
        assert "tidegate: the disk did not take a checkpoint" in gateway.log.read_text()
        gateway.start()
        assert_faultless(ledger, drain(gateway))
    assert ledger.sent


def test_a_folder_that_was_deleted_is_saved_from_the_process_as_documented(tmp_path: Path) -> None:
    ledger = Ledger()
    root = Path(__file__).parent.parent.parent
    recovery = (root / "docs" / "disaster-recovery.md").read_text()
    _, begin, rest = recovery.partition("      mkdir -m 700 saved\n")
    assert begin
    script = begin + rest.partition("\n\n")[0]
    with GatewayProcess(tmp_path / "data") as gateway:
        senders = start_senders(gateway, ledger, 0, itertools.count())
        until(lambda: len(ledger.sent) > 100, "the gateway has messages")
        shutil.rmtree(gateway.data)
        until(
            lambda: "nothing is stored any more" in gateway.log.read_text(),
            "that the folder is gone is told",
        )
        script = script.replace("PID", str(gateway.pid))
        subprocess.run(script, shell=True, cwd=tmp_path, check=True)
        gateway.kill()
        for sender in senders:
            sender.join()
        assert not gateway.data.exists()
        (tmp_path / "saved").rename(gateway.data)
        gateway.start()
        assert_faultless(ledger, drain(gateway))
