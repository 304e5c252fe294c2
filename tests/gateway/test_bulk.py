"""Bulk changes of pending messages: counted, aborted and rescheduled in steps."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.pending import bulk
from gateway.pending import messages as pending
from gateway.wire.codes import RequestCode, ResponseCode
from storage import Found
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway


def change(client: MemoryClient, action: str, **fields: Any) -> tuple[int, str | None]:
    """Make one step, and return how many messages it changed and the cursor of the next step."""
    ext = {"topic": "orders"} | {name: str(value) for name, value in fields.items()}
    answer = client.ask(RequestCode.BULK_CHANGE_TIMERS, {"action": action, **ext})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    body = json.loads(answer.body)
    return body["messages"], body["cursor"]


def change_all(
    client: MemoryClient, action: str, cursor: str | None = "", **fields: Any
) -> list[int]:
    """Make all steps, or those from a cursor on, and return how many messages each changed."""
    counts = []
    while cursor is not None:
        count, cursor = change(client, action, cursor=cursor, **fields)
        counts.append(count)
        assert len(counts) < 100
    return counts


def dues(client: MemoryClient) -> dict[str, int]:
    """Return when each pending message is due, in ms after the start."""
    found: list[dict[str, Any]] = client.look_up(limit=1_000)
    return {one["msgId"]: one["dueMs"] - START_MS for one in found}


@pytest.fixture
def filled(client: MemoryClient) -> MemoryClient:
    """Twelve messages, due a second apart, every third with a tag and every fourth with a key, and two others."""
    for number in range(12):
        properties = {"UNIQ_KEY": f"m{number:02}", "TIMER_DELAY_MS": str(1_000 * number + 1_000)}
        if number % 3 == 0:
            properties["TAGS"] = "Aa"
        if number % 4 == 0:
            properties["KEYS"] = "k"
        client.send_message("orders", "x", properties)
    # One has a tag with the same hash, the other has the same tag and key in another topic.
    client.send_message(UNIQ_KEY="BB", TAGS="BB", TIMER_DELAY_MS="1000")
    client.send_message("bills", UNIQ_KEY="bill", TAGS="Aa", KEYS="k", TIMER_DELAY_MS="1000")
    return client


SELECTIONS: list[tuple[dict[str, Any], list[str]]] = [
    ({"tag": "Aa"}, ["m00", "m03", "m06", "m09"]),
    ({"key": "k"}, ["m00", "m04", "m08"]),
    ({"key": "k", "tag": "Aa"}, ["m00"]),
    ({"begin": START_MS + 3_000, "end": START_MS + 5_000}, ["m02", "m03"]),
    ({"tag": "Aa", "begin": START_MS + 3_000}, ["m03", "m06", "m09"]),
    ({"key": "k", "end": START_MS + 6_000}, ["m00", "m04"]),
    ({}, [*(f"m{number:02}" for number in range(12)), "BB"]),
    ({"tag": "none"}, []),
]


@pytest.mark.parametrize(("selection", "expected"), SELECTIONS)
@pytest.mark.parametrize("step", [2, 500])
class TestSelections:
    @pytest.fixture(autouse=True)
    def steps(self, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        monkeypatch.setattr(bulk, "STEP", step)
        monkeypatch.setattr(bulk, "COUNTED", step)

    def test_count(
        self, filled: MemoryClient, selection: dict[str, Any], expected: list[str], step: int
    ) -> None:
        before = dues(filled)
        counts = change_all(filled, "count", **selection)
        assert sum(counts) == len(expected)
        assert max(counts) <= step
        assert dues(filled) == before

    def test_abort(
        self, filled: MemoryClient, selection: dict[str, Any], expected: list[str], step: int
    ) -> None:
        before = dues(filled)
        counts = change_all(filled, "abort", **selection)
        assert sum(counts) == len(expected)
        assert max(counts) <= step
        assert dues(filled).keys() == before.keys() - expected

    @pytest.mark.parametrize("shift", [2_500, -700, 60_000])
    def test_shift(
        self,
        filled: MemoryClient,
        selection: dict[str, Any],
        expected: list[str],
        step: int,
        shift: int,
    ) -> None:
        """Each message moves once, even if its new time is in the range that is still to be processed."""
        before = dues(filled)
        assert sum(change_all(filled, "reschedule", shift=shift, **selection)) == len(expected)
        moved = {name: due + shift for name, due in before.items() if name in expected}
        assert dues(filled) == before | moved

    def test_to_one_time(
        self, filled: MemoryClient, selection: dict[str, Any], expected: list[str], step: int
    ) -> None:
        before = dues(filled)
        assert sum(change_all(filled, "reschedule", delay=20_000, **selection)) == len(expected)
        assert dues(filled) == before | dict.fromkeys(expected, 20_000)


@pytest.mark.parametrize("action", ["count", "abort"])
def test_all_with_a_key_however_many_a_look_up_considers(
    filled: MemoryClient, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """A step considers at most as many messages as it may change."""
    monkeypatch.setattr(pending, "MAX_WITH_KEY", 1)
    monkeypatch.setattr(bulk, "STEP", 2)
    monkeypatch.setattr(bulk, "COUNTED", 2)
    looked_at = []
    is_wanted = pending._is_wanted

    def note(wanted: pending.Wanted, found: Found) -> bool:
        looked_at.append(found.sequence)
        return is_wanted(wanted, found)

    monkeypatch.setattr(pending, "_is_wanted", note)
    assert sum(change_all(filled, action, key="k")) == 3
    assert len(looked_at) == len(set(looked_at))


@pytest.mark.parametrize("step", [2, 500])
def test_one_change_after_the_other_while_the_clock_stands_still(
    filled: MemoryClient, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """This is the case with a manual clock: a change finds what the previous one has moved."""
    monkeypatch.setattr(bulk, "STEP", step)
    monkeypatch.setattr(bulk, "COUNTED", step)
    before = dues(filled)
    before.pop("bill")
    for _ in range(3):
        assert sum(change_all(filled, "count")) == len(before)
        assert sum(change_all(filled, "reschedule", shift=2_500)) == len(before)
    moved = {name: due + 7_500 for name, due in before.items()}
    assert dues(filled) == moved | {"bill": 1_000}
    assert sum(change_all(filled, "abort")) == len(before)


def test_one_change_after_a_restart_while_the_clock_stands_still(
    gateway: MemoryGateway, filled: MemoryClient
) -> None:
    """As also where the machine's clock is behind. A message that was moved just before the restart was left out."""
    moved = filled.ask(RequestCode.RESCHEDULE_TIMERS, {"id": "m00", "delay": "9000"})
    assert moved.code == ResponseCode.SUCCESS
    before = dues(filled)
    before.pop("bill")
    for number in range(1, 4):
        gateway.restart()
        client = gateway.connect()
        assert sum(change_all(client, "reschedule", shift=2_500)) == len(before)
        shifted = {name: due + 2_500 * number for name, due in before.items()}
        assert dues(client) == shifted | {"bill": 1_000}


