"""The permissions that each request needs, and what a user sees without them."""

from __future__ import annotations

import json

import pytest

from gateway.access.permissions import PERMISSIONS
from gateway.router import Router
from gateway.topics import HALF_TOPIC
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from tests.gateway.access.signed import Login, SignedClient, put_acl
from tests.gateway.memory import MemoryGateway, property_string
from tests.gateway.tools import create_topic, ok

Grants = list[tuple[str, str]]

ACTIONS = {"Pub", "Sub", "Create", "Update", "Delete", "Get", "List"}

PULL = {
    "consumerGroup": "G",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "1",
    "sysFlag": "4",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
    "subVersion": "0",
    "subscription": "*",
}
SEND = {
    "a": "P",
    "b": "T",
    "c": "TBW102",
    "d": "1",
    "e": "0",
    "f": "0",
    "g": "1",
    "h": "0",
    "i": "",
}
LONG_SEND = {
    "producerGroup": "P",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "1",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1",
    "flag": "0",
}
QUEUE = {"topic": "T", "queueId": "0"}
POP = {
    "consumerGroup": "G",
    "maxMsgNums": "1",
    "invisibleTime": "1",
    "pollTime": "0",
    "bornTime": "0",
    "initMode": "0",
    **QUEUE,
}
ACK = {"consumerGroup": "G", "offset": "0", "extraInfo": "0 0 0 0 1 b 0 0", "invisibleTime": "1"}
ACK |= {"topic": "%RETRY%G_T", "queueId": "0"}
BATCH_ACK = {"acks": [{"c": "G", "t": "T", "q": 0, "so": 0, "pt": 0, "it": 0}]}
CREATE_TOPIC = {
    "topic": "T",
    "defaultTopic": "TBW102",
    "readQueueNums": "1",
    "writeQueueNums": "1",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
}
RESET = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
QUERY = {"topic": "T", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}
HEARTBEAT = {
    "clientID": "c",
    "producerDataSet": [{"groupName": "P"}],
    "consumerDataSet": [
        {
            "groupName": "G",
            "subscriptionDataSet": [
                {"topic": "T", "subString": "*", "subVersion": 1},
                {"topic": "%RETRY%G", "subString": "*", "subVersion": 1},
            ],
        }
    ],
}
LOCK = {
    "consumerGroup": "G",
    "clientId": "c",
    "mqSet": [{"topic": "T", "brokerName": "broker-a", "queueId": 0}],
}
HANDLE = {"topic": "T", "recallHandle": "x"}
TOPIC_LIST = {
    "topicConfigList": [{"topicName": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}]
}
T, G = "Topic:T", "Group:G"

