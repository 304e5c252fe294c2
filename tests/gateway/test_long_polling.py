"""Waiting pulls: woken by messages that arrive or fire, answered at their deadline, dropped with their client."""

from __future__ import annotations

import pytest

from gateway import parked
from gateway.parked import MANY_TAGS, WOKEN_AT_ONCE, ParkingLot
from gateway.web.turns import Turns
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.messages import decode_messages
from storage.keys import queue_prefix
from tests.gateway.faults import damaged_row
from tests.gateway.memory import MemoryClient, MemoryGateway, bodies
from tests.gateway.popping import pop_fields
from tests.gateway.tools import create_topic, ok, read


def answered(client: MemoryClient, opaque: int) -> list[str] | None:
    """Return the bodies in the response to a waiting pull, or None while it waits."""
    answer = client.answer(opaque)
    if answer is None:
        return None
    assert answer.code == ResponseCode.SUCCESS
    return bodies(decode_messages(answer.body))


@pytest.fixture(autouse=True)
def topic(client: MemoryClient) -> None:
    """The topic `orders`, with an empty queue 0."""
    client.send_message(fields={"queue": 3})


class TestWake:
    def test_by_a_send(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        waiting = client.park()
        gateway.advance(3_000)
        assert answered(client, waiting) is None
        gateway.connect().send_message("orders", "hello")
        answer = client.answer(waiting)
        assert answer is not None
        assert bodies(decode_messages(answer.body)) == ["hello"]
        assert answer.ext()["nextBeginOffset"] == "1"
        assert answer.ext()["maxOffset"] == "1"

    def test_by_firing_at_the_millisecond(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message("orders", "timed", TIMER_DELAY_MS="2345")
        waiting = client.park()
        gateway.advance(2_344)
        assert answered(client, waiting) is None
        gateway.advance(1)
        assert answered(client, waiting) == ["timed"]

    def test_nobody_gets_what_fires_into_a_deleted_topic(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message("orders", "timed", TIMER_DELAY_MS="3000")
        waiting = client.park()
        fields = pop_fields(gateway, queueId=0, pollTime=15_000)
        pop = client.send(RequestCode.POP_MESSAGE, fields)
        told = client.send(RequestCode.NOTIFICATION, fields)
        assert client.answer(pop) is client.answer(told) is None
        ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}))
        gateway.advance(3_000)
        for opaque in (waiting, pop, told):
            answer = client.answer(opaque)
            assert answer is not None
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        ok(create_topic(client, "orders"))
        progress = client.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "consumers"})
        assert read(progress)["offsetTable"] == {}

    def test_by_a_oneway_send(self, client: MemoryClient) -> None:
        waiting = client.park()
        client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"hello", oneway=True)
        assert answered(client, waiting) == ["hello"]

    def test_by_its_own_queue_only(self, client: MemoryClient) -> None:
        waiting = client.park()
        client.send_message("orders", "other queue", fields={"queue": 1})
        client.send_message("bills", "other topic")
        assert answered(client, waiting) is None
        client.send_message("orders", "mine")
        assert answered(client, waiting) == ["mine"]

    def test_of_everyone_who_waits(self, gateway: MemoryGateway) -> None:
        clients = [gateway.connect() for _ in range(5)]
        waiting = [(one, one.park(group=f"group{n % 2}")) for n, one in enumerate(clients)]
        gateway.connect().send_message("orders", "hello")
        assert [answered(*one) for one in waiting] == [["hello"]] * 5

    def test_of_many_some_in_each_turn(self, gateway: MemoryGateway) -> None:
        lot = gateway.service.broker.parked
        many = 3 * WOKEN_AT_ONCE
        clients = [gateway.connect() for _ in range(many)]
        waiting = [(one, one.park()) for one in clients]
        sender = gateway.connect()
        sender.send(RequestCode.SEND_MESSAGE_V2, sender.send_fields(), b"hello")
        left = [len(lot)]
        while gateway.reactor.turn():
            left.append(len(lot))
        assert set(left) == {0, WOKEN_AT_ONCE, 2 * WOKEN_AT_ONCE, many}
        assert [answered(*one) for one in waiting] == [["hello"]] * many

    def test_of_those_whose_turn_has_not_come_at_the_end(self, gateway: MemoryGateway) -> None:
        """A pull that got an empty response would continue after these messages."""
        clients = [gateway.connect() for _ in range(2 * WOKEN_AT_ONCE)]
        waiting = [(one, one.park()) for one in clients]
        sender = gateway.connect()
        sender.send(RequestCode.SEND_MESSAGE_V2, sender.send_fields(), b"hello")
        while len(gateway.service.broker.parked) == len(clients):
            gateway.reactor.turn()
        gateway.service.broker.parked.release_all()
        assert len(gateway.service.broker.parked) == 0
        assert [answered(*one) for one in waiting] == [["hello"]] * len(clients)

    def test_of_those_whose_turn_has_not_come_when_others_are_let_go(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        lot, many = gateway.service.broker.parked, 2 * WOKEN_AT_ONCE
        fields = [
            pop_fields(gateway, consumerGroup=f"C{number}", queueId=0, pollTime=15_000)
            for number in range(many)
        ]
        waiting = [client.send(RequestCode.POP_MESSAGE, one) for one in fields]
        assert client.answer(waiting[-1]) is None
        places = len(lot)
        client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"hello")
        while len(lot) == places:
            gateway.reactor.turn()
        lot.sweep(0)
        assert [answered(client, one) for one in waiting] == [["hello"]] * many

    def test_in_the_turn_of_a_send_that_is_not_committed(self, client: MemoryClient) -> None:
        """The pull finds nothing and parks before the commit. The commit must then wake it."""
        client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"hello")
        opaque = client.send(RequestCode.PULL_MESSAGE, client.pull_request(wait_ms=15_000))
        assert answered(client, opaque) == ["hello"]

    def test_gets_all_of_a_batch(self, client: MemoryClient) -> None:
        waiting = client.park()
        client.send_batch((str(n), {}) for n in range(10))
        assert answered(client, waiting) == [str(n) for n in range(10)]

    def test_only_once(self, client: MemoryClient) -> None:
        waiting = client.park()
        client.send_message("orders", "first")
        client.send_message("orders", "second")
        assert answered(client, waiting) == ["first"]

    def test_other_requests_are_answered_meanwhile(self, client: MemoryClient) -> None:
        waiting = client.park()
        assert client.ask(RequestCode.GET_ALL_TOPIC_LIST).code == ResponseCode.SUCCESS
        assert client.send_message("orders", "x", fields={"queue": 1}).code == 0
        assert answered(client, waiting) is None


