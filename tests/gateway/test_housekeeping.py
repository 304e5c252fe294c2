"""Periodic work: the disk's free space, steps of the clock, and continuing after an error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EIO
from typing import Any

import pytest
from twisted.internet.defer import maybeDeferred
from twisted.logger import LogEvent, globalLogPublisher

from gateway import housekeeping
from gateway.handlers import pop_acks
from gateway.wire.codes import RequestCode, ResponseCode
from storage import Growth, StorageFullError, Store, logged
from storage.environment import Environment
from storage.logged import LoggedTransaction
from storage.progress import Progress
from storage.redo_log import GAP
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import batches_cannot_begin, commits_fail, damaged_row
from tests.gateway.memory import MemoryClient, MemoryGateway, bodies
from tests.gateway.metrics import Scrape
from tests.gateway.popping import pop
from tests.storage.faults import DISK_FULL, disk_takes_no_checkpoint
from tests.storage.folder import damage_log


@contextmanager
def log_lines() -> Iterator[list[str]]:
    """Yield the lines that are logged meanwhile."""
    lines: list[str] = []

    def observe(event: LogEvent) -> None:
        text = event.get("log_format")
        if text is not None:
            lines.append(str(text).format(**event))

    observer: Any = observe
    globalLogPublisher.addObserver(observer)
    try:
        yield lines
    finally:
        globalLogPublisher.removeObserver(observer)


def test_that_the_redo_log_cannot_be_written_is_told_once_and_that_it_can_again(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise OSError(EIO, os.strerror(EIO))

    with log_lines() as lines:
        with monkeypatch.context() as patch:
            patch.setattr(gateway.store.environment.log, "append", fail)
            assert client.send_message("orders", "one").code == ResponseCode.SUCCESS
            gateway.advance(1_000)
            assert client.send_message("orders", "two").code == ResponseCode.SUCCESS
            gateway.advance(3_000)
        gateway.advance(3_000)
        told = [line for line in lines if "redo log" in line]
        assert told == [
            (
                "the redo log could not be written: Input/output error. Until it can, each batch is stored by a "
                "checkpoint, which takes longer"
            )
        ]
        client.send_message("orders", "three")
        gateway.advance(1_000)
    assert lines[-1] == "the redo log can be written again"


class TestDisk:
    @pytest.fixture
    def free(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
        """The free bytes of the disk; a test can change them."""
        free = {"bytes": 1 << 40}
        monkeypatch.setattr(Environment, "disk_free", lambda _: free["bytes"])
        return free

    def test_nearly_full_sends_are_refused_until_there_is_room(
        self, gateway: MemoryGateway, client: MemoryClient, free: dict[str, int]
    ) -> None:
        client.send_message("orders", "before")
        free["bytes"] = (512 << 20) - 1
        gateway.advance(1_000)
        for answer in (
            client.send_message(),
            client.send_message(TIMER_DELAY_MS="50"),
            client.send_message("new"),
            client.send_batch([("x", {})]),
        ):
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert answer.remark is not None
            assert "disk_reserve = 512MiB is free" in answer.remark
        assert gateway.service.broker.topics.get("new") is None
        free["bytes"] = 512 << 20
        gateway.advance(1_000)
        assert client.send_message("orders", "after").code == ResponseCode.SUCCESS
        assert bodies(client.pull()) == ["before", "after"]

    def test_everything_else_goes_on(
        self, gateway: MemoryGateway, client: MemoryClient, free: dict[str, int]
    ) -> None:
        client.send_message("orders", "due", TIMER_DELAY_MS="5000")
        handle = client.send_message("orders", "x", TIMER_DELAY_MS="5000").ext()["recallHandle"]
        free["bytes"] = 0
        gateway.advance(1_000)
        assert client.recall("orders", handle).code == ResponseCode.SUCCESS
        assert client.heartbeat("c1").code == ResponseCode.SUCCESS
        waiting = client.park()
        gateway.advance(4_000)
        assert client.answer(waiting) is not None
        [message] = client.pull()
        assert message.body == b"due"
        ext = {"offset": str(message.physical_offset), "group": "workers", "delayLevel": "1"}
        assert client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext).code == ResponseCode.SUCCESS
        gateway.advance(1_000)
        assert len(client.pull("%RETRY%workers")) == 1

    def test_each_change_is_logged_once(self, gateway: MemoryGateway, free: dict[str, int]) -> None:
        with log_lines() as lines:
            free["bytes"] = 0
            gateway.advance(5_000)
            free["bytes"] = 1 << 40
            gateway.advance(5_000)
        assert [line for line in lines if "sends are" in line] == [
            "sends are refused: the disk has less than disk_reserve = 512MiB free",
            "sends are accepted again: the disk has room",
        ]

    def test_reserve_by_setting(self, make_gateway: MakeGateway, free: dict[str, int]) -> None:
        gateway = make_gateway(disk_reserve=0)
        free["bytes"] = 0
        gateway.advance(1_000)
        assert gateway.connect().send_message().code == ResponseCode.SUCCESS


class TestFolder:
    """A data folder that is moved or deleted under a running gateway."""

    REFUSED = "service not available now: the data folder was moved or deleted"

    def test_moved_away_nothing_is_stored_until_it_is_back(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message("orders", "before")
        client.send_message("orders", "due meanwhile", TIMER_DELAY_MS="2000")
        away = gateway.data.rename(gateway.data.with_name("away"))
        with log_lines() as lines:
            gateway.advance(3_000)
            assert gateway.service.not_ready()[-1] == "the data folder was moved or deleted"
            answer = client.send_message("orders", "meanwhile")
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, self.REFUSED)
            assert bodies(client.pull()) == ["before"]
            assert Scrape(gateway)["tidegate_disk_free_bytes"] > 0
            assert client.ask(RequestCode.GET_BROKER_RUNTIME_INFO).code == ResponseCode.SUCCESS
            away.rename(gateway.data)
            gateway.advance(2_000)
        assert client.send_message("orders", "after").code == ResponseCode.SUCCESS
        gateway.restart()
        assert bodies(gateway.connect().pull()) == ["before", "due meanwhile", "after"]
        assert gateway.service.not_ready() == []
        told, refused, back = (line for line in lines if "data folder" in line)
        assert told.startswith("nothing is stored any more: the data folder")
        assert refused == f"a batch could not be stored: {self.REFUSED.partition(': ')[2]}"
        assert back == "the gateway goes on: the data folder is back"


class TestClockSteps:
    @pytest.mark.parametrize(
        ("step_ms", "line"),
        [
            (
                -5_000,
                "the wall clock was set back by 5000 ms: timed messages wait for it",
            ),
            (
                3_600_000,
                "the wall clock was set forward by 3600000 ms: what became due fires now",
            ),
        ],
    )
    def test_are_logged_once(self, gateway: MemoryGateway, step_ms: int, line: str) -> None:
        gateway.advance(1_000)
        with log_lines() as lines:
            gateway.set_clock(step_ms)
            gateway.advance(5_000)
        assert [text for text in lines if "wall clock" in text] == [line]

    @pytest.mark.parametrize(("step_ms", "told"), [(-5_000, True), (-900, False), (5_000, False)])
    def test_one_back_before_the_start_is_logged_as_well(
        self, gateway: MemoryGateway, step_ms: int, told: bool
    ) -> None:
        gateway.connect().send_message()
        gateway.stop()
        gateway.set_clock(step_ms)
        with log_lines() as lines:
            gateway.start()
        line = (
            "the wall clock is 5000 ms behind the time of the last stored message: if it is wrong now, "
            "set it, as timed messages wait for it"
        )
        assert [text for text in lines if "wall clock" in text] == ([line] if told else [])

    def test_small_corrections_are_not(self, gateway: MemoryGateway) -> None:
        with log_lines() as lines:
            for _ in range(10):
                gateway.set_clock(900)
                gateway.advance(1_000)
        assert [text for text in lines if "wall clock" in text] == []


def test_goes_on_after_an_error(
    gateway: MemoryGateway,
    client: MemoryClient,
    failures: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: Environment) -> int:
        raise OSError("the disk cannot be asked")

    with log_lines() as lines, monkeypatch.context() as broken:
        broken.setattr(Environment, "disk_free", fail)
        gateway.advance(3_000)
    assert "housekeeping failed" in lines
    assert "the disk cannot be asked" in failures[0]
    failures.clear()
    client.send_message()
    client.pull(group="g")
    ext = {"consumerGroup": "g", "topic": "orders", "queueId": "0", "commitOffset": "1"}
    client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
    assert gateway.store.progress.has_changes
    monkeypatch.setattr(Environment, "disk_free", lambda _: 0)
    gateway.advance(1_000)
    assert client.send_message().code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert not gateway.store.progress.has_changes


def test_what_has_no_room_is_a_line(make_gateway: MakeGateway) -> None:
    """It was once a traceback each time."""
    gateway = make_gateway(retention_hours=1)
    gateway.connect().send_message()
    gateway.advance(3_590_000)
    client = gateway.connect()
    client.heartbeat("P1", group="", producers=["producers"])
    client.send_message(TRAN_MSG="true", PGROUP="producers", fields={"sys_flag": 4})
    with log_lines() as lines, batches_cannot_begin():
        gateway.advance(20_000)
    assert "housekeeping failed: no room for the batch" in lines
    assert "the clean-up of old messages failed: no room for the batch" in lines
    gateway.advance(10_000)
    assert client.pull() == []


def test_much_progress_is_stored_in_several_batches_within_a_second(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = count_commits(monkeypatch)
    progress = note_places(gateway, 10)
    gateway.advance(1_500)
    assert (len(commits), progress.has_changes) == (4, False)


def test_the_batches_of_progress_do_not_follow_one_that_is_refused(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = count_commits(monkeypatch)
    progress = note_places(gateway, 90)
    with commits_fail(gateway, DISK_FULL):
        gateway.advance(3_500)
    assert len(commits) == 3
    gateway.advance(3_000)
    assert (len(commits), progress.has_changes) == (33, False)


def note_places(gateway: MemoryGateway, count: int) -> Progress:
    """Note a group's progress in so many queues."""
    progress = gateway.store.progress
    for queue in range(count):
        progress.note(b"g", b"orders", queue, 5)
    return progress