NEEDS: dict[int, tuple[dict[str, str], object, Grants]] = {
    10: (LONG_SEND, None, [(T, "Pub")]),
    11: (PULL, None, [(T, "Sub"), (G, "Sub")]),
    12: (QUERY, None, [(T, "Sub")]),
    14: ({"consumerGroup": "G", **QUEUE}, None, [(T, "Get"), (G, "Sub")]),
    15: ({"consumerGroup": "G", "commitOffset": "0", **QUEUE}, None, [(T, "Sub"), (G, "Update")]),
    17: (CREATE_TOPIC, None, [(T, "Create")]),
    18: ({}, TOPIC_LIST, [(T, "Create")]),
    29: ({"timestamp": "0", **QUEUE}, None, [(T, "Sub")]),
    30: (QUEUE, None, [(T, "Sub")]),
    31: (QUEUE, None, [(T, "Get")]),
    32: (QUEUE, None, [(T, "Get")]),
    34: ({}, HEARTBEAT, [(G, "Sub"), (T, "Sub")]),
    35: ({"clientID": "c", "consumerGroup": "G"}, None, [(G, "Sub")]),
    36: ({"offset": "99999", "group": "G", "delayLevel": "0"}, None, [(G, "Sub")]),
    37: (
        {
            "producerGroup": "P",
            "tranStateTableOffset": "0",
            "commitLogOffset": "99999",
            "commitOrRollback": "8",
            "msgId": "m",
            "topic": "T",
        },
        None,
        [(T, "Pub")],
    ),
    38: ({"consumerGroup": "G"}, None, [(G, "Sub")]),
    41: ({}, LOCK, [(G, "Sub"), (T, "Sub")]),
    42: ({}, LOCK, [(G, "Sub"), (T, "Sub")]),
    105: ({"topic": "T"}, None, [(T, "Pub")]),
    200: ({}, {"groupName": "G"}, [(G, "Create")]),
    202: ({"topic": "T"}, None, [(T, "Get")]),
    203: ({"consumerGroup": "G"}, None, [(G, "Get")]),
    207: ({"groupName": "G"}, None, [(G, "Delete")]),
    208: ({"consumerGroup": "G", "topicList": "T;T"}, None, [(G, "Get"), (T, "Get")]),
    215: ({"topic": "T"}, None, [(T, "Delete")]),
    216: ({"topic": "T"}, None, [(T, "Delete")]),
    222: (RESET, None, [(T, "Update"), (G, "Update")]),
    223: ({"topic": "T", "group": "G"}, None, [(T, "Get"), (G, "Get")]),
    225: ({}, {"groupConfigList": [{"groupName": "G"}]}, [(G, "Update")]),
    300: ({"topic": "T"}, None, [(T, "Get")]),
    303: ({"topic": "T", "group": "G"}, None, [(T, "Get"), (G, "Get")]),
    307: ({"consumerGroup": "G", "clientId": "c"}, None, [(G, "Get")]),
    309: ({"consumerGroup": "G", "clientId": "c", "msgId": "m"}, None, [(G, "Sub")]),
    310: (SEND, None, [(T, "Pub")]),
    314: ({"srcGroup": "G", "destGroup": "H"}, None, [(G, "Get"), ("Group:H", "Update")]),
    320: (SEND, None, [(T, "Pub")]),
    321: ({"index": "0", "count": "1", **QUEUE}, None, [(T, "Get")]),
    324: (LONG_SEND, None, [(T, "Pub")]),
    325: (SEND, None, [(T, "Pub")]),
    343: ({"group": "G"}, None, [(G, "Get")]),
    345: ({"group": "G", "topic": "T"}, None, [(G, "Get"), (T, "Get")]),
    351: ({"topic": "T"}, None, [(T, "Get")]),
    352: ({"group": "G"}, None, [(G, "Get")]),
    361: (PULL, None, [(T, "Sub"), (G, "Sub")]),
    370: (HANDLE, None, [(T, "Pub")]),
    400: ({}, {"topic": "T", "consumerGroup": "G", "clientId": "c"}, [(G, "Sub"), (T, "Sub")]),
    401: ({}, {"topic": "T", "consumerGroup": "G", "mode": "PULL"}, [(G, "Update")]),
    200050: (POP, None, [(T, "Sub"), (G, "Sub")]),
    200051: (ACK, None, [(T, "Sub"), (G, "Sub")]),
    200052: (POP, None, [(T, "Sub"), (G, "Sub")]),
    200053: (ACK, None, [(T, "Sub"), (G, "Sub")]),
    200054: (POP, None, [(T, "Sub"), (G, "Sub")]),
    200055: (POP, None, [(T, "Sub"), (G, "Sub")]),
    200151: ({}, BATCH_ACK, [(G, "Sub"), (T, "Sub")]),
    31001: ({"topic": "T"}, None, [(T, "Get")]),
    31002: ({"topic": "T", "key": "k"}, None, [(T, "Pub")]),
    31003: ({"topic": "T", "key": "k", "delay": "5"}, None, [(T, "Pub")]),
    31004: ({"topic": "T"}, None, [(T, "Update")]),
    31005: ({"topic": "T"}, None, [(T, "Update")]),
    31007: ({"topic": "T", "action": "count"}, None, [(T, "Pub")]),
    31010: ({"topic": "T"}, None, [(T, "Get")]),
    31011: ({"topic": "T", "name": "n", "change": "pause"}, None, [(T, "Pub")]),
    31012: ({"topic": "T", "name": "n"}, None, [(T, "Get")]),
}
"""What requests about topics and groups need: fields, body, and permissions that are enough and no more."""

