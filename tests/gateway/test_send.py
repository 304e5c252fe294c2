"""Sends: every check of the real broker with its code and remark, the stored message, and the response."""

from __future__ import annotations

import json
import time

import pytest

from gateway.wire.codes import RequestCode, ResponseCode, SysFlag
from gateway.wire.messages import pack_host, parse_offset_msg_id
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import (
    START_MS,
    MemoryClient,
    MemoryGateway,
    bodies,
    properties_of,
    property_string,
)
from tests.gateway.tools import create_topic, ok


class TestAccepted:
    def test_answer(self, client: MemoryClient) -> None:
        answer = client.send_message(UNIQ_KEY="ID1", fields={"queue": 3})
        assert answer.code == ResponseCode.SUCCESS
        ext = answer.ext()
        assert ext["queueId"] == "3"
        assert ext["queueOffset"] == "0"
        assert ext["transactionId"] == "ID1"
        assert ext["MSG_REGION"] == "DefaultRegion"
        assert ext["TRACE_ON"] == "true"
        assert "recallHandle" not in ext
        host, _ = parse_offset_msg_id(ext["msgId"])
        assert host == pack_host("127.0.0.1", 9876)

    def test_record(self, gateway: MemoryGateway) -> None:
        client = gateway.connect("192.0.2.9")
        gateway.advance(40)
        answer = client.send_message(
            body="text", UNIQ_KEY="ID1", TAGS="red", KEYS="k1 k2", colour="blue"
        )
        [message] = client.pull()
        assert message.body == b"text"
        assert message.topic == "orders"
        assert message.queue_id == 0
        assert message.queue_offset == 0
        assert message.flag == 9
        assert message.born_ms == START_MS - 7
        assert message.store_ms == START_MS + 40
        assert message.born_host[:4] == pack_host("192.0.2.9", 0)[:4]
        assert message.store_host == pack_host("127.0.0.1", 9876)
        assert message.physical_offset == parse_offset_msg_id(answer.ext()["msgId"])[1]
        assert properties_of(message) == {
            "UNIQ_KEY": "ID1",
            "TAGS": "red",
            "KEYS": "k1 k2",
            "colour": "blue",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "CLUSTER": "DefaultCluster",
        }

    def test_an_id_is_made_where_the_client_gives_none(self, client: MemoryClient) -> None:
        first = client.send_message().ext()["transactionId"]
        second = client.send_message().ext()["transactionId"]
        assert first != second
        born = time.localtime(START_MS // 1_000)
        month = time.mktime((born.tm_year, born.tm_mon, 1, 0, 0, 0, 0, 0, -1))
        assert int(first[20:28], 16) == START_MS - month * 1_000
        assert [properties_of(message)["UNIQ_KEY"] for message in client.pull()] == [first, second]

    def test_properties_without_the_last_separator(self, client: MemoryClient) -> None:
        client.send_message(fields={"properties": "TAGS\x01red\x02UNIQ_KEY\x01ID1"})
        [message] = client.pull()
        assert properties_of(message)["UNIQ_KEY"] == "ID1"
        assert properties_of(message)["MSG_REGION"] == "DefaultRegion"

    def test_a_handle_of_a_pop_is_dropped_and_all_else_kept(self, client: MemoryClient) -> None:
        client.send_message(properties={"__RMQ.TRANSIENT.a": "1"}, POP_CK="handle")
        properties = properties_of(client.pull()[0])
        assert properties["__RMQ.TRANSIENT.a"] == "1"
        assert "POP_CK" not in properties

    def test_offsets_count_per_queue(self, client: MemoryClient) -> None:
        offsets = [
            client.send_message(fields={"queue": queue}).ext()["queueOffset"]
            for queue in (0, 1, 0, 1, 1)
        ]
        assert offsets == ["0", "0", "1", "1", "2"]

    def test_the_long_names_of_request_10(self, client: MemoryClient) -> None:
        ext = {
            "producerGroup": "producers",
            "topic": "orders",
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": "2",
            "sysFlag": "0",
            "bornTimestamp": str(START_MS),
            "flag": "0",
            "properties": property_string({"TAGS": "red"}),
        }
        answer = client.ask(RequestCode.SEND_MESSAGE, ext, b"go")
        assert (answer.code, answer.ext()["queueId"]) == (0, "2")
        assert bodies(client.pull(queue=2)) == ["go"]

    def test_a_compressed_body_is_kept_as_it_is(self, client: MemoryClient) -> None:
        flags = SysFlag.COMPRESSED | SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
        client.send_message(body=b"\x78\x9c\x00", fields={"sys_flag": flags})
        [message] = client.pull()
        assert message.body == b"\x78\x9c\x00"
        # The hosts are IPv4, so these flags must be cleared.
        assert message.sys_flag == SysFlag.COMPRESSED

    def test_several_in_one_read(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        ext = client.send_fields()
        opaques = [client.send(RequestCode.SEND_MESSAGE_V2, ext, f"{n}".encode()) for n in range(5)]
        offsets = []
        for opaque in opaques:
            answer = client.answer(opaque)
            assert answer is not None
            offsets.append(answer.ext()["queueOffset"])
        assert offsets == ["0", "1", "2", "3", "4"]
        assert bodies(client.pull()) == ["0", "1", "2", "3", "4"]

    def test_not_answered_before_the_turn_ends(self, client: MemoryClient) -> None:
        client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"hello")
        assert client.transport.value() == b""
        assert len(client.take()) == 1

    def test_answers_of_one_turn_leave_in_one_write(
        self, client: MemoryClient, writes: list[bytes]
    ) -> None:
        for _ in range(5):
            client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"hello")
        assert len(client.take()) == 5
        assert len(writes) == 1

    def test_oneway(self, client: MemoryClient) -> None:
        client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"hello", oneway=True)
        assert client.take() == []
        assert bodies(client.pull()) == ["hello"]

    def test_oneway_that_is_refused(self, client: MemoryClient) -> None:
        client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields("a topic"), b"x", oneway=True)
        assert client.take() == []
        assert client.send_message().code == ResponseCode.SUCCESS

    def test_a_message_survives_a_crash(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message(UNIQ_KEY="ID1")
        gateway.crash()
        client = gateway.connect()
        assert [properties_of(one)["UNIQ_KEY"] for one in client.pull()] == ["ID1"]
        assert client.send_message().ext()["queueOffset"] == "1"

    def test_what_was_not_answered_is_lost_in_a_crash(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message("orders", "kept")
        client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"in flight")
        assert client.transport.value() == b""
        gateway.crash()
        assert bodies(gateway.connect().pull()) == ["kept"]


class TestQueue:
    @pytest.mark.parametrize("queue", [4, 5, 2**31 - 1])
    def test_unknown(self, client: MemoryClient, queue: int) -> None:
        client.send_message()
        answer = client.send_message(fields={"queue": queue})
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.remark is not None
        assert answer.remark.startswith(f"request queueId[{queue}] is illegal, TopicConfig [")
        assert f"Producer: {client.protocol.address}" in answer.remark
        assert answer.ext() == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}

    @pytest.mark.parametrize("queue", [-1, -(2**31)])
    def test_below_zero_is_the_gateways_choice(self, client: MemoryClient, queue: int) -> None:
        chosen = {client.send_message(fields={"queue": queue}).ext()["queueId"] for _ in range(80)}
        assert chosen == {"0", "1", "2", "3"}
        pages = [client.pull(queue=n, offset=offset) for n in range(4) for offset in (0, 32, 64)]
        assert sum(len(page) for page in pages) == 80

    def test_of_one_queue_there_is_no_choice(self, client: MemoryClient) -> None:
        ok(create_topic(client, "single", 1))
        answers = [client.send_message("single", fields={"queue": -1}) for _ in range(20)]
        assert {answer.ext()["queueId"] for answer in answers} == {"0"}


