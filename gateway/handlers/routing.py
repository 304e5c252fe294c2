"""The name server's routes: where topics and brokers are (105, 106, 206 and related requests)."""

from __future__ import annotations

import msgspec

from gateway.broker import Broker
from gateway.router import Call, RequestError
from gateway.topics import NOT_FOUND_HELP, PERM_WRITE
from gateway.wire.bodies import (
    as_client_reads_it,
    encode_cluster_info,
    encode_route,
    encode_topic_list,
)
from gateway.wire.codes import ResponseCode
from gateway.wire.headers import GetRouteInfo, GetTopicsByCluster, NameServerBroker


class Routing:
    """Directs clients to this gateway."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._address = str(broker.advertised)
        self._writable = True

    def route(self, call: Call) -> None:
        """Answer with the queues of a topic. Clients that are about to create a topic ask for `TBW102` instead."""
        fields: GetRouteInfo = call.fields
        topic = self._broker.topics.get(fields.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {fields.topic}{NOT_FOUND_HELP}",
            )
        config = self._broker.config
        settings = topic.settings
        if not self._writable:
            settings = msgspec.structs.replace(settings, perm=settings.perm & ~PERM_WRITE)
        body = encode_route(config.cluster_name, config.broker_name, self._address, settings)
        call.answer(body=as_client_reads_it(body, call.command))

    def wipe_write_permission(self, call: Call) -> None:
        """Have clients send elsewhere (205): mark all topics as not writable in routes, until 327 or a restart.
        Messages that clients send nevertheless are accepted."""
        call.answer({"wipeTopicCount": str(self._set_writable(call, writable=False))})

    def add_write_permission(self, call: Call) -> None:
        """Have clients send here again (327)."""
        call.answer({"addTopicCount": str(self._set_writable(call, writable=True))})

    def _set_writable(self, call: Call, *, writable: bool) -> int:
        """Set whether routes are writable, and return how many topics this changes."""
        fields: NameServerBroker = call.fields
        if fields.broker_name != self._broker.config.broker_name:
            return 0
        self._writable = writable
        return len(self._broker.topics.names())

    def cluster_info(self, call: Call) -> None:
        """Answer with all brokers of all clusters, which is this one."""
        config = self._broker.config
        body = encode_cluster_info(config.cluster_name, config.broker_name, self._address)
        call.answer(body=as_client_reads_it(body, call.command))

    def topic_list(self, call: Call) -> None:
        """Answer with the names of all topics."""
        call.answer(body=encode_topic_list(self._broker.topics.names()))

    def topics_by_cluster(self, call: Call) -> None:
        """Answer with the names of a cluster's topics."""
        fields: GetTopicsByCluster = call.fields
        known = fields.cluster == self._broker.config.cluster_name
        call.answer(body=encode_topic_list(self._broker.topics.names() if known else []))
