"""The broker's state and rates as tools read them: 28, 315, 45, 60, 907, 2003, and cleaning up: 306, 316, 329."""

from __future__ import annotations

import random
import struct
import tracemalloc

import pytest

from gateway import topics
from gateway.monitoring.stats import IDLE_MS, SAMPLED_AT_ONCE, History, Samples, Taken
from gateway.wire.codes import RequestCode, ResponseCode
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway
from tests.gateway.tools import ok, read


def figures(client: MemoryClient) -> dict[str, str]:
    table: dict[str, str] = read(client.ask(28))["table"]
    return table


def rates(client: MemoryClient, name: str, key: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = read(client.ask(315, {"statsName": name, "statsKey": key}))
    return found


class TestFigures:
    def test_all_are_text_and_numbers_can_be_read(self, client: MemoryClient) -> None:
        table = figures(client)
        assert all(isinstance(value, str) for value in table.values())
        assert 0 <= float(table["commitLogDiskRatio"]) <= 1
        assert int(table["earliestMessageTimeStamp"]) == -1
        for name in ("putTps", "getTransferredTps", "getTotalTps", "getFoundTps", "getMissTps"):
            assert [float(rate) for rate in table[name].split(" ")] == [0, 0, 0]

    def test_what_went_in_and_out(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        gateway.advance(5_000)
        client.send_message()
        client.send_message(TIMER_DELAY_SEC="100")
        client.send_message()
        client.pull()
        client.pull("orders", 1)
        table = figures(client)
        assert table["msgPutTotalTodayNow"] == "3"
        assert table["msgGetTotalTodayNow"] == "2"
        assert table["timerCongestNum"] == "1"
        assert table["earliestMessageTimeStamp"] == str(START_MS + 5_000)
        assert table["bootTimestamp"] == str(START_MS)
        assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 5 seconds ]"
        assert table["putTps"].split() == ["0.60", "0.60", "0.60"]
        assert table["getTotalTps"].split() == ["0.40", "0.40", "0.40"]
        gateway.advance(101_000)
        table = figures(client)
        assert table["timerCongestNum"] == "0"
        assert table["putTps"].split() == ["0.00", "0.00", "0.03"]

    def test_the_last_ten_seconds_are_more_than_those_since_the_last_sample(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        for sent in range(60):
            gateway.advance(500)
            client.send_message()
            if sent > 10:
                assert float(figures(client)["putTps"].split()[0]) == pytest.approx(2, abs=0.2)

    def test_what_came_before_the_last_ten_seconds_is_left_out(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        for _ in range(6):
            client.send_message()
        gateway.advance(25_000)
        assert figures(client)["putTps"].split() == ["0.00", "0.24", "0.24"]

    def test_totals_of_days(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message()
        gateway.jump(86_400_000)
        gateway.advance(20_000)
        client = gateway.connect()
        client.send_message()
        table = figures(client)
        assert table["msgPutTotalTodayMorning"] == "1"
        assert table["msgPutTotalYesterdayMorning"] == "0"
        assert table["msgPutTotalTodayNow"] == "2"
        gateway.jump(86_400_000)
        gateway.advance(20_000)
        table = figures(gateway.connect())
        assert table["msgPutTotalTodayMorning"] == "2"
        assert table["msgPutTotalYesterdayMorning"] == "1"


class TestRates:
    def test_a_topic_counts_what_enters_its_queues(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        for _ in range(10):
            client.send_message()
        client.send_message(TIMER_DELAY_SEC="30")
        gateway.advance(20_000)
        found = rates(client, "TOPIC_PUT_NUMS", "orders")
        assert found["statsMinute"]["sum"] == 10
        assert found["statsMinute"]["tps"] == pytest.approx(0.5)
        assert found["statsMinute"] == found["statsHour"] == found["statsDay"]
        gateway.advance(10_000)
        assert rates(client, "TOPIC_PUT_NUMS", "orders")["statsMinute"]["sum"] == 11
        gateway.advance(100_000)
        found = rates(client, "TOPIC_PUT_NUMS", "orders")
        assert found["statsMinute"]["sum"] == 0
        assert found["statsHour"]["sum"] == 11

    @pytest.mark.parametrize("step_ms", [-86_400_000, 86_400_000])
    def test_a_clock_that_is_set_changes_no_rate(
        self, gateway: MemoryGateway, client: MemoryClient, step_ms: int
    ) -> None:
        for _ in range(10):
            client.send_message()
        gateway.advance(15_000)
        gateway.set_clock(step_ms)
        gateway.advance(5_000)
        client = gateway.connect()
        for name, key in (("TOPIC_PUT_NUMS", "orders"), ("BROKER_PUT_NUMS", "DefaultCluster")):
            for found in rates(client, name, key).values():
                assert found["sum"] == 10
                assert found["tps"] == pytest.approx(0.5)

    def test_sizes(self, client: MemoryClient) -> None:
        client.send_message()
        client.send_message(body=b"x" * 1_000)
        found = rates(client, "TOPIC_PUT_SIZE", "orders")["statsMinute"]
        size = found["sum"]
        assert 1_000 < size < 2_000
        assert found["avgpt"] == size / 2
        client.pull()
        found = rates(client, "GROUP_GET_SIZE", "orders@consumers")["statsMinute"]
        assert (found["sum"], found["avgpt"]) == (size, size)

    def test_sizes_of_what_came_before_the_minute_are_left_out(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        sizes: list[float] = []
        for offset, body in enumerate(("x" * 1_000, "y")):
            client.send_message(body=body)
            so_far = rates(client, "TOPIC_PUT_SIZE", "orders")["statsHour"]["sum"]
            sizes.append(so_far - sum(sizes))
            client.pull("orders", 0, offset)
            if offset == 0:
                gateway.advance(100_000)
                client = gateway.connect()
        for name, key in (("TOPIC_PUT_SIZE", "orders"), ("GROUP_GET_SIZE", "orders@consumers")):
            found = rates(client, name, key)
            assert (found["statsMinute"]["sum"], found["statsMinute"]["avgpt"]) == (sizes[1],) * 2
            assert found["statsHour"]["sum"] == sum(sizes)
            assert found["statsHour"]["avgpt"] == sum(sizes) / 2
        assert figures(client)["getTransferredTps"].split()[1] == "0.02"
        assert figures(client)["getTransferedTps"].split()[1] == "0.02"

    def test_a_group_counts_what_it_is_handed(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        for _ in range(6):
            client.send_message()
        gateway.advance(600_000)
        client = gateway.connect()
        client.pull(most=2)
        client.pull("orders", 0, 2, most=2)
        found = rates(client, "GROUP_GET_NUMS", "orders@consumers")["statsMinute"]
        assert (found["sum"], found["avgpt"]) == (4, 2)
        gateway.advance(2_000)
        found = rates(client, "GROUP_GET_NUMS", "orders@consumers")["statsMinute"]
        assert found["tps"] >= 4 / 12

    def test_what_is_sent_back(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message()
        [message] = client.pull()
        for times in (1, 2):
            place = {"offset": str(message.physical_offset), "group": "consumers"}
            ok(client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {**place, "delayLevel": "1"}))
            found = rates(client, "SNDBCK_PUT_NUMS", "orders@consumers")["statsMinute"]
            assert found["sum"] == times
            gateway.advance(1_000)
            message = client.pull("%RETRY%consumers")[-1]

    def test_the_broker_counts_what_it_accepts(self, client: MemoryClient) -> None:
        client.send_message()
        client.send_message(TIMER_DELAY_SEC="30")
        client.pull()
        assert rates(client, "BROKER_PUT_NUMS", "DefaultCluster")["statsMinute"]["sum"] == 2
        assert rates(client, "BROKER_GET_NUMS", "DefaultCluster")["statsMinute"]["sum"] == 1

    @pytest.mark.parametrize(
        ("name", "key"),
        [
            ("TOPIC_PUT_NUMS", "NOPE"),
            ("NOSUCH", "orders"),
            ("GROUP_GET_NUMS", "orders@nobody"),
            ("SNDBCK_PUT_NUMS", "orders@consumers"),
            ("BROKER_PUT_NUMS", "OtherCluster"),
        ],
    )
    def test_what_was_never_counted(self, client: MemoryClient, name: str, key: str) -> None:
        client.send_message()
        client.pull()
        answer = client.ask(315, {"statsName": name, "statsKey": key})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == f"The stats <{name}> <{key}> not exist"

    def test_deleted_topics_and_groups_take_their_counts_along(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        def known(topic: str, group: str) -> bool:
            answer = client.ask(
                315, {"statsName": "GROUP_GET_NUMS", "statsKey": f"{topic}@{group}"}
            )
            return answer.code == ResponseCode.SUCCESS

        for topic, group in (("A", "G"), ("B", "G"), ("B", "H")):
            client.send_message(topic)
            client.pull(topic, group=group)
        gateway.advance(10_000)
        client.pull("B", group="new")
        ok(client.ask(215, {"topic": "A"}))
        assert (known("A", "G"), known("B", "G"), known("B", "H")) == (False, True, True)
        ok(client.ask(207, {"groupName": "G"}))
        ok(client.ask(207, {"groupName": "new"}))
        assert (known("B", "G"), known("B", "H"), known("B", "new")) == (False, True, False)

    def test_a_topic_that_is_made_again_counts_from_zero(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message("A")
        client.send_message("B")
        gateway.advance(10_000)
        ok(client.ask(215, {"topic": "A"}))
        gateway.advance(10_000)
        stats = gateway.service.broker.stats
        assert {counter[1] for counter in stats.counters() if counter} == {"B"}
        client.send_message("A")
        assert rates(client, "TOPIC_PUT_NUMS", "A")["statsMinute"]["sum"] == 1

    def test_samples_of_many_topics_are_taken_in_several_turns(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        topics = [f"topic-{number}" for number in range(2 * SAMPLED_AT_ONCE + 1)]
        for topic in topics:
            client.send_message(topic)
        gateway.advance(1_000)
        stats = gateway.service.broker.stats
        assert [stats.sample() for _ in range(3)] == [True, True, False]
        gateway.advance(70_000)
        for topic in topics:
            found = stats.rates("TOPIC_PUT_NUMS", topic)
            assert found is not None
            assert (found.minute.total, found.day.total) == (0, 1)

    def test_a_sample_looks_at_no_more_names_than_it_takes_at_once(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looked_at: list[bytes] = []

        def look_at(topic: bytes) -> tuple[()]:
            looked_at.append(topic)
            return ()

        topics = [b"topic-%d" % number for number in range(3 * SAMPLED_AT_ONCE)]
        monkeypatch.setattr(gateway.store, "open_topics", lambda: topics)
        monkeypatch.setattr(gateway.store, "open_queues", look_at)
        assert gateway.service.broker.stats.sample()
        assert len(looked_at) == SAMPLED_AT_ONCE

    @pytest.mark.parametrize("sent_back", [False, True])
    def test_counts_of_groups_that_are_long_gone_are_dropped(
        self, gateway: MemoryGateway, client: MemoryClient, sent_back: bool
    ) -> None:
        client.send_message()
        [message] = client.pull(group="random-2")
        stats = gateway.service.broker.stats
        name = "GROUP_GET_NUMS"
        if sent_back:
            name = "SNDBCK_PUT_NUMS"
            place = {"offset": str(message.physical_offset), "group": "random-1", "delayLevel": "1"}
            ok(client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, place))
        else:
            client.pull(group="random-1")
        gateway.advance(10_000)
        assert stats.rates(name, "orders@random-1") is not None
        gateway.jump(IDLE_MS)
        client = gateway.connect()
        client.pull(group="random-2")
        gateway.advance(20_000)
        assert stats.rates(name, "orders@random-1") is None
        assert stats.rates("GROUP_GET_NUMS", "orders@random-2") is not None
        assert stats.rates("TOPIC_PUT_NUMS", "orders") is not None

    def test_what_came_into_a_deleted_topic_is_not_counted_for_the_next_of_its_name(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        def count() -> int:
            found = gateway.service.broker.stats.rates("TOPIC_PUT_NUMS", "A")
            return found.minute.total if found is not None else 0

        for _ in range(5):
            client.send_message("A", TIMER_DELAY_SEC="5")
        ok(client.ask(215, {"topic": "A"}))
        gateway.advance(10_000)
        assert count() == 5
        gateway.advance(80_000)
        client.send_message("A")
        gateway.advance(10_000)
        assert count() == 1


class TestHistories:
    DAY = 6 * 60 * 24
    """Samples in a day."""

    def test_rates_are_those_of_all_samples_however_long_a_counter_rests(self) -> None:
        chance = random.Random(7)
        samples = Samples(START_MS)
        history = History(START_MS, 2)
        taken = [(START_MS, START_MS, 0, 0)]
        rests = 0
        for number in range(1, 3 * self.DAY):
            if not rests and chance.random() < 0.01:
                rests = chance.choice((3, 30, 400, 2_000))
            step = 0 if rests else chance.randrange(3)
            rests = max(0, rests - 1)
            begun, _, value, times = taken[-1]
            begun += 10_000
            # Work shortly before and after it belongs to the same sample.
            noted = begun + 3 if step else begun
            taken.append((begun, noted, value + 2 * step, times + step))
            history.add(begun + 3, list(taken[-1][2:]), samples)
            samples.add(Taken(begun, begun + 5))
            if number % 97:
                continue
            now_ms, counts = begun + 5_000, [value + 20, times + 10]
            rates = history.rates(samples, now_ms, counts, 0, 1)
            for rate, every, most in zip(rates, (1, 60, 360), (7, 7, 25), strict=True):
                _, noted, value_then, times_then = taken[::every][-most:][0]
                total = counts[0] - value_then
                per_second = total * 1000 / (now_ms - noted) if total else 0.0
                per_time = total / (counts[1] - times_then) if total else 0.0
                assert rate == pytest.approx((total, per_second, per_time))

    def test_one_that_rests_takes_little_memory_and_another_one_not_much(self) -> None:
        samples = Samples(START_MS)
        histories = [History(START_MS, 2) for _ in range(10)]

        def live_a_day(busy: bool) -> None:
            for number in range(self.DAY):
                begun = samples.last.begun + 10_000
                for history in histories:
                    history.add(begun, [number, number] if busy else [1, 1], samples)
                samples.add(Taken(begun, begun))

        tracemalloc.start()
        try:
            live_a_day(busy=True)
            busy = tracemalloc.get_traced_memory()[0] / len(histories)
            live_a_day(busy=False)
            resting = tracemalloc.get_traced_memory()[0] / len(histories)
            # About 500 of these bytes are the times of the samples, which all histories share.
            assert (busy < 1_800, resting < 800) == (True, True)
        finally:
            tracemalloc.stop()


def test_delay_offsets(client: MemoryClient) -> None:
    client.send_message(DELAY="3")
    assert read(client.ask(45))["offsetTable"] == {}


def test_timer_checkpoint(client: MemoryClient) -> None:
    body = ok(client.ask(60)).body
    assert len(body) == 56
    assert struct.unpack(">7q", body)[0] == START_MS


def test_replicas(client: MemoryClient) -> None:
    client.send_message()
    body = read(client.ask(907))
    assert (body["master"], body["inSyncSlaveNums"], body["haConnectionInfo"]) == (True, 0, [])
    assert body["masterCommitLogMaxOffset"] == 2


def test_cold_data(client: MemoryClient) -> None:
    assert read(client.ask(2003))["runtimeTable"] == {}


@pytest.mark.parametrize("code", [306, 316, 329])
def test_cleaning_up_now(
    gateway: MemoryGateway,
    client: MemoryClient,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "CLEARED_AT_ONCE", 1)
    client.send_message("gone")
    client.send_message("gone")
    client.send_message("kept")
    ok(client.ask(215, {"topic": "gone"}))
    assert gateway.store.queue(b"gone", 0).first == 1
    ok(client.ask(code))
    assert gateway.store.queue(b"gone", 0).first == 2
    assert gateway.store.queue(b"kept", 0).first == 0


@pytest.mark.parametrize("code", [27, 901])
def test_what_upstream_does_not_answer_either(client: MemoryClient, code: int) -> None:
    assert client.ask(code).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