class TestPriority:
    @pytest.mark.parametrize(
        ("priority", "queue"),
        [
            ("0", "0"),
            ("2", "2"),
            ("7", "3"),
            ("2147483647", "3"),
            ("+2", "2"),
            ("0" * 5_000 + "2", "2"),
            ("٢", "2"),
        ],
    )
    def test_is_the_number_of_the_queue(
        self, client: MemoryClient, priority: str, queue: str
    ) -> None:
        answer = client.send_message(_SYS_MSG_PRIORITY_=priority, fields={"queue": 1})
        assert answer.ext()["queueId"] == queue
        [message] = client.pull(queue=int(queue))
        assert properties_of(message)["_SYS_MSG_PRIORITY_"] == priority

    @pytest.mark.parametrize("priority", ["-1", "high", "1.0", "2147483648", "9" * 5_000])
    def test_that_is_none(self, client: MemoryClient, priority: str) -> None:
        answer = client.send_message(_SYS_MSG_PRIORITY_=priority, fields={"queue": 1})
        assert answer.ext()["queueId"] == "1"

    @pytest.mark.parametrize(
        "other", [{"DELAY": "0"}, {"TIMER_DELIVER_MS": "1"}, {"__SHARDINGKEY": "k"}]
    )
    def test_is_dropped_where_another_order_counts(
        self, client: MemoryClient, other: dict[str, str]
    ) -> None:
        answer = client.send_message(properties=other, _SYS_MSG_PRIORITY_="3", fields={"queue": 1})
        assert answer.ext()["queueId"] == "1"
        [message] = client.pull(queue=1)
        assert other.items() <= properties_of(message).items()
        assert "_SYS_MSG_PRIORITY_" not in properties_of(message)

    def test_is_dropped_in_a_transaction(self, client: MemoryClient) -> None:
        half = client.send_message(
            _SYS_MSG_PRIORITY_="3", TRAN_MSG="true", PGROUP="makers", fields={"queue": 1}
        ).ext()
        place = str(parse_offset_msg_id(half["msgId"])[1])
        decision = {
            "producerGroup": "makers",
            "tranStateTableOffset": place,
            "commitLogOffset": place,
            "commitOrRollback": "8",
        }
        ok(client.ask(RequestCode.END_TRANSACTION, decision))
        [message] = client.pull(queue=1)
        assert "_SYS_MSG_PRIORITY_" not in properties_of(message)


