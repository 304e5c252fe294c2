"""Hands what has not fired over to another server, and ends it here once that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from gateway.client import RefusalError
from gateway.intake import terms_of
from gateway.transfer import HeldLine, line_of
from storage import Found, State, Store, abort, find_by_id, scan_pending

PAGE: Final = 200
"""Messages between two commits: so many are sent again at most after a drain that was killed."""

_LATEST_MS: Final = (1 << 63) - 1


class Handed(NamedTuple):
    """A message that the other server has, or why it does not take it."""

    line: HeldLine
    refusal: str | None


def drain(
    store: Store, send: Callable[[HeldLine], bool], now_ms: Callable[[], int]
) -> Iterator[Handed]:
    """Hand over all that is pending, the next due first.

    :param send: returns once the other server holds the message; see `transfer.Sender.send`.
    :raises ClientError: when the other server cannot be reached; what it has is ended here.
    """
    cursor: bytes | None = None
    done: set[int] = set()
    while True:
        page = scan_pending(
            store,
            topic=None,
            begin_ms=0,
            end_ms=_LATEST_MS,
            tag_hash=None,
            cursor=cursor,
            limit=PAGE,
        )
        try:
            for found in page.found:
                if found.sequence not in done:
                    yield from _hand_over(store, found, done, send, now_ms())
        finally:
            if store.has_changes:
                store.commit()
                store.checkpoint_if_due()
        cursor = page.cursor
        if cursor is None:
            return


def _hand_over(
    store: Store,
    found: Found,
    done: set[int],
    send: Callable[[HeldLine], bool],
    now_ms: int,
) -> Iterator[Handed]:
    """A message with all others that have its topic and id, as an abort cannot tell them apart."""
    terms = terms_of(found.record)
    alike = [
        one
        for one in find_by_id(store, terms.message_id)
        if one.state is State.PENDING and terms_of(one.record).topic == terms.topic
    ]
    handed = []
    for one in alike:
        done.add(one.sequence)
        line = line_of(one.record, one.due_ms)
        try:
            send(line)
        except RefusalError as error:
            handed.append(Handed(line, str(error)))
        else:
            handed.append(Handed(line, None))
    if all(one.refusal is None for one in handed):
        abort(store, terms.message_id, now_ms, terms.topic)
    yield from handed
