"""When a recurring message fires: a cron expression in a time zone, or a period. Pure: now is an argument.

Cron expressions mean what they mean to `cronsim`, which follows Debian's cron. Only the change to and from summer time
is handled here, so that expressions with and without seconds do the same.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Annotated, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from gateway.moments import LATEST_DATE_MS, parse_moment
from gateway.settings.values import LONGEST, parse_duration, show_duration

MAX_EXPRESSION = 200
"""Longest cron expression, in characters."""

FINEST_CRON_MS = 1_000
"""Cron expressions name seconds at the finest."""

SAMPLE = 60
"""Most occurrences of a cron expression that are examined to see how close together they come."""

SAMPLE_MS = 5 * 366 * 86_400_000
"""Time behind which no further occurrence is examined for that. One that comes once in decades takes up to 2 ms to
find."""

_ONE_MS = timedelta(milliseconds=1)
_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)
_WEEK_S = 7 * 86_400
_TWO_DAYS_S = 2 * 86_400
"""More than a zone's clocks are ever set by: all clocks of the world lie within 26 hours."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - local time of any zone

_ONE_WITH_STEP = re.compile(r"(?<![\w-])0*(\w+)-0*\1/0*[1-9]\d*(?!\w)", re.IGNORECASE)
_MONTHS_OR_YEARS = re.compile(r"\s*(?:[pP][^tT]*[mMyY]|[\d.]+M\s*$)")

WHAT_CRON_IS = (
    "write 5 fields, minute hour day-of-month month day-of-week, "
    "such as '0 5 * * MON-FRI', or 6 with the second first"
)
_NEVER = "its months do not have such a day, so it would never fire"


class RuleError(ValueError):
    """The rule is not valid, or never fires. The text is one line that says what to write."""


class Misfire(Enum):
    """What happens to occurrences that are later than the setting `recurring_misfire_threshold`, as after down time or
    a pause. The names are those of Quartz (CronTrigger, Trigger)."""

    SMART = "SMART"
    """The default: as FIRE_ONCE_NOW."""
    FIRE_ONCE_NOW = "FIRE_ONCE_NOW"
    """One occurrence at once for all that were missed; it has the planned time of the last of them."""
    DO_NOTHING = "DO_NOTHING"
    """No occurrence; the rule goes on with the next time that comes."""
    IGNORE_MISFIRE_POLICY = "IGNORE_MISFIRE_POLICY"
    """All that were missed, each with its planned time, one after the other."""


class Turn(NamedTuple):
    """What to do with a recurring message that is due.

    :param planned_ms: the occurrence to put into its queue now; None for none.
    :param next_ms: when it is due again; None for never.
    :param misfired: whether the occurrence was late, so that the misfire policy applied.
    """

    planned_ms: int | None
    next_ms: int | None
    misfired: bool