class TestTopic:
    @pytest.mark.parametrize("topic", ["", "  "])
    def test_blank(self, client: MemoryClient, topic: str) -> None:
        answer = client.send_message(topic)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.remark == "The specified topic is blank."

    @pytest.mark.parametrize("topic", ["a b", "a.b", "töpic", "a/b", "a\x00b", "a\n"])
    def test_illegal_characters(self, client: MemoryClient, topic: str) -> None:
        answer = client.send_message(topic)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.remark == (
            f"The specified topic: {topic}, contains illegal characters, "
            "allowing only ^[%|a-zA-Z0-9_-]+$"
        )

    def test_length(self, client: MemoryClient) -> None:
        assert client.send_message("t" * 127).code == ResponseCode.SUCCESS
        answer = client.send_message("t" * 128)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.remark == (
            f"The specified topic: {'t' * 128}, is longer than topic max length: 127"
        )

    @pytest.mark.parametrize(
        "topic",
        [
            "SCHEDULE_TOPIC_XXXX",
            "RMQ_SYS_TRANS_HALF_TOPIC",
            "RMQ_SYS_TRANS_OP_HALF_TOPIC",
            "TRANS_CHECK_MAX_TIME_TOPIC",
            "SELF_TEST_TOPIC",
            "OFFSET_MOVED_EVENT",
            "rmq_sys_wheel_timer",
        ],
    )
    def test_forbidden(self, gateway: MemoryGateway, client: MemoryClient, topic: str) -> None:
        known = set(gateway.service.broker.topics.names())
        answer = client.send_message(topic)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == f"Sending message to topic[{topic}] is forbidden."
        assert set(gateway.service.broker.topics.names()) == known

    def test_created_by_the_first_send(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message("new", fields={"topic_queues": 3})
        topic = gateway.service.broker.topics.get("new")
        assert topic is not None
        settings = topic.settings
        assert (settings.read_queue_nums, settings.write_queue_nums, settings.perm) == (3, 3, 6)

    def test_the_template_bounds_the_queues(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message("new", fields={"topic_queues": 100})
        topic = gateway.service.broker.topics.get("new")
        assert topic is not None
        assert topic.settings.write_queue_nums == 8

    @pytest.mark.parametrize("queues", [0, -1])
    def test_no_queues(self, client: MemoryClient, queues: int) -> None:
        answer = client.send_message("new", fields={"topic_queues": queues})
        assert answer.code == ResponseCode.INVALID_PARAMETER

    def test_survives_a_restart(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message("new", fields={"topic_queues": 3})
        gateway.restart()
        client = gateway.connect()
        assert client.send_message("new", fields={"queue": 3}).code == (
            ResponseCode.INVALID_PARAMETER
        )
        assert client.send_message("new", fields={"queue": 2}).code == ResponseCode.SUCCESS

    def test_creation_switched_off(self, make_gateway: MakeGateway) -> None:
        answer = make_gateway(auto_create_topic=False).connect().send_message("new")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert answer.remark == (
            "topic[new] not exist, apply first please!\n"
            "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
        )

    @pytest.mark.parametrize("template", ["no-such-topic", "orders"])
    def test_a_template_that_passes_nothing_on(self, client: MemoryClient, template: str) -> None:
        client.send_message("orders")
        answer = client.send_message("new", fields={"template": template})
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST

    def test_without_write_permission_what_still_comes_is_taken(self, client: MemoryClient) -> None:
        ok(create_topic(client, "orders", 4, perm="4"))
        ok(client.send_message(body="alone"))
        ok(client.send_batch([("in a batch", {})]))
        assert bodies(client.pull()) == ["alone", "in a batch"]


class TestSize:
    LIMITS = (
        "the message is illegal, maybe msg body or properties length not matched. "
        "msg body length limit 4194304B, msg properties length limit 32KB."
    )

    def test_the_largest_body(self, client: MemoryClient) -> None:
        assert client.send_message(body=bytes(4 << 20)).code == ResponseCode.SUCCESS
        assert len(client.pull()[0].body) == 4 << 20

    def test_a_larger_body(self, client: MemoryClient) -> None:
        answer = client.send_message(body=bytes((4 << 20) + 1))
        assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, self.LIMITS)

    def test_no_body(self, client: MemoryClient) -> None:
        answer = client.send_message(body=b"")
        assert (answer.code, answer.ext()) == (ResponseCode.SYSTEM_ERROR, {})
        assert answer.remark is not None
        assert "body" in answer.remark

    def test_without_a_body_no_topic_is_made(self, client: MemoryClient) -> None:
        assert client.send_message("new", b"").code == ResponseCode.SYSTEM_ERROR
        made = client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "new"})
        assert made.code == ResponseCode.TOPIC_NOT_EXIST

    def test_properties(self, client: MemoryClient) -> None:
        assert client.send_message(p="x" * 32_600).code == ResponseCode.SUCCESS
        assert properties_of(client.pull()[0])["p"] == "x" * 32_600
        answer = client.send_message(p="x" * 33_000)
        assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, self.LIMITS)

    def test_properties_are_counted_in_bytes(self, client: MemoryClient) -> None:
        assert client.send_message(p="é" * 16_300).code == ResponseCode.SUCCESS
        assert client.send_message(p="é" * 16_400).code == ResponseCode.MESSAGE_ILLEGAL

    def test_what_the_gateway_adds_counts(self, client: MemoryClient) -> None:
        client.send_message(UNIQ_KEY="ID1", p="x")
        added = len(client.pull()[0].properties) - 1
        fits = "x" * (32_767 - added)
        assert client.send_message(UNIQ_KEY="ID1", p=fits).code == ResponseCode.SUCCESS
        answer = client.send_message(UNIQ_KEY="ID1", p=fits + "x")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL

    def test_another_limit(self, make_gateway: MakeGateway) -> None:
        client = make_gateway(max_message_size=2048).connect()
        assert client.send_message(body=bytes(2048)).code == ResponseCode.SUCCESS
        answer = client.send_message(body=bytes(2049))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert answer.remark is not None
        assert "2048B" in answer.remark


