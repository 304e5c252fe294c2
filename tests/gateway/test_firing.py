"""Firing: in order, in bounded steps, and at the right moment whatever happens to the clock and the gateway."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gateway import firing
from gateway.wire.codes import RequestCode, ResponseCode
from storage import fire_due
from tests.gateway.faults import damaged_row
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway, bodies

HOUR_MS = 3_600_000


def send_all(client: MemoryClient, delays_ms: list[int]) -> None:
    """Send a message for each delay, with its number as its body."""
    for number, delay_ms in enumerate(delays_ms):
        answer = client.send_message("orders", str(number), TIMER_DELAY_MS=str(delay_ms))
        assert answer.code == ResponseCode.SUCCESS


class TestOrder:
    def test_within_a_millisecond_as_accepted(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send_all(client, [50] * 30)
        gateway.advance(50)
        assert bodies(client.pull()) == [str(number) for number in range(30)]

    def test_by_due_time(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send_all(client, [30, 10, 20, 10, 40])
        # All of them become due at the same moment.
        gateway.jump(100)
        assert bodies(client.pull()) == ["1", "3", "2", "0", "4"]

    def test_behind_what_is_already_there(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send_all(client, [10])
        client.send_message("orders", "now")
        gateway.advance(10)
        client.send_message("orders", "then")
        assert bodies(client.pull()) == ["now", "0", "then"]


class TestWakeUp:
    def test_is_one_for_all(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        scheduled = len(gateway.reactor.getDelayedCalls())
        for delay_ms in range(900, 400, -100):
            client.send_message(TIMER_DELAY_MS=str(delay_ms))
            assert len(gateway.reactor.getDelayedCalls()) == scheduled

    @pytest.mark.parametrize("delay_ms", [1, 7, 499, 500, 501, 999, 1_000, 1_001, 1_713, 65_432])
    def test_at_the_millisecond(
        self, gateway: MemoryGateway, client: MemoryClient, delay_ms: int
    ) -> None:
        gateway.advance(237)
        send_all(client, [delay_ms])
        gateway.advance(delay_ms - 1)
        assert client.pull() == []
        gateway.advance(1)
        assert bodies(client.pull()) == ["0"]

    def test_is_moved_when_an_earlier_one_arrives(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send_all(client, [900])
        gateway.advance(100)
        send_all(client, [300])
        gateway.advance(50)
        send_all(client, [20])
        for elapsed_ms, count in ((19, 0), (1, 1), (229, 1), (1, 2), (499, 2), (1, 3)):
            gateway.advance(elapsed_ms)
            assert len(client.pull()) == count

    def test_a_later_one_does_not_move_it(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send_all(client, [100])
        gateway.advance(50)
        send_all(client, [4_000])
        gateway.advance(49)
        assert client.pull() == []
        gateway.advance(1)
        assert len(client.pull()) == 1

    def test_after_the_earliest_is_aborted(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        handle = client.send_message(TIMER_DELAY_MS="100").ext()["recallHandle"]
        send_all(client, [250])
        assert client.recall("orders", handle).code == ResponseCode.SUCCESS
        gateway.advance(249)
        assert client.pull() == []
        gateway.advance(1)
        assert bodies(client.pull()) == ["0"]

    @pytest.mark.parametrize("table", ["timers", "planned"])
    def test_is_not_for_a_key_that_was_cut(self, gateway: MemoryGateway, table: str) -> None:
        """Its few bytes are a time long ago, but it is behind all that is due: each step was followed by another."""
        with damaged_row(gateway, table, b"\0\0\2", lambda _: b""):
            gateway.advance(1_000)
            client = gateway.connect()
            send_all(client, [100])
            gateway.advance(100)
            assert bodies(client.pull()) == ["0"]

    def test_nothing_is_written_while_nothing_happens(self, gateway: MemoryGateway) -> None:
        gateway.advance(11_000)
        gateway.store.checkpoint()
        environment = gateway.store.environment
        before = environment.lmdb.info()["last_txnid"]
        gateway.advance(9_000)
        assert environment.lmdb.info()["last_txnid"] == before
        assert environment.log.size == 0


class TestManyAtOnce:
    def test_leave_in_bounded_steps_while_sends_go_on(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(firing, "MAX_FIRED", 10)
        send_all(client, [1_000] * 95)
        gateway.advance(999)
        gateway.reactor.rightNow += 0.001
        counter = gateway.service.broker.firing
        steps = []
        answered_after = []
        fired = 0
        for turn in range(20):
            opaque = client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields("other"), b"x")
            gateway.reactor.turn()
            steps.append(counter.fired - fired)
            fired = counter.fired
            if f'"opaque":{opaque},'.encode() in client.transport.value():
                answered_after.append(turn)
        assert max(steps) == 10
        assert fired == 95
        # The commit that fires the next messages also answers the send.
        assert answered_after == list(range(20))
        client.take()
        assert bodies(client.pull_all()) == [str(number) for number in range(95)]

    def test_another_topic_has_its_turn_in_the_same_step_and_counts(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(firing, "MAX_FIRED", 10)
        send_all(client, [1_000] * 30)
        client.send_message("other", "behind", TIMER_DELAY_MS="1001")
        gateway.advance(999)
        gateway.reactor.rightNow += 0.002
        gateway.reactor.turn()
        assert gateway.service.broker.firing.fired == 11
        assert bodies(client.pull("other")) == ["behind"]

    def test_all_at_their_millisecond(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        batch = [(str(n), {"TIMER_DELAY_MS": "700"}) for n in range(3_500)]
        client.send_batch(batch)
        gateway.advance(699)
        assert client.pull() == []
        gateway.advance(1)
        assert bodies(client.pull_all()) == [str(n) for n in range(3_500)]


class TestGathering:
    """If many messages are due each millisecond, they wait some milliseconds for each other. Few do not wait."""

    def send_stream(self, client: MemoryClient, per_ms: int, from_ms: int, to_ms: int) -> None:
        """Have so many messages due in each millisecond, with the due time as body."""
        items = [
            (str(due_ms), {"TIMER_DELIVER_MS": str(START_MS + due_ms)})
            for due_ms in range(from_ms, to_ms)
            for _ in range(per_ms)
        ]
        assert client.send_batch(items).code == ResponseCode.SUCCESS

    def arrivals(self, gateway: MemoryGateway, client: MemoryClient, ms: int) -> list[list[int]]:
        """Return, for each of the next milliseconds, the due times of the messages that arrive in it."""
        arrived: list[list[int]] = []
        offset = 0
        for _ in range(ms):
            gateway.advance(1)
            due: list[int] = []
            while page := client.pull("orders", 0, offset + len(due)):
                due += map(int, bodies(page))
            offset += len(due)
            arrived.append(due)
        return arrived

    @pytest.mark.parametrize(
        ("per_ms", "wait_ms"), [(5, 2), (10, 7), (20, firing.LONGEST_GATHERING_MS)]
    )
    def test_many_fire_together(
        self, gateway: MemoryGateway, client: MemoryClient, per_ms: int, wait_ms: int
    ) -> None:
        self.send_stream(client, per_ms, 1_000, 1_200)
        gateway.advance(999)
        arrived = self.arrivals(gateway, client, 210)
        assert sorted(due for step in arrived for due in step) == [
            due for due in range(1_000, 1_200) for _ in range(per_ms)
        ]
        late = [1_000 + at - due for at, step in enumerate(arrived) for due in step]
        assert min(late) == 0
        assert max(late) == wait_ms - 1
        steps = [at for at, step in enumerate(arrived[100:190]) if step]
        assert {later - at for at, later in pairwise(steps)} == {wait_ms}

    @pytest.mark.parametrize("per_ms", [1, 2, 3])
    def test_few_fire_at_their_millisecond(
        self, gateway: MemoryGateway, client: MemoryClient, per_ms: int
    ) -> None:
        self.send_stream(client, per_ms, 1_000, 1_100)
        gateway.advance(999)
        for at, step in enumerate(self.arrivals(gateway, client, 100)):
            assert step == [1_000 + at] * per_ms

    def test_one_behind_many_fires_at_its_millisecond(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        self.send_stream(client, 10, 1_000, 1_200)
        self.send_stream(client, 1, 1_210, 1_211)
        gateway.advance(1_209)
        behind = len(client.pull_all())
        assert behind == 2_000
        gateway.advance(1)
        assert bodies(client.pull("orders", 0, behind)) == ["1210"]

    def test_sends_are_answered_meanwhile(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        self.send_stream(client, 10, 1_000, 1_200)
        gateway.advance(1_100)
        for _ in range(8):
            gateway.advance(1)
            assert client.send_message("other").code == ResponseCode.SUCCESS

    def test_those_that_wait_can_be_aborted(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        self.send_stream(client, 10, 1_000, 1_200)
        gateway.advance(1_150)
        fired = gateway.service.broker.firing.fired
        while gateway.service.broker.firing.fired == fired:
            gateway.advance(1)
        handle = client.send_message("other", TIMER_DELAY_MS="1").ext()["recallHandle"]
        gateway.advance(1)
        assert client.recall("other", handle).code == ResponseCode.SUCCESS
        gateway.advance(10)
        assert client.pull("other") == []

    def test_a_clock_set_back_keeps_nobody_waiting(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        self.send_stream(client, 10, 1_000, 1_100)
        gateway.advance(1_099)
        gateway.set_clock(-50)
        client.send_message("other", "new", TIMER_DELAY_MS="5")
        gateway.advance(4)
        assert client.pull("other") == []
        gateway.advance(1)
        assert bodies(client.pull("other")) == ["new"]


class TestRestart:
    def test_in_the_middle(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send_all(client, [100, 200, 300, 400])
        gateway.advance(250)
        gateway.restart()
        client = gateway.connect()
        assert bodies(client.pull()) == ["0", "1"]
        gateway.advance(49)
        assert bodies(client.pull()) == ["0", "1"]
        gateway.advance(1)
        assert bodies(client.pull()) == ["0", "1", "2"]
        gateway.advance(100)
        assert bodies(client.pull()) == ["0", "1", "2", "3"]

    def test_overdue_messages_fire_at_once_and_in_order(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send_all(client, [3_000, 1_000, 2_000, HOUR_MS])
        gateway.stop()
        gateway.jump(10_000)
        gateway.start()
        client = gateway.connect()
        assert bodies(client.pull()) == ["1", "2", "0"]
        assert [message.store_ms for message in client.pull()] == [START_MS + 10_000] * 3
        [waiting] = client.look_up()
        assert waiting["dueMs"] == START_MS + HOUR_MS

    def test_a_crash_while_firing(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(firing, "MAX_FIRED", 4)
        send_all(client, [100] * 10)
        gateway.advance(99)
        gateway.reactor.rightNow += 0.001
        gateway.elapsed_ms += 1
        gateway.reactor.turn()
        # The second step has moved its messages. The process dies before the commit.
        fire_due(gateway.store, gateway.now_ms, gateway.now_ms, 4)
        assert gateway.service.broker.firing.fired == 4
        gateway.crash()
        assert bodies(gateway.connect().pull()) == [str(number) for number in range(10)]
        gateway.check()


class TestClock:
    def test_set_back_timers_wait_for_it(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send_all(client, [1_000])
        gateway.advance(500)
        gateway.set_clock(-HOUR_MS)
        gateway.advance(5_000)
        assert client.pull() == []
        gateway.jump(HOUR_MS - 4_500 - 1)
        assert gateway.connect().pull() == []
        gateway.advance(1)
        assert bodies(gateway.connect().pull()) == ["0"]

    def test_set_back_new_timers_count_from_it(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send_all(client, [2_000])
        gateway.set_clock(-HOUR_MS)
        client.send_message("orders", "new", TIMER_DELAY_MS="300")
        gateway.advance(299)
        assert client.pull() == []
        gateway.advance(1)
        assert bodies(client.pull()) == ["new"]

    def test_set_forward_what_came_due_fires_soon(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send_all(client, [HOUR_MS, 2 * HOUR_MS, 60_000])
        gateway.set_clock(HOUR_MS)
        gateway.advance(1_000)
        assert bodies(client.pull()) == ["2", "0"]
        gateway.jump(HOUR_MS - 1_000)
        assert bodies(gateway.connect().pull()) == ["2", "0", "1"]

    def test_set_forward_and_corrected(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        """Times in queues do not go back, so a search by time still works."""
        gateway.set_clock(HOUR_MS)
        client.send_message("orders", "ahead")
        gateway.set_clock(-HOUR_MS)
        client.send_message("orders", "after")
        send_all(client, [10])
        gateway.advance(10)
        times = [message.store_ms for message in client.pull()]
        assert times == sorted(times)
        gateway.check()

    @pytest.mark.parametrize("timed", [False, True])
    def test_set_back_while_the_gateway_is_down(
        self, gateway: MemoryGateway, client: MemoryClient, timed: bool
    ) -> None:
        delay = {"TIMER_DELAY_MS": "10"} if timed else {}
        client.send_message("orders", "before", UNIQ_KEY="A", properties=delay)
        client.send_message("other", "before", UNIQ_KEY="B", fields={"queue": 1})
        gateway.advance(20)
        gateway.stop()
        gateway.set_clock(-HOUR_MS)
        gateway.start()
        client = gateway.connect()
        client.send_message("orders", "after", UNIQ_KEY="C", properties=delay)
        gateway.advance(20)
        messages = client.pull()
        assert bodies(messages) == ["before", "after"]
        times = [message.store_ms for message in messages]
        assert times == sorted(times)
        gateway.check()
