"""Records the traffic between real clients and a real broker, for the tests of the wire format.

`python -m compat.record_fixtures` makes the captures in `tests/wire/recorded` anew. Each script
below performs every action that has a request of its own, with small bodies.
"""

from __future__ import annotations

import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Final

from compat.clients.cpp import CppClient
from compat.clients.driver import ClientFailure, Outgoing, Sent, until
from compat.clients.java import JavaClient, Version
from compat.java_tools import Mqadmin
from compat.peers import TOLD_HOST
from compat.real_broker import PATIENT, RealBroker
from compat.recorder import Recorder
from compat.toolchain.folder import PROJECT
from recording.proxy import Route

RECORDED: Final = PROJECT / "tests" / "wire" / "recorded"

_TOO_LONG_S: Final = 300 * 24 * 60 * 60
"""More than the three days that a real broker allows."""

Script = Callable[[RealBroker], None]


def _java(version: Version) -> Script:
    def script(broker: RealBroker) -> None:
        with JavaClient(broker.namesrv_address, version) as client:
            topic = f"recorded-{version.replace('.', '')}"
            client.create_topic(topic, queues=2)
            group = f"readers-{topic}"
            consumer = client.consume(
                topic, group, expression="red || blue", fail_first=1, retry_level=1
            )
            _java_sends(client, topic)
            consumer.wait_for(4)  # two messages, each twice
            consumer.close()
            _java_pulls(client, topic, group)
            orderly = client.consume(topic, f"in-order-{topic}", orderly=True)
            orderly.wait_for(10)
            orderly.close()

    return script


def _java_sends(client: JavaClient, topic: str) -> None:
    client.send(topic, b"now", tags="red", keys="k1 k2", properties={"colour": "rot/röd"})
    client.send_all([Outgoing(topic=topic, body=b"async", tags="blue")], "async")
    client.send_oneway(Outgoing(topic=topic, body=b"oneway", tags="green"))
    client.send_batch([Outgoing(topic=topic, body=b"batch-%d" % n, tags="b") for n in range(3)])
    client.send(topic, b"compressed " * 500)
    client.send(topic, b"level", level=1)
    client.send(topic, b"delayed by milliseconds", delay_time_ms=1_500)
    client.send(topic, b"delayed by seconds", delay_time_sec=1)
    client.send(topic, b"at a time", deliver_time_ms=time.time_ns() // 1_000_000 + 2_000)
    (refused,) = client.send_all(
        [Outgoing(topic=topic, body=b"too far", delay_time_sec=_TOO_LONG_S)]
    )
    assert isinstance(refused, ClientFailure)
    pending = client.send(topic, b"taken back", delay_time_sec=60)
    if pending.recall_handle is not None:
        client.recall(topic, pending.recall_handle)
        late = urlsafe_b64encode(f"v1 {topic} broker-a 1000 {pending.msg_id}".encode()).decode()
        _expect_failure(lambda: client.recall(topic, late))


def _java_pulls(client: JavaClient, topic: str, group: str) -> None:
    sent = client.send(topic, b"find me", keys="findable", queue=1)
    assert sent.offset_msg_id is not None
    client.view(topic, sent.msg_id)
    client.view(topic, sent.offset_msg_id)
    client.query(topic, "findable")
    _expect_failure(lambda: client.query(topic, "no such key"))
    puller = client.puller(group)
    end = puller.offset(topic, 1, "max")
    puller.pull(topic, 1, 0, expression="red", limit=2)
    puller.pull(topic, 1, end)
    puller.pull(topic, 1, end + 10)
    puller.offset(topic, 1, "min")
    puller.offset(topic, 1, "earliestTime")
    puller.offset_at(topic, 1, time.time_ns() // 1_000_000)
    puller.offset(topic, 1, "committed")
    puller.commit(topic, 1, end)
    until(lambda: puller.offset(topic, 1, "committed") == end, "the commit")


def _expect_failure(action: Callable[[], object]) -> None:
    try:
        action()
    except ClientFailure:
        return
    raise AssertionError("the client was to refuse this")


def _cpp(broker: RealBroker) -> None:
    topic = "recorded-cpp"
    with CppClient(broker.namesrv_address) as client:
        # Sent first, because it creates the topic.
        client.send(topic, b"now", tags="red", keys="k1", properties={"colour": "blue"})
        consumer = client.consume(topic, "readers-cpp", expression="red || blue", fail_first=1)
        client.send_oneway(Outgoing(topic=topic, body=b"oneway", tags="green"))
        client.send(topic, b"compressed " * 500, tags="blue")
        client.send(topic, b"level", tags="red", level=1)
        client.send(topic, b"delayed by milliseconds", delay_time_ms=1_500)
        client.send(topic, b"delayed by seconds", delay_time_sec=1)
        at = time.time_ns() // 1_000_000 + 2_000
        client.send(topic, b"at a time", deliver_time_ms=at)
        _expect_failure(lambda: client.send(topic, b"too far", delay_time_sec=_TOO_LONG_S))
        consumer.wait_for(4)
        time.sleep(6)  # it reports its offsets every 5 seconds
        consumer.close()
        orderly = client.consume(topic, "in-order-cpp", orderly=True)
        orderly.wait_for(7)
        orderly.close()


def _mqadmin(broker: RealBroker) -> None:
    topic = "recorded-mqadmin"
    with JavaClient(broker.namesrv_address) as client:
        client.create_topic(topic, queues=1)
        sent: Sent = client.send(topic, b"find me", keys="findable")
    assert sent.offset_msg_id is not None
    commands = (
        ("queryMsgByUniqueKey", "-t", topic, "-i", sent.msg_id),
        ("queryMsgById", "-t", topic, "-i", sent.offset_msg_id),
        ("queryMsgByKey", "-t", topic, "-k", "findable"),
        ("queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", "0", "-o", "0"),
        ("topicRoute", "-t", topic),
        ("topicStatus", "-t", topic),
        ("topicList",),
        ("clusterList",),
    )
    with Mqadmin(broker.namesrv_address) as tool:
        for command, *arguments in commands:
            tool.run(command, *arguments)


SCRIPTS: Final[dict[str, Script]] = {
    "java-5.5.0": _java("5.5.0"),
    "java-4.9.8": _java("4.9.8"),
    "cpp": _cpp,
    "mqadmin": _mqadmin,
}


def record(folder: Path) -> None:
    """Run all scripts against one real broker and write a capture for each."""
    with RealBroker(advertised_host=TOLD_HOST, settings=PATIENT) as broker:
        routes = [
            Route(name, (TOLD_HOST, port), ("127.0.0.1", port))
            for name, port in (("namesrv", broker.namesrv_port), ("broker", broker.port))
        ]
        for name, script in SCRIPTS.items():
            print(f"Recording {name}", file=sys.stderr, flush=True)
            with Recorder(folder / f"{name}.capture", routes):
                script(broker)


if __name__ == "__main__":
    record(RECORDED)
