"""Points in time as people write and read them, to and from epoch ms. Pure: now is an argument."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo

from gateway.settings.values import parse_duration

_ONE_MS = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# A number with fewer digits would be before 1973; it is nearly always in seconds, or a date without its dashes.
_LEAST_EPOCH_MS = 100_000_000_000

LATEST_DATE_MS = 253_402_300_799_999
"""The end of the year 9999, the last that dates have."""

LATEST_EPOCH_MS = 1 << 62
"""The latest time: what is computed from it still fits where times are kept."""

EXPECTED = (
    "write a time such as 2030-01-31T09:30, 2030-01-31T09:30:00+01:00, +30m, -2h, now, or epoch ms"
)


def parse_moment(text: str, now_ms: int, zone: tzinfo | None = None) -> int:
    """Return `text` as epoch ms. It may be ISO 8601 (in `zone` unless it has its own, else local time), `+30m`, `-2h`,
    `now` or epoch ms.

    Raises ValueError with one line that says what to write.
    """
    text = text.strip()
    try:
        if text == "now":
            return now_ms
        if text[:1] in ("+", "-"):
            return now_ms + parse_shift(text)
        if text.isascii() and text.isdigit():
            if not _LEAST_EPOCH_MS <= int(text) <= LATEST_EPOCH_MS:
                raise ValueError
            return int(text)
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=zone) if zone is not None else _local(moment)
        return (moment.astimezone(UTC) - _EPOCH) // _ONE_MS
    except (ValueError, OverflowError):
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
        hint = f"if these are seconds, write {number}000; " if is_in_seconds(number) else ""
        raise ValueError(f"{text!r} is not a time; {hint}{EXPECTED}") from None


def _local(moment: datetime) -> datetime:
    """Return a local time in UTC. One that the change to summer time leaves out is read by the clocks before it, as in
    a named zone: `astimezone` reads it by those after it, which is an hour earlier."""
    second = datetime.fromtimestamp(moment.replace(microsecond=0).timestamp(), UTC)
    return second.replace(microsecond=moment.microsecond)


def is_in_seconds(epoch_ms: int) -> bool:
    """Whether what should be epoch ms is in seconds: a time from 2001 on, while as ms it is between 1970 and 1973."""
    return 1_000_000_000 <= epoch_ms < _LEAST_EPOCH_MS


def parse_shift(text: str) -> int:
    """Return how many ms later `+30m` or `30m` is; less than 0 for an earlier time, such as `-2h`.

    Raises ValueError.
    """
    signed = text[:1] in ("+", "-")
    length = parse_duration(text[1:] if signed else text) // _ONE_MS
    if length < 0:
        raise ValueError("it is not a duration")
    return -length if text[:1] == "-" else length


def write_moment(epoch_ms: int) -> str:
    """Return a time since 1970 as text that `parse_moment` reads the same in any time zone."""
    if epoch_ms >= _LEAST_EPOCH_MS:
        return str(epoch_ms)
    return (_EPOCH + timedelta(milliseconds=epoch_ms)).isoformat()


def show_moment(epoch_ms: int) -> str:
    """Return local time such as `2030-01-31 09:30:00.000`; past the year 9999 the number itself."""
    try:
        moment = (_EPOCH + timedelta(milliseconds=epoch_ms)).astimezone()
    except OverflowError:
        return str(epoch_ms)
    return moment.replace(tzinfo=None).isoformat(" ", "milliseconds")


def show_distance(epoch_ms: int, now_ms: int) -> str:
    """Return how far away a time is, in the largest fitting unit: `in 3 min`, `2 h ago`, `now`."""
    seconds = abs(epoch_ms - now_ms) // 1000
    for unit, size, least in (("d", 86_400, 2), ("h", 3_600, 2), ("min", 60, 2), ("s", 1, 1)):
        if seconds >= size * least:
            amount = f"{seconds // size:,} {unit}"
            return f"in {amount}" if epoch_ms > now_ms else f"{amount} ago"
    return "now"
