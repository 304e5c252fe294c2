"""Starting and stopping: what is refused, what is finished, and what clients get meanwhile."""

from __future__ import annotations

import gc
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.error import CannotListenError
from twisted.logger import capturedLogs, formatEvent

from gateway.process import StartError, allow_open_files
from gateway.service import GC_THRESHOLDS, Gateway
from gateway.settings.config import Config
from gateway.settings.values import HostPort, parse_host_port
from gateway.wire.codes import RequestCode, ResponseCode
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import damaged_row
from tests.gateway.memory import MemoryClient, MemoryGateway, TurnReactor, bodies
from tests.gateway.tools import create_topic, ok, put_group
from tests.storage.folder import change_table
from tests.web.http import HTTP_PORT, HttpClient


class BusyReactor(TurnReactor):
    """A reactor some of whose ports are taken."""

    def __init__(self, taken: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.taken = taken

    def listenTCP(self, port: int, *args: Any, **options: Any) -> Any:
        if port in self.taken:
            reason = OSError(98, "already in use")
            raise CannotListenError("", port, reason)  # type: ignore[no-untyped-call]
        return super().listenTCP(port, *args, **options)  # type: ignore[no-untyped-call]


class TestStart:
    def listening(self, gateway: Gateway) -> list[int]:
        reactor: Any = gateway._reactor
        return [server[0] for server in reactor.tcpServers]

    def start(self, data: Path, taken: set[int], *, port: int = 9876, **settings: Any) -> Gateway:
        reactor = BusyReactor(taken)
        config = Config(data=data, listen=HostPort("127.0.0.1", port), **settings)
        gateway = Gateway(config, reactor)
        try:
            gateway.start()
        finally:
            self.reactor = reactor
        return gateway

    def stop(self, gateway: Gateway) -> None:
        stopped = gateway.stop()
        while self.reactor.turn():
            pass
        assert stopped.called

    def test_on_the_vip_channel_too(self, tmp_path: Path) -> None:
        gateway = self.start(tmp_path / "data", set())
        assert self.listening(gateway) == [9876, 9874]
        self.stop(gateway)

    def test_goes_on_without_the_vip_channel(self, tmp_path: Path) -> None:
        with capturedLogs() as events:
            gateway = self.start(tmp_path / "data", {9874})
        assert self.listening(gateway) == [9876]
        told = [formatEvent(event) for event in events]
        assert any("VIP channel of old clients: already in use; free" in one for one in told), told
        self.stop(gateway)

    def test_the_first_ports_have_no_vip_channel(self, tmp_path: Path) -> None:
        gateway = self.start(tmp_path / "data", set(), port=2)
        assert self.listening(gateway) == [2]
        self.stop(gateway)

    def test_unless_it_was_asked_for(self, tmp_path: Path) -> None:
        with pytest.raises(StartError) as caught:
            self.start(tmp_path / "data", {9874}, vip_channel=True)
        assert str(caught.value).startswith("cannot listen on 127.0.0.1:9874: ")
        assert str(caught.value).endswith("; stop what uses it, or set vip_channel to false")
        # Nothing stays locked, so the next start succeeds.
        self.stop(self.start(tmp_path / "data", set()))

    def test_a_port_in_use(self, tmp_path: Path) -> None:
        with pytest.raises(StartError) as caught:
            self.start(tmp_path / "data", {9876})
        assert str(caught.value).startswith("cannot listen on 127.0.0.1:9876: ")
        assert "\n" not in str(caught.value)
        self.stop(self.start(tmp_path / "data", set()))

    def test_a_folder_in_use(self, gateway: MemoryGateway) -> None:
        with pytest.raises(StartError, match="in use by process"):
            self.start(gateway.data, set())

    def test_a_folder_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "data").write_text("mine")
        with pytest.raises(StartError) as caught:
            self.start(tmp_path / "data", set())
        assert "\n" not in str(caught.value)
        assert (tmp_path / "data").read_text() == "mine"

    def test_rows_that_cannot_be_read_keep_nothing_else(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        self.stop(self.start(data, set()))
        change_table(data, "totals", lambda txn, db: txn.put(b"orders", b"short", db=db))
        change_table(data, "queues", lambda txn, db: txn.put(b"x" * 20, b"short", db=db))
        change_table(data, "queues", lambda txn, db: txn.put(b"x", b"short", db=db))
        self.stop(self.start(data, set()))

    def test_a_row_that_cannot_be_read_and_is_needed(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        self.stop(self.start(data, set()))
        change_table(data, "messages", lambda txn, db: txn.put(b"x", b"short", db=db))
        for _ in range(2):
            with pytest.raises(StartError, match=r"is damaged.*tidegate fsck --data"):
                self.start(data, set())


class TestStop:
    def test_what_was_accepted_is_answered(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        opaque = client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"last")
        stopped = gateway.service.stop()
        answer = client.answer(opaque)
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
        assert client.closed
        assert stopped.called
        gateway.start()
        assert bodies(gateway.connect().pull()) == ["last"]

    @pytest.mark.parametrize("reads_on", [True, False])
    def test_what_was_accepted_by_http_is_answered(
        self, make_gateway: MakeGateway, *, reads_on: bool
    ) -> None:
        gateway = make_gateway(http=parse_host_port(HTTP_PORT))
        client = HttpClient(gateway)
        idle, sender = client.connect(), client.connect()
        sender.reads = False
        body = b'{"topic": "orders", "body": "last", "queue": 0}'
        lines = ["POST /api/v1/messages HTTP/1.1", f"Host: {HTTP_PORT}"]
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        sender.protocol.dataReceived("\r\n".join([*lines, "", ""]).encode() + body)
        stopped = gateway.service.stop()
        gateway.settle()
        assert sender.value().startswith(b"HTTP/1.1 200 OK\r\n")
        assert (idle.connected, stopped.called) == (False, False)
        if reads_on:
            sender.clear()
            sender.drained()
            gateway.settle()
        else:
            gateway.advance(3_000)
        assert stopped.called
        gateway.start()
        assert bodies(gateway.connect().pull_all()) == ["last"]

    def test_with_no_client_connected(self, gateway: MemoryGateway) -> None:
        gateway.restart()
        assert gateway.connect().send_message().code == ResponseCode.SUCCESS

    @pytest.mark.parametrize(("version", "told"), [(513, True), (476, True), (475, False)])
    def test_what_still_arrives_is_sent_elsewhere(
        self, gateway: MemoryGateway, client: MemoryClient, version: int, told: bool
    ) -> None:
        client.send_message(body=bytes(200_000))
        client.stop_reading()
        client.send(RequestCode.PULL_MESSAGE, client.pull_request())
        gateway.settle()
        stopped = gateway.service.stop()
        assert not stopped.called
        late = client.send(
            RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"late", version=version
        )
        answers = {answer.opaque: answer.code for answer in client.take()}
        assert answers.get(late) == (ResponseCode.GO_AWAY if told else None)
        gateway.settle()
        assert stopped.called
        gateway.start()
        assert len(gateway.connect().pull_all()) == 1

    def test_nothing_fires_any_more(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message("orders", "later", TIMER_DELAY_MS="2000")
        client.send_message(body=bytes(200_000), fields={"queue": 1})
        client.stop_reading()
        client.send(RequestCode.PULL_MESSAGE, client.pull_request(queue=1))
        gateway.settle()
        stopped = gateway.service.stop()
        gateway.advance(2_500)
        assert not stopped.called
        gateway.advance(1_000)
        assert stopped.called
        gateway.start()
        assert bodies(gateway.connect().pull()) == ["later"]

    def test_twice_in_a_row(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway()
        for number in range(5):
            gateway.connect().send_message("orders", str(number))
            gateway.restart()
        assert bodies(gateway.connect().pull()) == ["0", "1", "2", "3", "4"]


def test_the_cycle_collector_looks_at_few_of_the_latest_objects_at_a_time() -> None:
    looked_at = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] < 2:
            latest = range(info["generation"] + 1)
            looked_at.append(sum(len(gc.get_objects(one)) for one in latest))

    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.callbacks.append(note)
    try:
        gc.set_threshold(*GC_THRESHOLDS)
        kept = [[number] for number in range(500_000)]
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
        gc.unfreeze()
    assert len(kept) == 500_000
    assert len(looked_at) >= 20
    assert max(looked_at) < 80_000


@pytest.mark.parametrize(
    ("most", "http", "asked", "is_told"),
    [
        (1_100, None, 0, False),
        (1_099, None, 0, True),
        (1_130, HostPort("127.0.0.1", 0), 0, False),
        (1_129, HostPort("127.0.0.1", 0), 0, True),
        (1_190, HostPort("127.0.0.1", 0), 2, False),
        (1_189, HostPort("127.0.0.1", 0), 2, True),
    ],
)
def test_fewer_open_files_than_connections_are_told(
    monkeypatch: pytest.MonkeyPatch, most: int, http: HostPort | None, asked: int, is_told: bool
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (512, most))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: None)
    with capturedLogs() as events:
        config = Config(max_connections=1_000, max_http_connections=30, http=http)
        allow_open_files(config, asked=asked)
    assert len(events) == is_told
    assert all(f"may have {most} open files" in (formatEvent(event) or "") for event in events)


DAMAGES = {
    "empty": lambda row: b"",
    "no JSON": lambda row: b"{",
    "another name": lambda row: row.replace(b"orders", b"ordars"),
    "a wrong limit": lambda row: row.replace(b"1h", b"1x"),
}
"""What damage makes of the settings of the topic or group orders."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_topic_whose_settings_cannot_be_read_keeps_its_messages(
    gateway: MemoryGateway, damage: str
) -> None:
    """A start once ended with a traceback, though 'tidegate fsck' found no fault. A topic whose row had another name
    counted as deleted."""
    client = gateway.connect()
    create_topic(client, "orders", 12, attributes="+max.delay=1h")
    client.send_message("orders", "last", fields={"queue": 11})
    client.send_message("orders", "later", TIMER_DELAY_SEC="90")
    with capturedLogs() as logs, damaged_row(gateway, "topics", b"orders", DAMAGES[damage]):
        assert "the settings of the topic orders cannot be read" in _text(logs)
        gateway.advance(100_000)
        client = gateway.connect()
        assert bodies(client.pull_all("orders", 11)) == ["last"]
        assert bodies(client.pull_all("orders")) == ["later"]
        assert ok(client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "orders"})).body


@pytest.mark.parametrize("damage", ["no JSON", "another name"])
def test_a_group_whose_settings_cannot_be_read_has_the_default_ones(
    gateway: MemoryGateway, damage: str
) -> None:
    ok(put_group(gateway.connect(), "orders", retryMaxTimes=3))
    with capturedLogs() as logs, damaged_row(gateway, "groups", b"orders", DAMAGES[damage]):
        assert "the settings of the group orders cannot be read" in _text(logs)
        assert gateway.service.broker.groups.need("orders").retry_max_times == 16


@pytest.mark.parametrize(
    ("note", "kind"),
    [
        (b"begins\0orders", "end of the deleted topic"),
        (b"mode\0orders\0group", "consume mode"),
        (b"kv\0no key", "value of the namespace and key"),
        (b"pop order\0group\0orders\0x", "popped messages in order of"),
        (b"lock\0" + bytes(20), "lock of a queue"),
    ],
)
def test_a_note_that_cannot_be_read_is_told_and_keeps_no_gateway_from_its_start(
    gateway: MemoryGateway, note: bytes, kind: str
) -> None:
    with (
        capturedLogs() as logs,
        damaged_row(gateway, "meta", b"note " + note, lambda _: b"{"),
    ):
        assert f"the {kind} " in _text(logs)
        assert gateway.connect().send_message().code == ResponseCode.SUCCESS


def _text(logs: Sequence[dict[str, Any]]) -> str:
    return "\n".join(formatEvent(event) or "" for event in logs)
