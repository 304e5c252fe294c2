"""Sending exported messages, to servers with canned responses."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from gateway.cli import transfer_commands
from gateway.cli.transfer import HeldLine, Sender
from gateway.client import ClientError, RefusalError, RemotingClient
from gateway.wire.codes import RequestCode, ResponseCode, SysFlag
from gateway.wire.commands import Command, encode_response
from gateway.wire.headers import SendMessageV2
from tests.cli.fake import FakeGateway, success
from tests.command import Tidegate

LINE = HeldLine(topic="t", queue_id=0, due_ms=1, msg_id="A", properties={}, body=b"a")


def route_to(broker: FakeGateway) -> dict[str, object]:
    """Return the route of a topic with four queues at one broker."""
    return {
        "queueDatas": [{"brokerName": "b", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}],
        "brokerDatas": [{"brokerName": "b", "brokerAddrs": {"0": broker.server}}],
    }


@pytest.mark.parametrize("address", ["broker", "broker:", "broker:x", "broker:" + "9" * 5_000])
def test_a_route_to_no_address_is_a_wrong_answer(address: str) -> None:
    route = {
        "queueDatas": [{"brokerName": "b", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}],
        "brokerDatas": [{"brokerName": "b", "brokerAddrs": {"0": address}}],
    }

    def answer(command: Command) -> bytes:
        return success(command, route)

    with (
        FakeGateway(answer) as gateway,
        Sender(gateway.address, RemotingClient) as sender,
        pytest.raises(ClientError, match=r"answer is not understood: .* is not HOST:PORT"),
    ):
        sender.send(LINE)


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ],
)
def test_a_broker_that_may_only_be_read_is_passed_over_and_what_the_other_stores_is_sent(
    code: ResponseCode,
) -> None:
    """An example is a broker that is about to be taken down (`wipeWritePerm`), while the rest of its cluster serves,
    perhaps without a slave."""
    taken: list[Command] = []

    def take(command: Command) -> bytes:
        taken.append(command)
        return encode_response(command.opaque, code)

    def unsupported(command: Command) -> bytes:
        return encode_response(command.opaque, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    with FakeGateway(unsupported, take) as other:
        route = {
            "queueDatas": [
                {"brokerName": "old", "readQueueNums": 4, "writeQueueNums": 4, "perm": 4},
                {"brokerName": "other", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6},
            ],
            "brokerDatas": [
                {"brokerName": "old", "brokerAddrs": {"0": "127.0.0.1:1"}},
                {"brokerName": "other", "brokerAddrs": {"0": other.server}},
            ],
        }
        with (
            FakeGateway(lambda command: success(command, route), unsupported) as name_server,
            Sender(name_server.address, RemotingClient) as sender,
        ):
            assert sender.send(LINE)
    assert [command.code for command in taken] == [RequestCode.SEND_MESSAGE_V2]


def test_a_broker_that_knows_no_times_is_sent_nothing() -> None:
    """RocketMQ 4 ignores TIMER_DELIVER_MS, and delivers at once."""

    def of_version_4(command: Command) -> bytes:
        assert command.code == RequestCode.LOOK_UP_TIMERS
        answer = encode_response(command.opaque, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        return answer.replace(b'"version":513', b'"version":409')

    with FakeGateway(of_version_4) as broker:
        route = {
            "queueDatas": [{"brokerName": "b", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}],
            "brokerDatas": [{"brokerName": "b", "brokerAddrs": {"0": broker.server}}],
        }
        # Old name servers write numbers as bare keys.
        body = json.dumps(route).replace('"0":', "0:").encode()

        def of_old_name_server(command: Command) -> bytes:
            return encode_response(command.opaque, 0, body=body)

        with (
            FakeGateway(of_old_name_server, of_version_4) as name_server,
            Sender(name_server.address, RemotingClient) as sender,
        ):
            for _ in range(2):
                with pytest.raises(RefusalError, match="older than RocketMQ 5"):
                    sender.send(LINE)


def test_a_busy_server_is_asked_again() -> None:
    """As above a topic's `max.send.rate`, which an import of one topic soon is."""

    def busy(command: Command) -> bytes:
        return encode_response(command.opaque, ResponseCode.SYSTEM_BUSY, remark="too fast")

    def none(command: Command) -> bytes:
        return success(command, {"messages": [], "cursor": None})

    def take(command: Command) -> bytes:
        return encode_response(command.opaque, ResponseCode.SUCCESS)

    def restarting(command: Command) -> bytes:
        return encode_response(command.opaque, ResponseCode.SERVICE_NOT_AVAILABLE, remark="later")

    with FakeGateway(busy, busy, take) as broker:
        body = route_to(broker)

        def route(command: Command) -> bytes:
            return success(command, body)

        with (
            FakeGateway(route, busy, restarting, none) as gateway,
            Sender(gateway.address, RemotingClient) as sender,
        ):
            assert sender.send(LINE)
    assert [one.code for one in broker.asked] == [RequestCode.SEND_MESSAGE_V2] * 3


