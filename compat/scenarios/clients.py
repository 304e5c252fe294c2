"""Heartbeats, notifications of a group's members, unknown requests, and invalid frames."""

from __future__ import annotations

import json
import struct

from compat.scenarios.raw import RawClient, heartbeat
from compat.scenarios.stage import RAW, Stage, scenario
from gateway.wire.codes import RequestCode
from gateway.wire.commands import encode_command


def named(raw: RawClient, stage: Stage, step: str, code: int, **ext: str) -> None:
    """Send a request with its fields as keyword arguments, and note the answer."""
    stage.ask(step, raw, code, ext)


@scenario(*RAW)
def members_of_a_group(stage: Stage) -> None:
    """A heartbeat adds a member to the group; all members are notified, and the list can be queried."""
    topic, group = stage.topic(), stage.topic("g")
    one, two = stage.raw(), stage.raw()
    one.send(topic)
    named(one, stage, "nobody", RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)

    def told(step: str, *members: RawClient) -> None:
        stage.see(
            step, [one.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED).ext() for one in members]
        )

    stage.ask("first", one, RequestCode.HEART_BEAT, body=heartbeat("one", group, topic))
    told("told of the first", one)
    stage.ask("second", two, RequestCode.HEART_BEAT, body=heartbeat("two", group, topic))
    told("told of the second", one, two)
    members = {"consumerGroup": group}
    stage.ask("both", one, RequestCode.GET_CONSUMER_LIST_BY_GROUP, members)
    stage.ask("leave without a name", two, RequestCode.UNREGISTER_CLIENT)
    leave = {"clientID": "two", "consumerGroup": group}
    stage.ask("leave", two, RequestCode.UNREGISTER_CLIENT, leave)
    told("told that it left", one)
    named(one, stage, "one left", RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
    stage.see("told no more", [one.is_quiet(), two.is_quiet()])


@scenario(*RAW)
def a_quiet_group(stage: Stage) -> None:
    """If a group has notifications of changes off, members are notified only when one is lost."""
    topic, group = stage.topic(), stage.topic("g")
    one, two, three = stage.raw(), stage.raw(), stage.raw()
    one.send(topic)
    quiet = json.dumps({"groupName": group, "notifyConsumerIdsChangedEnable": False}).encode()
    one.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=quiet)
    for name, raw in (("one", one), ("two", two), ("three", three)):
        stage.ask(name, raw, RequestCode.HEART_BEAT, body=heartbeat(name, group, topic))
    leave = {"clientID": "three", "consumerGroup": group}
    stage.ask("leave", three, RequestCode.UNREGISTER_CLIENT, leave)
    named(one, stage, "list", RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
    stage.see("told of those", one.is_asked(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED))
    two.leave()
    stage.see("told of the lost one", one.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED).ext())