CLUSTER_GET = [26, 28, 43, 45, 60, 61, 101, 106, 201, 204, 206, 219, 224, 304, 305, 311, 312, 313]
CLUSTER_GET += [315, 317, 319, 328, 907, 2003, 21, 3004, 3005, 3009, 3010, 31020]
CLUSTER_LIST = (21, 201, 206, 224, 304, 305, 311, 312, 313)
"""Those of `CLUSTER_GET` for which List is enough too."""
CLUSTER_UPDATE = (25, 100, 102, 205, 306, 316, 318, 327, 329, 3001, 3002, 3003, 3006, 3007, 3008)
CLUSTER_FIELDS = {
    "namespace": "n",
    "key": "k",
    "value": "v",
    "brokerName": "none",
    "producerGroup": "P",
    "cluster": "c",
    "statsName": "s",
    "statsKey": "k",
    "isOrder": "false",
    "username": "alice",
    "subject": "User:alice",
}
OPEN = (46, 31006)
BY_MESSAGE = (33,)


def ask(client: SignedClient, code: int, ext: dict[str, str], body: object) -> Command:
    return client.ask(code, ext, b"" if body is None else json.dumps(body).encode())


def is_refused(answer: Command) -> bool:
    """Whether the response refuses the user."""
    remark = answer.remark or ""
    return answer.code == ResponseCode.NO_PERMISSION and "no permission to access" in remark


def test_every_supported_request_is_in_the_table(guarded: MemoryGateway) -> None:
    router = guarded.service._router
    assert isinstance(router, Router)
    assert set(router._table) == set(PERMISSIONS)
    tested = {*NEEDS, *CLUSTER_GET, *CLUSTER_UPDATE, *OPEN, *BY_MESSAGE}
    assert tested == {int(code) for code in PERMISSIONS}


@pytest.mark.parametrize("code", NEEDS)
def test_needs_of_topics_and_groups(login: Login, root: SignedClient, code: int) -> None:
    ext, body, grants = NEEDS[code]
    client = login()
    answer = ask(client, code, ext, body)
    assert is_refused(answer)
    assert answer.remark in {
        f"User:alice has no permission to access {resource} from 127.0.0.1, no matched policies."
        for resource, _ in grants
    }
    for lacking, _ in grants:
        for resource, action in grants:
            # Other actions are not enough, nor is the same action on another name.
            useless = ACTIONS - ALTERNATIVES.get((code, resource), {action})
            given = sorted(useless) if resource == lacking else [action]
            ok(put_acl(root, "alice", resource, given))
            ok(put_acl(root, "alice", resource + "2", ["All"]))
        assert is_refused(ask(client, code, ext, body)), lacking
    for resource, action in grants:
        ok(put_acl(root, "alice", resource, [action]))
    assert not is_refused(ask(client, code, ext, body))


READ, ANY_ROUTE = {"Sub", "Get"}, {"Pub", "Sub", "Get"}
ALTERNATIVES: dict[tuple[int, str], set[str]] = {
    (12, T): READ,
    (14, T): READ,
    (14, G): READ,
    (15, T): {"Sub", "Update"},
    (15, G): {"Sub", "Update"},
    **dict.fromkeys([(code, T) for code in (29, 30, 31, 32, 31001, 31010, 31012)], READ),
    (38, G): READ,
    (105, T): ANY_ROUTE,
    (200, G): {"Create", "Update"},
    (225, G): {"Create", "Update"},
    (314, G): READ,
}
"""Cases where any one of several actions is enough."""


@pytest.mark.parametrize("code", [*CLUSTER_GET, *CLUSTER_UPDATE])
def test_needs_of_the_cluster(login: Login, root: SignedClient, code: int) -> None:
    client = login(("Topic:*", "All"), ("Group:*", "All"))
    answer = client.ask(code, CLUSTER_FIELDS)
    assert is_refused(answer)
    assert "Cluster:DefaultCluster" in (answer.remark or "")
    enough = {"Update"} if code in CLUSTER_UPDATE else {"Get"}
    if code in CLUSTER_LIST:
        enough.add("List")
    ok(put_acl(root, "alice", "Cluster:DefaultCluster", sorted(ACTIONS - enough)))
    assert is_refused(client.ask(code, CLUSTER_FIELDS))
    for action in enough:
        ok(put_acl(root, "alice", "Cluster:DefaultCluster", [action]))
        assert not is_refused(client.ask(code, CLUSTER_FIELDS))


