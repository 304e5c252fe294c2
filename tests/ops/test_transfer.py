"""Sending exported messages to another gateway, and to a real RocketMQ broker, with their times."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat.real_broker import RealBroker
from gateway.cli.asking import now_ms
from gateway.client import RemotingClient, abort, look_up
from gateway.settings.network import WORKER_PORT_DISTANCE
from gateway.wire.codes import RequestCode
from gateway.wire.messages import Message, decode_messages
from gateway.wire.properties import join, parse
from tests.live.process import GatewayProcess
from tests.ops.conftest import Command
from tests.ops.sending import TOPIC, send

pytestmark = pytest.mark.live


@pytest.fixture
def source(tmp_path: Path) -> Iterator[GatewayProcess]:
    """The gateway from which messages are exported."""
    with GatewayProcess(tmp_path / "source") as gateway:
        yield gateway


@pytest.fixture
def target(tmp_path: Path) -> Iterator[GatewayProcess]:
    """The gateway to which they are sent."""
    with GatewayProcess(tmp_path / "target") as gateway:
        yield gateway


def export(gateway: GatewayProcess, tidegate: Command) -> str:
    """Export the pending messages of a serving gateway, and return the lines."""
    done = tidegate("export", "--data", gateway.data)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_into_another_gateway(
    source: GatewayProcess, target: GatewayProcess, tidegate: Command
) -> None:
    due_ms = now_ms() + 3_600_000
    send(source, "FIRST", due_ms, KEYS="k1 k2", TAGS="close")
    send(source, "YEARS", due_ms + 31_536_000_000)
    done = tidegate("import", "--to", target.address, text=export(source, tidegate))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.endswith("2 sent, 0 were there already, 0 refused\n")
    with target.client() as client:
        first, years = look_up(client).messages
        assert (first.msg_id, first.due_ms, first.queue_id) == ("FIRST", due_ms, 1)
        assert (first.keys, first.tags, first.born_ms) == ("k1 k2", "close", 7)
        assert years.due_ms == due_ms + 31_536_000_000
        assert abort(client, topic=TOPIC, key="k2")[0].outcome == "aborted"


def test_into_a_gateway_that_wants_tls_and_a_signature(
    source: GatewayProcess, tmp_path: Path, tidegate: Command
) -> None:
    due_ms = now_ms() + 3_600_000
    send(source, "IMPORTED", due_ms)
    lines = export(source, tidegate)
    send(source, "DRAINED", due_ms)
    source.terminate()
    user = tmp_path / "user.json"
    user.write_text('{"username": "root", "password": "a long secret"}')
    flags = ("--authentication", "--initial-user-file", str(user), "--tls", "enforcing")
    with GatewayProcess(tmp_path / "guarded", *flags) as guarded:
        refused = tidegate("import", "--to", guarded.address, "--tls", text=lines)
        assert refused.returncode == 4
        assert "username cannot be null" in refused.stdout
        keys = ("--access-key", "root", "--secret-key", "a long secret")
        signed = ("--to", guarded.address, "--tls", *keys)
        done = tidegate("import", *signed, text=lines)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        done = tidegate("drain", "--data", source.data, *signed)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        held = tidegate("pending", "--server", guarded.address, "--tls", *keys, "--json")
        assert {json.loads(line)["msgId"] for line in held.stdout.splitlines()} == {
            "IMPORTED",
            "DRAINED",
        }


def test_what_was_debounced_replaces_nothing_that_came_after_it(
    source: GatewayProcess, target: GatewayProcess, tidegate: Command
) -> None:
    due_ms = now_ms() + 3_600_000
    send(source, "DEBOUNCED", due_ms + 1, KEYS="k", TIDEGATE_DEBOUNCE="k")
    send(source, "AFTER", due_ms, KEYS="k")
    done = tidegate("import", "--to", target.address, text=export(source, tidegate))
    assert done.returncode == 0
    with target.client() as client:
        assert [one.msg_id for one in look_up(client).messages] == ["AFTER", "DEBOUNCED"]


def test_what_a_transaction_committed_is_no_half_again(
    source: GatewayProcess, target: GatewayProcess, tidegate: Command
) -> None:
    due_ms = now_ms() + 3_600_000
    half = send(source, "PAID", due_ms, TRAN_MSG="true", PGROUP="payers")
    commit = {"producerGroup": "payers", "commitOrRollback": "8", "msgId": "PAID"}
    place = half["queueOffset"]
    with source.client() as client:
        ext = commit | {"tranStateTableOffset": place, "commitLogOffset": place}
        assert client.ask(RequestCode.END_TRANSACTION, ext).code == 0
    done = tidegate("import", "--to", target.address, text=export(source, tidegate))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    with target.client() as client:
        assert [one.msg_id for one in look_up(client).messages] == ["PAID"]


def test_what_any_of_several_workers_has_is_there_already(
    source: GatewayProcess, tmp_path: Path, tidegate: Command
) -> None:
    """The import asks all workers, because another one than the message's target may have it."""
    for number in range(2):
        send(source, f"ID{number}", now_ms() + 3_600_000 + number)
    lines = export(source, tidegate)
    with GatewayProcess(tmp_path / "two", "--workers", "2") as two:
        for worker, line in enumerate(lines.splitlines(keepends=True), 1):
            address = f"127.0.0.1:{two.port + worker * WORKER_PORT_DISTANCE}"
            done = tidegate("import", "--to", address, text=line)
            assert done.stderr.endswith("1 sent, 0 were there already, 0 refused\n")
        done = tidegate("import", "--to", two.address, text=lines)
        assert done.stderr.endswith("0 sent, 2 were there already, 0 refused\n")
        assert two.terminate() == 0


