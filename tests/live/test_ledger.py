"""Every wrong fate of a message is a fault in the ledger, and so is a load that ended too early."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner
from twisted.logger import ILogObserver, Logger, textFileLogObserver

from gateway.client import ClientError
from gateway.wire.messages import Message, decode_message, encode_message
from tests.live import ledger
from tests.live.ledger import Ledger
from tests.torture.command import Verdict, main
from tests.torture.site import Site

DUE_MS = 1_000
HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))


def fired(message_id: str, store_ms: int = DUE_MS) -> Message:
    """Return a fired message as a pull returns it."""
    return decode_message(
        encode_message(
            topic=ledger.TOPIC.encode(),
            queue_id=0,
            flag=0,
            sys_flag=0,
            born_ms=1,
            born_host=HOST,
            store_ms=store_ms,
            store_host=HOST,
            reconsume_times=0,
            prepared_offset=0,
            physical_offset=0,
            queue_offset=0,
            body=b"",
            properties=f"UNIQ_KEY\x01{message_id}\x02TIMER_DELIVER_MS\x01{DUE_MS}\x02".encode(),
        )
    )


@pytest.mark.parametrize(
    ("found", "faults"),
    [
        ([fired("sent"), fired("moved", 2_000)], {}),
        ([fired("sent"), fired("moved", 2_000), fired("unsure"), fired("unanswered")], {}),
        ([fired("moved", 2_000)], {"lost": {"sent"}}),
        ([fired("sent"), fired("sent"), fired("moved", 2_000)], {"doubled": {"sent"}}),
        ([fired("sent", 999), fired("moved", 1_999)], {"early": {"sent", "moved"}}),
        (
            [fired("sent"), fired("moved", 2_000), fired("unanswered", 999)],
            {"early": {"unanswered"}},
        ),
        (
            [fired("sent"), fired("moved", 2_000), fired("aborted")],
            {"aborted, yet fired": {"aborted"}},
        ),
        ([fired("sent"), fired("moved", 2_000), fired("other")], {"never sent": {"other"}}),
    ],
)
def test_each_fault_is_noticed(found: list[Message], faults: dict[str, set[str]]) -> None:
    book = Ledger()
    book.tried = {"sent", "moved", "aborted", "unsure", "unanswered", "refused"}
    book.sent = {"sent": DUE_MS, "moved": 2_000, "aborted": DUE_MS, "unsure": DUE_MS}
    book.aborted, book.unanswered = {"aborted"}, {"unsure"}
    assert {kind: ids for kind, ids in book.faults(found).items() if ids} == faults


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A gateway that is not started."""
    return Site(tmp_path, 2, "sync", has_own_disk=False)


def test_a_sender_that_ended_before_its_time_is_no_clean_run(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "_send", lambda seed, step: None)
    with pytest.raises(AssertionError, match="a sender ended before its time"), site.load(1):
        time.sleep(0.1)


def verdict(fired: int = 1, *, undone: Sequence[str] = (), lost: Sequence[str] = ()) -> Verdict:
    """Return the verdict of a run with so many fired messages."""
    return Verdict(
        acknowledged=fired,
        fired=fired,
        aborted=0,
        moved=0,
        refused=0,
        faults={"lost": set(lost)},
        harms=Counter(["kill -9"]),
        undone=list(undone),
        own_memory=0,
    )


def test_a_run_that_shows_nothing_is_not_clean() -> None:
    assert verdict().is_clean
    assert not verdict(lost=["a"]).is_clean
    assert not verdict(fired=0).is_clean
    without = verdict(undone=["full disk"])
    assert not without.is_clean
    assert "NEVER DONE: full disk" in str(without)


def test_a_worker_that_nobody_killed_is_a_fault(site: Site) -> None:
    killed = "worker 1 ended and is started again in 0.5 s: process ended by signal 9."
    crashed = "worker 0 ended and is started again in 0.5 s: process ended with exit code 1."
    site.gateway.log.write_text(f"worker 0 listens\n{killed}\n")
    assert site.crashes() == set()
    site.gateway.log.write_text(f"worker 0 listens\n{killed}\n{crashed}\n")
    assert site.crashes() == {crashed}


def test_a_traceback_in_the_log_is_a_fault(site: Site) -> None:
    begin = "\tTraceback (most recent call last):\n\t    "
    of_libfaketime = "time.sleep(seconds)\n\tbuiltins.OSError: [Errno 22] Invalid argument\n\t\n"
    site.gateway.log.write_text(f"no room\nin main loop\n{begin}{of_libfaketime}all is well\n")
    assert site.tracebacks() == set()
    with site.gateway.log.open("a") as file:
        log = Logger("torture", observer=cast(ILogObserver, textFileLogObserver(file)))
        try:
            raise OSError(22, "Invalid argument")
        except OSError:
            log.failure("request 310 failed")
        log.error("no room")
    (told,) = site.tracebacks()
    line, *traceback = told.splitlines()
    assert line.endswith("request 310 failed")
    assert "OSError: [Errno 22] Invalid argument" in "".join(traceback)


@pytest.mark.parametrize("error", [AssertionError, ClientError, ProcessLookupError, TimeoutError])
def test_a_run_that_ends_early_says_why_in_a_line(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def torture(*_: object) -> Verdict:
        raise error("the gateway has ended")

    monkeypatch.setattr("tests.torture.command.torture", torture)
    done = CliRunner().invoke(main, ["--disk", "64"])
    assert isinstance(done.exception, SystemExit)
    assert done.exit_code == 1
    assert done.stderr == "torture: the gateway has ended\n\n"


@pytest.mark.parametrize("wrong", [("--disk", "0"), ("--pause", "-1"), ("--connections", "30000")])
def test_a_wrong_extent_is_refused_before_anything_is_started(wrong: tuple[str, str]) -> None:
    done = CliRunner().invoke(main, wrong)
    assert done.exit_code == 2
    assert wrong[0] in done.stderr


def test_nobody_sends_any_more_after_a_harm_that_failed(site: Site) -> None:
    before = threading.active_count()
    during = []
    with suppress(ZeroDivisionError), site.load(2):
        during.append(threading.active_count())
        raise ZeroDivisionError
    assert [before, during] == [threading.active_count(), [before + 2]]
