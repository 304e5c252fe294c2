"""Hands pending messages over to another server, and aborts them here once it has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from gateway.cli.transfer import HeldLine, line_of
from gateway.client import RefusalError
from storage import Store, abort_sequences, scan_pending

PAGE: Final = 200
"""Messages between two commits: at most so many are sent twice if a drain is killed and run again."""

_LATEST_MS: Final = (1 << 63) - 1


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
    same: Counter[tuple[str, str, int, int]] = Counter()
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
                kind = (line.topic, line.msg_id, line.born_ms, len(line.body))
                same[kind] += 1
                refusal = None
                try:
                    send(line, same[kind])
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