class TestFilter:
    def test_what_grew_in_a_commit_within_a_wake_comes_after_what_grew_before(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The pop is committed while other clients are still to be woken, and that commit fires what is left."""
        client.send_message("first", fields={"queue": 1})
        timers = [("first", "popped", "x"), ("orders", "one", "x"), ("orders", "two", "y")]
        for topic, body, tag in timers:
            client.send_message(topic, body, TAGS=tag, TIMER_DELAY_MS="1000")
        popper = gateway.connect()
        now = str(gateway.now_ms)
        fields = {"consumerGroup": "G", "topic": "first", "queueId": "0", "maxMsgNums": "1"}
        fields |= {"invisibleTime": "9000", "pollTime": "5000", "bornTime": now, "initMode": "0"}
        popped = popper.send(RequestCode.POP_MESSAGE, fields)
        assert popper.answer(popped) is None
        waiting = client.park(tags="x || y")
        monkeypatch.setattr("gateway.committer.MAX_BATCH_BYTES", 0)
        monkeypatch.setattr("gateway.firing.MAX_FIRED", 2)
        gateway.advance(1_000)
        assert answered(popper, popped) == ["popped"]
        assert answered(client, waiting) == ["one", "two"]

    def test_the_same_holds_for_a_commit_within_an_answer(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """What waited for the disk goes on at once, and then reads what others have changed meanwhile."""
        waiting = client.park()
        sender, committer = gateway.connect(), gateway.service.broker.committer

        def send(body: bytes) -> None:
            sender.send(RequestCode.SEND_MESSAGE_V2, sender.send_fields(), body)

        send(b"one")
        stored = Turns(gateway.reactor, committer).stored()
        stored.addCallback(lambda _: send(b"two")).addCallback(lambda _: committer.commit())
        assert answered(client, waiting) == ["one", "two"]

    def test_waits_until_one_matches(self, client: MemoryClient) -> None:
        waiting = client.park(tags="red")
        client.send_message("orders", "1", TAGS="blue")
        client.send_message("orders", "2")
        assert answered(client, waiting) is None
        client.send_message("orders", "3", TAGS="red")
        answer = client.answer(waiting)
        assert answer is not None
        assert bodies(decode_messages(answer.body)) == ["3"]
        assert answer.ext()["nextBeginOffset"] == "3"

    def test_what_is_there_does_not_match(self, client: MemoryClient) -> None:
        """The client gets the next offset at once, so that it can commit it."""
        client.send_message("orders", "1", TAGS="blue")
        answer = client.ask_pull(tags="red", wait_ms=15_000)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert answer.ext()["nextBeginOffset"] == "1"

    def test_what_was_skipped_is_not_looked_at_again(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        waiting = client.park(tags="red", wait_ms=5_000)
        client.send_message("orders", "1", TAGS="blue")
        gateway.advance(5_500)
        answer = client.answer(waiting)
        assert answer is not None
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert answer.ext()["nextBeginOffset"] == "1"

    def test_more_to_skip_than_one_read_may(self, client: MemoryClient) -> None:
        waiting = client.park(tags="red")
        client.send_batch((str(n), {"TAGS": "blue"}) for n in range(2_500))
        assert client.answer(waiting) is None
        client.send_batch((str(n), {"TAGS": "red" if n == 2_499 else "blue"}) for n in range(2_500))
        answer = client.answer(waiting)
        assert answer is not None
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert 2_500 < int(answer.ext()["nextBeginOffset"]) < 5_000

    def test_is_of_more_tags_than_it_is_kept_by(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """A thousand pulls of nine thousand tags took seconds to keep and to let go."""
        waiting = client.park(tags=" || ".join(f"t{n}" for n in range(MANY_TAGS + 1)))
        (kept,) = gateway.service.broker.parked._queues.values()
        assert not kept._by_tag
        client.send_message("orders", "1", TAGS="blue")
        assert answered(client, waiting) is None
        client.send_message("orders", "2", TAGS=f"t{MANY_TAGS}")
        assert answered(client, waiting) == ["2"]

    def test_only_those_who_want_it_look(self, gateway: MemoryGateway) -> None:
        clients = {tag: gateway.connect() for tag in ("red", "blue", "red || blue", "green")}
        waiting = {
            tag: client.park(group=f"group {n}".replace(" ", "-"), tags=tag)
            for n, (tag, client) in enumerate(clients.items())
        }
        gateway.connect().send_message("orders", "1", TAGS="blue")
        assert answered(clients["blue"], waiting["blue"]) == ["1"]
        assert answered(clients["red || blue"], waiting["red || blue"]) == ["1"]
        assert answered(clients["red"], waiting["red"]) is None
        gateway.connect().send_message("orders", "2", TAGS="red")
        assert answered(clients["red"], waiting["red"]) == ["2"]
        assert answered(clients["green"], waiting["green"]) is None
        # A client with a response no longer waits for any other tag.
        assert clients["red || blue"].take() == []
        # Nothing of the queue is kept once nobody waits.
        clients["green"].disconnect()
        gateway.advance(2_000)
        assert gateway.service.broker.parked._queues == {}


class TestSubscription:
    """A pull that brings no filter, or its group's, waits for what the group subscribes to."""

    def test_is_changed(self, client: MemoryClient) -> None:
        """With the old filter the client would be sent on behind messages that it wants now."""
        client.heartbeat("c1", subscriptions={"orders": "red"}, sub_version=1)
        waiting = client.park(tags=None)
        client.send_message("orders", "before", TAGS="blue")
        assert client.answer(waiting) is None
        client.heartbeat("c1", subscriptions={"orders": "blue"}, sub_version=2)
        answer = client.answer(waiting)
        assert answer is not None
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert answer.ext()["nextBeginOffset"] == "0"
        assert bodies(client.pull(tags=None)) == ["before"]

    def test_is_changed_beside_a_queue_that_cannot_be_read(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """The heartbeat was refused."""
        with damaged_row(gateway, "ends", queue_prefix(b"orders", 1), lambda _: b"short"):
            client = gateway.connect()
            ok(client.heartbeat("c1", subscriptions={"orders": "red"}, sub_version=1))
            waiting = client.park(tags=None)
            ok(client.heartbeat("c1", subscriptions={"orders": "blue"}, sub_version=2))
            assert client.answer(waiting) is not None

    def test_is_changed_for_many_topics_of_many_queues(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """To look at each of a hundred million queues would hold up everybody."""
        lot, many = gateway.service.broker.parked, 2 * WOKEN_AT_ONCE
        ok(create_topic(client, "orders", 10_000))
        client.heartbeat("c1", subscriptions={"orders": "red"}, sub_version=1)
        waiting = [client.park(tags=None, queue=queue) for queue in range(4, 4 + many)]
        subscription = b'{"topic": "orders", "subString": "blue", "subVersion": 2}'
        consumer = b'{"groupName": "consumers", "subscriptionDataSet": [%b]}' % subscription
        client.send(34, body=b'{"clientID": "c1", "consumerDataSet": [%b]}' % consumer)
        # Of those who wait some learn of it in each turn.
        assert len(lot) == many - WOKEN_AT_ONCE
        assert all(client.answer(one) for one in waiting)
        assert len(list(gateway.store.open_queues(b"orders"))) == 1 + many

    def test_is_repeated(self, client: MemoryClient) -> None:
        client.heartbeat("c1", subscriptions={"orders": "red"}, sub_version=1)
        waiting = client.park(tags=None)
        client.heartbeat("c1", subscriptions={"orders": "red"}, sub_version=2)
        assert client.answer(waiting) is None
        client.send_message("orders", "hello", TAGS="red")
        assert answered(client, waiting) == ["hello"]

    def test_is_changed_by_one_member_after_the_other(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """A member that pulls before it changes its own subscription would drop what it gets for the new one."""
        other = gateway.connect()
        for version, member in enumerate((client, other), 1):
            member.heartbeat(f"c{version}", subscriptions={"orders": "red"}, sub_version=version)
        client.heartbeat("c1", subscriptions={"orders": "blue"}, sub_version=3)
        waiting = other.park(tags=None, sub_version=2)
        up_to_date = client.park(tags=None, queue=1, sub_version=3)
        other.heartbeat("c2", subscriptions={"orders": "blue"}, sub_version=4)
        answer = other.answer(waiting)
        assert answer is not None
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        waiting = other.park(tags=None, sub_version=4)
        other.heartbeat("c2", subscriptions={"orders": "blue"}, sub_version=4)
        assert other.answer(waiting) is None
        assert client.answer(up_to_date) is None

    def test_is_changed_by_a_new_member(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.heartbeat("c1", subscriptions={"orders": "red"}, sub_version=1)
        waiting = client.park(tags=None)
        gateway.connect().heartbeat("c2", subscriptions={"orders": "red"}, sub_version=2)
        assert client.answer(waiting) is None
        gateway.connect().heartbeat("c3", subscriptions={"orders": "blue"}, sub_version=3)
        answer = client.answer(waiting)
        assert answer is not None
        assert answer.code == ResponseCode.PULL_NOT_FOUND

    def test_is_changed_for_pulls_that_bring_it_along(self, client: MemoryClient) -> None:
        """A lite pull consumer names its subscription in each pull."""
        client.heartbeat("c1", subscriptions={"orders": "red"}, sub_version=1)
        waiting = client.park(tags="red")
        client.heartbeat("c1", subscriptions={"orders": "blue"}, sub_version=2)
        answer = client.answer(waiting)
        assert answer is not None
        assert answer.code == ResponseCode.PULL_NOT_FOUND

    def test_is_changed_for_pulls_with_another_filter(self, client: MemoryClient) -> None:
        client.heartbeat("c1", subscriptions={"orders": "*"}, sub_version=1)
        waiting = client.park(tags="red")
        client.heartbeat("c1", subscriptions={"orders": "blue"}, sub_version=2)
        assert client.answer(waiting) is None
        client.send_message("orders", "hello", TAGS="red")
        assert answered(client, waiting) == ["hello"]


class TestDeadline:
    @pytest.mark.parametrize(
        ("wait_ms", "longest_ms"), [(1_000, 1_000), (15_000, 15_000), (3_600_000, 25_000)]
    )
    def test_answers_with_nothing(
        self, gateway: MemoryGateway, client: MemoryClient, wait_ms: int, longest_ms: int
    ) -> None:
        waiting = client.park(wait_ms=wait_ms)
        gateway.advance(longest_ms - 1)
        assert client.answer(waiting) is None
        # Deadlines are checked twice a second.
        gateway.advance(501)
        answer = client.answer(waiting)
        assert answer is not None
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert answer.ext()["nextBeginOffset"] == "0"
        assert len(gateway.service.broker.parked) == 0

    @pytest.mark.parametrize(
        ("tags", "code"),
        [(None, ResponseCode.SUBSCRIPTION_NOT_EXIST), ("*", ResponseCode.PULL_NOT_FOUND)],
    )
    def test_of_a_group_that_has_left(
        self, gateway: MemoryGateway, client: MemoryClient, tags: str | None, code: int
    ) -> None:
        """A pull that does not bring a filter goes by its group's."""
        client.heartbeat("c1", subscriptions={"orders": "*"})
        waiting = client.park(tags=tags)
        leave = {"clientID": "c1", "consumerGroup": "consumers"}
        ok(client.ask(RequestCode.UNREGISTER_CLIENT, leave))
        assert client.answer(waiting) is None
        gateway.advance(15_501)
        answer = client.answer(waiting)
        assert answer is not None
        assert answer.code == code

    @pytest.mark.parametrize("wait_ms", [0, -1])
    def test_no_time_to_wait(self, client: MemoryClient, wait_ms: int) -> None:
        ext = client.pull_request(wait_ms=1) | {"suspendTimeoutMillis": str(wait_ms)}
        answer = client.ask(RequestCode.PULL_MESSAGE, ext)
        assert answer.code == ResponseCode.PULL_NOT_FOUND

    @pytest.mark.parametrize("comes", [False, True])
    def test_one_that_takes_no_message(
        self, gateway: MemoryGateway, client: MemoryClient, comes: bool
    ) -> None:
        """Tags of blanks alone select nothing."""
        waiting = client.park(tags="  ", wait_ms=5_000)
        if comes:
            client.send_message()
        gateway.advance(4_000)
        assert client.answer(waiting) is None
        gateway.advance(1_500)
        answer = client.answer(waiting)
        assert answer is not None
        assert answer.code == (
            ResponseCode.PULL_RETRY_IMMEDIATELY if comes else ResponseCode.PULL_NOT_FOUND
        )
        assert len(gateway.service.broker.parked) == 0

    def test_only_those_whose_time_has_come(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        short, long = client.park(wait_ms=1_000), client.park(wait_ms=9_000)
        gateway.advance(1_600)
        assert client.answer(short) is not None
        assert client.answer(long) is None
        client.send_message("orders", "hello")
        assert answered(client, long) == ["hello"]

    def test_of_many_at_once_some_in_each_turn(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parked, "LET_GO_AT_ONCE", 2)
        waiting = [client.park(queue=number % 2, wait_ms=1_000) for number in range(5)]
        left = []
        sweep = ParkingLot.sweep

        def note(lot: ParkingLot, now: float) -> bool:
            more = sweep(lot, now)
            left.append(len(lot))
            return more

        monkeypatch.setattr(ParkingLot, "sweep", note)
        gateway.advance(1_600)
        assert [number for number in left if number < 5][:3] == [3, 1, 0]
        assert None not in [client.answer(opaque) for opaque in waiting]

    def test_of_many_queues_some_are_looked_at_in_each_turn(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parked, "SWEPT_AT_ONCE", 1)
        ending = [client.park(queue=number, wait_ms=1_000) for number in (0, 1)]
        lasting = client.park(wait_ms=9_000)
        lot, now = gateway.service.broker.parked, gateway.reactor.seconds() + 1
        assert lot.sweep(now)
        assert len(lot) == 2
        assert not lot.sweep(now)
        assert len(lot) == 1
        gateway.advance(1)
        assert None not in [client.answer(opaque) for opaque in ending]
        assert client.answer(lasting) is None
        gateway.advance(9_500)
        assert client.answer(lasting) is not None

    def test_at_the_end_all_are_answered_also_where_some_were_just_looked_at(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parked, "SWEPT_AT_ONCE", 1)
        waiting = [client.park(queue=number) for number in range(3)]
        lot = gateway.service.broker.parked
        assert lot.sweep(gateway.reactor.seconds())
        lot.release_all()
        assert None not in [client.answer(opaque) for opaque in waiting]

    @pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
    def test_does_not_go_by_the_wall_clock(
        self, gateway: MemoryGateway, client: MemoryClient, step_ms: int
    ) -> None:
        waiting = client.park(wait_ms=5_000)
        gateway.set_clock(step_ms)
        gateway.advance(4_999)
        assert client.answer(waiting) is None
        gateway.advance(501)
        assert client.answer(waiting) is not None

    @pytest.mark.parametrize(
        ("offset", "code"),
        [(7, ResponseCode.PULL_OFFSET_MOVED), (-1, ResponseCode.PULL_OFFSET_MOVED)],
    )
    def test_a_wrong_offset_does_not_wait(
        self, client: MemoryClient, offset: int, code: int
    ) -> None:
        assert client.ask_pull(offset=offset, wait_ms=15_000).code == code


class TestClientGone:
    def test_is_forgotten(self, gateway: MemoryGateway) -> None:
        leaving, staying = gateway.connect(), gateway.connect()
        leaving.park()
        waiting = staying.park()
        leaving.disconnect()
        gateway.advance(1_000)
        assert len(gateway.service.broker.parked) == 1
        gateway.connect().send_message("orders", "hello")
        assert answered(staying, waiting) == ["hello"]
        assert leaving.transport.value() == b""

    def test_just_before_the_wake(self, gateway: MemoryGateway) -> None:
        leaving = gateway.connect()
        leaving.park()
        leaving.disconnect()
        gateway.connect().send_message("orders", "hello")
        assert len(gateway.service.broker.parked) == 0


def test_a_stopping_gateway_lets_go(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parked, "LET_GO_AT_ONCE", 2)
    waiting = [client.park(queue=queue) for queue in (0, 1, 1, 1, 1)]
    gateway.stop()
    for answer in map(client.answer, waiting):
        assert answer is not None
        assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert client.closed
