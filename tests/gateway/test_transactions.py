"""Transactions: halves, decisions, checks, delays that begin with the commit, and what survives restarts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from twisted.logger import LogLevel, capturedLogs, formatEvent

from gateway.clients import Client, Clients
from gateway.connections.connection import RemotingConnection
from gateway.handlers import transactions
from gateway.topics import CHECKED_OUT_TOPIC, HALF_TOPIC
from gateway.wire.codes import RequestCode, ResponseCode, SysFlag
from gateway.wire.messages import Message, decode_message
from storage import find_half
from storage.keys import queue_prefix
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import damaged_row
from tests.gateway.memory import MemoryClient, MemoryGateway, bodies, properties_of
from tests.gateway.tools import query
from tests.gateway.transactions import (
    COMMIT,
    GROUP,
    ROLLBACK,
    UNKNOWN,
    Half,
    begin,
    checks,
    decision,
    end,
    prepared,
    produce,
)

SECOND = 1_000


def view(client: MemoryClient, offset: int) -> Message:
    """Return the message at a physical offset (33)."""
    answer = client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return decode_message(answer.body)


class TestHalves:
    def test_nobody_sees_a_half(self, client: MemoryClient) -> None:
        half = begin(client, KEYS="k1")

        assert client.pull() == []
        assert client.look_up(topic="orders") == []
        assert client.look_up(id=half.id) == []
        assert query(client, "k1").code == ResponseCode.QUERY_NOT_FOUND

    def test_its_producer_is_told_how_to_name_it(self, client: MemoryClient) -> None:
        half = begin(client, UNIQ_KEY="ID1")
        assert half.id == "ID1"
        assert half.ext["queueId"] == "0"
        assert "recallHandle" not in half.ext

    def test_a_half_can_be_viewed_where_it_waits(self, client: MemoryClient) -> None:
        half = begin(client, "pay", UNIQ_KEY="ID1", TAGS="a")

        record = view(client, half.offset)

        assert (record.topic, record.queue_id, record.queue_offset) == (HALF_TOPIC, 0, half.place)
        assert record.sys_flag == 0
        assert record.body == b"pay"
        found = properties_of(record)
        assert found["REAL_TOPIC"] == "orders"
        assert found["REAL_QID"] == "0"
        assert found["__transactionId__"] == "ID1"
        assert found["TAGS"] == "a"
        assert found["PGROUP"] == GROUP

    def test_a_half_is_on_disk_before_its_answer(self, gateway: MemoryGateway) -> None:
        client = gateway.connect()
        ext = client.send_fields(sys_flag=4, properties=f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}")
        opaque = client.send(RequestCode.SEND_MESSAGE_V2, ext, b"pay")
        assert client.transport.value() == b"", "the answer waits for the commit"
        answer = client.answer(opaque)
        assert answer is not None
        gateway.crash()
        assert find_half(gateway.store, Half(answer).offset) is not None

    @pytest.mark.parametrize("flag", [0, 4])
    def test_the_property_decides_not_the_flag(self, client: MemoryClient, flag: int) -> None:
        half = Half(client.send_message(TRAN_MSG="true", PGROUP=GROUP, fields={"sys_flag": flag}))
        assert client.pull() == []
        end(client, half, COMMIT)
        assert bodies(client.pull()) == ["hello"]

    @pytest.mark.parametrize("text", ["True", "TRUE"])
    def test_the_property_is_read_as_java_reads_it(self, client: MemoryClient, text: str) -> None:
        half = begin(client, TRAN_MSG=text)
        assert client.pull() == []
        end(client, half, COMMIT)
        assert bodies(client.pull()) == ["pay"]

    @pytest.mark.parametrize("flag", [4, 12])
    def test_a_flag_without_the_property_is_refused(self, client: MemoryClient, flag: int) -> None:
        answer = client.send_message(fields={"sys_flag": flag})
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert answer.remark is not None
        assert "TRAN_MSG" in answer.remark

    def test_a_flag_with_the_propertys_name_elsewhere_is_refused(
        self, client: MemoryClient
    ) -> None:
        answer = client.send_message(NOTE="TRAN_MSG", fields={"sys_flag": 4})
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL

    @pytest.mark.parametrize("sys_flag", [0, SysFlag.TRANSACTION_PREPARED])
    def test_a_message_that_is_retried_is_no_half(
        self, client: MemoryClient, sys_flag: int
    ) -> None:
        client.heartbeat("c1", "consumers")
        fields = {"reconsume": 1, "sys_flag": sys_flag}
        client.send_message(
            "%RETRY%consumers", TRAN_MSG="true", PGROUP=GROUP, DELAY="1", fields=fields
        )
        (found,) = client.look_up(topic="%RETRY%consumers")
        assert found["state"] == "pending"

    def test_a_message_that_is_no_transaction_says_so(self, client: MemoryClient) -> None:
        client.send_message(TRAN_MSG="false")
        assert bodies(client.pull()) == ["hello"]

    def test_they_can_be_refused_altogether(self, make_gateway: MakeGateway) -> None:
        client = make_gateway(reject_transactions=True).connect()
        answer = client.send_message(fields=prepared())
        assert answer.code == ResponseCode.NO_PERMISSION
        assert client.send_message().code == ResponseCode.SUCCESS

    def test_a_transaction_cannot_be_an_order_to_abort(self, client: MemoryClient) -> None:
        answer = client.send_message(
            TRAN_MSG="true", PGROUP=GROUP, TIMER_DEL_UNIQKEY="x", TIMER_DELAY_SEC="5"
        )
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL

    @pytest.mark.parametrize("delay", [{"DELAY": "soon"}, {"TIMER_DELAY_SEC": "999999999"}])
    def test_a_delay_that_cannot_be_is_refused_at_once(
        self, client: MemoryClient, delay: dict[str, str]
    ) -> None:
        answer = client.send_message(fields=prepared(**delay))
        assert answer.code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR)

    def test_what_would_outgrow_its_record_later_is_refused_at_once(
        self, client: MemoryClient
    ) -> None:
        refused = accepted = 0
        for size in range(32_300, 32_767, 8):
            answer = client.send_message(
                TRAN_MSG="true", PGROUP=GROUP, x="x" * size, TIMER_DELAY_SEC="5", UNIQ_KEY="I"
            )
            if answer.code != ResponseCode.SUCCESS:
                refused += 1
                continue
            accepted += 1
            assert end(client, Half(answer), COMMIT).code == ResponseCode.SUCCESS
        assert refused
        assert accepted
        assert len(client.look_up(topic="orders")) == accepted


class TestDecisions:
    def test_a_committed_message_is_delivered(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        half = begin(client, "pay", UNIQ_KEY="ID1", TAGS="a", KEYS="k1")
        gateway.advance(3 * SECOND)

        assert end(client, half, COMMIT).code == ResponseCode.SUCCESS

        (message,) = client.pull()
        assert message.body == b"pay"
        assert (message.topic, message.queue_id, message.queue_offset) == ("orders", 0, 0)
        assert message.sys_flag == COMMIT
        assert message.prepared_offset == half.place
        assert message.store_ms == gateway.now_ms
        found = properties_of(message)
        assert not {"REAL_TOPIC", "REAL_QID"} & set(found)
        assert found["TRAN_MSG"] == "true"
        assert found["__transactionId__"] == found["UNIQ_KEY"] == "ID1"
        assert found["MSG_REGION"] == "DefaultRegion"
        assert client.pull(tags="a") == client.pull()
        assert client.pull(tags="b") == []

    def test_what_its_sender_set_is_kept(self, client: MemoryClient) -> None:
        plain = client.send_message("orders", "pay", UNIQ_KEY="ID1", TAGS="a")
        assert plain.code == ResponseCode.SUCCESS
        half = begin(client, "pay", UNIQ_KEY="ID2", TAGS="a")
        end(client, half, COMMIT)

        ordinary, committed = client.pull()

        for name in ("flag", "born_ms", "born_host", "reconsume_times", "body_crc", "store_host"):
            assert getattr(ordinary, name) == getattr(committed, name), name
        assert set(properties_of(committed)) - set(properties_of(ordinary)) == {
            "TRAN_MSG",
            "PGROUP",
            "__transactionId__",
        }

    def test_its_offset_id_stays(self, client: MemoryClient) -> None:
        half = begin(client)
        end(client, half, COMMIT)
        (message,) = client.pull()
        assert message.physical_offset == half.offset
        assert view(client, half.offset).topic == "orders"

    def test_a_waiting_consumer_gets_it_with_the_commit(self, gateway: MemoryGateway) -> None:
        producer, consumer = gateway.connect(), gateway.connect()
        producer.send_message("orders", "first")
        half = begin(producer)
        opaque = consumer.park("orders", 0, 1)
        end(producer, half, COMMIT)
        answer = consumer.answer(opaque)
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS

    def test_a_message_taken_back_is_never_delivered(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        produce(client)
        half = begin(client)
        assert end(client, half, ROLLBACK).code == ResponseCode.SUCCESS
        gateway.advance(100 * SECOND)
        assert client.pull() == []
        assert checks(client) == []
        answer = client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(half.offset)})
        assert answer.code == ResponseCode.SYSTEM_ERROR

    @pytest.mark.parametrize("outcome", [4, 77, -1])
    def test_what_is_no_decision_is_refused(self, client: MemoryClient, outcome: int) -> None:
        half = begin(client)
        answer = end(client, half, outcome)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"the field commitOrRollback is 8, 12 or 0, not {outcome}",
        )
        assert client.pull() == []
        assert end(client, half, COMMIT).code == ResponseCode.SUCCESS

    def test_a_producer_that_does_not_know_decides_nothing(self, client: MemoryClient) -> None:
        half = begin(client)
        assert end(client, half, UNKNOWN).code == ResponseCode.SUCCESS
        assert client.pull() == []
        end(client, half, COMMIT)
        assert len(client.pull()) == 1

    @pytest.mark.parametrize("name", ["msgId", "transactionId", "topic", "fromTransactionCheck"])
    def test_what_a_decision_need_not_say(self, client: MemoryClient, name: str) -> None:
        fields = decision(begin(client), COMMIT, topic="orders")
        del fields[name]
        assert client.ask(RequestCode.END_TRANSACTION, fields).code == ResponseCode.SUCCESS
        assert bodies(client.pull()) == ["pay"]

    def test_java_and_go_decide_without_an_answer(self, client: MemoryClient) -> None:
        half = begin(client)
        opaque = client.send(RequestCode.END_TRANSACTION, decision(half, COMMIT), oneway=True)
        assert client.answer(opaque) is None
        assert bodies(client.pull()) == ["pay"]

    def test_a_half_is_decided_once(self, client: MemoryClient) -> None:
        half = begin(client)
        end(client, half, COMMIT)
        for outcome in (COMMIT, ROLLBACK):
            answer = end(client, half, outcome)
            assert answer.remark == "Find prepared transaction message failed"
        assert len(client.pull()) == 1

    def test_two_decisions_in_one_turn_count_once(self, client: MemoryClient) -> None:
        half = begin(client)
        first = client.send(RequestCode.END_TRANSACTION, decision(half, COMMIT))
        second = client.send(RequestCode.END_TRANSACTION, decision(half, ROLLBACK))
        third = client.send(RequestCode.END_TRANSACTION, decision(half, COMMIT))
        codes = [answer.code for answer in map(client.answer, (first, second, third)) if answer]
        assert codes == [0, 1, 1]
        assert len(client.pull()) == 1

    @pytest.mark.parametrize(
        ("changes", "remark"),
        [
            ({"producerGroup": "thieves"}, "The producer group wrong"),
            ({"tranStateTableOffset": "99"}, "The transaction state table offset wrong"),
            ({"commitLogOffset": "99"}, "Find prepared transaction message failed"),
            ({"commitLogOffset": "-1"}, "Find prepared transaction message failed"),
        ],
    )
    def test_a_wrong_decision_changes_nothing(
        self, client: MemoryClient, changes: dict[str, str], remark: str
    ) -> None:
        half = begin(client)
        for outcome in (COMMIT, ROLLBACK):
            answer = end(client, half, outcome, **changes)
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
        assert client.pull() == []
        end(client, half, COMMIT)
        assert len(client.pull()) == 1

    def test_an_ordinary_message_is_no_half(self, client: MemoryClient) -> None:
        half = Half(client.send_message())
        for outcome in (COMMIT, ROLLBACK):
            assert end(client, half, outcome).code == ResponseCode.SYSTEM_ERROR
        assert len(client.pull()) == 1

    def test_the_topic_was_deleted_meanwhile(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        half = begin(client)
        client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
        assert end(client, half, COMMIT).code == ResponseCode.SUCCESS
        gateway.check()
        gateway.advance(60 * SECOND)


class TestDelays:
    def test_a_relative_delay_begins_with_the_commit(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        half = begin(client, TIMER_DELAY_SEC="10", UNIQ_KEY="ID1")
        gateway.advance(5 * SECOND)
        end(client, half, COMMIT)
        due_ms = gateway.now_ms + 10 * SECOND

        (found,) = client.look_up(id="ID1")
        assert (found["state"], found["dueMs"]) == ("pending", due_ms)

        gateway.advance(10 * SECOND - 1)
        assert client.pull() == []
        gateway.advance(1)
        (message,) = client.pull()
        assert message.store_ms == due_ms
        assert properties_of(message)["TIMER_OUT_MS"] == str(due_ms)
        assert message.sys_flag == COMMIT

    def test_so_does_a_level(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        half = begin(client, DELAY="2")
        gateway.advance(60 * SECOND)
        end(client, half, COMMIT)
        gateway.advance(5 * SECOND - 1)
        assert client.pull() == []
        gateway.advance(1)
        (message,) = client.pull()
        found = properties_of(message)
        assert found["DELAY"] == "2"
        assert found["REAL_TOPIC"] == "orders"

    def test_an_absolute_time_is_as_asked(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        due_ms = gateway.now_ms + 20 * SECOND
        half = begin(client, TIMER_DELIVER_MS=str(due_ms))
        gateway.advance(5 * SECOND)
        end(client, half, COMMIT)
        gateway.advance(15 * SECOND - 1)
        assert client.pull() == []
        gateway.advance(1)
        assert client.pull()[0].store_ms == due_ms

    def test_a_time_that_has_come_by_the_commit_is_now(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        half = begin(client, TIMER_DELIVER_MS=str(gateway.now_ms + 5 * SECOND))
        gateway.advance(6 * SECOND)
        assert client.pull() == []
        end(client, half, COMMIT)
        assert len(client.pull()) == 1

    def test_it_can_be_aborted_while_it_waits(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        half = begin(client, TIMER_DELAY_SEC="10", UNIQ_KEY="ID1")
        assert client.abort(id="ID1", topic="orders")[0]["outcome"] == "unknown"
        end(client, half, COMMIT)
        assert client.abort(id="ID1", topic="orders")[0]["outcome"] == "aborted"
        gateway.advance(60 * SECOND)
        assert client.pull() == []

    def test_a_clock_set_back_does_not_lose_it(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        year_ms = 365 * 86_400 * SECOND
        half = begin(client, TIMER_DELIVER_MS=str(gateway.now_ms + year_ms), UNIQ_KEY="ID1")
        gateway.set_clock(-2 * year_ms)
        assert end(client, half, COMMIT).code == ResponseCode.SUCCESS
        (found,) = client.look_up(id="ID1")
        assert found["state"] == "pending"

    def test_a_wheel_of_delays_survives_a_crash(self, gateway: MemoryGateway) -> None:
        client = gateway.connect()
        half = begin(client, TIMER_DELAY_SEC="10")
        end(client, half, COMMIT)
        gateway.crash()
        client = gateway.connect()
        gateway.advance(10 * SECOND - 1)
        assert client.pull() == []
        gateway.advance(1)
        assert bodies(client.pull()) == ["pay"]


class TestChecks:
    def test_the_producer_is_asked_when_its_time_is_over_and_then_again(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        produce(client)
        begin(client)
        gateway.advance(6 * SECOND - 1)
        assert checks(client) == []
        gateway.advance(SECOND)
        assert len(checks(client)) == 1
        gateway.advance(29 * SECOND)
        assert checks(client) == []
        gateway.advance(2 * SECOND)
        assert len(checks(client)) == 1

    def test_after_a_clock_was_set_back_it_is_asked_as_soon(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """The store times of messages continue from the later time."""
        gateway.set_clock(3_600 * SECOND)
        client.send_message()
        gateway.set_clock(-3_600 * SECOND)
        produce(client)
        begin(client)
        gateway.advance(7 * SECOND)
        assert len(checks(client)) == 1

    def test_what_is_asked(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        produce(client)
        half = begin(client, "pay", UNIQ_KEY="ID1", TAGS="a")
        gateway.advance(7 * SECOND)

        (check,) = checks(client)

        assert check.is_oneway
        assert check.ext() == {
            "topic": HALF_TOPIC,
            "tranStateTableOffset": str(half.place),
            "commitLogOffset": str(half.offset),
            "msgId": "ID1",
            "transactionId": "ID1",
            "offsetMsgId": half.ext["msgId"],
            "bname": "broker-a",
        }
        message = decode_message(check.body)
        assert (message.topic, message.queue_id, message.body) == ("orders", 0, b"pay")
        assert (message.queue_offset, message.physical_offset) == (half.place, half.offset)
        found = properties_of(message)
        assert found["TRANSACTION_CHECK_TIMES"] == "1"
        assert found["PGROUP"] == GROUP

    @pytest.mark.parametrize(("outcome", "delivered"), [(COMMIT, 1), (ROLLBACK, 0)])
    def test_an_answer_to_a_check_decides(
        self, gateway: MemoryGateway, client: MemoryClient, outcome: int, delivered: int
    ) -> None:
        produce(client)
        half = begin(client)
        gateway.advance(40 * SECOND)
        assert len(checks(client)) == 2
        answer = end(client, half, outcome, fromTransactionCheck="true")
        assert answer.code == ResponseCode.SUCCESS
        messages = client.pull()
        assert len(messages) == delivered
        for message in messages:
            assert properties_of(message)["TRANSACTION_CHECK_TIMES"] == "2"
        gateway.advance(100 * SECOND)
        assert checks(client) == []

    def test_another_producer_of_the_group_can_be_asked(self, gateway: MemoryGateway) -> None:
        first, second = gateway.connect(), gateway.connect()
        produce(first, "p1")
        half = begin(first)
        first.disconnect()
        produce(second, "p2")
        gateway.advance(7 * SECOND)
        assert len(checks(second)) == 1
        end(second, half, COMMIT, fromTransactionCheck="true")
        assert len(second.pull()) == 1

    def test_producers_of_other_groups_are_not_asked(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        stranger = gateway.connect()
        stranger.heartbeat("s", "consumers", producers=["others"])
        begin(client)
        half = begin(client, PGROUP="others")
        gateway.advance(6 * SECOND)
        # The first half has no producer to check with, and delays no other check.
        (check,) = checks(stranger)
        assert check.ext()["tranStateTableOffset"] == str(half.place)
        assert checks(client) == []

    def test_the_producers_of_a_group_take_turns(self, gateway: MemoryGateway) -> None:
        clients = [gateway.connect() for _ in range(4)]
        for number, client in enumerate(clients):
            produce(client, f"p{number}")
        for _ in range(8):
            begin(clients[0])
        gateway.advance(7 * SECOND)
        assert [len(checks(client)) for client in clients] == [2, 2, 2, 2]

    @pytest.mark.parametrize("halves", [1, 2, 3])
    def test_one_that_does_not_decide_is_not_asked_again_before_the_others(
        self, gateway: MemoryGateway, halves: int
    ) -> None:
        """An example is a broken network path: the connection stays open for up to `connection_idle`."""
        cut, other = gateway.connect(), gateway.connect()
        produce(cut, "p1")
        produce(other, "p2")
        places = {str(begin(other).place) for _ in range(halves)}
        gateway.advance(40 * SECOND)
        asked = [check.ext()["tranStateTableOffset"] for check in checks(other)]
        assert sorted(asked) == sorted(places)

    def test_no_more_producers_are_looked_at_than_are_asked(
        self, gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A group may have thousands of producers, and hundreds of transactions may be checked at a time."""
        looked_at: list[RemotingConnection] = []

        def is_congested(connection: RemotingConnection) -> bool:
            looked_at.append(connection)
            return False

        congested = property(is_congested, lambda connection, value: None)
        monkeypatch.setattr(RemotingConnection, "congested", congested, raising=False)
        clients = [gateway.connect() for _ in range(20)]
        for number, client in enumerate(clients):
            produce(client, f"p{number}")
        for _ in range(8):
            begin(clients[0])
        looked_at.clear()
        gateway.advance(7 * SECOND)
        assert len(looked_at) == 3 * 8  # for choosing it, for checking now, and for sending

    def test_the_producers_of_a_group_are_listed_once_for_all_that_are_checked(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """To list 10,000 producers for each of 500 transactions held up all other requests for 50 ms."""
        listed: list[str] = []
        producers = Clients.producers

        def noted(clients: Clients, group: str) -> Iterable[Client]:
            listed.append(group)
            return producers(clients, group)

        monkeypatch.setattr(Clients, "producers", noted)
        produce(client)
        for _ in range(8):
            begin(client)
        gateway.advance(7 * SECOND)
        assert len(checks(client)) == 8
        assert len(listed) == 1

    def test_a_half_may_ask_for_its_own_time(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        produce(client)
        begin(client, CHECK_IMMUNITY_TIME_IN_SECONDS="60")
        gateway.advance(59 * SECOND)
        assert checks(client) == []
        gateway.advance(2 * SECOND)
        assert len(checks(client)) == 1

    @pytest.mark.parametrize("text", ["-1", "1", "soon", "99999999999999999999"])
    def test_a_shorter_time_or_none_is_the_usual_one(
        self, gateway: MemoryGateway, client: MemoryClient, text: str
    ) -> None:
        produce(client)
        begin(client, CHECK_IMMUNITY_TIME_IN_SECONDS=text)
        gateway.advance(5 * SECOND)
        assert checks(client) == []
        gateway.advance(2 * SECOND)
        assert len(checks(client)) == 1

    def test_past_a_time_of_its_own_only_the_answer_to_a_check_counts(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        within = begin(client, "within", CHECK_IMMUNITY_TIME_IN_SECONDS="10")
        past = begin(client, "past", CHECK_IMMUNITY_TIME_IN_SECONDS="10")
        gateway.advance(10 * SECOND)
        assert end(client, within, COMMIT).code == ResponseCode.SUCCESS
        gateway.advance(1)
        assert end(client, past, COMMIT).code == ResponseCode.ILLEGAL_OPERATION
        assert bodies(client.pull()) == ["within"]
        end(client, past, COMMIT, fromTransactionCheck="true")
        assert bodies(client.pull()) == ["within", "past"]

    def test_a_late_decision_counts_otherwise(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        half = begin(client)
        gateway.advance(100 * SECOND)
        assert end(client, half, COMMIT).code == ResponseCode.SUCCESS

    def test_the_times_can_be_set(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(
            transaction_timeout="2s", transaction_check_interval="4s", transaction_check_max=2
        )
        client = gateway.connect()
        produce(client)
        begin(client)
        asked = []
        for second in range(1, 20):
            gateway.advance(SECOND)
            asked += [second] * len(checks(client))
        assert asked == [2, 6]
        assert len(client.pull(CHECKED_OUT_TOPIC)) == 1

    def test_after_the_last_check_it_goes_where_operators_look(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        produce(client)
        half = begin(client, "pay", TIMER_DELAY_SEC="10", KEYS="k1")
        asked = 0
        for _ in range(600):
            gateway.advance(SECOND)
            client.heartbeat("p1", "", producers=[GROUP])
            asked += len([one for one in client.received if not one.is_response])
            client.received.clear()
        assert asked == 15

        (message,) = client.pull(CHECKED_OUT_TOPIC)

        assert message.body == b"pay"
        assert message.physical_offset == half.offset
        assert message.sys_flag == 0
        found = properties_of(message)
        assert found["REAL_TOPIC"] == "orders"
        assert found["REAL_QID"] == "0"
        assert found["TRANSACTION_CHECK_TIMES"] == "15"
        assert client.pull("orders") == []
        answer = end(client, half, COMMIT, fromTransactionCheck="true")
        assert answer.remark == "Find prepared transaction message failed"
        route = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": CHECKED_OUT_TOPIC})
        assert route.code == ResponseCode.SUCCESS

    def test_one_that_could_not_be_debounced_is_given_up_as_any_other(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """Retry topics have no debounce, so there the property may have any value."""
        begin(client, "first", "%RETRY%consumers", TIDEGATE_DEBOUNCE="k")
        gateway.advance(SECOND)
        begin(client, "second")
        gateway.advance(600 * SECOND)
        assert bodies(gateway.connect().pull(CHECKED_OUT_TOPIC)) == ["first", "second"]

    def test_checks_without_a_producer_count_as_well(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        begin(client)
        gateway.advance(600 * SECOND)
        assert len(gateway.connect().pull(CHECKED_OUT_TOPIC)) == 1

    def test_a_group_without_a_producer_is_one_line_in_the_log(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """A program that ended can leave thousands of transactions."""
        for _ in range(3):
            begin(client)
        with capturedLogs() as events:
            gateway.advance(8 * SECOND)
        (told,) = [formatEvent(event) for event in events if event["log_level"] is LogLevel.warn]
        assert told.startswith("undecided transactions cannot be checked (3): ")
        produce(client)
        with capturedLogs() as events:
            gateway.advance(30 * SECOND)
        assert len(checks(client)) == 3
        assert [event for event in events if event["log_level"] is LogLevel.warn] == []

    @pytest.mark.parametrize("hours", [0, 1])
    def test_a_half_older_than_what_is_kept_is_asked_about_all_the_same(
        self, make_gateway: MakeGateway, hours: int
    ) -> None:
        gateway = make_gateway(retention_hours=hours)
        half = begin(gateway.connect())
        gateway.stop()
        gateway.jump(2 * 3_600 * SECOND)
        gateway.start()
        client = gateway.connect()
        produce(client)
        gateway.advance(20 * SECOND)
        assert len(checks(client)) == 1
        assert client.pull(CHECKED_OUT_TOPIC) == []
        assert end(client, half, COMMIT, fromTransactionCheck="true").code == ResponseCode.SUCCESS
        assert bodies(client.pull("orders")) == ["pay"]

    def test_many_large_halves_are_asked_about_bit_by_bit(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        produce(client)
        for _ in range(6):
            begin(client, "x" * 2_000_000)
        gateway.jump(6_100)
        assert 1 <= len(checks(client)) <= 3
        gateway.advance(5 * SECOND)
        assert 3 <= len(checks(client)) <= 5

    def test_a_producer_that_does_not_read_is_not_sent_more_and_more(
        self, gateway: MemoryGateway
    ) -> None:
        slow, sender = gateway.connect(), gateway.connect()
        produce(slow)
        for _ in range(10):
            begin(sender, "x" * 1_000_000)
        slow.stop_reading()
        gateway.advance(60 * SECOND)
        piled_up = slow.transport.unread
        assert 1_000_000 < piled_up < 2_000_000
        assert checks(slow)
        gateway.advance(30 * SECOND)
        assert checks(slow), "it reads again, and is asked again"

    def test_a_producer_that_does_not_read_keeps_no_other_from_being_asked(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slow = gateway.connect()
        produce(slow)
        begin(client, "x" * 200_000)
        slow.stop_reading()
        gateway.advance(7 * SECOND)
        assert slow.transport.unread > 200_000
        monkeypatch.setattr(transactions, "MAX_CHECKS", 1)
        begin(client)
        client.heartbeat("p2", "", producers=["others"])
        begin(client, PGROUP="others")
        with capturedLogs() as events:
            gateway.advance(10 * SECOND)
        assert len(checks(client)) == 1
        assert not events, "none is without a producer"

    def test_a_question_that_was_not_asked_for_that_does_not_count(
        self, make_gateway: MakeGateway
    ) -> None:
        gateway = make_gateway(
            transaction_timeout="2s", transaction_check_interval="4s", transaction_check_max=2
        )
        slow, sender = gateway.connect(), gateway.connect()
        produce(slow)
        slow.stop_reading()
        begin(sender, "x" * 1_000_000)
        gateway.advance(3 * SECOND)
        for _ in range(3):
            begin(sender)
        gateway.advance(40 * SECOND)
        assert sender.pull(CHECKED_OUT_TOPIC) == []
        slow.transport.reads = True
        assert len(checks(slow)) == 1
        gateway.advance(2 * SECOND)
        assert len(checks(slow)) == 4
        gateway.advance(20 * SECOND)
        assert len(checks(slow)) == 3  # both checks of the large one were sent already

    def test_one_that_is_damaged_keeps_nobody_from_being_asked(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        # The record is too large to be packed, so it has no checksum that would show the damage.
        half = begin(client, "x" * 6_000)
        begin(client)
        with damaged_row(gateway, "messages", (1).to_bytes(8), lambda stored: stored[:-5]):
            client = gateway.connect()
            produce(client)
            gateway.advance(7 * SECOND)
            assert [decode_message(check.body).body for check in checks(client)] == [b"pay"]
            assert end(client, half, COMMIT).code == ResponseCode.SYSTEM_ERROR
        assert find_half(gateway.store, half.offset) is not None

    def test_nobody_can_send_to_the_topics_of_transactions(self, client: MemoryClient) -> None:
        for topic in (HALF_TOPIC, CHECKED_OUT_TOPIC, "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
            assert client.send_message(topic).code == ResponseCode.NO_PERMISSION


class TestSurviving:
    @pytest.mark.parametrize("how", ["restart", "crash"])
    def test_an_undecided_half_survives(self, gateway: MemoryGateway, how: str) -> None:
        half = begin(gateway.connect())
        gateway.advance(40 * SECOND)
        getattr(gateway, how)()
        client = gateway.connect()
        assert client.pull() == []
        assert end(client, half, COMMIT).code == ResponseCode.SUCCESS
        assert bodies(client.pull()) == ["pay"]

    @pytest.mark.parametrize("how", ["restart", "crash"])
    def test_checks_go_on_where_they_were(self, gateway: MemoryGateway, how: str) -> None:
        client = gateway.connect()
        produce(client)
        begin(client)
        gateway.advance(40 * SECOND)
        assert len(checks(client)) == 2
        getattr(gateway, how)()
        client = gateway.connect()
        produce(client)
        gateway.advance(20 * SECOND)
        assert checks(client) == []
        gateway.advance(10 * SECOND)
        (check,) = checks(client)
        assert properties_of(decode_message(check.body))["TRANSACTION_CHECK_TIMES"] == "3"

    def test_checks_that_came_due_meanwhile_are_made_at_once(self, gateway: MemoryGateway) -> None:
        client = gateway.connect()
        produce(client)
        begin(client)
        gateway.stop()
        gateway.elapsed_ms += 60 * SECOND
        gateway.reactor.rightNow += 60
        gateway.start()
        client = gateway.connect()
        produce(client)
        gateway.advance(SECOND)
        assert len(checks(client)) == 1

    def test_a_decision_that_was_not_committed_can_be_made_again(
        self, gateway: MemoryGateway
    ) -> None:
        client = gateway.connect()
        half = begin(client)
        client.send(RequestCode.END_TRANSACTION, decision(half, COMMIT))
        gateway.crash()
        client = gateway.connect()
        assert client.pull() == []
        end(client, half, COMMIT)
        assert len(client.pull()) == 1

    def test_a_decision_for_a_queue_that_cannot_be_read_can_be_made_again(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        half = begin(client)
        with damaged_row(gateway, "ends", queue_prefix(b"orders", 0), lambda _: b"short"):
            answer = end(gateway.connect(), half, COMMIT)
            assert "queue 0 of topic orders cannot be read" in (answer.remark or "")
        client = gateway.connect()
        assert end(client, half, COMMIT).code == ResponseCode.SUCCESS
        assert bodies(client.pull()) == ["pay"]

    def test_a_decision_survives(self, gateway: MemoryGateway) -> None:
        client = gateway.connect()
        committed, taken = begin(client, "a"), begin(client, "b")
        end(client, committed, COMMIT)
        end(client, taken, ROLLBACK)
        gateway.crash()
        client = gateway.connect()
        assert bodies(client.pull()) == ["a"]
        gateway.advance(600 * SECOND)
        assert gateway.connect().pull(CHECKED_OUT_TOPIC) == []

    def test_retention_leaves_halves_alone(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(retention_hours=1, transaction_check_interval="1h")
        client = gateway.connect()
        half = begin(client)
        client.send_message("orders", "old")
        gateway.advance(3_500 * SECOND)
        client = gateway.connect()
        end(client, half, COMMIT)
        gateway.advance(200 * SECOND)
        client = gateway.connect()
        messages: list[Any] = client.pull("orders", 0, 1)
        assert bodies(messages) == ["pay"], "it is as old as its commit"


@pytest.mark.parametrize("damage", ["their queue", "a half", "a check"])
def test_what_is_damaged_keeps_no_other_from_being_asked_about(
    make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    gateway = make_gateway(transaction_check_max=1)
    monkeypatch.setattr(transactions, "MAX_CHECKS", 1)
    first = begin(gateway.connect(), "first")
    table, key, value = {
        "their queue": ("ends", queue_prefix(CHECKED_OUT_TOPIC.encode(), 0), b"short"),
        "a half": ("halves", first.offset.to_bytes(8), b"short"),
        "a check": ("checks", bytes(3), b""),
    }[damage]
    gateway.advance(10_000)
    with damaged_row(gateway, table, key, lambda _: value), capturedLogs() as events:
        gateway.advance(30_000)
        client = gateway.connect()
        begin(client, "second")
        produce(client)
        gateway.advance(30_000)
        assert [decode_message(one.body).body for one in checks(client)][-1] == b"second"
    if damage == "their queue":
        assert not any("goes to" in (formatEvent(event) or "") for event in events)


def test_a_decision_about_a_half_that_cannot_be_read_is_refused(gateway: MemoryGateway) -> None:
    half = begin(gateway.connect())
    with damaged_row(gateway, "halves", half.offset.to_bytes(8), lambda _: b"short"):
        for outcome in (COMMIT, ROLLBACK):
            answer = end(gateway.connect(), half, outcome)
            assert answer.remark == "Find prepared transaction message failed"
    assert end(gateway.connect(), half, COMMIT).code == ResponseCode.SUCCESS
