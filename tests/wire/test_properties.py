"""The string of properties: searched, parsed, joined, shortened."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire import properties as names
from gateway.wire.properties import find, join, keys_in, parse, remove
from tests.wire.strategies import NAMES, PROPERTIES

EXAMPLE = "KEYS\x01k1\x02UNIQ_KEY\x01AB\x02WAIT\x01true\x02TAGS\x01A\x02"

STRINGS = st.lists(
    st.sampled_from(["A", "AB", "B", "\x01", "\x02", "x", "A\x01x\x02", "A\x01\x02", "B\x01y"]),
    max_size=12,
).map("".join)
"""Strings of properties, valid or not."""


def test_string_from_the_protocol() -> None:
    assert parse(EXAMPLE) == {"KEYS": "k1", "UNIQ_KEY": "AB", "WAIT": "true", "TAGS": "A"}
    assert [find(EXAMPLE, name) for name in ("KEYS", "UNIQ_KEY", "WAIT", "TAGS")] == [
        "k1",
        "AB",
        "true",
        "A",
    ]
    assert join(parse(EXAMPLE)) == EXAMPLE


def test_last_separator_may_be_missing() -> None:
    assert find(EXAMPLE[:-1], names.TAGS) == "A"
    assert parse(EXAMPLE[:-1]) == parse(EXAMPLE)


def test_a_name_is_found_whole_only() -> None:
    text = "ADELAY\x011\x02DELAYED\x012\x02X\x01DELAY\x02"
    assert find(text, names.DELAY) is None
    assert find(text + "DELAY\x013\x02", names.DELAY) == "3"


def test_empty_value_does_not_count() -> None:
    assert find("DELAY\x01\x02", names.DELAY) is None
    assert find("DELAY\x012\x02DELAY\x013\x02DELAY\x01\x02", names.DELAY) == "3"
    assert parse("DELAY\x01\x02\x01x\x02") == {}
    assert join({"DELAY": "", "A": "1"}) == "A\x011\x02"


def test_last_of_several_counts() -> None:
    assert find("A\x011\x02A\x012\x02B\x013\x02", "A") == "2"


def test_value_may_hold_the_first_separator() -> None:
    assert find("A\x01x\x01y\x02", "A") == "x\x01y"
    assert find("A\x01x\x01y\x02", "x") is None


def test_very_many_empty_pairs() -> None:
    assert find("A\x01" + "\x02A\x01" * 10_000, "A") is None


def test_remove() -> None:
    assert remove(EXAMPLE, [names.WAIT, names.KEYS]) == "UNIQ_KEY\x01AB\x02TAGS\x01A\x02"
    assert remove(EXAMPLE[:-1], ["NONE"]) == EXAMPLE
    assert remove("A\x011\x02A\x012", ["A"]) == ""


def test_keys() -> None:
    assert keys_in(" k1  k2 ") == [b"k1", b"k2"]
    assert keys_in("k\t1 k\n2") == [b"k\t1", b"k\n2"]
    assert keys_in("") == keys_in(" ") == []


@pytest.mark.parametrize("bad", [{"": "x"}, {"A\x01": "x"}, {"A": "x\x02"}, {"A\x02B": "x"}])
def test_what_would_be_read_back_otherwise_is_not_joined(bad: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="not a property"):
        join(bad)


@given(PROPERTIES)
def test_join_and_parse(properties: dict[str, str]) -> None:
    text = join(properties)
    assert parse(text) == properties
    assert list(parse(text)) == list(properties)


@given(STRINGS, NAMES | st.sampled_from(["A", "B"]))
def test_find_agrees_with_parse(text: str, name: str) -> None:
    assert find(text, name) == parse(text).get(name)


@given(STRINGS, st.sets(st.sampled_from(["A", "AB", "B"])))
def test_remove_removes_those_and_only_those(text: str, gone: set[str]) -> None:
    left = {name: value for name, value in parse(text).items() if name not in gone}
    removed = remove(text, gone)
    assert parse(removed) == left
    assert removed == "" or removed.endswith("\x02")


def test_names_are_upstreams() -> None:
    # Written out, because clients depend on every letter (MessageConst).
    assert names.START_DELIVER_TIME == "__STARTDELIVERTIME"
    assert names.TRANSACTION_ID == "__transactionId__"
    assert names.CRC32 == "__CRC32#"
    assert names.FIRST_POP_TIME == "1ST_POP_TIME"
    assert names.FORWARD_QUEUE_ID == "PROPERTY_FORWARD_QUEUE_ID"
    assert names.TRAN_PREPARED_QUEUE_OFFSET == "TRAN_PREPARED_QUEUE_OFFSET"
