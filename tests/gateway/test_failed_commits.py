"""Failed commits: every waiting client gets an error, nothing is lost, and what is due fires later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

import lmdb
import pytest
from twisted.logger import capturedLogs, formatEvent

from gateway.parked import WOKEN_AT_ONCE
from gateway.pops.orders import Place, PopOrders
from gateway.topics import CHECKED_OUT_TOPIC
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.messages import Message, decode_messages
from storage import StorageError, Store, logged
from storage.logged import LoggedTransaction
from tests.gateway.conftest import MakeGateway
from tests.gateway.consuming import lock, lock_request, send_back, unlock
from tests.gateway.faults import commits_fail, damaged_page, file_cannot_grow
from tests.gateway.memory import MemoryClient, MemoryGateway, bodies
from tests.gateway.popping import (
    INVISIBLE_MS,
    ack,
    ask_pop,
    handle_fields,
    handles,
    pop,
    pop_fields,
)
from tests.gateway.tools import (
    by_queue,
    commit_offset,
    create_topic,
    offset_of,
    ok,
    put_group,
    read,
)
from tests.gateway.transactions import begin
from tests.storage.faults import (
    DISK_BROKEN,
    DISK_FULL,
    QUOTA_USED_UP,
    disk_takes_no_checkpoint,
    log_cannot_be_written,
)


@pytest.mark.parametrize(
    ("trouble", "code"),
    [
        (DISK_FULL, ResponseCode.SERVICE_NOT_AVAILABLE),
        (QUOTA_USED_UP, ResponseCode.SERVICE_NOT_AVAILABLE),
        (DISK_BROKEN, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_sends_are_answered_with_an_error(
    gateway: MemoryGateway, client: MemoryClient, trouble: lmdb.Error, code: int
) -> None:
    client.send_message("orders", "before")
    with commits_fail(gateway, trouble):
        opaques = [
            client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"lost")
            for _ in range(3)
        ]
        for opaque in opaques:
            answer = client.answer(opaque)
            assert answer is not None
            assert answer.code == code
            assert answer.remark is not None
            assert answer.remark.startswith("service not available now: ")
        assert bodies(client.pull()) == ["before"]
    assert client.send_message("orders", "after").ext()["queueOffset"] == "1"
    assert bodies(client.pull()) == ["before", "after"]


def test_an_abort_that_was_not_stored_delays_nothing(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """The clock was asked for while the message counted as aborted, and the next one as the earliest."""
    handle = client.send_message("orders", "early", TIMER_DELAY_MS="1000").ext()["recallHandle"]
    client.send_message("orders", "late", TIMER_DELAY_MS="10000")
    with commits_fail(gateway):
        recall = client.send(
            RequestCode.RECALL_MESSAGE, {"topic": "orders", "recallHandle": handle}
        )
        client.send(RequestCode.CLOCK, {})
        answer = client.answer(recall)
        assert answer is not None
        assert answer.code != ResponseCode.SUCCESS
    gateway.advance(1_000)
    assert bodies(client.pull()) == ["early"]


@pytest.mark.parametrize("free", [0, 100_000])
def test_a_write_that_a_full_disk_cut_short_is_told_from_a_broken_disk(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """LMDB reports an input/output error in both cases. Some room may be left: not enough for what is written next."""
    client.send_message("orders", "before")
    monkeypatch.setattr(gateway.store.environment, "disk_free", lambda: free)
    with commits_fail(gateway, DISK_BROKEN):
        answer = client.send_message("orders", "lost")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "No space left on device" in str(answer.remark)


def test_a_file_that_cannot_grow(gateway: MemoryGateway, client: MemoryClient) -> None:
    client.send_message("orders", "before")
    with file_cannot_grow(gateway):
        answer = client.send_message("orders", "x" * (1 << 20))
    assert answer.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR)
    assert client.send_message("orders", "after").code == ResponseCode.SUCCESS
    assert bodies(client.pull()) == ["before", "after"]


def test_what_is_due_fires_once_the_disk_recovers(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    for number in range(5):
        client.send_message("orders", str(number), TIMER_DELAY_MS="100")
    with commits_fail(gateway):
        gateway.advance(3_500)
        assert client.pull() == []
        assert len(client.look_up()) == 5
        assert gateway.service.broker.committer.failing
    gateway.advance(1_000)
    assert bodies(client.pull()) == [str(number) for number in range(5)]
    assert not gateway.service.broker.committer.failing


def test_the_next_try_is_one_however_many_have_failed(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    client.send_message(TIMER_DELAY_MS="60000")
    scheduled = len(gateway.reactor.getDelayedCalls())
    with commits_fail(gateway):
        for _ in range(5):
            assert client.send_message().code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert len(gateway.reactor.getDelayedCalls()) == scheduled


def test_firing_that_fails_takes_the_batch_with_it(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> LoggedTransaction:
        raise DISK_BROKEN

    client.send_message("orders", "later", TIMER_DELAY_MS="100")
    gateway.set_clock(100)
    gateway.store.put_note(b"waits", b"for the commit")
    with monkeypatch.context() as broken:
        broken.setattr(gateway.store, "batch_transaction", fail)
        with pytest.raises(StorageError, match="Input/output"):
            gateway.service.broker.firing.step()
    assert not gateway.store.has_changes
    gateway.advance(1_000)
    assert bodies(client.pull()) == ["later"]


def test_a_send_during_the_failure_does_not_fire_twice(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    client.send_message("orders", "due", TIMER_DELAY_MS="100")
    gateway.advance(99)
    with commits_fail(gateway):
        gateway.advance(1)
        assert client.send_message("orders", "lost").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert client.send_message("orders", "kept").code == ResponseCode.SUCCESS
    assert sorted(bodies(client.pull())) == ["due", "kept"]


def test_after_a_failure_the_next_is_on_time_again(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    with commits_fail(gateway):
        assert client.send_message().code == ResponseCode.SERVICE_NOT_AVAILABLE
    client.send_message("orders", "soon", TIMER_DELAY_MS="150")
    gateway.advance(149)
    assert client.pull() == []
    gateway.advance(1)
    assert bodies(client.pull()) == ["soon"]


def test_between_a_failure_and_the_next_try_others_are_on_time(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    client.send_message("orders", "due", TIMER_DELAY_MS="100")
    with commits_fail(gateway):
        gateway.advance(100)
    client.send_message("orders", "next", TIMER_DELAY_MS="300")
    assert bodies(client.pull()) == ["due"]
    gateway.advance(299)
    assert bodies(client.pull()) == ["due"]
    gateway.advance(1)
    assert bodies(client.pull()) == ["due", "next"]


def test_a_timed_message_that_was_refused_never_fires(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    with commits_fail(gateway):
        answer = client.send_message(UNIQ_KEY="ID1", TIMER_DELAY_MS="100")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    client.send_message("orders", "other", TIMER_DELAY_MS="200")
    gateway.advance(500)
    assert bodies(client.pull()) == ["other"]
    assert client.look_up(id="ID1", state="any") == []


def test_an_abort_that_could_not_be_stored(gateway: MemoryGateway, client: MemoryClient) -> None:
    handle = client.send_message("orders", "kept", TIMER_DELAY_MS="100").ext()["recallHandle"]
    with commits_fail(gateway):
        assert client.recall("orders", handle).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert [message["state"] for message in client.look_up()] == ["pending"]
    gateway.advance(1_000)
    assert bodies(client.pull()) == ["kept"]


class TestTopics:
    """A topic or group that a refused batch created does not exist."""

    def test_a_topic_is_made_by_the_send_that_succeeds(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        with commits_fail(gateway):
            assert client.send_message("new").code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert gateway.service.broker.topics.get("new") is None
        assert client.send_message("new", "kept").code == ResponseCode.SUCCESS
        gateway.restart()
        # Messages of an unknown topic would be taken for messages of a deleted one.
        gateway.advance(20_000)
        assert bodies(gateway.connect().pull("new")) == ["kept"]

    def test_a_deleted_topic_is_still_there(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message("orders", "kept")
        client.pull(commit=1)
        with commits_fail(gateway):
            answer = client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        gateway.advance(20_000)
        assert bodies(client.pull()) == ["kept"]
        gateway.crash()
        place = {"consumerGroup": "consumers", "topic": "orders", "queueId": "0"}
        answer = gateway.connect().ask(RequestCode.QUERY_CONSUMER_OFFSET, place)
        assert answer.ext()["offset"] == "1"

    def test_a_group(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message()
        body = b'{"groupName":"workers","retryMaxTimes":2}'
        with commits_fail(gateway):
            answer = client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert gateway.service.broker.groups.get("workers") is None

    def test_the_tools_group_is_as_it_was(self, make_gateway: MakeGateway) -> None:
        """Tools use it without creating it: without it they could not consume until a restart."""
        gateway = make_gateway(auto_create_group=False)
        client = gateway.connect()
        with commits_fail(gateway):
            assert put_group(client, "TOOLS_CONSUMER", retryMaxTimes=2).code != 0
        asked = {"group": "TOOLS_CONSUMER"}
        answer = ok(client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, asked))
        assert json.loads(answer.body)["retryMaxTimes"] == 16


def test_progress_is_kept_until_it_can_be_written(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    client.send_message()
    client.pull()
    place = {"consumerGroup": "consumers", "topic": "orders", "queueId": "0"}
    with commits_fail(gateway):
        client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, place | {"commitOffset": "1"})
        gateway.advance(3_000)
    gateway.advance(1_000)
    gateway.crash()
    answer = gateway.connect().ask(RequestCode.QUERY_CONSUMER_OFFSET, place)
    assert answer.ext()["offset"] == "1"


class TestProgressSetByATool:
    """A reset or a clone that was refused has no effect, for running consumers and after a restart."""

    @pytest.fixture
    def consumer(self, gateway: MemoryGateway, client: MemoryClient) -> MemoryClient:
        """A consumer whose group has consumed one of two messages."""
        client.send_message("orders", "first")
        client.send_message("orders", "second")
        consumer = gateway.connect()
        consumer.pull(group="G", most=1)
        ok(commit_offset(consumer, "orders", 0, 1, "G"))
        return consumer

    RESET: ClassVar = {"topic": "orders", "group": "G", "timestamp": "0", "isForce": "true"}

    @pytest.mark.parametrize("crash", [False, True])
    def test_reset(
        self, gateway: MemoryGateway, client: MemoryClient, consumer: MemoryClient, crash: bool
    ) -> None:
        waits = consumer.park("orders", 0, 2, group="G")
        with commits_fail(gateway):
            answer = client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, self.RESET)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        told = consumer.answer(waits)
        assert told is None or told.code == ResponseCode.SERVICE_NOT_AVAILABLE
        if crash:
            gateway.advance(1_000)
            gateway.crash()
            consumer = gateway.connect()
        assert offset_of(consumer, "orders", 0, "G") == 1
        assert commit_offset(consumer, "orders", 0, 2, "G").remark is None
        assert bodies(consumer.pull("orders", 0, 1, group="G", commit=2)) == ["second"]
        assert offset_of(consumer, "orders", 0, "G") == 2

    def test_nothing_is_under_way_that_was_not_handed_out(
        self, gateway: MemoryGateway, client: MemoryClient, consumer: MemoryClient
    ) -> None:
        ok(commit_offset(consumer, "orders", 0, 0, "G"))
        with commits_fail(gateway):
            reset = self.RESET | {"timestamp": "-1"}
            client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
        shown = read(client.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G"}))
        queue = by_queue(shown["offsetTable"])["orders", 0]
        assert (queue["consumerOffset"], queue["pullOffset"]) == (0, 1)

    def test_clone(
        self, gateway: MemoryGateway, client: MemoryClient, consumer: MemoryClient
    ) -> None:
        put_group(client, "H")
        copy = {"srcGroup": "G", "destGroup": "H", "topic": "orders"}
        with commits_fail(gateway):
            answer = client.ask(RequestCode.CLONE_GROUP_OFFSET, copy)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert offset_of(client, "orders", 0, "H") == 0
        ok(client.ask(RequestCode.CLONE_GROUP_OFFSET, copy))
        gateway.crash()
        assert offset_of(gateway.connect(), "orders", 0, "H") == 1


class TestResetThatWaits:
    """A reset that was answered waits for the group's next pull, whatever is refused meanwhile."""

    @pytest.fixture
    def consumer(self, gateway: MemoryGateway, client: MemoryClient) -> MemoryClient:
        """A consumer whose group has consumed two messages and is reset to the first one."""
        client.send_message("orders")
        client.send_message("orders")
        consumer = gateway.connect()
        consumer.pull(group="G")
        ok(commit_offset(consumer, "orders", 0, 2, "G"))
        ok(client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, self.reset_to(0)))
        gateway.advance(1_000)
        return consumer

    @staticmethod
    def reset_to(offset: int) -> dict[str, str]:
        place = {"topic": "orders", "group": "G", "queueId": "0", "isForce": "true"}
        return place | {"timestamp": "0", "offset": str(offset)}

    @staticmethod
    def assert_waits(gateway: MemoryGateway, consumer: MemoryClient) -> None:
        """Check that the consumer's report is dropped, and that its next pull, and no other, is told of the reset."""
        ok(commit_offset(consumer, "orders", 0, 2, "G"))
        assert offset_of(consumer, "orders", 0, "G") == 0
        answer = consumer.ask_pull("orders", 0, 2, group="G", commit=2)
        assert (answer.remark, answer.ext()["nextBeginOffset"]) == ("OFFSET_RESET", "0")
        assert len(consumer.pull("orders", 0, 0, group="G")) == 2
        assert not gateway.service.broker.resets.offsets

    def test_a_pull_that_was_to_learn_of_it(
        self, gateway: MemoryGateway, client: MemoryClient, consumer: MemoryClient
    ) -> None:
        with commits_fail(gateway):
            client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"lost")
            answer = consumer.ask_pull("orders", 0, 2, group="G", commit=2)
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        self.assert_waits(gateway, consumer)

    def test_a_pop(
        self, gateway: MemoryGateway, client: MemoryClient, consumer: MemoryClient
    ) -> None:
        with commits_fail(gateway):
            answer = ask_pop(gateway, client, consumerGroup="G")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        self.assert_waits(gateway, consumer)

    @pytest.mark.parametrize(
        ("code", "fields"),
        [
            (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G", "cleanOffset": "true"}),
            (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_to(1)),
            (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "H", "destGroup": "G"}),
        ],
    )
    def test_what_was_to_end_it(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        consumer: MemoryClient,
        code: RequestCode,
        fields: dict[str, str],
    ) -> None:
        consumer.pull(group="H")
        ok(commit_offset(consumer, "orders", 0, 1, "H"))
        with commits_fail(gateway):
            assert client.ask(code, fields).code == ResponseCode.SERVICE_NOT_AVAILABLE
        self.assert_waits(gateway, consumer)

    def test_another_one_in_the_batch_that_the_pull_waits_for(
        self, gateway: MemoryGateway, client: MemoryClient, consumer: MemoryClient
    ) -> None:
        pull = consumer.send(
            RequestCode.PULL_MESSAGE, consumer.pull_request("orders", 0, 2, group="G")
        )
        ok(client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, self.reset_to(1)))
        told = consumer.answer(pull)
        assert told is not None
        assert told.ext()["nextBeginOffset"] == "0"
        answer = consumer.ask_pull("orders", 0, 0, group="G")
        assert (answer.remark, answer.ext()["nextBeginOffset"]) == ("OFFSET_RESET", "1")