def count_commits(monkeypatch: pytest.MonkeyPatch) -> list[Store]:
    """Record each commit tried from now on, and limit the progress in one batch to three queues."""
    monkeypatch.setattr("storage.progress.PLACES_AT_ONCE", 3)
    commits: list[Store] = []
    commit = Store.commit

    def counted(store: Store) -> list[Growth]:
        commits.append(store)
        return commit(store)

    monkeypatch.setattr(Store, "commit", counted)
    return commits


def test_what_has_no_room_in_a_later_step_is_a_line_too(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_acks, "MAX_REVIVED", 1)
    for body in (b"first", b"second"):
        client.send_message(body=body)
    assert len(pop(gateway, client)) == 2
    every_ms, pause_ms = (
        int(seconds * 1000) for seconds in (housekeeping.REVIVE_SECONDS, housekeeping.REVIVE_PAUSE)
    )
    reserve = LoggedTransaction.reserve

    def fail_then(txn: LoggedTransaction, size: int) -> None:
        if gateway.now_ms % every_ms == pause_ms:
            raise StorageFullError("no room for the batch")
        reserve(txn, size)

    with log_lines() as lines, monkeypatch.context() as patch:
        patch.setattr(LoggedTransaction, "reserve", fail_then)
        gateway.advance(61_500)
    assert "housekeeping failed: no room for the batch" in lines
    gateway.advance(2_000)
    assert len(pop(gateway, gateway.connect())) == 2


