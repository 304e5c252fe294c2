"""Replaying without Spark, to a server of the test that answers, is slow or closes connections."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command, decode_command, encode_command, encode_response
from gateway.wire.frames import FrameBuffer
from gateway.wire.properties import join, parse
from spark_jobs import replaying, rewriting, watching
from spark_jobs.errors import JobError
from spark_jobs.exchanges import ROWS
from spark_jobs.replay import find_target
from spark_jobs.replaying import MARK_BYTES, Journal, Pacing, Player, Target
from spark_jobs.rewriting import Learned, Rewriter, Rules, new_id
from spark_jobs.watching import WATCHED, Watcher
from tests.live.process import killed
from tests.spark.making import log_bytes

NOW_NS = 1_700_000_000_000_000_000
SEND = int(RequestCode.SEND_MESSAGE_V2)
RECALL = int(RequestCode.RECALL_MESSAGE)
LIMIT_S = 60.0


def route(command: Command, queues: int) -> bytes:
    """Return the answer to a request for a topic's route: it has so many queues."""
    body = b'{"queueDatas":[{"readQueueNums":%d}]}' % queues
    return encode_response(command.opaque, 0, body=body)


class Server:
    """Answers each request with the next of its responses, and keeps the requests."""

    def __init__(self) -> None:
        self.asked: list[Command] = []
        self.is_silent = False
        self.dawdles_s = 0.0
        self.hang_up_after: int | None = None
        self.silent_after: int | None = None
        self.ended = 0
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                frames = FrameBuffer()
                while data := self.request.recv(65_536):
                    for frame in frames.feed(data):
                        command = decode_command(frame)
                        outer.asked.append(command)
                        if len(outer.asked) == outer.hang_up_after:
                            return
                        time.sleep(outer.dawdles_s)
                        if len(outer.asked) == outer.silent_after:
                            outer.is_silent = True
                        if not outer.is_silent and not command.is_oneway:
                            # A killed client has sent requests whose responses it will never read.
                            with suppress(OSError):
                                self.request.sendall(outer.answer(command))

            def finish(self) -> None:
                outer.ended += 1

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address: tuple[str, int] = ("127.0.0.1", self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def answer(self, command: Command) -> bytes:
        ext = command.ext()
        if command.code == SEND:
            key = parse(ext["i"])["UNIQ_KEY"]
            told = {"recallHandle": f"new-{key}", "transactionId": key, "msgId": key}
            return encode_response(command.opaque, 0, ext=told)
        return encode_response(command.opaque, 0)

    def wait_until_ended(self, connections: int = 1) -> None:
        """Wait until everything that arrived on so many connections has been read."""
        deadline = time.monotonic() + LIMIT_S
        while self.ended < connections:
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def asked(position: int, code: int, ext: dict[str, str], **more: Any) -> dict[str, Any]:
    return {
        "file": "a.capture",
        "position": position,
        "connection": "a#1",
        "from_client": True,
        "asked_ns": NOW_NS + position * 1_000_000,
        "opaque": position,
        "code": code,
        "flag": 0,
        "version": 513,
        "language": "JAVA",
        "ext": list(ext.items()),
        "body": b"",
        **more,
    }


def sent(position: int, key: str, **more: Any) -> dict[str, Any]:
    answer = [("recallHandle", f"old-{key}"), ("transactionId", key)]
    ext = {"b": "orders", "g": "1", "i": f"UNIQ_KEY\x01{key}\x02TIMER_DELAY_SEC\x0130\x02"}
    return asked(position, SEND, ext, answer_code=0, answer_ext=answer, **more)


def batches(rows: list[dict[str, Any]]) -> list[pa.RecordBatch]:
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in ROWS]
    return [pa.RecordBatch.from_arrays(columns, schema=ROWS)]


def play(
    address: tuple[str, int],
    folder: Path,
    rows: list[dict[str, Any]],
    *,
    rules: Rules | None = None,
    **pacing: Any,
) -> list[dict[str, Any]]:
    pace = Pacing(time.time_ns(), NOW_NS, **{"patience_s": LIMIT_S, **pacing})
    with Journal(folder / "journal", "part") as journal:
        player = Player(Target(address, address), pace, rules or Rules("run"), journal)
        return [row for batch in player.play(batches(rows)) for row in batch.to_pylist()]


def test_requests_leave_in_order_with_ids_of_this_run(server: Server, tmp_path: Path) -> None:
    keys = [f"{number:032X}" for number in range(20)]
    rows = [sent(number, key) for number, key in enumerate(keys)]
    results = play(server.address, tmp_path, rows)
    got = [parse(command.ext()["i"])["UNIQ_KEY"] for command in server.asked]
    assert got == [new_id(key, "run") for key in keys]
    assert len({*got, *keys}) == 40
    assert [len(key) for key in got] == [32] * 20
    assert [row["outcome"] for row in results] == ["answered"] * 20
    assert all(row["answered_ns"] >= row["sent_ns"] for row in results)


def test_times_between_requests_are_kept_or_scaled(server: Server, tmp_path: Path) -> None:
    rows = [sent(at, f"{at:032X}") for at in (0, 100, 400)]
    slow = play(server.address, tmp_path / "1", rows)
    fast = play(server.address, tmp_path / "4", rows, speed=4.0)
    at_once = play(server.address, tmp_path / "0", rows, speed=0.0)
    for results, gaps in ((slow, [100, 300]), (fast, [25, 75]), (at_once, [0, 0])):
        due = sorted(row["due_ns"] for row in results)
        assert [(later - sooner) / 1e6 for sooner, later in pairwise(due)] == gaps
        assert all(row["sent_ns"] >= row["due_ns"] - 1_000_000 for row in results)


def test_a_rate_is_not_exceeded(server: Server, tmp_path: Path) -> None:
    rows = [sent(at, f"{at:032X}") for at in range(10)]
    results = play(server.address, tmp_path, rows, speed=0.0, rate=100.0)
    due = sorted(row["due_ns"] for row in results)
    assert due[-1] - due[0] >= 9 * 10_000_000


