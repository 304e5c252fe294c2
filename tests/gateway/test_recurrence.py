"""When recurring messages fire: cron in time zones, changes of summer time, periods, misfires."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import msgspec
import pytest
from cronsim import CronSim
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gateway.moments import LATEST_DATE_MS
from gateway.recurring import recurrence
from gateway.recurring.recurrence import (
    Misfire,
    Rule,
    RuleError,
    Turn,
    make_rule,
    parse_misfire,
)

BERLIN = "Europe/Berlin"
NOON = 1_800_000_000_000 - 1_800_000_000_000 % 86_400_000 + 43_200_000
MINUTE = 60_000


def ms(text: str, zone: str = "UTC") -> int:
    """Return the epoch ms of a time in a zone."""
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def rule(**asked: str | int) -> Rule:
    """Make a rule at noon."""
    return make_rule(NOON, **asked)  # type: ignore[arg-type]


def times(cron: str, zone: str, after: str, count: int) -> list[str]:
    """Return the next times of an expression in UTC, after a time in its zone."""
    found = rule(cron=cron, zone=zone).times_after(ms(after, zone), 0)
    return [
        datetime.fromtimestamp(one / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        for one in islice(found, count)
    ]


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        ("0 5 * * *", "UTC", "2027-05-01T04:59:59", ["2027-05-01T05:00:00", "2027-05-02T05:00:00"]),
        ("0 5 * * *", BERLIN, "2027-05-01", ["2027-05-01T03:00:00", "2027-05-02T03:00:00"]),
        ("0 5 * * *", "Asia/Kolkata", "2027-05-01", ["2027-04-30T23:30:00"]),
        ("*/20 * * * * *", "UTC", "2027-05-01", ["2027-05-01T00:00:20", "2027-05-01T00:00:40"]),
        ("0 0 31 * *", "UTC", "2027-01-31T12:00", ["2027-03-31T00:00:00", "2027-05-31T00:00:00"]),
        ("0 0 L * *", "UTC", "2027-02-01", ["2027-02-28T00:00:00", "2027-03-31T00:00:00"]),
        ("0 0 L 2 *", "UTC", "2027-03-01", ["2028-02-29T00:00:00", "2029-02-28T00:00:00"]),
        ("0 0 29 2 *", "UTC", "2027-01-01", ["2028-02-29T00:00:00", "2032-02-29T00:00:00"]),
        ("0 0 29 2 *", "UTC", "2096-03-01", ["2104-02-29T00:00:00"]),
        ("0 9 * * MON#2", "UTC", "2027-05-01", ["2027-05-10T09:00:00", "2027-06-14T09:00:00"]),
        ("0 9 LW * *", "UTC", "2027-05-01", ["2027-05-31T09:00:00", "2027-06-30T09:00:00"]),
        # If both kinds of days are given, either may match, as in any cron.
        ("0 0 13 * FRI", "UTC", "2027-08-01", ["2027-08-06T00:00:00", "2027-08-13T00:00:00"]),
        ("0 0 1 1 SUN", "UTC", "2027-12-30", ["2028-01-01T00:00:00", "2028-01-02T00:00:00"]),
        # A range of one has no second step; a number alone with a step goes on to the end.
        ("5-05/10 4 * * *", "UTC", "2027-05-01", ["2027-05-01T04:05:00", "2027-05-02T04:05:00"]),
        (
            "0 4 * * 1,FRI-fri/2",
            "UTC",
            "2027-05-01",
            ["2027-05-03T04:00:00", "2027-05-07T04:00:00"],
        ),
        ("5/10 4 * * *", "UTC", "2027-05-01", ["2027-05-01T04:05:00", "2027-05-01T04:15:00"]),
        ("5-15/10 4 * * *", "UTC", "2027-05-01", ["2027-05-01T04:05:00", "2027-05-01T04:15:00"]),
        ("1-10/5 4 * * *", "UTC", "2027-05-01", ["2027-05-01T04:01:00", "2027-05-01T04:06:00"]),
    ],
)
def test_cron(cron: str, zone: str, after: str, expected: list[str]) -> None:
    assert times(cron, zone, after, len(expected)) == expected


# In Berlin clocks go from 2:00 to 3:00 on 2027-03-28, and from 3:00 back to 2:00 on 2027-10-31.
@pytest.mark.parametrize("seconds", ["", "0 "])
@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        # Times that clocks skip fire once, as soon as clocks are past them.
        ("30 2 * * *", "2027-03-27T12:00", ["2027-03-28T01:00:00", "2027-03-29T00:30:00"]),
        ("0,30 2 * * *", "2027-03-27T12:00", ["2027-03-28T01:00:00", "2027-03-29T00:00:00"]),
        ("0 2,3 * * *", "2027-03-27T12:00", ["2027-03-28T01:00:00", "2027-03-29T00:00:00"]),
        ("59 1 * * *", "2027-03-27T12:00", ["2027-03-28T00:59:00", "2027-03-28T23:59:00"]),
        ("0 3 * * *", "2027-03-27T12:00", ["2027-03-28T01:00:00", "2027-03-29T01:00:00"]),
        # Times that clocks show twice fire the first time only.
        ("30 2 * * *", "2027-10-30T12:00", ["2027-10-31T00:30:00", "2027-11-01T01:30:00"]),
        ("0,30 2 * * *", "2027-10-31T02:00", ["2027-10-31T00:30:00", "2027-11-01T01:00:00"]),
        ("0 3 * * *", "2027-10-30T12:00", ["2027-10-31T02:00:00", "2027-11-01T02:00:00"]),
        # With a star for the minute or the hour, elapsed time counts.
        (
            "*/30 * * * *",
            "2027-10-31T02:00",
            ["2027-10-31T00:30:00", "2027-10-31T01:00:00", "2027-10-31T01:30:00"],
        ),
        ("0 * * * *", "2027-03-28T01:00", ["2027-03-28T01:00:00", "2027-03-28T02:00:00"]),
        (
            "0 */2 * * *",
            "2027-10-31T01:00",
            ["2027-10-31T00:00:00", "2027-10-31T01:00:00", "2027-10-31T03:00:00"],
        ),
        ("*/30 2 * * *", "2027-03-27T12:00", ["2027-03-29T00:00:00"]),
    ],
)
def test_changes_of_the_clock(seconds: str, cron: str, after: str, expected: list[str]) -> None:
    assert times(seconds + cron, BERLIN, after, len(expected)) == expected


@pytest.mark.parametrize("change", ["2027-03-28T01:00", "2027-10-31T01:00"])
@pytest.mark.parametrize("seconds", [1, 2, 3])
def test_just_before_a_change(change: str, seconds: int) -> None:
    of = rule(cron="0 * * * *", zone=BERLIN)
    assert of.next_after(ms(change) - seconds * 1_000, 0) == ms(change)


# In Cairo clocks go from 0:00 to 1:00 on 2027-04-30, a Friday; on Lord Howe from 2:00 to 2:30 on 2027-10-03.
@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        (
            "*/30 1 * * FRI",
            "Africa/Cairo",
            "2027-04-29T12:00",
            ["2027-04-29T22:00:00", "2027-04-29T22:30:00", "2027-05-06T22:00:00"],
        ),
        ("*/30 0 * * FRI", "Africa/Cairo", "2027-04-29T12:00", ["2027-05-06T21:00:00"]),
        # Weeks before a change, the first hour of a day behind it is found.
        ("0 * 1 6 *", BERLIN, "2027-01-10", ["2027-05-31T22:00:00", "2027-05-31T23:00:00"]),
        ("0 * 1 12 *", BERLIN, "2027-06-10", ["2027-11-30T23:00:00", "2027-12-01T00:00:00"]),
        ("*/30 0 30 4 *", "Africa/Cairo", "2027-04-01", ["2028-04-29T21:00:00"]),
        # An hour that comes twice does so on a day of which there is one a year, too.
        (
            "*/30 2 31 10 *",
            BERLIN,
            "2027-10-31T02:30",
            ["2027-10-31T01:00:00", "2027-10-31T01:30:00", "2028-10-31T01:00:00"],
        ),
        (
            "*/20 4 * * *",
            "Australia/Lord_Howe",
            "2027-10-02T12:00",
            ["2027-10-02T17:00:00", "2027-10-02T17:20:00", "2027-10-02T17:40:00"],
        ),
    ],
)
def test_changes_of_the_clock_at_midnight_and_by_half_an_hour(
    cron: str, zone: str, after: str, expected: list[str]
) -> None:
    assert times(cron, zone, after, len(expected)) == expected


def test_a_time_that_is_decades_away_is_found_in_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search does not begin again at each change of the clock, of which each year has two."""
    of = rule(cron="0 */24 30 2 SUN#5", zone=BERLIN)
    looked_at = look(monkeypatch)
    assert of.next_after(ms("2026-02-01"), 0) == ms("2032-02-28T23:00")
    assert of.next_after(ms("2033-02-01"), 0) == ms("2060-02-28T23:00")
    assert len(looked_at) <= 8


