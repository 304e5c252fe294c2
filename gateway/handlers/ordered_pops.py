"""Messages that were popped in order: acknowledged (200051, 200151) and put off (200053)."""

from __future__ import annotations

from contextlib import suppress

from gateway.broker import Broker
from gateway.pops.orders import ORDERED_QUEUE, Place
from gateway.router import Call, Peer, RequestError
from gateway.wire.codes import ResponseCode
from storage import DamagedError

MAX_RELEASED = 200
"""Queues checked in one step, some 1 ms of work, or 10 ms if a request waits for each. After a longer downtime of the
gateway, the queues of all groups are due together."""


class OrderedPops:
    """Moves a group's progress past its acknowledged messages, and then lets the next pop have the queue
    (AckMessageProcessor.ackOrderly, ChangeInvisibleTimeProcessor)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self._orders = broker.orders

    def acknowledge(self, place: Place, offset: int, popped_ms: int, peer: Peer) -> None:
        """Acknowledge a message. If it was popped again meanwhile, or the group's progress is already past it, that
        is no error.

        :raises RequestError: when the pop did not bring this message.
        """
        progress = self._progress(place)
        pop = self._orders.get(place)
        if offset < progress or pop is None or pop.popped_ms != popped_ms:
            return
        if offset not in pop.offsets:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{place.topic}@{place.group}@{place.queue}, old:{progress}, "
                f"commit:{offset}, next:-1, /{peer.address}",
            )
        pop = self._orders.acknowledge(place, offset)
        # No reset is waiting for the group's next pop: a reset would have removed this pop.
        group, topic = place.group.encode(), place.topic.encode()
        self._store.progress.advance(group, topic, place.queue, pop.next_offset)
        if not pop.blocks(None, self._broker.clock.now_ms()):
            self._wake(place)

    def put_off(self, call: Call, place: Place, offset: int, popped_ms: int, until_ms: int) -> None:
        """Set another time for a message to become visible. Its handle stays valid, since `invisibleTime` in the answer
        counts from the pop."""
        if offset < self._progress(place):
            call.answer({"popTime": "0", "invisibleTime": "0", "reviveQid": "0"})
            return
        pop = self._orders.get(place)
        if pop is not None and pop.popped_ms == popped_ms and offset in pop.offsets:
            self._orders.put_off(place, offset, until_ms)
        frame = call.encode(
            {
                "popTime": str(popped_ms),
                "invisibleTime": str(until_ms - popped_ms),
                "reviveQid": str(ORDERED_QUEUE),
            }
        )
        self._broker.committer.answer(call, frame)

    def release_due(self) -> bool:
        """Wake the pops that wait for queues whose time is over, for at most `MAX_RELEASED` queues. Called now and
        then. Return True when there may be more."""
        places = self._orders.released(self._broker.clock.now_ms(), MAX_RELEASED)
        for place in places or ():
            self._wake(place)
        return places is not None

    def _progress(self, place: Place) -> int:
        stored = self._store.progress.get(place.group.encode(), place.topic.encode(), place.queue)
        return -1 if stored is None else stored

    def _wake(self, place: Place) -> None:
        # Nobody waits for a queue that cannot be read.
        with suppress(DamagedError):
            queue = self._store.queue(place.topic.encode(), place.queue)
            self._broker.parked.wake([queue], place.group)
