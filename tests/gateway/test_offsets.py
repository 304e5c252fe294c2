"""Progress of consumers (14, 15), and the first and last offsets and times of queues (29, 30, 31, 32)."""

from __future__ import annotations

import pytest

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway

HOUR_MS = 3_600_000


def place(topic: str = "orders", queue: int = 0, group: str | None = "consumers") -> dict[str, str]:
    """Return the fields that name a queue, and the group if there is one."""
    fields = {"topic": topic, "queueId": str(queue)}
    return fields | {"consumerGroup": group} if group is not None else fields


def commit(client: MemoryClient, offset: int, **where: str | int) -> Command:
    """Commit an offset for a group, which is created first."""
    ext = place(**where) | {"commitOffset": str(offset)}  # type: ignore[arg-type]
    make_group(client, ext["consumerGroup"])
    return client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def make_group(client: MemoryClient, group: str = "consumers") -> None:
    """Create a group by asking for it, if groups may be created automatically."""
    client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})


def progress(client: MemoryClient, **where: str | int) -> int:
    """Return the committed offset."""
    answer = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, place(**where))  # type: ignore[arg-type]
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return int(answer.ext()["offset"])


class TestProgress:
    def test_is_known_at_once(self, client: MemoryClient) -> None:
        client.send_message()
        assert commit(client, 7).code == ResponseCode.SUCCESS
        assert progress(client) == 7

    def test_a_client_that_has_had_nothing_yet_changes_nothing(self, client: MemoryClient) -> None:
        client.send_message()
        commit(client, 7)
        assert commit(client, -1).code == ResponseCode.SUCCESS
        assert progress(client) == 7

    def test_oneway(self, client: MemoryClient) -> None:
        client.send_message()
        ext = place() | {"commitOffset": "3"}
        make_group(client)
        client.send(RequestCode.UPDATE_CONSUMER_OFFSET, ext, oneway=True)
        assert client.take() == []
        assert progress(client) == 3

    def test_is_not_held_against_the_queue(self, client: MemoryClient) -> None:
        client.send_message()
        for offset in (10**12, 0, 5):
            commit(client, offset)
            assert progress(client) == offset

    def test_each_group_topic_and_queue_has_its_own(self, client: MemoryClient) -> None:
        for topic in ("orders", "bills"):
            client.send_message(topic)
        places: list[dict[str, str | int]] = [
            {"group": group, "topic": topic, "queue": queue}
            for group in ("g1", "g2")
            for topic in ("orders", "bills")
            for queue in (0, 1)
        ]
        for number, where in enumerate(places):
            commit(client, 100 + number, **where)
        assert [progress(client, **where) for where in places] == list(range(100, 108))

    @pytest.mark.parametrize("crash", [False, True])
    def test_survives_a_restart(
        self, gateway: MemoryGateway, client: MemoryClient, crash: bool
    ) -> None:
        client.send_message()
        commit(client, 7)
        # It is on disk within a second, even with nothing else going on.
        gateway.advance(1_000)
        if crash:
            gateway.crash()
        else:
            gateway.restart()
        assert progress(gateway.connect()) == 7

    def test_is_written_at_the_latest_when_the_gateway_stops(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message()
        commit(client, 7)
        gateway.restart()
        assert progress(gateway.connect()) == 7

    @pytest.mark.parametrize(("queue", "offset"), [(-1, 5), (0, -2), (0, -(2**63))])
    def test_where_no_queue_has_a_place(
        self, client: MemoryClient, queue: int, offset: int
    ) -> None:
        client.send_message()
        answer = commit(client, offset, queue=queue)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"queue {queue} offset {offset} is not a place in a queue",
        )

    @pytest.mark.parametrize("queue", [10_000, (1 << 31) - 1])
    def test_where_no_topic_has_a_queue(
        self, gateway: MemoryGateway, client: MemoryClient, queue: int
    ) -> None:
        client.send_message()
        assert commit(client, 1, queue=9_999).code == ResponseCode.SUCCESS
        answer = commit(client, 1, queue=queue)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert gateway.store.progress.get(b"consumers", b"orders", queue) is None

    def test_topic_unknown(self, client: MemoryClient) -> None:
        answer = commit(client, 1, topic="none")
        assert (answer.code, answer.remark) == (
            ResponseCode.TOPIC_NOT_EXIST,
            "Topic none not exist!",
        )

    def test_makes_no_group(self, client: MemoryClient) -> None:
        client.send_message()
        ext = place() | {"consumerGroup": "none", "commitOffset": "1"}
        answer = client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        assert (answer.code, answer.remark) == (
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            "Group none not exist!",
        )

    def test_group_unknown(self, make_gateway: MakeGateway) -> None:
        client = make_gateway(auto_create_group=False).connect()
        client.send_message()
        answer = commit(client, 1)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert answer.remark is not None
        assert answer.remark.startswith("Group consumers not exist!")

    @pytest.mark.parametrize(
        ("field", "remark"), [("queueId", "QueueId"), ("commitOffset", "Offset")]
    )
    def test_a_field_is_missing(self, client: MemoryClient, field: str, remark: str) -> None:
        client.send_message()
        make_group(client)
        ext = place() | {"commitOffset": "1"}
        del ext[field]
        answer = client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        assert (answer.code, answer.remark) == (
            ResponseCode.INVALID_PARAMETER,
            f"{remark} is null, topic is orders",
        )

    @pytest.mark.parametrize(("queue", "offset"), [(-1, 5), (0, -5)])
    def test_no_place_in_a_queue(self, client: MemoryClient, queue: int, offset: int) -> None:
        client.send_message()
        assert commit(client, offset, queue=queue).code == ResponseCode.SYSTEM_ERROR
        # The refused commit must not spoil what is written with it.
        assert client.send_message().code == ResponseCode.SUCCESS