def test_a_queue_that_the_target_does_not_make(
    source: GatewayProcess, tmp_path: Path, tidegate: Command
) -> None:
    """A new topic there has as many queues as its template, and a group's retry topic has one."""
    due_ms = now_ms() + 3_600_000
    send(source, "SENT", due_ms, {"e": "3"})
    with source.client() as client:
        group = {"groupName": "g", "retryQueueNums": 4}
        answer = client.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(group).encode()
        )
        assert answer.code == 0, answer.remark
        topic = {"topic": "%RETRY%g", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
        topic |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
        assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic).code == 0
    send(source, "RETRIED", due_ms, {"b": "%RETRY%g", "e": "3"})
    with GatewayProcess(tmp_path / "few", "--default-topic-queues", "2") as few:
        done = tidegate("import", "--to", few.address, text=export(source, tidegate))
        assert (done.returncode, done.stdout) == (0, "")
        with few.client() as client:
            held = {one.topic: one.queue_id for one in look_up(client).messages}
            assert held == {TOPIC: 0, "%RETRY%g": 0}


def test_a_retry_that_its_consumers_allow_themselves(
    source: GatewayProcess, target: GatewayProcess, tidegate: Command
) -> None:
    """Their clients may allow more retries than the group has, which is 16. A message with more retries is dead."""
    send(source, "R20", now_ms() + 3_600_000, {"b": "%RETRY%g", "e": "0", "j": "20", "l": "100"})
    done = tidegate("import", "--to", target.address, text=export(source, tidegate))
    assert (done.returncode, done.stdout) == (0, "")
    with target.client() as client:
        assert [(one.msg_id, one.topic) for one in look_up(client).messages] == [
            ("R20", "%RETRY%g")
        ]


def test_what_could_not_order_an_abort_before_orders_none(
    source: GatewayProcess, target: GatewayProcess, tidegate: Command
) -> None:
    """The property is an order only beside some of the properties for a time, and the import adds such a property."""
    due_ms = now_ms() + 3_600_000
    send(target, "OTHER", due_ms + 3_600_000)
    text = join({"DELAY": "18", "TIMER_DEL_UNIQKEY": "OTHER", "UNIQ_KEY": "LEVEL"})
    with source.client() as client:
        ext = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "7"}
        ext |= {"h": "9", "i": text, "j": "0", "k": "false", "m": "false"}
        assert client.ask(RequestCode.SEND_MESSAGE_V2, ext, b"level").code == 0
    done = tidegate("import", "--to", target.address, text=export(source, tidegate))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    with target.client() as client:
        assert {one.msg_id for one in look_up(client).messages} == {"LEVEL", "OTHER"}


def test_an_id_that_reads_as_the_place_of_another_message(
    source: GatewayProcess, target: GatewayProcess, tidegate: Command
) -> None:
    message_id = f"{'7F' * 8}{1:016X}"
    send(target, "FIRST", now_ms() + 3_600_000)
    send(source, message_id, now_ms() + 3_600_001)
    lines = export(source, tidegate)
    done = tidegate("import", "--to", target.address, text=lines)
    assert done.stderr.endswith("1 sent, 0 were there already, 0 refused\n")
    done = tidegate("import", "--to", target.address, text=lines)
    assert done.stderr.endswith("0 sent, 1 were there already, 0 refused\n")
    with target.client() as client:
        assert [one.msg_id for one in look_up(client).messages] == ["FIRST", message_id]


def test_an_import_can_be_repeated(
    source: GatewayProcess, target: GatewayProcess, tidegate: Command
) -> None:
    for number in range(3):
        send(source, f"ID{number}", now_ms() + 3_600_000)
    lines = export(source, tidegate)
    first_two = "".join(lines.splitlines(keepends=True)[:2])
    assert tidegate("import", "--to", target.address, text=first_two).returncode == 0
    done = tidegate("import", "--to", target.address, text=lines)
    assert done.stderr.endswith("1 sent, 2 were there already, 0 refused\n")
    with target.client() as client:
        assert len(look_up(client).messages) == 3


