"""Push and pull consumers, their offsets, and messages that they refuse."""

from __future__ import annotations

import time

from compat.clients.driver import until
from compat.clients.go import GoClient
from compat.clients.java import JavaClient
from compat.scenarios.later import arrived
from compat.scenarios.raw import heartbeat
from compat.scenarios.stage import (
    ABLE,
    GO,
    JAVA,
    JAVA5,
    OFFICIAL_AND_OLD,
    OLD_JAVA,
    RAW,
    Stage,
    scenario,
)
from gateway.wire.codes import PullSysFlag, RequestCode
from gateway.wire.messages import decode_messages


@scenario(*OFFICIAL_AND_OLD)
def push(stage: Stage) -> None:
    """A push consumer gets existing and new messages."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.official()
    client.send(topic, b"before", tags="red", keys="k1 k2", properties={"colour": "blue"})
    consumer = client.consume(topic, stage.topic("g"))
    consumer.wait_for(1)
    client.send(topic, b"while")
    stage.see("arrived", arrived(consumer.wait_for(2)))


@scenario(*OFFICIAL_AND_OLD)
def tags(stage: Stage) -> None:
    """A consumer gets the tags that it subscribed to."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.official()
    for tag in ("red", "green", "blue", "red"):
        client.send(topic, tag.encode(), tags=tag)
    client.send(topic, b"none")
    consumer = client.consume(topic, stage.topic("g"), expression="red || blue")
    stage.see("arrived", arrived(consumer.wait_for(3)))


@scenario(*ABLE)
def from_the_end(stage: Stage) -> None:
    """A new group that asks for the end of a queue begins at its start if no message was removed yet."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.able()
    client.send(topic, b"old")
    consumer = client.consume(topic, stage.topic("g"), start="last")
    client.send(topic, b"new")
    stage.see("arrived", arrived(consumer.wait_for(2)))


@scenario(*JAVA)
def from_a_time(stage: Stage) -> None:
    """A new group that asks for a time begins at the start of a queue if no message was removed yet."""
    topic = stage.topic()
    client = stage.java()
    client.create_topic(topic, 1)
    client.send(topic, b"old")
    consumer = client.consume(topic, stage.topic("g"), since=int(time.time()) + 3600)
    client.send(topic, b"new")
    stage.see("arrived", arrived(consumer.wait_for(2)))


@scenario(*ABLE, *OLD_JAVA)
def pull_results(stage: Stage) -> None:
    """A pull is answered with messages, with none yet, or with the offset to continue at."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.able()
    puller = client.puller(stage.topic("g"))
    may_wait = stage.client in GO  # its pulls wait 20 s
    if not may_wait:
        stage.see("empty queue", puller.pull(topic, 0, 0))
    stage.see("beyond an empty queue", puller.pull(topic, 0, 5))
    for number in range(5):
        client.send(topic, b"%d" % number, tags="red" if number % 2 else "blue")
    stage.raw().wait_for(topic, 5)
    # The Go client may pull by itself meanwhile, so everything has to be among the answers on both servers.
    stage.see("all", puller.pull(topic, 0, 0))
    stage.see("two", puller.pull(topic, 0, 0, limit=2))
    stage.see("one tag", puller.pull(topic, 0, 0, expression="red"))
    stage.see("no such tag", puller.pull(topic, 0, 0, expression="green"))
    if not may_wait:
        stage.see("at the end", puller.pull(topic, 0, 5))
    stage.see("beyond the end", puller.pull(topic, 0, 9))


