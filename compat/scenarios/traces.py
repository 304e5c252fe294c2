"""Message traces, which clients send to a topic of its own."""

from __future__ import annotations

import re
from collections.abc import Callable

from compat.clients.driver import Sent, until
from compat.scenarios.stage import ABLE, JAVA5, Stage, scenario
from gateway.wire.codes import RequestCode
from gateway.wire.messages import decode_messages

Traces = dict[str, list[list[str]]]
"""By step: the records of a message's trace."""

CONSUMED = {"Pub", "SubBefore", "SubAfter"}
"""The kinds of record that a consumed message has."""

_TOPIC = "RMQ_SYS_TRACE_TOPIC"

_COMPARED = {
    "Pub": (2, 3, 4, 6, 7, 9, 11, 13),
    "Recall": (2, 3, 4, 6),
    "SubBefore": (2, 3, 6, 7),
    "SubAfter": (4, 5, 6, 8),
}
"""By kind of record: the fields that are no ids, times or addresses (TraceDataEncoder)."""


@scenario(*ABLE)
def of_one_message(stage: Stage) -> None:
    """A message's trace shows its send, and the beginning and end of its consumption."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    make_trace_topic(stage)

    def act(group: str) -> Traces:
        client = stage.able(trace=True)
        sent = client.send(topic, b"traced", tags="red", keys="k")
        client.consume(topic, group).wait_for(1)
        return {"trace": traced(stage, sent, CONSUMED)}

    see_traces(stage, act)


@scenario(*JAVA5)
def of_messages_for_later(stage: Stage) -> None:
    """A delayed message is traced when it is sent, when it is recalled, and when it arrives."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    make_trace_topic(stage)

    def act(group: str) -> Traces:
        client = stage.java(trace=True)
        consumer = client.consume(topic, group)
        kept = client.send(topic, b"kept", delay_time_ms=1_500)
        leveled = client.send(topic, b"leveled", level=1)
        taken = client.send(topic, b"taken", delay_time_ms=60_000)
        assert taken.recall_handle is not None
        client.recall(topic, taken.recall_handle)
        ids = {kept.msg_id, leveled.msg_id}
        consumer.wait_until(lambda messages: ids <= {message.msg_id for message in messages})
        return {
            "by time": traced(stage, kept, CONSUMED),
            "by level": traced(stage, leveled, CONSUMED),
            "taken back": traced(stage, taken, {"Pub", "Recall"}),
        }

    see_traces(stage, act)


def see_traces(stage: Stage, act: Callable[[str], Traces]) -> None:
    """Note the traces of an action, which is tried a second time with other clients if need be.

    A client sends a trace only once and drops it if the send fails, as it may on a busy machine.
    """
    try:
        traces = act(stage.topic("g1"))
    except TimeoutError:
        traces = act(stage.topic("g2"))
    for step, trace in traces.items():
        stage.see(step, [[re.sub("xg[12]$", "xg", each) for each in record] for record in trace])


def make_trace_topic(stage: Stage) -> None:
    """Create the trace topic with a first message, and wait for its route.

    Otherwise the first trace creates it, and the Go client loses that trace if this takes a moment.
    """
    stage.raw().send(_TOPIC)
    names, route = stage.raw_namesrv(), {"topic": _TOPIC}
    until(
        lambda: names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, route).code == 0,
        "the trace topic",
    )


def traced(stage: Stage, sent: Sent, wanted: set[str]) -> list[list[str]]:
    """Wait until a message's trace has a record of each wanted kind, and return its records."""
    found: list[list[str]] = []
    window = {"beginTimestamp": "0", "endTimestamp": str(2**62)}
    raw, message_id = stage.raw(), sent.msg_id
    asked = {"topic": _TOPIC, "key": message_id, "maxNum": "32", **window}

    def is_there() -> bool:
        # By a raw request, as its answer is not compared: it may have traces of other scenarios.
        carriers = decode_messages(raw.ask(RequestCode.QUERY_MESSAGE, asked).body)
        found[:] = [record for each in carriers for record in records(each.body, message_id)]
        return wanted <= {record[0] for record in found}

    until(is_there, f"a trace with {sorted(wanted)}", 20)
    return sorted(found)


def records(body: bytes, message_id: str) -> list[list[str]]:
    """Return the records about one message in a message of the trace topic: kind and comparable fields."""
    all_records = [record.split("\x01") for record in body.decode().split("\x02") if record]
    return [
        [fields[0], *(fields[place] for place in _COMPARED[fields[0]] if place < len(fields))]
        for fields in all_records
        if message_id in fields
    ]
