"""Whether a group gets a topic's messages by pulls or by pops. Operators choose it; the choices are stored
(MessageRequestModeManager)."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from gateway.notes import read_note, read_notes
from gateway.router import RequestError
from gateway.unstored import Unstored
from gateway.wire.admin_bodies import ConsumeMode
from gateway.wire.codes import ResponseCode
from storage import Store

PULL: Final = "PULL"
POP: Final = "POP"

MAX_PLACE = 400
"""Most bytes of topic, zero byte and group together: they are part of a key of the store."""

_NOTE, _KIND = b"mode\0", "consume mode"


class ConsumeModes:
    """The choices by topic and group; a group pulls where nothing was chosen."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._modes: dict[tuple[str, str], ConsumeMode] = {}
        self._decode = msgspec.json.Decoder(ConsumeMode).decode
        self._unstored = Unstored[tuple[str, str]](store)
        read_notes(store, _NOTE, _KIND, self._take)

    def reload(self) -> None:
        """Read again what a refused batch has changed."""
        self._unstored.restore(self._reload)

    def _reload(self, place: tuple[str, str]) -> None:
        self._modes.pop(place, None)
        read_note(self._store, _NOTE, _place(*place), _KIND, self._take)

    def _take(self, _: bytes, value: bytes) -> None:
        mode = self._decode(value)
        self._modes[mode.topic, mode.consumer_group] = mode

    def get(self, topic: str, group: str) -> ConsumeMode:
        """Return the choice for a topic and a group."""
        return self._modes.get((topic, group)) or ConsumeMode(topic, group)

    def put(self, mode: ConsumeMode) -> None:
        """Store a choice. The change joins the store's batch.

        :raises RequestError: when topic and group are too long together, or contain a zero byte.
        """
        place = _place(mode.topic, mode.consumer_group)
        if place.count(0) != 1 or len(place) > MAX_PLACE:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"topic and group have at most {MAX_PLACE - 1} bytes together, none of them 0",
            )
        self._store.put_note(_NOTE + place, msgspec.json.encode(mode))
        self._unstored.add((mode.topic, mode.consumer_group))
        self._modes[mode.topic, mode.consumer_group] = mode

    def forget_topics(self, topics: AbstractSet[str]) -> None:
        """Delete the choices for deleted topics. The change joins the store's batch."""
        self._forget([place for place in self._modes if place[0] in topics])

    def forget_group(self, group: str) -> None:
        """Delete the choices for a deleted group. The change joins the store's batch."""
        self._forget([place for place in self._modes if place[1] == group])

    def _forget(self, places: list[tuple[str, str]]) -> None:
        for place in places:
            self._store.delete_note(_NOTE + _place(*place))
            self._unstored.add(place)
            del self._modes[place]


def _place(topic: str, group: str) -> bytes:
    return f"{topic}\0{group}".encode()