class TestBatchInOneRecord:
    @pytest.mark.parametrize(
        ("sys_flag", "properties"),
        [(0x80, ""), (0x80, "INNER_NUM\x012\x02"), (0, "INNER_NUM\x012\x02")],
    )
    def test_is_refused(self, client: MemoryClient, sys_flag: int, properties: str) -> None:
        """Consumers would split its body."""
        fields = client.send_fields(sys_flag=sys_flag, properties=properties)
        answer = client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"hello")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "INNER_NUM" in (answer.remark or "")

    def test_other_names_that_begin_so_are_not(self, client: MemoryClient) -> None:
        fields = client.send_fields(properties="MY_INNER_NUMBER\x012\x02")
        assert client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"hello").code == 0


class TestRetryTopics:
    TOPIC = "%RETRY%workers"

    def test_the_group_must_exist(self, make_gateway: MakeGateway) -> None:
        client = make_gateway(auto_create_group=False).connect()
        answer = client.send_message(self.TOPIC)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert answer.remark is not None
        assert answer.remark.startswith("subscription group not exist, workers ")

    def test_the_group_comes_to_be(self, client: MemoryClient) -> None:
        assert client.send_message(self.TOPIC).code == ResponseCode.SUCCESS
        assert bodies(client.pull(self.TOPIC)) == ["hello"]

    @pytest.mark.parametrize("topic", [TOPIC, "%DLQ%workers"])
    def test_it_comes_to_be_with_the_queues_that_its_sender_chose_from(
        self, client: MemoryClient, topic: str
    ) -> None:
        """The sender has the template's route, as for any other topic that there is not yet."""
        ok(client.send_message(topic, fields={"queue": 3}))
        assert bodies(client.pull(topic, 3)) == ["hello"]
        answer = client.send_message(topic, fields={"queue": 4})
        assert answer.code == ResponseCode.INVALID_PARAMETER

    @pytest.mark.parametrize("topic", [TOPIC, "%DLQ%workers"])
    def test_it_comes_to_be_with_one_queue_where_sends_create_no_topics(
        self, make_gateway: MakeGateway, topic: str
    ) -> None:
        client = make_gateway(auto_create_topic=False).connect()
        assert client.send_message(topic).code == ResponseCode.SUCCESS
        answer = client.send_message(topic, fields={"queue": 1})
        assert answer.code == ResponseCode.INVALID_PARAMETER

    @pytest.mark.parametrize(
        ("reconsume", "most", "version", "dead"),
        [
            (16, None, 513, False),
            (17, None, 513, True),
            (3, 3, 513, False),
            (4, 3, 513, True),
            (20, 30, 121, False),
            # Clients before V3_4_9 do not send a maximum: the group's setting counts.
            (4, 3, 120, False),
            (20, 30, 120, True),
        ],
    )
    def test_past_the_last_retry_a_message_is_dead(
        self, client: MemoryClient, reconsume: int, most: int | None, version: int, dead: bool
    ) -> None:
        fields = {"reconsume": reconsume, "max_reconsume": most}
        answer = client.send_message(self.TOPIC, version=version, fields=fields)
        assert answer.code == ResponseCode.SUCCESS
        topic = "%DLQ%workers" if dead else self.TOPIC
        [message] = client.pull(topic)
        assert message.reconsume_times == reconsume
        assert message.topic == topic

    def test_whatever_queue_it_came_to_a_dead_one_is_where_it_is_looked_for(
        self, client: MemoryClient
    ) -> None:
        ok(create_topic(client, self.TOPIC, 4))
        ok(client.send_message(self.TOPIC, "dead", fields={"queue": 3, "reconsume": 17}))
        assert bodies(client.pull("%DLQ%workers", 0)) == ["dead"]

    @pytest.mark.parametrize(
        "asked",
        [
            {"DELAY": "5"},
            {"DELAY": "5", "TIMER_DELAY_MS": "60000", "__STARTDELIVERTIME": str(2**60)},
            {},
        ],
    )
    def test_a_dead_one_waits_for_nothing(
        self, client: MemoryClient, asked: dict[str, str]
    ) -> None:
        """An orderly consumer's client sends it with the delay of one more retry."""
        answer = client.send_message(self.TOPIC, properties=asked, fields={"reconsume": 17})
        assert "recallHandle" not in answer.ext()
        [dead] = client.pull("%DLQ%workers")
        found = properties_of(dead)
        assert found["DELAY"] == "-1"
        assert not {"TIMER_DELAY_MS", "__STARTDELIVERTIME", "REAL_TOPIC"} & set(found)

    def test_a_delayed_retry_has_no_handle(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        answer = client.send_message(self.TOPIC, DELAY="3", RETRY_TOPIC="orders")
        assert "recallHandle" not in answer.ext()
        gateway.advance(9_999)
        assert client.pull(self.TOPIC) == []
        gateway.advance(1)
        assert properties_of(client.pull(self.TOPIC)[0])["RETRY_TOPIC"] == "orders"

    @pytest.mark.parametrize("properties", [{}, {"TRAN_MSG": "true", "PGROUP": "P"}])
    @pytest.mark.parametrize("topic", [TOPIC, "%DLQ%workers"])
    def test_one_may_be_longer_than_new_messages_by_now(
        self, make_gateway: MakeGateway, topic: str, properties: dict[str, str]
    ) -> None:
        """Clients before 4.6.1 leave it on a message that it was half of a transaction."""
        client = make_gateway(max_message_size=2048).connect()
        fields = {"reconsume": 1 if topic == self.TOPIC else 17}
        body = "x" * 2049
        ok(client.send_message(self.TOPIC, body, properties, DELAY="-1", fields=fields))
        assert bodies(client.pull(topic)) == [body]

    def test_long_names(self, client: MemoryClient) -> None:
        topic = "%RETRY%" + "g" * 120
        assert client.send_message(topic).code == ResponseCode.SUCCESS
        assert client.pull(topic)[0].topic == topic
        answer = client.send_message(topic + "g")
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert client.send_message("%RETRY%" + "g" * 249).code == ResponseCode.INVALID_PARAMETER


class TestFields:
    @pytest.mark.parametrize("name", list("befgh"))
    def test_missing(self, client: MemoryClient, name: str) -> None:
        ext = client.send_fields()
        del ext[name]
        answer = client.ask(RequestCode.SEND_MESSAGE_V2, ext, b"x")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert answer.remark.startswith(f"the field {name} ")

    @pytest.mark.parametrize(("name", "queues"), [("a", 2), ("c", None), ("d", 4)])
    def test_not_needed(self, client: MemoryClient, name: str, queues: int | None) -> None:
        """Without these fields a client can send to an existing topic. Only a new topic needs the template."""
        client.send_message()
        ext = client.send_fields() | {"d": "2"}
        del ext[name]
        assert client.ask(RequestCode.SEND_MESSAGE_V2, ext, b"x").code == ResponseCode.SUCCESS
        new = client.ask(RequestCode.SEND_MESSAGE_V2, ext | {"b": "new"}, b"x")
        made = client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "new"})
        if queues is None:
            assert (new.code, made.code) == (ResponseCode.TOPIC_NOT_EXIST,) * 2
        else:
            assert (new.code, json.loads(made.body)["writeQueueNums"]) == (0, queues)

    @pytest.mark.parametrize("name", list("defghj"))
    def test_not_a_number(self, client: MemoryClient, name: str) -> None:
        answer = client.ask(
            RequestCode.SEND_MESSAGE_V2, client.send_fields() | {name: "four"}, b"x"
        )
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark is not None
        assert "'four'" in answer.remark