def test_a_request_needs_no_more_permissions_than_can_be_checked_at_once(
    login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.access.guard.MAX_NEEDS", 3)
    client = login(("Topic:*", "Sub"), ("Group:*", "Sub"))
    assert client.heartbeat("c", "G", {"T": "*", "U": "*"}).code == 0
    refused = client.heartbeat("c", "G", {"T": "*", "U": "*", "V": "*"})
    assert (refused.code, refused.remark) == (
        ResponseCode.INVALID_PARAMETER,
        "4 permissions for one request; 3 are possible",
    )


def test_how_far_a_group_is_in_a_topic_needs_that_topic(login: Login, root: SignedClient) -> None:
    client = login(("Group:G", "Get"))
    assert is_refused(client.ask(208, {"consumerGroup": "G", "topic": "T"}))
    ok(put_acl(root, "alice", "Topic:T", ["Get"]))
    assert not is_refused(client.ask(208, {"consumerGroup": "G", "topic": "T"}))


def test_a_check_of_a_subscription_needs_a_name_only(login: Login) -> None:
    assert not is_refused(login().ask(46, None, b"{}"))


def test_whoever_sees_the_clock_may_not_move_it(login: Login) -> None:
    client = login(("Cluster:*", "Get"))
    assert not is_refused(client.ask(31020))
    assert is_refused(client.ask(31020, {"advance": "1"}))
    assert is_refused(client.ask(31020, {"to": "1"}))


def test_the_template_of_new_topics_has_a_route_for_everybody(login: Login) -> None:
    ok(login().ask(105, {"topic": "TBW102"}))


def test_a_retry_topic_is_its_group(login: Login) -> None:
    client = login(("Group:G", "Sub"))
    retry = {"topic": "%RETRY%G"}
    assert not is_refused(client.ask(105, retry))
    assert not is_refused(client.ask(11, PULL | retry))
    assert not is_refused(client.ask(310, SEND | {"b": "%RETRY%G", "a": "CLIENT_INNER_PRODUCER"}))
    assert is_refused(login(("Group:G", "Pub"), name="bob").ask(105, retry))
    # Members of one group do not get another group's failed messages.
    assert is_refused(client.ask(11, PULL | {"topic": "%RETRY%H"}))
    assert is_refused(client.ask(310, SEND | {"b": "%RETRY%H", "a": "G"}))


def test_messages_by_number_are_those_of_their_topic(login: Login, root: SignedClient) -> None:
    sent = ok(root.send_message("secret", TIMER_DELAY_SEC="9")).ext()["msgId"]
    number = str(int(sent[16:], 16))
    client = login(("Topic:T", "All"), ("Group:G", "All"))
    back = {"offset": number, "group": "G", "delayLevel": "0", "originTopic": "T"}
    directly = {"consumerGroup": "G", "clientId": "c", "msgId": sent}
    for code, ext in ((33, {"offset": number, "topic": "T"}), (36, back), (309, directly)):
        answer = client.ask(code, ext)
        assert is_refused(answer)
        # Numbers can be guessed: nobody learns by them which topics there are.
        assert "secret" not in (answer.remark or "")
    ok(put_acl(root, "alice", "Topic:secret", ["Sub"]))
    ok(client.ask(33, {"offset": number}))
    assert not is_refused(client.ask(36, back))
    assert not is_refused(client.ask(309, directly))


@pytest.mark.parametrize("code", [33, 36])
@pytest.mark.parametrize("number", ["-1", "0", "2"])
def test_a_number_that_no_message_has_needs_no_permission_for_its_topic(
    login: Login, root: SignedClient, code: int, number: str
) -> None:
    """Messages are numbered from 1 on."""
    ok(root.send_message("secret"))
    fields = {"offset": number, "group": "G", "delayLevel": "0"}
    answers = [one.ask(code, fields) for one in (login(("Group:G", "Sub")), root)]
    assert len({(one.code, one.remark) for one in answers}) == 1
    assert answers[0].code == ResponseCode.SYSTEM_ERROR


def test_a_transaction_is_decided_by_those_who_may_send_to_its_topic(
    login: Login, root: SignedClient
) -> None:
    half = ok(root.send_message("secret", fields={"sys_flag": 4}, TRAN_MSG="true", PGROUP="P"))
    end = {
        "producerGroup": "P",
        "tranStateTableOffset": half.ext()["queueOffset"],
        "commitLogOffset": str(int(half.ext()["msgId"][16:], 16)),
        "commitOrRollback": "8",
        "msgId": "m",
    }
    client = login(("Topic:T", "Pub"))
    assert is_refused(client.ask(37, end | {"topic": "T"}))
    assert is_refused(client.ask(37, end))
    assert is_refused(client.ask(37, end | {"topic": HALF_TOPIC}))
    ok(put_acl(root, "alice", "Topic:secret", ["Pub"]))
    assert not is_refused(client.ask(37, end))


def test_who_may_send_to_its_topic_decides_a_transaction_when_asked(
    guarded: MemoryGateway, login: Login, root: SignedClient
) -> None:
    root.send_message("secrets", TRAN_MSG="true", PGROUP="payers", fields={"sys_flag": 4})
    sender = login(("Topic:secrets", "Pub"))
    assert sender.heartbeat("s", group="", producers=["payers"]).code == 0
    guarded.advance(60_000)
    (check, *_) = sender.requests()
    names = ("topic", "tranStateTableOffset", "commitLogOffset", "msgId")
    answer = {name: check.ext()[name] for name in names}
    decided = sender.ask(37, answer | {"producerGroup": "payers", "commitOrRollback": "8"})
    assert decided.code == ResponseCode.SUCCESS


def test_only_those_who_may_send_to_its_topic_are_asked_about_a_transaction(
    guarded: MemoryGateway, login: Login, root: SignedClient
) -> None:
    root.send_message("secrets", TRAN_MSG="true", PGROUP="payers", fields={"sys_flag": 4})
    curious, sender = login(name="curious"), login(("Topic:secrets", "Pub"), name="sender")
    for client_id, client in (("c", curious), ("s", sender)):
        assert client.heartbeat(client_id, group="", producers=["payers"]).code == 0
    guarded.advance(60_000)
    assert curious.requests() == []
    assert {one.code for one in sender.requests()} == {RequestCode.CHECK_TRANSACTION_STATE}


def test_nobody_takes_the_place_of_another_users_client(
    guarded: MemoryGateway, login: Login, root: SignedClient
) -> None:
    root.send_message("secrets", TRAN_MSG="true", PGROUP="payers", fields={"sys_flag": 4})
    curious, sender = login(name="curious"), login(("Topic:secrets", "Pub"), name="sender")
    assert sender.heartbeat("s", group="", producers=["payers"]).code == 0
    answer = curious.heartbeat("s", group="", producers=["mine", "payers"])
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the client s belongs to another user",
    )
    guarded.advance(60_000)
    assert {one.code for one in sender.requests()} == {RequestCode.CHECK_TRANSACTION_STATE}
    sender.disconnect()
    assert curious.heartbeat("s", group="", producers=["payers"]).code == 0