WALL_MINUTE = st.sampled_from(["*", "*/7", "*/30", "0", "30", "5,50", "10-40/15"])
WALL_HOUR = st.sampled_from(["*", "*/2", "*/3", "0", "1", "2", "0-3", "4,23"])
WALL_DAY = st.sampled_from(["*", "FRI", "SUN", "SAT,MON"])
CHANGES = st.sampled_from(
    [
        (BERLIN, "2027-03-28"),
        (BERLIN, "2027-10-31"),
        ("Africa/Cairo", "2027-04-30"),
        ("Africa/Cairo", "2027-10-29"),
        ("America/Santiago", "2027-04-04"),
        ("America/Santiago", "2027-09-05"),
        ("Australia/Lord_Howe", "2027-04-04"),
        ("Australia/Lord_Howe", "2027-10-03"),
    ]
)


@settings(max_examples=12, deadline=None)
@given(WALL_MINUTE, WALL_HOUR, WALL_DAY, CHANGES, st.integers(-26 * 60, 6 * 60))
def test_by_elapsed_time_it_fires_whenever_clocks_show_it(
    minute: str, hour: str, day: str, change: tuple[str, str], ahead: int
) -> None:
    """The test checks every minute around a change of the clocks."""
    assume(minute.startswith("*") or hour.startswith("*"))
    zone, date = change
    begin_ms = ms(date, zone) + ahead * 60_000
    end_ms = begin_ms + 36 * 3_600_000
    in_utc = rule(cron=f"{minute} {hour} * * {day}")
    expected = []
    for minute_ms in range(begin_ms + 60_000, end_ms + 1, 60_000):
        shown = datetime.fromtimestamp(minute_ms / 1000, ZoneInfo(zone)).replace(tzinfo=UTC)
        shown_ms = int(shown.timestamp() * 1000)
        if in_utc.next_after(shown_ms - 1, 0) == shown_ms:
            expected.append(minute_ms)
    of = rule(cron=f"{minute} {hour} * * {day}", zone=zone)
    assert list(takewhile(lambda one: one <= end_ms, of.times_after(begin_ms, 0))) == expected