def test_a_rate_is_not_exceeded_after_a_stall(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that stops for seconds, as for a checkpoint, would get all that it missed at once."""
    monkeypatch.setattr(replaying, "_CATCH_UP_NS", 0)
    count, stalls_at, gap_ns = 30, 10, 20_000_000
    ended_ns = 0
    answer = server.answer

    def stall(command: Command) -> bytes:
        nonlocal ended_ns
        if len(server.asked) == stalls_at:
            time.sleep(count * gap_ns / 1e9)
            ended_ns = time.time_ns()
        return answer(command)

    monkeypatch.setattr(server, "answer", stall)
    rows = [sent(at, f"{at:032X}") for at in range(count)]
    results = play(server.address, tmp_path, rows, speed=0.0, rate=1e9 / gap_ns, outstanding=1)
    left_ns = [row["sent_ns"] for row in results]
    # The first one behind the stall was due long before.
    assert left_ns[-1] - ended_ns >= (count - stalls_at - 2) * gap_ns
    due_ns = [row["due_ns"] for row in results]
    assert due_ns[-1] - due_ns[0] == (count - 1) * gap_ns, "it shows how late they are"


@pytest.mark.parametrize("hours", [1, -1])
def test_a_clock_that_is_set_meanwhile_does_not_change_the_pace(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """Set forward, all that was to come would leave at once; set back, an hour later."""
    arrived: list[float] = []
    answer = server.answer
    clock = time.time_ns

    def note(command: Command) -> bytes:
        arrived.append(time.monotonic())
        return answer(command)

    def now_ns() -> int:
        return clock() + bool(arrived) * hours * 3_600_000_000_000

    monkeypatch.setattr(server, "answer", note)
    monkeypatch.setattr(time, "time_ns", now_ns)
    began = time.monotonic()
    play(server.address, tmp_path, [sent(at, f"{at:032X}") for at in (0, 300, 600)])
    assert len(arrived) == 3
    assert arrived[2] - began > 0.59


def test_a_recall_waits_for_the_answer_that_tells_its_handle(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "_TEACHING_S", LIMIT_S)
    server.dawdles_s = 0.2
    rows = [sent(0, "A" * 32)]
    rows.append(asked(1, RECALL, {"topic": "orders", "recallHandle": "old-" + "A" * 32}))
    first, second = play(server.address, tmp_path, rows)
    assert server.asked[1].ext()["recallHandle"] == f"new-{new_id('A' * 32, 'run')}"
    assert second["sent_ns"] >= first["answered_ns"]
    assert second["unmapped"] is None


def test_a_reply_that_is_pushed_is_taken(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server refuses a reply if the client that it is for does not take it."""
    replies: list[int] = []

    def answer(command: Command) -> bytes:
        if command.is_response:
            return encode_response(replies.pop(), command.code)
        replies.append(command.opaque)
        return encode_command(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, 7)

    monkeypatch.setattr(server, "answer", answer)
    row = asked(0, int(RequestCode.SEND_REPLY_MESSAGE_V2), {"b": "DefaultCluster_REPLY_TOPIC"})
    [result] = play(server.address, tmp_path, [row], patience_s=10.0)
    assert (result["outcome"], result["answer_code"]) == ("answered", 0)


TAKEN: Final = {
    "a pull and the return": (
        asked(
            0,
            RequestCode.PULL_MESSAGE,
            {"consumerGroup": "billing", "topic": "orders", "queueId": "0", "queueOffset": "0"},
            answer_code=0,
            answer_ext=[],
            answer_body=log_bytes([("orders", b"late", "UNIQ_KEY\x01A\x02")], base=5_000),
        ),
        asked(1, RequestCode.CONSUMER_SEND_MSG_BACK, {"group": "billing", "offset": "5000"}),
        "offset",
    ),
}
"""Requests that take a message and tell what became of it, and the field by which the second names it."""


@pytest.mark.parametrize(("taking", "telling", "field"), TAKEN.values(), ids=list(TAKEN))
def test_what_became_of_a_message_is_told_after_the_answer_that_has_it(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    taking: dict[str, Any],
    telling: dict[str, Any],
    field: str,
) -> None:
    """Before that, nobody knows its place in this run, and another message may have the recorded one."""
    monkeypatch.setattr(replaying, "_TEACHING_S", LIMIT_S)
    server.dawdles_s = 0.1
    rows = [taking, telling, sent(2, "A" * 32)]
    results = {row["position"]: row for row in play(server.address, tmp_path, rows)}
    assert results[1]["sent_ns"] >= results[0]["answered_ns"] > results[2]["sent_ns"]
    assert [row["outcome"] for row in results.values()] == ["answered"] * 3
    assert results[1]["unmapped"] == field, "the answer of this run had no message"


@pytest.mark.parametrize("comes", [True, False])
def test_an_acknowledgement_waits_until_a_pop_has_its_message(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    """A target that fires sooner gives it to another pop. It does not wait for ever."""
    monkeypatch.setattr(replaying, "_TEACHING_S", LIMIT_S if comes else 0.3)
    pop, ack = int(RequestCode.POP_MESSAGE), int(RequestCode.ACK_MESSAGE)
    names = {"topic": "orders", "consumerGroup": "billing"}
    popped = {
        "popTime": "77",
        "invisibleTime": "1000",
        "reviveQid": "0",
        "startOffsetInfo": "0 0 0",
    }
    body = log_bytes([("orders", b"late", "UNIQ_KEY\x01A\x02")])
    first = asked(0, pop, names, answer_code=0, answer_ext=[*popped.items()], answer_body=body)
    acknowledged = asked(1, ack, names | {"extraInfo": "0 77 1000 0 0 broker-a 0 0"})
    second = asked(300, pop, names, answer_code=210, answer_ext=[])
    own = log_bytes([("orders", b"late", f"UNIQ_KEY\x01{new_id('A', 'run')}\x02")])
    nothing, found = {"code": 210}, {"code": 0, "ext": popped | {"popTime": "99"}, "body": own}
    pops: list[dict[str, Any]] = [nothing, found if comes else nothing]

    def answer(command: Command) -> bytes:
        told = pops.pop(0) if command.code == pop else {"code": 0}
        return encode_response(command.opaque, **told)

    monkeypatch.setattr(server, "answer", answer)
    rows = [first, acknowledged, sent(2, "B" * 32), second]
    played = {row["position"]: row for row in play(server.address, tmp_path, rows)}
    assert played[1]["sent_ns"] > played[2]["sent_ns"]
    if comes:
        assert played[1]["sent_ns"] >= played[300]["answered_ns"]
        assert server.asked[-1].ext()["extraInfo"] == "0 99 1000 0 0 broker-a 0 0"
    assert played[1]["unmapped"] == (None if comes else "extraInfo")


def test_a_pull_waits_for_the_one_before_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that finds nothing is followed by one from the same offset. Only the last here is of another queue."""
    monkeypatch.setattr(replaying, "_TEACHING_S", LIMIT_S)
    server.dawdles_s = 0.1
    ends = {"nextBeginOffset": "17"}
    monkeypatch.setattr(server, "answer", lambda one: encode_response(one.opaque, 0, ext=ends))
    place = {"consumerGroup": "billing", "topic": "orders"}

    def pull(at: int, queue: str, begin: str, end: str) -> dict[str, Any]:
        ext = place | {"queueId": queue, "queueOffset": begin}
        told = [("nextBeginOffset", end)]
        return asked(at, RequestCode.PULL_MESSAGE, ext, answer_code=0, answer_ext=told)

    noted: dict[int, int] = {}
    note = Journal.note

    def remember(journal: Journal, file: str, position: int) -> None:
        noted[position] = time.time_ns()
        note(journal, file, position)

    monkeypatch.setattr(Journal, "note", remember)
    rows = [pull(0, "0", "0", "7"), pull(1, "0", "7", "7"), pull(2, "0", "7", "8")]
    rows.append(pull(3, "1", "0", "1"))
    played = play(server.address, tmp_path, rows)
    first, second, third, other = sorted(played, key=lambda row: int(row["position"]))
    assert other["sent_ns"] < first["answered_ns"] <= second["due_ns"] <= second["sent_ns"]
    assert second["answered_ns"] <= third["sent_ns"]
    assert noted[1] >= first["answered_ns"], "a run that goes on would not send it"
    begins = [(one.ext()["queueId"], one.ext()["queueOffset"]) for one in server.asked]
    assert begins == [("0", "0"), ("1", "0"), ("0", "17"), ("0", "17")]
    assert not any(row["unmapped"] for row in played)


def test_a_pull_does_not_wait_for_ever(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "_TEACHING_S", 0.1)
    server.is_silent = True
    ext = {"topic": "orders", "queueId": "0", "queueOffset": "7"}
    told = [("nextBeginOffset", "7")]
    pull = RequestCode.PULL_MESSAGE
    rows = [asked(at, pull, ext, answer_code=19, answer_ext=told) for at in range(3)]
    results = play(server.address, tmp_path, rows, patience_s=1.0)
    assert [row["outcome"] for row in results] == ["no answer"] * 3
    assert len(server.asked) == 3


@pytest.mark.parametrize("more", [0, 1], ids=["the last one", "others follow"])
def test_a_disk_that_is_full_when_a_request_has_waited_is_told(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    def refuse(journal: Journal, file: str, position: int) -> None:
        if position == 1:
            raise JobError("the disk is full")

    monkeypatch.setattr(Journal, "note", refuse)
    ext = {"topic": "orders", "queueId": "0", "queueOffset": "7"}
    told = [("nextBeginOffset", "7")]
    pull = RequestCode.PULL_MESSAGE
    rows = [asked(at, pull, ext, answer_code=19, answer_ext=told) for at in range(2)]
    rows += [sent(1_000, "A" * 32)] * more
    with pytest.raises(JobError, match="the disk is full"):
        play(server.address, tmp_path, rows)


def test_a_handle_of_an_earlier_answer_is_mapped(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "_TEACHING_S", LIMIT_S)
    rows = [
        sent(0, "A" * 32),
        asked(200, RECALL, {"topic": "orders", "recallHandle": "old-" + "A" * 32}),
    ]
    rows.append(asked(250, RECALL, {"topic": "orders", "recallHandle": "never seen"}))
    results = play(server.address, tmp_path, rows)
    assert server.asked[1].ext()["recallHandle"] == f"new-{new_id('A' * 32, 'run')}"
    assert [row["unmapped"] for row in sorted(results, key=lambda row: row["position"])] == [
        None,
        None,
        "recallHandle",
    ]


def test_what_was_sent_is_not_sent_again(server: Server, tmp_path: Path) -> None:
    rows = [sent(at, f"{at:032X}") for at in range(6)]
    play(server.address, tmp_path, rows[:4])
    results = play(server.address, tmp_path, rows)
    assert len(server.asked) == 6
    assert [row["outcome"] for row in results].count("sent before") == 4


def test_what_was_sent_before_waits_neither_for_its_time_nor_for_the_target(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that is down would else be the reason why nobody knows the answer."""
    rows = [sent(at, f"{at:032X}") for at in range(6)]
    play(server.address, tmp_path, rows[:4])
    waits: list[float] = []

    async def note(left_s: float) -> None:
        waits.append(left_s)

    monkeypatch.setattr(replaying, "_sleep_for", note)
    gone = Server()
    gone.close()
    results = play(gone.address, tmp_path, rows, speed=0.0, rate=1.0)
    assert [row["outcome"] for row in results] == ["sent before"] * 4 + ["not connected"] * 2
    assert len(waits) == 2


def test_a_target_that_is_down_is_told(tmp_path: Path) -> None:
    server = Server()
    server.close()
    results = play(server.address, tmp_path, [sent(at, f"{at:032X}") for at in range(3)])
    assert [row["outcome"] for row in results] == ["not connected"] * 3
    assert str(server.address[1]) in results[0]["answer_remark"]


def test_a_target_whose_machine_is_gone_holds_up_nobody_for_ever(tmp_path: Path) -> None:
    """Nobody refuses the connection then, as where a queue of connections is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address: tuple[str, int] = listener.getsockname()
        with suppress(TimeoutError):
            while True:
                stack.enter_context(socket.create_connection(address, 0.5))
        results = play(address, tmp_path, [sent(0, "0" * 32)], patience_s=0.2)
    assert [row["outcome"] for row in results] == ["not connected"]
    assert results[0]["answer_remark"] == f"127.0.0.1:{address[1]}: it did not answer in 0.2 s"


def test_a_broker_that_cannot_be_reached_is_told_at_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Server()
    gone.close()
    body = b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"127.0.0.1:%d"}}}}' % gone.address[1]
    said = partial(encode_response, code=0, body=body)
    monkeypatch.setattr(server, "answer", lambda command: said(command.opaque))
    with pytest.raises(JobError, match=rf"names the broker 127\.0\.0\.1:{gone.address[1]}, which"):
        find_target(server.address)


def test_the_brokers_of_a_target_are_counted(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = server.address[1]
    body = b"""{"brokerAddrTable": {"a": {"brokerAddrs": {"0": "127.0.0.1:%d"}}, "b": {}}}""" % here
    said = partial(encode_response, code=0, body=body)
    monkeypatch.setattr(server, "answer", lambda command: said(command.opaque))
    assert find_target(server.address) == Target(server.address, server.address, 2)


def test_a_target_that_refuses_to_name_its_brokers_is_told(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway with authentication does this."""
    said = partial(encode_response, code=ResponseCode.NO_PERMISSION, remark="nobody signed it")
    monkeypatch.setattr(server, "answer", lambda command: said(command.opaque))
    with pytest.raises(JobError, match=r"nobody signed it \(code 16\)"):
        find_target(server.address)


def test_a_target_that_is_no_name_server_is_told() -> None:
    """Such as one of HTTP or SSH."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                connection.recv(4096)

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(JobError, match="does not answer as a name server of RocketMQ does"):
            find_target(listener.getsockname())
        thread.join()


def test_a_header_without_numbers_is_sent_as_it_was(server: Server, tmp_path: Path) -> None:
    row = sent(0, "0" * 32) | {"flag": None, "version": None}
    assert [one["outcome"] for one in play(server.address, tmp_path, [row])] == ["answered"]


def test_a_target_that_is_silent_holds_up_nobody_for_ever(server: Server, tmp_path: Path) -> None:
    server.is_silent = True
    rows = [sent(at, f"{at:032X}") for at in range(4)]
    results = play(server.address, tmp_path, rows, patience_s=0.2, outstanding=2)
    assert [row["outcome"] for row in results] == ["no answer"] * 4
    server.wait_until_ended()
    assert len(server.asked) == 4


def test_a_connection_that_is_closed_is_made_again(server: Server, tmp_path: Path) -> None:
    server.hang_up_after = 2
    rows = [sent(at, f"{at:032X}") for at in range(4)]
    # With one request outstanding at a time, the third waits until the loss of the second is noticed.
    played = play(server.address, tmp_path, rows, outstanding=1)
    results = sorted(played, key=lambda row: row["position"])
    assert [row["outcome"] for row in results] == ["answered", "closed", "answered", "answered"]


def test_more_connections_than_files_may_be_open(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle connections are closed, and opened again when they are needed."""
    monkeypatch.setattr(replaying, "_MOST_OPEN", 3)
    rows = [sent(at, f"{at:032X}", connection=f"a#{at % 10}") for at in range(20)]
    results = play(server.address, tmp_path, rows, outstanding=1)
    assert [row["outcome"] for row in results] == ["answered"] * 20
    server.wait_until_ended(20)
    monkeypatch.setattr(replaying, "_MOST_OPEN", 1_000)
    lines: list[Any] = []
    connect = asyncio.BaseEventLoop.create_connection

    async def few(*arguments: Any) -> Any:
        if sum(not line.is_closing() for line in lines) >= 3:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made: Any = await connect(*arguments)
        lines.append(made[0])
        return made

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", few)
    rows = [sent(20 + at, f"{at:032X}", connection=f"b#{at}") for at in range(20)]
    results = play(server.address, tmp_path, rows)
    assert [row["outcome"] for row in results] == ["answered"] * 20


def test_delays_are_scaled_and_topics_renamed_when_that_is_asked() -> None:
    rules = Rules("run", speed=10.0, delays="scale", topics={"orders": "copy"}, groups={"g": "h"})
    rewriter = Rewriter(rules)
    properties = "TIMER_DELIVER_MS\x0161000\x02TIMER_DELAY_SEC\x0130\x02"
    changed = rewriter.request(
        SEND, {"a": "g", "b": "orders", "i": properties}, b"", recorded_ms=1_000, now_ms=500_000
    )
    assert (changed.ext["a"], changed.ext["b"]) == ("h", "copy")
    assert parse(changed.ext["i"]) == {"TIMER_DELIVER_MS": "506000", "TIMER_DELAY_MS": "3000"}
    kept = Rewriter(Rules("run")).request(SEND, {"i": properties}, b"", 1_000, 500_000)
    assert parse(kept.ext["i"]) == {"TIMER_DELIVER_MS": "560000", "TIMER_DELAY_SEC": "30"}
    subscribed = b'"subscriptionDataSet":[{"topic":"%b"},{"topic":"%%RETRY%%%b"}]'
    heartbeat = b'{"consumerDataSet":[{"groupName":"%b",' + subscribed + b"}]}"
    recorded, renamed = (
        heartbeat % names for names in ((b"g", b"orders", b"g"), (b"h", b"copy", b"h"))
    )
    assert rewriter.request(34, {}, recorded, 0, 0).body == renamed
    pull = {"consumerGroup": "g", "topic": "%RETRY%g", "queueId": "0"}
    changed = rewriter.request(int(RequestCode.PULL_MESSAGE), pull, b"", 0, 0)
    assert changed.ext == {**pull, "consumerGroup": "h", "topic": "%RETRY%h"}


@pytest.mark.parametrize(
    ("speed", "held"), [(0.0, "0"), (0.5, "15000"), (1.0, "15000"), (10.0, "1500"), (1e9, "0")]
)
@pytest.mark.parametrize(
    ("code", "name"),
    [
        (RequestCode.PULL_MESSAGE, "suspendTimeoutMillis"),
        (RequestCode.LITE_PULL_MESSAGE, "suspendTimeoutMillis"),
        (RequestCode.POP_MESSAGE, "pollTime"),
        (RequestCode.NOTIFICATION, "pollTime"),
    ],
)
def test_a_fast_replay_lets_polls_be_held_shorter(
    code: RequestCode, name: str, speed: float, held: str
) -> None:
    """A replay at ten times the speed had ten pulls held for each of a consumer, and waited for them."""
    ext = {"topic": "orders", "queueId": "0", name: "15000"}
    rewriter = Rewriter(Rules("run", speed))
    assert rewriter.request(code, ext, b"", 0, 0, is_in_vain=True).ext[name] == held
    for odd in ("", "soon"):  # invalid, and sent as recorded
        assert rewriter.request(code, {name: odd}, b"", 0, 0, is_in_vain=True).ext[name] == odd


def test_a_poll_that_got_messages_may_wait_for_them_in_a_fast_replay_too(
    server: Server, tmp_path: Path
) -> None:
    """With nothing to wait for the target would say that there are none, and later pulls had no offset of this run."""
    pull = {"topic": "orders", "queueId": "0", "queueOffset": "0", "suspendTimeoutMillis": "9000"}
    poll = {"topic": "orders", "queueId": "0", "pollTime": "9000"}
    rows = [
        asked(0, RequestCode.PULL_MESSAGE, pull, answer_code=0),
        asked(1, RequestCode.PULL_MESSAGE, pull, answer_code=19),
        asked(2, RequestCode.PULL_MESSAGE, pull),
        *(
            asked(at, RequestCode.NOTIFICATION, poll, answer_code=0, answer_ext=[("hasMsg", told)])
            for at, told in enumerate(("true", "false"), start=3)
        ),
    ]
    play(server.address, tmp_path, rows, rules=Rules("run", 0.0), speed=0.0)
    asked_for = [command.ext() for command in server.asked]
    holds = [ext.get("suspendTimeoutMillis") or ext["pollTime"] for ext in asked_for]
    assert holds == ["9000", "0", "0", "9000", "0"]


@pytest.mark.parametrize("order", [1, -1])
def test_a_name_in_a_body_is_replaced_once(order: int) -> None:
    renamed = [("orders", "orders-old"), ("orders-new", "orders")][::order]
    rewriter = Rewriter(Rules("run", topics=dict(renamed), groups={"orders": "g"}))
    body = b'{"topic":"%b","consumerGroup":"orders","clientId":"orders"}'
    for old, new in renamed:
        found = rewriter.request(
            int(RequestCode.QUERY_ASSIGNMENT), {}, body % old.encode(), recorded_ms=0, now_ms=0
        )
        assert found.body == (body % new.encode()).replace(b'Group":"orders"', b'Group":"g"')


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, b'{"topicConfigList":[{"topicName":"%b"}]}'),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"%b","retryMaxTimes":1}'),
    ],
)
def test_what_is_created_has_the_new_name(code: RequestCode, body: bytes) -> None:
    rewriter = Rewriter(Rules("run", topics={"old": "new"}, groups={"old": "new"}))
    assert rewriter.request(int(code), {}, body % b"old", 0, 0).body == body % b"new"


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5_000])
@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
def test_a_number_that_no_server_reads_stays_as_it_was_recorded(name: str, number: str) -> None:
    properties = join({name: number})
    for rules in (Rules("run"), Rules("run", speed=10.0, delays="scale")):
        sent = Rewriter(rules).request(SEND, {"i": properties}, b"", 1_000, 500_000)
        assert sent.ext["i"] == properties
    pull = {"topic": "orders", "queueId": "0", "queueOffset": number}
    asked = Rewriter(Rules("run")).request(int(RequestCode.PULL_MESSAGE), pull, b"", 0, 0)
    assert asked.ext == pull


