"""Who is connected: producers and consumers by group, as their heartbeats tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple

from gateway.outgoing import Outgoing
from gateway.reactor import Reactor
from gateway.router import Caller, Peer, RequestError
from gateway.wire.bodies import ConsumerData, Heartbeat, Subscription
from gateway.wire.codes import RequestCode, ResponseCode

CLIENT_EXPIRY = 120.0
"""Seconds without a heartbeat after which a client is forgotten (ConsumerManager)."""

CROWD = 20
"""Members of a group that are told of each change; of two thousand that come back after a restart each would be told
two thousand times."""

CROWD_SECONDS = 0.5
"""How often the members of a larger group are told, at most."""

TOLD_TOGETHER = 100
"""Members of a larger group that are told at a time. Each asks at once who is there, and the answer is as long as the
group is large: those of 5,000 are 400 MB."""

TOLD_SECONDS = 0.05
"""How long after those the next ones are told."""


class Client:
    """One member of a group: a client program by its id and its connection. `caller` is the user that it has signed
    its last heartbeat as, None where nobody is asked for a name."""

    __slots__ = ("caller", "client_id", "language", "last_seen", "peer", "version")

    def __init__(
        self,
        client_id: str,
        peer: Peer,
        language: str,
        version: int,
        last_seen: float,
        caller: Caller | None = None,
    ) -> None:
        self.caller = caller
        self.client_id = client_id
        self.peer = peer
        self.language = language
        self.version = version
        self.last_seen = last_seen


class ConsumerGroup:
    """A consumer group that is online: its members, and what they subscribe to."""

    def __init__(self, data: ConsumerData) -> None:
        self.name = data.group_name
        self.data = data
        self.members: dict[str, Client] = {}
        self.subscriptions: dict[str, Subscription] = {}

    def subscribe(self, data: ConsumerData) -> bool:
        """Take over what a member subscribes to; True when that changes anything."""
        self.data = data
        changed = False
        for subscription in data.subscription_data_set:
            known = self.subscriptions.get(subscription.topic)
            if known is None or subscription.sub_version > known.sub_version:
                changed = changed or known is None or known.sub_string != subscription.sub_string
                self.subscriptions[subscription.topic] = subscription
        topics = {subscription.topic for subscription in data.subscription_data_set}
        for topic in set(self.subscriptions) - topics:
            del self.subscriptions[topic]
            changed = True
        return changed


class _Place(NamedTuple):
    """A client's place in a group of producers or of consumers."""

    of_producers: bool
    group: str
    client_id: str


