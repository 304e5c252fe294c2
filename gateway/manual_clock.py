"""A clock that stands still until it is moved, for tests of programs that send messages for later.

A data folder that is used with it is marked, and is no longer served by the machine's clock. A folder that already
holds something is refused. So no test moves the time of real messages.
"""

from __future__ import annotations

from typing import Final

from gateway.clock import Clock
from storage import Store

_NOTE: Final = b"manual clock"
"""Name of the folder's note: the time that the clock shows, as text in epoch ms."""


class ClockError(Exception):
    """The folder and the clock do not fit together; the text says why and what to do."""


class ManualClock(Clock):
    """Shows the time that it was set to, also after a restart.

    :param store: the folder whose note keeps the time.
    """

    moves = False

    def __init__(self, store: Store, now_ms: int) -> None:
        self._now_ms = now_ms
        self._store = store
        super().__init__()

    def now_ms(self) -> int:
        """The time that the clock was moved to, epoch ms."""
        return self._now_ms

    def move_to(self, now_ms: int) -> None:
        """Show another time. The change joins the store's batch."""
        self._store.put_note(_NOTE, b"%d" % now_ms)
        self._now_ms = now_ms

    def reload(self) -> None:
        """Show the stored time again: the move could not be stored."""
        stored = self._store.note(_NOTE)
        assert stored is not None  # `clock_for` stores it before anything else
        self._now_ms = int(stored)

    def _measure(self) -> int:
        return 0  # only the gateway moves it, so `watch` finds no step


def clock_for(store: Store, *, manual: bool, clock: Clock) -> Clock:
    """Return the clock by which to serve a data folder.

    :param manual: whether it is to be a manual clock; that begins with the present.
    :param clock: the machine's clock.
    :raises ClockError: when the folder belongs to the other kind of clock.
    """
    shown = store.note(_NOTE)
    path = store.environment.path
    if not manual:
        if shown is not None:
            raise ClockError(
                f"the data folder {path} was made with clock = manual, and its times are of that clock; "
                "set clock to manual, or data to another folder"
            )
        return clock
    if shown is not None:
        return ManualClock(store, int(shown))
    if store.next_sequence > 1 or store.topics() or store.groups() or store.notes():
        raise ClockError(
            f"clock = manual is for tests, and the data folder {path} holds real data; "
            "set data to a folder that does not exist yet"
        )
    made = ManualClock(store, clock.now_ms())
    made.move_to(made.now_ms())
    store.commit()
    return made
