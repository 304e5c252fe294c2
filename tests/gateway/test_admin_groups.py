"""Consumer groups as tools read and change them: 200, 225, 201, 352, 207."""

from __future__ import annotations

import json

import pytest

from gateway.monitoring.audit import read_lines
from gateway.wire.codes import ResponseCode
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import commits_fail
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway
from tests.gateway.tools import commit_offset, create_topic, offset_of, ok, put_group, read


def groups_of(client: MemoryClient) -> dict[str, dict[str, object]]:
    table: dict[str, dict[str, object]] = read(client.ask(201))["subscriptionGroupTable"]
    return table


def test_create_and_read(client: MemoryClient) -> None:
    ok(put_group(client, "G", retryMaxTimes=3))
    settings = read(client.ask(352, {"group": "G"}))
    assert settings == {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupName": "G",
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 3,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }
    assert groups_of(client)["G"] == settings


def test_a_change_takes_effect_and_survives_a_restart(gateway: MemoryGateway) -> None:
    client = gateway.connect()
    create_topic(client, "T")
    put_group(client, "G")
    put_group(client, "G", consumeEnable=False)
    assert client.ask_pull("T", group="G").code == ResponseCode.NO_PERMISSION
    gateway.restart()
    assert groups_of(gateway.connect())["G"]["consumeEnable"] is False


def test_attributes_are_changed_one_by_one(client: MemoryClient) -> None:
    def attributes(**settings: object) -> object:
        body = {"groupConfigList": [{"groupName": "G", **settings}]}
        ok(client.ask(225, None, json.dumps(body).encode()))
        return groups_of(client)["G"]["attributes"]

    ok(put_group(client, "G", attributes={"+lite.bind.topic": "T", "+priority.factor": "5"}))
    assert attributes() == {"lite.bind.topic": "T", "priority.factor": "5"}
    assert attributes(attributes={"-lite.bind.topic": ""}) == {"priority.factor": "5"}
    ok(put_group(client, "G", retryMaxTimes=3))
    assert groups_of(client)["G"]["attributes"] == {"priority.factor": "5"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"priority.factor": "5"}, "wrong format key: priority.factor"),
        ({"+no.such": "5"}, "unsupported key: no.such"),
        ({"-lite.bind.topic": ""}, "only add attribute is supported"),
        ({"+priority.factor": "101"}, "priority.factor is a number from 0 to 100, not 101"),
    ],
)
def test_attributes_that_cannot_be(
    client: MemoryClient, changes: dict[str, str], says: str
) -> None:
    refused = put_group(client, "G", attributes=changes)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert says in (refused.remark or "")
    assert "G" not in groups_of(client)


@pytest.mark.parametrize(
    "policy",
    [
        {"type": 5},
        {"type": "SOMETIMES"},
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": "x"},
        {"customizedRetryPolicy": {"next": ["x"]}},
    ],
)
def test_a_retry_policy_that_java_cannot_read(
    client: MemoryClient, policy: dict[str, object]
) -> None:
    """With such a policy, every Java tool would refuse the list of all groups."""
    refused = put_group(client, "G", groupRetryPolicy=policy)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "groupRetryPolicy of G" in (refused.remark or "")
    assert "G" not in groups_of(client)


def test_a_retry_policy_is_of_a_bounded_length(client: MemoryClient) -> None:
    """A policy of 14 MB left no room for any other group in the list of all groups."""
    times = list(range(1_001))
    refused = put_group(client, "G", groupRetryPolicy={"customizedRetryPolicy": {"next": times}})
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "has 1001 times between retries; 1000 are possible" in (refused.remark or "")
    assert "G" not in groups_of(client)
    ok(put_group(client, "G", groupRetryPolicy={"customizedRetryPolicy": {"next": times[1:]}}))


@pytest.mark.parametrize(
    "policy",
    [
        {
            "type": "EXPONENTIAL",
            "exponentialRetryPolicy": {"initial": 5, "max": 7, "multiplier": 2},
        },
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000, 2_000]}},
    ],
)
def test_a_retry_policy_is_kept(client: MemoryClient, policy: dict[str, object]) -> None:
    ok(put_group(client, "G", groupRetryPolicy={**policy, "other": None}))
    assert groups_of(client)["G"]["groupRetryPolicy"] == policy


def test_what_is_no_part_of_a_retry_policy_is_not_kept(gateway: MemoryGateway) -> None:
    """The field is nested as deep as can just be read. After a restart the list of all groups could not be written."""
    nested = b"[" * 50 + b"]" * 50
    body = b'{"groupName":"G","groupRetryPolicy":{"type":"EXPONENTIAL","other":' + nested + b"}}"
    ok(gateway.connect().ask(200, None, body))
    gateway.restart()
    assert groups_of(gateway.connect())["G"]["groupRetryPolicy"] == {"type": "EXPONENTIAL"}


@pytest.mark.parametrize(
    ("name", "says"),
    [("G!", "G!, contains illegal characters"), (" ", "blank"), ("g" * 121, "max length: 120")],
)
def test_names_that_cannot_be(client: MemoryClient, name: str, says: str) -> None:
    answer = put_group(client, name)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert answer.remark is not None
    assert says in answer.remark


def test_many_are_all_or_none(client: MemoryClient) -> None:
    def put(*names: str) -> int:
        groups = [{"groupName": name} for name in names]
        return client.ask(225, None, json.dumps({"groupConfigList": groups}).encode()).code

    assert put("A", "B!") == ResponseCode.INVALID_PARAMETER
    assert "A" not in groups_of(client)
    assert put("A", "B") == ResponseCode.SUCCESS
    assert {"A", "B"} <= set(groups_of(client))


