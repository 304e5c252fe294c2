"""Messages without a delay: how they are stored, and how they are refused."""

from __future__ import annotations

import struct

from compat.clients.driver import Outgoing, Sent, until
from compat.clients.java import COMPRESSIONS
from compat.scenarios.stage import (
    ABLE,
    JAVA,
    JAVA5,
    OFFICIAL,
    OFFICIAL_AND_OLD,
    OLD_JAVA,
    RAW,
    Stage,
    scenario,
)
from gateway.wire.codes import RequestCode
from gateway.wire.messages import BatchItem, encode_batch

_SYSTEM_PROPERTIES = {
    "REAL_TOPIC": "other",
    "REAL_QID": "3",
    "RETRY_TOPIC": "other",
    "RECONSUME_TIME": "2",
    "MAX_RECONSUME_TIMES": "3",
    "MIN_OFFSET": "7",
    "MAX_OFFSET": "8",
    "BUYER_ID": "9",
    "ORIGIN_MESSAGE_ID": "7F0000010000000000000000000000FF",
    "TRANSFER_FLAG": "a",
    "CORRECTION_FLAG": "b",
    "MQ2_FLAG": "c",
    "PGROUP": "someone",
    "MSG_REGION": "Elsewhere",
    "TRACE_ON": "false",
    "UNIQ_KEY": "mine",
    "EXTEND_UNIQ_INFO": "more",
    "INSTANCE_ID": "i",
    "CLUSTER": "another",
    "MSG_TYPE": "ordinary",
    "POP_CK": "1 2 3",
    "POP_CK_OFFSET": "5",
    "1ST_POP_TIME": "1000",
    "SHARDING_KEY": "s",
    "__SHARDINGKEY": "s",
    "INNER_NUM": "1",
    "INNER_BASE": "0",
    "DUP_INFO": "d",
    "TRANSACTION_CHECK_TIMES": "4",
    "CHECK_IMMUNITY_TIME_IN_SECONDS": "30",
    "TRAN_PREPARED_QUEUE_OFFSET": "6",
    "TIMER_ENQUEUE_MS": "1000",
    "TIMER_DEQUEUE_MS": "1000",
    "TIMER_ROLL_TIMES": "1",
    "TIMER_OUT_MS": "1000",
    "TIMER_DEL_FLAG": "1",
    "DLQ_ORIGIN_TOPIC": "other",
    "BORN_HOST": "192.0.2.1",
    "BORN_TIMESTAMP": "1000",
    "CONSUME_START_TIME": "1000",
    "INNER_MULTI_DISPATCH": "one,two",
    "__CRC32#": "12345",
    "__RMQ.TRANSIENT.TOPIC_SYS_FLAG": "1",
}
"""Reserved property names (MessageConst) that no other scenario covers, each with a value."""


@scenario(*OFFICIAL_AND_OLD)
def one_message(stage: Stage) -> None:
    """A message is stored in the requested queue, and the answer says where."""
    topic = stage.topic()
    stage.java().create_topic(topic, 4)
    sent = stage.official().send(topic, b"hello", tags="red", keys="k1 k2", properties={"a": "b"})
    stage.see("status", sent.status)
    stage.see("queue offset", sent.queue_offset)
    raw = stage.raw()
    queues = range(4) if sent.queue is None else (sent.queue,)
    until(lambda: any(raw.max_offset(topic, queue) == 1 for queue in queues), "the message")


@scenario(*ABLE, *OLD_JAVA)
def all_at_once(stage: Stage) -> None:
    """Each asynchronous send is answered."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.able()
    messages = [Outgoing(topic=topic, body=b"%d" % n) for n in range(5)]
    results = client.send_all(messages, "async")
    stage.see("answers", [one.status if isinstance(one, Sent) else one for one in results])


@scenario(*OFFICIAL_AND_OLD)
def without_an_answer(stage: Stage) -> None:
    """A oneway send is stored, and not answered."""
    topic = stage.topic()
    client = stage.official()
    stage.java().create_topic(topic, 1)
    client.send_oneway(Outgoing(topic=topic, body=b"-"))
    stage.raw().wait_for(topic, 1)


@scenario(*ABLE, *OLD_JAVA)
def several_as_one(stage: Stage) -> None:
    """A batch goes to one queue, with an id for each of its messages."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.able()
    sent = client.send_batch([Outgoing(topic=topic, body=b"%d" % n, tags="t") for n in range(3)])
    stage.see("sent", sent)
    stage.raw().wait_for(topic, 3)
    stage.see("stored", client.puller(stage.topic("g")).pull(topic, 0, 0))