def test_offsets_follow_the_answers_of_this_run() -> None:
    rewriter = Rewriter(Rules("run"))
    place = {"topic": "orders", "queueId": "0"}
    pull = int(RequestCode.PULL_MESSAGE)
    first = rewriter.request(pull, {**place, "queueOffset": "0"}, b"", 0, 0)
    assert (first.ext["queueOffset"], first.unmapped) == ("0", ())
    rewriter.answer(pull, place, ({"nextBeginOffset": "107"}, b""), ({"nextBeginOffset": "7"}, b""))
    assert (
        rewriter.request(pull, {**place, "queueOffset": "107"}, b"", 0, 0).ext["queueOffset"] == "7"
    )
    none = {**place, "queueOffset": "0", "commitOffset": "-1"}
    assert rewriter.request(pull, none, b"", 0, 0) == (none, b"", ())
    unknown = rewriter.request(pull, {**place, "queueOffset": "200"}, b"", 0, 0)
    assert unknown.unmapped == ("queueOffset",)
    for at, code in enumerate(
        (
            *(RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MIN_OFFSET),
            *(RequestCode.GET_MAX_OFFSET, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP),
        )
    ):
        rewriter.answer(int(code), place, ({"offset": f"30{at}"}, b""), ({"offset": f"{at}"}, b""))
        found = rewriter.request(pull, {**place, "queueOffset": f"30{at}"}, b"", 0, 0)
        assert (found.ext["queueOffset"], found.unmapped) == (str(at), ())


