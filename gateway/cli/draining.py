"""Hands pending messages over to another server, and aborts them here once it has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from gateway.cli.transfer import HeldLine, line_of
from gateway.client import RefusalError
from storage import State, Store, abort_sequences, all_with_id, scan_pending

PAGE: Final = 200
"""Messages between two commits: at most so many are sent twice if a drain is killed and run again."""

_LATEST_MS: Final = (1 << 63) - 1

_Kind = tuple[str, str, int, int, int]
"""What the other server can tell messages apart by: topic, id, due time, born time and size."""


class Handed(NamedTuple):
    """A message that the other server has, or has refused with a reason."""

    line: HeldLine
    refusal: str | None


def drain(
    store: Store, send: Callable[[HeldLine, int], bool], now_ms: Callable[[], int]
) -> Iterator[Handed]:
    """Hand over all pending messages, the next due first. Unreadable messages stay, and are in `Store.damaged`.

    :param send: returns once the other server holds the message; see `transfer.Sender.send`.
    :raises ClientError: when the other server cannot be reached; the messages that it has are aborted here.
    """
    cursor: bytes | None = None
    due_ms = 0
    same: Counter[_Kind] = Counter()  # messages of a kind that the other server has
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
        taken: list[int] = []
        try:
            for found in page.found:
                line = line_of(found.record, found.due_ms)
                if line.due_ms != due_ms:
                    due_ms = line.due_ms
                    same.clear()
                kind = _kind_of(line)
                number = same[kind] + 1
                refusal = None
                try:
                    if not send(line, number) and number == 1:
                        # The server may have another one of the kind, from an earlier drain.
                        number += _aborted(store, kind)
                        send(line, number)
                    same[kind] = number
                    taken.append(found.sequence)
                except RefusalError as error:
                    refusal = str(error)
                yield Handed(line, refusal)
        finally:
            if taken:
                abort_sequences(store, taken, now_ms())
                store.commit()
                store.checkpoint_if_due()
        cursor = page.cursor
        if cursor is None:
            return


def _kind_of(line: HeldLine) -> _Kind:
    return line.topic, line.msg_id, line.due_ms, line.born_ms, len(line.body)


def _aborted(store: Store, kind: _Kind) -> int:
    """Return how many messages of a kind are aborted here."""
    return sum(
        one.state is State.ABORTED and _kind_of(line_of(one.record, one.due_ms)) == kind
        for one in all_with_id(store, kind[1].encode())
    )