@scenario(*JAVA)
def figures_of_a_queue(stage: Stage) -> None:
    """Offsets can be queried: first, last, by time, and the group's own."""
    topic = stage.topic()
    client = stage.java()
    client.create_topic(topic, 1)
    puller = client.puller(stage.topic("g"))
    stage.see("queues", puller.queues(topic))
    stage.see("empty", [puller.offset(topic, 0, which) for which in ("min", "max", "committed")])
    first = client.send(topic, b"1")
    client.send(topic, b"2")
    stage.raw().wait_for(topic, 2)
    stage.see("filled", [puller.offset(topic, 0, which) for which in ("min", "max", "committed")])
    stored = client.view(topic, first.offset_msg_id or "").stored_ms
    stage.see("at the first", puller.offset_at(topic, 0, stored))
    stage.see("long ago", puller.offset_at(topic, 0, stored - 100_000))
    stage.see("in the future", puller.offset_at(topic, 0, stored + 100_000))
    puller.pull(topic, 0, 0)  # creates the group
    puller.commit(topic, 0, 1)
    until(lambda: puller.offset(topic, 0, "committed") == 1, "the commit")


@scenario(*ABLE)
def a_poller(stage: Stage) -> None:
    """The lite pull consumer of newer clients gets everything."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.able()
    client.send(topic, b"one", tags="red")
    poller = client.poller(topic, stage.topic("g"))
    stage.see("arrived", arrived(poller.wait_for(1)))


@scenario(*ABLE, *OLD_JAVA)
def refused_once(stage: Stage) -> None:
    """A message that a consumer refuses is redelivered after the retry delay."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    stage.make_group(stage.topic("g"))
    client = stage.able()
    consumer = client.consume(topic, stage.topic("g"), fail_first=1, retry_level=1)
    client.send(topic, b"again", tags="red", keys="k")
    stage.see("arrived", arrived(consumer.wait_for(2)))


@scenario(*ABLE)
def refused_for_good(stage: Stage) -> None:
    """A message that is refused too often goes to the group's dead-letter topic."""
    topic = stage.topic()
    group = stage.topic("g")
    stage.java().create_topic(topic, 1)
    stage.make_group(group)
    client = stage.able()
    consumer = client.consume(topic, group, fail_first=9, retry_level=1, max_reconsume_times=1)
    client.send(topic, b"poison", keys="k")
    consumer.wait_for(2)
    stage.see("buried", buried(stage, client, group))


def buried(stage: Stage, client: JavaClient | GoClient, group: str) -> object:
    """Wait for a message in a group's dead-letter topic, and return what is in the topic."""
    raw = stage.raw()
    dead = f"%DLQ%{group}"
    raw.wait_for(dead, 1)
    return arrived(client.puller(stage.topic("p")).pull(dead, 0, 0).messages)


@scenario(*ABLE)
def broadcasting(stage: Stage) -> None:
    """Each consumer of a broadcasting group gets every message."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.able()
    consumers = [client.consume(topic, stage.topic("g"), broadcast=True) for _ in range(2)]
    client.send(topic, b"to all")
    for number, consumer in enumerate(consumers):
        stage.see(f"consumer {number}", arrived(consumer.wait_for(1)))


@scenario(*ABLE)
def in_a_namespace(stage: Stage) -> None:
    """A client with a namespace has its topics and groups under that prefix, and does not see the prefix."""
    topic, group, space = stage.topic(), stage.topic("g"), stage.topic("space")
    stage.java().create_topic(f"{space}%{topic}", 1)
    stage.make_group(f"{space}%{group}")
    client = stage.able(namespace=space)
    consumer = client.consume(topic, group, fail_first=1, retry_level=1)
    sent = client.send(topic, b"mine", keys="k")
    stage.see("status", sent.status)
    messages = consumer.wait_for(2)
    stage.see("arrived", arrived(messages))
    stage.see("topics", sorted({message.topic for message in messages}))
    stage.see("stored", stage.raw().max_offset(f"{space}%{topic}"))


@scenario(*JAVA5)
def in_a_later_namespace(stage: Stage) -> None:
    """The newer kind of namespace is sent with each request, and changes no name."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.java(namespace_v2=stage.topic("space"))
    consumer = client.consume(topic, stage.topic("g"))
    stage.see("status", client.send(topic, b"mine").status)
    stage.see("arrived", arrived(consumer.wait_for(1)))
    stage.see("stored", stage.raw().max_offset(topic))