def test_nobody_takes_another_users_replies(
    guarded: MemoryGateway, login: Login, root: SignedClient
) -> None:
    curious, asker = login(name="curious"), login(name="asker")
    assert asker.heartbeat("a", group="", producers=["askers"]).code == 0
    refused = curious.heartbeat("a", group="", producers=["mine"])
    assert refused.code == ResponseCode.NO_PERMISSION
    asker.disconnect()
    asker = SignedClient(guarded, "asker", "secret")
    assert asker.heartbeat("a", group="", producers=["askers", "more"]).code == 0
    reply = {"CORRELATION_ID": "1", "REPLY_TO_CLIENT": "a", "MSG_TYPE": "reply", "TTL": "3000"}
    fields = root.send_fields(properties=property_string(reply))
    root.send(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"secret")
    assert curious.requests() == []
    assert [one.body for one in asker.requests()] == [b"secret"]


def test_look_ups_show_what_the_user_may_read(login: Login, root: SignedClient) -> None:
    for topic in ("T", "secret"):
        ok(root.send_message(topic, TIMER_DELAY_SEC="60", KEYS="k", UNIQ_KEY=f"id-{topic}"))
    client = login(("Topic:T", "Sub"))
    assert {one["topic"] for one in root.look_up()} == {"T", "secret"}
    assert [one["topic"] for one in client.look_up()] == ["T"]
    assert [one["topic"] for one in client.look_up(key="k")] == ["T"]
    assert client.look_up(id="id-secret") == []
    query = QUERY | {"topic": "rmq_sys_wheel_timer", "endTimestamp": str(1 << 62), "maxNum": "9"}
    ok(put_acl(root, "alice", "Topic:rmq_sys_wheel_timer", ["Sub"]))
    found = ok(client.ask(12, query))
    assert b"id-T" in found.body
    assert b"id-secret" not in found.body
    by_id = query | {"key": "id-secret", "_UNIQUE_KEY_QUERY": "true"}
    assert client.ask(12, by_id).code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize(
    "fields",
    [{}, {"key": "k"}, {"state": "aborted"}, {"state": "any", "key": "k"}],
)
def test_the_cursor_of_a_look_up_tells_nothing_about_other_topics(
    login: Login, root: SignedClient, fields: dict[str, str]
) -> None:
    for number in range(6):
        for topic in ("T", "secret"):
            named = {"KEYS": "k", "UNIQ_KEY": f"id-{topic}-{number}"}
            ok(root.send_message(topic, TIMER_DELAY_SEC=str(60 + number), properties=named))
    for name in ("id-secret-0", "id-T-1", "id-secret-2", "id-T-3"):
        root.abort(id=name)
    client = login(("Topic:T", "Sub"))
    whole, cursor = client.look_up_page(**fields)
    assert cursor is None
    assert {one["topic"] for one in whole} <= {"T"}
    paged, cursor = client.look_up_page(limit=1, **fields)
    while cursor is not None:
        assert b"secret" not in bytes.fromhex(cursor)
        page, cursor = client.look_up_page(limit=1, cursor=cursor, **fields)
        paged += page
    assert paged == whole