class TestNewGroup:
    def test_starts_at_0_while_the_queue_has_its_first_message(self, client: MemoryClient) -> None:
        client.send_message()
        assert progress(client, group="new") == 0

    def test_starts_at_the_end_of_an_empty_queue(self, client: MemoryClient) -> None:
        """A client that has to ask for the end (30) skips what comes in between."""
        client.send_message()
        assert progress(client, queue=3, group="new") == 0

    @pytest.mark.parametrize(("topic", "queue"), [("orders", 4), ("unknown", 0)])
    def test_decides_itself_where_no_queue_is(
        self, client: MemoryClient, topic: str, queue: int
    ) -> None:
        """A real 5.5.0 broker answers the same."""
        client.send_message()
        answer = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, place(topic, queue))
        assert answer.code == ResponseCode.QUERY_NOT_FOUND

    def test_decides_itself_when_older_messages_are_gone(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message()
        gateway.jump(80 * HOUR_MS)
        client = gateway.connect()
        assert progress(client, group="new") == 1
        client.send_message()
        answer = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, place())
        assert (answer.code, answer.remark) == (
            ResponseCode.QUERY_NOT_FOUND,
            "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
        )

    def test_starts_with_the_first_message_of_a_topic_that_was_made_again(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """On a real 5.5.0 broker such a topic also begins at 0."""
        for _ in range(3):
            client.send_message()
            deleted = client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
            assert deleted.code == ResponseCode.SUCCESS
        client.send_message(fields={"queue": 1})
        assert progress(client, group="new") == 3
        client.send_message()
        assert progress(client, group="new") == 3
        assert progress(client, queue=1, group="new") == 0
        gateway.crash()
        assert progress(gateway.connect(), group="new") == 3
        gateway.jump(80 * HOUR_MS)
        client = gateway.connect()
        assert progress(client, group="new") == 4
        client.send_message()
        answer = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, place(group="new"))
        assert answer.code == ResponseCode.QUERY_NOT_FOUND

    def test_may_ask_not_to_start_at_0(self, client: MemoryClient) -> None:
        client.send_message()
        ext = place() | {"setZeroIfNotFound": "false"}
        answer = client.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)
        assert (answer.code, answer.remark) == (
            ResponseCode.QUERY_NOT_FOUND,
            "Not found, do not set to zero, maybe this group boot first",
        )
        commit(client, 5)
        assert client.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext).ext()["offset"] == "5"


