"""Every wrong fate of a message is a fault in the ledger, and so is a load that ended too early."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.wire.messages import Message, decode_message, encode_message
from tests.live import ledger
from tests.live.ledger import Ledger
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


def test_a_sender_that_ended_before_its_time_is_no_clean_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, 1, "sync", has_own_disk=False)
    monkeypatch.setattr(site, "_send", lambda seed, step: None)
    with pytest.raises(AssertionError, match="a sender ended before its time"), site.load(1):
        time.sleep(0.1)


def test_nobody_sends_any_more_after_a_harm_that_failed(tmp_path: Path) -> None:
    site = Site(tmp_path, 1, "sync", has_own_disk=False)
    before = threading.active_count()
    during = []
    with suppress(ZeroDivisionError), site.load(2):
        during.append(threading.active_count())
        raise ZeroDivisionError
    assert [before, during] == [threading.active_count(), [before + 2]]