def test_the_cursor_of_recurring_messages_tells_nothing_about_other_topics(
    login: Login, root: SignedClient
) -> None:
    for topic in ("A", "T", "secret"):
        for name in ("n1", "n2"):
            properties = {"TIDEGATE_NAME": name, "TIDEGATE_EVERY": "1h"}
            ok(root.send_message(topic, properties=properties))
    client = login(("Topic:T", "Sub"))
    listed: list[tuple[str, str]] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = ok(client.ask(RequestCode.LIST_RECURRING, {"limit": "1", "cursor": cursor}))
        page = json.loads(answer.body)
        listed += [(one["topic"], one["name"]) for one in page["recurring"]]
        cursor = page["cursor"]
        assert cursor is None or bytes.fromhex(cursor).startswith(b"T\0")
    assert listed == [("T", "n1"), ("T", "n2")]


def test_of_the_paused_topics_a_user_sees_those_that_may_be_read(
    login: Login, root: SignedClient
) -> None:
    for topic in ("T", "secret"):
        ok(create_topic(root, topic))
        ok(root.ask(RequestCode.PAUSE_TOPIC, {"topic": topic}))
    paused = ok(login(("Topic:T", "Sub")).ask(RequestCode.LIST_PAUSED_TOPICS))
    assert [one["topic"] for one in json.loads(paused.body)["topics"]] == ["T"]


def test_aborts_and_moves_take_what_the_user_may_send(login: Login, root: SignedClient) -> None:
    handles = {}
    for topic in ("mine", "seen", "secret"):
        sent = root.send_message(topic, TIMER_DELAY_SEC="60", KEYS="k", UNIQ_KEY=f"id-{topic}")
        handles[topic] = ok(sent).ext()["recallHandle"]
    client = login(("Topic:mine", "Pub"), ("Topic:seen", "Get"))
    assert client.abort(id="id-secret")[0]["outcome"] == "unknown"
    refused = client.ask(RequestCode.ABORT_TIMERS, {"id": "id-seen"})
    assert refused.code == ResponseCode.NO_PERMISSION
    assert is_refused(client.ask(RequestCode.ABORT_TIMERS, {"handle": handles["seen"]}))
    moved = {"handle": handles["seen"], "delay": "5"}
    assert is_refused(client.ask(RequestCode.RESCHEDULE_TIMERS, moved))
    assert is_refused(client.ask(RequestCode.ABORT_TIMERS, {"topic": "secret", "key": "k"}))
    assert is_refused(client.recall("secret", handles["secret"]))
    assert len(root.look_up()) == 3
    assert client.abort(id="id-mine")[0]["outcome"] == "aborted"
    assert {one["topic"] for one in root.look_up()} == {"seen", "secret"}


