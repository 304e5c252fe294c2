"""The language of SQL92 filters: which messages an expression selects, and which expressions are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sql92 import MAX_LENGTH, SqlError, compile_sql
from gateway.wire.properties import join

MESSAGE = join({"TAGS": "A", "amount": "5", "price": "1.5", "city": "Berlin", "big": "3000000000"})


@pytest.mark.parametrize(
    "expression",
    [
        "TAGS = 'A'",
        "tags IS NULL",
        "amount = 5",
        "amount = 5.0",
        "'5' = amount",
        "amount <> 6 AND amount > 4 AND amount >= 5 AND amount < 6 AND amount <= 5",
        "amount between 5 and 5 or nothing = 1",
        "amount NOT BETWEEN 6 AND 9",
        "amount > -1",
        "price > 1.0",
        "big > 3000000000L OR big = 3000000000",
        "city IN ('Paris', 'Berlin')",
        "city NOT IN ('Paris')",
        "city CONTAINS 'erl' AND city STARTSWITH 'Ber' AND city ENDSWITH 'lin'",
        "city NOT CONTAINS 'x'",
        "nothing IS NULL AND city IS NOT NULL",
        "NOT (amount = 6)",
        "(amount = 5) = TRUE",
        "nothing = other",
        "'x' = 'x' AND 5 = 5",
        "TRUE",
        "TRUE = TRUE AND FALSE <> TRUE",
        "-- a comment\n/* and ** another */ amount=5",
        "nothing = 1 OR city = 'Berlin'",
    ],
)
def test_selects(expression: str) -> None:
    assert compile_sql(expression)(MESSAGE)


@pytest.mark.parametrize(
    "expression",
    [
        "TAGS = 'B'",
        "nothing = 1",
        "nothing <> 1",
        "NOT (nothing = 1)",
        "nothing NOT IN ('a')",
        "nothing NOT CONTAINS 'a'",
        "city CONTAINS ''",
        "price > 1",
        "amount > 9999999999 OR big > 1",
        "city > 1 OR amount = 5",
        "city",
        "NULL",
        "NOT amount = 5",
        "price = 1",
        "TRUE = city",
        "amount = 6 amount = 5",
    ],
)
def test_does_not_select(expression: str) -> None:
    assert not compile_sql(expression)(MESSAGE)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "column 1, not the end"),
        ("amount = ", "column 10"),
        ("amount = 'x", '"\'" at column 10 means nothing'),
        ("amount == 5", "column 9, not ="),
        ("amount ! 5", "'!' at column 8"),
        ("amount > 'a'", "only numbers can be compared by >"),
        ("TRUE > 1", "only numbers"),
        ("amount = NULL", "IS NULL"),
        ("TRUE = 1", "TRUE and FALSE"),
        ("amount BETWEEN 5 AND 1", "nothing is BETWEEN 5 AND 1"),
        ("amount IN (5)", "a string in single quotes"),
        ("'x' IN ('x')", "only a property"),
        ("amount NOT 5", "after NOT"),
        ("amount IS 5", "NULL is expected"),
        ("city IN ('Paris'", ") is expected"),
        ("(amount = 5", ") is expected"),
        ("5", "a condition is expected"),
        ("NOT 5", "a condition is expected"),
        ("amount = 9223372036854775808", "beyond 64 bits"),
        ("amount = 0.0", "zero has no point"),
        ("(" * 1_000, "signs are nested"),
        (" OR ".join(["a = 1"] * 1_001), "more than 2000 properties and values"),
        ("a = " * 300 + "a", "operations are nested"),
        ("a = '" + "x" * MAX_LENGTH + "'", f"{MAX_LENGTH} are possible"),
    ],
)
def test_says_what_is_wrong(expression: str, reason: str) -> None:
    with pytest.raises(SqlError) as error:
        compile_sql(expression)
    assert reason in str(error.value)


def test_what_cannot_be_compared_ends_the_whole_filter() -> None:
    selects = compile_sql("amount > 1 OR city = 'Berlin'")
    assert selects(join({"city": "Berlin"}))
    assert not selects(join({"city": "Berlin", "amount": "many"}))


def test_zeros_before_a_number_change_nothing_however_many() -> None:
    zeros = "0" * 5_000  # more digits than Python's int() takes
    assert compile_sql("amount = 5")(join({"amount": zeros + "5"}))
    assert compile_sql("amount = -5")(join({"amount": f"-{zeros}5"}))
    assert compile_sql("amount = 0")(join({"amount": zeros}))
    assert not compile_sql("amount = 5")(join({"amount": zeros + "3000000005"}))


@pytest.mark.parametrize("almost", ["1" * 1_000_000 + "x", "0x" + "a" * 1_000_000])
def test_what_is_almost_a_number_is_read_once(almost: str) -> None:
    """Trying each digit in two places would take hours."""
    assert not compile_sql("amount > 1.0")(join({"amount": almost}))


def test_a_property_is_looked_for_once_however_often_it_is_named() -> None:
    """If each occurrence went through all empty pairs, this would take hours."""
    empty = "\x02amount\x01" * 100_000
    assert not compile_sql(" OR ".join(["amount = 1"] * 1_000))(empty)
    assert compile_sql(" AND ".join(["amount IS NULL"] * 2_000))(empty)
    assert compile_sql(" AND ".join(["amount > 1"] * 1_000))(f"amount\x01{'0' * 9_000_000}2{empty}")


def test_points_of_numbers() -> None:
    for number in ("5.", ".5e1", "5.0", "5", "0x5p0", "0x5.p0", "0x5.0p0", "0x.8p3"):
        selects = compile_sql("amount BETWEEN 3.9 AND 5.1")
        assert selects(join({"amount": number})), number
    for none in (".", "5.5.5", "0x.p1", "0x5.0", ""):
        assert not compile_sql("amount > 0 OR amount <= 0.5")(join({"amount": none})), none


def test_two_signs_are_a_comment_only_where_their_line_ends() -> None:
    assert compile_sql("amount = --5")(MESSAGE)
    assert compile_sql("amount = -- 6\n5")(MESSAGE)
    assert compile_sql("amount = -- 6\r-- 7\r --5")(MESSAGE)
    assert compile_sql("amount =\n--5")(MESSAGE)
    assert compile_sql("amount = 5 --\n AND amount = --5 /* -- */ AND city = 'Berlin'")(MESSAGE)


def test_long_chains_need_no_depth() -> None:
    chain = " OR ".join(f"amount = {number}" for number in range(1_000))
    assert compile_sql(chain)(join({"amount": "999"}))
    assert not compile_sql(chain.replace("OR", "AND"))(join({"amount": "999"}))


WORDS = """\
a b 'x' 1 2.5 3L ( ) = <> > <= , AND OR NOT IS NULL IN BETWEEN TRUE CONTAINS + - --
"""
words = st.sampled_from(WORDS.split())


@given(st.one_of(st.text(max_size=60), st.lists(words, max_size=40).map(" ".join)), st.text())
def test_any_text_is_a_filter_or_refused(expression: str, properties: str) -> None:
    try:
        selects = compile_sql(expression)
    except SqlError:
        return
    assert selects(properties) in (True, False)


def test_a_list_may_be_as_long_as_an_expression() -> None:
    """One of 60,000 characters takes 8 ms to parse, and as many of comparisons took 40 ms."""
    listed = ",".join(f"'{number}'" for number in range(8_000))
    selects = compile_sql(f"a IN ({listed}) AND " + " AND ".join(["b > 1"] * 999))
    assert selects("a\x017999\x02b\x012\x02")
    assert not selects("a\x018000\x02b\x012\x02")