def test_too_many(client: MemoryClient) -> None:
    groups = [{"groupName": f"g{number}"} for number in range(10_001)]
    answer = client.ask(225, None, json.dumps({"groupConfigList": groups}).encode())
    assert (answer.code, answer.remark) == (
        ResponseCode.INVALID_PARAMETER,
        "10001 groups in one request; 10000 are possible",
    )


def test_pages_and_version(gateway: MemoryGateway, client: MemoryClient) -> None:
    gateway.advance(30)
    for name in ("A", "B", "C"):
        put_group(client, name)
    answer = client.ask(201)
    everything = list(read(answer)["subscriptionGroupTable"])
    assert answer.ext() == {"totalGroupNum": str(len(everything))}
    assert read(answer)["dataVersion"] == {
        "counter": 3,
        "timestamp": START_MS + 30,
        "stateVersion": 0,
    }
    page = client.ask(201, {"groupSeq": "1", "maxGroupNum": "2"})
    assert list(read(page)["subscriptionGroupTable"]) == everything[1:3]
    ok(client.ask(207, {"groupName": "B"}))
    assert read(client.ask(201))["dataVersion"]["counter"] == 4
    gateway.restart()
    left = set(everything) - {"B"}
    assert set(groups_of(gateway.connect())) == left, "and it is gone after a restart"


def test_groups_of_tools_are_there_unasked(make_gateway: MakeGateway) -> None:
    client = make_gateway(auto_create_group=False).connect()
    assert "TOOLS_CONSUMER" in groups_of(client)
    create_topic(client, "T")
    client.send_message("T")
    assert len(client.pull("T", group="TOOLS_CONSUMER")) == 1
    assert client.ask_pull("T", group="other").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    ("topic", "mode", "code"),
    [("T", "PULL", 0), ("T", "POP", 0), ("T", "PUSH", 29), ("%RETRY%G", "PULL", 16)],
)
def test_consume_mode(client: MemoryClient, topic: str, mode: str, code: int) -> None:
    create_topic(client, "T")
    body = {"topic": topic, "consumerGroup": "G", "mode": mode, "popShareQueueNum": 0}
    assert client.ask(401, None, json.dumps(body).encode()).code == code


def test_consume_mode_with_a_bad_body(client: MemoryClient) -> None:
    assert client.ask(401, None, b"{").code == ResponseCode.SYSTEM_ERROR


class TestDelete:
    def test_progress_stays_unless_it_is_to_go(self, client: MemoryClient) -> None:
        create_topic(client, "T")
        client.send_message("T")  # an empty queue gets the same response as an unknown one
        put_group(client, "G")
        ok(commit_offset(client, "T", 0, 5, "G"))
        ok(client.ask(207, {"groupName": "G"}))
        assert "G" not in groups_of(client)
        assert offset_of(client, "T", 0, "G") == 5
        ok(client.ask(207, {"groupName": "G", "cleanOffset": "true"}))
        assert offset_of(client, "T", 0, "G") == 0

    def test_a_group_that_never_was(self, client: MemoryClient) -> None:
        ok(client.ask(207, {"groupName": "G"}))


@pytest.mark.parametrize(
    ("code", "fields"),
    [(207, {"groupName": "G", "cleanOffset": "true"}), (215, {"topic": "T"})],
    ids=["a group", "a topic"],
)
class TestDeleteMuchProgress:
    """That of 500,000 places took 2 to 3 s, in which nobody else was answered."""

    @pytest.fixture(autouse=True)
    def much(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create_topic(client, "T", 10)
        put_group(client, "G")
        for queue in range(10):
            ok(commit_offset(client, "T", queue, 5, "G"))
        gateway.restart()
        monkeypatch.setattr("storage.progress.PLACES_AT_ONCE", 2)

    def left(self, gateway: MemoryGateway) -> int:
        return len(list(gateway.store.progress.rows()))

    def test_leaves_others_their_turn(
        self, gateway: MemoryGateway, code: int, fields: dict[str, str]
    ) -> None:
        client, other = gateway.connect(), gateway.connect()
        client.send(code, fields)
        client.disconnect()  # what it has sent is carried out
        assert self.left(gateway) == 8
        other.send(105, {"topic": "TBW102"})
        gateway.reactor.turn()
        assert other.transport.value() != b""
        assert self.left(gateway) == 6
        gateway.settle()
        assert self.left(gateway) == 0
        gateway.crash()
        assert self.left(gateway) == 0
        [line] = [one for one in read_lines(gateway.data) if one["action"].startswith("delete_")]
        assert fields.items() <= line.items()

    def test_is_refused_when_a_part_cannot_be_stored(
        self, gateway: MemoryGateway, code: int, fields: dict[str, str]
    ) -> None:
        client = gateway.connect()
        deletion = client.send(code, fields)
        with commits_fail(gateway):
            answer = client.answer(deletion)
        assert answer is not None
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert self.left(gateway) == 8
        gateway.advance(2_000)
        ok(client.ask(code, fields))
        assert self.left(gateway) == 0

    def test_is_not_answered_by_a_gateway_that_stops(
        self, gateway: MemoryGateway, code: int, fields: dict[str, str]
    ) -> None:
        client = gateway.connect()
        deletion = client.send(code, fields)
        gateway.service.stop()
        answer = client.answer(deletion)
        assert answer is not None
        assert answer.code == ResponseCode.GO_AWAY
        gateway.running = False
        gateway.start()
        ok(gateway.connect().ask(code, fields))
        assert self.left(gateway) == 0