def test_in_the_second_of_two_equal_hours_nothing_fires_again() -> None:
    second = ms("2027-10-31T01:15")  # 2:15 in Berlin for the second time that day
    assert rule(cron="0,30 2 * * *", zone=BERLIN).next_after(second, 0) == ms("2027-11-01T01:00")


def test_a_day_that_a_zone_left_out() -> None:
    """Samoa had no 2011-12-30: what was planned for that day fired when it was over."""
    assert times("0 9 30 12 *", "Pacific/Apia", "2011-12-01", 2) == [
        "2011-12-30T10:00:00",
        "2012-12-29T19:00:00",
    ]


CRON_FIELDS = st.tuples(
    st.sampled_from(["*", "*/7", "0", "30", "5-50/15", "0,59"]),
    st.sampled_from(["*", "*/5", "0", "2", "1-3", "2,23"]),
    st.sampled_from(["*", "*/2", "1", "28-31", "L", "LW"]),
    st.sampled_from(["*", "3", "10-11", "2", "MAR,OCT"]),
    st.sampled_from(["*", "SUN", "1-5", "FRI#5", "0L"]),
)
ZONES = st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Africa/Cairo"])
WHEN = st.integers(ms("2026-01-01"), ms("2036-01-01"))


@settings(max_examples=150, deadline=None)
@given(CRON_FIELDS, st.sampled_from(["", "0 ", "*/20 "]), ZONES, WHEN)
def test_times_only_go_on_and_are_what_the_fields_say(
    fields: tuple[str, ...], seconds: str, zone: str, after_ms: int
) -> None:
    try:
        of = rule(cron=seconds + " ".join(fields), zone=zone)
    except RuleError:
        return  # for example the 31st of a month that has no such day
    found = list(islice(of.times_after(after_ms, 0), 4))
    assert found == sorted(set(found))
    assert all(one > after_ms for one in found)
    for one in found:
        # The answer is the same from any time in between.
        assert of.next_after(max(after_ms, one - 1), 0) == one
        if zone == "UTC":
            moment = datetime.fromtimestamp(one / 1000, UTC)
            assert fields[1] not in ("0", "2") or moment.hour == int(fields[1])
            assert fields[0] not in ("0", "30") or moment.minute == int(fields[0])


