"""Pulls that get their response at once: every code with its offsets, filters, limits and checks."""

from __future__ import annotations

from typing import ClassVar

import pytest

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.messages import decode_messages
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import MemoryClient, MemoryGateway, bodies


def offsets(answer: Command) -> tuple[int, int, int]:
    """Return the next, first and last offset of a response."""
    ext = answer.ext()
    return int(ext["nextBeginOffset"]), int(ext["minOffset"]), int(ext["maxOffset"])


def send(client: MemoryClient, *tags: str) -> None:
    """Send a message for each tag, with the tag as body. An empty tag is none."""
    client.send_batch((tag or "-", {"TAGS": tag}) for tag in tags)


class TestCodes:
    def test_found(self, client: MemoryClient) -> None:
        send(client, "a", "b", "c")
        answer = client.ask_pull(offset=1)
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
        assert offsets(answer) == (3, 0, 3)
        assert answer.ext()["suggestWhichBrokerId"] == "0"
        messages = decode_messages(answer.body)
        assert bodies(messages) == ["b", "c"]
        assert [message.queue_offset for message in messages] == [1, 2]

    @pytest.mark.parametrize("sent", [0, 3])
    def test_nothing_new(self, client: MemoryClient, sent: int) -> None:
        client.send_message("orders", fields={"queue": 1})
        send(client, *["a"] * sent) if sent else None
        answer = client.ask_pull(offset=sent)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert answer.remark == ("OFFSET_OVERFLOW_ONE" if sent else "NO_MESSAGE_IN_QUEUE")
        assert offsets(answer) == (sent, 0, sent)
        assert answer.body == b""

    def test_an_empty_queue_from_elsewhere(self, client: MemoryClient) -> None:
        client.send_message("orders", fields={"queue": 1})
        answer = client.ask_pull(offset=5)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert offsets(answer) == (0, 0, 0)

    @pytest.mark.parametrize("offset", [4, 5, 2**62])
    def test_beyond_the_end(self, client: MemoryClient, offset: int) -> None:
        send(client, "a", "b", "c")
        answer = client.ask_pull(offset=offset)
        assert (answer.code, answer.remark) == (
            ResponseCode.PULL_OFFSET_MOVED,
            "OFFSET_OVERFLOW_BADLY",
        )
        assert offsets(answer) == (3, 0, 3)

    @pytest.mark.parametrize("offset", [-1, 0, 1])
    def test_before_the_beginning(
        self, gateway: MemoryGateway, client: MemoryClient, offset: int
    ) -> None:
        send(client, "a", "b")
        gateway.jump(80 * 3_600_000)
        client = gateway.connect()
        send(client, "c")
        answer = client.ask_pull(offset=offset)
        assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL")
        assert offsets(answer) == (2, 2, 3)

    def test_a_queue_that_retention_emptied(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a", "b")
        gateway.jump(80 * 3_600_000)
        client = gateway.connect()
        answer = client.ask_pull(offset=2)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert offsets(answer) == (2, 2, 2)
        answer = client.ask_pull(offset=0)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert offsets(answer) == (2, 2, 2)

    @pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
    def test_either_request(self, client: MemoryClient, code: int) -> None:
        send(client, "a")
        assert client.ask(code, client.pull_request()).code == ResponseCode.SUCCESS

    def test_one_that_does_not_ask_to_wait(self, client: MemoryClient) -> None:
        send(client, "a")
        request = client.pull_request(offset=1) | {"suspendTimeoutMillis": "15000"}
        answer = client.ask(RequestCode.PULL_MESSAGE, request)
        assert answer.code == ResponseCode.PULL_NOT_FOUND

    def test_what_is_not_committed_is_not_seen(self, client: MemoryClient) -> None:
        send(client, "a")
        client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"in flight")
        opaque = client.send(RequestCode.PULL_MESSAGE, client.pull_request())
        answer = client.answer(opaque)
        assert answer is not None
        assert bodies(decode_messages(answer.body)) == ["a"]