def test_damaged_messages_are_told_of_once_they_are_met(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    for body in (b"first", b"second", b"third"):
        client.send_message(body=body)
    with damaged_row(gateway, "messages", (2).to_bytes(8), lambda stored: stored[:-1]):
        with log_lines() as lines:
            gateway.advance(2_000)
            assert bodies(gateway.connect().pull()) == ["first", "third"]
            gateway.connect().pull()
            gateway.advance(5_000)
        (line,) = [line for line in lines if "damaged" in line]
        assert line.startswith("damaged messages and queues met since the start: 1. ")
        assert f"'tidegate fsck --data {gateway.data}'" in line
        assert Scrape(gateway)["tidegate_damaged_messages_total"] == 1


@pytest.mark.parametrize(
    "harm",
    [lambda stored: stored[:-5], lambda stored: stored.replace(b"xxxx", b"xxyx", 1)],
    ids=["end", "body"],
)
def test_of_one_that_is_damaged_and_not_packed_the_others_are_told(
    gateway: MemoryGateway, client: MemoryClient, harm: Callable[[bytes], bytes]
) -> None:
    # It has no checksum but that of its body.
    for body in ("x" * 6_000, "second"):
        client.send_message(body=body)
    with damaged_row(gateway, "messages", (1).to_bytes(8), harm):
        gateway.advance(2_000)
        assert bodies(gateway.connect().pull()) == ["second"]
        assert Scrape(gateway)["tidegate_damaged_messages_total"] == 1


def test_nothing_is_left_to_do_after_a_stop(gateway: MemoryGateway) -> None:
    gateway.advance(25_000)
    gateway.stop()
    assert [call for call in gateway.reactor.calls if call.active()] == []


def test_a_start_tells_of_a_log_with_a_gap(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged, "CHECKPOINT_SECONDS", 3600)
    client = gateway.connect()
    for name in ("first", "second", "third"):
        client.send_message(body=name, UNIQ_KEY=name)
    damage_log(gateway.data, b"second")
    with log_lines() as lines:
        gateway.crash()
    assert GAP in lines
    assert bodies(gateway.connect().pull()) == ["first"]
    with log_lines() as lines:
        gateway.crash()
    assert GAP not in lines


@pytest.mark.parametrize(
    ("flush", "seconds", "is_synced"),
    [("async", 0.0, True), ("async", 60.0, False), ("sync", 0.0, False)],
)
def test_without_sync_the_log_is_synced_where_no_checkpoint_comes_in_time(
    make_gateway: MakeGateway,
    flush: str,
    seconds: float,
    is_synced: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(housekeeping, "HOLD_SECONDS", seconds)
    # There is no real reactor here that could use a thread for it.
    monkeypatch.setattr(housekeeping, "deferToThread", maybeDeferred)
    gateway = make_gateway(flush=flush)
    syncs: list[float] = []
    log = gateway.store.environment.log
    sync = log.sync

    def counted() -> None:
        sync()
        syncs.append(log.held_at)

    monkeypatch.setattr(log, "sync", counted)
    gateway.connect().send_message()
    gateway.advance(100)
    assert bool(syncs) is is_synced
    syncs.clear()
    gateway.advance(100)
    assert not syncs, "the disk holds all"


def test_that_the_log_cannot_be_synced_is_a_line_without_a_traceback(
    make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "HOLD_SECONDS", 0.0)
    monkeypatch.setattr(housekeeping, "deferToThread", maybeDeferred)
    gateway = make_gateway(flush="async")

    def fail() -> None:
        raise OSError(EIO, os.strerror(EIO))

    with monkeypatch.context() as patch, log_lines() as lines:
        patch.setattr(gateway.store.environment.log, "sync", fail)
        gateway.connect().send_message()
        gateway.advance(100)
    assert "housekeeping failed: the redo log could not be synced: Input/output error" in lines


def test_a_checkpoint_comes_though_each_commit_wakes_somebody_who_changes_something(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged, "CHECKPOINT_SECONDS", 0)
    client.send_message()
    sizes: list[int] = []

    def grown(growth: Growth) -> None:
        sizes.append(gateway.store.environment.log.size)
        gateway.store.environment.durable.wait()
        if len(sizes) < 10:
            client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"next")

    monkeypatch.setattr(gateway.service.broker.parked, "grown", grown)
    client.send_message()
    gateway.settle()
    assert len(sizes) == 10
    assert 0 in sizes


def test_where_the_disk_takes_no_checkpoint_that_is_all_that_is_said(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged, "CHECKPOINT_SECONDS", 0)
    with disk_takes_no_checkpoint(gateway.data), log_lines() as lines:
        client.send_message()
        while gateway.store.environment.durable.is_busy:
            pass
        answer = client.send_message()
        assert "the disk did not take a checkpoint" in (answer.remark or "")
        gateway.advance(900)
    assert [line.partition(":")[0] for line in lines] == [
        "a batch could not be stored",
        "the gateway ends",
    ]
    gateway.restart()
