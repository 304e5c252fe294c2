"""Failed commits: every waiting client gets an error, nothing is lost, and what is due fires later."""

from __future__ import annotations

from typing import ClassVar

import lmdb
import pytest
from twisted.logger import capturedLogs, formatEvent

from gateway.parked import WOKEN_AT_ONCE
from gateway.topics import CHECKED_OUT_TOPIC
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.messages import Message
from storage import StorageError, Store, logged
from storage.logged import LoggedTransaction
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import commits_fail, file_cannot_grow
from tests.gateway.memory import MemoryClient, MemoryGateway, bodies
from tests.gateway.test_pop import INVISIBLE_MS, ask_pop, pop
from tests.gateway.test_send_back import send_back
from tests.gateway.test_transactions import begin
from tests.gateway.tools import (
    by_queue,
    commit_offset,
    create_topic,
    offset_of,
    ok,
    put_group,
    read,
)
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


def test_a_write_that_a_full_disk_cut_short_is_told_from_a_broken_disk(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB reports an input/output error in both cases."""
    client.send_message("orders", "before")
    monkeypatch.setattr(gateway.store.environment, "disk_free", lambda: 0)
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
            assert [line for line in told if "could not be stored" not in line] == []
            gateway.advance(10_000)
        return [formatEvent(event) for event in logs[len(told) :]]

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