@pytest.mark.parametrize("is_sent", [True, False], ids=["sent by the replay", "there before"])
@pytest.mark.parametrize("is_later", [True, False], ids=["later", "sooner"])
def test_a_pulled_message_is_known_though_another_pull_got_it(
    *, is_sent: bool, is_later: bool
) -> None:
    def pulled(id_: str, place: int) -> tuple[dict[str, str], bytes]:
        return {}, log_bytes([("orders", b"-", f"UNIQ_KEY\x01{id_}\x02")], base=place)

    rewriter = Rewriter(Rules("run"))
    pull = int(RequestCode.PULL_MESSAGE)
    ext = {"topic": "orders", "queueId": "0"}
    recorded, now = pulled("A" * 32, 5_000), pulled(new_id("A" * 32, "run"), 70)
    if not is_sent:
        now = pulled("A" * 32, 70)
    nothing: tuple[dict[str, str], bytes] = ({}, b"")
    answers = [(recorded, nothing), (nothing, now)]
    for answer in answers if is_later else reversed(answers):
        rewriter.answer(pull, ext, *answer)
    rewriter.answer(pull, ext, pulled("", 6_000), pulled("", 80))
    back = int(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert rewriter.request(back, {"offset": "5000"}, b"", 0, 0) == ({"offset": "70"}, b"", ())
    assert rewriter.request(back, {"offset": "6000"}, b"", 0, 0).unmapped == ("offset",)


@pytest.mark.parametrize("is_shared", [True, False], ids=["elsewhere", "on its connection"])
def test_a_message_is_looked_up_by_the_place_that_its_send_gave(*, is_shared: bool) -> None:
    """A batch of the Go client has no other ids."""
    learned = Learned(Rules("run"))
    sender = Rewriter(Rules("run"), learned, "one")
    rewriter = Rewriter(Rules("run"), learned, "one") if is_shared else sender
    old, new, others = (
        {"msgId": ",".join(f"7F00000100002A9F{place + at:016X}" for at in range(2))}
        for place in (5_000, 70, 90)
    )
    sender.answer(SEND, {"b": "orders"}, (old, b""), (new, b""))
    # Of another broker, where another message has that place.
    Rewriter(Rules("run"), learned, "other").answer(
        SEND, {"b": "orders"}, (old, b""), (others, b"")
    )
    view = int(RequestCode.VIEW_MESSAGE_BY_ID)
    for at in range(2):
        asked = rewriter.request(view, {"offset": f"{5000 + at}"}, b"", 0, 0)
        assert asked == ({"offset": f"{70 + at}"}, b"", ())
    assert rewriter.request(view, {"offset": "5002"}, b"", 0, 0).unmapped == ("offset",)


def told(rewriter: Rewriter, key: str, **properties: str) -> None:
    """Have a message sent whose recorded answer and the run's have ids and a handle made from its key."""
    ext = {"b": "orders", "i": join({"UNIQ_KEY": key, **properties})}
    rewriter.request(SEND, ext, b"", 0, 0)
    old, new = (
        {"msgId": f"{of}-id-{key}", "transactionId": f"{of}-{key}", "recallHandle": f"{of}-{key}"}
        for of in ("old", "new")
    )
    rewriter.answer(SEND, ext, (old, b""), (new, b""))


def test_a_long_replay_needs_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What answers gave long ago is forgotten, and then counted as unmapped."""
    monkeypatch.setattr(rewriting, "_MOST_KNOWN", 100)
    rewriter = Rewriter(Rules("run"))
    tracemalloc.start()
    with Journal(tmp_path, "part") as journal:
        for number in range(3_000):
            if number == 1_000:
                before, _ = tracemalloc.get_traced_memory()
            journal.note("a", number)
            told(rewriter, f"{number:032X}", TIMER_DELAY_SEC="30")
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / 2_000 < 20, "bytes a send"
    first, last = (
        rewriter.request(RECALL, {"recallHandle": f"old-{number:032X}"}, b"", 0, 0)
        for number in (0, 2_999)
    )
    assert (first.unmapped, last.unmapped) == (("recallHandle",), ())
    assert last.ext["recallHandle"] == f"new-{2_999:032X}"


def test_a_long_replay_that_goes_on_needs_little_memory(tmp_path: Path) -> None:
    """Each task knows the requests that all tasks of earlier runs have sent."""
    count = 100_000
    (tmp_path / "part-0-1-1.sent").write_bytes(os.urandom(count * MARK_BYTES))
    tracemalloc.start()
    with Journal(tmp_path, "part-0"):
        after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after / count < 2 * MARK_BYTES


def test_a_transaction_is_ended_by_the_id_of_this_run() -> None:
    rewriter = Rewriter(Rules("run"))
    told(rewriter, "A", TRAN_MSG="true")
    told(rewriter, "B")
    ended, unknown = (
        rewriter.request(RequestCode.END_TRANSACTION, {"msgId": f"old-{key}"}, b"", 0, 0)
        for key in "AB"
    )
    assert (ended.ext["transactionId"], ended.unmapped) == ("new-A", ())
    assert unknown.unmapped == ("transactionId",), "it was no half message"


def test_what_an_answer_gave_is_known_to_other_connections(server: Server, tmp_path: Path) -> None:
    """A Proxy spreads its clients' requests over several, and who takes a message back need not be its sender."""
    ext = {"topic": "orders", "recallHandle": "old-A"}
    rows = [sent(0, "A", connection="a"), asked(1, RECALL, ext, connection="b")]
    half = sent(2, "B", connection="a")
    half["ext"][-1] = ("i", "UNIQ_KEY\x01B\x02TRAN_MSG\x01true\x02")
    rows += [half, asked(3, int(RequestCode.END_TRANSACTION), {"msgId": "B"}, connection="b")]
    results = play(server.address, tmp_path, rows)
    assert [row["unmapped"] for row in results] == [None] * 4
    fields = {command.code: command.ext() for command in server.asked}
    assert fields[RECALL]["recallHandle"] == f"new-{new_id('A', 'run')}"
    assert fields[RequestCode.END_TRANSACTION]["transactionId"] == new_id("B", "run")


def test_what_a_connection_learned_is_kept_while_it_is_used(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "_TEACHING_S", LIMIT_S)
    monkeypatch.setattr(replaying, "_MOST_CONNECTIONS", 2)
    monkeypatch.setattr(rewriting, "_MOST_KNOWN", 1)  # so that they share only what came last

    def recall(position: int, connection: str, key: str) -> dict[str, Any]:
        ext = {"topic": "orders", "recallHandle": f"old-{key}"}
        return asked(position, RECALL, ext, connection=connection)

    # A recall waits for the answer that has its handle, so the answers come in the order of the sends.
    rows = [sent(0, "A", connection="a"), recall(1, "a", "A")]
    rows += [sent(2, "B", connection="b"), recall(3, "b", "B"), recall(4, "a", "A")]
    rows += [sent(5, "C", connection="c"), recall(6, "c", "C")]
    rows += [recall(7, "a", "A"), recall(8, "b", "B")]
    results = {row["position"]: row["unmapped"] for row in play(server.address, tmp_path, rows)}
    assert results == {**dict.fromkeys(range(8)), 8: "recallHandle"}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (RequestCode.PULL_MESSAGE, "queueOffset"),
        (RequestCode.UPDATE_CONSUMER_OFFSET, "commitOffset"),
        (RequestCode.CONSUMER_SEND_MSG_BACK, "offset"),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, "timestamp"),
    ],
)
def test_what_should_be_a_number_and_is_none_is_sent_as_it_was(
    code: RequestCode, name: str
) -> None:
    rewriter = Rewriter(Rules("run"))
    for text in ("", "x"):
        ext = {"topic": "t", "queueId": "0", name: text}
        assert rewriter.request(code, ext, b"", 1_000, 2_000).ext == ext
    told = ({"nextBeginOffset": "5"}, b""), ({"nextBeginOffset": "?"}, b"")
    rewriter.answer(RequestCode.PULL_MESSAGE, {"topic": "t", "queueId": "0"}, *told)