@scenario(*ABLE)
def a_large_body(stage: Stage) -> None:
    """A body that the client compresses arrives unchanged."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.able()
    stage.see("sent", client.send(topic, b"compressed " * 2_000))
    stage.raw().wait_for(topic, 1)
    stage.see("stored", client.puller(stage.topic("g")).pull(topic, 0, 0))


@scenario(*JAVA5)
def compressed(stage: Stage) -> None:
    """A body arrives unchanged, however the client compressed it, and is stored compressed as it came."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    body = b"compressed " * 1_000
    for kind in COMPRESSIONS:
        stage.see(f"sent {kind}", stage.java(compression=kind).send(topic, body, tags=kind))
    messages = stage.java().consume(topic, stage.topic("g")).wait_for(3)
    stage.see("as it was", [message.body == body for message in messages])
    raw = stage.raw()
    stage.ask("stored", raw, RequestCode.PULL_MESSAGE, raw.pull_fields(topic))


@scenario(*JAVA)
def by_the_vip_channel(stage: Stage) -> None:
    """A client may send to the broker's port minus 2."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    stage.see("sent", stage.java(vip_channel=True).send(topic, b"very important"))
    stage.raw().wait_for(topic, 1)


@scenario(*OFFICIAL)
def a_new_topic(stage: Stage) -> None:
    """The first message to a topic creates it, and clients find it afterwards."""
    topic = stage.topic()
    stage.official().send(topic, b"first")
    stage.ask("route", stage.raw_namesrv(), RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})


@scenario(*RAW)
def refusals(stage: Stage) -> None:
    """Every way in which a message can be wrong has its own answer."""
    topic = stage.topic()
    raw = stage.raw()
    stage.send("sent", raw, topic)
    for step, name in (
        ("blank topic", ""),
        ("illegal letters", f"{topic} $"),
        ("long topic", topic + "x" * 128),
        ("schedule topic", "SCHEDULE_TOPIC_XXXX"),
        ("half topic", "RMQ_SYS_TRANS_HALF_TOPIC"),
        ("self test topic", "SELF_TEST_TOPIC"),
        ("no such retry group", f"%RETRY%{topic}-none"),
    ):
        stage.send(step, raw, name)
    stage.send("no such default topic", raw, f"{topic}-none", defaultTopic=f"{topic}-default")
    stage.send("no queues", raw, f"{topic}-zero", defaultTopicQueueNums="0")
    stage.send("queue too high", raw, topic, queueId="7")
    stage.send("any queue", raw, topic, queueId="-1")


@scenario(*RAW)
def sizes(stage: Stage) -> None:
    """The largest body and the longest properties are accepted, larger ones refused."""
    topic = stage.topic()
    raw = stage.raw()
    stage.send("empty body", raw, topic, b"")
    stage.send("largest body", raw, topic, b"x" * 4_194_304)
    stage.send("too large body", raw, topic, b"x" * 4_194_305)
    for step, length in (("long properties", 32_000), ("too long properties", 33_000)):
        stage.send(step, raw, topic, properties=f"p\x01{'v' * length}\x02")


@scenario(*RAW)
def the_old_request(stage: Stage) -> None:
    """Request 10 with the long names does what 310 does with letters."""
    stage.send("sent", stage.raw(), stage.topic(), code=RequestCode.SEND_MESSAGE)


@scenario(*RAW)
def a_batch_by_its_flag(stage: Stage) -> None:
    """The flag makes a batch, not the request code."""
    topic = stage.topic()
    raw = stage.raw()
    body = encode_batch([BatchItem(0, b"%d" % n, "TAGS\x01t\x02") for n in range(3)])
    for step, code, flag in (
        ("310 with the flag", RequestCode.SEND_MESSAGE_V2, "true"),
        ("320 with the flag", RequestCode.SEND_BATCH_MESSAGE, "true"),
        ("320 without", RequestCode.SEND_BATCH_MESSAGE, "false"),
    ):
        answer = stage.send(step, raw, topic, body, code, batch=flag)
        stage.see(f"{step}: ids", answer.ext()["msgId"].count(",") + 1)
    # The Erlang client's sizes do not count themselves, and no server reads them.
    stage.send("another size", raw, topic, struct.pack(">i", 23) + body[4:], batch="true")
    raw.wait_for(topic, 10)
    stage.ask("stored", raw, RequestCode.PULL_MESSAGE, raw.pull_fields(topic))


@scenario(*RAW)
def wrong_batches(stage: Stage) -> None:
    """An invalid batch, or one for a retry topic, is refused."""
    topic = stage.topic()
    raw = stage.raw()
    raw.send(topic)
    good = encode_batch([BatchItem(0, b"-", "")])
    stage.send("retry topic", raw, f"%RETRY%{topic}", good, batch="true")
    stage.send("cut off", raw, topic, good[:-3], batch="true")


@scenario(*RAW)
def missing_and_wrong_fields(stage: Stage) -> None:
    """A send with a missing or invalid field is answered with an error."""
    topic = stage.topic()
    raw = stage.raw()
    raw.send(topic)
    stage.ask("no fields", raw, RequestCode.SEND_MESSAGE_V2)
    stage.send("queueId no number", raw, topic, queueId="x")
    stage.send("sysFlag empty", raw, topic, sysFlag="")
    stage.send("bornTimestamp a fraction", raw, topic, bornTimestamp="1.5")


@scenario(*RAW)
def to_a_read_only_topic(stage: Stage) -> None:
    """A topic that is made read-only takes what clients send until they have its new route."""
    topic = stage.topic()
    raw = stage.raw()
    fields = raw.topic_fields(topic, 1, perm="4")
    stage.ask("topic", raw, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    stage.send("alone", raw, topic)
    item = BatchItem(0, b"in a batch", "UNIQ_KEY\x01me\x02")
    stage.send("batch", raw, topic, encode_batch([item]), batch="true")
    raw.wait_for(topic, 2)
    stage.ask("stored", raw, RequestCode.PULL_MESSAGE, raw.pull_fields(topic))


@scenario(*RAW)
def by_priority(stage: Stage) -> None:
    """A message with a priority goes to the queue of that number, unless it is delayed or in order."""
    topic = stage.topic()
    raw = stage.raw()
    raw.send(topic, defaultTopicQueueNums="4")

    def send(step: str, priority: str, properties: str = "") -> None:
        text = f"_SYS_MSG_PRIORITY_\x01{priority}\x02{properties}"
        stage.send(step, raw, topic, step.encode(), properties=text, queueId="1")

    for priority in ("0", "2", "7", "2147483647", "2147483648", "+2", "-1", "high"):
        send(priority, priority)
    send("level", "2", "DELAY\x010\x02")
    send("past time", "2", "TIMER_DELIVER_MS\x011\x02")
    send("sharding key", "2", "__SHARDINGKEY\x01k\x02")
    item = BatchItem(0, b"in a batch", "_SYS_MSG_PRIORITY_\x012\x02UNIQ_KEY\x01me\x02")
    stage.send("batch", raw, topic, encode_batch([item]), queueId="1", batch="true")
    counts = [2, 7, 2, 2]
    until(lambda: [raw.max_offset(topic, queue) for queue in range(4)] == counts, "all messages")
    for queue in range(4):
        fields = raw.pull_fields(topic, queueId=str(queue))
        stage.ask(f"queue {queue}", raw, RequestCode.PULL_MESSAGE, fields)


@scenario(*RAW)
def names_of_the_server(stage: Stage) -> None:
    """Properties with reserved names are kept, dropped or refused alike."""
    topic = stage.topic()
    raw = stage.raw()
    for name, value in _SYSTEM_PROPERTIES.items():
        stage.send(name, raw, topic, name.encode(), properties=f"{name}\x01{value}\x02")
    inner = "INNER_NUM\x012\x02"
    stage.send("batch flag", raw, topic, b"batch flag", sysFlag="128")
    stage.send("batch flag and number", raw, topic, properties=inner, sysFlag="128")
    stage.send("unwrap flag and number", raw, topic, properties=inner, sysFlag="64")
    stage.send("unwrap flag", raw, topic, b"unwrap flag", sysFlag="64")
    taken = sum(answer["code"] == 0 for answer in stage.seen.values())
    raw.wait_for(topic, taken)
    for offset in (0, 32):  # a pull gets 32 at most
        stage.ask(f"from {offset}", raw, RequestCode.PULL_MESSAGE, raw.pull_fields(topic, offset))


@scenario(*RAW)
def what_the_server_adds(stage: Stage) -> None:
    """Stored records have the server's properties, and no temporary ones."""
    topic = stage.topic()
    raw = stage.raw()
    properties = "TAGS\x01red\x02POP_CK\x01x\x02empty\x01\x02WAIT\x01false\x02UNIQ_KEY\x01me\x02"
    stage.send("sent", raw, topic, properties=properties, flag="7", sysFlag="1")
    stage.send("without a final mark", raw, topic, properties="a\x01b")
    raw.wait_for(topic, 2)
    stage.ask("stored", raw, RequestCode.PULL_MESSAGE, raw.pull_fields(topic))
