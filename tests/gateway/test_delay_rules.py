"""The rules of delays by themselves: the input is properties and a time, the result a due time or an error."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.delays import Delay, DelayRules, asks_for_delay, delay_of
from gateway.router import RequestError
from gateway.wire.codes import ResponseCode
from gateway.wire.properties import parse
from tests.gateway.memory import START_MS as NOW
from tests.gateway.memory import property_string

DAY = 86_400_000
RULES = DelayRules((1_000, 5_000, 60_000), 30 * DAY)


def delay_with(properties: Mapping[str, str]) -> Delay | None:
    """Return the delay for these properties."""
    text = property_string(properties)
    return delay_of(text, parse(text), NOW, RULES)


def due(**properties: str) -> int | None:
    """Return when a message with these properties is due, or None for at once."""
    delay = delay_with(properties)
    return delay.due_ms if delay is not None else None


def refusal(**properties: str) -> RequestError:
    """Return the refusal of a message with these properties."""
    with pytest.raises(RequestError) as caught:
        delay_with(properties)
    return caught.value


class TestLevels:
    @pytest.mark.parametrize(
        ("level", "delay_ms"),
        [("1", 1_000), ("2", 5_000), ("3", 60_000), ("+2", 5_000), ("\uff12", 5_000)],
    )
    def test_table(self, level: str, delay_ms: int) -> None:
        assert due(DELAY=level) == NOW + delay_ms

    @pytest.mark.parametrize("level", ["4", "99", str(2**31 - 1)])
    def test_above_the_last_is_the_last(self, level: str) -> None:
        delay = delay_with({"DELAY": level, "a": "b"})
        assert delay is not None
        assert delay.due_ms == NOW + 60_000
        assert parse(delay.properties) == {"a": "b", "DELAY": "3"}
        assert delay.by_level

    @pytest.mark.parametrize("level", ["0", "-1", "-0", str(-(2**31)), ""])
    def test_none_is_at_once(self, level: str) -> None:
        assert due(DELAY=level) is None

    @pytest.mark.parametrize(
        "level",
        ["x", "1.5", " 1", "1 ", "²", "0x1", "--1", "+", str(2**31), str(-(2**31) - 1)],
    )
    def test_not_a_number(self, level: str) -> None:
        error = refusal(DELAY=level)
        assert error.code == ResponseCode.SYSTEM_ERROR
        assert error.remark == f'NumberFormatException, DELAY is not a number: "{level}"'


class TestTimes:
    @pytest.mark.parametrize(
        ("name", "value", "due_ms"),
        [
            ("TIMER_DELAY_SEC", "3", NOW + 3_000),
            ("TIMER_DELAY_MS", "3", NOW + 3),
            ("TIMER_DELIVER_MS", str(NOW + 3), NOW + 3),
            ("__STARTDELIVERTIME", str(NOW + 3), NOW + 3),
            ("TIMER_DELAY_MS", "1", NOW + 1),
            ("TIMER_DELAY_SEC", "٣", NOW + 3_000),
            ("TIMER_DELIVER_MS", str(NOW + 30 * DAY), NOW + 30 * DAY),
            ("TIMER_DELAY_SEC", str(30 * DAY // 1_000), NOW + 30 * DAY),
        ],
    )
    def test_due(self, name: str, value: str, due_ms: int) -> None:
        assert due(**{name: value}) == due_ms

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("TIMER_DELAY_SEC", "0"),
            ("TIMER_DELAY_SEC", "-5"),
            ("TIMER_DELAY_MS", "0"),
            ("TIMER_DELAY_MS", str(-(2**63))),
            ("TIMER_DELAY_SEC", str(-(2**63))),
            ("TIMER_DELIVER_MS", str(NOW)),
            ("TIMER_DELIVER_MS", "0"),
            ("TIMER_DELIVER_MS", "-1"),
            ("__STARTDELIVERTIME", str(NOW - DAY)),
            ("TIMER_DELIVER_MS", ""),
        ],
    )
    def test_what_has_come_is_delivered_at_once(self, name: str, value: str) -> None:
        assert due(**{name: value}) is None

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("TIMER_DELAY_SEC", str(30 * DAY // 1_000 + 1)),
            ("TIMER_DELAY_MS", str(30 * DAY + 1)),
            ("TIMER_DELIVER_MS", str(NOW + 30 * DAY + 1)),
            ("__STARTDELIVERTIME", str(NOW + 30 * DAY + 1)),
            # In Java these overflow, and upstream then delivers at once.
            ("TIMER_DELAY_SEC", str(2**63 - 1)),
            ("TIMER_DELAY_MS", str(2**63 - 1)),
            ("TIMER_DELIVER_MS", str(2**63 - 1)),
        ],
    )
    def test_too_far_ahead(self, name: str, value: str) -> None:
        error = refusal(**{name: value})
        assert error.code == ResponseCode.MESSAGE_ILLEGAL
        assert f"should not be bigger than the max delay {30 * DAY}ms" in error.remark
        assert "max_delay" in error.remark
        assert name in error.remark

    @pytest.mark.parametrize(
        "name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__STARTDELIVERTIME"]
    )
    @pytest.mark.parametrize("value", ["soon", "1.0", "1e3", "²", str(2**63), str(-(2**63) - 1)])
    def test_not_a_number(self, name: str, value: str) -> None:
        error = refusal(**{name: value})
        assert error.code == ResponseCode.MESSAGE_ILLEGAL
        assert error.remark == f'timer message illegal, {name} is not a number: "{value}"'

    def test_a_long_text_is_not_repeated_whole(self) -> None:
        assert len(refusal(TIMER_DELAY_MS="x" * 30_000).remark) < 200

    def test_a_number_of_many_digits(self) -> None:
        # Python's `int` refuses numbers of more than 4,300 digits.
        assert refusal(TIMER_DELAY_MS="9" * 30_000).code == ResponseCode.MESSAGE_ILLEGAL
        assert refusal(DELAY="1" * 30_000).code == ResponseCode.SYSTEM_ERROR
        assert due(TIMER_DELAY_MS="0" * 10_000 + "5") == NOW + 5
        assert due(DELAY="0" * 10_000, TIMER_DELAY_MS="5") == NOW + 5


class TestPrecedence:
    ORDER = (
        ("DELAY", "2", NOW + 5_000),
        ("TIMER_DELAY_SEC", "7", NOW + 7_000),
        ("TIMER_DELAY_MS", "8", NOW + 8),
        ("TIMER_DELIVER_MS", str(NOW + 9), NOW + 9),
        ("__STARTDELIVERTIME", str(NOW + 10), NOW + 10),
    )

    @pytest.mark.parametrize("first", range(len(ORDER)))
    def test_the_first_given_counts(self, first: int) -> None:
        given = self.ORDER[first:]
        for pairs in (given, given[::-1]):
            assert due(**{name: value for name, value, _ in pairs}) == self.ORDER[first][2]

    def test_a_level_drops_the_times(self) -> None:
        properties = {name: value for name, value, _ in self.ORDER} | {"a": "b"}
        delay = delay_with(properties)
        assert delay is not None
        assert not set(parse(delay.properties)) & {
            "TIMER_DELAY_SEC",
            "TIMER_DELAY_MS",
            "TIMER_DELIVER_MS",
        }
        assert parse(delay.properties)["DELAY"] == "2"

    def test_a_level_of_0_does_not_count(self) -> None:
        assert due(DELAY="0", TIMER_DELAY_MS="8") == NOW + 8

    def test_an_empty_value_does_not_count(self) -> None:
        assert due(TIMER_DELAY_SEC="", TIMER_DELAY_MS="8") == NOW + 8

    def test_a_past_time_still_outranks_the_next(self) -> None:
        assert due(TIMER_DELAY_SEC="0", TIMER_DELAY_MS="8") is None


class TestOtherProperties:
    @pytest.mark.parametrize(
        "properties",
        [
            {},
            {"TIMER_OUT_MS": str(NOW + 5)},
            {"MY_DELAY": "1"},
            {"DELAYED": "1"},
            {"note": "DELAY"},
            {"XTIMER_DELAY_MS": "5"},
        ],
    )
    def test_ask_for_nothing(self, properties: dict[str, str]) -> None:
        assert due(**properties) is None

    @given(st.dictionaries(st.text("ADEILMRTVYS_", max_size=16), st.text("019", max_size=3)))
    def test_the_quick_look_misses_nothing(self, properties: dict[str, str]) -> None:
        text = property_string({name: value for name, value in properties.items() if name})
        if not asks_for_delay(text):
            assert delay_of(text, parse(text), NOW, RULES) is None


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from(["TIMER_DELAY_MS", "TIMER_DELIVER_MS"]))
def test_never_early_and_never_beyond_the_longest(value: int, name: str) -> None:
    asked = value if name == "TIMER_DELIVER_MS" else NOW + value
    if asked > NOW + RULES.max_delay_ms:
        assert refusal(**{name: str(value)}).code == ResponseCode.MESSAGE_ILLEGAL
    else:
        assert due(**{name: str(value)}) == (asked if asked > NOW else None)