@pytest.mark.parametrize(
    ("code", "ext", "changed"),
    [
        (
            RequestCode.QUERY_MESSAGE,
            {"key": "A" * 32, "_UNIQUE_KEY_QUERY": "true"},
            {"key": new_id("A" * 32, "run")},
        ),
        (
            RequestCode.QUERY_MESSAGE,
            {"key": "A" * 32, "indexType": "U", "beginTimestamp": "0"},
            {"key": new_id("A" * 32, "run")},
        ),
        (
            RequestCode.QUERY_MESSAGE,
            {"key": "order-1", "indexType": "K", "beginTimestamp": "1000", "endTimestamp": "4000"},
            {"beginTimestamp": "500000", "endTimestamp": "503000"},
        ),
        (
            RequestCode.QUERY_MESSAGE,
            {"key": "order-1", "beginTimestamp": "0", "endTimestamp": str((1 << 63) - 1)},
            {},
        ),
        (RequestCode.LOOK_UP_TIMERS, {"id": "A" * 32}, {"id": new_id("A" * 32, "run")}),
        (
            RequestCode.LOOK_UP_TIMERS,
            {"topic": "t", "begin": "2000", "end": "61000"},
            {"begin": "501000", "end": "560000"},
        ),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": "900"}, {"timestamp": "499900"}),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"timestamp": "-1"}, {}),
        (
            RequestCode.BULK_CHANGE_TIMERS,
            {"begin": "0", "end": str((1 << 63) - 1), "due": "2000"},
            {"due": "501000"},
        ),
    ],
)
def test_look_ups_ask_for_ids_and_times_of_this_run(
    code: RequestCode, ext: dict[str, str], changed: dict[str, str]
) -> None:
    asked = Rewriter(Rules("run")).request(code, ext, b"", recorded_ms=1_000, now_ms=500_000)
    assert asked.ext == ext | changed
    assert asked.unmapped == ()


