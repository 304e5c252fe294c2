"""The tap of a running gateway: what it records, switching it on and off, and a full disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.wire.codes import RequestCode
from gateway.wire.commands import decode_command
from gateway.wire.frames import FrameBuffer
from recording.format import SUFFIX, Kind, read_capture
from tests.gateway.memory import MemoryGateway
from tests.recording.waiting import wait_until


def commands(folder: Path) -> list[tuple[Kind, int, int]]:
    """Return the side, code and number of each recorded frame."""
    found: list[tuple[Kind, int, int]] = []
    for file in sorted(folder.glob(f"*{SUFFIX}")):
        for record in read_capture(file):
            if record.kind in (Kind.FROM_CLIENT, Kind.FROM_SERVER):
                (parts,) = FrameBuffer().feed(record.data)
                command = decode_command(parts)
                found.append((record.kind, command.code, command.opaque))
    return found


@contextmanager
def tapped(tmp_path: Path, **settings: Any) -> Iterator[MemoryGateway]:
    gateway = MemoryGateway(tmp_path / "data", capture=tmp_path / "capture", **settings)
    try:
        yield gateway
    finally:
        gateway.close()


def test_the_recorded_server_is_the_broker(tmp_path: Path) -> None:
    """So that the queues of several workers, which record into one folder, are told apart."""
    with tapped(tmp_path, disk_reserve=0, broker_name="broker-a-1") as gateway:
        gateway.connect().send_message("orders", b"now")
    (file,) = (tmp_path / "capture").glob(f"*{SUFFIX}")
    opened = [one.data for one in read_capture(file) if one.kind == Kind.OPENED]
    assert opened == [b"broker-a-1"]


def test_requests_and_answers_are_recorded(tmp_path: Path) -> None:
    with tapped(tmp_path, disk_reserve=0) as gateway:
        client = gateway.connect()
        client.send_message("orders", b"later", DELAY="3")
        answers = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        client.disconnect()
    recorded = commands(tmp_path / "capture")
    assert [kind for kind, _, _ in recorded] == [Kind.FROM_CLIENT, Kind.FROM_SERVER] * 2
    assert recorded[2] == (Kind.FROM_CLIENT, RequestCode.GET_ROUTEINFO_BY_TOPIC, answers.opaque)
    (file,) = (tmp_path / "capture").glob(f"*{SUFFIX}")
    records = list(read_capture(file))
    assert (records[0].kind, records[0].data) == (Kind.OPENED, b"broker-a")
    assert records[-1].kind == Kind.CLOSED


def test_recording_is_turned_off_and_on(tmp_path: Path) -> None:
    with tapped(tmp_path, disk_reserve=0, capture_active=False) as gateway:
        client = gateway.connect()
        change = {"active": b"capture_active=true", "idle": b"capture_active=false"}
        client.ask(RequestCode.HEART_BEAT, body=b"{}")
        assert not (tmp_path / "capture").exists()
        client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=change["active"])
        client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=change["idle"])
        client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        assert gateway.service.recorded.frames == 4
        wait_until(lambda: len(list((tmp_path / "capture").glob(f"*{SUFFIX}"))) == 1)
        (file,) = (tmp_path / "capture").glob(f"*{SUFFIX}")
        assert gateway.service.recorded.bytes == file.stat().st_size
    codes = [code for kind, code, _ in commands(tmp_path / "capture") if kind == Kind.FROM_CLIENT]
    assert codes == [RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.UPDATE_BROKER_CONFIG]


def test_a_full_disk_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tapped(tmp_path, disk_reserve=1 << 45) as gateway:
        client = gateway.connect()
        client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        wait_until(lambda: gateway.service.recorded.lost >= 2)
        assert "bytes free" in (gateway.service.recorded.trouble or "")
        gateway.advance(1000)
        client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert commands(tmp_path / "capture") == []


def test_a_smaller_reserve_of_the_disk_holds_at_once(tmp_path: Path) -> None:
    with tapped(tmp_path, disk_reserve=1 << 45) as gateway:
        client = gateway.connect()
        client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"disk_reserve=0")
        client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    recorded = [
        code for kind, code, _ in commands(tmp_path / "capture") if kind == Kind.FROM_CLIENT
    ]
    assert recorded == [RequestCode.GET_ROUTEINFO_BY_TOPIC]


def test_a_folder_that_cannot_be_written_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "capture").write_text("a file")
    with tapped(tmp_path) as gateway:
        gateway.connect().ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        assert gateway.service.recorded.trouble is not None
        assert gateway.service.recorded.frames == 0