def test_lines_that_another_program_has_written(target: GatewayProcess, tidegate: Command) -> None:
    """A line without an id gets one there, and cannot be found by it. A line with an id is not imported twice."""
    line = {"topic": TOPIC, "queueId": 0, "dueMs": now_ms() + 3_600_000, "properties": {}}
    line["body"] = "eA=="
    lines = "".join(json.dumps(line | {"msgId": name}) + "\n" for name in ("OWN", ""))
    done = tidegate("import", "--to", target.address, text=lines)
    assert done.stderr.endswith("2 sent, 0 were there already, 0 refused\n"), done.stdout
    done = tidegate("import", "--to", target.address, text=lines)
    assert done.stderr.endswith("1 sent, 1 were there already, 0 refused\n"), done.stdout
    with target.client() as client:
        assert len(look_up(client, id="OWN").messages) == 1


def test_messages_with_one_id_are_told_apart(
    source: GatewayProcess, target: GatewayProcess, tidegate: Command
) -> None:
    """A client that sends one object twice gives both messages the same id."""
    due_ms = now_ms() + 3_600_000
    send(source, "SAME", due_ms)
    send(source, "SAME", due_ms + 1)
    lines = export(source, tidegate)
    done = tidegate("import", "--to", target.address, text=lines)
    assert done.stderr.endswith("2 sent, 0 were there already, 0 refused\n")
    done = tidegate("import", "--to", target.address, text=lines)
    assert done.stderr.endswith("0 sent, 2 were there already, 0 refused\n")
    with target.client() as client:
        assert [one.due_ms for one in look_up(client).messages] == [due_ms, due_ms + 1]


def test_what_has_another_time_by_now_is_there_already(
    source: GatewayProcess, target: GatewayProcess, tidegate: Command
) -> None:
    soon_ms = now_ms() + 2_000
    send(source, "OVERDUE", soon_ms)
    send(source, "MOVED", soon_ms + 3_600_000)
    # The gateway is killed, so that nothing fires meanwhile, however long an export takes to start.
    source.kill()
    lines = export(source, tidegate)
    time.sleep(max(0, soon_ms - now_ms()) / 1000)
    done = tidegate("import", "--to", target.address, text=lines)
    assert done.stderr.endswith("2 sent, 0 were there already, 0 refused\n")
    moved = tidegate("reschedule", "--id", "MOVED", "--by", "1h", "--server", target.address)
    assert moved.returncode == 0, moved.stderr
    done = tidegate("import", "--to", target.address, text=lines)
    assert done.stderr.endswith("0 sent, 2 were there already, 0 refused\n")


def test_refused_messages_are_named(
    source: GatewayProcess, tmp_path: Path, tidegate: Command
) -> None:
    send(source, "NEAR", now_ms() + 60_000)
    send(source, "FAR", now_ms() + 7_200_000)
    with GatewayProcess(tmp_path / "narrow", "--max-delay", "1h") as narrow:
        done = tidegate("import", "--to", narrow.address, text=export(source, tidegate))
    assert done.returncode == 4
    assert done.stdout.startswith(f"{TOPIC} FAR due ")
    assert done.stderr.endswith("1 sent, 0 were there already, 1 refused\n")


def test_nobody_there(source: GatewayProcess, tidegate: Command) -> None:
    send(source, "ID", now_ms() + 60_000)
    lines = export(source, tidegate)
    source.kill()
    done = tidegate("import", "--to", source.address, text=lines)
    assert done.returncode == 1
    assert "nothing listens on" in done.stderr


def pull(client: RemotingClient, queue: int) -> list[Message]:
    """Return the messages of a broker's queue."""
    ext = {"consumerGroup": "g", "topic": TOPIC, "queueId": str(queue), "queueOffset": "0"}
    ext |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
    ext |= {"subVersion": "0", "subscription": "*"}
    answer = client.ask(RequestCode.PULL_MESSAGE, ext)
    return decode_messages(answer.body) if answer.code == 0 else []


@pytest.mark.oracle
def test_a_real_broker_takes_over(
    source: GatewayProcess, real_broker: RealBroker, tidegate: Command
) -> None:
    """Users can move away: messages due within RocketMQ's 3 days are sent, and the others are named."""
    due_ms = now_ms() + 8_000
    send(source, "SOON", due_ms, body=b"soon", KEYS="k1", TAGS="close", colour="blue")
    send(source, "FAR", now_ms() + 30 * 86_400_000)
    source.kill()
    lines = export(source, tidegate)
    done = tidegate("import", "--to", real_broker.namesrv_address, text=lines)
    assert done.returncode == 4
    assert done.stdout.startswith(f"{TOPIC} FAR due ")
    host, _, port = real_broker.address.rpartition(":")
    taken: list[Message] = []
    with RemotingClient(host, int(port)) as client:
        while not taken and now_ms() < due_ms + 60_000:
            time.sleep(0.2)
            taken = pull(client, queue=1)
    (message,) = taken
    properties: dict[str, Any] = parse(message.properties)
    assert message.body == b"soon"
    assert {
        "UNIQ_KEY": "SOON",
        "KEYS": "k1",
        "TAGS": "close",
        "colour": "blue",
    }.items() <= properties.items()
    assert json.loads(lines.splitlines()[0])["dueMs"] == due_ms
