"""RocketMQ's dashboard: each method of the admin client that it calls, in the order of its pages."""

from __future__ import annotations

import time
from typing import Any

from compat.clients.driver import until
from compat.clients.java import JavaClient, JavaConsumer
from compat.java_tools import Dashboard
from compat.scenarios.admin import READ_BY_TOOLS
from compat.scenarios.stage import DASHBOARD, Stage, scenario

_NEVER_MS = 4_000_000_000_000


class _Page:
    """The calls of a page of the dashboard, noted step by step."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._dashboard: Dashboard = stage.dashboard()

    def get(self, method: str, *arguments: object) -> Any:
        return self._dashboard.call(method, *arguments)

    def show(self, method: str, *arguments: object, step: str = "") -> Any:
        result = self.get(method, *arguments)
        self._stage.see(step or method, _without_hosts(result))
        return result


def _without_hosts(value: Any) -> Any:
    """Return a result without the addresses in messages, which are numbers in it."""
    if isinstance(value, dict):
        return {
            name: _without_hosts(each)
            for name, each in value.items()
            if not name.startswith(("bornHost", "storeHost"))
        }
    return [_without_hosts(each) for each in value] if isinstance(value, list) else value


def _at_work(stage: Stage) -> tuple[JavaClient, JavaConsumer]:
    """Return a client that has sent a message, and a consumer that has consumed and committed it."""
    topic, group = stage.topic(), stage.topic("g")
    client = stage.java(group=stage.topic("gp"), heartbeat_ms=1_000)
    client.create_topic(topic, 1)
    consumer = client.consume(topic, group)
    client.send(topic, b"hello", tags="red", keys="key")
    consumer.wait_for(1)
    stage.raw().wait_for_commit(topic, group)
    return client, consumer


@scenario(*DASHBOARD)
def of_the_cluster(stage: Stage) -> None:
    """Dashboard and cluster pages: the brokers, their figures and their settings."""
    page, broker = _Page(stage), stage.peer.broker_text
    topic = stage.topic()
    stage.raw().send(topic)
    page.show("examineBrokerClusterInfo")
    state = page.get("fetchBrokerRuntimeStats", broker)["table"]
    stage.see("figures", {name: name in state for name in READ_BY_TOOLS})
    settings = page.get("getBrokerConfig", broker)
    stage.see("settings", {name: settings.get(name) for name in ("brokerName", "brokerId")})
    rates = page.get("viewBrokerStatsData", broker, "TOPIC_PUT_NUMS", topic)
    stage.see("rates", {span: sorted(rates[span]) for span in rates})
    page.show("viewBrokerStatsData", broker, "TOPIC_PUT_NUMS", f"{topic}-none", step="no rates")


@scenario(*DASHBOARD)
def of_topics(stage: Stage) -> None:
    """Topic pages: lists, routes, consumers; topics are created, changed and deleted."""
    page, broker = _Page(stage), stage.peer.broker_text
    topic, made = stage.topic(), stage.topic("made")
    _at_work(stage)
    stage.see("listed", topic in page.get("fetchAllTopicList")["topicList"])
    configs = page.get("getAllTopicConfig", broker, 10_000)["topicConfigTable"]
    stage.see("getAllTopicConfig", configs[topic])
    for method in ("examineTopicStats", "examineTopicRouteInfo", "queryTopicConsumeByWho"):
        page.show(method, topic)
    page.show("examineTopicConfig", broker, topic)
    config = {"topicName": made, "readQueueNums": 3, "writeQueueNums": 2, "perm": 6}
    page.show("createAndUpdateTopicConfig", broker, config)
    page.show("examineTopicConfig", broker, made, step="config of the new one")
    page.show("examineTopicStats", made, step="figures of the new one")
    page.show("queryTopicConsumeByWho", made, step="nobody consumes it")
    page.show("deleteTopicInBroker", [broker], made)
    page.show("deleteTopicInNameServer", [stage.peer.namesrv_text], made)
    page.show("examineTopicConfig", broker, made, step="config after")
    page.show("examineTopicRouteInfo", made, step="route after")


@scenario(*DASHBOARD)
def of_consumers(stage: Stage) -> None:
    """Consumer and producer pages: groups, members, offsets; groups are created, reset and deleted."""
    page, broker = _Page(stage), stage.peer.broker_text
    topic, group, made = stage.topic(), stage.topic("g"), stage.topic("made")
    _, consumer = _at_work(stage)
    groups = page.get("getAllSubscriptionGroup", broker, 30_000)["subscriptionGroupTable"]
    stage.see("getAllSubscriptionGroup", groups[group])
    page.show("examineSubscriptionGroupConfig", broker, group)
    page.show("examineConsumeStats", group)
    page.show("examineConsumeStats", group, topic, step="progress in a topic")
    page.show("examineConsumeStats", broker, group, None, 3_000, step="progress at a broker")
    page.show("examineConsumeStats", f"{group}none", step="progress of nobody")
    members = page.show("examineConsumerConnectionInfo", group)
    page.show("examineConsumerConnectionInfo", group, broker, step="members at a broker")
    page.show("examineConsumerConnectionInfo", f"{group}none", step="no members")
    client_id = members["connectionSet"][0]["clientId"]
    running = page.get("getConsumerRunningInfo", group, client_id, False)
    stage.see("getConsumerRunningInfo", sorted(running))
    page.show("getConsumerRunningInfo", group, "nobody", False, step="nobody runs")
    producers = ("examineProducerConnectionInfo", f"{group}p", topic)
    until(lambda: "refused" not in page.get(*producers), "the producer's heartbeat")
    members = page.get(*producers)["connectionSet"]
    stage.see("examineProducerConnectionInfo", members[0])
    page.show("examineProducerConnectionInfo", f"{group}none", topic, step="no producers")
    page.show("resetOffsetByTimestamp", topic, group, 0, True)
    consumer.wait_for(2)
    config = {"groupName": made, "retryMaxTimes": 3}
    page.show("createAndUpdateSubscriptionGroupConfig", broker, config)
    page.show("examineSubscriptionGroupConfig", broker, made, step="config of the new one")
    page.show("resetOffsetByTimestampOld", made, topic, 0, True)
    page.show("resetOffsetByTimestamp", topic, made, _NEVER_MS, True, step="reset, nobody online")
    page.show("deleteSubscriptionGroup", broker, made, True)


@scenario(*DASHBOARD)
def of_users(stage: Stage) -> None:
    """Access pages: users and their policies are created, changed and deleted."""
    page, broker = _Page(stage), stage.peer.broker_text
    name, subject = stage.topic("user"), f"User:{stage.topic('user')}"
    page.show("createUser", broker, name, "secret", "Normal")
    page.show("createUser", broker, name, "secret", "Normal", step="create it again")
    page.show("getUser", broker, name)
    page.show("updateUser", broker, name, "changed", "Super", "disable")
    page.show("listUser", broker, name)
    page.show("getUser", broker, f"{name}none", step="nobody")
    policy = (["Topic:a*", "Group:b"], ["Pub", "Sub"], ["192.0.2.0/24"])
    page.show("createAcl", broker, subject, *policy, "Allow")
    page.show("getAcl", broker, subject)
    page.show("updateAcl", broker, subject, ["Topic:a*"], ["Pub"], [], "Deny")
    page.show("listAcl", broker, subject, "")
    page.show("listAcl", broker, "", "Topic:nobody-has-this", step="list what is about nothing")
    page.show("deleteAcl", broker, subject, "Topic:a*")
    page.show("getAcl", broker, subject, step="acl after")
    page.show("deleteUser", broker, name)
    page.show("getUser", broker, name, step="user after")


@scenario(*DASHBOARD)
def of_messages(stage: Stage) -> None:
    """Message pages: by id, by key, page by page; who has consumed a message; consuming it once more."""
    page = _Page(stage)
    topic, group = stage.topic(), stage.topic("g")
    client, consumer = _at_work(stage)
    (message,) = consumer.messages()
    page.show("viewMessage", topic, message.msg_id)
    page.show("viewMessage", topic, message.offset_msg_id, step="by the offset's id")
    page.show("viewMessage", topic, "0" * 32, step="no such id")
    end_ms = time.time_ns() // 1_000_000 + 60_000
    page.show("queryMessage", topic, "key", 64, 0, end_ms)
    page.show("queryMessage", topic, "none", 64, 0, end_ms, step="no such key")
    page.show("messageTrackDetail", topic, message.msg_id)
    client_id = page.get("examineConsumerConnectionInfo", group)["connectionSet"][0]["clientId"]
    page.show("consumeMessageDirectly", group, client_id, topic, message.msg_id)
    stage.see("once more", len(consumer.wait_for(2)))
    puller = client.puller("TOOLS_CONSUMER")
    begin, end = puller.offset_at(topic, 0, 0), puller.offset_at(topic, 0, _NEVER_MS)
    stage.see("page by page", [begin, end, puller.pull(topic, 0, begin)])