@scenario(*JAVA5)
def two_share_the_queues(stage: Stage) -> None:
    """Two consumers of a group get half of the queues each; when one leaves, the other gets all."""
    topic, group = stage.topic(), stage.topic("g")
    client = stage.java()
    client.create_topic(topic, 4)
    first, second = client.consume(topic, group), client.consume(topic, group)
    every = {0, 1, 2, 3}

    def has_halves() -> bool:
        one, other = first.assigned(topic), second.assigned(topic)
        return len(one) == len(other) == 2 and one | other == every

    until(has_halves, "halves")
    second.close()
    until(lambda: first.assigned(topic) == every, "all queues")


@scenario(*RAW)
def pulls(stage: Stage) -> None:
    """A pull finds messages, finds none yet, skips some, or gets another offset: codes 0, 19, 20, 21."""
    topic = stage.topic()
    raw = stage.raw()
    for number in range(3):
        raw.send(topic, b"%d" % number, properties="TAGS\x01red\x02")
    raw.wait_for(topic, 3)

    def pull(step: str, offset: int = 0, **ext: str) -> None:
        stage.ask(step, raw, RequestCode.PULL_MESSAGE, raw.pull_fields(topic, offset, **ext))

    pull("found")
    pull("two of three", maxMsgNums="2")
    pull("other tag", subscription="green")
    pull("blanks around the tag", subscription="\t red || green")
    pull("other spaces around the tag", subscription="\u3000red\xa0 || green")
    pull("at the end", 3)
    pull("beyond", 9)
    pull("before the first", -5)
    pull("queue too high", queueId="5")
    pull("no messages wanted", maxMsgNums="0")
    pull("a byte wanted", maxMsgBytes="1")
    pull("no bytes wanted", maxMsgBytes="-1")
    pull("no subscription", sysFlag="0")
    pull("unknown kind of filter", expressionType="other")
    pull("wrong SQL", expressionType="SQL92", subscription="a >")
    pull("class filter", sysFlag=str(PullSysFlag.SUBSCRIPTION | PullSysFlag.CLASS_FILTER))
    unknown = raw.pull_fields(f"{topic}-none")
    stage.ask("unknown topic", raw, RequestCode.PULL_MESSAGE, unknown)
    stage.ask("lite", raw, RequestCode.LITE_PULL_MESSAGE, raw.pull_fields(topic))
    stage.ask("no fields", raw, RequestCode.PULL_MESSAGE)


@scenario(*RAW)
def a_pull_that_waits(stage: Stage) -> None:
    """A pull at the end waits for the next message, or until its timeout."""
    topic = stage.topic()
    raw, sender = stage.raw(), stage.raw()
    sender.send(topic, b"first")
    sender.wait_for(topic, 1)
    flags = str(PullSysFlag.SUBSCRIPTION | PullSysFlag.SUSPEND)
    fields = raw.pull_fields(topic, 1, sysFlag=flags, suspendTimeoutMillis="60000")
    opaque = raw.tell(RequestCode.PULL_MESSAGE, fields)
    sender.send(topic, b"second")
    stage.note("woken", RequestCode.PULL_MESSAGE, raw.answer(opaque))


@scenario(*RAW)
def a_changed_subscription(stage: Stage) -> None:
    """A pull that waits while its group changes its subscription does not skip what the group now wants."""
    topic = stage.topic()
    group = f"{topic}-g"
    raw, member = stage.raw(), stage.raw()
    raw.send(topic, b"first", properties="n\x011\x02")
    raw.wait_for(topic, 1)

    def subscribe(expression: str, version: int) -> None:
        body = heartbeat(
            group, group, topic, expression, expressionType="SQL92", subVersion=version
        )
        member.ask(RequestCode.HEART_BEAT, body=body)

    def fields(offset: int) -> dict[str, str]:
        wait = {"sysFlag": str(PullSysFlag.SUSPEND), "suspendTimeoutMillis": "15000"}
        return member.pull_fields(topic, offset, **wait)

    subscribe("n = 1", 1)
    waiting = member.tell(RequestCode.PULL_MESSAGE, fields(1))
    subscribe("n = 2", 2)
    raw.send(topic, b"second", properties="n\x012\x02")
    answer = member.answer(waiting)
    for _ in range(2):
        if not answer.body:
            next_fields = fields(int(answer.ext()["nextBeginOffset"]))
            answer = member.ask(RequestCode.PULL_MESSAGE, next_fields)
    stage.see("found", [message.body for message in decode_messages(answer.body)])


