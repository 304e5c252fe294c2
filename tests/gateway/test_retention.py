"""Retention removes fired, aborted and untimed messages after a while; pending ones stay whatever their age."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gateway import broker, retention
from gateway.topics import Topic, Topics
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.messages import (
    BatchItem,
    decode_messages,
    encode_batch,
    parse_offset_msg_id,
)
from storage import usage_of
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import commits_fail
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway, bodies
from tests.gateway.metrics import Scrape
from tests.gateway.tools import create_topic, ok

HOUR_MS = 3_600_000


def offset_of(client: MemoryClient, **properties: str) -> int:
    """Send a message, and return its physical offset."""
    return parse_offset_msg_id(client.send_message(properties=properties).ext()["msgId"])[1]


def is_there(gateway: MemoryGateway, offset: int) -> bool:
    """Whether the gateway still has the message."""
    answer = gateway.connect().ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
    return answer.code == ResponseCode.SUCCESS


def pass_hours(gateway: MemoryGateway, hours: float) -> None:
    """Let hours pass, and have a clean-up run."""
    gateway.jump(int(hours * HOUR_MS))
    gateway.advance(20_000)


class TestAge:
    def test_of_what_is_in_a_queue(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        old = offset_of(client)
        pass_hours(gateway, 24)
        young = offset_of(gateway.connect())
        pass_hours(gateway, 47.9)
        assert is_there(gateway, old)
        pass_hours(gateway, 0.2)
        assert not is_there(gateway, old)
        assert is_there(gateway, young)
        client = gateway.connect()
        [message] = client.pull(offset=1)
        assert message.queue_offset == 1
        pass_hours(gateway, 24)
        assert not is_there(gateway, young)

    def test_counts_from_firing(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        offset = offset_of(client, TIMER_DELAY_MS=str(100 * HOUR_MS))
        pass_hours(gateway, 100)
        assert is_there(gateway, offset)
        pass_hours(gateway, 71.9)
        assert is_there(gateway, offset)
        pass_hours(gateway, 0.3)
        assert not is_there(gateway, offset)

    def test_counts_from_the_abort(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        offset = offset_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS=str(1_000 * HOUR_MS))
        pass_hours(gateway, 100)
        client = gateway.connect()
        client.abort(id="ID1")
        pass_hours(gateway, 71.9)
        assert gateway.connect().look_up(id="ID1", state="aborted") != []
        pass_hours(gateway, 0.2)
        assert gateway.connect().look_up(id="ID1", state="any") == []
        assert not is_there(gateway, offset)

    def test_what_has_not_fired_stays(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message("orders", "later", TIMER_DELAY_MS=str(700 * 24 * HOUR_MS))
        for _ in range(7):
            pass_hours(gateway, 99 * 24)
        assert len(gateway.connect().look_up()) == 1
        pass_hours(gateway, 7 * 24)
        assert bodies(gateway.connect().pull()) == ["later"]

    @pytest.mark.parametrize("hours", [0.5, 200])
    def test_by_setting(self, make_gateway: MakeGateway, hours: float) -> None:
        gateway = make_gateway(retention_hours=hours)
        offset = offset_of(gateway.connect())
        pass_hours(gateway, hours - 0.1)
        assert is_there(gateway, offset)
        pass_hours(gateway, 0.2)
        assert not is_there(gateway, offset)

    def test_none_at_all(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(retention_hours=0)
        client = gateway.connect()
        offset_of(client)
        offset_of(client, TIMER_DELAY_MS="30000")
        gateway.advance(20_000)
        assert gateway.connect().pull() == []
        assert len(gateway.connect().look_up()) == 1


class TestTraces:
    def test_every_index_forgets(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        offset_of(client, UNIQ_KEY="ID1", KEYS="k1 k2", TIMER_DELAY_MS="500")
        gateway.advance(500)
        pass_hours(gateway, 73)
        client = gateway.connect()
        assert client.look_up(id="ID1", state="any") == []
        assert client.look_up(key="k1", state="any") == []
        handle_gone = client.abort(id="ID1")
        assert [result["outcome"] for result in handle_gone] == ["unknown"]
        gateway.check()

    def test_offsets_count_on(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        for _ in range(3):
            offset_of(client)
        pass_hours(gateway, 73)
        gateway.restart()
        client = gateway.connect()
        assert client.send_message("orders", "next").ext()["queueOffset"] == "3"
        assert bodies(client.pull(offset=3)) == ["next"]

    @pytest.mark.parametrize("crash", [False, True])
    def test_offset_ids_are_never_used_again(
        self, gateway: MemoryGateway, client: MemoryClient, crash: bool
    ) -> None:
        last = [offset_of(client) for _ in range(5)][-1]
        pass_hours(gateway, 73)
        gateway.crash() if crash else gateway.restart()
        assert offset_of(gateway.connect()) > last

    def test_consumers_are_told_where_to_go_on(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        for _ in range(3):
            offset_of(client)
        pass_hours(gateway, 73)
        answer = gateway.connect().ask_pull(offset=1)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.ext()["nextBeginOffset"] == "3"


class TestSteps:
    def test_keep_up_with_batches(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retention, "EXPIRE_STEP", 2)
        ok(create_topic(client, "orders", attributes="+retention=1m"))
        ok(client.send_batch((str(number), {}) for number in range(100)))
        gateway.advance(55_000)
        gateway.reactor.rightNow += 15
        ext = client.send_fields("orders", batch=True)
        batch = encode_batch([BatchItem(0, b"x", "")] * 10)
        queue = gateway.store.queue(b"orders", 0)
        turns = 0
        while queue.first < 100 and turns < 15:
            client.send(RequestCode.SEND_BATCH_MESSAGE, ext, batch)
            gateway.reactor.turn()
            turns += 1
        assert (queue.first, queue.visible) == (100, 100 + 10 * turns)

    @pytest.mark.parametrize("turn_s", [0.05, 11])
    def test_leave_room_for_sends(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        monkeypatch: pytest.MonkeyPatch,
        turn_s: float,
    ) -> None:
        """This includes the steps of a clean-up that is not done when the next one is due."""
        monkeypatch.setattr(retention, "EXPIRE_STEP", 100)
        for topic in range(3):
            client.send_batch(((str(n), {}) for n in range(150)), f"topic{topic}")
        gateway.elapsed_ms += 73 * HOUR_MS
        gateway.reactor.rightNow = gateway.elapsed_ms / 1000
        client = gateway.connect()
        removed = []
        left = 450
        for number in range(30):
            client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields("busy"), b"x")
            gateway.reactor.turn()
            gateway.reactor.rightNow += turn_s
            now_left = gateway.queued() - number - 1
            removed.append(left - now_left)
            left = now_left
        assert max(removed) == 100
        assert left == 0
        assert len(client.pull_all("busy")) == 30

    def test_end_with_one_that_is_refused(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The disk may be full for days. Each clean-up tries once."""
        monkeypatch.setattr(retention, "EXPIRE_STEP", 5)
        client.send_batch((str(n), {}) for n in range(30))
        gateway.advance(1_000)
        gateway.set_clock(73 * HOUR_MS)
        meter = gateway.service.broker.committer.meter
        with commits_fail(gateway):
            gateway.advance(20_000)
            assert meter.refused == 2
        gateway.advance(10_000)
        assert gateway.queued() == 0

    def test_go_on_after_a_restart(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retention, "EXPIRE_STEP", 100)
        client.send_batch((str(n), {}) for n in range(350))
        gateway.stop()
        gateway.jump(73 * HOUR_MS)
        gateway.start()
        gateway.elapsed_ms += 10_000
        gateway.reactor.rightNow = gateway.elapsed_ms / 1000
        while gateway.queued() == 350:
            gateway.reactor.turn()
        assert gateway.queued() > 0
        gateway.crash()
        gateway.advance(20_000)
        answer = gateway.connect().ask_pull()
        assert answer.ext()["minOffset"] == "350"


