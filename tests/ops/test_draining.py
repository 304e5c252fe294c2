"""Drained messages are at the target and no longer here; refused ones stay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.cli.asking import now_ms
from gateway.cli.draining import PAGE, Handed, drain
from gateway.cli.transfer import HeldLine, Sender
from gateway.client import ClientError, RefusalError, RemotingClient, abort, look_up
from gateway.wire import commands
from gateway.wire.codes import RequestCode
from storage import MAX_WITH_ID, StorageError, Store
from tests.command import Tidegate
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import START_MS, MemoryGateway
from tests.gateway.popping import pop
from tests.live.process import GatewayProcess
from tests.ops.conftest import Command
from tests.ops.sending import send
from tests.storage.folder import clear_first_record


def hold(gateway: MemoryGateway, *ids: str) -> None:
    client = gateway.connect()
    for number, message_id in enumerate(ids):
        properties = {"TIMER_DELIVER_MS": str(START_MS + 60_000 + number), "UNIQ_KEY": message_id}
        assert client.send_message(properties=properties).code == 0


def pending(gateway: MemoryGateway) -> list[str]:
    return [message["msgId"] for message in gateway.connect().look_up(limit=1000)]


class Target:
    """A target that accepts all messages but the refused ones, and fails after so many."""

    def __init__(self, *refused: str, breaks_after: int = 1_000_000) -> None:
        self.refused = refused
        self.left = breaks_after
        self.taken: list[str] = []

    def send(self, line: HeldLine, number: int) -> bool:
        if line.msg_id in self.refused:
            raise RefusalError("too late")
        if not self.left:
            raise ClientError("gone")
        self.left -= 1
        self.taken.append(line.msg_id)
        return True


def run(gateway: MemoryGateway, target: Target) -> list[Handed]:
    return list(drain(gateway.store, target.send, lambda: gateway.now_ms))


def test_all_is_handed_over_and_ended_here(gateway: MemoryGateway) -> None:
    ids = [f"ID{number:04}" for number in range(PAGE + 10)]
    hold(gateway, *ids)
    target = Target()
    assert [handed.line.msg_id for handed in run(gateway, target)] == ids
    assert target.taken == ids
    gateway.crash()
    assert pending(gateway) == []
    assert gateway.connect().look_up(id=ids[0], state="any")[0]["state"] == "aborted"


def test_what_is_refused_stays(gateway: MemoryGateway) -> None:
    hold(gateway, "A", "B", "C")
    handed = run(gateway, Target("B"))
    assert [(one.line.msg_id, one.refusal) for one in handed] == [
        ("A", None),
        ("B", "too late"),
        ("C", None),
    ]
    assert pending(gateway) == ["B"]


class Anywhere(RemotingClient):
    """A connection to a server that creates any topic and has no message yet."""

    def ask(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b""
    ) -> commands.Command:
        answer: dict[str, object] = {"messages": []}
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            answer = {
                "queueDatas": [
                    {"brokerName": "b", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
                ],
                "brokerDatas": [{"brokerName": "b", "brokerAddrs": {"0": "127.0.0.1:1"}}],
            }
        return commands.Command(code=0, body=json.dumps(answer).encode())


def test_what_cannot_be_written_anew_stays(gateway: MemoryGateway) -> None:
    """It has a property whose value contains the mark that ends a name. RocketMQ's clients read but never write it."""
    hold(gateway, "A", "B")
    odd = f"UNIQ_KEY\x01ODD\x02colour\x01a\x01b\x02TIMER_DELIVER_MS\x01{START_MS + 60_000}"
    client = gateway.connect()
    answer = client.answer(
        client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(properties=odd), b"x")
    )
    assert answer is not None
    assert answer.code == 0
    with Sender(("127.0.0.1", 1), Anywhere) as sender:
        handed = list(drain(gateway.store, sender.send, lambda: gateway.now_ms))
    assert [one.refusal is None for one in handed] == [True, False, True]
    assert "colour" in (handed[1].refusal or "")
    assert pending(gateway) == ["ODD"]


def test_messages_with_one_id_all_go(gateway: MemoryGateway) -> None:
    """This includes more messages than a look-up by id returns. The others would be aborted here without being sent."""
    hold(gateway, *["A"] * (MAX_WITH_ID + 10))
    target = Target()
    run(gateway, target)
    assert len(target.taken) == MAX_WITH_ID + 10
    assert pending(gateway) == []


def test_only_those_of_one_time_are_numbered_on(gateway: MemoryGateway) -> None:
    client = gateway.connect()
    for seconds in (60, 60, 70):
        assert client.send_message(UNIQ_KEY="A", TIMER_DELAY_SEC=str(seconds)).code == 0
    numbers = []

    def send(line: HeldLine, number: int) -> bool:
        numbers.append(number)
        return True

    assert len(list(drain(gateway.store, send, lambda: gateway.now_ms))) == 3
    assert numbers == [1, 2, 1]