_PeriodMs = Annotated[int, msgspec.Meta(ge=1, le=LONGEST // _ONE_MS)]
_EpochMs = Annotated[int, msgspec.Meta(ge=0, le=LATEST_DATE_MS)]


class Rule(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """When a message recurs: by `cron` in a time zone, or every `every_ms`. Times are epoch ms, `start_ms` and
    `end_ms` included. After `count` occurrences the rule ends."""

    cron: str | None = None
    every_ms: _PeriodMs | None = None
    zone: str = "UTC"
    start_ms: _EpochMs | None = None
    end_ms: _EpochMs | None = None
    count: int | None = None

    @property
    def every(self) -> str | None:
        """The period as people write it, such as `2m`."""
        return show_duration(self.every_ms * _ONE_MS) if self.every_ms is not None else None

    def next_after(self, after_ms: int, set_ms: int) -> int | None:
        """Return the first time after `after_ms`, to the ms; None when there is none.

        :param set_ms: when the rule was set: a period without a start begins one period later.
        :raises RuleError: when the zone is no longer known, or the stored expression is damaged.
        """
        if self.every_ms is not None:
            first_ms = self.start_ms if self.start_ms is not None else set_ms + self.every_ms
            periods = max(0, (after_ms - first_ms) // self.every_ms + 1)
            found: int | None = first_ms + periods * self.every_ms
        else:
            if self.start_ms is not None:
                after_ms = max(after_ms, self.start_ms - 1)
            found = _next_of_cron(self.cron or "", _zone(self.zone), after_ms // 1000)
        if found is None or (self.end_ms is not None and found > self.end_ms):
            return None
        return found

    def first(self, now_ms: int) -> int | None:
        """Return the first time of a rule that is set now. If the rule starts now, that is now."""
        return self.next_after(now_ms - 1 if self.start_ms == now_ms else now_ms, now_ms)

    def times_after(self, after_ms: int, set_ms: int) -> Iterator[int]:
        """Yield all times after `after_ms`, without regard to `count`."""
        found = self.next_after(after_ms, set_ms)
        while found is not None:
            yield found
            found = self.next_after(found, set_ms)

    def last_until(self, until_ms: int, planned_ms: int, set_ms: int) -> int:
        """Return the last time that is not after `until_ms`, given an earlier one."""
        if self.end_ms is not None:
            until_ms = min(until_ms, self.end_ms)
        if self.every_ms is not None:
            return planned_ms + (until_ms - planned_ms) // self.every_ms * self.every_ms

        def behind(after_ms: int) -> int | None:
            found = self.next_after(after_ms, set_ms)
            return found if found is not None and found <= until_ms else None

        second = behind(planned_ms)
        if second is None:
            return planned_ms
        # Where no clocks were changed, the last time is the one that they showed last. Otherwise halving finds it, as a
        # later argument never makes `next_after` return an earlier time.
        low, high = second, until_ms
        middle = max(second, _shown_last(self.cron or "", _zone(self.zone), until_ms // 1000) - 1)
        while low < high:
            found = behind(middle)
            if found is None:
                high = middle
            elif behind(found) is None:
                return found
            else:
                low = found
            middle = (low + high) // 2
        return low

    def turn(
        self, policy: Misfire, planned_ms: int, now_ms: int, set_ms: int, threshold_ms: int
    ) -> Turn:
        """Decide what to do now about the planned time.

        :param threshold_ms: how late an occurrence may be without being a misfire.
        """
        misfired = now_ms - planned_ms > threshold_ms
        if misfired and policy is Misfire.DO_NOTHING:
            return Turn(None, self.next_after(now_ms, set_ms), misfired)
        if misfired and policy is not Misfire.IGNORE_MISFIRE_POLICY:
            planned_ms = self.last_until(now_ms, planned_ms, set_ms)
        return Turn(planned_ms, self.next_after(planned_ms, set_ms), misfired)

    def check(self, now_ms: int, min_period_ms: int) -> None:
        """Refuse a rule that never fires, or fires too often.

        :param min_period_ms: the setting `recurring_min_period`.
        :raises RuleError: when it does.
        """
        first = self.first(now_ms)
        if first is None:
            until = "on" if self.end_ms is None else "until its end"
            raise RuleError(f"{self} never fires from now {until}")
        if self.every_ms is not None:
            shortest = self.every_ms
        elif min_period_ms <= FINEST_CRON_MS:
            return
        else:
            shortest, before = min_period_ms, first
            for found in islice(self.times_after(first, now_ms), SAMPLE):
                shortest = min(shortest, found - before)
                before = found
                if found > first + SAMPLE_MS:
                    break
        if shortest < min_period_ms:
            raise RuleError(
                f"{self} fires every {show_duration(shortest * _ONE_MS)}; the shortest period is "
                f"recurring_min_period = {show_duration(min_period_ms * _ONE_MS)}"
            )

    def __str__(self) -> str:
        if self.every_ms is not None:
            return f"every {self.every}"
        return f"cron '{self.cron}' in {self.zone}"


def make_rule(
    now_ms: int,
    *,
    cron: str | None = None,
    every: str | None = None,
    zone: str | None = None,
    start: str | None = None,
    end: str | None = None,
    count: str | int | None = None,
) -> Rule:
    """Make a rule of what people write. Times are as in `parse_moment`, in the rule's zone unless they have their own.

    :raises RuleError: when that is no valid rule.
    """
    if (cron is None) == (every is None):
        raise RuleError(
            "a recurring message needs either a cron expression or a period (every), and not both"
        )
    zone = zone or "UTC"
    of_zone = _zone(zone)
    every_ms = None
    if cron is not None:
        # Cronsim takes 5-5/10 for 5/10, which goes on to the end; to cron it is the range of 5 alone.
        cron = _ONE_WITH_STEP.sub(r"\1", " ".join(cron.split()))
        _check_cron(cron)
    else:
        every_ms = _period(every or "")
    return Rule(
        cron=cron,
        every_ms=every_ms,
        zone=zone,
        start_ms=_moment("start", start, now_ms, of_zone),
        end_ms=_moment("end", end, now_ms, of_zone),
        count=_count(count),
    )


def parse_misfire(text: str | None) -> Misfire:
    """Return a policy by its name, in whatever case; `SMART` where there is no name.

    :raises RuleError: for an unknown name.
    """
    name = (text or Misfire.SMART.value).upper().removeprefix("MISFIRE_INSTRUCTION_")
    try:
        return Misfire(name.removesuffix("_POLICY") if name == "SMART_POLICY" else name)
    except ValueError:
        names = ", ".join(one.value for one in Misfire)
        raise RuleError(f"{text!r} is no misfire policy; write one of {names}") from None


def _period(text: str) -> int:
    if _MONTHS_OR_YEARS.match(text):
        raise RuleError(
            f"{text!r} is no period: months and years differ in length; for minutes write m, for each first of "
            "a month a cron expression such as '0 5 1 * *'"
        )
    try:
        period = parse_duration(text)
    except ValueError:
        raise RuleError(f"{text!r} is no period; write one such as 30s, 2m, 1h30m or 7d") from None
    if period > LONGEST:
        raise RuleError(f"{text!r} is no period: it is longer than 100 years")
    if period < _ONE_MS or period % _ONE_MS:
        raise RuleError(f"{text!r} is no period: it has to be whole milliseconds, and at least one")
    return period // _ONE_MS


def _moment(what: str, text: str | None, now_ms: int, zone: tzinfo) -> int | None:
    if text is None:
        return None
    try:
        moment_ms = parse_moment(text, now_ms, zone)
    except ValueError as error:
        raise RuleError(f"{what}: {error}") from None
    if not 0 <= moment_ms <= LATEST_DATE_MS:
        raise RuleError(f"{what}: {text!r} is not between the years 1970 and 9999")
    return moment_ms


def _count(value: str | int | None) -> int | None:
    if value is None:
        return None
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and int(text) > 0):
        raise RuleError(f"{text!r} is no count of occurrences; write a whole number from 1 on")
    return int(text)


@lru_cache(maxsize=512)
def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, KeyError, OSError):
        # OSError: it is a folder of zones, or too long for a file's name.
        raise RuleError(
            f"{name!r} is no time zone; write one of the IANA list such as Europe/Berlin, or UTC"
        ) from None


def _check_cron(expression: str) -> None:
    if len(expression) > MAX_EXPRESSION:
        raise RuleError(f"a cron expression has at most {MAX_EXPRESSION} characters")
    if "?" in expression:
        raise RuleError(
            f"cron '{expression}': the ? of Quartz is not known here; {WHAT_CRON_IS}. "
            "Name weekdays, MON to SUN: Quartz counts them from 1 = SUN, cron from 0 = SUN"
        )
    try:
        CronSim(expression, datetime(2000, 1, 1))  # noqa: DTZ001 - any time will do
    except CronSimError as error:
        is_never = str(error) == "Bad day-of-month" and _is_never(expression)
        advice = _NEVER if is_never else WHAT_CRON_IS
        raise RuleError(f"cron '{expression}': {error}; {advice}") from None


def _is_never(expression: str) -> bool:
    """Whether a refused day of the month would be right in other months, as the 30th of February."""
    *others, _, weekdays = expression.split()
    try:
        CronSim(" ".join((*others, "*", weekdays)), datetime(2000, 1, 1))  # noqa: DTZ001
    except CronSimError:
        return False
    return True


@lru_cache(maxsize=4096)  # thousands due together mostly share a few expressions
def _next_of_cron(expression: str, zone: tzinfo, after_s: int) -> int | None:
    try:
        find = _next_on_wall if _names_hours(expression) else _next_by_elapsed_time
        found_s = find(expression, zone, after_s)
    except (OverflowError, ValueError, CronSimError):
        _check_cron(expression)  # it was valid when it was set: is it damaged since?
        return None  # past the year 9999
    return found_s * 1000 if found_s is not None else None


@lru_cache(maxsize=4096)
def _shown_last(expression: str, zone: tzinfo, until_s: int) -> int:
    """Return when clocks last showed a time of an expression, epoch ms, as if they had never been changed about then.
    If they did not within 50 years, or in the last second that dates have, return the given time."""
    try:
        until = datetime.fromtimestamp(until_s, zone).replace(tzinfo=None)
        moment = next(CronSim(expression, until + _SECOND, reverse=True))
        return int(moment.replace(tzinfo=zone).timestamp()) * 1000
    except (OverflowError, StopIteration, ValueError):
        return until_s * 1000


def _next_on_wall(expression: str, zone: tzinfo, after_s: int) -> int | None:
    """Find the next time by the clock on the wall. A time that comes twice fires the first time; one that is left out
    fires when the clock is past it."""
    after = datetime.fromtimestamp(after_s, zone)
    for moment in CronSim(expression, after.replace(tzinfo=None)):
        found_s = int(_on_wall(moment, zone).timestamp())
        if found_s > after_s:
            return found_s
    return None


def _next_by_elapsed_time(expression: str, zone: tzinfo, after_s: int) -> int | None:
    """Find the next time by elapsed time. An hour that comes twice fires twice, one that is left out not at all."""
    begin_s = after_s + 1
    while True:
        # Until the zone's next change, its clocks keep the same distance from UTC.
        offset = _offset(zone, begin_s)
        before = _EPOCH + timedelta(seconds=begin_s - 1) + offset
        moment = next(CronSim(expression, before), None)
        if moment is None:
            return None
        found_s = (moment - offset - _EPOCH) // _SECOND
        changed_s = _first_change(zone, begin_s, found_s)
        if changed_s is None:
            return found_s
        is_soon = changed_s - begin_s < _TWO_DAYS_S  # times shown by then may come again
        begin_s = changed_s if is_soon else max(changed_s, found_s - _TWO_DAYS_S)


def _first_change(zone: tzinfo, begin_s: int, end_s: int) -> int | None:
    """Return the first second behind `begin_s`, and not behind `end_s`, from which on the zone's clocks are changed."""
    offset = _offset(zone, begin_s)
    if zone is UTC:
        return None
    while begin_s < end_s:
        ahead_s = min(begin_s + _WEEK_S, end_s)
        if _offset(zone, ahead_s) != offset:
            week = range(begin_s + 1, ahead_s + 1)
            return week[bisect_left(week, True, key=lambda s: _offset(zone, s) != offset)]
        begin_s = ahead_s
    return None


def _offset(zone: tzinfo, epoch_s: int) -> timedelta:
    return datetime.fromtimestamp(epoch_s, zone).utcoffset() or timedelta(0)


def _on_wall(moment: datetime, zone: tzinfo) -> datetime:
    """Return when clocks first show a time, or where they leave it out, the first minute after it."""
    on_wall = moment.replace(tzinfo=zone)
    # Both sides have the same zone, so Python compares what clocks show.
    while on_wall != on_wall.astimezone(UTC).astimezone(zone):
        moment = moment.replace(second=0) + _MINUTE
        on_wall = moment.replace(tzinfo=zone)
    return on_wall


def _names_hours(expression: str) -> bool:
    """Whether neither the minute nor the hour begins with a star: Debian's cron then treats the job as one for certain
    times of day."""
    minute, hour = expression.split()[-5:-3]
    return not minute.startswith("*") and not hour.startswith("*")
