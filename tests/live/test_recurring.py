"""Recurring messages with real processes: set by the Java client and the command line, and kept over kill -9."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from compat.clients.driver import ClientFailure, Received
from gateway.cli.recurring_client import set_recurring
from gateway.client import RefusalError, RemotingClient
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command, encode_response
from gateway.wire.messages import decode_messages
from gateway.wire.properties import find
from tests.cli.fake import FakeGateway
from tests.command import Run, Tidegate
from tests.live.conftest import JavaMaker
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live


def planned(messages: list[Received]) -> list[int]:
    """Return the planned times of the messages in epoch ms, each once."""
    times = {int(message.properties["TIDEGATE_PLANNED_MS"]) for message in messages}
    return sorted(times)


def at_least(occurrences: int) -> Callable[[list[Received]], bool]:
    """Return a check whether so many different occurrences were received."""
    return lambda received: len(planned(received)) >= occurrences


def queued(gateway: GatewayProcess, topic: str, queue: int) -> list[int]:
    """Return the planned times of the messages in a queue."""
    ext = {"consumerGroup": "G", "topic": topic, "queueId": str(queue), "queueOffset": "0"}
    ext |= {"maxMsgNums": "32", "sysFlag": "4", "subscription": "*", "subVersion": "0"}
    ext |= {"commitOffset": "0", "suspendTimeoutMillis": "0"}
    found: list[int] = []
    with gateway.client() as client:
        while (answer := client.ask(RequestCode.PULL_MESSAGE, ext)).code == ResponseCode.SUCCESS:
            found += [
                int(find(message.properties, "TIDEGATE_PLANNED_MS") or 0)
                for message in decode_messages(answer.body)
            ]
            ext["queueOffset"] = answer.ext()["nextBeginOffset"]
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    return found


def test_java_sets_one_and_kill_9_neither_loses_nor_doubles(
    own_gateway: GatewayProcess, java_client: JavaMaker, topic: str
) -> None:
    java = java_client(own_gateway)
    java.create_topic(topic)
    consumer = java.consume(topic, f"G-{topic}")
    order = {"TIDEGATE_NAME": "pulse", "TIDEGATE_EVERY": "1s"}
    sent = java.send(topic, b"tick", tags="beat", keys="k", queue=2, properties=order)
    assert sent.status == "SEND_OK"
    consumer.wait_until(at_least(1))
    for _ in range(3):
        own_gateway.kill()
        own_gateway.start()
    received = consumer.wait_until(at_least(4))
    java.send(topic, b"-", properties={"TIDEGATE_NAME": "pulse", "TIDEGATE_RECURRING": "delete"})
    with pytest.raises(ClientFailure, match="has no recurring message 'pulse'"):
        java.send(topic, b"-", properties={"TIDEGATE_NAME": "pulse", "TIDEGATE_RECURRING": "pause"})
    with pytest.raises(ClientFailure, match="write 5 fields"):
        java.send(topic, b"-", properties={"TIDEGATE_NAME": "x", "TIDEGATE_CRON": "at noon"})
    assert {(one.body, one.tags, one.keys) for one in received} == {(b"tick", "beat", "k")}
    times = queued(own_gateway, topic, 2)
    assert times == [times[0] + 1_000 * number for number in range(len(times))]
    assert set(planned(received)) <= set(times)
    assert len(planned(received)) >= 4


Recurring = Callable[..., Run]


@pytest.fixture
def recurring(tidegate: Tidegate, gateway: GatewayProcess) -> Recurring:
    """Run `tidegate recurring` on the gateway."""
    return partial(tidegate, "recurring", server=gateway.address)


def test_the_command_line(recurring: Recurring, topic: str, tmp_path: Path) -> None:
    place = ("--topic", topic, "--name", "nightly")
    cron = ("--cron", "0 5 * * MON-FRI", "--zone", "Europe/Berlin")
    message = ("--body", "go", "--tag", "t", "--property", "a=b")
    (done,) = recurring("add", *place, *cron, *message, "--json").told()
    assert (done["outcome"], done["state"]) == ("set", "active")
    assert done["nextMs"] > time.time() * 1_000
    changed = recurring("add", *place, *cron, "--body", "new")
    assert "updated, active; the next is 20" in changed.ok()
    (one,) = recurring("list", "--topic", topic, "--full", "--json").told()
    assert (one["cron"], one["zone"], one["body"]) == ("0 5 * * MON-FRI", "Europe/Berlin", "bmV3")
    assert "0 5 * * MON-FRI (Europe/Berlin)" in recurring("list", "--topic", topic).ok()
    (times,) = recurring("next", *place, "--times", "3", "--json").told()
    assert times["times"][0] == done["nextMs"]
    assert len(times["times"]) == 3
    assert "In Europe/Berlin" in recurring("next", *cron, "--times", "1").ok()
    assert "nightly: paused; the next would be" in recurring("pause", *place).ok()
    one |= {"flag": 5, "sysFlag": 1}  # as from a client that compresses
    file = tmp_path / "recurring.jsonl"
    file.write_text(json.dumps(one | {"state": "paused"}))
    assert recurring("delete", *place).ok() == f"{topic} nightly: deleted\n"
    assert recurring("resume", *place).status == 1
    assert recurring("import", str(file), "--json").told()[0]["state"] == "paused"
    assert recurring("resume", *place, "--json").told()[0]["outcome"] == "resumed"
    (again,) = recurring("list", "--topic", topic, "--full", "--json").told()
    assert {**again, "setMs": 0} == {**one, "setMs": 0}
    recurring("delete", *place).ok()
    file.write_text('\n{"topic": "t"}\n\n')
    failed = recurring("import", str(file))
    assert (failed.status, failed.out) == (4, "")
    assert failed.err.startswith("line 2: ")
    assert "1 could not be set" in failed.err


def test_what_is_imported_is_what_was_exported(
    recurring: Recurring, gateway: GatewayProcess, topic: str, tmp_path: Path
) -> None:
    """This includes a body that a client compressed, its sender's flag, and times of the first years."""
    times = {"every": "7d", "start": "1970-01-01T00:00:00Z", "end": "9999-12-31T23:59:59.999Z"}
    with gateway.client() as client:
        set_recurring(
            client, topic, "pulse", b"x\x9c\xff", {"a": "b"}, times, queue=3, flag=7, sys_flag=769
        )
    exported = recurring("list", "--full", "--json", "--topic", topic).ok()
    file = tmp_path / "recurring.jsonl"
    file.write_text(exported)
    assert recurring("import", str(file), "--json").told()[0]["outcome"] == "updated"
    assert recurring("list", "--full", "--json", "--topic", topic).ok() == exported
    (one,) = recurring("list", "--full", "--topic", topic, "--json").told()
    assert (one["flag"], one["sysFlag"], one["startMs"], one["queueId"]) == (7, 769, 0, 3)
    recurring("delete", "--topic", topic, "--name", "pulse").ok()


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("add", "--topic", "T", "--name", "n", "--every", "1m"), 2, "--body"),
        (
            ("add", "--topic", "T", "--name", "n", "--every", "1m", "--body", ""),
            2,
            "without a body",
        ),
        (("add", "--topic", "T", "--name", "n", "--body", "b"), 1, "cron expression or a period"),
        (("add", "--topic", "T", "--name", "n", "--cron", "x", "--body", "b"), 1, "write 5 fields"),
        (("add", "--topic", "T", "--name", "n", "--every", "1m", "--count", ""), 2, "it is empty"),
        (("next", "--every", "1m", "--zone", ""), 2, "it is empty"),
        (("next", "--name", "n"), 2, "together"),
        (("next", "--topic", "T", "--name", "n", "--every", "1m"), 2, "not both"),
        (("pause", "--topic", "T", "--name", "none"), 1, "no recurring message 'none'"),
    ],
)
def test_what_is_wrong_is_one_line(
    recurring: Recurring, arguments: tuple[str, ...], status: int, says: str
) -> None:
    done = recurring(*arguments)
    assert (done.status, done.out, done.err.count("\n")) == (status, "", 1)
    assert says in done.err


def test_a_stock_broker_is_not_sent_what_it_would_deliver_at_once() -> None:
    def unknown(command: Command) -> bytes:
        return encode_response(command.opaque, 3, remark=" request type 31012 not supported")

    with FakeGateway(unknown) as broker:
        with (
            RemotingClient(*broker.address) as client,
            pytest.raises(RefusalError, match="only a Tidegate gateway"),
        ):
            set_recurring(client, "T", "n", b"x", {}, {"every": "1m"})
        assert [command.code for command in broker.asked] == [RequestCode.NEXT_RECURRING]