def test_a_server_that_stays_busy_is_not_waited_for_with_each_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[float] = []
    monkeypatch.setattr("gateway.cli.transfer.sleep", waited.append)
    monkeypatch.setattr("gateway.cli.transfer.monotonic", lambda: sum(waited))

    def busy(command: Command) -> bytes:
        return encode_response(command.opaque, ResponseCode.SYSTEM_BUSY, remark="too fast")

    def none(command: Command) -> bytes:
        return success(command, {"messages": [], "cursor": None})

    with FakeGateway(*[busy] * 50) as broker:
        route = route_to(broker)
        looks = [none] * 10
        with (
            FakeGateway(lambda command: success(command, route), *looks) as gateway,
            Sender(gateway.address, RemotingClient, 1.0) as sender,
        ):
            for _ in looks:
                with pytest.raises(RefusalError, match="too fast"):
                    sender.send(LINE)
    assert 1.0 <= sum(waited) < 2.0
    assert len(broker.asked) == len(waited) + len(looks), "each once more than was waited for it"


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.NO_PERMISSION])
def test_what_may_be_there_already_is_not_sent(code: int) -> None:
    """Such a message is sent only to a RocketMQ cluster, which cannot be asked."""
    route = {
        "queueDatas": [{"brokerName": "b", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}],
        "brokerDatas": [{"brokerName": "b", "brokerAddrs": {"0": "127.0.0.1:1"}}],
    }

    def refuse(command: Command) -> bytes:
        assert command.code == RequestCode.LOOK_UP_TIMERS
        return encode_response(command.opaque, code, remark="not\nnow")

    with (
        FakeGateway(lambda command: success(command, route), refuse, refuse) as gateway,
        Sender(gateway.address, RemotingClient, 0) as sender,
    ):
        for _ in range(2):
            with pytest.raises(
                RefusalError,
                match=rf"cannot tell whether it has this message already: .*code {code}.*: not now",
            ):
                sender.send(LINE)


@pytest.mark.parametrize(
    ("remark", "told"), [("not\nready", "not ready"), (None, "no reason given")]
)
def test_a_name_server_refuses_in_one_line(remark: str | None, told: str) -> None:
    def refuse(command: Command) -> bytes:
        return encode_response(command.opaque, ResponseCode.SYSTEM_ERROR, remark=remark)

    with (
        FakeGateway(refuse) as gateway,
        Sender(gateway.address, RemotingClient) as sender,
        pytest.raises(RefusalError, match=rf"^the name server refused \(code 1\): {told}$"),
    ):
        sender.send(LINE)