class TestTags:
    @pytest.mark.parametrize(
        ("tags", "expected"),
        [
            ("*", ["red", "blue", "-", "red"]),
            (" * ", []),
            ("", ["red", "blue", "-", "red"]),
            ("red", ["red", "red"]),
            ("red||blue", ["red", "blue", "red"]),
            (" blue  ||  red ", ["red", "blue", "red"]),
            ("blue||none||", ["blue"]),
            (" || ", []),
        ],
    )
    def test_filter(self, client: MemoryClient, tags: str, expected: list[str]) -> None:
        send(client, "red", "blue", "", "red")
        answer = client.ask_pull(tags=tags)
        assert bodies(decode_messages(answer.body)) == expected
        assert offsets(answer) == (4, 0, 4)

    def test_nothing_matches(self, client: MemoryClient) -> None:
        send(client, "red", "blue", "")
        answer = client.ask_pull(tags="green")
        assert (answer.code, answer.remark) == (
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            "NO_MATCHED_MESSAGE",
        )
        assert offsets(answer) == (3, 0, 3)

    def test_no_subscription_given(self, client: MemoryClient) -> None:
        send(client, "red", "")
        ext = client.pull_request()
        del ext["subscription"]
        assert len(decode_messages(client.ask(RequestCode.PULL_MESSAGE, ext).body)) == 2

    def test_tags_with_one_hash_pass(self, client: MemoryClient) -> None:
        """As upstream: the client compares the tag itself."""
        send(client, "Aa", "BB", "C")
        assert bodies(client.pull(tags="Aa")) == ["Aa", "BB"]

    def test_tags_of_fired_messages(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message("orders", "1", TAGS="red", TIMER_DELAY_MS="10")
        client.send_message("orders", "2", TAGS="blue", TIMER_DELAY_MS="10")
        gateway.advance(10)
        assert bodies(client.pull(tags="blue")) == ["2"]

    def test_one_read_skips_only_so_many(self, client: MemoryClient) -> None:
        send(client, *["red"] * 2_500, "blue")
        answer = client.ask_pull(tags="blue", wait_ms=15_000)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        next_offset = offsets(answer)[0]
        assert 0 < next_offset < 2_500
        answer = client.ask_pull(tags="blue", offset=next_offset)
        assert bodies(decode_messages(answer.body)) == ["blue"]
        assert offsets(answer)[0] == 2_501


class TestLimits:
    @pytest.mark.parametrize(("most", "expected"), [(1, 1), (5, 5), (0, 1), (-4, 1), (900, 32)])
    def test_messages(self, client: MemoryClient, most: int, expected: int) -> None:
        send(client, *["a"] * 50)
        answer = client.ask_pull(most=most)
        assert len(decode_messages(answer.body)) == expected
        assert offsets(answer) == (expected, 0, 50)

    def test_messages_by_setting(self, make_gateway: MakeGateway) -> None:
        client = make_gateway(max_pull_messages=3).connect()
        send(client, *["a"] * 9)
        assert len(client.pull()) == 3

    def test_bytes(self, client: MemoryClient) -> None:
        for _ in range(4):
            client.send_message(body=bytes(100_000))
        answer = client.ask_pull()
        assert len(decode_messages(answer.body)) == 2
        assert len(answer.body) <= 256 * 1024

    def test_bytes_by_configuration(self, make_gateway: MakeGateway) -> None:
        client = make_gateway(max_pull_bytes=3_000).connect()
        for _ in range(4):
            client.send_message(body=bytes(1_000))
        assert [len(client.pull(most_bytes=most)) for most in (None, 2_000, 10_000)] == [2, 1, 2]

    @pytest.mark.parametrize(
        ("most_bytes", "expected"), [(1, 1), (0, 4), (-1, 4), (3_000, 2), (10_000, 4)]
    )
    def test_bytes_by_request(self, client: MemoryClient, most_bytes: int, expected: int) -> None:
        for _ in range(4):
            client.send_message(body=bytes(1_000))
        assert len(client.pull(most_bytes=most_bytes)) == expected

    def test_the_first_one_however_large(self, client: MemoryClient) -> None:
        client.send_message(body=bytes(1 << 20))
        client.send_message(body=b"small")
        assert [len(message.body) for message in client.pull()] == [1 << 20]


class TestChecks:
    def test_group_unknown(self, make_gateway: MakeGateway) -> None:
        client = make_gateway(auto_create_group=False).connect()
        answer = client.ask_pull()
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert answer.remark is not None
        assert answer.remark.startswith("subscription group [consumers] does not exist, \nSee ")

    @pytest.mark.parametrize("group", ["", "a b", "g" * 121])
    def test_group_that_cannot_be(self, client: MemoryClient, group: str) -> None:
        client.send_message()
        answer = client.ask_pull(group=group)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    def test_group_disabled(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message()
        body = b'{"groupName":"consumers","consumeEnable":false}'
        client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
        answer = client.ask_pull()
        assert (answer.code, answer.remark) == (
            ResponseCode.NO_PERMISSION,
            "subscription group no permission, consumers",
        )

    def test_topic_unknown(self, client: MemoryClient) -> None:
        answer = client.ask_pull("none")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert answer.remark is not None
        assert answer.remark.startswith("topic[none] not exist, apply first please! \nSee ")

    def test_topic_not_readable(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message()
        topic = gateway.service.broker.topics.get("orders")
        assert topic is not None
        topic.settings.perm = 2
        answer = client.ask_pull()
        assert (answer.code, answer.remark) == (
            ResponseCode.NO_PERMISSION,
            "the topic[orders] pulling message is forbidden",
        )

    @pytest.mark.parametrize("queue", [4, -1, 2**31 - 1])
    def test_queue_unknown(self, client: MemoryClient, queue: int) -> None:
        client.send_message()
        answer = client.ask_pull(queue=queue)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.remark == (
            f"queueId[{queue}] is illegal, topic:[orders] topicConfig.readQueueNums:[4] "
            f"consumer:[/{client.protocol.address}]"
        )

    def test_nothing_is_told_of_what_has_not_fired(self, client: MemoryClient) -> None:
        """Upstream lets any client read the parked messages of all topics."""
        client.send_message("orders", "secret", TIMER_DELAY_MS="1000")
        client.send_message("orders", "secret", DELAY="1")
        for topic in ("rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"):
            assert client.pull(topic) == []


class TestSubscriptionOfTheGroup:
    """A pull without a subscription uses the one in the group's heartbeats."""

    def test_nobody_is_there(self, client: MemoryClient) -> None:
        client.send_message()
        answer = client.ask_pull(tags=None)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        assert answer.remark is not None
        assert answer.remark.startswith("the consumer's group info not exist")

    def test_topic_not_subscribed(self, client: MemoryClient) -> None:
        client.send_message()
        client.heartbeat("c1", subscriptions={"bills": "*"})
        answer = client.ask_pull(tags=None)
        assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        assert answer.remark is not None
        assert answer.remark.startswith("the consumer's subscription not exist\nSee ")

    def test_older_than_the_request(self, client: MemoryClient) -> None:
        client.send_message()
        client.heartbeat("c1", sub_version=5)
        answer = client.ask_pull(tags=None, sub_version=6)
        assert (answer.code, answer.remark) == (
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            "the consumer's subscription not latest",
        )

    @pytest.mark.parametrize("sub_version", [0, 4, 5])
    def test_filter(self, client: MemoryClient, sub_version: int) -> None:
        send(client, "red", "blue")
        client.heartbeat("c1", subscriptions={"orders": "blue"}, sub_version=5)
        answer = client.ask_pull(tags=None, sub_version=sub_version)
        assert bodies(decode_messages(answer.body)) == ["blue"]


class TestCommitOffset:
    PLACE: ClassVar[dict[str, str]] = {
        "consumerGroup": "consumers",
        "topic": "orders",
        "queueId": "0",
    }

    def progress(self, client: MemoryClient) -> str | None:
        answer = client.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, self.PLACE | {"setZeroIfNotFound": "false"}
        )
        return answer.ext().get("offset")

    def test_is_noted(self, client: MemoryClient) -> None:
        send(client, "a", "b", "c")
        client.pull(offset=2, commit=1)
        assert self.progress(client) == "1"
        client.pull(offset=2, commit=0)
        assert self.progress(client) == "0"

    def test_not_without_the_bit(self, client: MemoryClient) -> None:
        send(client, "a")
        ext = client.pull_request() | {"commitOffset": "1"}
        client.ask(RequestCode.PULL_MESSAGE, ext)
        assert self.progress(client) is None

    def test_below_zero_means_none(self, client: MemoryClient) -> None:
        send(client, "a")
        assert client.ask_pull(commit=-1).code == ResponseCode.SUCCESS
        assert self.progress(client) is None

    def test_once_for_a_pull_that_waits(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a")
        waiting = client.park(offset=1, commit=1)
        client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, self.PLACE | {"commitOffset": "0"})
        send(client, "b")
        assert client.answer(waiting) is not None
        assert self.progress(client) == "0"

    def test_also_where_nothing_is_found(self, client: MemoryClient) -> None:
        send(client, "a")
        assert client.ask_pull(offset=9, commit=1).code == ResponseCode.PULL_OFFSET_MOVED
        assert self.progress(client) == "1"


@pytest.mark.parametrize(
    "name",
    [
        "consumerGroup",
        "topic",
        "queueId",
        "queueOffset",
        "maxMsgNums",
        "sysFlag",
    ],
)
def test_a_field_is_missing(client: MemoryClient, name: str) -> None:
    ext = client.pull_request()
    del ext[name]
    answer = client.ask(RequestCode.PULL_MESSAGE, ext)
    assert (answer.code, answer.remark) == (1, f"the field {name} is missing")


def test_fields_that_need_not_be_sent(client: MemoryClient) -> None:
    client.send_message()
    ext = client.pull_request()
    for name in ("commitOffset", "suspendTimeoutMillis", "subVersion"):
        del ext[name]
    assert client.ask(RequestCode.PULL_MESSAGE, ext).code == ResponseCode.SUCCESS
