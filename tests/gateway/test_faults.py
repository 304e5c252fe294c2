"""Hostile or broken requests harm no other client, nor their sender's next request where one is possible."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from typing import Any

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.logger import LogLevel, capturedLogs, formatEvent

from gateway.clock import Clock
from gateway.connections import connection
from gateway.monitoring.audit import AuditLog
from gateway.router import Call, RequestError, Router
from gateway.settings.config import Config
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import decode_command, encode_command
from gateway.wire.frames import join_frame
from storage.keys import queue_prefix
from tests.gateway.faults import damaged_row
from tests.gateway.memory import MemoryClient, MemoryGateway, bodies
from tests.gateway.tools import commit_offset, ok


def frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    """Return a frame with any header."""
    return join_frame(kind, header, body)


def lengths(length: int, word: int, rest: bytes = b"") -> bytes:
    """Return a frame with any values as its lengths."""
    return struct.pack(">iI", length, word) + rest


def expect_closed(gateway: MemoryGateway, client: MemoryClient) -> None:
    """Check that the connection is closed without a response, and that other clients are served."""
    assert client.take() == []
    assert client.closed
    other = gateway.connect()
    assert other.send_message().code == ResponseCode.SUCCESS


MALFORMED = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "length of 3": lengths(3, 0, b"abc"),
    "length of 0": lengths(0, 0),
    "negative length": lengths(-1, 0),
    "least length": lengths(-(2**31), 0),
    "larger than 16 MiB": lengths((16 << 20) - 3, 2),
    "greatest length": lengths(2**31 - 1, 2),
    "header longer than the frame": lengths(10, 7, b"{} {} "),
    "serialize type 2": frame(b"{}", kind=2),
    "serialize type 255": frame(b"{}", kind=255),
    "no header": frame(b""),
    "half a header": frame(b'{"code":105'),
    "array": frame(b"[]"),
    "null": frame(b"null"),
    "text": frame(b'"code"'),
    "number": frame(b"105"),
    "two values": frame(b"{}{}"),
    "not UTF-8 in structure": frame(b'{"code":105,\xff}'),
    "code too large": frame(b'{"code":2147483648}'),
    "code of many digits": frame(b'{"code":' + b"1" * 10_000 + b"}"),
    "code is no number": frame(b'{"code":"x"}'),
    "opaque is an object": frame(b'{"code":105,"opaque":{}}'),
    "fields are a list": frame(b'{"code":105,"extFields":[1]}'),
    "fields are a text": frame(b'{"code":105,"extFields":"topic"}'),
    "nested deeply": frame(b'{"code":105,"extFields":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001),
    "arrays nested deeply": frame(b"[" * 100_000),
    "header larger than 1 MiB": frame(
        b'{"code":105,"extFields":{"a":"' + b"a" * (1 << 20) + b'"}}'
    ),
    "binary: nothing": frame(b"", kind=1),
    "binary: cut off": frame(b"\0\x69\0\2\0\0\0\0\0\0\0\0\0\0\0\0\0\0", kind=1),
    "binary: remark too long": frame(
        struct.pack(">hBhiii", 105, 0, 0, 1, 0, 99) + b"\0\0\0\0", kind=1
    ),
    "binary: negative ext": frame(
        struct.pack(">hBhiiii", 105, 0, 0, 1, 0, 0, -4) + b"\0" * 8, kind=1
    ),
    "binary: ext value too long": frame(
        struct.pack(">hBhiiii", 105, 0, 0, 1, 0, 0, 9) + b"\0\1a\0\0\0\x63bc", kind=1
    ),
}


class TestMalformed:
    @pytest.mark.parametrize("name", MALFORMED)
    def test_is_not_answered_and_closed(
        self, gateway: MemoryGateway, client: MemoryClient, name: str
    ) -> None:
        client.raw(MALFORMED[name])
        expect_closed(gateway, client)

    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (lengths(3, 0, b"abc"), "a frame of length 3; lengths are from 4 to 16777212"),
            (frame(b"[]"), "a header that is no JSON object"),
        ],
    )
    def test_the_log_says_why(
        self, gateway: MemoryGateway, client: MemoryClient, data: bytes, reason: str
    ) -> None:
        with capturedLogs() as events:
            client.raw(data)
            client.take()
        told = [formatEvent(event) for event in events]
        assert any(line.endswith(f": it sent a malformed frame: {reason}") for line in told)

    def test_what_came_before_it_is_answered(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        good = encode_command(RequestCode.SEND_MESSAGE_V2, 7, ext=client.send_fields(), body=b"x")
        client.raw(good + encode_command(RequestCode.GET_ALL_TOPIC_LIST, 8) + lengths(1, 0))
        assert sorted(answer.opaque for answer in client.take()) == [7, 8]
        assert client.closed
        assert bodies(gateway.connect().pull()) == ["x"]

    def test_what_came_before_a_bad_header_is_answered(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        good = encode_command(RequestCode.SEND_MESSAGE_V2, 7, ext=client.send_fields(), body=b"x")
        client.raw(good + frame(b"[]") + good)
        assert [answer.opaque for answer in client.take()] == [7]
        assert client.closed
        assert bodies(gateway.connect().pull()) == ["x"]

    def test_a_length_too_large_is_seen_at_once(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.raw(struct.pack(">i", (16 << 20) + 1))
        expect_closed(gateway, client)

    def test_random_bytes(self, gateway: MemoryGateway) -> None:
        noise = random.Random(7)
        for _ in range(60):
            client = gateway.connect()
            client.raw(bytes([noise.choice([0, 1, 71])]) + noise.randbytes(300))
            client.take()
        assert gateway.connect().send_message().code == ResponseCode.SUCCESS

    def test_flipped_bits(self, gateway: MemoryGateway) -> None:
        """Whatever a damaged request turns into, the next client is served."""
        noise = random.Random(11)
        client = gateway.connect()
        requests = [
            encode_command(RequestCode.SEND_MESSAGE_V2, 1, ext=client.send_fields(), body=b"x"),
            encode_command(RequestCode.PULL_MESSAGE, 2, ext=client.pull_request()),
            encode_command(RequestCode.HEART_BEAT, 3, body=b'{"clientID":"c"}'),
            encode_command(RequestCode.LOOK_UP_TIMERS, 4, ext={"id": "x", "limit": "5"}),
        ]
        for number in range(400):
            damaged = bytearray(requests[number % 4])
            for _ in range(noise.randrange(1, 4)):
                damaged[noise.randrange(4, len(damaged))] ^= 1 << noise.randrange(8)
            client = gateway.connect()
            client.raw(bytes(damaged))
            client.take()
            client.disconnect()
        assert gateway.connect().send_message("safe").code == ResponseCode.SUCCESS


class TestPartialFrames:
    def test_byte_by_byte(self, client: MemoryClient) -> None:
        request = encode_command(
            RequestCode.SEND_MESSAGE_V2, 7, ext=client.send_fields(), body=b"x"
        )
        for byte in request[:-1]:
            client.raw(bytes([byte]))
            assert client.take() == []
        client.raw(request[-1:])
        assert [answer.opaque for answer in client.take()] == [7]

    def test_a_frame_that_never_ends_only_waits(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.raw(lengths(1_000, 500, b'{"code":10'))
        gateway.advance(60_000)
        assert not client.closed
        assert gateway.connect().send_message().code == ResponseCode.SUCCESS

    def test_are_bounded_over_all_connections(self, make_gateway: Any) -> None:
        gateway = make_gateway(max_unfinished_bytes=2 << 20)
        clients = [gateway.connect() for _ in range(40)]
        small = gateway.connect()
        small.raw(lengths(8 << 20, 4, b"x" * 1_000))
        for _ in range(10):
            for client in clients:
                if not client.closed:
                    client.raw(b"\0\x7f\0\0" + b"\0" * 64_000)
            unfinished = gateway.service.factory.unfinished
            held = sum(unfinished.of(one.protocol) for one in clients if not one.closed)
            assert held <= 2 << 20
        assert any(client.closed for client in clients)
        # The connections with the largest unfinished frames are closed first, and then others have room again.
        assert not small.closed
        other = gateway.connect()
        assert other.send_message(body=bytes(1 << 20)).code == ResponseCode.SUCCESS

    def test_are_freed_with_their_connection(self, gateway: MemoryGateway) -> None:
        tracemalloc.start()
        lost = [gateway.connect() for _ in range(10)]
        for client in lost:
            client.raw(b"\0\x7f\0\0" + b"\0" * 1_000_000)
            client.disconnect()
        # The connections themselves are still there: their clients have them.
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept < 1_000_000

    def test_each_is_closed_once_in_a_turn(self, make_gateway: Any) -> None:
        gateway = make_gateway(max_unfinished_bytes=1 << 20)
        clients = [gateway.connect() for _ in range(40)]
        with capturedLogs() as events:
            for _ in range(2):
                for client in clients:
                    if not client.transport.disconnecting:
                        client.protocol.dataReceived(b"\0\x7f\0\0" + b"\0" * 20_000)
        lines = [formatEvent(event) for event in events]
        closed = [line for line in lines if "unfinished frames exceed max_unfinished_bytes" in line]
        assert (
            len(closed) == len(set(closed)) == sum(one.transport.disconnecting for one in clients)
        )
        gateway.settle()


class TestUnknownRequests:
    @pytest.mark.parametrize("code", [0, -1, 1, 13, 9_999, 2**31 - 1, -(2**31)])
    def test_answer(self, client: MemoryClient, code: int) -> None:
        answer = client.ask(code, {"topic": "orders"}, b"body")
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == f" request type {code} not supported"
        assert not client.closed
        assert client.send_message().code == ResponseCode.SUCCESS

    def test_oneway(self, client: MemoryClient) -> None:
        client.send(9_999, oneway=True)
        assert client.take() == []
        assert not client.closed

    def test_an_answer_to_nothing_that_was_asked(self, client: MemoryClient) -> None:
        client.raw(encode_command(0, 5, flag=1))
        client.raw(encode_command(0, 5, flag=3))
        assert client.take() == []
        assert client.send_message().code == ResponseCode.SUCCESS


class TestOddRequests:
    """Unusual requests that can still be read."""

    @pytest.mark.parametrize(
        "header",
        [
            b'{"code":206,"opaque":7}',
            b'{"opaque":7,"code":206}',
            b'{"code":"206","opaque":"7","flag":"0","version":"513"}',
            b'{"code":206,"opaque":7,"extFields":null,"remark":null,"language":null}',
            b'{"code":206,"opaque":7,"extFields":{"a":1,"b":true,"c":null,"d":[1],"e":{}}}',
            b'{"code":206,"opaque":7,"language":"KLINGON","version":-1,"more":{"x":[1,2]}}',
            b'{"code":9999,"code":206,"opaque":7}',
            b' {\n"code" : 206 , "opaque":7 } ',
            b'{"code":206,"opaque":7,"remark":"\\ud800"}',
            b'{"code":206,"opaque":7,"remark":"\xff"}',
        ],
    )
    def test_header(self, client: MemoryClient, header: bytes) -> None:
        client.raw(frame(header))
        [answer] = client.take()
        assert (answer.opaque, answer.code) == (7, ResponseCode.SUCCESS)

    def test_numbers_and_booleans_as_such(self, client: MemoryClient) -> None:
        """The C++ client writes them so."""
        fields: dict[str, object] = dict(client.send_fields(batch=False))
        fields |= {"d": 4, "e": 1, "f": 0, "g": 5, "h": 0, "j": 0, "k": False, "m": False}
        header = {"code": 310, "opaque": 7, "extFields": fields, "language": "CPP"}
        client.raw(frame(json.dumps(header).encode(), b"x"))
        [answer] = client.take()
        assert (answer.opaque, answer.code, answer.ext()["queueId"]) == (7, 0, "1")

    def test_a_binary_header_is_answered_in_json(self, client: MemoryClient) -> None:
        pairs = b"".join(
            struct.pack(">h", len(name))
            + name.encode()
            + struct.pack(">i", len(value))
            + value.encode()
            for name, value in client.send_fields().items()
        )
        header = struct.pack(">hBhiiii", 310, 9, 317, 7, 0, 0, len(pairs)) + pairs
        client.raw(frame(header, b"x", kind=1))
        assert client.transport.value() == b""
        client._gateway.settle()
        assert client.transport.value()[4] == 0
        [answer] = client.take()
        assert (answer.opaque, answer.code) == (7, ResponseCode.SUCCESS)

    def test_texts_that_java_would_not_write(self, client: MemoryClient) -> None:
        for text in ("a\x00b", "\U0001f600" * 100, "a\x1fb", "'\"\\"):
            answer = client.send_message("orders", "x", KEYS=text, TAGS=text, UNIQ_KEY=text)
            assert answer.code == ResponseCode.SUCCESS
            found = client.ask(RequestCode.LOOK_UP_TIMERS, {"id": text, "state": "any"})
            assert found.code == ResponseCode.SUCCESS
            assert client.ask_pull(tags=text).code == ResponseCode.SUCCESS

    def test_half_a_surrogate_pair(self, client: MemoryClient) -> None:
        fields = client.send_fields(properties="KEYS\x01\ud800\x02UNIQ_KEY\x01\udfff\x02")
        header = {"code": 310, "opaque": 7, "extFields": fields}
        client.raw(frame(json.dumps(header).encode(), b"x"))
        [answer] = client.take()
        assert answer.code == ResponseCode.SUCCESS
        assert bodies(client.pull()) == ["x"]


class TestHandlers:
    """Errors of handlers, on a separate router."""

    def dispatch(self, handler: Any, **options: Any) -> list[Any]:
        class Sent:
            host, address = b"\x7f\0\0\1\0\0\0\1", "127.0.0.1:1"
            source = "127.0.0.1"
            open, congested = True, False

            def __init__(self) -> None:
                self.frames: list[bytes] = []

            def send(self, data: bytes) -> None:
                self.frames.append(data)

        peer = Sent()
        request = encode_command(5, 7, **options)
        command = decode_command((0, request[8:], b""))
        nothing_noted = AuditLog(Config(audit=False), Clock(), lambda: False)
        Router({5: handler}, nothing_noted).dispatch(command, peer)
        return [decode_command((0, data[8:], b"")) for data in peer.frames]

    def test_an_unexpected_error(self) -> None:
        def fail(call: Call) -> None:
            raise ZeroDivisionError("by nothing")

        [answer] = self.dispatch(fail)
        assert (answer.opaque, answer.code) == (7, ResponseCode.SYSTEM_ERROR)
        assert answer.remark == "ZeroDivisionError: by nothing"

    def test_a_page_that_lmdb_cannot_read(self) -> None:
        """The log gets one line with the remedy, not a traceback for each such request."""

        def fail(call: Call) -> None:
            raise lmdb.CorruptedError("mdb_get: MDB_CORRUPTED")

        with capturedLogs() as events:
            [answer] = self.dispatch(fail)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (
            "MDB_CORRUPTED; data.mdb is damaged: restore a backup, unless 'tidegate fsck --repair' can repair it"
            in (answer.remark or "")
        )
        assert [event.get("log_failure") for event in events] == [None]

    def test_an_expected_error(self) -> None:
        def refuse(call: Call) -> None:
            raise RequestError(ResponseCode.NO_PERMISSION, "not for you")

        [answer] = self.dispatch(refuse)
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "not for you")

    def test_oneway(self) -> None:
        def fail(call: Call) -> None:
            raise ZeroDivisionError

        assert self.dispatch(fail, flag=2) == []

    def test_the_connection_goes_on(self, client: MemoryClient) -> None:
        client.send_message()
        client.pull(group="g")
        ext = {"consumerGroup": "g", "topic": "orders", "queueId": "-1", "commitOffset": "1"}
        answer = client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert not client.closed
        assert client.send_message().code == ResponseCode.SUCCESS


LONG = "x" * 3_000

HOSTILE: list[tuple[int, dict[str, str], bytes]] = [
    (200, {}, json.dumps({"groupName": LONG}).encode()),
    (200, {}, b'{"groupName":""}'),
    (17, {"topic": LONG, "defaultTopic": "", "readQueueNums": "1", "writeQueueNums": "1"}, b""),
    (100, {"namespace": LONG, "key": LONG, "value": "v"}, b""),
    (100, {"namespace": "", "key": "", "value": ""}, b""),
    (102, {"namespace": LONG, "key": LONG}, b""),
    (215, {"topic": LONG}, b""),
    (207, {"groupName": LONG, "cleanOffset": "true"}, b""),
    (15, {"consumerGroup": LONG, "topic": LONG, "queueId": "0", "commitOffset": "5"}, b""),
    (15, {"consumerGroup": "g", "topic": "orders", "queueId": "-5", "commitOffset": "-5"}, b""),
    (
        222,
        {"topic": "orders", "group": LONG, "timestamp": "-1", "isForce": "true"},
        b"",
    ),
    (314, {"srcGroup": LONG, "destGroup": LONG, "topic": LONG}, b""),
    (36, {"offset": "-9", "group": LONG, "delayLevel": "0"}, b""),
    (37, {"producerGroup": LONG, "tranStateTableOffset": "-1", "commitLogOffset": "-1"}, b""),
    (31002, {"id": LONG}, b""),
    (31002, {"key": LONG, "topic": LONG}, b""),
    (31002, {"handle": LONG}, b""),
    (31010, {"topic": LONG, "name": LONG}, b""),
    (31010, {"topic": LONG, "cursor": "ff" * 600}, b""),
    (31010, {"topic": LONG}, b""),
    (31011, {"topic": "a\0b", "name": "n", "change": "delete"}, b""),
    (31011, {"topic": "a", "name": "a\0b", "change": "delete"}, b""),
    (31011, {"topic": LONG, "name": "n", "change": "delete"}, b""),
    (31012, {"cron": LONG, "zone": LONG}, b""),
    (31012, {"topic": LONG, "name": "n"}, b""),
    (370, {"topic": LONG, "recallHandle": LONG}, b""),
    (34, {}, json.dumps({"clientID": LONG, "consumerDataSet": [{"groupName": LONG}]}).encode()),
    (35, {"clientID": LONG, "consumerGroup": LONG, "producerGroup": LONG}, b""),
    (25, {}, b"nonsense\n=\nx=y\n"),
    (5001, {"E_T": LONG}, b""),
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_nobody_spoils_the_batch_of_others(
    gateway: MemoryGateway, client: MemoryClient, number: int
) -> None:
    """Requests of one turn share a commit. One that cannot be stored must not fail the others."""
    code, ext, body = HOSTILE[number]
    client.send_message("orders", "first")
    hostile = gateway.connect()
    before = client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"before")
    hostile.send(code, ext, body)
    after = client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"after")
    hostile.take()
    for opaque in (before, after):
        answer = client.answer(opaque)
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
    assert bodies(client.pull()) == ["first", "before", "after"]


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    code=st.sampled_from(
        [10, 11, 12, 14, 15, 17, 29, 30, 33, 35, 36, 38, 215, 310, 320, 370, 31001]
    ),
    ext=st.dictionaries(
        st.sampled_from([*"abcdefghijklm", "topic", "queueId", "offset", "key", "id", "limit"]),
        st.one_of(st.text(max_size=20), st.integers(-(2**65), 2**65).map(str)),
        max_size=14,
    ),
    body=st.binary(max_size=40),
)
def test_any_fields(gateway: MemoryGateway, code: int, ext: dict[str, str], body: bytes) -> None:
    client = gateway.connect()
    answer = client.ask(code, ext, body)
    assert answer.is_response
    assert client.ask(RequestCode.GET_ALL_TOPIC_LIST).code == ResponseCode.SUCCESS
    client.disconnect()


class TestConnections:
    def test_limit(self, make_gateway: Any) -> None:
        gateway = make_gateway(max_connections=3)
        clients = [gateway.connect() for _ in range(3)]
        assert gateway.connect().refused
        clients[0].disconnect()
        assert gateway.connect().send_message().code == ResponseCode.SUCCESS

    def test_those_that_are_refused_do_not_fill_the_log(self, make_gateway: Any) -> None:
        """Clients try again and again."""
        gateway = make_gateway(max_connections=1)
        gateway.connect()
        with capturedLogs() as events:
            for _ in range(2):
                assert all(gateway.connect().refused for _ in range(50))
                gateway.advance(10_000)
            gateway.advance(10_000)
        assert [formatEvent(event) for event in events] == 2 * [
            "refused a connection: max_connections = 1 are open",
            "refused 49 more connections: max_connections = 1 are open",
        ]

    def test_a_silent_one_is_closed(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        talking = gateway.connect()
        for _ in range(6):
            gateway.advance(19_000)
            talking.ask(RequestCode.GET_ALL_TOPIC_LIST)
        assert not client.closed
        for _ in range(2):
            gateway.advance(19_000)
            talking.ask(RequestCode.GET_ALL_TOPIC_LIST)
        assert client.closed
        assert not talking.closed

    def test_of_many_silent_ones_some_are_closed_in_each_turn(
        self, gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection, "CLOSED_AT_ONCE", 2)
        clients = [gateway.connect() for _ in range(5)]
        factory = gateway.service.factory
        factory.idle_seconds = -1.0
        left = []
        factory.close_silent()
        for _ in range(3):
            left.append(sum(not client.transport.disconnecting for client in clients))
            gateway.reactor.turn()
        assert left == [3, 1, 0]
        gateway.settle()
        assert all(client.closed for client in clients)

    def test_silence_by_setting(self, make_gateway: Any) -> None:
        gateway = make_gateway(connection_idle="20s")
        gateway.advance(60_000)
        client = gateway.connect()
        # It has been silent since it connected, not since the gateway was started.
        gateway.advance(19_000)
        assert not client.closed
        gateway.advance(12_000)
        assert client.closed

    def test_a_waiting_pull_is_no_silence(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """A consumer that only waits sends a pull every few seconds."""
        client.send_message()
        offset = 1
        for _ in range(12):
            opaque = client.park(offset=offset, wait_ms=15_000)
            gateway.advance(15_600)
            assert client.answer(opaque) is not None
        assert not client.closed


class TestSlowReader:
    """A client that sends requests and does not read the responses."""

    @pytest.fixture
    def slow(self, gateway: MemoryGateway, client: MemoryClient) -> MemoryClient:
        client.send_message(body=bytes(200_000))
        slow = gateway.connect()
        slow.stop_reading()
        slow.send(RequestCode.PULL_MESSAGE, slow.pull_request())
        gateway.settle()
        return slow

    def test_is_not_read_from(self, gateway: MemoryGateway, slow: MemoryClient) -> None:
        assert slow.transport.producerState == "paused"
        assert gateway.connect().send_message().code == ResponseCode.SUCCESS

    def test_is_read_from_again(self, slow: MemoryClient) -> None:
        [answer] = slow.take()
        assert len(answer.body) > 200_000
        assert slow.transport.producerState == "producing"
        assert not slow.closed

    def test_is_closed_when_it_is_silent(self, gateway: MemoryGateway, slow: MemoryClient) -> None:
        """The client first gets time to read its responses. In the end the gateway needs the memory."""
        gateway.advance(131_000)
        assert slow.transport.disconnecting
        gateway.advance(10_000)
        assert slow.closed
        assert len(gateway.service.factory.connections) == 0

    def test_stays_while_it_takes_its_answers_slowly(
        self, gateway: MemoryGateway, client: MemoryClient, slow: MemoryClient
    ) -> None:
        """Meanwhile its requests, such as heartbeats, are not read. Without this rule it would count as gone."""
        reader = gateway.connect()
        reader.heartbeat("C")
        reader.stop_reading()
        reader.send(RequestCode.PULL_MESSAGE, reader.pull_request())
        for _ in range(30):
            gateway.advance(10_000)
            reader.transport.taken += 1_000
            client.ask(RequestCode.GET_ALL_TOPIC_LIST)
        assert slow.closed
        assert not reader.transport.disconnecting
        group = gateway.service.broker.clients.consumer_group("consumers")
        assert group is not None
        assert list(group.members) == ["C"]
        gateway.advance(150_000)
        assert reader.closed
        assert gateway.service.broker.clients.consumer_group("consumers") is None

    def test_gets_its_answers_before_it_is_closed(
        self, gateway: MemoryGateway, slow: MemoryClient
    ) -> None:
        slow.raw(lengths(1, 0))
        gateway.settle()
        assert slow.transport.connected
        assert len(slow.take()) == 1
        assert slow.closed

    def test_does_not_hold_up_a_stop(self, gateway: MemoryGateway, slow: MemoryClient) -> None:
        gateway.stop()
        gateway.start()
        assert len(gateway.connect().pull()) == 1

    def test_that_leaves_while_paused(self, gateway: MemoryGateway, slow: MemoryClient) -> None:
        slow.disconnect()
        assert len(gateway.service.factory.connections) == 1
        assert gateway.connect().send_message().code == ResponseCode.SUCCESS


class TestAddresses:
    @pytest.mark.parametrize(
        ("host", "born"),
        [
            ("192.0.2.9", "192.0.2.9"),
            ("::ffff:192.0.2.9", "192.0.2.9"),
            ("2001:db8::1", "127.0.0.1"),
            ("::1", "127.0.0.1"),
        ],
    )
    def test_records_have_ipv4(self, gateway: MemoryGateway, host: str, born: str) -> None:
        client = gateway.connect(host)
        client.send_message()
        [message] = client.pull()
        assert ".".join(str(byte) for byte in message.born_host[:4]) == born


def test_what_is_damaged_is_a_line_in_the_log(gateway: MemoryGateway) -> None:
    with damaged_row(gateway, "ends", queue_prefix(b"orders", 0), lambda _: b"short"):
        client = gateway.connect()
        with capturedLogs() as logs:
            answer = client.send_message()
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "queue 0 of topic orders cannot be read" in (answer.remark or "")
        (line,) = [
            formatEvent(event) or "" for event in logs if event["log_level"] is LogLevel.error
        ]
        assert "see 'tidegate fsck'" in line
        assert client.send_message("others").code == ResponseCode.SUCCESS


def test_nor_is_it_a_traceback_where_an_answer_takes_several_turns(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    client.send_message()
    client.pull(group="consumers")
    ok(commit_offset(client, "orders", 0, 1, "consumers"))
    with damaged_row(gateway, "ends", queue_prefix(b"orders", 1), lambda _: b"short"):
        answer = gateway.connect().ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith(
            "service not available now: queue 1 of topic orders"
        )