@settings(max_examples=100, deadline=None)
@given(CRON_FIELDS, ZONES, WHEN, st.integers(0, 40 * 86_400_000))
def test_the_last_time_until_now(
    fields: tuple[str, ...], zone: str, after_ms: int, passed_ms: int
) -> None:
    try:
        of = rule(cron=" ".join(fields), zone=zone)
    except RuleError:
        return
    planned_ms = of.next_after(after_ms, 0)
    if planned_ms is None:
        return
    now_ms = planned_ms + passed_ms
    last_ms = of.last_until(now_ms, planned_ms, 0)
    assert planned_ms <= last_ms <= now_ms
    following = of.next_after(last_ms, 0)
    assert following is None or following > now_ms
    assert of.next_after(last_ms - 1, 0) == last_ms


def look(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """Record from which times on searches for cron times start."""
    looked_at = []

    class Looked(CronSim):
        def __init__(self, expression: str, after: datetime, *, reverse: bool = False) -> None:
            looked_at.append(after)
            super().__init__(expression, after, reverse=reverse)

    monkeypatch.setattr(recurrence, "CronSim", Looked)
    return looked_at


@pytest.mark.parametrize(
    ("cron", "missed_ms", "looks"),
    [
        ("17 6 * * *", MINUTE, 1),
        ("17 6 * * *", 21 * 86_400_000 + MINUTE, 4),
        ("*/7 * * * *", 8 * 3_600_000 + MINUTE, 4),
        ("17 6 * * MON-FRI", 400 * 86_400_000, 4),
        ("1,17 6,9 * * MON,WED", 30 * 86_400_000, 4),
        ("0-20 9-17 * * MON-FRI", 2 * 86_400_000, 4),
    ],
)
def test_the_last_of_those_that_were_missed_is_found_in_few_looks_and_once_for_all(
    monkeypatch: pytest.MonkeyPatch, cron: str, missed_ms: int, looks: int
) -> None:
    planned_ms = rule(cron=cron, zone=BERLIN).next_after(NOON, 0)
    assert planned_ms is not None
    looked_at = look(monkeypatch)
    for _ in range(2):
        rule(cron=cron, zone=BERLIN).last_until(planned_ms + missed_ms, planned_ms, 0)
    # Making a rule checks it, which takes one search.
    assert len(looked_at) <= looks + 2
    # So it is of a rule that has ended meanwhile.
    end_ms = planned_ms + missed_ms
    ended = rule(cron=cron, zone=BERLIN, end=str(end_ms))
    last_ms = ended.last_until(end_ms + 300 * 86_400_000, planned_ms, 0)
    assert last_ms == rule(cron=cron, zone=BERLIN).last_until(end_ms, planned_ms, 0)
    assert len(looked_at) <= looks + 4


PERIODS = st.integers(1, 10 * 86_400_000)


@given(
    PERIODS, st.none() | st.integers(0, 1 << 41), st.integers(0, 1 << 41), st.integers(0, 1 << 41)
)
def test_periods(every_ms: int, start_ms: int | None, set_ms: int, after_ms: int) -> None:
    of = Rule(every_ms=every_ms, start_ms=start_ms)
    first_ms = start_ms if start_ms is not None else set_ms + every_ms
    found = of.next_after(after_ms, set_ms)
    assert found is not None
    assert found > after_ms
    assert found >= first_ms
    assert (found - first_ms) % every_ms == 0
    assert found == first_ms or found - every_ms <= after_ms
    assert of.next_after(found, set_ms) == found + every_ms
    for end_ms in (None, found + every_ms * 9):
        ended = Rule(every_ms=every_ms, start_ms=start_ms, end_ms=end_ms)
        assert ended.last_until(found + every_ms * 5 - 1, found, set_ms) == found + every_ms * 4


def test_start_and_end_belong_to_it() -> None:
    of = rule(cron="0 5 * * *", start="2027-05-02T05:00", end="2027-05-03T05:00")
    assert list(of.times_after(ms("2027-01-01"), 0)) == [
        ms("2027-05-02T05:00"),
        ms("2027-05-03T05:00"),
    ]
    later = rule(cron="0 5 * * *", start=str(ms("2027-05-02T05:00") + 1))
    assert later.next_after(ms("2027-01-01"), 0) == ms("2027-05-03T05:00")
    of = rule(every="1h", start="2027-05-02T05:00", end="2027-05-02T07:00")
    assert len(list(of.times_after(0, 0))) == 3
    assert of.last_until(ms("2027-06-01"), ms("2027-05-02T05:00"), 0) == ms("2027-05-02T07:00")


def test_times_are_of_the_rules_zone() -> None:
    assert rule(every="1h", zone=BERLIN, start="2027-05-02T05:00").start_ms == ms(
        "2027-05-02T03:00"
    )
    assert rule(every="1h", zone=BERLIN, start="2027-05-02T05:00Z").start_ms == ms(
        "2027-05-02T05:00"
    )
    assert rule(every="1h", start="+10m").start_ms == NOON + 10 * MINUTE


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "either a cron expression or a period"),
        ({"cron": "* * * * *", "every": "2m"}, "and not both"),
        ({"cron": ""}, "Wrong number of fields"),
        ({"cron": "* * *"}, "Wrong number of fields"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "0 0 5 * * ?"}, "Quartz"),
        ({"cron": "@daily"}, "write 5 fields"),
        ({"cron": "0 0 30 2 *"}, "Bad day-of-month; its months do not have such a day"),
        ({"cron": "0 0 0 31 4,6 *"}, "Bad day-of-month; its months do not have such a day"),
        ({"cron": "0 0 32 2 *"}, "Bad day-of-month; write 5 fields"),
        ({"cron": "0 0 30 13 *"}, "Bad month; write 5 fields"),
        ({"cron": "0 " * 101}, "200 characters"),
        ({"every": "often"}, "no period"),
        ({"every": "0s"}, "no period"),
        ({"every": "-5s"}, "no period"),
        ({"every": "0.5ms"}, "no period"),
        ({"every": "1.0005s"}, "no period"),
        ({"every": "36500d1ms"}, "longer than 100 years"),
        ({"every": "P1M"}, "months and years differ in length"),
        ({"every": " p1y2dT1h"}, "months and years differ in length"),
        ({"every": "1M"}, "months and years differ in length"),
        ({"every": "nan"}, "no period"),
        ({"cron": "* * * * *", "zone": "Berlin"}, "no time zone"),
        ({"cron": "* * * * *", "zone": "Europe"}, "no time zone"),
        ({"cron": "* * * * *", "zone": "../../etc/passwd"}, "no time zone"),
        ({"cron": "* * * * *", "zone": "x" * 5_000}, "no time zone"),
        ({"every": "1h", "start": "soon"}, "start: 'soon' is not a time"),
        ({"every": "1h", "end": "9" * 40}, "is not a time"),
        ({"every": "1h", "end": str(LATEST_DATE_MS + 1)}, "between the years"),
        ({"every": "1h", "start": "1969-12-31T23:59:59.999"}, "between the years"),
        ({"every": "1h", "count": "0"}, "no count"),
        ({"every": "1h", "count": "-1"}, "no count"),
        ({"every": "1h", "count": "²"}, "no count"),
        ({"every": "1h", "count": "+1"}, "no count"),
        ({"every": "1h", "count": "1" + "0" * 18}, "no count"),
    ],
)
def test_what_is_no_rule_is_refused(asked: dict[str, str], says: str) -> None:
    with pytest.raises(RuleError, match=re.escape(says)):
        make_rule(NOON, **asked)