class TestRemoval:
    """What has expired is removed in rounds, which are spread over time."""

    ROUND_MS = 150_000

    @pytest.fixture
    def expired(self, make_gateway: MakeGateway) -> MemoryGateway:
        """A gateway with 1,000 messages that have just expired, in the first moments of a round."""
        gateway = make_gateway(retention_hours=1)
        client = gateway.connect()
        for _ in range(10):
            client.send_batch((str(n), {}) for n in range(100))
        gateway.jump(HOUR_MS + 1)
        gateway.advance(12_000)
        assert gateway.queued() == 0
        return gateway

    def left(self, gateway: MemoryGateway) -> int:
        return usage_of(gateway.store).messages - gateway.queued()

    def test_is_spread_over_a_round(self, expired: MemoryGateway) -> None:
        counts = []
        for _ in range(4):
            counts.append(self.left(expired))
            expired.advance(self.ROUND_MS // 4)
        assert counts == pytest.approx([900, 700, 450, 150], abs=150)
        assert self.left(expired) == 0

    def test_of_what_expires_meanwhile_waits_for_the_next_round(
        self, expired: MemoryGateway
    ) -> None:
        client = expired.connect()
        ok(create_topic(client, "bills", attributes="+retention=1m"))
        client.send_batch(((str(n), {}) for n in range(100)), "bills")
        expired.advance(self.ROUND_MS - 15_000)
        assert expired.queued() == 0
        assert 0 < self.left(expired) < 100
        expired.advance(30_000)
        assert self.left(expired) == 0

    @pytest.mark.parametrize("code", [306, 316, 329])
    def test_is_done_at_once_for_a_tool(self, expired: MemoryGateway, code: int) -> None:
        expired.advance(self.ROUND_MS)
        client = expired.connect()
        ok(create_topic(client, "orders", attributes="+retention=1m"))
        client.send_batch((str(n), {}) for n in range(300))
        expired.advance(80_000)
        assert expired.queued() == 0
        assert self.left(expired) > 0
        ok(expired.connect().ask(code))
        expired.advance(12_000)
        assert self.left(expired) == 0

    @pytest.mark.parametrize("code", [306, 316, 329])
    def test_a_tool_hurries_the_round_that_goes_on(self, expired: MemoryGateway, code: int) -> None:
        assert self.left(expired) > 500
        ok(expired.connect().ask(code))
        expired.advance(2_000)
        assert self.left(expired) == 0

    def test_hurries_when_the_disk_is_full(
        self, expired: MemoryGateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.left(expired) > 500
        monkeypatch.setattr(expired.store.environment, "disk_free", lambda: 0)
        expired.advance(12_000)
        assert self.left(expired) == 0

    def test_rounds_begin_often_enough_for_what_is_deleted(
        self, make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Others may be kept for ever."""
        monkeypatch.setattr(retention, "MOST_SECONDS", 60)
        gateway = make_gateway(retention_hours=876_000)
        for topic in ("orders", "bills"):
            client = gateway.connect()
            ok(create_topic(client, topic))
            client.send_message(topic)
            ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))
            assert self.left(gateway) == 1
            gateway.advance(75_000)
            assert self.left(gateway) == 0

    def test_begins_although_messages_expire_all_the_time(self, make_gateway: MakeGateway) -> None:
        """In each clean-up more than one step can take."""
        gateway = make_gateway(retention_hours=0.02)
        client = gateway.connect()
        counts = []
        for _ in range(400):
            client.send_batch((str(n), {}) for n in range(100))
            gateway.advance(1_000)
            counts.append(self.left(gateway))
        assert max(counts) < 4_000
        assert max(counts[300:]) <= max(counts[:300])

    def test_is_no_faster_because_many_arrive(self, expired: MemoryGateway) -> None:
        client = expired.connect()
        counts = [self.left(expired)]
        for _ in range(30):
            for _ in range(5):
                client.send_batch(((str(n), {}) for n in range(100)), "busy")
            expired.advance(1_000)
            counts.append(self.left(expired))
        steps = [before - after for before, after in pairwise(counts)]
        assert max(steps) == 100

    def test_keeps_up_when_it_is_late(
        self, expired: MemoryGateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retention, "REMOVE_STEP", 2)
        client = expired.connect()
        ok(client.ask(306))
        expired.advance(1_000)
        assert self.left(expired) > 500
        expired.advance(2_000)
        before = self.left(expired)
        for _ in range(10):
            client.send_batch(((str(n), {}) for n in range(10)), "busy")
            expired.advance(10)
        assert before - self.left(expired) == pytest.approx(200, abs=40)

    def test_goes_on_after_a_crash(self, expired: MemoryGateway) -> None:
        assert self.left(expired) > 500
        expired.crash()
        assert self.left(expired) > 500
        assert expired.connect().pull(offset=0) == []
        expired.advance(self.ROUND_MS)
        assert self.left(expired) == 0

    def test_that_fails_is_tried_again(self, expired: MemoryGateway) -> None:
        before = self.left(expired)
        with commits_fail(expired):
            expired.advance(self.ROUND_MS // 2)
        assert self.left(expired) == pytest.approx(before, abs=100)
        expired.advance(2 * self.ROUND_MS)
        assert self.left(expired) == 0


class TestDeletedTopics:
    def delete(self, client: MemoryClient, topic: str) -> None:
        answer = client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        assert answer.code == ResponseCode.SUCCESS

    def test_their_messages_go_soon(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message("bills")
        offset = offset_of(client)
        self.delete(client, "orders")
        gateway.advance(20_000)
        assert not is_there(gateway, offset)
        assert len(gateway.connect().pull("bills")) == 1

    def test_what_fires_into_them_goes_too(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        offset = offset_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="30000")
        self.delete(client, "orders")
        gateway.advance(20_000)
        assert is_there(gateway, offset)
        gateway.advance(31_000)
        assert not is_there(gateway, offset)

    def test_can_be_made_again(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        offset_of(client)
        self.delete(client, "orders")
        gateway.advance(20_000)
        client = gateway.connect()
        client.send_message("orders", "new")
        answer = client.ask_pull()
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert bodies(client.pull(offset=int(answer.ext()["nextBeginOffset"]))) == ["new"]

    def test_nothing_of_them_stays_in_memory(self, gateway: MemoryGateway) -> None:
        client = gateway.connect()
        ok(create_topic(client, "orders", attributes="+max.held.messages=1,+max.send.rate=100"))
        client.send_message("orders", TIMER_DELAY_MS="100")
        assert client.send_message("orders", TIMER_DELAY_MS="100").code != ResponseCode.SUCCESS
        gateway.advance(100)
        scrape = Scrape(gateway)
        of_topics = ("rocketmq_timer_enqueue_total", "rocketmq_timer_dequeue_total")
        assert all(scrape.by(name, "topic") == {"orders": 1} for name in of_topics)
        self.delete(client, "orders")
        gateway.advance(20_000)
        scrape = Scrape(gateway)
        assert all(scrape.by(name, "topic") == {} for name in of_topics)
        assert scrape.by("tidegate_quota_refusals_total", "topic") == {}
        assert gateway.store.open_topics() == []
        assert gateway.store.timed_total == 1
        client.send_message("orders", "new")
        assert bodies(client.pull(offset=1)) == ["new"]

    def test_nothing_of_what_fires_into_them_stays_in_memory(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message("orders", TIMER_DELAY_MS="60000")
        self.delete(client, "orders")
        gateway.advance(80_000)
        assert gateway.queued() == 0
        assert Scrape(gateway).by("rocketmq_timer_dequeue_total", "topic") == {}
        assert gateway.store.open_topics() == []

    def test_nothing_of_them_stays_in_memory_under_load(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """A batch is open when the deletion begins, as is usual under load."""
        broker = gateway.service.broker

        def change() -> None:
            gateway.store.put_note(b"name", b"value")
            broker.committer.change()

        client.send_message("orders")
        self.delete(client, "orders")
        gateway.reactor.callLater(9.9, change)
        gateway.jump(10_000)
        gateway.advance(100)
        assert gateway.store.open_topics() == []

    def test_nothing_of_those_that_nobody_has_touched_is_looked_at(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.send_message("bills")
        client.send_message("orders")
        gateway.advance(10_000)
        asked: list[str] = []
        get = Topics.get

        def counted(topics: Topics, name: str) -> Topic | None:
            asked.append(name)
            return get(topics, name)

        self.delete(client, "orders")
        with monkeypatch.context() as patched:
            patched.setattr(Topics, "get", counted)
            gateway.service.broker.forget_deleted()
        assert asked == ["orders"]

    def test_many_are_looked_at_in_several_turns(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After all of 50,000 topics were touched, the check for deleted ones held up all other requests for 50 ms."""
        monkeypatch.setattr(broker, "FORGOTTEN_AT_ONCE", 2)
        names = [f"orders{number}" for number in range(7)]
        for name in names:
            client.send_message(name)
        gateway.advance(20_000)
        for name in names[:5]:
            self.delete(client, name)
        asked: list[str] = []
        get = Topics.get

        def counted(topics: Topics, name: str) -> Topic | None:
            asked.append(name)
            return get(topics, name)

        rounds = []
        with monkeypatch.context() as patched:
            patched.setattr(Topics, "get", counted)
            while gateway.service.broker.forget_deleted():
                rounds.append(len(asked))
        assert rounds == [2, 4]
        assert sorted(asked) == names[:5]
        assert sorted(gateway.store.open_topics()) == [name.encode() for name in names[5:]]

    def test_who_waits_gets_the_first_of_one_made_again(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message("orders", "old")
        opaque = client.park("orders", 0, 1)
        self.delete(client, "orders")
        gateway.advance(12_000)
        gateway.connect().send_message("orders", "new")
        answer = client.answer(opaque)
        assert answer is not None
        assert bodies(decode_messages(answer.body)) == ["new"]


def test_a_clock_set_far_forward_and_corrected(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """A clock set forward makes everything old, and that cannot be undone. Later messages are safe."""
    client.send_message("orders", "before")
    gateway.set_clock(1_000 * HOUR_MS)
    gateway.advance(20_000)
    assert client.pull() == []
    gateway.set_clock(-1_000 * HOUR_MS)
    client = gateway.connect()
    client.send_message("orders", "after")
    gateway.advance(60_000)
    assert bodies(gateway.connect().pull(offset=1)) == ["after"]
    assert gateway.now_ms < START_MS + HOUR_MS
