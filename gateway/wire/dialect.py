"""fastjson's dialect of JSON, in which Java writes bodies: keys may be bare numbers, and even objects.

    {"brokerAddrs":{0:"10.0.0.1:10911"}}
    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:12}}

Java reads such maps in this form only, so the gateway writes them in this form too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

_TOKEN: Final = re.compile(
    rb'\s*(?:(?P<string>"(?:[^"\\]++|\\.)*+")|(?P<mark>[{}\[\]:,])|(?P<word>[^\s{}\[\]:,"]+))',
    re.DOTALL,
)
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
MAX_TEXT: Final = 256 << 10
"""Most bytes of text that is not plain JSON. Reading the worst text of this size takes 0.2 s; thousands of queues fit
in."""

_MAX_DEPTH: Final = 100
_MAX_KEY_DEPTH: Final = 2
_encode = msgspec.json.Encoder().encode


class DialectError(ValueError):
    """Text that is neither JSON nor in this dialect."""


def to_json(text: bytes, most_bytes: int = MAX_TEXT) -> bytes:
    """Convert text to plain JSON: a key that is bare or an object becomes a string. Control characters in strings are
    escaped, and C's NUL at the end is left out.

    :param most_bytes: the longest text to convert. A caller that holds nobody up may allow more.
    :raises DialectError: when brackets or quotes do not match, or the text is too long. The result may have other
        faults.
    """
    if len(text) > most_bytes:
        raise DialectError(
            f"{len(text)} bytes that are not standard JSON; {most_bytes} are possible"
        )
    tokens = _tokens(text)
    value, end = _value(tokens, 0, 0)
    if end != len(tokens):
        raise DialectError(f"text follows the JSON value: {tokens[end][:40]!r}")
    return value


def map_by_objects(entries: Iterable[tuple[Any, Any]]) -> msgspec.Raw:
    """Return a map whose keys are objects, for use as a value in what `msgspec.json.encode` writes."""
    return joined_entries([entries_by_objects(entries)])


def entries_by_objects(entries: Iterable[tuple[Any, Any]]) -> bytes:
    """Return some entries of a map whose keys are objects."""
    return b",".join(_encode(key) + b":" + _encode(value) for key, value in entries)


def joined_entries(parts: Iterable[bytes]) -> msgspec.Raw:
    """Return the map of these entries, as `map_by_objects` does."""
    return msgspec.Raw(b"{" + b",".join(filter(None, parts)) + b"}")


def _tokens(text: bytes) -> list[bytes]:
    tokens = []
    at = 0
    end = len(text.rstrip(b" \t\r\n\0"))
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise DialectError(f"a string does not end: {text[at : at + 40]!r}")
        tokens.append(found[0].lstrip())
        at = found.end()
    return tokens


def _value(tokens: list[bytes], at: int, depth: int) -> tuple[bytes, int]:
    """Return the value that begins at a token, and the number of the token after it."""
    token = _at(tokens, at)
    if depth > _MAX_DEPTH:
        raise DialectError(f"nested more than {_MAX_DEPTH} deep")
    if token == b"{":
        return _items(tokens, at + 1, depth, b"}")
    if token == b"[":
        return _items(tokens, at + 1, depth, b"]")
    if token in (b"}", b"]", b":", b","):
        raise DialectError(f"{token.decode()} where a value is due")
    return _CONTROL.sub(lambda found: b"\\u%04x" % found[0][0], token), at + 1


def _items(tokens: list[bytes], at: int, depth: int, closing: bytes) -> tuple[bytes, int]:
    """Return the items of an object or an array up to its closing bracket, and the number of the token after it."""
    items = []
    while _at(tokens, at) != closing:
        # A key is an object of plain members: with keys nested in keys, each level would double the quoting.
        levels = _MAX_DEPTH - _MAX_KEY_DEPTH if closing == b"}" else 0
        item, at = _value(tokens, at, max(depth + 1, levels))
        if closing == b"}":
            if _at(tokens, at) != b":":
                raise DialectError(f"no colon behind the key {item[:40]!r}")
            value, at = _value(tokens, at + 1, depth + 1)
            item = (item if item[:1] == b'"' else _quoted(item)) + b":" + value
        items.append(item)
        if _at(tokens, at) == b",":
            at += 1
        elif _at(tokens, at) != closing:
            raise DialectError(f"no comma behind {item[-40:]!r}")
    opening = b"{" if closing == b"}" else b"["
    return opening + b",".join(items) + closing, at + 1


def _at(tokens: list[bytes], at: int) -> bytes:
    if at >= len(tokens):
        raise DialectError("the text ends inside a value")
    return tokens[at]


def _quoted(key: bytes) -> bytes:
    return _encode(key.decode(errors="replace"))