class Clients:
    """All connected clients."""

    def __init__(self, outgoing: Outgoing, reactor: Reactor) -> None:
        self._outgoing = outgoing
        self._reactor = reactor
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[str, Client]] = {}
        # The same by client id, then group: each reply looks for its client.
        self._producers_by_id: dict[str, dict[str, Client]] = {}
        # Who has which places by each connection, so that nobody else is looked at when it is lost.
        self._places: dict[Peer, dict[_Place, Client]] = {}
        # Who had a place before another connection of the same id, and has it again when that is lost.
        self._behind: dict[_Place, dict[Peer, Client]] = {}
        # The crowds that are told, or will be, and whether they have changed since that began.
        self._told_later: dict[str, bool] = {}

    def heartbeat(
        self,
        heartbeat: Heartbeat,
        peer: Peer,
        language: str,
        version: int,
        now: float,
        quiet: AbstractSet[str] = frozenset(),
        caller: Caller | None = None,
    ) -> None:
        """Note that a client lives; tell the members of a group whose members or subscriptions changed. It may have
        come back by another connection, or there are two with one id, as of containers with one address and one process
        number; the place of another user's client it cannot take.

        :param quiet: groups whose members are not told (notifyConsumerIdsChangedEnable = false): they find out at
            their next look in 20 s.
        :param caller: whose heartbeat it is.
        :raises RequestError: when it says that it is another user's client.
        """
        client_id = heartbeat.client_id
        self._check_owner(heartbeat, caller)
        client = Client(client_id, peer, language, version, now, caller)
        for producer in heartbeat.producer_data_set:
            self._note(_Place(True, producer.group_name, client_id), client)
        for data in heartbeat.consumer_data_set:
            group = self._consumers.get(data.group_name)
            if group is None:
                group = self._consumers[data.group_name] = ConsumerGroup(data)
            place = _Place(False, data.group_name, client_id)
            changed = place not in self._places.get(peer, {})
            self._note(place, client)
            if (group.subscribe(data) or changed) and group.name not in quiet:
                self._notify(group)

    def unregister(
        self,
        peer: Peer,
        client_id: str,
        producer_group: str,
        consumer_group: str,
        *,
        quietly: bool = False,
    ) -> None:
        """A client says that it leaves a group; of one that is there by another connection, as upstream, nothing is
        forgotten.

        :param quietly: whether those who stay in the consumer group are not told.
        """
        for place in (
            _Place(True, producer_group, client_id),
            _Place(False, consumer_group, client_id),
        ):
            client = self._places.get(peer, {}).get(place)
            if client is not None:
                self._forget([(place, client)], quietly=quietly)

    def disconnected(self, peer: Peer) -> None:
        """Forget the clients of a lost connection."""
        self._forget(self._places.get(peer, {}).items())

    def expire(self, now: float) -> None:
        """Forget the clients that sent no heartbeat for long. Those that are not read from, as they are slow to take
        their answers, stay until their connection is closed."""
        self._forget(
            (place, client)
            for places in self._places.values()
            for place, client in places.items()
            if client.last_seen < now - CLIENT_EXPIRY and not client.peer.congested
        )

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """A consumer group that is online."""
        return self._consumers.get(name)

    def gave_up(self, group: str, topic: str) -> bool:
        """Whether a group is online and subscribes to other topics alone. One whose members subscribe to nothing has
        given up none: pull consumers that are given their queues do not say which."""
        online = self._consumers.get(group)
        return (
            online is not None and bool(online.subscriptions) and topic not in online.subscriptions
        )

    def consumer_groups(self) -> Iterable[ConsumerGroup]:
        """All consumer groups that are online."""
        return self._consumers.values()

    def producer_groups(self) -> Iterator[tuple[str, Iterable[Client]]]:
        """All producer groups that are online."""
        for name, members in self._producers.items():
            yield name, members.values()

    def producers(self, group: str) -> Iterable[Client]:
        """The online members of a producer group."""
        return self._producers.get(group, {}).values()

    def producer(self, client_id: str) -> Client | None:
        """A producer's client, whatever its groups."""
        return next(iter(self._producers_by_id.get(client_id, {}).values()), None)

    def _check_owner(self, heartbeat: Heartbeat, caller: Caller | None) -> None:
        if caller is None:
            return
        client_id = heartbeat.client_id
        for place in (
            *(_Place(True, one.group_name, client_id) for one in heartbeat.producer_data_set),
            *(_Place(False, one.group_name, client_id) for one in heartbeat.consumer_data_set),
        ):
            known = self._client(place)
            if known is not None and known.caller is not None and known.caller.name != caller.name:
                raise RequestError(
                    ResponseCode.NO_PERMISSION,
                    f"the client {client_id} of the group {place.group} is another user's",
                )

    def _note(self, place: _Place, client: Client) -> None:
        """A client takes its place."""
        known = self._client(place)
        behind = self._behind.get(place, {})
        behind.pop(client.peer, None)
        if known is not None and known.peer is not client.peer:
            behind[known.peer] = known
        if behind:
            self._behind[place] = behind
        else:
            self._behind.pop(place, None)
        self._places.setdefault(client.peer, {})[place] = client
        self._seat(place, client)

    def _seat(self, place: _Place, client: Client) -> None:
        if place.of_producers:
            self._producers.setdefault(place.group, {})[place.client_id] = client
            self._producers_by_id.setdefault(place.client_id, {})[place.group] = client
        else:
            self._consumers[place.group].members[place.client_id] = client

    def _client(self, place: _Place) -> Client | None:
        """Who has a place, if anybody."""
        if place.of_producers:
            return self._producers.get(place.group, {}).get(place.client_id)
        group = self._consumers.get(place.group)
        return group.members.get(place.client_id) if group is not None else None

    def _forget(self, gone: Iterable[tuple[_Place, Client]], *, quietly: bool = False) -> None:
        left: dict[str, ConsumerGroup] = {}
        for place, client in list(gone):
            places = self._places[client.peer]
            del places[place]
            if not places:
                del self._places[client.peer]
            if self._give_way(place, client):
                continue
            if place.of_producers:
                _take_out(self._producers, place.group, place.client_id)
                _take_out(self._producers_by_id, place.client_id, place.group)
            else:
                group = left[place.group] = self._consumers[place.group]
                del group.members[place.client_id]
        for group in left.values():
            if not group.members:
                del self._consumers[group.name]
            if not quietly:
                self._notify(group)

    def _give_way(self, place: _Place, client: Client) -> bool:
        """Whether a place that a client leaves is still another connection's of the same id, the latest of those."""
        behind = self._behind.get(place)
        if behind is None:
            return False
        if behind.pop(client.peer, None) is None:
            _, latest = behind.popitem()
            self._seat(place, latest)
        if not behind:
            del self._behind[place]
        return True

    def _notify(self, group: ConsumerGroup) -> None:
        """Have every member share the queues out again, at once rather than at its next look in 20 s; in a crowd, once
        for all that come or leave within `CROWD_SECONDS`, and not all of them at a time."""
        if group.data.is_broadcasting:
            return
        if len(group.members) <= CROWD:
            self._tell(group.name, group.members.values())
        elif group.name in self._told_later:
            self._told_later[group.name] = True
        else:
            self._tell_later(group.name)

    def _tell_later(self, name: str) -> None:
        self._told_later[name] = False
        self._reactor.callLater(CROWD_SECONDS, partial(self._tell_crowd, name))

    def _tell_crowd(self, name: str) -> None:
        self._told_later[name] = False
        group = self._consumers.get(name)
        self._tell_on(name, list(group.members.values()) if group is not None else [])

    def _tell_on(self, name: str, members: list[Client]) -> None:
        """Tell the next members of a crowd; those who were told begin anew once all were, if it has changed since."""
        self._tell(name, members[:TOLD_TOGETHER])
        if len(members) > TOLD_TOGETHER:
            rest = members[TOLD_TOGETHER:]
            self._reactor.callLater(TOLD_SECONDS, partial(self._tell_on, name, rest))
        elif self._told_later.pop(name):
            self._tell_later(name)

    def _tell(self, name: str, members: Iterable[Client]) -> None:
        ext = {"consumerGroup": name}
        for client in members:
            self._outgoing.oneway(client.peer, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext)


def _take_out(table: dict[str, dict[str, Client]], first: str, second: str) -> None:
    rows = table[first]
    del rows[second]
    if not rows:
        del table[first]
