"""Progress of groups as tools read and change it: 208, 317, 303, 43, 222, 314."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.handlers import progress
from gateway.wire.codes import RequestCode, ResponseCode
from storage.progress import Progress
from tests.gateway.faults import commits_fail
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway
from tests.gateway.popping import pop_fields
from tests.gateway.tools import (
    by_queue,
    commit_offset,
    create_topic,
    offset_of,
    ok,
    put_group,
    read,
)


@pytest.fixture
def client(gateway: MemoryGateway) -> MemoryClient:
    """A tool's connection. Topic T has queue 0 with four messages, sent one second apart, and an empty queue 1. Group G
    has consumed one of them."""
    client = gateway.connect()
    create_topic(client, "T")
    put_group(client, "G")
    for _ in range(4):
        client.send_message("T")
        gateway.advance(1_000)
    commit_offset(client, "T", 0, 1, "G")
    return client


def reset(client: MemoryClient, **fields: object) -> dict[tuple[str, int], int]:
    """Reset G in T (222), and return the offsets of the response."""
    ext = {"topic": "T", "group": "G", "timestamp": "-1", "isForce": "true"}
    answer = client.ask(222, ext | {name: str(value) for name, value in fields.items()})
    return by_queue(read(answer)["offsetTable"])


class TestShown:
    def test_a_group(self, client: MemoryClient) -> None:
        body = read(client.ask(208, {"consumerGroup": "G"}))
        assert by_queue(body["offsetTable"]) == {
            ("T", 0): {
                "brokerOffset": 4,
                "consumerOffset": 1,
                "lastTimestamp": START_MS,
                "pullOffset": 1,
            },
            ("T", 1): {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0},
        }

    def test_what_is_under_way_and_its_rate(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.pull("T", 0, 1, group="G", most=2)
        gateway.advance(6_000)
        body = read(client.ask(208, {"consumerGroup": "G"}))
        assert by_queue(body["offsetTable"])["T", 0]["pullOffset"] == 3
        assert body["consumeTps"] == pytest.approx(0.2)
        assert read(client.ask(208, {"consumerGroup": "G", "topicList": "T;T;"})) == body

    def test_only_some_topics(self, client: MemoryClient) -> None:
        create_topic(client, "S", 1)
        commit_offset(client, "S", 0, 0, "G")

        def asked(**fields: str) -> set[str]:
            body = read(client.ask(208, {"consumerGroup": "G", **fields}))
            return {topic for topic, _ in by_queue(body["offsetTable"])}

        assert asked() == {"S", "T"}
        assert asked(topic="S") == {"S"}
        assert asked(topicList="T;NONE;") == {"T"}
        assert asked(topic="NONE") == set()

    def test_a_topic_that_the_members_no_longer_want(self, client: MemoryClient) -> None:
        client.heartbeat("c1", "G", {"S": "*"})
        assert read(client.ask(208, {"consumerGroup": "G"}))["offsetTable"] == {}
        asked = {"consumerGroup": "G", "topic": "T"}
        assert read(client.ask(208, asked))["offsetTable"] == {}
        listed = read(client.ask(208, {"consumerGroup": "G", "topicList": "T"}))
        assert by_queue(listed["offsetTable"])["T", 0]["consumerOffset"] == 1

    def test_members_that_subscribe_to_nothing(self, client: MemoryClient) -> None:
        """Pull consumers that assign their queues themselves subscribe to nothing."""
        client.heartbeat("c1", "G", {})
        body = read(client.ask(208, {"consumerGroup": "G"}))
        assert by_queue(body["offsetTable"])["T", 0]["consumerOffset"] == 1
        client.ask(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": "H"})
        assert offset_of(client, "T", 0, "H") == 1

    def test_what_comes_back_to_members_that_pop(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.heartbeat("c1", "G", {"T": "*", "%RETRY%G": "*"})
        asked = pop_fields(gateway, topic="T", consumerGroup="G", invisibleTime=1_000)
        for back, popped in ((3, 0), (6, 3)):
            ok(client.ask(RequestCode.POP_MESSAGE, asked | {"bornTime": "0"}))
            gateway.advance(2_000)
            shown = by_queue(read(client.ask(208, {"consumerGroup": "G"}))["offsetTable"])
            again = shown["%RETRY%G_T", 0]
            assert (again["brokerOffset"], again["consumerOffset"]) == (back, popped)
            assert read(client.ask(317, {"isOrder": "false"}))["totalDiff"] == 3
        client.heartbeat("c1", "G", {"S": "*"})
        assert read(client.ask(208, {"consumerGroup": "G"}))["offsetTable"] == {}

    def test_all_groups(self, client: MemoryClient) -> None:
        create_topic(client, "O", 1, order="true")
        commit_offset(client, "O", 0, 0, "G")
        body = read(client.ask(317, {"isOrder": "false"}))
        assert body["brokerAddr"] == "127.0.0.1:9876"
        assert body["totalDiff"] == 3
        assert body["totalInflightDiff"] == 0
        groups = {name: stats for one in body["consumeStatsList"] for name, stats in one.items()}
        assert groups["TOOLS_CONSUMER"] == []
        assert {queue for one in groups["G"] for queue in by_queue(one["offsetTable"])} == {
            ("O", 0),
            ("T", 0),
            ("T", 1),
        }
        ordered = read(client.ask(317, {"isOrder": "true"}))
        groups = {name: stats for one in ordered["consumeStatsList"] for name, stats in one.items()}
        [only] = groups["G"]
        assert list(by_queue(only["offsetTable"])) == [("O", 0)]
        assert len(client.pull("T", offset=1, group="G")) == 3
        body = read(client.ask(317, {"isOrder": "false"}))
        assert (body["totalDiff"], body["totalInflightDiff"]) == (3, 3)

    def test_what_is_asked_of_groups_takes_no_look_at_all_progress(
        self, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(5):
            put_group(client, f"G{number}")
            commit_offset(client, "T", 0, 1, f"G{number}")
        looks: list[Progress] = []

        def rows(progress: Progress) -> Iterator[tuple[bytes, bytes, int, int]]:
            looks.append(progress)
            return all_rows(progress)

        all_rows = Progress.rows
        monkeypatch.setattr(Progress, "rows", rows)
        ok(client.ask(317, {"isOrder": "false"}))
        for code, fields in (
            (208, {"consumerGroup": "G1"}),
            (300, {"topic": "T"}),
            (314, {"srcGroup": "G1", "destGroup": "G2"}),
            (343, {"group": "G1"}),
        ):
            ok(client.ask(code, fields))
        assert looks == []

    @pytest.mark.parametrize(
        ("code", "told_of", "groups"),
        [(317, "consumeStatsList", 4), (43, "groupTopicMap", 3)],
        ids=["317", "43"],
    )
    def test_others_have_their_turn_while_many_groups_are_looked_at(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        monkeypatch: pytest.MonkeyPatch,
        code: int,
        told_of: str,
        groups: int,
    ) -> None:
        monkeypatch.setattr(progress, "QUEUES_AT_ONCE", 1)
        monkeypatch.setattr(progress, "OFFSETS_AT_ONCE", 1)
        put_group(client, "H")
        for group in ("H", "TOOLS_CONSUMER", "SELF_TEST_C_GROUP"):
            ok(commit_offset(client, "T", 0, 1, group))
        client.transport.clear()
        other = gateway.connect()
        question = client.send(code, {"isOrder": "false"})
        gateway.reactor.turn()
        assert client.transport.value() == b""
        # The response does not have the progress that is deleted meanwhile.
        other.send(207, {"groupName": "SELF_TEST_C_GROUP", "cleanOffset": "true"})
        gateway.reactor.turn()
        assert (client.transport.value() == b"", other.transport.value() != b"") == (True, True)
        answer = client.answer(question)
        assert answer is not None
        assert len(read(answer)[told_of]) == groups
        client.send(code, {"isOrder": "false"})
        client.disconnect()
        gateway.settle()

    @pytest.mark.parametrize(
        ("code", "fields"),
        [
            (208, {"consumerGroup": "G", "topicList": "T;wide"}),
            (303, {"topic": "wide", "group": "G"}),
        ],
        ids=["208", "303"],
    )
    def test_others_have_their_turn_while_many_queues_are_looked_at(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        monkeypatch: pytest.MonkeyPatch,
        code: int,
        fields: dict[str, str],
    ) -> None:
        monkeypatch.setattr(progress, "QUEUES_AT_ONCE", 10)
        create_topic(client, "wide", 100)
        client.transport.clear()
        question = client.send(code, fields)
        for _ in range(9):
            gateway.reactor.turn()
        assert client.transport.value() == b""
        answer = client.answer(question)
        assert answer is not None
        body = read(answer)
        rows = body["offsetTable"] if code == 208 else body["consumeTimeSpanSet"]
        assert len(rows) == (102 if code == 208 else 100)

    def test_an_answer_that_no_client_would_take_looks_at_few_queues(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gateway.service._router, "_most_bytes", 100_000)
        create_topic(client, "wide", 10_000)
        answer = client.ask(208, {"consumerGroup": "G", "topicList": "wide"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").endswith("clients accept: ask for less at once")
        assert len(list(gateway.store.open_queues(b"wide"))) < 2_000

    def test_an_answer_that_no_client_would_take_is_refused(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gateway.service._router, "_most_bytes", 1_000)
        for number in range(30):
            put_group(client, f"H{number}")
            ok(commit_offset(client, "T", 0, 1, f"H{number}"))
        answer = client.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").endswith("clients accept: ask for less at once")
        answer = client.ask(317, {"isOrder": "false"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        ok(client.ask(208, {"consumerGroup": "H1"}))

    def test_time_spans(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        found = read(client.ask(303, {"topic": "T", "group": "G"}))["consumeTimeSpanSet"]
        spans = {one["messageQueue"]["queueId"]: one for one in found}
        assert spans[0]["minTimeStamp"] == START_MS
        assert spans[0]["maxTimeStamp"] == START_MS + 3_000
        assert spans[0]["consumeTimeStamp"] == START_MS
        assert spans[0]["delayTime"] == 3_000
        assert spans[0]["maxTimeStampStr"].endswith(":03:000")
        none = {spans[1][f"{name}TimeStamp"] for name in ("min", "max", "consume")}
        assert (none, spans[1]["delayTime"]) == ({-1}, 0)
        assert client.ask(303, {"topic": "NONE", "group": "G"}).code == 17

    def test_everything(self, client: MemoryClient) -> None:
        body = read(client.ask(43))
        assert body["offsetTable"] == {"T@G": {"0": 1}}
        assert body["groupTopicMap"] == {"G": ["T"]}


class TestReset:
    def test_to_a_time(self, client: MemoryClient) -> None:
        assert reset(client, timestamp=START_MS + 2_000) == {("T", 0): 2, ("T", 1): 0}
        assert offset_of(client, "T", 0, "G") == 2

    def test_to_the_begin_and_to_the_end(self, client: MemoryClient) -> None:
        assert reset(client, timestamp=-1) == {("T", 0): 4, ("T", 1): 0}
        assert reset(client, timestamp=0) == {("T", 0): 0, ("T", 1): 0}

    def test_one_queue(self, client: MemoryClient) -> None:
        assert reset(client, queueId=0, offset=3) == {("T", 0): 3}
        assert reset(client, queueId=0, offset=-1, timestamp=START_MS + 500) == {("T", 0): 1}

    def test_the_next_pull_learns_of_it_and_reports_before_it_are_dropped(
        self, client: MemoryClient
    ) -> None:
        reset(client, timestamp=0)
        answer = ok(commit_offset(client, "T", 0, 3, "G"))
        assert answer.remark == "Offset has been previously reset"
        assert offset_of(client, "T", 0, "G") == 0
        answer = client.ask_pull("T", 0, 3, group="G", commit=3)
        assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
        ext = answer.ext()
        assert (ext["nextBeginOffset"], ext["minOffset"], ext["maxOffset"]) == ("0", "0", "4")
        assert offset_of(client, "T", 0, "G") == 0
        assert len(client.pull("T", 0, 0, group="G")) == 4
        assert commit_offset(client, "T", 0, 2, "G").remark is None
        assert offset_of(client, "T", 0, "G") == 2

    def test_a_waiting_pull_is_answered_at_once(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        consumer = gateway.connect()
        opaque = consumer.park("T", 0, 4, group="G")
        other = gateway.connect()
        waits_on = other.park("T", 0, 4, group="another")
        reset(client, timestamp=0)
        answer = consumer.answer(opaque)
        assert answer is not None
        assert (answer.remark, answer.ext()["nextBeginOffset"]) == ("OFFSET_RESET", "0")
        assert other.answer(waits_on) is None
        # The pull no longer waits.
        client.send_message("T")
        assert consumer.take() == []

    def test_it_is_on_disk(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        reset(client, timestamp=-1)
        gateway.crash()
        assert offset_of(gateway.connect(), "T", 0, "G") == 4

    def test_nothing_is_under_way_after_it(self, client: MemoryClient) -> None:
        client.pull("T", 0, 1, group="G")
        reset(client, timestamp=0)
        body = read(client.ask(208, {"consumerGroup": "G"}))
        assert by_queue(body["offsetTable"])["T", 0]["pullOffset"] == 0

    def test_to_an_offset_of_one_queue(self, client: MemoryClient) -> None:
        assert reset(client, queueId=0, offset=0) == {("T", 0): 0}
        assert reset(client, queueId=0, offset=4) == {("T", 0): 4}
        assert reset(client, offset=2, timestamp=START_MS + 1_000) == {("T", 0): 1, ("T", 1): 0}
        ext = {"topic": "T", "group": "G", "timestamp": "-1", "isForce": "true", "queueId": "2"}
        assert client.ask(222, ext).code == ResponseCode.INVALID_PARAMETER

    @pytest.mark.parametrize(
        ("code", "fields"),
        [
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G", "cleanOffset": "true"}),
            (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}),
            (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "H", "destGroup": "G", "topic": "T"}),
        ],
    )
    def test_is_forgotten_once_it_counts_no_more(
        self, client: MemoryClient, code: RequestCode, fields: dict[str, str]
    ) -> None:
        """Even where the group comes back to the same offset later."""
        put_group(client, "H")
        commit_offset(client, "T", 0, 2, "H")
        reset(client, timestamp=0)
        ok(client.ask(code, fields))
        create_topic(client, "T")
        put_group(client, "G")
        client.send_message("T")
        for offset in (3, 0, 5):
            assert len(client.pull("T", 0, 4, group="G")) == 1
            assert commit_offset(client, "T", 0, offset, "G").remark is None
        assert offset_of(client, "T", 0, "G") == 5

    @pytest.mark.parametrize(
        ("fields", "code", "remark"),
        [
            ({"topic": "NONE"}, 17, "Topic NONE does not exist"),
            ({"group": "NONE"}, 26, "Group NONE does not exist"),
            (
                {"queueId": "0", "offset": "99"},
                1,
                "Target offset 99 not in consume queue range [0-4]",
            ),
            ({"queueId": "9"}, 29, "topic T has 2 queues, none of the number 9"),
        ],
    )
    def test_refused(
        self, client: MemoryClient, fields: dict[str, str], code: int, remark: str
    ) -> None:
        ext = {"topic": "T", "group": "G", "timestamp": "-1", "isForce": "true"}
        answer = client.ask(222, ext | fields)
        assert (answer.code, answer.remark) == (code, remark)
        assert offset_of(client, "T", 0, "G") == 1
        assert commit_offset(client, "T", 0, 2, "G").remark is None

    def test_a_topic_that_nobody_can_read(self, client: MemoryClient) -> None:
        ok(create_topic(client, "T", readQueueNums="0"))
        ext = {"topic": "T", "group": "G", "timestamp": "-1", "isForce": "true"}
        answer = client.ask(222, ext)
        assert (answer.code, answer.remark) == (1, "No queues to reset.")


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (222, {"topic": "wide", "group": "H", "timestamp": "-1", "isForce": "true"}),
        (314, {"srcGroup": "G", "destGroup": "H", "topic": "wide"}),
    ],
    ids=["reset", "clone"],
)
class TestManyAreSet:
    """A copy of 50,000 offsets took 0.25 s, in which nobody else was answered."""

    @pytest.fixture(autouse=True)
    def many(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create_topic(client, "wide", 10)
        put_group(client, "H")
        for queue in range(10):
            client.send_message("wide", fields={"queue": queue})
            ok(commit_offset(client, "wide", queue, 1, "G"))
        gateway.restart()
        monkeypatch.setattr(progress, "SET_AT_ONCE", 2)

    def done(self, gateway: MemoryGateway) -> dict[int, int]:
        return dict(gateway.store.progress.of_group(b"H").get(b"wide", {}))

    def test_and_others_have_their_turn_meanwhile(
        self, gateway: MemoryGateway, code: int, fields: dict[str, str]
    ) -> None:
        client, other = gateway.connect(), gateway.connect()
        client.send(code, fields)
        client.disconnect()  # what it has sent is carried out
        gateway.reactor.turn()
        other.send(105, {"topic": "TBW102"})
        gateway.reactor.turn()
        assert other.transport.value() != b""
        assert len(self.done(gateway)) < 10
        gateway.settle()
        gateway.crash()
        assert self.done(gateway) == dict.fromkeys(range(10), 1)

    def test_until_a_part_cannot_be_stored(
        self, gateway: MemoryGateway, code: int, fields: dict[str, str]
    ) -> None:
        client = gateway.connect()
        request = client.send(code, fields)
        while len(self.done(gateway)) < 4:
            gateway.reactor.turn()
        with commits_fail(gateway):
            answer = client.answer(request)
        assert answer is not None
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert self.done(gateway) == dict.fromkeys(range(4), 1)
        gateway.advance(2_000)
        ok(client.ask(code, fields))
        assert self.done(gateway) == dict.fromkeys(range(10), 1)


class TestClone:
    def clone(self, client: MemoryClient, **fields: str) -> None:
        ok(
            client.ask(
                RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": "H", **fields}
            )
        )

    def test_one_topic(self, client: MemoryClient) -> None:
        create_topic(client, "S")
        client.send_message("S")
        commit_offset(client, "S", 0, 7, "G")
        self.clone(client, topic="T")
        assert offset_of(client, "T", 0, "H") == 1
        assert offset_of(client, "S", 0, "H") == 0

    def test_all_topics(self, client: MemoryClient) -> None:
        create_topic(client, "S")
        commit_offset(client, "S", 1, 7, "G")
        self.clone(client)
        assert (offset_of(client, "T", 0, "H"), offset_of(client, "S", 1, "H")) == (1, 7)

    def test_nothing_is_under_way_after_it(self, client: MemoryClient) -> None:
        put_group(client, "H")
        client.pull("T", 0, 0, group="H")
        self.clone(client, topic="T")
        body = read(client.ask(208, {"consumerGroup": "H"}))
        assert by_queue(body["offsetTable"])["T", 0]["pullOffset"] == 1

    def test_too_many_at_once(self, client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
        """Half a million took 5 s."""
        monkeypatch.setattr(progress, "MAX_COPIED", 2)
        create_topic(client, "S")
        for queue in (0, 1):
            commit_offset(client, "S", queue, 7, "G")
        refused = client.ask(
            RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "G", "destGroup": "H", "offline": "true"}
        )
        assert (refused.code, refused.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "3 offsets to copy at once (name a topic); 2 are possible",
        )
        assert offset_of(client, "T", 0, "H") == 0
        self.clone(client, topic="S")
        assert offset_of(client, "S", 1, "H") == 7

    def test_it_is_on_disk(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        gateway.advance(10_000)
        self.clone(client, topic="T")
        gateway.crash()
        assert offset_of(gateway.connect(), "T", 0, "H") == 1

    def test_what_the_members_no_longer_want_only_if_asked(self, client: MemoryClient) -> None:
        client.heartbeat("c1", "G", {"S": "*"})
        self.clone(client, topic="T")
        assert offset_of(client, "T", 0, "H") == 0
        self.clone(client, topic="T", offline="true")
        assert offset_of(client, "T", 0, "H") == 1

    @pytest.mark.parametrize("name", ["H\0", "H" * 600])
    def test_to_what_can_be_no_group(self, client: MemoryClient, name: str) -> None:
        fields = {"srcGroup": "G", "destGroup": name, "topic": "T"}
        answer = client.ask(RequestCode.CLONE_GROUP_OFFSET, fields)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("no group can have the name 'H")

    def test_from_a_group_without_progress(self, client: MemoryClient) -> None:
        ok(client.ask(RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "nobody", "destGroup": "H"}))
        assert read(client.ask(343, {"group": "H"}))["topicList"] == []