def hold_alike(gateway: MemoryGateway, count: int) -> None:
    client = gateway.connect()
    for _ in range(count):
        assert client.send_message(UNIQ_KEY="A", TIMER_DELAY_SEC="60").code == 0


class Knowing(Target):
    """A target that says which messages it has already, as a gateway does."""

    def send(self, line: HeldLine, number: int) -> bool:
        return self.taken.count(line.msg_id) < number and super().send(line, number)


@pytest.mark.parametrize(("breaks_after", "sent_when_killed"), [(1, 0), (2, 0), (1, 1)])
def test_those_that_differ_in_nothing_all_go_in_several_drains(
    gateway: MemoryGateway, breaks_after: int, sent_when_killed: int
) -> None:
    """The second drain may be killed when it has sent one that is still pending here."""
    hold_alike(gateway, 3)
    target = Knowing(breaks_after=breaks_after)
    with pytest.raises(ClientError):
        run(gateway, target)
    target.taken += ["A"] * sent_when_killed
    target.left = 3
    run(gateway, target)
    assert target.taken == ["A"] * 3
    assert pending(gateway) == []


def test_of_those_that_differ_in_nothing_some_may_be_refused(gateway: MemoryGateway) -> None:
    """It is the number of those that the target has that counts."""
    hold_alike(gateway, 3)
    target = Knowing("A")
    drained = drain(gateway.store, target.send, lambda: gateway.now_ms)
    assert next(drained).refusal == "too late"
    target.refused = ()
    assert len(list(drained)) == 2
    run(gateway, target)
    assert target.taken == ["A"] * 3
    assert pending(gateway) == []


def test_messages_with_one_id_end_each_by_itself(gateway: MemoryGateway) -> None:
    hold(gateway, "A", "A", "A")
    target = Target(breaks_after=2)
    with pytest.raises(ClientError):
        run(gateway, target)
    assert pending(gateway) == ["A"]


def test_a_drain_that_is_cut_short_goes_on(gateway: MemoryGateway) -> None:
    hold(gateway, "A", "B", "C")
    with pytest.raises(ClientError):
        run(gateway, Target(breaks_after=2))
    assert pending(gateway) == ["C"]
    target = Target()
    run(gateway, target)
    assert target.taken == ["C"]


def test_a_serving_gateway_is_not_drained(make_gateway: MakeGateway, tidegate: Command) -> None:
    gateway = make_gateway()
    hold(gateway, "A")
    done = tidegate("drain", "--data", gateway.data, "--to", "127.0.0.1:1")
    assert done.returncode == 1
    assert "in use by process" in done.stderr
    assert pending(gateway) == ["A"]


def test_how_many_went_is_said_where_the_disk_fails_at_the_end(
    make_gateway: MakeGateway,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gateway = make_gateway()
    gateway.stop()
    close = Store.close

    def fail(store: Store) -> None:
        close(store)
        raise StorageError("a checkpoint could not be written")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "close", fail)
        done = Tidegate(capsys)("drain", "--data", str(gateway.data), "--to", "127.0.0.1:1")
    assert done.status == 1
    assert done.err.splitlines() == [
        "0 handed over, 0 refused",
        "tidegate: a checkpoint could not be written",
    ]


@pytest.mark.parametrize("is_in_table", [False, True])
def test_what_cannot_be_read_is_said_to_stay(
    make_gateway: MakeGateway, tidegate: Command, is_in_table: bool
) -> None:
    """The message's timer may be in the table, as after a reschedule, or among those that were accepted lately."""
    gateway = make_gateway()
    hold(gateway, "A")
    if is_in_table:
        order = {"id": "A", "due": str(START_MS + 50_000)}
        assert gateway.connect().ask(RequestCode.RESCHEDULE_TIMERS, order).code == 0
    gateway.stop()
    clear_first_record(gateway.data)
    done = tidegate("drain", "--data", gateway.data, "--to", "127.0.0.1:1")
    assert done.returncode == 4
    assert done.stderr == (
        "0 handed over, 0 refused\nleft behind, as they cannot be read: 1; 'tidegate fsck' names them\n"
    )


def test_recurring_messages_are_said_to_stay(make_gateway: MakeGateway, tidegate: Command) -> None:
    gateway = make_gateway()
    order = {"TIDEGATE_NAME": "nightly", "TIDEGATE_EVERY": "1h"}
    assert gateway.connect().send_message("orders", "x", order).code == 0
    gateway.stop()
    done = tidegate("drain", "--data", gateway.data, "--to", "127.0.0.1:1")
    assert done.returncode == 0
    assert done.stderr.splitlines()[1].startswith("1 recurring message left here: ")


