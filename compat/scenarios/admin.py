"""Requests of tools: mqadmin's commands, and the requests behind them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping

from compat.scenarios.stage import MQADMIN, RAW, Stage, scenario
from gateway.wire.codes import RequestCode
from gateway.wire.messages import decode_messages

_CLUSTER = "DefaultCluster"

READ_BY_TOOLS = (
    *("brokerVersionDesc", "putTps", "getTransferredTps", "getTotalTps"),
    *("getFoundTps", "getMissTps", "sendThreadPoolQueueSize", "pullThreadPoolQueueSize"),
    *("ackThreadPoolQueueSize", "sendThreadPoolQueueHeadWaitTimeMills"),
    *("pullThreadPoolQueueHeadWaitTimeMills", "ackThreadPoolQueueHeadWaitTimeMills"),
    *("queryThreadPoolQueueSize", "queryThreadPoolQueueHeadWaitTimeMills"),
    *("pageCacheLockTimeMills", "earliestMessageTimeStamp", "commitLogDiskRatio"),
    *("consumeQueueDiskRatio", "timerReadBehind", "timerOffsetBehind", "timerCongestNum"),
    *("timerEnqueueTps", "timerDequeueTps", "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
    *("msgPutTotalYesterdayMorning", "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
    *("msgGetTotalYesterdayMorning", "bootTimestamp", "runtime", "brokerActive"),
)
"""The figures that mqadmin and the dashboard show."""


@scenario(*RAW)
def topics(stage: Stage) -> None:
    """Topics are created, shown, changed and deleted."""
    topic = stage.topic()
    raw, names = stage.raw(), stage.raw_namesrv()
    create = raw.topic_fields(topic, 3, writeQueueNums="2", topicSysFlag="0")
    of_it = {"topic": topic}
    stage.ask("create", raw, RequestCode.UPDATE_AND_CREATE_TOPIC, create)
    stage.ask("config", raw, RequestCode.GET_TOPIC_CONFIG, of_it)
    stage.ask("route", names, RequestCode.GET_ROUTEINFO_BY_TOPIC, of_it)
    stage.ask("stats", raw, RequestCode.GET_TOPIC_STATS_INFO, of_it)
    reserved = {**create, "topic": "TBW102"}
    stage.ask("a system topic", raw, RequestCode.UPDATE_AND_CREATE_TOPIC, reserved)
    commas = {**create, "topic": stage.topic("commas"), "attributes": "+message.type=FIFO,,"}
    stage.ask("commas at the end", raw, RequestCode.UPDATE_AND_CREATE_TOPIC, commas)
    stage.ask("config: commas", raw, RequestCode.GET_TOPIC_CONFIG, {"topic": commas["topic"]})
    wrong = {**create, "attributes": "+no.such=1"}
    stage.ask("wrong attribute", raw, RequestCode.UPDATE_AND_CREATE_TOPIC, wrong)
    stage.ask("bad name", raw, RequestCode.UPDATE_AND_CREATE_TOPIC, {**create, "topic": "a b"})
    stage.ask("delete", raw, RequestCode.DELETE_TOPIC_IN_BROKER, of_it)
    names.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, of_it)
    stage.ask("config: gone", raw, RequestCode.GET_TOPIC_CONFIG, of_it)
    stage.ask("route: gone", names, RequestCode.GET_ROUTEINFO_BY_TOPIC, of_it)
    stage.ask("stats: gone", raw, RequestCode.GET_TOPIC_STATS_INFO, of_it)
    stage.ask("delete a system topic", raw, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"})


@scenario(*RAW)
def a_topic_made_again(stage: Stage) -> None:
    """A topic that was deleted and created again shows nothing of the old one."""
    topic = stage.topic()
    raw, names = stage.raw(), stage.raw_namesrv()
    for body in (b"old", b"older"):
        raw.send(topic, body)
    raw.wait_for(topic, 2)
    raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    names.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})
    again = stage.send("sent again", raw, topic, b"new")
    raw.wait_for(topic, int(again.ext()["queueOffset"]) + 1)
    ends = raw.ask(RequestCode.GET_MIN_OFFSET, {"topic": topic, "queueId": "0"}).ext()
    stage.see("ends again", ends)
    place = {"topic": topic, "queueId": "0", "consumerGroup": stage.topic("g")}
    new = raw.ask(RequestCode.QUERY_CONSUMER_OFFSET, place)
    stage.see("a new group begins there", [new.code, new.ext() == ends])
    pulled = raw.ask(RequestCode.PULL_MESSAGE, raw.pull_fields(topic, int(ends["offset"])))
    stage.see("found", [message.body for message in decode_messages(pulled.body)])
    stage.ask("pulled again", raw, RequestCode.PULL_MESSAGE, raw.pull_fields(topic, 0))


@scenario(*RAW)
def groups(stage: Stage) -> None:
    """Groups are created, shown and deleted."""
    group = stage.topic("g")
    raw = stage.raw()
    of_it = {"group": group}
    body = json.dumps({"groupName": group, "retryMaxTimes": 3, "retryQueueNums": 2}).encode()
    stage.ask("create", raw, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    stage.ask("config", raw, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, of_it)
    deleted = {"groupName": group, "cleanOffset": "true"}
    stage.ask("delete", raw, RequestCode.DELETE_SUBSCRIPTIONGROUP, deleted)
    made = {"group": stage.topic("made")}
    stage.ask("made by asking", raw, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, made)


@scenario(*RAW)
def progress(stage: Stage) -> None:
    """A group's offsets can be queried, and reset in both directions."""
    topic, group = stage.topic(), stage.topic("g")
    raw = stage.raw()
    for number in range(3):
        raw.send(topic, b"%d" % number)
    raw.wait_for(topic, 3)
    raw.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})  # creates the group
    place = {"topic": topic, "queueId": "0", "consumerGroup": group, "commitOffset": "1"}
    raw.ask(RequestCode.UPDATE_CONSUMER_OFFSET, place)
    of_it = {"consumerGroup": group, "topic": topic}
    stage.ask("progress", raw, RequestCode.GET_CONSUME_STATS, of_it)
    spans = {"topic": topic, "group": group}
    stage.ask("time spans", raw, RequestCode.QUERY_CONSUME_TIME_SPAN, spans)
    empty = stage.topic("empty")
    raw.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, raw.topic_fields(empty, 1))
    spans_of_none = {"topic": empty, "group": group}
    stage.ask("time spans: empty", raw, RequestCode.QUERY_CONSUME_TIME_SPAN, spans_of_none)
    reset = {"topic": topic, "group": group, "timestamp": "-1", "isForce": "true"}
    stage.ask("to the end", raw, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    pull = raw.pull_fields(topic, 1, consumerGroup=group)
    stage.ask("the next pull", raw, RequestCode.PULL_MESSAGE, pull)
    stage.ask("progress after", raw, RequestCode.GET_CONSUME_STATS, of_it)
    clone = {"srcGroup": group, "destGroup": stage.topic("h"), "topic": topic}
    stage.ask("clone", raw, RequestCode.CLONE_GROUP_OFFSET, clone)
    rows = {"topic": topic, "queueId": "0", "index": "0", "count": "2"}
    stage.ask("rows of the queue", raw, RequestCode.QUERY_CONSUME_QUEUE, rows)


@scenario(*RAW)
def of_the_name_server(stage: Stage) -> None:
    """The cluster, its topics, and the name server's KV config."""
    names = stage.raw_namesrv()
    space = stage.topic()
    stage.ask("cluster", names, RequestCode.GET_BROKER_CLUSTER_INFO)
    stage.ask("no route", names, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": space})
    stage.ask("no fields", names, RequestCode.GET_ROUTEINFO_BY_TOPIC)
    route = {"topic": "TBW102", "acceptStandardJsonOnly": "true"}
    stage.ask("route", names, RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
    old = names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}, version=333)
    stage.note("route for an old client", RequestCode.GET_ROUTEINFO_BY_TOPIC, old)
    value = {"namespace": space, "key": "k"}
    stage.ask("no value", names, RequestCode.GET_KV_CONFIG, value)
    stage.ask("put", names, RequestCode.PUT_KV_CONFIG, {**value, "value": "v"})
    stage.ask("get", names, RequestCode.GET_KV_CONFIG, value)
    stage.ask("all", names, RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": space})
    stage.ask("delete", names, RequestCode.DELETE_KV_CONFIG, value)
    stage.ask("system topics", names, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    stage.ask("unit topics", names, RequestCode.GET_UNIT_TOPIC_LIST)


@scenario(*RAW)
def policies(stage: Stage) -> None:
    """Of a user's first policies all entries are kept, also several about the same resource."""
    raw, name = stage.raw(), stage.topic("u")
    user = json.dumps({"username": name, "password": "secret", "userType": "Normal"}).encode()
    stage.ask("user", raw, RequestCode.AUTH_CREATE_USER, {"username": name}, user)
    subject = {"subject": f"User:{name}"}
    entries = [
        {"resource": "Topic:orders", "actions": ["Pub"], "decision": "Deny"},
        {"resource": "Topic:orders", "actions": ["Pub", "Sub"], "decision": "Allow"},
    ]
    empty = {"policyType": "Default", "entries": []}
    nothing = json.dumps({**subject, "policies": [empty]}).encode()
    stage.ask("nothing", raw, RequestCode.AUTH_CREATE_ACL, subject, nothing)
    first = json.dumps({**subject, "policies": [{"entries": entries}, empty]}).encode()
    stage.ask("first", raw, RequestCode.AUTH_CREATE_ACL, subject, first)
    stage.ask("kept", raw, RequestCode.AUTH_GET_ACL, subject)
    entry = {"resource": "Topic:paid", "actions": ["Pub"], "decision": "Allow"}
    other = json.dumps({**subject, "policies": [{"entries": [entry]}]}).encode()
    stage.ask("other", raw, RequestCode.AUTH_UPDATE_ACL, subject, other)
    stage.ask("all", raw, RequestCode.AUTH_GET_ACL, subject)
    stage.ask("gone", raw, RequestCode.AUTH_DELETE_USER, {"username": name})


@scenario(*RAW, alone=True)
def of_the_broker(stage: Stage) -> None:
    """The broker's state and settings have the same names."""
    raw = stage.raw()
    stage.send("topic", raw, stage.topic())
    table = json.loads(raw.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    stage.see("state", {name: name in table for name in READ_BY_TOOLS})
    settings = raw.ask(RequestCode.GET_BROKER_CONFIG).body.decode()
    shown = dict(line.split("=", 1) for line in settings.splitlines() if "=" in line)
    stage.see(
        "settings",
        {
            name: shown.get(name)
            for name in (
                *("brokerName", "brokerClusterName", "brokerId", "autoCreateTopicEnable"),
                *("autoCreateSubscriptionGroup", "messageDelayLevel", "maxMessageSize"),
                *("fileReservedTime", "recallMessageEnable", "transactionCheckMax"),
                *("maxTransferCountOnMessageInMemory", "enablePropertyFilter"),
                *("rejectTransactionMessage", "defaultTopicQueueNums", "storeReplyMessageEnable"),
            )
        },
    )
    stage.ask("high availability", raw, RequestCode.GET_BROKER_HA_STATUS)
    stage.ask("cold data", raw, RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    stage.ask("clean queues", raw, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
    stage.ask("clean topics", raw, RequestCode.CLEAN_UNUSED_TOPIC)
    no_stats = {"statsName": "TOPIC_PUT_NUMS", "statsKey": stage.topic("none")}
    stage.ask("no such figure", raw, RequestCode.VIEW_BROKER_STATS_DATA, no_stats)


_CHANGES = {
    "autoCreateTopicEnable": "false",
    "autoCreateSubscriptionGroup": "false",
    "transactionTimeOut": "7000",
    "transactionCheckInterval": "20000",
    "transactionCheckMax": "3",
    "messageDelayLevel": "1s 2s 3s",
    "maxMessageSize": "2048",
    "maxTransferCountOnMessageInMemory": "2",
    "fileReservedTime": "48",
    "recallMessageEnable": "false",
}
"""Settings that operators use, with values other than those of a scenario's servers."""


@scenario(*RAW, alone=True)
def settings_that_are_changed(stage: Stage) -> None:
    """Settings changed while the broker serves are shown, and take effect."""
    raw, topic = stage.raw(), stage.topic()
    for _ in range(3):
        raw.send(topic)
    raw.wait_for(topic, 3)

    def shown() -> dict[str, str | None]:
        lines = raw.ask(RequestCode.GET_BROKER_CONFIG).body.decode().splitlines()
        settings = dict(line.split("=", 1) for line in lines if "=" in line)
        return {name: settings.get(name) for name in _CHANGES}

    def change(step: str, values: Mapping[str, str | None]) -> None:
        body = "".join(f"{name}={value}\n" for name, value in values.items()).encode()
        stage.ask(step, raw, RequestCode.UPDATE_BROKER_CONFIG, body=body)

    before = shown()
    change("change", _CHANGES)
    stage.see("changed", shown())
    stage.send("too large", raw, topic, bytes(4096))
    recall = {"topic": topic, "recallHandle": "none"}
    stage.ask("no recall", raw, RequestCode.RECALL_MESSAGE, recall)
    pulled = raw.ask(RequestCode.PULL_MESSAGE, raw.pull_fields(topic, 0))
    stage.see("pulled", len(decode_messages(pulled.body)))
    change("change back", before)
    stage.see("changed back", shown() == before)


@scenario(*MQADMIN, alone=True)
def commands(stage: Stage) -> None:
    """RocketMQ's own mqadmin works, and prints the same."""
    topic, group = stage.topic(), stage.topic("g")
    java = stage.java(group=f"{group}p")
    java.create_topic(topic, 2)
    consumer = java.consume(topic, group)
    sent = java.send(topic, b"hello", tags="red", keys=f"{topic}k", queue=1)
    consumer.wait_for(1)
    stage.raw().wait_for_commit(topic, group, queue=1)
    tool = stage.mqadmin()
    broker = stage.peer.broker_text
    for command in (
        f"topicStatus -t {topic}",
        f"topicRoute -t {topic}",
        f"topicClusterList -t {topic}",
        f"consumerProgress -g {group}",
        f"consumerConnection -g {group}",
        f"producerConnection -g {group}p -t {topic}",
        f"queryMsgByKey -t {topic} -k {topic}k",
        f"queryMsgById -t {topic} -i {sent.offset_msg_id}",
        f"queryMsgByUniqueKey -t {topic} -i {sent.msg_id}",
        f"queryMsgByOffset -t {topic} -b broker-a -i 1 -o 0",
        f"queryCq -t {topic} -q 1 -i 0 -c 1 -b {broker}",
        f"updateTopic -c {_CLUSTER} -t {topic}made -r 3 -w 3",
        f"updateTopicPerm -b {broker} -t {topic}made -p 4",
        f"updateSubGroup -c {_CLUSTER} -g {topic}late -r 4",
        f"resetOffsetByTime -g {topic}late -t {topic} -s 0",
        f"deleteSubGroup -c {_CLUSTER} -g {topic}late -r true",
        f"deleteTopic -c {_CLUSTER} -t {topic}made",
        f"haStatus -b {broker}",
    ):
        printed = tool.run(*command.split())
        lines = [_printed(line) for line in printed.splitlines() if line.strip()]
        name = command.split()[0]
        # In any order, and with a row that only one of the two has.
        stage.see(name, lines if name != "consumerProgress" else Counter(lines))


def _printed(line: str) -> str:
    """Return a printed line without the padding of its columns, and without times, rates and offsets."""
    line = re.sub(r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d[,:\d]*", "<time>", line)
    line = re.sub(
        r"(Consume TPS:|OffsetID:|CommitLog Offset:|#MasterCommitLogMaxOffset)\s+\S+",
        r"\1 <n>",
        line,
    )
    line = re.sub(r"\b(\w*(?:[Tt]imestamp|Size|Cost)\w*)([\"=: ]+)\d+", r"\1\2<n>", line)
    line = re.sub(r"(physicOffset[\"=: ]+)\d+", r"\1<n>", line)
    return " ".join(line.split())
