"""Acknowledging and putting off messages that were popped in order (200051, 200151, 200053)."""

from __future__ import annotations

from contextlib import suppress

from gateway.broker import Broker
from gateway.pop_orders import ORDERED_QUEUE, Place
from gateway.router import Call, Peer, RequestError
from gateway.wire.codes import ResponseCode
from storage import DamagedError

MAX_RELEASED = 200
"""Queues that are looked at in one step, some 1 ms of work, and 10 ms where somebody waits for each. After a time
without the gateway those of all groups are due together."""


class OrderedPops:
    """Moves a group's progress on behind what is acknowledged, and lets the next pop have the queue
    (AckMessageProcessor.ackOrderly, ChangeInvisibleTimeProcessor)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self._orders = broker.orders

    def acknowledge(self, place: Place, offset: int, popped_ms: int, peer: Peer) -> None:
        """A message was consumed. One that was popped again since, or by now belongs to what the group
        has behind it, is as good.

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
        # No reset waits to be picked up: it would have had this pop forgotten.
        group, topic = place.group.encode(), place.topic.encode()
        self._store.progress.advance(group, topic, place.queue, pop.next_offset)
        if not pop.blocks(None, self._broker.clock.now_ms()):
            self._wake(place)

    def put_off(self, call: Call, place: Place, offset: int, popped_ms: int, until_ms: int) -> None:
        """A message is to be visible at another time; its handle stays good, since `invisibleTime`
        in the answer counts from the pop."""
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
        """Let those have a queue who wait for it, once a time is over; `MAX_RELEASED` queues at most. Called now and
        then; True when there may be more."""
        places = self._orders.released(self._broker.clock.now_ms(), MAX_RELEASED)
        for place in places or ():
            self._wake(place)
        return places is not None

    def _progress(self, place: Place) -> int:
        stored = self._store.progress.get(place.group.encode(), place.topic.encode(), place.queue)
        return -1 if stored is None else stored

    def _wake(self, place: Place) -> None:
        # For one that cannot be read nobody waits.
        with suppress(DamagedError):
            self._broker.parked.wake(self._store.queue(place.topic.encode(), place.queue))