def test_what_else_does_not_go_is_said(make_gateway: MakeGateway, tidegate: Command) -> None:
    gateway = make_gateway()
    client = gateway.connect()
    half = {"TRAN_MSG": "true", "PGROUP": "payers"}
    assert client.send_message("orders", "x", half).code == 0
    assert client.ask(RequestCode.PAUSE_TOPIC, {"topic": "orders"}).code == 0
    gateway.stop()
    done = tidegate("drain", "--data", gateway.data, "--to", "127.0.0.1:1")
    assert done.returncode == 0
    paused, told, undecided = done.stderr.splitlines()
    assert paused == (
        "topics paused here, whose due messages the target delivers at once, paused there or not: orders"
    )
    assert told == "0 handed over, 0 refused"
    assert undecided.startswith("1 undecided transaction left here: ")


def test_popped_messages_are_said_to_stay(make_gateway: MakeGateway, tidegate: Command) -> None:
    """They are behind the offsets of their group, so tools show no lag."""
    gateway = make_gateway()
    client = gateway.connect()
    for _ in range(2):
        assert client.send_message("orders", "x").code == 0
    assert len(pop(gateway, client, maxMsgNums=1)) == 1
    gateway.stop()
    done = tidegate("drain", "--data", gateway.data, "--to", "127.0.0.1:1")
    assert done.returncode == 0
    assert done.stderr.splitlines()[1].startswith("1 popped message left here ")


@pytest.mark.live
def test_drain_from_one_gateway_to_another(tmp_path: Path, tidegate: Command) -> None:
    due_ms = now_ms() + 3_600_000
    with GatewayProcess(tmp_path / "source") as source:
        send(source, "NEAR", now_ms() + 60_000)
        send(source, "FAR", due_ms)
        assert source.terminate() == 0
    with GatewayProcess(tmp_path / "target", "--max-delay", "30m") as target:
        arguments = ("drain", "--data", tmp_path / "source", "--to", target.address)
        done = tidegate(*arguments)
        assert done.returncode == 4
        assert done.stdout.startswith("transfer FAR due ")
        assert done.stderr == "1 handed over, 1 refused\n"
        with target.client() as client:
            assert [message.msg_id for message in look_up(client).messages] == ["NEAR"]
    assert tidegate("fsck", "--data", tmp_path / "source").returncode == 0


@pytest.mark.live
def test_what_is_too_long_for_a_frame_stays_alone(tmp_path: Path, tidegate: Command) -> None:
    """The target closes the connection without a response. Messages that are due later are still sent."""
    long = ("--max-message-size", "20MiB", "--max-frame-size", "24MiB")
    with GatewayProcess(tmp_path / "source", *long) as source:
        due_ms = now_ms() + 3_600_000
        send(source, "LONG", due_ms, body=b"x" * (17 * 1024**2))
        send(source, "SHORT", due_ms + 1)
        assert source.terminate() == 0
    with GatewayProcess(tmp_path / "target") as target:
        done = tidegate("drain", "--data", tmp_path / "source", "--to", target.address)
        assert done.returncode == 4
        assert done.stdout.startswith(f"transfer LONG due {due_ms}: its body of 17,825,792 bytes ")
        # Where it takes long, it says so far.
        assert done.stderr.splitlines()[-1] == "1 handed over, 1 refused"
        with target.client() as client:
            assert [message.msg_id for message in look_up(client).messages] == ["SHORT"]


@pytest.mark.live
def test_messages_that_differ_in_nothing_all_go(tmp_path: Path, tidegate: Command) -> None:
    """A batch may have one object twice, and a drain that was killed may already have sent one of them."""
    due_ms = now_ms() + 3_600_000
    with GatewayProcess(tmp_path / "source") as source:
        for _ in range(3):
            send(source, "SAME", due_ms)
        assert source.terminate() == 0
    with GatewayProcess(tmp_path / "target") as target:
        send(target, "SAME", due_ms)
        done = tidegate("drain", "--data", tmp_path / "source", "--to", target.address)
        assert done.stderr == "3 handed over, 0 refused\n"
        with target.client() as client:
            assert len(look_up(client, id="SAME").messages) == 3


@pytest.mark.live
def test_what_was_drained_can_be_drained_back(tmp_path: Path, tidegate: Command) -> None:
    """The first gateway has the message as aborted. A message that was aborted at the second gateway stays so."""
    with (
        GatewayProcess(tmp_path / "first") as first,
        GatewayProcess(tmp_path / "second") as second,
    ):
        for message_id in ("BACK", "ABORTED"):
            send(first, message_id, now_ms() + 3_600_000)
        lines = tidegate("export", "--data", first.data).stdout
        assert first.terminate() == 0
        assert tidegate("drain", "--data", first.data, "--to", second.address).returncode == 0
        with second.client() as client:
            assert abort(client, id="ABORTED")[0].outcome == "aborted"
        done = tidegate("import", "--to", second.address, text=lines)
        assert done.stderr == "0 sent, 2 were there already, 0 refused\n"
        assert second.terminate() == 0
        first.start()
        done = tidegate("drain", "--data", second.data, "--to", first.address)
        assert done.stderr == "1 handed over, 0 refused\n"
        with first.client() as client:
            assert [message.msg_id for message in look_up(client).messages] == ["BACK"]
