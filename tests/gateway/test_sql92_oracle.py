"""SQL92 filters compared with the Java broker's own filter: the same verdict on every expression and message."""

from __future__ import annotations

import base64
import os
import random
import subprocess
from pathlib import Path

import pytest

from compat.toolchain.jars import SERVER, classpath
from compat.toolchain.java import compile_java, java
from gateway.sql92 import SqlError, compile_sql
from gateway.wire.properties import NAME_END, PAIR_END

pytestmark = [pytest.mark.live, pytest.mark.oracle]

SOURCE = Path(__file__).with_name("java") / "SqlOracle.java"

STRINGS = [
    *("1", "5", "-5", "+7", "007", "1.5", "1.0", "1e3", ".5", "5.", "1d", "1L", " 5 ", "0x1p3"),
    *("2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775808", "NaN", "-Infinity", "0.0", "-0.0", "0"),
    *("true", "TRUE", "false", "A", "B", "AB", "it's", "é", "", "٣", "1_0"),
]
NUMBERS = [
    *("0", "1", "5", "7", "1L", "0L", "007", "1.5", "1.0", "0.0", "5.", ".5", "1e3", "1E-400"),
    *("1e400", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808"),
]
NAMES = ["a", "b", "c", "TAGS", "_x$1"]
NOISE = [
    *("(", ")", "=", "<>", "<", ",", "AND", "OR", "NOT", "IS", "NULL", "IN", "BETWEEN", "#", "'"),
    *("-", "+", "--", "-- x\n", "/* x */", "/* x", "/**/", "/* ** / **/", "CONTAINS", "x", "'s'"),
    *("1", "TRUE", "&&", "!=", "\t", "\f", ";"),
]


class Expressions:
    """Makes expressions, most of them well-formed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def make(self) -> str:
        """Make one expression."""
        words = self._condition(3)
        if self._random.random() < 0.3:
            place = self._random.randrange(len(words) + 1)
            if self._random.random() < 0.5:
                words.insert(place, self._random.choice(NOISE))
            else:
                del words[place : place + 1]
        return " ".join(words)

    def properties(self) -> str:
        """Make the properties of a message."""
        return "".join(
            f"{name}{NAME_END}{self._random.choice(STRINGS)}{PAIR_END}"
            for name in self._random.choices(NAMES, k=4)
        )

    def _condition(self, depth: int) -> list[str]:
        choose = self._random.random()
        if depth and choose < 0.25:
            joiner = self._random.choice(("AND", "or", "AND", "OR", "=", "<>"))
            return [*self._condition(depth - 1), joiner, *self._condition(depth - 1)]
        if depth and choose < 0.35:
            return ["(", *self._condition(depth - 1), ")"]
        if depth and choose < 0.42:
            return ["NOT", *self._condition(depth - 1)]
        if choose < 0.46:
            return [self._random.choice(("TRUE", "False", "NULL", *NAMES))]
        return self._comparison()

    def _comparison(self) -> list[str]:
        negated = self._random.choice(([], [], ["NOT"]))
        left = self._value(names=0.8)
        kind = self._random.randrange(8)
        if kind == 0:
            return [*left, *negated, "BETWEEN", *self._value(0.1), "and", *self._value(0.1)]
        if kind == 1:
            listed = [word for _ in range(3) for word in (",", self._string())][1:]
            return [*left, *negated, "IN", "(", *listed, ")"]
        if kind == 2:
            word = self._random.choice(("CONTAINS", "StartsWith", "ENDSWITH"))
            return [*left, *negated, word, self._string()]
        if kind == 3:
            return [*left, "IS", *negated, "NULL"]
        symbol = self._random.choice(("=", "=", "<>", ">", ">=", "<", "<="))
        return [*left, symbol, *self._value(0.2)]

    def _value(self, names: float) -> list[str]:
        if self._random.random() < 0.12:
            return [self._random.choice("+-"), *self._value(names)]
        if self._random.random() < names:
            return [self._random.choice(NAMES)]
        if self._random.random() < 0.6:
            return [self._random.choice(NUMBERS)]
        if self._random.random() < 0.8:
            return [self._string()]
        return [self._random.choice(("TRUE", "FALSE", "NULL"))]

    def _string(self) -> str:
        text = self._random.choice(STRINGS).replace("'", "''")
        return f"'{text}'"


def java_verdicts(cases: list[tuple[str, str]]) -> list[str]:
    """Return the verdicts of the broker's filter on expressions with properties."""
    libraries = classpath(SERVER)
    classes = compile_java([SOURCE], libraries, "sql-oracle")
    path = os.pathsep.join(str(part) for part in (classes, *libraries))
    lines = [
        " ".join(base64.b64encode(part.encode()).decode() for part in case) + "\n" for case in cases
    ]
    done = subprocess.run(
        [java(), "-XX:TieredStopAtLevel=1", "-cp", path, "SqlOracle"],
        input="".join(lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [line for line in done.stdout.split("\n") if line in ("refused", "true", "false")]


def verdict(expression: str, properties: str) -> str:
    """Return Tidegate's verdict."""
    try:
        return str(compile_sql(expression)(properties)).lower()
    except SqlError:
        return "refused"


def test_the_same_verdicts_as_the_java_filter() -> None:
    expressions = Expressions(seed=92)
    cases = []
    for _ in range(4_000):
        expression = expressions.make()
        cases += [(expression, expressions.properties()) for _ in range(5)]
    expected = java_verdicts(cases)
    assert len(expected) == len(cases)
    different = [
        (expression, properties, theirs)
        for (expression, properties), theirs in zip(cases, expected, strict=True)
        if verdict(expression, properties) != theirs
    ]
    assert different == []
    counts = {word: expected.count(word) for word in ("refused", "true", "false")}
    assert min(counts.values()) > 1_000, counts
