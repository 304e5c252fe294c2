"""THE TABLE: request code -> its handler. A request code that is not in it is not supported.

`FIELDS_OF_REQUESTS` in `gateway.wire.headers` has the fields that a handler is called with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.handlers.access_admin import AccessAdmin
from gateway.handlers.assignments import Assignments
from gateway.handlers.broker_admin import BrokerAdmin
from gateway.handlers.clients import ClientRequests
from gateway.handlers.connections import Connections
from gateway.handlers.group_admin import GroupAdmin
from gateway.handlers.manual_time import ManualTime
from gateway.handlers.name_server import NameServer
from gateway.handlers.offsets import Offsets
from gateway.handlers.pop_acks import PopAcks
from gateway.handlers.pop_views import PopViews
from gateway.handlers.popping import Popping
from gateway.handlers.progress import GroupProgress
from gateway.handlers.pulling import Pulling
from gateway.handlers.queries import Queries
from gateway.handlers.recurring import RecurringRequests
from gateway.handlers.relays import Relays
from gateway.handlers.replies import Replies
from gateway.handlers.routing import Routing
from gateway.handlers.sending import Sending
from gateway.handlers.timers import Timers
from gateway.handlers.topic_admin import TopicAdmin
from gateway.handlers.transactions import Transactions
from gateway.router import Handler
from gateway.wire.codes import RequestCode as Code


class Handlers(NamedTuple):
    """One handler object of each kind."""

    routing: Routing
    clients: ClientRequests
    sending: Sending
    pulling: Pulling
    popping: Popping
    pop_acks: PopAcks
    pop_views: PopViews
    assignments: Assignments
    offsets: Offsets
    timers: Timers
    recurring: RecurringRequests
    manual_time: ManualTime
    transactions: Transactions
    replies: Replies
    queries: Queries
    relays: Relays
    names: NameServer
    topic_admin: TopicAdmin
    group_admin: GroupAdmin
    connections: Connections
    progress: GroupProgress
    broker_admin: BrokerAdmin
    access: AccessAdmin


def routes(to: Handlers) -> Mapping[int, Handler]:
    """Return the router's table for these handlers."""
    return {
        # name server
        Code.GET_ROUTEINFO_BY_TOPIC: to.routing.route,
        Code.GET_BROKER_CLUSTER_INFO: to.routing.cluster_info,
        Code.GET_ALL_TOPIC_LIST: to.routing.topic_list,
        Code.GET_TOPICS_BY_CLUSTER: to.routing.topics_by_cluster,
        Code.WIPE_WRITE_PERM_OF_BROKER: to.routing.wipe_write_permission,
        Code.ADD_WRITE_PERM_OF_BROKER: to.routing.add_write_permission,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: to.names.system_topics,
        Code.GET_UNIT_TOPIC_LIST: to.names.unit_topics,
        Code.GET_HAS_UNIT_SUB_TOPIC_LIST: to.names.unit_topics,
        Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: to.names.unit_topics,
        Code.DELETE_TOPIC_IN_NAMESRV: to.names.delete_topic,
        Code.PUT_KV_CONFIG: to.names.put_value,
        Code.GET_KV_CONFIG: to.names.value,
        Code.DELETE_KV_CONFIG: to.names.delete_value,
        Code.GET_KVLIST_BY_NAMESPACE: to.names.values,
        Code.GET_NAMESRV_CONFIG: to.names.settings,
        Code.UPDATE_NAMESRV_CONFIG: to.names.change_settings,
        # clients
        Code.HEART_BEAT: to.clients.heartbeat,
        Code.UNREGISTER_CLIENT: to.clients.unregister,
        Code.GET_CONSUMER_LIST_BY_GROUP: to.clients.consumer_list,
        Code.CHECK_CLIENT_CONFIG: to.clients.check,
        Code.LOCK_BATCH_MQ: to.clients.lock,
        Code.UNLOCK_BATCH_MQ: to.clients.unlock,
        # sending
        Code.SEND_MESSAGE: to.sending.send,
        Code.SEND_MESSAGE_V2: to.sending.send,
        Code.SEND_BATCH_MESSAGE: to.sending.send,
        Code.CONSUMER_SEND_MSG_BACK: to.sending.send_back,
        Code.SEND_REPLY_MESSAGE: to.replies.reply,
        Code.SEND_REPLY_MESSAGE_V2: to.replies.reply,
        Code.END_TRANSACTION: to.transactions.end,
        # pulling
        Code.PULL_MESSAGE: to.pulling.pull,
        Code.LITE_PULL_MESSAGE: to.pulling.pull,
        # popping
        Code.POP_MESSAGE: to.popping.pop,
        Code.ACK_MESSAGE: to.pop_acks.ack,
        Code.BATCH_ACK_MESSAGE: to.pop_acks.ack_batch,
        Code.CHANGE_MESSAGE_INVISIBLETIME: to.pop_acks.change_invisible_time,
        Code.PEEK_MESSAGE: to.pop_views.peek,
        Code.NOTIFICATION: to.pop_views.notification,
        Code.POLLING_INFO: to.pop_views.polling_info,
        # assignment of queues to consumers
        Code.QUERY_ASSIGNMENT: to.assignments.query,
        Code.SET_MESSAGE_REQUEST_MODE: to.assignments.set_mode,
        # offsets
        Code.QUERY_CONSUMER_OFFSET: to.offsets.query,
        Code.UPDATE_CONSUMER_OFFSET: to.offsets.update,
        Code.SEARCH_OFFSET_BY_TIMESTAMP: to.offsets.search,
        Code.GET_MAX_OFFSET: to.offsets.max_offset,
        Code.GET_MIN_OFFSET: to.offsets.min_offset,
        Code.GET_EARLIEST_MSG_STORETIME: to.offsets.earliest_time,
        # messages that have not fired
        Code.RECALL_MESSAGE: to.timers.recall,
        Code.LOOK_UP_TIMERS: to.timers.look_up,
        Code.ABORT_TIMERS: to.timers.abort,
        Code.RESCHEDULE_TIMERS: to.timers.reschedule,
        Code.BULK_CHANGE_TIMERS: to.timers.change_many,
        Code.PAUSE_TOPIC: to.timers.pause,
        Code.RESUME_TOPIC: to.timers.resume,
        Code.LIST_PAUSED_TOPICS: to.timers.paused,
        Code.GET_TIMER_METRICS: to.timers.metrics,
        Code.CLOCK: to.manual_time.clock,
        # recurring messages
        Code.LIST_RECURRING: to.recurring.list,
        Code.CHANGE_RECURRING: to.recurring.change,
        Code.NEXT_RECURRING: to.recurring.next_times,
        # finding messages
        Code.QUERY_MESSAGE: to.queries.query,
        Code.VIEW_MESSAGE_BY_ID: to.queries.view,
        # what only a consumer's client can answer
        Code.GET_CONSUMER_RUNNING_INFO: to.relays.running_info,
        Code.CONSUME_MESSAGE_DIRECTLY: to.relays.consume_directly,
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: to.relays.consumer_status,
        # topics
        Code.UPDATE_AND_CREATE_TOPIC: to.topic_admin.create_topic,
        Code.UPDATE_AND_CREATE_TOPIC_LIST: to.topic_admin.create_topics,
        Code.GET_TOPIC_CONFIG: to.topic_admin.topic_config,
        Code.GET_ALL_TOPIC_CONFIG: to.topic_admin.all_topics,
        Code.GET_TOPIC_STATS_INFO: to.topic_admin.topic_stats,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: to.topic_admin.system_topics,
        Code.QUERY_CONSUME_QUEUE: to.topic_admin.queue_rows,
        Code.DELETE_TOPIC_IN_BROKER: to.topic_admin.delete_topic,
        # groups
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: to.group_admin.put_group,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: to.group_admin.put_groups,
        Code.GET_SUBSCRIPTIONGROUP_CONFIG: to.group_admin.group_config,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: to.group_admin.all_groups,
        Code.DELETE_SUBSCRIPTIONGROUP: to.group_admin.delete_group,
        # connected clients
        Code.GET_CONSUMER_CONNECTION_LIST: to.connections.consumers,
        Code.GET_PRODUCER_CONNECTION_LIST: to.connections.producers,
        Code.GET_ALL_PRODUCER_INFO: to.connections.all_producers,
        Code.QUERY_TOPIC_CONSUME_BY_WHO: to.connections.groups_of_topic,
        Code.QUERY_TOPICS_BY_CONSUMER: to.connections.topics_of_group,
        Code.QUERY_SUBSCRIPTION_BY_CONSUMER: to.connections.subscription,
        # progress of groups
        Code.GET_CONSUME_STATS: to.progress.of_group,
        Code.GET_BROKER_CONSUME_STATS: to.progress.of_all_groups,
        Code.QUERY_CONSUME_TIME_SPAN: to.progress.time_spans,
        Code.GET_ALL_CONSUMER_OFFSET: to.progress.all_offsets,
        Code.INVOKE_BROKER_TO_RESET_OFFSET: to.progress.reset,
        Code.CLONE_GROUP_OFFSET: to.progress.clone,
        # the broker as a whole
        Code.GET_BROKER_CONFIG: to.broker_admin.settings,
        Code.UPDATE_BROKER_CONFIG: to.broker_admin.change_settings,
        Code.GET_BROKER_RUNTIME_INFO: to.broker_admin.state,
        Code.VIEW_BROKER_STATS_DATA: to.broker_admin.rates,
        Code.GET_ALL_DELAY_OFFSET: to.broker_admin.delay_offsets,
        Code.GET_TIMER_CHECK_POINT: to.broker_admin.timer_checkpoint,
        Code.GET_BROKER_HA_STATUS: to.broker_admin.ha_status,
        Code.GET_COLD_DATA_FLOW_CTR_INFO: to.broker_admin.cold_data,
        Code.CLEAN_EXPIRED_CONSUMEQUEUE: to.broker_admin.clean_up,
        Code.CLEAN_UNUSED_TOPIC: to.broker_admin.clean_up,
        Code.DELETE_EXPIRED_COMMITLOG: to.broker_admin.clean_up,
        # users
        Code.AUTH_CREATE_USER: to.access.create_user,
        Code.AUTH_UPDATE_USER: to.access.update_user,
        Code.AUTH_DELETE_USER: to.access.delete_user,
        Code.AUTH_GET_USER: to.access.user,
        Code.AUTH_LIST_USER: to.access.users,
        Code.AUTH_CREATE_ACL: to.access.put_acl,
        Code.AUTH_UPDATE_ACL: to.access.put_acl,
        Code.AUTH_DELETE_ACL: to.access.delete_acl,
        Code.AUTH_GET_ACL: to.access.acl,
        Code.AUTH_LIST_ACL: to.access.acls,
    }
