"""Connected clients: the members of a group (203, 204, 328), and who consumes which topics (300, 343, 345)."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.broker import Broker
from gateway.clients import Client
from gateway.reactor import Reactor
from gateway.router import Call, RequestError
from gateway.wire.admin_bodies import (
    Connection,
    ProducerInfo,
    encode_consumer_connections,
    encode_group_list,
    encode_producer_connections,
    encode_producers,
    encode_subscription,
    encode_topic_list_of,
)
from gateway.wire.codes import ResponseCode
from gateway.wire.headers import (
    GetConsumerConnections,
    GetProducerConnections,
    QuerySubscription,
    QueryTopicConsumers,
    QueryTopicsByConsumer,
)


class Connections:
    """Answers which clients are connected, and which groups consume which topics."""

    def __init__(self, broker: Broker, reactor: Reactor) -> None:
        self._broker = broker
        self._clients = broker.clients
        self._reactor = reactor

    def consumers(self, call: Call) -> None:
        """Answer with the online members and the subscriptions of a consumer group (203)."""
        fields: GetConsumerConnections = call.fields
        group = self._clients.consumer_group(fields.consumer_group)
        if group is None:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"the consumer group[{fields.consumer_group}] not online",
            )
        call.answer(
            body=encode_consumer_connections(
                group.data, _connections(group.members.values()), group.subscriptions.values()
            )
        )

    def producers(self, call: Call) -> None:
        """Answer with the online members of a producer group (204)."""
        fields: GetProducerConnections = call.fields
        connections = _connections(self._clients.producers(fields.producer_group))
        if not connections:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the producer group[{fields.producer_group}] not exist",
            )
        call.answer(body=encode_producer_connections(connections))

    def all_producers(self, call: Call) -> None:
        """Answer with the online members of all producer groups (328)."""
        ahead_ms = self._broker.clock.now_ms() - self._reactor.seconds() * 1000
        call.answer(
            body=encode_producers(
                {
                    group: [
                        ProducerInfo(
                            client.client_id,
                            client.language,
                            round(ahead_ms + client.last_seen * 1000),
                            f"/{client.peer.address}",
                            client.version,
                        )
                        for client in members
                    ]
                    for group, members in self._clients.producer_groups()
                }
            )
        )

    def groups_of_topic(self, call: Call) -> None:
        """Answer with a topic's consumer groups: online groups that subscribe to it, and groups with progress in it
        (300)."""
        fields: QueryTopicConsumers = call.fields
        progress = self._broker.store.progress
        groups = {group.decode() for group in progress.groups_in(fields.topic.encode())}
        groups |= {
            group.name
            for group in self._clients.consumer_groups()
            if fields.topic in group.subscriptions
        }
        call.answer(body=encode_group_list(sorted(groups)))

    def topics_of_group(self, call: Call) -> None:
        """Answer with the topics in which a group has progress (343)."""
        fields: QueryTopicsByConsumer = call.fields
        topics = self._broker.topics_consumed_by(fields.group)
        call.answer(body=encode_topic_list_of(str(self._broker.advertised), topics))

    def subscription(self, call: Call) -> None:
        """Answer with an online group's subscription to a topic (345)."""
        fields: QuerySubscription = call.fields
        if fields.topic is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the field topic is missing")
        group = self._clients.consumer_group(fields.group)
        found = group.subscriptions.get(fields.topic) if group is not None else None
        call.answer(body=encode_subscription(fields.group, fields.topic, found))


def _connections(clients: Iterable[Client]) -> list[Connection]:
    return [
        Connection(client.peer.address, client.client_id, client.language, client.version)
        for client in clients
    ]
