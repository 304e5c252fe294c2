"""The name server's other requests: stored values (100-102, 219), its lists of topics (304, 311-313), its settings
(318, 319). Routes are in `routing`."""

from __future__ import annotations

from gateway.broker import Broker
from gateway.router import Call, RequestError
from gateway.settings.upstream import shown
from gateway.wire.admin_bodies import encode_changes, encode_table, encode_topic_list_of
from gateway.wire.bodies import encode_topic_list
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.headers import KvConfig, KvNamespace, PutKvConfig

SETTINGS = ("listenPort", "serverChannelMaxIdleTimeSeconds", "bindAddress", "orderMessageEnable")
"""Settings that belong to a name server."""

_UNIT = 1
_UNIT_SUB = 2
"""Bits of a topic's `topic_sys_flag` (TopicSysFlag), which `mqadmin updateTopic` sets with -u and -s."""

_UNIT_LISTS: dict[int, tuple[int, int]] = {
    RequestCode.GET_UNIT_TOPIC_LIST: (_UNIT, _UNIT),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (_UNIT_SUB, _UNIT_SUB),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (_UNIT | _UNIT_SUB, _UNIT_SUB),
}
"""Which bits of its topics a list is about, and what these are."""


class NameServer:
    """Answers tools' requests to a name server."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._values = broker.kv

    def put_value(self, call: Call) -> None:
        """Store a value (100), and answer once it is on disk."""
        fields: PutKvConfig = call.fields
        self._values.put(fields.namespace, fields.key, fields.value)
        self._broker.committer.answer(call, call.encode())

    def value(self, call: Call) -> None:
        """Answer with a stored value (101)."""
        fields: KvConfig = call.fields
        value = self._values.get(fields.namespace, fields.key)
        if value is None:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {fields.namespace} Key: {fields.key}",
            )
        call.answer({"value": value})

    def delete_value(self, call: Call) -> None:
        """Delete a value (102)."""
        fields: KvConfig = call.fields
        self._values.delete(fields.namespace, fields.key)
        self._broker.committer.answer(call, call.encode())

    def values(self, call: Call) -> None:
        """Answer with all values of a namespace (219)."""
        fields: KvNamespace = call.fields
        values = self._values.namespace(fields.namespace)
        if values is None:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {fields.namespace}"
            )
        call.answer(body=encode_table(values))

    def system_topics(self, call: Call) -> None:
        """Answer with the names of the broker and the cluster, which upstream counts among the topics (304)."""
        config = self._broker.config
        call.answer(
            body=encode_topic_list_of(
                str(self._broker.advertised), [config.broker_name, config.cluster_name]
            )
        )

    def unit_topics(self, call: Call) -> None:
        """Answer with the topics that are marked as split by unit (311, 312, 313). Nothing else comes of such a
        mark."""
        bits, wanted = _UNIT_LISTS[call.command.code]
        topics = self._broker.topics
        names = [one.name for one in topics if one.settings.topic_sys_flag & bits == wanted]
        call.answer(body=encode_topic_list(names))

    def delete_topic(self, call: Call) -> None:
        """Accept the deletion of a topic's route (216). Tools send this after they have deleted the topic at its
        broker, so there is nothing left to do. While a broker still has the topic, upstream's name server too learns of
        it again within half a minute."""
        call.answer()

    def settings(self, call: Call) -> None:
        """Answer with the name server's settings (319)."""
        broker = self._broker
        values = shown(broker.config, broker.advertised, broker.workers) | {
            "bindAddress": broker.config.listen.host,
            "orderMessageEnable": "false",
        }
        call.answer(body=encode_changes({name: values[name] for name in SETTINGS}))

    def change_settings(self, call: Call) -> None:
        """Refuse to change the name server's settings (318): they are the gateway's, which 25 changes."""
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            "the name server has no settings of its own here: change the gateway's by updateBrokerConfig",
        )
