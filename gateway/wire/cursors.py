"""Cursors into a list that is spread over several workers: the place to go on from at each of them.

A cursor is text such as `0.2:0000018F,1:`. It has each worker's own cursor, which is empty before the worker's first
page, behind the number in which the worker's broker name ends; workers with the same cursor share it. A worker whose
part is complete is not named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_MERGED: Final = re.compile(r"[0-9.]+:[0-9A-Fa-f]*(,[0-9.]+:[0-9A-Fa-f]*)*")


def join_cursors(parts: Mapping[str, str]) -> str:
    """Join the cursors of several workers, given by broker name, into one."""
    numbers: dict[str, list[str]] = {}
    for broker, cursor in parts.items():
        numbers.setdefault(cursor, []).append(_number(broker))
    return ",".join(f"{'.'.join(those)}:{cursor}" for cursor, those in numbers.items())


def own_cursor(text: str, broker: str) -> str | None:
    """Return a worker's own part of a cursor, or None when the worker's part of the list is complete.

    A cursor without numbers is for any broker that reads it, and so is text that is no cursor at all.
    """
    if not _MERGED.fullmatch(text):
        return text
    for part in text.split(","):
        numbers, _, cursor = part.partition(":")
        if _number(broker) in numbers.split("."):
            return cursor
    return None


def _number(broker: str) -> str:
    return broker.rpartition("-")[2]
