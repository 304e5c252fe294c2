"""THE TABLE: request code -> what its sender must be permitted to do. A code that is not here is for super users only.

Where a row names several actions, one of them is enough. The rows are those of upstream
(DefaultAuthorizationContextBuilder, the RocketMQAction of request headers), except that

- what upstream allows every user, such as changing settings, needs permission for the cluster;
- a request that names a message by its number needs permission for that message's topic;
- reading a topic's offsets needs no more than consuming from it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from gateway.access.policies import PUB, READ, Action, Need, Resource
from gateway.broker import Broker
from gateway.router import Call
from gateway.topics import DEFAULT_TOPIC, HALF_TOPIC
from gateway.transactions import place_of
from gateway.wire.admin_bodies import (
    ConsumeMode,
    parse_group_settings,
    parse_group_settings_list,
    parse_topic_settings_list,
)
from gateway.wire.bodies import (
    Heartbeat,
    LockRequest,
    read_body,
)
from gateway.wire.codes import RequestCode as Code
from gateway.wire.group_topics import RETRY_PREFIX, retry_topic
from gateway.wire.messages import MessageError, decode_message, parse_offset_msg_id
from gateway.wire.pops import AssignmentRequest, parse_batch_acks
from gateway.wire.recall import RecallHandle, RecallHandleError
from storage import find_half, find_record

Requirement = Callable[[Call, Broker], Iterable[Need]]
"""Returns what one request needs. A body that cannot be read raises the same error as in the handler."""

SUB: Final = frozenset({Action.SUB})
CREATE: Final = frozenset({Action.CREATE})
UPDATE: Final = frozenset({Action.UPDATE})
DELETE: Final = frozenset({Action.DELETE})
GET: Final = frozenset({Action.GET})
SHOW: Final = GET | frozenset({Action.LIST})


def topic_need(name: str, actions: frozenset[Action]) -> Need:
    """Return the need for actions on a topic; a retry topic belongs to its group."""
    if name.startswith(RETRY_PREFIX):
        return group_need(name, actions)
    return Need(Resource("Topic", name), actions)


def group_need(name: str, actions: frozenset[Action]) -> Need:
    """Return the need for actions on a consumer group; a retry topic's name may stand for the group's."""
    return Need(Resource("Group", name.removeprefix(RETRY_PREFIX)), actions)


def topic(actions: frozenset[Action]) -> Requirement:
    """Require actions on the topic that the request names, if it names one."""

    def needs(call: Call, broker: Broker) -> Iterator[Need]:
        if name := call.fields.topic:
            yield topic_need(name, actions)

    return needs


def group(actions: frozenset[Action], field: str = "consumer_group") -> Requirement:
    """Require actions on the consumer group that a field names, if it names one."""

    def needs(call: Call, broker: Broker) -> Iterator[Need]:
        if name := getattr(call.fields, field):
            yield group_need(name, actions)

    return needs


def cluster(actions: frozenset[Action]) -> Requirement:
    """Require actions on the cluster."""

    def needs(call: Call, broker: Broker) -> Iterator[Need]:
        yield Need(Resource("Cluster", broker.config.cluster_name), actions)

    return needs


def both(*requirements: Requirement) -> Requirement:
    """Require all of several requirements."""

    def needs(call: Call, broker: Broker) -> Iterator[Need]:
        for requirement in requirements:
            yield from requirement(call, broker)

    return needs


def _route(call: Call, broker: Broker) -> Iterator[Need]:
    # Clients request the route of the template before the first send to a new topic.
    if call.fields.topic != DEFAULT_TOPIC:
        actions = READ if call.fields.topic.startswith(RETRY_PREFIX) else PUB | READ
        yield topic_need(call.fields.topic, actions)


def _send(call: Call, broker: Broker) -> Iterator[Need]:
    name = call.fields.topic
    yield topic_need(name, SUB if name.startswith(RETRY_PREFIX) else PUB)


def _stored(offset: int, actions: frozenset[Action], broker: Broker) -> Iterator[Need]:
    """Need actions on the topic of the message, or of the undecided half message, with a number. Need nothing if there
    is none. Numbers can be guessed, so a refusal does not name the topic."""
    record = find_record(broker.store, offset)
    if record is not None:
        name = decode_message(record).topic
    else:
        half = find_half(broker.store, max(0, offset))
        if half is None:
            return
        name, _ = place_of(decode_message(half.record).properties)
    called = f"the topic of the message with the offset {offset}"
    yield topic_need(name, actions)._replace(called=called)


def _end_transaction(call: Call, broker: Broker) -> Iterator[Need]:
    # A check names the half messages' own topic, as upstream does, and clients answer with that name.
    if call.fields.topic and call.fields.topic != HALF_TOPIC:
        yield topic_need(call.fields.topic, PUB)
    yield from _stored(call.fields.commit_log_offset, PUB, broker)


def _send_back(call: Call, broker: Broker) -> Iterator[Need]:
    yield group_need(call.fields.group, SUB)
    # The copy goes to the group, which must not get messages by it that it may not consume.
    yield from _stored(call.fields.offset, SUB, broker)


def _view(call: Call, broker: Broker) -> Iterator[Need]:
    yield from _stored(call.fields.offset, READ, broker)


def _consume_directly(call: Call, broker: Broker) -> Iterator[Need]:
    yield group_need(call.fields.consumer_group, SUB)
    try:
        _, offset = parse_offset_msg_id(call.fields.msg_id or "")
    except MessageError:
        return
    yield from _stored(offset, SUB, broker)


def _change(call: Call, broker: Broker) -> Iterator[Need]:
    if call.fields.handle:
        try:
            yield topic_need(RecallHandle.parse(call.fields.handle).topic, PUB)
        except RecallHandleError:
            return
    elif call.fields.topic:
        yield topic_need(call.fields.topic, PUB)


def _clock(call: Call, broker: Broker) -> Iterable[Need]:
    shown = call.fields.advance is None and call.fields.to is None
    return cluster(GET if shown else UPDATE)(call, broker)


def _heartbeat(call: Call, broker: Broker) -> Iterator[Need]:
    for consumer in read_body(call.command.body, Heartbeat).consumer_data_set:
        yield group_need(consumer.group_name, SUB)
        for subscription in consumer.subscription_data_set:
            if not subscription.topic.startswith(RETRY_PREFIX):
                yield topic_need(subscription.topic, SUB)


def _lock(call: Call, broker: Broker) -> Iterator[Need]:
    request = read_body(call.command.body, LockRequest)
    yield group_need(request.consumer_group, SUB)
    for name in {queue.topic for queue in request.mq_set}:
        yield topic_need(name, SUB)


def _popped(call: Call, broker: Broker) -> Iterator[Need]:
    # The request names a message that came back by its retry topic.
    name = call.fields.consumer_group
    yield topic_need(call.fields.topic.removeprefix(retry_topic("", name)), SUB)
    yield group_need(name, SUB)


def _batch_ack(call: Call, broker: Broker) -> Iterator[Need]:
    for name, topic_name in {(ack.group, ack.topic) for ack in parse_batch_acks(call.command.body)}:
        yield group_need(name, SUB)
        yield topic_need(topic_name, SUB)


def _assignment(call: Call, broker: Broker) -> Iterator[Need]:
    asked = read_body(call.command.body, AssignmentRequest)
    yield group_need(asked.consumer_group, SUB)
    yield topic_need(asked.topic, SUB)


def _consume_stats(call: Call, broker: Broker) -> Iterator[Need]:
    yield group_need(call.fields.consumer_group, GET)
    for name in {call.fields.topic or "", *(call.fields.topic_list or "").split(";")} - {""}:
        yield topic_need(name, GET)


def _topics(call: Call, broker: Broker) -> Iterator[Need]:
    for settings in parse_topic_settings_list(call.command.body):
        yield topic_need(settings.topic_name, CREATE)


def _group(call: Call, broker: Broker) -> Iterator[Need]:
    yield group_need(parse_group_settings(call.command.body).group_name, CREATE | UPDATE)


def _groups(call: Call, broker: Broker) -> Iterator[Need]:
    for settings in parse_group_settings_list(call.command.body):
        yield group_need(settings.group_name, CREATE | UPDATE)


def _consume_mode(call: Call, broker: Broker) -> Iterator[Need]:
    yield group_need(read_body(call.command.body, ConsumeMode).consumer_group, UPDATE)


def nothing(call: Call, broker: Broker) -> Iterable[Need]:
    """Require no more than being a user."""
    return ()


PERMISSIONS: Final[Mapping[int, Requirement]] = {
    # name server
    Code.GET_ROUTEINFO_BY_TOPIC: _route,
    Code.GET_BROKER_CLUSTER_INFO: cluster(GET),
    Code.GET_ALL_TOPIC_LIST: cluster(SHOW),
    Code.GET_TOPICS_BY_CLUSTER: cluster(SHOW),
    Code.WIPE_WRITE_PERM_OF_BROKER: cluster(UPDATE),
    Code.ADD_WRITE_PERM_OF_BROKER: cluster(UPDATE),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: cluster(SHOW),
    Code.GET_UNIT_TOPIC_LIST: cluster(SHOW),
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: cluster(SHOW),
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: cluster(SHOW),
    Code.DELETE_TOPIC_IN_NAMESRV: topic(DELETE),
    Code.PUT_KV_CONFIG: cluster(UPDATE),
    Code.GET_KV_CONFIG: cluster(GET),
    Code.DELETE_KV_CONFIG: cluster(UPDATE),
    Code.GET_KVLIST_BY_NAMESPACE: cluster(GET),
    Code.GET_NAMESRV_CONFIG: cluster(GET),
    Code.UPDATE_NAMESRV_CONFIG: cluster(UPDATE),
    # clients
    Code.HEART_BEAT: _heartbeat,
    Code.UNREGISTER_CLIENT: group(SUB),
    Code.GET_CONSUMER_LIST_BY_GROUP: group(READ),
    Code.CHECK_CLIENT_CONFIG: nothing,
    Code.LOCK_BATCH_MQ: _lock,
    Code.UNLOCK_BATCH_MQ: _lock,
    # sending
    Code.SEND_MESSAGE: _send,
    Code.SEND_MESSAGE_V2: _send,
    Code.SEND_BATCH_MESSAGE: _send,
    Code.CONSUMER_SEND_MSG_BACK: _send_back,
    Code.SEND_REPLY_MESSAGE: _send,
    Code.SEND_REPLY_MESSAGE_V2: _send,
    Code.END_TRANSACTION: _end_transaction,
    # pulling
    Code.PULL_MESSAGE: both(topic(SUB), group(SUB)),
    Code.LITE_PULL_MESSAGE: both(topic(SUB), group(SUB)),
    # popping
    Code.POP_MESSAGE: both(topic(SUB), group(SUB)),
    Code.ACK_MESSAGE: _popped,
    Code.BATCH_ACK_MESSAGE: _batch_ack,
    Code.CHANGE_MESSAGE_INVISIBLETIME: _popped,
    Code.PEEK_MESSAGE: both(topic(SUB), group(SUB)),
    Code.NOTIFICATION: both(topic(SUB), group(SUB)),
    Code.POLLING_INFO: both(topic(SUB), group(SUB)),
    Code.QUERY_ASSIGNMENT: _assignment,
    # offsets
    Code.QUERY_CONSUMER_OFFSET: both(topic(READ), group(READ)),
    Code.UPDATE_CONSUMER_OFFSET: both(topic(SUB | UPDATE), group(SUB | UPDATE)),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: topic(READ),
    Code.GET_MAX_OFFSET: topic(READ),
    Code.GET_MIN_OFFSET: topic(READ),
    Code.GET_EARLIEST_MSG_STORETIME: topic(READ),
    # messages that have not fired; look-ups and the list of paused topics show only what the user may read, changes
    # affect only what the user may send to
    Code.RECALL_MESSAGE: topic(PUB),
    Code.LOOK_UP_TIMERS: topic(READ),
    Code.ABORT_TIMERS: _change,
    Code.RESCHEDULE_TIMERS: _change,
    Code.BULK_CHANGE_TIMERS: topic(PUB),
    Code.PAUSE_TOPIC: topic(UPDATE),
    Code.RESUME_TOPIC: topic(UPDATE),
    Code.LIST_PAUSED_TOPICS: nothing,
    Code.GET_TIMER_METRICS: cluster(GET),
    # recurring messages, which sends set
    Code.LIST_RECURRING: topic(READ),
    Code.CHANGE_RECURRING: topic(PUB),
    Code.NEXT_RECURRING: topic(READ),
    Code.CLOCK: _clock,
    # finding messages
    Code.QUERY_MESSAGE: topic(READ),
    Code.VIEW_MESSAGE_BY_ID: _view,
    # what only a consumer's client can answer
    Code.GET_CONSUMER_RUNNING_INFO: group(GET),
    Code.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: both(topic(GET), group(GET, "group")),
    # topics
    Code.UPDATE_AND_CREATE_TOPIC: topic(CREATE),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _topics,
    Code.GET_TOPIC_CONFIG: topic(GET),
    Code.GET_ALL_TOPIC_CONFIG: cluster(SHOW),
    Code.GET_TOPIC_STATS_INFO: topic(GET),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: cluster(SHOW),
    Code.QUERY_CONSUME_QUEUE: both(topic(GET), group(GET)),
    Code.DELETE_TOPIC_IN_BROKER: topic(DELETE),
    # groups
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _group,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _groups,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: group(GET, "group"),
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: cluster(SHOW),
    Code.DELETE_SUBSCRIPTIONGROUP: group(DELETE, "group_name"),
    Code.SET_MESSAGE_REQUEST_MODE: _consume_mode,
    # connected clients
    Code.GET_CONSUMER_CONNECTION_LIST: group(GET),
    Code.GET_PRODUCER_CONNECTION_LIST: cluster(GET),
    Code.GET_ALL_PRODUCER_INFO: cluster(GET),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: topic(GET),
    Code.QUERY_TOPICS_BY_CONSUMER: group(GET, "group"),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: both(topic(GET), group(GET, "group")),
    # progress of groups
    Code.GET_CONSUME_STATS: _consume_stats,
    Code.GET_BROKER_CONSUME_STATS: cluster(GET),
    Code.QUERY_CONSUME_TIME_SPAN: both(topic(GET), group(GET, "group")),
    Code.GET_ALL_CONSUMER_OFFSET: cluster(GET),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: both(topic(UPDATE), group(UPDATE, "group")),
    Code.CLONE_GROUP_OFFSET: both(group(READ, "src_group"), group(UPDATE, "dest_group")),
    # the broker as a whole
    Code.GET_BROKER_CONFIG: cluster(GET),
    Code.UPDATE_BROKER_CONFIG: cluster(UPDATE),
    Code.GET_BROKER_RUNTIME_INFO: cluster(GET),
    Code.VIEW_BROKER_STATS_DATA: cluster(GET),
    Code.GET_ALL_DELAY_OFFSET: cluster(GET),
    Code.GET_TIMER_CHECK_POINT: cluster(GET),
    Code.GET_BROKER_HA_STATUS: cluster(GET),
    Code.GET_COLD_DATA_FLOW_CTR_INFO: cluster(GET),
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: cluster(UPDATE),
    Code.CLEAN_UNUSED_TOPIC: cluster(UPDATE),
    Code.DELETE_EXPIRED_COMMITLOG: cluster(UPDATE),
    # users
    Code.AUTH_CREATE_USER: cluster(UPDATE),
    Code.AUTH_UPDATE_USER: cluster(UPDATE),
    Code.AUTH_DELETE_USER: cluster(UPDATE),
    Code.AUTH_GET_USER: cluster(GET),
    Code.AUTH_LIST_USER: cluster(GET),
    Code.AUTH_CREATE_ACL: cluster(UPDATE),
    Code.AUTH_UPDATE_ACL: cluster(UPDATE),
    Code.AUTH_DELETE_ACL: cluster(UPDATE),
    Code.AUTH_GET_ACL: cluster(GET),
    Code.AUTH_LIST_ACL: cluster(GET),
}
