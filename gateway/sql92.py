"""SQL92 filters: the expressions by which consumers select messages on their properties (SelectorParser).

    selector   = or
    or         = and { OR and }
    and        = equality { AND equality }
    equality   = comparison { "=" comparison | "<>" comparison | IS [NOT] NULL }
    comparison = unary { (">" | ">=" | "<" | "<=") unary
                       | [NOT] BETWEEN unary AND unary
                       | [NOT] IN "(" string { "," string } ")"
                       | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string }
    unary      = "+" unary | "-" unary | NOT unary | primary
    primary    = string | number | TRUE | FALSE | NULL | property | "(" or ")"

Keywords are in any case, names of properties are case-sensitive. Blanks, `-- comments` up to the end of the line and
`/* comments */` separate tokens. Two rules surprise, and are upstream's. NOT binds closer than a comparison, so
`NOT a = 1` is `(NOT a) = 1`. What follows a whole expression is not read, so `a = 1 b = 2` is `a = 1`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.sql92_values import (
    MAX_DEPTH,
    SEARCHES,
    Condition,
    ConditionConstant,
    Constant,
    IncomparableError,
    Long,
    Operand,
    Property,
    SqlError,
    as_condition,
    between,
    both,
    either,
    equal,
    is_null,
    negation,
    negative,
    one_of,
    ordered,
    outside,
    search,
)
from gateway.wire.properties import parse

__all__ = ["MAX_LENGTH", "SqlError", "compile_sql"]

MAX_LENGTH: Final = 65_536
"""Most characters of an expression; the Java broker has no limit."""

MAX_OPERANDS: Final = 2_000
"""Most properties and values, 5 us each to parse. The strings of IN are no operands: a list of thousands is one value
to look up."""

_MAX_NESTING: Final = MAX_DEPTH // 2
"""Most parentheses and signs nested within one another: the parser calls itself six times for each."""

_KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", *SEARCHES)
)
_LITERALS: Final = {"TRUE": True, "FALSE": False, "NULL": None}
_BLANK = r"[ \t\n\r\f]+|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/"
_SKIPPED = re.compile(rf"(?:{_BLANK}|--[^\n\r]*[\n\r])*")
_SKIPPED_IN_LAST_LINE = re.compile(rf"(?:{_BLANK})*")
"""In the last line `--` are two signs. A search for the end of a comment at each of thousands would take seconds."""

_TOKEN = re.compile(
    r"(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?"
    r"|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<whole>0|[1-9][0-9]*[lL]?)"
    r"|(?P<string>'(?:''|[^'])*')"
    r"|(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<symbol><>|<=|>=|[=<>(),+-])"
)


class _Token(NamedTuple):
    """`kind` is the keyword or symbol itself, or `name`, `string`, `whole`, `float` or `end`."""

    kind: str
    text: str
    column: int


def compile_sql(expression: str) -> Callable[[str], bool]:
    """Return a function that decides by a record's properties whether the message is selected.

    :raises SqlError: when the expression is not valid.
    """
    if len(expression) > MAX_LENGTH:
        raise SqlError(f"an expression of {len(expression)} characters; {MAX_LENGTH} are possible")
    evaluate = _Parser(expression).selector().evaluate

    def selects(properties: str) -> bool:
        try:
            return evaluate(parse(properties)) is True
        except IncomparableError:
            return False

    return selects


class _Parser:
    """Parses one expression. Tokens are scanned as they are needed, since anything may follow the expression."""

    def __init__(self, expression: str) -> None:
        self._text = expression
        self._last_line = max(expression.rfind("\n"), expression.rfind("\r")) + 1
        self._position = 0
        self._ahead: _Token | None = None
        self._nesting = 0
        self._operands = 0

    def selector(self) -> Condition:
        return as_condition(self._or())

    def _or(self) -> Operand:
        first = self._and()
        if self._next() != "OR":
            return first
        parts = [as_condition(first)]
        while self._skip("OR"):
            parts.append(as_condition(self._and()))
        return either(parts)

    def _and(self) -> Operand:
        first = self._equality()
        if self._next() != "AND":
            return first
        parts = [as_condition(first)]
        while self._skip("AND"):
            parts.append(as_condition(self._equality()))
        return both(parts)

    def _equality(self) -> Operand:
        left = self._comparison()
        while True:
            if self._skip("="):
                left = equal(left, self._comparison())
            elif self._skip("<>"):
                left = negation(equal(left, self._comparison()))
            elif self._skip("IS"):
                negated = self._skip("NOT")
                self._take("NULL")
                left = negation(is_null(left)) if negated else is_null(left)
            else:
                return left

    def _comparison(self) -> Operand:
        left = self._unary()
        while True:
            if self._next() in (">", ">=", "<", "<="):
                symbol = self._take().kind
                left = ordered(left, symbol, self._unary())
                continue
            negated = self._skip("NOT")
            word = self._next()
            if word == "BETWEEN":
                self._take()
                low = self._unary()
                self._take("AND")
                left = (outside if negated else between)(left, low, self._unary())
            elif word == "IN":
                self._take()
                left = one_of(left, self._strings(), negated)
            elif word in SEARCHES:
                self._take()
                left = search(left, word, self._string(), negated)
            elif negated:
                raise self._error("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")
            else:
                return left

    def _unary(self) -> Operand:
        self._nesting += 1
        if self._nesting > _MAX_NESTING:
            raise SqlError(f"more than {_MAX_NESTING} parentheses or signs are nested")
        if self._skip("+"):
            operand = self._unary()
        elif self._skip("-"):
            operand = negative(self._unary())
        elif self._skip("NOT"):
            operand = negation(as_condition(self._unary()))
        else:
            operand = self._primary()
        self._nesting -= 1
        return operand

    def _primary(self) -> Operand:
        kind = self._next()
        if kind == "(":
            self._take()
            operand = self._or()
            self._take(")")
            return operand
        self._operands += 1
        if self._operands > MAX_OPERANDS:
            raise SqlError(f"more than {MAX_OPERANDS} properties and values")
        if kind == "string":
            return Constant(self._string())
        if kind == "name":
            return Property(self._take().text)
        if kind in _LITERALS:
            return ConditionConstant(_LITERALS[self._take().kind])
        if kind == "whole":
            return Constant(_whole(self._take().text))
        if kind == "float":
            return Constant(_float(self._take().text))
        raise self._error("a property, a string, a number or a parenthesis")

    def _strings(self) -> list[str]:
        self._take("(")
        strings = [self._string()]
        while self._skip(","):
            strings.append(self._string())
        self._take(")")
        return strings

    def _string(self) -> str:
        return self._take("string").text[1:-1].replace("''", "'")

    # -- tokens

    def _peek(self) -> _Token:
        """Return the next token without taking it."""
        if self._ahead is None:
            self._ahead = self._scan()
        return self._ahead

    def _next(self) -> str:
        """Return the next token's kind."""
        return self._peek().kind

    def _skip(self, kind: str) -> bool:
        """Take the next token if it is of this kind; return whether it was."""
        if self._next() != kind:
            return False
        self._ahead = None
        return True

    def _take(self, kind: str | None = None) -> _Token:
        """Take the next token, which must be of this kind if one is given."""
        token = self._peek()
        if kind is not None and token.kind != kind:
            raise self._error(kind if kind != "string" else "a string in single quotes")
        self._ahead = None
        return token

    def _scan(self) -> _Token:
        blanks = _SKIPPED if self._position < self._last_line else _SKIPPED_IN_LAST_LINE
        skipped = blanks.match(self._text, self._position)
        assert skipped is not None
        start = skipped.end()
        found = _TOKEN.match(self._text, start)
        if found is None:
            if start == len(self._text):
                return _Token("end", "", start + 1)
            raise SqlError(f"{self._text[start]!r} at column {start + 1} means nothing")
        self._position = found.end()
        kind, text = str(found.lastgroup), found[0]
        if kind == "symbol":
            kind = text
        elif kind == "word":
            kind = text.upper() if text.upper() in _KEYWORDS else "name"
        return _Token(kind, text, start + 1)

    def _error(self, wanted: str) -> SqlError:
        token = self._peek()
        found = token.text[:40] if token.kind != "end" else "the end"
        return SqlError(f"{wanted} is expected at column {token.column}, not {found}")


def _whole(text: str) -> int:
    digits = text.rstrip("lL")
    if len(digits) > 19 or int(digits) >= 1 << 63:
        raise SqlError(f"{text[:40]} is beyond 64 bits")
    number = int(digits)
    return number if number < 1 << 31 else Long(number)


def _float(text: str) -> float:
    number = float(text)
    if not 0.0 < number < float("inf"):
        raise SqlError(f"{text[:40]} is too small or too large; zero has no point: 0")
    return number
