"""Times as people write them, in a zone with summer time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.moments import parse_moment, show_distance, show_moment

NOW = 1_900_000_000_123


@pytest.fixture(autouse=True, scope="module")
def berlin() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "epoch_ms"),
    [
        ("2030-01-31T09:30:00Z", 1_896_082_200_000),
        ("2030-01-31T09:30:00.250+00:00", 1_896_082_200_250),
        ("2030-01-31T09:30:00+01:00", 1_896_078_600_000),
        ("2030-01-31T09:30", 1_896_078_600_000),
        ("2030-01-31 09:30", 1_896_078_600_000),
        ("2030-07-31T09:30", 1_911_713_400_000),
        ("2030-01-31", 1_896_044_400_000),
        ("1896078600001", 1_896_078_600_001),
        ("now", NOW),
        ("+30m", NOW + 1_800_000),
        ("+1h30m", NOW + 5_400_000),
        ("-2h", NOW - 7_200_000),
        ("+250ms", NOW + 250),
        ("+10", NOW + 10_000),
        (" +1d ", NOW + 86_400_000),
    ],
)
def test_reads(text: str, epoch_ms: int) -> None:
    assert parse_moment(text, NOW) == epoch_ms


@pytest.mark.parametrize("zone", [None, ZoneInfo("Europe/Berlin")])
@pytest.mark.parametrize(
    ("text", "in_utc"),
    [
        # Clocks go from 2:00 to 3:00: a time between must not be before that.
        ("2030-03-31T01:59:59.999", "2030-03-31T00:59:59.999Z"),
        ("2030-03-31T02:00", "2030-03-31T01:00Z"),
        ("2030-03-31T02:30:00.250", "2030-03-31T01:30:00.250Z"),
        ("2030-03-31T03:00", "2030-03-31T01:00Z"),
        # They go from 3:00 to 2:00: the first of the two is meant.
        ("2030-10-27T02:30", "2030-10-27T00:30Z"),
        ("2030-10-27T03:00", "2030-10-27T02:00Z"),
    ],
)
def test_reads_times_at_a_change_of_clocks(text: str, in_utc: str, zone: ZoneInfo | None) -> None:
    assert parse_moment(text, NOW, zone) == parse_moment(in_utc, NOW)


@pytest.mark.parametrize(
    "text",
    ["", "soon", "+", "+soon", "--5m", "20300131", "2030-13-01", "25:00", "+9e99"],
)
def test_refuses_with_the_forms_to_use(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time; write a time such as") as caught:
        parse_moment(text, NOW)
    assert "\n" not in str(caught.value)


def test_seconds_are_taken_for_what_they_are() -> None:
    with pytest.raises(ValueError, match="if these are seconds, write 1896078600000; write a time"):
        parse_moment("1896078600", NOW)


# From 1980 on (fewer digits are refused), without the hour that is repeated when summer time ends.
@given(
    st.integers(315_532_800_000, 4_000_000_000_000).filter(
        lambda ms: time.localtime(ms // 1000).tm_isdst == time.localtime(ms // 1000 - 3600).tm_isdst
    )
)
def test_what_is_shown_reads_back(epoch_ms: int) -> None:
    assert parse_moment(show_moment(epoch_ms), NOW) == epoch_ms


def test_shows_local_time() -> None:
    assert show_moment(1_896_078_600_001) == "2030-01-31 09:30:00.001"
    assert show_moment(1_911_713_400_000) == "2030-07-31 09:30:00.000"
    assert show_moment(2**60) == str(2**60)


@pytest.mark.parametrize(
    ("distance_ms", "shown"),
    [
        (0, "now"),
        (999, "now"),
        (1_000, "in 1 s"),
        (119_999, "in 119 s"),
        (180_000, "in 3 min"),
        (7_200_000, "in 2 h"),
        (86_400_000 * 2, "in 2 d"),
        (86_400_000 * 1234, "in 1,234 d"),
        (-5_000, "5 s ago"),
        (-7_300_000, "2 h ago"),
    ],
)
def test_shows_distance(distance_ms: int, shown: str) -> None:
    assert show_distance(NOW + distance_ms, NOW) == shown