@scenario(*RAW)
def offsets(stage: Stage) -> None:
    """Offsets of queues and of groups, known and unknown."""
    topic, group = stage.topic(), stage.topic("g")
    raw = stage.raw()
    raw.send(topic)
    raw.wait_for(topic, 1)
    raw.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})  # creates the group
    queue = {"topic": topic, "queueId": "0"}
    of_group = {**queue, "consumerGroup": group}
    nowhere = {"topic": f"{topic}-none", "queueId": "0"}
    for step, fields in (("queue", queue), ("unknown topic", nowhere)):
        stage.ask(f"{step}: max", raw, RequestCode.GET_MAX_OFFSET, fields)
        stage.ask(f"{step}: min", raw, RequestCode.GET_MIN_OFFSET, fields)
        stage.ask(f"{step}: earliest", raw, RequestCode.GET_EARLIEST_MSG_STORETIME, fields)
        at = {**fields, "timestamp": "1000"}
        stage.ask(f"{step}: at a time", raw, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, at)
    upper = {**queue, "timestamp": "1000", "boundaryType": "upper"}
    stage.ask("upper boundary", raw, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, upper)
    for boundary in ("lower", "upper"):
        ahead = {**queue, "timestamp": "4102444800000", "boundaryType": boundary}
        stage.ask(f"{boundary}: ahead", raw, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ahead)
    stage.ask("group: before", raw, RequestCode.QUERY_CONSUMER_OFFSET, of_group)
    not_zero = {**of_group, "setZeroIfNotFound": "false"}
    stage.ask("group: not zero", raw, RequestCode.QUERY_CONSUMER_OFFSET, not_zero)
    commit = {**of_group, "commitOffset": "1"}
    stage.ask("group: commit", raw, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    stage.ask("group: after", raw, RequestCode.QUERY_CONSUMER_OFFSET, of_group)
    nothing = {**of_group, "commitOffset": "-1"}
    stage.ask("group: nothing yet", raw, RequestCode.UPDATE_CONSUMER_OFFSET, nothing)
    stage.ask("group: still", raw, RequestCode.QUERY_CONSUMER_OFFSET, not_zero)
    elsewhere = {**commit, "topic": f"{topic}-none"}
    unknown = {**commit, "consumerGroup": f"{group}-none"}
    stage.ask("commit: unknown group", raw, RequestCode.UPDATE_CONSUMER_OFFSET, unknown)
    stage.ask("commit: unknown topic", raw, RequestCode.UPDATE_CONSUMER_OFFSET, elsewhere)
    stage.ask("no fields", raw, RequestCode.GET_MAX_OFFSET)


@scenario(*RAW)
def sent_back(stage: Stage) -> None:
    """What a consumer may and may not send back."""
    topic, group = stage.topic(), stage.topic("g")
    raw = stage.raw()
    sent = raw.send(topic)
    raw.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})  # creates the group
    place = str(int(sent.ext()["msgId"][16:], 16))

    def back(step: str, **ext: str) -> None:
        fields = {"offset": "1", "group": group, "delayLevel": "1", "originTopic": topic, **ext}
        stage.ask(step, raw, RequestCode.CONSUMER_SEND_MSG_BACK, fields)

    back("accepted", offset=place)
    raw.wait_for(f"%RETRY%{group}", 1)
    back("for good", offset=place, delayLevel="-1")
    raw.wait_for(f"%DLQ%{group}", 1)
    back("to no group", offset=place, group=f"{group}-none")
    back("no such record", offset="99999999999")
    stage.ask("no fields", raw, RequestCode.CONSUMER_SEND_MSG_BACK)