def test_the_place_where_a_look_up_goes_on_is_told() -> None:
    asked = Rewriter(Rules("run")).request(RequestCode.LOOK_UP_TIMERS, {"cursor": "x"}, b"", 1, 2)
    assert asked.unmapped == ("cursor",)


def play_many(port: str, folder: str, count: str) -> None:
    """Replay in a process that the test kills in the middle."""
    rows = [sent(at, f"{at:032X}") for at in range(int(count))]
    play(("127.0.0.1", int(port)), Path(folder), rows, speed=0.0, outstanding=50)


@pytest.mark.live
def test_after_a_kill_nothing_is_sent_twice(server: Server, tmp_path: Path) -> None:
    count = 1000
    # However late the kill comes, the process cannot have sent everything, because it waits for responses.
    server.silent_after = 900
    program = f"import sys; from {__name__} import play_many; play_many(*sys.argv[1:])"
    command = [sys.executable, "-c", program, str(server.address[1]), str(tmp_path), str(count)]
    with killed(subprocess.Popen(command)) as process:
        while len(server.asked) < 100:
            time.sleep(0.001)
            assert process.poll() is None
    server.wait_until_ended()
    before = len(server.asked)
    assert before < count
    server.is_silent, server.silent_after = False, None
    rows = [sent(at, f"{at:032X}") for at in range(count)]
    results = play(server.address, tmp_path, rows, speed=0.0)
    outcomes = Counter(row["outcome"] for row in results)
    assert set(outcomes) == {"answered", "sent before"}
    ids = Counter(parse(command.ext()["i"])["UNIQ_KEY"] for command in server.asked)
    assert set(ids.values()) == {1}
    assert len(ids) == before + outcomes["answered"]
    assert count - len(ids) <= 1, "what was noted and not sent is lost to the replay"