@scenario(*RAW)
def what_a_member_asked_for(stage: Stage) -> None:
    """Tools can query the members of a group and their subscriptions."""
    topic, group = stage.topic(), stage.topic("g")
    raw = stage.raw()
    raw.send(topic)
    raw.ask(RequestCode.HEART_BEAT, body=heartbeat("one", group, topic, "red || blue"))
    named(raw, stage, "connections", RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
    named(raw, stage, "of topic", RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic=topic)
    named(raw, stage, "topics", RequestCode.QUERY_TOPICS_BY_CONSUMER, group=group)
    asked = {"group": group, "topic": topic}
    stage.ask("subscription", raw, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, asked)
    none = {"consumerGroup": f"{group}-none"}
    stage.ask("nobody", raw, RequestCode.GET_CONSUMER_CONNECTION_LIST, none)
    nobody = {"producerGroup": f"{group}-none"}
    stage.ask("no producer", raw, RequestCode.GET_PRODUCER_CONNECTION_LIST, nobody)
    absent = {"consumerGroup": group, "clientId": "nobody"}
    stage.ask("no such client", raw, RequestCode.GET_CONSUMER_RUNNING_INFO, absent)


@scenario(*RAW)
def checks_of_subscriptions(stage: Stage) -> None:
    """An SQL92 expression can be checked before it is used."""
    topic, group = stage.topic(), stage.topic("g")
    raw = stage.raw()
    for step, kind, expression in (
        ("tags", "TAG", "red || blue"),
        ("good", "SQL92", "a > 5 AND b IS NOT NULL"),
        ("bad", "SQL92", "a > > 5"),
        ("other kind", "REGEX", "a.*"),
    ):
        body = {
            "clientId": "one",
            "group": group,
            "subscriptionData": {
                "topic": topic,
                "subString": expression,
                "expressionType": kind,
                "subVersion": 1,
            },
        }
        stage.ask(step, raw, RequestCode.CHECK_CLIENT_CONFIG, body=json.dumps(body).encode())


@scenario(*RAW)
def codes_that_nobody_knows(stage: Stage) -> None:
    """An unknown request code is answered as not supported, and the connection stays open."""
    raw = stage.raw()
    stage.ask("unknown", raw, 29_999)
    stage.ask("a code of name servers only", stage.raw_namesrv(), 29_998)
    stage.send("goes on", raw, stage.topic())


@scenario(*RAW)
def oneway(stage: Stage) -> None:
    """A oneway request is never answered, not even an invalid one."""
    topic = stage.topic()
    raw = stage.raw()
    raw.tell(29_999, oneway=True)
    raw.tell(RequestCode.SEND_MESSAGE_V2, {}, oneway=True)
    raw.tell(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"}, oneway=True)
    raw.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
    stage.see("no other answer", raw.is_quiet())


@scenario(*RAW)
def frames_that_are_none(stage: Stage) -> None:
    """Data that is not a frame closes the connection without an answer."""
    good = encode_command(RequestCode.GET_MAX_OFFSET, 1, ext={"topic": stage.topic()})
    for step, data in (
        ("length 0", struct.pack(">I", 0)),
        ("length 3", struct.pack(">I", 3) + b"abc"),
        ("negative length", b"\xff" * 8),
        ("too long", struct.pack(">I", 17 * 1024 * 1024)),
        ("header longer than the frame", struct.pack(">II", 8, 100) + b"{}{}"),
        ("no JSON", struct.pack(">II", 8, 4) + b"{{{{"),
        ("JSON, but an array", struct.pack(">II", 6, 2) + b"[]"),
        ("JSON, but null", struct.pack(">II", 8, 4) + b"null"),
        ("unknown type", struct.pack(">II", 6, (9 << 24) | 2) + b"{}"),
        ("half a binary header", struct.pack(">II", 6, (1 << 24) | 2) + b"{}"),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    ):
        raw = stage.raw_direct()
        # RocketMQ reads nothing until it has 12 bytes, the length of a PROXY header's signature.
        raw.write(data.ljust(12, b" "))
        stage.see(step, raw.is_closed())
    raw = stage.raw_direct()
    raw.write(good[:10])
    stage.see("a part only waits", raw.is_closed(0.5))


@scenario(*RAW)
def headers_of_all_kinds(stage: Stage) -> None:
    """Headers may lack fields, have unknown ones, and have numbers instead of text."""
    topic = stage.topic()
    raw = stage.raw()
    raw.send(topic)
    raw.wait_for(topic, 1)

    def header(step: str, text: str) -> None:
        data = text.encode()
        raw.write(struct.pack(">II", 4 + len(data), len(data)) + data)
        opaque = json.loads(text).get("opaque", 0)
        stage.note(step, RequestCode.GET_MAX_OFFSET, raw.answer(opaque))

    fields = f'"extFields":{{"topic":"{topic}","queueId":0}}'
    header("numbers", f'{{"code":30,"opaque":901,{fields}}}')
    header("unknown language", f'{{"code":30,"opaque":902,"language":"KLINGON",{fields}}}')
    header("unknown fields", f'{{"x":[1],"code":30,"opaque":903,{fields}}}')
    header("no code", '{"opaque":904}')
    header("no fields", '{"code":30,"opaque":905}')