def test_a_prefix_may_be_a_whole_name(login: Login, root: SignedClient) -> None:
    for topic in ("pa", "pay"):
        ok(create_topic(root, topic))
    client = login(("Topic:pay*", "Get"))
    ok(client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "pay"}))
    assert is_refused(client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "pa"}))


def test_which_policy_counts(login: Login, root: SignedClient) -> None:
    client = login()
    create_topic(root, "pay-in")

    def may() -> bool:
        answer = client.ask(351, {"topic": "pay-in"})
        if is_refused(answer):
            assert (answer.remark or "").endswith(("is deny.", "no matched policies."))
            return False
        return True

    ok(put_acl(root, "alice", "Topic:pay-in", ["Get"], policy_type="Default"))
    assert may()
    ok(put_acl(root, "alice", "*", ["All"], "Deny"))  # a policy set by hand has priority over it
    assert not may()
    ok(put_acl(root, "alice", "topic:*", ["all"], "allow"))
    assert may()
    ok(put_acl(root, "alice", "Topic:p*", ["Get"], "Deny"))
    assert not may()
    ok(put_acl(root, "alice", "Topic:pay*", ["Get"], "Allow"))
    assert may()
    ok(put_acl(root, "alice", "Topic:pay", ["Get"], "Deny"))  # applies to that name only
    assert may()
    ok(put_acl(root, "alice", "Topic:pay-in", ["Get"], "Deny"))
    assert not may()
    ok(put_acl(root, "alice", "Topic:pay-in", ["Sub"], "Deny"))  # replaces it, denies Sub only
    assert may()


@pytest.mark.parametrize(
    ("host", "may"),
    [("192.0.2.7", True), ("192.0.3.7", False), ("10.0.0.1", True), ("2001:db8::1", True)],
)
def test_source_addresses(login: Login, root: SignedClient, host: str, may: bool) -> None:
    client = login(host=host)
    ips = ["192.0.2.7/24", " 10.0.0.1 ", "2001:db8::/32"]
    ok(put_acl(root, "alice", "Topic:T", [" Get "], ips=ips))
    answer = client.ask(351, {"topic": "T"})
    assert is_refused(answer) is not may
    if not may:
        assert f"from {host}, no matched policies." in (answer.remark or "")


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY TCP4 127.0.0.1 192.0.2.1 51000 9876\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\1\xc0\0\2\1\xc7\x38\x26\x94",
    ],
)
@pytest.mark.parametrize("is_denied", [False, True])
def test_nobody_chooses_a_source_address_by_a_header(
    login: Login, root: SignedClient, header: bytes, is_denied: bool
) -> None:
    """Whoever connects can send a PROXY header with any address."""
    client = login(host="192.0.2.7")
    if is_denied:
        ok(put_acl(root, "alice", "Topic:*", ["Get"]))
        ok(put_acl(root, "alice", "Topic:T", ["Get"], "Deny", ips=["192.0.2.7"]))
    else:
        ok(put_acl(root, "alice", "Topic:T", ["Get"], ips=["127.0.0.1"]))
    client.raw(header)
    answer = client.ask(351, {"topic": "T"})
    assert client.protocol.address == "127.0.0.1:51000"
    assert is_refused(answer)
    assert "from 192.0.2.7, " in (answer.remark or "")


def test_without_authorization_a_name_is_enough(guarded: MemoryGateway, login: Login) -> None:
    login()
    guarded.stop()
    guarded.settings["authorization"] = False
    guarded.start()
    client = SignedClient(guarded, "alice", "secret")
    ok(client.send_message("T", TIMER_DELAY_SEC="60"))
    assert len(client.look_up()) == 1


def test_a_request_that_the_table_has_not_is_for_super_users(
    monkeypatch: pytest.MonkeyPatch, login: Login, root: SignedClient
) -> None:
    monkeypatch.setattr("gateway.access.guard.PERMISSIONS", {})
    answer = login(("*", "All")).ask(26)
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "request 26 is for super users only"
    ok(root.ask(26))
