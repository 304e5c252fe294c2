"""Reads notes of the store into memory."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from twisted.logger import Logger

from gateway.access.policies import PolicyError
from storage import Store

_log = Logger()


def read_notes(
    store: Store, prefix: bytes, kind: str, take: Callable[[bytes, bytes], object]
) -> None:
    """Pass the notes whose names begin with a prefix to `take`. A note that cannot be read is
    logged and does not count: the gateway works without it.

    :param kind: what the log calls such a note.
    :param take: called with the rest of each name, and the value; it raises an error where it cannot read them.
    """
    for name, value in store.notes(prefix):
        _read(name, value, kind, take)


def read_note(
    store: Store, prefix: bytes, name: bytes, kind: str, take: Callable[[bytes, bytes], object]
) -> None:
    """Pass one note to `take`, as `read_notes` does, if there is such a note.

    :param name: the rest of its name, behind the prefix.
    """
    value = store.note(prefix + name)
    if value is not None:
        _read(name, value, kind, take)


def _read(name: bytes, value: bytes, kind: str, take: Callable[[bytes, bytes], object]) -> None:
    try:
        take(name, value)
    except (msgspec.DecodeError, ValueError, PolicyError) as error:
        _log.error(
            "the {kind} {name} cannot be read ({error}) and is ignored until it is set again",
            kind=kind,
            name=name.decode(errors="backslashreplace"),
            error=str(error),
        )
