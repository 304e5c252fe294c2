"""Recurring messages of real processes: set by the Java client and by the command line, over kill -9."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from compat.clients.driver import ClientFailure, Received
from gateway import cli
from gateway.client import RefusalError, RemotingClient
from gateway.recurring_client import set_recurring
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command, encode_response
from gateway.wire.messages import decode_messages
from gateway.wire.properties import find
from tests.cli.fake import FakeGateway
from tests.live.conftest import JavaMaker
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live


def planned(messages: list[Received]) -> list[int]:
    """The times that messages were planned for, in seconds; each has been delivered at least once."""
    times = {int(message.properties["TIDEGATE_PLANNED_MS"]) for message in messages}
    return sorted(times)


def at_least(occurrences: int) -> Callable[[list[Received]], bool]:
    """Whether so many different ones have come."""
    return lambda received: len(planned(received)) >= occurrences


def queued(gateway: GatewayProcess, topic: str, queue: int) -> list[int]:
    """The planned times of what is in a queue."""
    ext = {"consumerGroup": "G", "topic": topic, "queueId": str(queue), "queueOffset": "0"}
    ext |= {"maxMsgNums": "32", "sysFlag": "4", "subscription": "*", "subVersion": "0"}
    ext |= {"commitOffset": "0", "suspendTimeoutMillis": "0"}
    with gateway.client() as client:
        answer = client.ask(RequestCode.PULL_MESSAGE, ext)
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND)
    return [
        int(find(message.properties, "TIDEGATE_PLANNED_MS") or 0)
        for message in decode_messages(answer.body)
    ]


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


class Run(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str


Tidegate = Callable[..., Run]


@pytest.fixture
def tidegate(
    gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Tidegate:
    """Runs `tidegate recurring`, in this process, on the gateway."""
    monkeypatch.setenv("TIDEGATE_SERVER", gateway.address)

    def run(*arguments: str) -> Run:
        monkeypatch.setattr(sys, "argv", ["tidegate", "recurring", *arguments])
        status: object = 0
        try:
            cli.main()
        except SystemExit as end:
            status = end.code
        printed = capsys.readouterr()
        return Run(int(str(status or 0)), printed.out, printed.err)

    return run


def ok(run: Run) -> str:
    """What a command prints that ends well."""
    assert run.status == 0, run.err
    return run.out


def told(run: Run) -> list[dict[str, Any]]:
    """What a command tells a program."""
    return [json.loads(line) for line in ok(run).splitlines()]


def test_the_command_line(tidegate: Tidegate, topic: str, tmp_path: Path) -> None:
    place = ("--topic", topic, "--name", "nightly")
    cron = ("--cron", "0 5 * * MON-FRI", "--zone", "Europe/Berlin")
    message = ("--body", "go", "--tag", "t", "--property", "a=b")
    (done,) = told(tidegate("add", *place, *cron, *message, "--json"))
    assert (done["outcome"], done["state"]) == ("set", "active")
    assert done["nextMs"] > time.time() * 1_000
    assert "updated, active; the next is 20" in ok(tidegate("add", *place, *cron, "--body", "new"))
    (one,) = told(tidegate("list", "--topic", topic, "--full", "--json"))
    assert (one["cron"], one["zone"], one["body"]) == ("0 5 * * MON-FRI", "Europe/Berlin", "bmV3")
    assert "0 5 * * MON-FRI (Europe/Berlin)" in ok(tidegate("list", "--topic", topic))
    (times,) = told(tidegate("next", *place, "--times", "3", "--json"))
    assert times["times"][0] == done["nextMs"]
    assert len(times["times"]) == 3
    assert "In Europe/Berlin" in ok(tidegate("next", *cron, "--times", "1"))
    assert "nightly: paused, paused; the next would be" in ok(tidegate("pause", *place))
    file = tmp_path / "recurring.jsonl"
    file.write_text(ok(tidegate("list", "--full", "--json", "--topic", topic)))
    assert ok(tidegate("delete", *place)) == f"{topic} nightly: deleted\n"
    assert tidegate("resume", *place).status == 1
    assert told(tidegate("import", str(file), "--json"))[0]["state"] == "paused"
    assert told(tidegate("resume", *place, "--json"))[0]["outcome"] == "resumed"
    (again,) = told(tidegate("list", "--topic", topic, "--full", "--json"))
    assert {**again, "setMs": 0} == {**one, "setMs": 0}
    ok(tidegate("delete", *place))
    file.write_text('{"topic": "t"}\n')
    failed = tidegate("import", str(file))
    assert (failed.status, failed.out) == (4, "")
    assert "1 could not be set" in failed.err


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
        (("next", "--name", "n"), 2, "together"),
        (("next", "--topic", "T", "--name", "n", "--every", "1m"), 2, "not both"),
        (("pause", "--topic", "T", "--name", "none"), 1, "no recurring message 'none'"),
    ],
)
def test_what_is_wrong_is_one_line(
    tidegate: Tidegate, arguments: tuple[str, ...], status: int, says: str
) -> None:
    done = tidegate(*arguments)
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