class TestFigures:
    """The broker's figures count what was stored, and lose nothing by a deletion that was refused."""

    @pytest.fixture
    def message(self, gateway: MemoryGateway, client: MemoryClient) -> Message:
        """A message that the group has pulled and sent back."""
        client.send_message("orders")
        message = client.pull("orders")[0]
        ok(send_back(client, message, group="consumers"))
        return message

    def counts(self, gateway: MemoryGateway) -> dict[tuple[str, str], int]:
        counters = gateway.service.broker.stats.counters()
        return {one[:2]: one[2] for one in counters if one is not None}

    @pytest.mark.parametrize(
        ("code", "fields"),
        [
            (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "consumers"}),
        ],
    )
    @pytest.mark.usefixtures("message")
    def test_a_refused_deletion(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        code: RequestCode,
        fields: dict[str, str],
    ) -> None:
        before = self.counts(gateway)
        assert before["SNDBCK_PUT_NUMS", "orders@consumers"] == 1
        with commits_fail(gateway):
            assert client.ask(code, fields).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert self.counts(gateway) == before
        ok(client.ask(code, fields))
        assert ("GROUP_GET_NUMS", "orders@consumers") not in self.counts(gateway)

    def test_what_was_refused(
        self, gateway: MemoryGateway, client: MemoryClient, message: Message
    ) -> None:
        before = self.counts(gateway)
        with commits_fail(gateway):
            for answer in (ask_pop(gateway, client), send_back(client, message, group="consumers")):
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert self.counts(gateway) == before
        assert gateway.service.broker.stats.got == 1

    def test_what_could_not_be_delivered_again_yet(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message("orders")
        assert len(pop(gateway, client)) == 1
        with commits_fail(gateway):
            gateway.advance(2 * INVISIBLE_MS)
        gateway.advance(2_000)
        assert self.counts(gateway)["SNDBCK_PUT_NUMS", "orders@consumers"] == 1


class TestLog:
    """The log says of what the gateway does by itself only what was stored, and says it once."""

    def lines(self, gateway: MemoryGateway, late_ms: int) -> list[str]:
        """Return what the log says of a change that is due, refused for 10 s and then stored."""
        with capturedLogs() as logs:
            with commits_fail(gateway):
                gateway.advance(late_ms + 10_000)
            told = [formatEvent(event) for event in logs]
            assert [line for line in told if "could not be" not in line] == []
            gateway.advance(10_000)
        later = [formatEvent(event) for event in logs[len(told) :]]
        return [line for line in later if "redo log" not in line]

    def test_the_end_of_a_recurring_message(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        rule = {"TIDEGATE_EVERY": "10s", "TIDEGATE_NAME": "n", "TIDEGATE_COUNT": "1"}
        client.send_message("orders", "x", rule)
        assert self.lines(gateway, 10_000) == [
            "recurring message n of topic orders has come to its end after 1 messages"
        ]

    def test_an_undecided_transaction(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(
            transaction_timeout="2s", transaction_check_interval="4s", transaction_check_max=0
        )
        client = gateway.connect()
        begin(client)
        (line,) = self.lines(gateway, 2_000)
        assert f"goes to {CHECKED_OUT_TOPIC}" in line
        assert len(client.pull(CHECKED_OUT_TOPIC)) == 1


def test_a_group_made_by_a_pull_is_stored(gateway: MemoryGateway, client: MemoryClient) -> None:
    client.send_message()
    client.pull(group="workers")
    gateway.crash()
    assert gateway.service.broker.groups.get("workers") is not None


def test_retention_goes_on_after_a_failure(gateway: MemoryGateway, client: MemoryClient) -> None:
    client.send_message()
    client.pull()  # the first pull creates the group
    with commits_fail(gateway):
        gateway.jump(73 * 3_600_000)
        gateway.advance(11_000)
        assert bodies(gateway.connect().pull()) == ["hello"]
    gateway.advance(11_000)
    client = gateway.connect()
    answer = client.ask(RequestCode.GET_MIN_OFFSET, {"topic": "orders", "queueId": "0"})
    assert answer.ext()["offset"] == "1"


def test_while_nothing_can_be_read_all_is_refused_and_then_all_goes_on(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.send_message("orders", "before")
    client.send_message("orders", "due", TIMER_DELAY_MS="100")

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    def refused(opaque: int) -> None:
        answer = client.answer(opaque)
        assert answer is not None
        assert answer.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR)

    def send(topic: str) -> int:
        return client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(topic), b"refused")

    with monkeypatch.context() as broken:
        broken.setattr("os.pread", fail)
        first = send("new")
        gateway.store.spoil(DISK_BROKEN)
        refused(first)
        refused(send("new"))
        gateway.advance(2_500)
        refused(send("orders"))
    # This send is refused as well, although the disk can be read again by the time it is stored.
    refused(send("new"))
    gateway.advance(1_000)
    assert gateway.service.broker.topics.get("new") is None
    assert bodies(client.pull()) == ["before", "due"]
    client.send_message("orders", "after")
    assert bodies(client.pull()) == ["before", "due", "after"]


@pytest.mark.parametrize("kind", ["pulls", "pops"])
def test_nobody_is_left_waiting_who_was_to_be_looked_at_meanwhile(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Once, all clients woken from then on waited for ever."""
    client.send_message("orders", "in another queue", fields={"queue": 3})

    def wait(one: MemoryClient, offset: int) -> int:
        if kind == "pulls":
            return one.park("orders", 0, offset)
        fields = {"consumerGroup": "G", "topic": "orders", "queueId": "0", "maxMsgNums": "1"}
        fields |= {"invisibleTime": "90000", "pollTime": "15000", "initMode": "0"}
        return one.send(RequestCode.POP_MESSAGE, fields | {"bornTime": str(gateway.now_ms)})

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    lot = gateway.service.broker.parked
    clients = [gateway.connect() for _ in range(2 * WOKEN_AT_ONCE)]
    waiting = [(one, wait(one, 0)) for one in clients]
    parked = len(lot)
    for _ in clients:
        client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"hello")
    while len(lot) == parked:
        gateway.reactor.turn()
    with monkeypatch.context() as broken:
        broken.setattr("os.pread", fail)
        gateway.store.spoil(DISK_BROKEN)
        gateway.store.abandon()
        gateway.reactor.turn()
    gateway.advance(2_000)
    answers = [one.answer(opaque) for one, opaque in waiting]
    refused = [one for one in answers if one and one.code == ResponseCode.SYSTEM_ERROR]
    assert len(refused) == WOKEN_AT_ONCE
    assert "cannot be read again" in (refused[0].remark or "")
    assert None not in answers
    late = gateway.connect()
    while late.answer(waits := wait(late, len(clients))) is not None:
        pass  # a pop gets what is left
    client.send_message("orders", "last")
    assert late.answer(waits) is not None
    gateway.advance(1_000)
    assert len(lot) == 0


class TestTheDiskTakesNoCheckpoint:
    """The gateway ends, and the next one has everything that was acknowledged."""

    def test_and_nobody_waits_for_it(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.send_message("orders", "before")
        monkeypatch.setattr(logged, "CHECKPOINT_SECONDS", 0)
        with disk_takes_no_checkpoint(gateway.data):
            assert client.send_message("orders", "last").code == ResponseCode.SUCCESS
            while gateway.store.environment.durable.is_busy:
                pass
            answer = client.send_message("orders", "refused")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "the disk did not take a checkpoint" in (answer.remark or "")
            assert gateway.reactor.hasStopped
        assert "when the gateway is started again" in (gateway.service.trouble or "")
        gateway.restart()
        assert gateway.service.trouble is None
        assert bodies(gateway.connect().pull()) == ["before", "last"]

    def test_that_a_batch_waits_for(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        """While the redo log cannot be written, each batch needs a checkpoint."""
        client.send_message("orders", "before")
        with log_cannot_be_written(gateway.store), disk_takes_no_checkpoint(gateway.data):
            assert client.send_message("orders", "refused").code == ResponseCode.SYSTEM_ERROR
            assert gateway.reactor.hasStopped
        gateway.restart()
        assert bodies(gateway.connect().pull()) == ["before"]


class TestAnErrorOfTheProgram:
    """Nobody waits in vain for an answer, and no answer is false."""

    def test_while_firing_refuses_the_batch(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        failures: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        client.send_message("orders", "due", TIMER_DELAY_MS="100")
        gateway.set_clock(100)
        with monkeypatch.context() as broken:
            broken.setattr("gateway.firing.fire_due", fail)
            answer = client.send_message("orders", "refused")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "an error of the program" in (answer.remark or "")
        assert failures
        failures.clear()
        gateway.advance(1_000)
        assert bodies(client.pull()) == ["due"]
        gateway.restart()
        assert bodies(gateway.connect().pull()) == ["due"]

    def test_while_what_was_stored_is_counted_ends_the_gateway(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        failures: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(gateway.store.held, "commit", fail)
            sent = client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"perhaps stored")
            assert client.answer(sent) is None
        assert failures
        failures.clear()
        assert gateway.reactor.hasStopped
        assert "an error of the program" in (gateway.service.trouble or "")
        gateway.restart()
        assert bodies(gateway.connect().pull()) == ["perhaps stored"]

    def test_after_the_commit_harms_nobody_else(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        failures: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        client.send_message("orders", "first")
        other = gateway.connect()
        with monkeypatch.context() as broken:
            broken.setattr(other.protocol, "send", fail)
            other.send(RequestCode.SEND_MESSAGE_V2, other.send_fields(), b"not answered")
            broken.setattr(gateway.service.broker.audit, "write", fail)
            broken.setattr(gateway.service.broker.parked, "grown", fail)
            gateway.service.broker.committer.once_stored(fail)
            sends = [
                client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(queue=queue), b"sent")
                for queue in (0, 1)
            ]
            answers = [client.answer(sent) for sent in sends]
        assert [answer and answer.code for answer in answers] == [ResponseCode.SUCCESS] * 2
        assert len(failures) == 5
        failures.clear()

    def test_after_a_refused_commit_harms_nobody_else_either(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        failures: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        client.send_message("orders", "due", TIMER_DELAY_MS="500")
        other = gateway.connect()
        with monkeypatch.context() as broken, commits_fail(gateway):
            broken.setattr(other.protocol, "send", fail)
            other.send(RequestCode.SEND_MESSAGE_V2, other.send_fields(), b"not answered")
            broken.setattr(gateway.service.broker.audit, "reload", fail)
            sent = client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"refused")
            answer = client.answer(sent)
        assert answer is not None
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert len(failures) == 2
        failures.clear()
        gateway.advance(1_000)
        assert bodies(client.pull()) == ["due"]

    def test_while_a_step_is_counted_does_not_stop_the_next(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        failures: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """As where LMDB cannot read the page with the next due message."""
        with monkeypatch.context() as broken:
            broken.setattr(gateway.service.broker.firing, "stored", fail)
            assert client.send_message(TIMER_DELAY_MS="100").code == ResponseCode.SUCCESS
        gateway.advance(100)
        assert bodies(client.pull()) == ["hello"]
        assert failures
        failures.clear()

    def test_while_the_stored_state_is_read_again(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The copies in memory may be false, so all is refused until they can be read."""
        with monkeypatch.context() as broken, commits_fail(gateway):
            broken.setattr(gateway.service.broker.topics, "reload", fail)
            for _ in range(2):
                assert client.send_message("new").code != ResponseCode.SUCCESS
        assert client.send_message("new").code == ResponseCode.SYSTEM_ERROR
        assert client.send_message("new").code == ResponseCode.SUCCESS


def test_due_messages_on_a_page_that_lmdb_cannot_read_let_nobody_wait(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """The state that is in memory cannot be read again either. Clients once had no answer then."""
    client.send_message("orders", "due", UNIQ_KEY="A", TIMER_DELAY_SEC="100")
    soon = {"id": "A", "topic": "orders", "due": str(gateway.now_ms + 2_000)}
    ok(client.ask(RequestCode.RESCHEDULE_TIMERS, soon))
    gateway.checkpoint()
    [(key, _)] = gateway.store.reader().cursor(db=gateway.store.tables.timers)
    with damaged_page(gateway, "timers", key):
        client = gateway.connect()
        gateway.advance(3_000)
        answer = client.send_message("orders", "refused")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "could not be read again" in (answer.remark or "")
        assert client.pull() == []
    gateway.advance(1_000)
    assert bodies(client.pull()) == ["due"]


def fail(*_: object) -> None:
    """Stand for a part with an error."""
    raise RuntimeError("an error of the program")


def test_topics_and_groups_are_what_they_were_and_only_those_of_the_batch_are_read_again(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 100,000 of each, reading all of them took half a second for each batch that a full disk refused."""
    create_topic(client, "kept", 3)
    create_topic(client, "deleted", 2)
    put_group(client, "kept", retryMaxTimes=3)
    put_group(client, "deleted")
    broker = gateway.service.broker

    def state() -> tuple[object, object]:
        topics = {topic.name: topic.settings for topic in broker.topics}
        return topics, {group.group_name: group for group in broker.groups}

    before = state()
    with monkeypatch.context() as patched, commits_fail(gateway):
        patched.delattr(Store, "topics")
        patched.delattr(Store, "groups")
        answers = [
            create_topic(client, "kept", 9),
            create_topic(client, "new"),
            put_group(client, "new"),
            put_group(client, "kept"),
            client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "deleted"}),
            client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "deleted"}),
        ]
    assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
    assert state() == before


def refuse_as_one_batch(
    gateway: MemoryGateway,
    client: MemoryClient,
    requests: list[tuple[int, Mapping[str, str] | None, bytes]],
) -> None:
    """Send requests whose changes are one batch, and have the disk refuse it."""
    with commits_fail(gateway):
        opaques = [client.send(code, ext, body) for code, ext, body in requests]
        answers = [client.answer(opaque) for opaque in opaques]
    codes = [answer and answer.code for answer in answers]
    assert codes == [ResponseCode.SERVICE_NOT_AVAILABLE] * len(requests)


def test_queue_locks_are_what_they_were_and_only_those_of_the_batch_are_read_again(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock(client, "c1", 0, 1, 2)
    lock(client, "c1", 0, group="others")
    gateway.advance(50_000)
    lock(client, "c1", 2)
    unlock(client, "c1", 1)
    with monkeypatch.context() as patched:
        patched.delattr("gateway.queue_locks.read_notes")
        refuse_as_one_batch(
            gateway,
            client,
            [
                (RequestCode.UNLOCK_BATCH_MQ, None, lock_request("c1", (0, 2))),
                (RequestCode.LOCK_BATCH_MQ, None, lock_request("c2", (0, 1, 2, 3))),
                (RequestCode.UNLOCK_BATCH_MQ, None, lock_request("c2", (2, 3))),
            ],
        )
    # All that the batch changed and that are locked were asked for just now; the other group's lock was not.
    gateway.advance(15_000)
    assert lock(client, "c2", 0, group="others") == [0]
    assert lock(client, "c2", 0, 1, 2, 3) == [1, 3]
    client.send_message("%RETRY%workers", "given up")
    gateway.advance(45_000)
    assert lock(client, "c3", 0, 1, 2, 3) == [0, 2]
    unlock(client, "c3", 0, 2)
    unlock(client, "c2", 1, 3)
    client.send_message("%RETRY%workers", "nobody has a lock")
    assert bodies(client.pull("%DLQ%workers")) == ["given up"]
    assert bodies(client.pull("%RETRY%workers")) == ["nobody has a lock"]


def test_pops_in_order_are_what_they_were_and_only_those_of_the_batch_are_read_again(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 20,000 of them, reading all took 331 ms for each batch that a full disk refused."""
    create_topic(client, "others", 1)
    for queue in range(4):
        for body in ("first", "second"):
            client.send_message("orders", f"{body} of {queue}", fields={"queue": queue})
    client.send_message("others", "first")
    one = {"order": "true", "maxMsgNums": 1}
    acked, delayed, _ = (
        handles(ask_pop(gateway, client, **one, queueId=queue))[0] for queue in range(3)
    )
    assert len(pop(gateway, client, **one, topic="others", queueId=0)) == 1
    assert len(pop(gateway, client, **one, consumerGroup="leavers", queueId=0)) == 1
    orders = gateway.service.broker.orders
    places = [Place("consumers", "orders", queue) for queue in range(4)]
    places += [Place("consumers", "others", 0), Place("leavers", "orders", 0)]
    before = [orders.get(place) for place in places]
    assert [pop is None for pop in before] == [False, False, False, True, False, False]

    longer = {**handle_fields(delayed), "invisibleTime": str(3 * INVISIBLE_MS)}
    gateway.advance(1_000)
    with monkeypatch.context() as patched:
        patched.delattr("gateway.pops.orders.read_notes")
        refuse_as_one_batch(
            gateway,
            client,
            [
                (RequestCode.ACK_MESSAGE, handle_fields(acked), b""),
                (RequestCode.POP_MESSAGE, pop_fields(gateway, **one, queueId=0), b""),
                (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, longer, b""),
                (RequestCode.POP_MESSAGE, pop_fields(gateway, **one, queueId=3), b""),
                (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "others"}, b""),
                (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "leavers"}, b""),
            ],
        )
    assert [orders.get(place) for place in places] == before
    stored = PopOrders(gateway.store)
    assert [stored.get(place) for place in places] == before

    waiting = [gateway.connect() for _ in range(2)]
    opaques = [
        waits.send(
            RequestCode.POP_MESSAGE, pop_fields(gateway, **one, queueId=queue, pollTime=20_000)
        )
        for queue, waits in enumerate(waiting)
    ]
    gateway.advance(INVISIBLE_MS - 1_001)
    assert [waits.answer(opaque) for waits, opaque in zip(waiting, opaques, strict=True)] == [
        None,
        None,
    ]
    gateway.advance(501)
    for queue, (waits, opaque) in enumerate(zip(waiting, opaques, strict=True)):
        answer = waits.answer(opaque)
        assert answer is not None
        assert bodies(decode_messages(answer.body)) == [f"first of {queue}"]


def test_a_pop_that_waits_gets_what_a_refused_pop_was_to_have(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """The refused pop would have kept the queue for itself until its time was over."""
    client.send_message("orders", "first")
    client.send_message("orders", "second")
    one = {"order": "true", "maxMsgNums": 1, "queueId": 0}
    ok(ack(client, handles(ask_pop(gateway, client, **one))[0]))
    gateway.advance(INVISIBLE_MS)
    with commits_fail(gateway):
        refused = client.send(RequestCode.POP_MESSAGE, pop_fields(gateway, **one))
        waits = gateway.connect()
        opaque = waits.send(RequestCode.POP_MESSAGE, pop_fields(gateway, **one, pollTime=9_000))
        assert waits.answer(opaque) is None
        answer = client.answer(refused)
    assert answer is not None
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    gateway.advance(1_000)
    answer = waits.answer(opaque)
    assert answer is not None
    assert bodies(decode_messages(answer.body)) == ["second"]


def test_consume_modes_are_what_they_were_and_only_those_of_the_batch_are_read_again(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choice(topic: str, group: str, mode: str) -> bytes:
        return json.dumps({"topic": topic, "consumerGroup": group, "mode": mode}).encode()

    topics, groups = ("kept", "deleted"), ("kept", "deleted", "new")
    for topic in topics:
        create_topic(client, topic)
    for group in groups:
        put_group(client, group)
    code = RequestCode.SET_MESSAGE_REQUEST_MODE
    for topic in topics:
        for group in groups[:2]:
            ok(client.ask(code, None, choice(topic, group, "POP")))
    modes = gateway.service.broker.modes

    def state() -> list[str]:
        return [modes.get(topic, group).mode for topic in topics for group in groups]

    assert state() == ["POP", "POP", "PULL"] * 2
    with monkeypatch.context() as patched:
        patched.delattr("gateway.pops.consume_modes.read_notes")
        refuse_as_one_batch(
            gateway,
            client,
            [
                (code, None, choice("kept", "kept", "PULL")),
                (code, None, choice("kept", "new", "POP")),
                (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "deleted"}, b""),
                (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "deleted"}, b""),
            ],
        )
    assert state() == ["POP", "POP", "PULL"] * 2


def test_a_topic_that_was_made_again_begins_where_it_did(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """A new group would pass over its first message."""
    client.send_message("orders", "of the deleted one")
    ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}))
    client.send_message("orders", "first")
    with commits_fail(gateway):
        for answer in (
            create_topic(client, "orders", 9),
            client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}),
        ):
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert offset_of(client, "orders", 0, "new") == 1
