"""The connected clients: producers and consumers by group, according to their heartbeats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from typing import NamedTuple

from gateway.connections.outgoing import Outgoing
from gateway.filters import expression_of, weight_of
from gateway.reactor import Reactor
from gateway.router import Caller, Peer, RequestError
from gateway.wire.bodies import ConsumerData, Heartbeat, Subscription
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.group_topics import retry_topic

CLIENT_EXPIRY = 120.0
"""Seconds without a heartbeat after which a client is forgotten (ConsumerManager)."""

CROWD = 20
"""Groups with at most this many members notify all of them of each change. If two thousand members came back after a
restart, each would be notified two thousand times."""

CROWD_SECONDS = 0.5
"""Least seconds between two rounds of notifying the members of a larger group."""

TOLD_TOGETHER = 100
"""Members of a larger group that are notified at a time. Each asks for the list of members at once: for a group of
5,000 these answers are 400 MB together."""

TOLD_SECONDS = 0.05
"""Seconds until the next such members are notified."""

LONGEST_NAMES = 1_000
"""Characters of a client id and a group above which a producer is not introduced."""


class Client:
    """One member of a group: a client program by its id and its connection. `caller` is the user that signed its last
    heartbeat, None without authentication."""

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
    """An online consumer group: its members and their subscriptions. `source` is the connection of the member whose
    heartbeat brought these last."""

    def __init__(self, data: ConsumerData, source: Peer) -> None:
        self.name = data.group_name
        self.data = data
        self.source = source
        self.members: dict[str, Client] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.weight = 0
        """As how many subscriptions these count."""
        self._subscribed_by: dict[str, Peer] = {}

    def subscribe(
        self, data: ConsumerData, peer: Peer, *, is_member: bool
    ) -> tuple[bool, list[str]]:
        """Take over the subscriptions of a client. Return whether they change the group's, and the topics of which the
        group, or the client if it was a member before, now wants other messages than before."""
        self.data = data
        changed = False
        wanted_anew = []
        for subscription in data.subscription_data_set:
            known = self.subscriptions.get(subscription.topic)
            if known is None or subscription.sub_version > known.sub_version:
                changed = changed or known is None or known.sub_string != subscription.sub_string
                self.subscriptions[subscription.topic] = subscription
                self._subscribed_by[subscription.topic] = peer
                if known is not None and (
                    is_member or expression_of(known) != expression_of(subscription)
                ):
                    wanted_anew.append(subscription.topic)
        topics = {subscription.topic for subscription in data.subscription_data_set}
        for topic in set(self.subscriptions) - topics:
            del self.subscriptions[topic], self._subscribed_by[topic]
            changed = True
        self.weight = _weight(self.subscriptions.values())
        return changed, wanted_anew

    def has_newer(self, topic: str, peer: Peer, sub_version: int) -> bool:
        """Whether a client has subscribed anew to a topic since the version of its subscription that a pull names, and
        nobody after it. A pull may name none (0)."""
        return (
            self._subscribed_by.get(topic) is peer
            and 0 < sub_version < self.subscriptions[topic].sub_version
        )


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
        # The places of each connection, so that only these are looked at when it is lost.
        self._places: dict[Peer, dict[_Place, Client]] = {}
        # As how many subscriptions those count that each connection has brought. Adding up those of thousands of groups
        # takes 2 ms.
        self._brought: dict[Peer, int] = {}
        # Clients that lost their place to another connection with the same id. They get it back when that one is lost.
        self._behind: dict[_Place, dict[Peer, Client]] = {}
        # The large groups that are being notified, or will be, and whether they have changed since that began.
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
    ) -> set[str]:
        """Record a client's heartbeat, and notify the members of groups whose members or subscriptions changed. The
        client may have come back by another connection. Two clients may also have one id, like containers with the same
        address and process number. A client cannot take the place of another user's client, nor be a producer with
        the client id of another user's producer, in any group.

        :param quiet: groups whose members are not notified (notifyConsumerIdsChangedEnable = false): they find out when
            they ask again, every 20 s.
        :param caller: the user who signed the heartbeat.
        :returns: the topics of which a group now wants other messages than before.
        :raises RequestError: when the client id belongs to another user's client.
        """
        client_id = heartbeat.client_id
        self._check_owner(heartbeat, caller)
        client = Client(client_id, peer, language, version, now, caller)
        for producer in heartbeat.producer_data_set:
            self._note(_Place(True, producer.group_name, client_id), client)
        wanted_anew: set[str] = set()
        for data in heartbeat.consumer_data_set:
            group = self._consumers.get(data.group_name)
            if group is None:
                group = self._consumers[data.group_name] = ConsumerGroup(data, peer)
            place = _Place(False, data.group_name, client_id)
            changed = place not in self._places.get(peer, {})
            self._note(place, client)
            subscribed, topics = self._subscribe(group, data, peer, is_member=not changed)
            wanted_anew.update(topics)
            if (subscribed or changed) and group.name not in quiet:
                self._notify(group)
        return wanted_anew

    def introduce(
        self, client_id: str, group: str, peer: Peer, language: str, version: int
    ) -> None:
        """Record a producer that says who it is before its first heartbeat. It is not believed if its connection has
        brought a client already, or a client has this id: its message may be a copy of somebody else's. For the same
        reason it does not count as its user's: the heartbeat of another user's client takes its place."""
        is_known = peer in self._places or client_id in self._producers_by_id
        if not is_known and len(client_id) + len(group) <= LONGEST_NAMES:
            client = Client(client_id, peer, language, version, self._reactor.seconds())
            self._note(_Place(True, group, client_id), client)

    def groups_with(self, heartbeat: Heartbeat, peer: Peer) -> tuple[int, int]:
        """Return in how many groups the clients of a connection are once this heartbeat is recorded, and as how many
        subscriptions those count that they have brought to these: a connection may bring heartbeats of ever new clients
        and groups."""
        places = self._places.get(peer, {})
        groups = len(places) + sum(
            _Place(of_producers, name, heartbeat.client_id) not in places
            for of_producers, name in (
                *((True, one.group_name) for one in heartbeat.producer_data_set),
                *((False, one.group_name) for one in heartbeat.consumer_data_set),
            )
        )
        new = {one.group_name: one for one in heartbeat.consumer_data_set}
        subscriptions = self._brought.get(peer, 0)
        for name, data in new.items():
            group = self._consumers.get(name)
            if group is not None and group.source is peer:
                subscriptions -= group.weight
            subscriptions += _weight(data.subscription_data_set)
        return groups, subscriptions

    def unregister(
        self,
        peer: Peer,
        client_id: str,
        producer_group: str,
        consumer_group: str,
        *,
        quietly: bool,
    ) -> None:
        """Remove a client from a group at its own request. As upstream, a client with the same id stays if it has
        come by another connection since.

        :param quietly: whether the remaining members of the consumer group are not notified.
        """
        for place in (
            _Place(True, producer_group, client_id),
            _Place(False, consumer_group, client_id),
        ):
            client = self._places.get(peer, {}).get(place)
            if client is not None:
                self._forget([(place, client)], quietly=quietly)

    def disconnected(self, peer: Peer) -> None:
        """Remove the clients of a lost connection."""
        self._forget(self._places.get(peer, {}).items())

    def expire(self, now: float) -> None:
        """Remove the clients without a heartbeat for `CLIENT_EXPIRY`. Clients whose connection is paused, because they
        read their answers slowly, stay until it is closed."""
        self._forget(
            (place, client)
            for places in self._places.values()
            for place, client in places.items()
            if client.last_seen < now - CLIENT_EXPIRY and not client.peer.congested
        )

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """Return an online consumer group."""
        return self._consumers.get(name)

    def gave_up(self, group: str, topic: str) -> bool:
        """Return whether a group is online and subscribes to other topics only. A group without subscriptions has not
        given up any topic: pull consumers with assigned queues do not name their topics. Nor do consumers that pop name
        the topic where a topic's messages come back."""
        online = self._consumers.get(group)
        if online is None or not online.subscriptions:
            return False
        origin = topic.removeprefix(retry_topic("", group))
        return online.subscriptions.keys().isdisjoint((topic, origin))

    def consumer_groups(self) -> Iterable[ConsumerGroup]:
        """Return all online consumer groups."""
        return self._consumers.values()

    def producer_groups(self) -> Iterator[tuple[str, Iterable[Client]]]:
        """Return all online producer groups."""
        for name, members in self._producers.items():
            yield name, members.values()

    def producers(self, group: str) -> Iterable[Client]:
        """Return the online members of a producer group."""
        return self._producers.get(group, {}).values()

    def producer(self, client_id: str) -> Client | None:
        """Return the client of a producer, in any group."""
        return next(iter(self._producers_by_id.get(client_id, {}).values()), None)

    def _check_owner(self, heartbeat: Heartbeat, caller: Caller | None) -> None:
        if caller is None:
            return
        client_id = heartbeat.client_id
        known = [
            self._client(_Place(False, one.group_name, client_id))
            for one in heartbeat.consumer_data_set
        ]
        if heartbeat.producer_data_set:
            # Replies are for a client id, whatever the producer's group is.
            known += self._producers_by_id.get(client_id, {}).values()
        for client in known:
            if client is not None and client.caller and client.caller.name != caller.name:
                raise RequestError(
                    ResponseCode.NO_PERMISSION, f"the client {client_id} belongs to another user"
                )

    def _note(self, place: _Place, client: Client) -> None:
        """Put a client into its place."""
        known = self._client(place)
        if known is not None and known.peer is not client.peer:
            behind = self._behind.setdefault(place, {})
            behind.pop(client.peer, None)
            behind[known.peer] = known
        self._places.setdefault(client.peer, {})[place] = client
        self._seat(place, client)

    def _seat(self, place: _Place, client: Client) -> None:
        if place.of_producers:
            self._producers.setdefault(place.group, {})[place.client_id] = client
            self._producers_by_id.setdefault(place.client_id, {})[place.group] = client
        else:
            self._consumers[place.group].members[place.client_id] = client

    def _subscribe(
        self, group: ConsumerGroup, data: ConsumerData, peer: Peer, *, is_member: bool
    ) -> tuple[bool, list[str]]:
        """Take over the subscriptions of a member of a group. Return what `ConsumerGroup.subscribe` does."""
        self._count(group.source, -group.weight)
        group.source = peer
        result = group.subscribe(data, peer, is_member=is_member)
        self._count(peer, group.weight)
        return result

    def _count(self, peer: Peer, more: int) -> None:
        """Count subscriptions that a connection has brought."""
        count = self._brought.pop(peer, 0) + more
        if count:
            self._brought[peer] = count

    def _client(self, place: _Place) -> Client | None:
        """Return the client that has a place, if any."""
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
                self._count(group.source, -group.weight)
            if not quietly:
                self._notify(group)

    def _give_way(self, place: _Place, client: Client) -> bool:
        """Leave a place to the latest other connection with the same id, if there is one. Return whether there is."""
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
        """Notify every member, so that it shares out the queues again at once rather than within 20 s. In a
        large group there is one notification for all changes within `CROWD_SECONDS`, and not all members get it at
        once."""
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
        """Notify the next members of a large group. After the last one begin anew if the group has changed since."""
        self._tell(name, members[:TOLD_TOGETHER])
        if len(members) > TOLD_TOGETHER:
            rest = members[TOLD_TOGETHER:]
            self._reactor.callLater(TOLD_SECONDS, partial(self._tell_on, name, rest))
        elif self._told_later.pop(name):
            self._tell_later(name)

    def _tell(self, name: str, members: Iterable[Client]) -> None:
        ext = {"consumerGroup": name}
        for client in members:
            behind = self._behind.get(_Place(False, name, client.client_id), {})
            for peer in (client.peer, *behind):
                self._outgoing.oneway(peer, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext)


def _weight(subscriptions: Iterable[Subscription]) -> int:
    return sum(weight_of(one.sub_string) for one in subscriptions)


def _take_out(table: dict[str, dict[str, Client]], first: str, second: str) -> None:
    rows = table[first]
    del rows[second]
    if not rows:
        del table[first]