def test_the_most_that_a_rule_can_say() -> None:
    of = rule(every="36500d", start="1970-01-01T00:00", end=str(LATEST_DATE_MS), count="9" * 18)
    assert (of.every, of.start_ms, of.end_ms, of.count) == ("36500d", 0, LATEST_DATE_MS, 10**18 - 1)
    assert msgspec.json.decode(msgspec.json.encode(of), type=Rule) == of
    of = rule(every="1ms", count="1")
    assert (of.every_ms, of.count) == (1, 1)
    longest = "00," + "0," * 94 + "0 * * * *"
    assert (len(longest), rule(cron=longest).cron) == (200, longest)


@given(st.text(max_size=30) | st.text("0123456789*/,-LW# SUNMO", max_size=30))
def test_any_text_is_a_rule_or_refused(text: str) -> None:
    for asked in ({"cron": text}, {"every": text}, {"every": "1h", "zone": text}):
        try:
            made = make_rule(NOON, **asked)
            made.check(NOON, 1)
        except RuleError:
            continue
        found = made.next_after(NOON, NOON)
        assert found is not None
        assert found > NOON


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"every": "1h", "end": "2027-01-01T00:00"}, "never fires from now until its end"),
        ({"cron": "0 0 29 2 *", "end": "2027-12-31T00:00"}, "never fires from now until its end"),
        # The fifth Monday of February is its 29th, which is not a third day.
        ({"cron": "0 0 */3 2 MON#5"}, "never fires from now on"),
        ({"cron": "* 0 */3 2 MON#5"}, "never fires"),
        ({"every": "500ms"}, "recurring_min_period = 1s"),
        ({"every": "1h", "start": "2020-01-01T00:00"}, None),
        ({"cron": "* * * * * *"}, None),
    ],
)
def test_check(asked: dict[str, str], says: str | None) -> None:
    made = rule(**asked)
    if says is None:
        made.check(NOON, 1_000)
        return
    with pytest.raises(RuleError, match=says):
        made.check(NOON, 1_000)