class TestEnds:
    def ends(self, client: MemoryClient, topic: str = "orders", queue: int = 0) -> tuple[int, int]:
        """Return the first and the next offset."""
        ext = place(topic, queue, None)
        return (
            int(client.ask(RequestCode.GET_MIN_OFFSET, ext).ext()["offset"]),
            int(client.ask(RequestCode.GET_MAX_OFFSET, ext).ext()["offset"]),
        )

    def test_grow_with_what_is_there(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        assert self.ends(client) == (0, 0)
        client.send_message()
        client.send_message(TIMER_DELAY_MS="100")
        assert self.ends(client) == (0, 1)
        gateway.advance(100)
        assert self.ends(client) == (0, 2)

    def test_move_on_with_retention(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message()
        client.send_message()
        gateway.jump(80 * HOUR_MS)
        client = gateway.connect()
        assert self.ends(client) == (2, 2)
        client.send_message()
        assert self.ends(client) == (2, 3)
        gateway.restart()
        assert self.ends(gateway.connect()) == (2, 3)

    @pytest.mark.parametrize(
        ("topic", "queue"),
        [
            ("none", 0),
            ("orders", 4),
            ("orders", -1),
            ("orders", 2**31 - 1),
            ("t" * 600, 0),
            ("", 0),
        ],
    )
    def test_of_what_is_unknown(
        self, gateway: MemoryGateway, client: MemoryClient, topic: str, queue: int
    ) -> None:
        client.send_message()
        known = len(gateway.store._queues)
        assert self.ends(client, topic, queue) == (0, 0)
        ext = place(topic, queue, None)
        answer = client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, ext)
        assert answer.ext()["timestamp"] == "-1"
        answer = client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext | {"timestamp": "5"})
        assert answer.ext()["offset"] == "0"
        client.ask(RequestCode.QUERY_CONSUMER_OFFSET, place(topic, queue))
        # Requests for missing queues must not fill the memory.
        assert len(gateway.store._queues) == known

    def test_earliest_time(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        gateway.advance(50)
        client.send_message(TIMER_DELAY_MS="100")
        client.send_message("bills")
        ext = place(group=None)
        answer = client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, ext)
        assert answer.ext()["timestamp"] == "-1"
        gateway.advance(500)
        client.send_message()
        answer = client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, ext)
        assert answer.ext()["timestamp"] == str(START_MS + 150)


class TestByTime:
    @pytest.fixture
    def client(self, gateway: MemoryGateway, client: MemoryClient) -> MemoryClient:
        """A queue with offset 0 at 100 ms, offsets 1 and 2 at 200 ms, and offset 3, a timed message, at 300 ms."""
        gateway.advance(50)
        client.send_message(TIMER_DELAY_MS="250")
        gateway.advance(50)
        client.send_message()
        gateway.advance(100)
        client.send_message()
        client.send_message()
        gateway.advance(100)
        return client

    def search(self, client: MemoryClient, ms: int, boundary: str | None) -> int:
        ext = place(group=None) | {"timestamp": str(START_MS + ms)}
        if boundary is not None:
            ext["boundaryType"] = boundary
        answer = client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
        return int(answer.ext()["offset"])

    @pytest.mark.parametrize("boundary", [None, "lower", "LOWER"])
    @pytest.mark.parametrize(
        ("ms", "offset"),
        [(-START_MS - 5, 0), (0, 0), (100, 0), (101, 1), (200, 1), (201, 3), (300, 3), (301, 4)],
    )
    def test_the_first_from_then_on(
        self, client: MemoryClient, ms: int, offset: int, boundary: str | None
    ) -> None:
        assert self.search(client, ms, boundary) == offset

    @pytest.mark.parametrize("boundary", ["upper", "UPPER"])
    @pytest.mark.parametrize(
        ("ms", "offset"), [(0, 0), (100, 0), (199, 0), (200, 2), (299, 2), (300, 3), (301, 3)]
    )
    def test_the_last_up_to_then(
        self, client: MemoryClient, ms: int, offset: int, boundary: str
    ) -> None:
        """A real 5.5.0 broker answers the same."""
        assert self.search(client, ms, boundary) == offset

    def test_far_ahead(self, client: MemoryClient) -> None:
        ext = place(group=None) | {"timestamp": str(2**63 - 1)}
        for boundary, offset in (("lower", "4"), ("upper", "3")):
            answer = client.ask(
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext | {"boundaryType": boundary}
            )
            assert answer.ext()["offset"] == offset


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.QUERY_CONSUMER_OFFSET, ["consumerGroup", "topic", "queueId"]),
        (RequestCode.UPDATE_CONSUMER_OFFSET, ["consumerGroup", "topic"]),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ["topic", "queueId", "timestamp"]),
        (RequestCode.GET_MAX_OFFSET, ["topic", "queueId"]),
        (RequestCode.GET_MIN_OFFSET, ["topic", "queueId"]),
        (RequestCode.GET_EARLIEST_MSG_STORETIME, ["topic", "queueId"]),
    ],
)
def test_fields(client: MemoryClient, code: int, fields: list[str]) -> None:
    complete = dict.fromkeys(fields, "1")
    for name in fields:
        ext = {other: value for other, value in complete.items() if other != name}
        answer = client.ask(code, ext)
        assert (answer.code, answer.remark) == (1, f"the field {name} is missing")
        if name not in ("topic", "consumerGroup"):
            assert client.ask(code, complete | {name: "one"}).code == ResponseCode.SYSTEM_ERROR