def test_a_journal_that_cannot_be_written_is_told_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Journal(tmp_path, "part-0") as journal:
        monkeypatch.setattr(os, "write", refuse)
        with pytest.raises(JobError, match=f"cannot write to {tmp_path}: No space left on device"):
            journal.note("a.capture", 0)


def test_a_task_that_runs_twice_sends_nothing_twice(tmp_path: Path) -> None:
    """As Spark may run it after the loss of an executor that had a part of its input."""
    begun, known = threading.Event(), []

    def run_again() -> None:
        begun.set()
        with Journal(tmp_path, "part-0") as journal:
            known.append([journal.has("a.capture", at) for at in range(3)])

    again = threading.Thread(target=run_again)
    with Journal(tmp_path, "part-0") as journal:
        journal.note("a.capture", 0)
        again.start()
        assert begun.wait(LIMIT_S)
        again.join(0.2)
        journal.note("a.capture", 1)
    again.join(LIMIT_S)
    assert known == [[True, True, False]]


def test_a_watcher_says_from_when_to_when_it_saw_a_queue(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server makes it skip offsets, the watcher also says until when it was at each of them."""
    pulled_ns: list[int] = []
    is_enough = threading.Event()

    def answer(command: Command) -> bytes:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return route(command, 1)
        if command.code == RequestCode.GET_MAX_OFFSET:
            return encode_response(command.opaque, 0, ext={"offset": "7"})
        pulled_ns.append(time.time_ns())
        if len(pulled_ns) == 4:
            is_enough.set()
        ext = {"nextBeginOffset": "9"} if len(pulled_ns) == 2 else {}
        return encode_response(command.opaque, ResponseCode.PULL_NOT_FOUND, ext=ext)

    monkeypatch.setattr(server, "answer", answer)
    with Watcher(Target(server.address, server.address), ["orders"], tmp_path):
        assert is_enough.wait(LIMIT_S)
    rows = [
        row for file in (tmp_path / WATCHED).iterdir() for row in pq.read_table(file).to_pylist()
    ]
    first, last = sorted(rows, key=lambda row: row["time_ns"])
    assert (first["event"], first["queue_offset"]) == ("drained", 7)
    assert first["asked_ns"] <= pulled_ns[0] <= first["time_ns"] <= pulled_ns[1]
    assert (last["event"], last["queue_offset"]) == ("drained", 9)
    assert last["time_ns"] > pulled_ns[2]


def test_a_watcher_ends_though_an_answer_comes_at_the_same_moment(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()

    def answer(command: Command) -> bytes:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return route(command, 1)
        code = ResponseCode.PULL_NOT_FOUND if command.code == RequestCode.PULL_MESSAGE else 0
        return encode_response(command.opaque, code)

    def received(frame: tuple[int, bytes, bytes]) -> Command:
        command = decode_command(frame)
        if command.code == ResponseCode.PULL_NOT_FOUND and not ends.is_set():
            ends.set()
            # Meanwhile the watcher is told to end.
            time.sleep(0.2)
        return command

    monkeypatch.setattr(server, "answer", answer)
    monkeypatch.setattr(watching, "decode_command", received)

    def watch() -> None:
        with Watcher(Target(server.address, server.address), ["orders"], tmp_path):
            ends.wait(LIMIT_S)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    watcher.join(LIMIT_S)
    assert not watcher.is_alive()


def test_a_watcher_of_many_queues_needs_few_connections(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    pulled: set[tuple[str, str]] = set()
    is_enough = threading.Event()
    connect = asyncio.BaseEventLoop.create_connection

    async def counted(*arguments: Any, **more: Any) -> Any:
        opened.append(arguments)
        return await connect(*arguments, **more)

    def answer(command: Command) -> bytes:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return route(command, 8)
        if command.code == RequestCode.GET_MAX_OFFSET:
            return encode_response(command.opaque, 0, ext={"offset": "7"})
        ext = command.ext()
        assert ext["queueOffset"] == "7"
        pulled.add((ext["topic"], ext["queueId"]))
        if len(pulled) == 320:
            is_enough.set()
        return b""  # as while there is no message

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", counted)
    monkeypatch.setattr(server, "answer", answer)
    topics = [f"orders-{number}" for number in range(40)]
    with Watcher(Target(server.address, server.address), topics, tmp_path):
        assert is_enough.wait(LIMIT_S)
    assert len(opened) == 2, "one to the name server, one to the broker"


def test_a_watcher_asks_again_where_one_answer_alone_does_not_come(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled: list[str] = []
    is_enough = threading.Event()

    def answer(command: Command) -> bytes:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return route(command, 2)
        queue = command.ext()["queueId"]
        if command.code == RequestCode.PULL_MESSAGE:
            pulled.append(queue)
        if pulled.count("0") == 2:
            is_enough.set()
        if pulled.count("0") == 1 and queue == "0":
            return b""
        return encode_response(command.opaque, ResponseCode.PULL_NOT_FOUND)

    monkeypatch.setattr("spark_jobs.watching._ANSWER_LIMIT_S", 1.0)
    monkeypatch.setattr(server, "answer", answer)
    server.dawdles_s = 0.01
    with Watcher(Target(server.address, server.address), ["orders"], tmp_path):
        assert is_enough.wait(10.0)


@pytest.mark.parametrize("is_full_to_the_end", [False, True])
def test_what_was_watched_is_whole_though_the_disk_was_full(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full_to_the_end: bool
) -> None:
    write = pq.write_table
    attempts = threading.Semaphore(0)
    is_full = True

    def write_half(table: pa.Table, file: Path) -> None:
        attempts.release()
        if is_full:
            file.write_bytes(b"PAR1")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(table, file)

    def answer(command: Command) -> bytes:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return route(command, 1)
        return encode_response(command.opaque, ResponseCode.PULL_NOT_FOUND)

    monkeypatch.setattr("spark_jobs.watching._ROWS_AT_ONCE", 1)
    monkeypatch.setattr("spark_jobs.watching.pq.write_table", write_half)
    monkeypatch.setattr(server, "answer", answer)
    told = "cannot write what was watched: .*No space left on device"
    with (
        pytest.raises(JobError, match=told) if is_full_to_the_end else nullcontext(),
        Watcher(Target(server.address, server.address), ["orders"], tmp_path),
    ):
        assert attempts.acquire(timeout=LIMIT_S)
        is_full = is_full_to_the_end
    files = list((tmp_path / WATCHED).glob("*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert bool(rows) is not is_full_to_the_end
    assert {row["event"] for row in rows} <= {"drained"}


def test_a_target_that_refuses_is_told_and_teaches_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(command: Command) -> bytes:
        return encode_response(command.opaque, ResponseCode.SYSTEM_BUSY, remark="too many requests")

    monkeypatch.setattr(server, "answer", refuse)
    rows = [sent(0, "A" * 32)]
    rows.append(asked(100, RECALL, {"topic": "orders", "recallHandle": "old-" + "A" * 32}))
    results = play(server.address, tmp_path, rows)
    assert [row["outcome"] for row in results] == ["answered"] * 2
    assert [row["answer_code"] for row in results] == [ResponseCode.SYSTEM_BUSY] * 2
    assert results[0]["answer_remark"] == "too many requests"
    assert results[1]["unmapped"] == "recallHandle"