def test_cron_is_held_against_the_shortest_period() -> None:
    rule(cron="*/10 * * * * *").check(NOON, 10_000)
    with pytest.raises(RuleError, match=r"fires every 10s; .* recurring_min_period = 11s"):
        rule(cron="*/10 * * * * *").check(NOON, 11_000)
    with pytest.raises(RuleError, match="fires every 1m"):
        rule(cron="0,1 5 * * *").check(NOON, 2 * MINUTE)


def test_of_one_that_fires_once_in_decades_only_the_next_times_are_examined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, 60 of them were, which took 0.2 s."""
    of = rule(cron="0 0 * 2 SUN#5", zone=BERLIN)
    looked_at = look(monkeypatch)
    of.check(NOON, 2 * MINUTE)
    assert len(looked_at) == 2
    with pytest.raises(RuleError, match=r"fires every 1m; .* recurring_min_period = 2m"):
        rule(cron="0,1 0 * 2 SUN#5", zone=BERLIN).check(NOON, 2 * MINUTE)
    with pytest.raises(RuleError, match="fires every 1m"):
        # Only from one day to the next, and only from one month to the next of a year that is no leap year.
        rule(cron="0,59 0,23 1,28 2,3 *").check(ms("2027-03-02"), 2 * MINUTE)


def test_beyond_the_last_year_there_is_nothing() -> None:
    for end_ms in (None, LATEST_DATE_MS):
        assert Rule(cron="0 0 1 1 *", end_ms=end_ms).next_after(LATEST_DATE_MS, 0) is None
    assert rule(cron="0 0 1 1 *").next_after(1 << 62, 0) is None
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        daily = rule(cron="0 0 * * *", zone=zone)
        planned_ms = daily.next_after(LATEST_DATE_MS - 10 * 86_400_000, 0)
        assert planned_ms is not None
        last_ms = daily.last_until(LATEST_DATE_MS, planned_ms, 0)
        assert last_ms > LATEST_DATE_MS - 2 * 86_400_000
        assert daily.next_after(last_ms, 0) is None


@pytest.mark.parametrize(
    ("policy", "late_ms", "planned", "following", "misfired"),
    [
        (Misfire.SMART, 0, 0, 1, False),
        (Misfire.SMART, MINUTE, 0, 1, False),
        (Misfire.SMART, MINUTE + 1, 6, 7, True),
        (Misfire.SMART, 2 * MINUTE, 12, 13, True),
        (Misfire.FIRE_ONCE_NOW, MINUTE + 1, 6, 7, True),
        (Misfire.DO_NOTHING, MINUTE, 0, 1, False),
        (Misfire.DO_NOTHING, MINUTE + 1, None, 7, True),
        (Misfire.IGNORE_MISFIRE_POLICY, MINUTE, 0, 1, False),
        (Misfire.IGNORE_MISFIRE_POLICY, MINUTE + 1, 0, 1, True),
    ],
)
@pytest.mark.parametrize("asked", [{"every": "10s"}, {"cron": "*/10 * * * * *"}])
def test_misfires(
    asked: dict[str, str],
    policy: Misfire,
    late_ms: int,
    planned: int | None,
    following: int,
    misfired: bool,
) -> None:
    """A rule for every ten seconds, planned for noon, is handled later than noon."""
    of = rule(**asked)
    turn = of.turn(policy, NOON, NOON + late_ms, NOON - 10_000, MINUTE)
    planned_ms = NOON + planned * 10_000 if planned is not None else None
    assert turn == Turn(planned_ms, NOON + following * 10_000, misfired)


def test_the_last_turn() -> None:
    end = NOON + 25_000
    of = Rule(every_ms=10_000, start_ms=NOON, end_ms=end)
    late = NOON + timedelta(days=1) // timedelta(milliseconds=1)
    assert of.turn(Misfire.SMART, NOON, late, NOON, MINUTE) == Turn(NOON + 20_000, None, True)
    assert of.turn(Misfire.DO_NOTHING, NOON, late, NOON, MINUTE) == Turn(None, None, True)


def test_names_of_policies() -> None:
    assert parse_misfire(None) is Misfire.SMART
    assert parse_misfire("fire_once_now") is Misfire.FIRE_ONCE_NOW
    assert parse_misfire("MISFIRE_INSTRUCTION_DO_NOTHING") is Misfire.DO_NOTHING
    assert parse_misfire("MISFIRE_INSTRUCTION_SMART_POLICY") is Misfire.SMART
    with pytest.raises(RuleError, match="write one of SMART, FIRE_ONCE_NOW"):
        parse_misfire("FIRE_ALL")


def test_rules_are_shown() -> None:
    assert str(rule(every="90s")) == "every 1m30s"
    assert str(rule(cron=" 0  5 * * * ", zone=BERLIN)) == "cron '0 5 * * *' in Europe/Berlin"