@pytest.mark.parametrize(("queue", "sent_to"), [(3, 3), (4, 0)])
def test_what_holds_wherever_a_message_is_goes_along(queue: int, sent_to: int) -> None:
    """Its compression, born time and number of retries are sent along. That it was committed is not."""
    kept = SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB
    line = msgspec.structs.replace(
        LINE,
        queue_id=queue,
        flag=7,
        sys_flag=kept | SysFlag.TRANSACTION_COMMIT,
        born_ms=5,
        reconsume_times=3,
    )

    def answer(command: Command) -> bytes:
        if command.code == RequestCode.SEND_MESSAGE_V2:
            return encode_response(command.opaque, ResponseCode.SUCCESS)
        if command.code == RequestCode.LOOK_UP_TIMERS:
            return success(command, {"messages": [], "cursor": None})
        return success(command, route_to(broker))

    with (
        FakeGateway(answer) as broker,
        FakeGateway(answer, answer) as name_server,
        Sender(name_server.address, RemotingClient) as sender,
    ):
        assert sender.send(line)
    (sent,) = broker.asked
    fields = msgspec.convert(sent.ext(), SendMessageV2, strict=False)
    assert (fields.queue_id, fields.flag, fields.sys_flag) == (sent_to, 7, kept)
    assert (fields.born_timestamp, fields.reconsume_times) == (5, 3)
    assert fields.max_reconsume_times == 3


ACCEPTED_MS = 1_000


@pytest.mark.parametrize(
    ("there", "is_known"),
    [
        ({}, True),
        # The message was sent from this folder and recalled since, so it stays aborted.
        ({"state": "aborted"}, True),
        # The message was drained from there when it moved to the gateway that the line is from.
        ({"state": "aborted", "storeMs": ACCEPTED_MS - 1}, False),
        ({"state": "fired", "storeMs": ACCEPTED_MS - 1}, True),
        ({"dueMs": 9_001}, False),
        ({"dueMs": 9_001, "rescheduledMs": 2_000}, True),
        # The message was overdue when it was sent there, and became due at once.
        ({"dueMs": 9_001, "storeMs": 9_000}, True),
        ({"dueMs": 9_001, "storeMs": 8_999}, False),
        ({"msgId": "B"}, False),
        ({"bornMs": 1}, False),
        ({"bodySize": 2}, False),
    ],
)
def test_what_is_there_already_is_told_by_all_that_is_known_of_it(
    there: dict[str, object], is_known: bool
) -> None:
    line = msgspec.structs.replace(LINE, due_ms=9_000, store_ms=ACCEPTED_MS)
    same = {"msgId": "A", "offsetMsgId": "", "topic": "t", "queueId": 0, "state": "pending"}
    same |= {"dueMs": 9_000, "storeMs": ACCEPTED_MS, "bornMs": 0, "bodySize": 1}

    def answer(command: Command) -> bytes:
        if command.code == RequestCode.SEND_MESSAGE_V2:
            return encode_response(command.opaque, ResponseCode.SUCCESS)
        if command.code == RequestCode.LOOK_UP_TIMERS:
            return success(command, {"messages": [same | there], "cursor": None})
        return success(command, route_to(broker))

    with (
        FakeGateway(answer) as broker,
        FakeGateway(answer, answer) as name_server,
        Sender(name_server.address, RemotingClient) as sender,
    ):
        assert sender.send(line) is not is_known


def test_an_import_that_is_repeated_tells_how_far_it_is(
    tidegate: Tidegate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_commands, "_TELL_EVERY_S", -1.0)
    monkeypatch.setattr(Sender, "send", lambda sender, line: line.msg_id == "NEW")
    held = {"topic": "t", "queueId": 0, "dueMs": 1, "properties": {}, "body": ""}
    file = tmp_path / "held.jsonl"
    file.write_text("".join(json.dumps(held | {"msgId": name}) + "\n" for name in ("OLD", "NEW")))
    run = tidegate("import", str(file), "--to", "127.0.0.1:1")
    assert run.err.splitlines() == [
        "0 sent, 1 were there already so far",
        "1 sent, 1 were there already so far",
        "1 sent, 1 were there already, 0 refused",
    ]