def test_what_was_moved_before_the_clock_was_set_back_is_moved(
    gateway: MemoryGateway, filled: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also holds after a restart, where the gateway has only the times of its queues."""
    monkeypatch.setattr(bulk, "STEP", 2)
    before = dues(filled)
    before.pop("bill")
    gateway.advance(1)
    assert sum(change_all(filled, "reschedule", shift=1_000)) == len(before)
    gateway.set_clock(-3_600_000)
    gateway.restart()
    assert sum(change_all(gateway.connect(), "reschedule", shift=1_000)) == len(before)


def test_what_fires_meanwhile_is_not_changed(
    gateway: MemoryGateway, filled: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "STEP", 4)
    count, cursor = change(filled, "abort")
    assert (count, cursor is None) == (4, False)
    gateway.advance(7_000)
    rest = change_all(filled, "abort", cursor=cursor)
    assert sum(rest) == 5
    assert len(filled.pull()) == 4


def test_a_gateway_that_the_cursor_does_not_name_has_changed_all_of_its_own(
    filled: MemoryClient,
) -> None:
    """An example is one of several workers that finishes before the others."""
    assert change(filled, "abort", cursor="7:,8.9:00") == (0, None)
    assert len(dues(filled)) == 14


def test_nothing_is_moved_when_one_would_be_too_far(filled: MemoryClient) -> None:
    before = dues(filled)
    ext = {"action": "reschedule", "topic": "orders", "shift": str(730 * 86_400_000 - 5_000)}
    answer = filled.ask(RequestCode.BULK_CHANGE_TIMERS, ext)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "max_delay" in (answer.remark or "")
    assert dues(filled) == before


@pytest.mark.parametrize(
    "ext",
    [
        {"action": "abort", "topic": ""},
        {"action": "reschedule", "topic": "", "shift": "5"},
        {"action": "reschedule", "topic": "orders"},
        {"action": "count", "topic": "orders", "cursor": "zz"},
    ],
)
def test_what_is_not_said(client: MemoryClient, ext: dict[str, str]) -> None:
    assert client.ask(RequestCode.BULK_CHANGE_TIMERS, ext).code == ResponseCode.INVALID_PARAMETER


def test_an_unknown_action(client: MemoryClient) -> None:
    ext = {"action": "fire", "topic": "orders"}
    assert client.ask(RequestCode.BULK_CHANGE_TIMERS, ext).code == ResponseCode.SYSTEM_ERROR
