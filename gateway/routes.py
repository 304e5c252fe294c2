"""THE TABLE: request code -> its fields -> its handler. What stands here is supported; nothing else is."""

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
from gateway.router import Route
from gateway.wire import headers
from gateway.wire.codes import RequestCode as Code


class Handlers(NamedTuple):
    """One of each kind."""

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


def routes(to: Handlers) -> Mapping[int, Route]:
    """The router's table for these handlers."""
    return {
        # name server
        Code.GET_ROUTEINFO_BY_TOPIC: Route(headers.GetRouteInfo, to.routing.route),
        Code.GET_BROKER_CLUSTER_INFO: Route(None, to.routing.cluster_info),
        Code.GET_ALL_TOPIC_LIST: Route(None, to.routing.topic_list),
        Code.GET_TOPICS_BY_CLUSTER: Route(headers.GetTopicsByCluster, to.routing.topics_by_cluster),
        Code.WIPE_WRITE_PERM_OF_BROKER: Route(
            headers.NameServerBroker, to.routing.wipe_write_permission
        ),
        Code.ADD_WRITE_PERM_OF_BROKER: Route(
            headers.NameServerBroker, to.routing.add_write_permission
        ),
        Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: Route(None, to.names.system_topics),
        Code.GET_UNIT_TOPIC_LIST: Route(None, to.names.unit_topics),
        Code.GET_HAS_UNIT_SUB_TOPIC_LIST: Route(None, to.names.unit_topics),
        Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Route(None, to.names.unit_topics),
        Code.DELETE_TOPIC_IN_NAMESRV: Route(headers.DeleteTopicInNameServer, to.names.delete_topic),
        Code.PUT_KV_CONFIG: Route(headers.PutKvConfig, to.names.put_value),
        Code.GET_KV_CONFIG: Route(headers.KvConfig, to.names.value),
        Code.DELETE_KV_CONFIG: Route(headers.KvConfig, to.names.delete_value),
        Code.GET_KVLIST_BY_NAMESPACE: Route(headers.KvNamespace, to.names.values),
        Code.GET_NAMESRV_CONFIG: Route(None, to.names.settings),
        Code.UPDATE_NAMESRV_CONFIG: Route(None, to.names.change_settings),
        # clients
        Code.HEART_BEAT: Route(None, to.clients.heartbeat),
        Code.UNREGISTER_CLIENT: Route(headers.UnregisterClient, to.clients.unregister),
        Code.GET_CONSUMER_LIST_BY_GROUP: Route(headers.GetConsumerList, to.clients.consumer_list),
        Code.CHECK_CLIENT_CONFIG: Route(None, to.clients.check),
        Code.LOCK_BATCH_MQ: Route(None, to.clients.lock),
        Code.UNLOCK_BATCH_MQ: Route(None, to.clients.unlock),
        # sending
        Code.SEND_MESSAGE: Route(headers.SendMessage, to.sending.send),
        Code.SEND_MESSAGE_V2: Route(headers.SendMessageV2, to.sending.send),
        Code.SEND_BATCH_MESSAGE: Route(headers.SendMessageV2, to.sending.send),
        Code.CONSUMER_SEND_MSG_BACK: Route(headers.ConsumerSendMsgBack, to.sending.send_back),
        Code.SEND_REPLY_MESSAGE: Route(headers.SendMessage, to.replies.reply),
        Code.SEND_REPLY_MESSAGE_V2: Route(headers.SendMessageV2, to.replies.reply),
        Code.END_TRANSACTION: Route(headers.EndTransaction, to.transactions.end),
        # pulling
        Code.PULL_MESSAGE: Route(headers.PullMessage, to.pulling.pull),
        Code.LITE_PULL_MESSAGE: Route(headers.PullMessage, to.pulling.pull),
        # popping
        Code.POP_MESSAGE: Route(headers.PopMessage, to.popping.pop),
        Code.ACK_MESSAGE: Route(headers.AckMessage, to.pop_acks.ack),
        Code.BATCH_ACK_MESSAGE: Route(None, to.pop_acks.ack_batch),
        Code.CHANGE_MESSAGE_INVISIBLETIME: Route(
            headers.ChangeInvisibleTime, to.pop_acks.change_invisible_time
        ),
        Code.PEEK_MESSAGE: Route(headers.PeekMessage, to.pop_views.peek),
        Code.NOTIFICATION: Route(headers.Notification, to.pop_views.notification),
        Code.POLLING_INFO: Route(headers.PollingInfo, to.pop_views.polling_info),
        # who gets which queues, and how
        Code.QUERY_ASSIGNMENT: Route(None, to.assignments.query),
        Code.SET_MESSAGE_REQUEST_MODE: Route(None, to.assignments.set_mode),
        # offsets
        Code.QUERY_CONSUMER_OFFSET: Route(headers.QueryConsumerOffset, to.offsets.query),
        Code.UPDATE_CONSUMER_OFFSET: Route(headers.UpdateConsumerOffset, to.offsets.update),
        Code.SEARCH_OFFSET_BY_TIMESTAMP: Route(headers.SearchOffset, to.offsets.search),
        Code.GET_MAX_OFFSET: Route(headers.GetMaxOffset, to.offsets.max_offset),
        Code.GET_MIN_OFFSET: Route(headers.GetMinOffset, to.offsets.min_offset),
        Code.GET_EARLIEST_MSG_STORETIME: Route(
            headers.GetEarliestStoreTime, to.offsets.earliest_time
        ),
        # messages that have not fired
        Code.RECALL_MESSAGE: Route(headers.RecallMessage, to.timers.recall),
        Code.LOOK_UP_TIMERS: Route(headers.LookUpTimers, to.timers.look_up),
        Code.ABORT_TIMERS: Route(headers.AbortTimers, to.timers.abort),
        Code.RESCHEDULE_TIMERS: Route(headers.RescheduleTimers, to.timers.reschedule),
        Code.BULK_CHANGE_TIMERS: Route(headers.BulkChangeTimers, to.timers.change_many),
        Code.PAUSE_TOPIC: Route(headers.NamedTopic, to.timers.pause),
        Code.RESUME_TOPIC: Route(headers.NamedTopic, to.timers.resume),
        Code.LIST_PAUSED_TOPICS: Route(None, to.timers.paused),
        Code.GET_TIMER_METRICS: Route(None, to.timers.metrics),
        Code.CLOCK: Route(headers.MoveClock, to.manual_time.clock),
        # what recurs
        Code.LIST_RECURRING: Route(headers.ListRecurring, to.recurring.list),
        Code.CHANGE_RECURRING: Route(headers.ChangeRecurring, to.recurring.change),
        Code.NEXT_RECURRING: Route(headers.NextRecurring, to.recurring.next_times),
        # finding messages
        Code.QUERY_MESSAGE: Route(headers.QueryMessage, to.queries.query),
        Code.VIEW_MESSAGE_BY_ID: Route(headers.ViewMessage, to.queries.view),
        # what only a consumer's client knows
        Code.GET_CONSUMER_RUNNING_INFO: Route(
            headers.GetConsumerRunningInfo, to.relays.running_info
        ),
        Code.CONSUME_MESSAGE_DIRECTLY: Route(
            headers.ConsumeMessageDirectly, to.relays.consume_directly
        ),
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Route(
            headers.GetConsumerStatus, to.relays.consumer_status
        ),
        # topics
        Code.UPDATE_AND_CREATE_TOPIC: Route(headers.CreateTopic, to.topic_admin.create_topic),
        Code.UPDATE_AND_CREATE_TOPIC_LIST: Route(None, to.topic_admin.create_topics),
        Code.GET_TOPIC_CONFIG: Route(headers.GetTopicConfig, to.topic_admin.topic_config),
        Code.GET_ALL_TOPIC_CONFIG: Route(headers.GetAllTopics, to.topic_admin.all_topics),
        Code.GET_TOPIC_STATS_INFO: Route(headers.GetTopicStats, to.topic_admin.topic_stats),
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Route(None, to.topic_admin.system_topics),
        Code.QUERY_CONSUME_QUEUE: Route(headers.QueryConsumeQueue, to.topic_admin.queue_rows),
        Code.DELETE_TOPIC_IN_BROKER: Route(headers.DeleteTopic, to.topic_admin.delete_topic),
        # groups
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Route(None, to.group_admin.put_group),
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Route(None, to.group_admin.put_groups),
        Code.GET_SUBSCRIPTIONGROUP_CONFIG: Route(
            headers.GetGroupConfig, to.group_admin.group_config
        ),
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Route(
            headers.GetAllGroups, to.group_admin.all_groups
        ),
        Code.DELETE_SUBSCRIPTIONGROUP: Route(headers.DeleteGroup, to.group_admin.delete_group),
        # who is there
        Code.GET_CONSUMER_CONNECTION_LIST: Route(
            headers.GetConsumerConnections, to.connections.consumers
        ),
        Code.GET_PRODUCER_CONNECTION_LIST: Route(
            headers.GetProducerConnections, to.connections.producers
        ),
        Code.GET_ALL_PRODUCER_INFO: Route(None, to.connections.all_producers),
        Code.QUERY_TOPIC_CONSUME_BY_WHO: Route(
            headers.QueryTopicConsumers, to.connections.groups_of_topic
        ),
        Code.QUERY_TOPICS_BY_CONSUMER: Route(
            headers.QueryTopicsByConsumer, to.connections.topics_of_group
        ),
        Code.QUERY_SUBSCRIPTION_BY_CONSUMER: Route(
            headers.QuerySubscription, to.connections.subscription
        ),
        # how far groups are
        Code.GET_CONSUME_STATS: Route(headers.GetConsumeStats, to.progress.of_group),
        Code.GET_BROKER_CONSUME_STATS: Route(
            headers.GetBrokerConsumeStats, to.progress.of_all_groups
        ),
        Code.QUERY_CONSUME_TIME_SPAN: Route(headers.QueryConsumeTimeSpan, to.progress.time_spans),
        Code.GET_ALL_CONSUMER_OFFSET: Route(None, to.progress.all_offsets),
        Code.INVOKE_BROKER_TO_RESET_OFFSET: Route(headers.ResetOffset, to.progress.reset),
        Code.CLONE_GROUP_OFFSET: Route(headers.CloneGroupOffset, to.progress.clone),
        # the broker as a whole
        Code.GET_BROKER_CONFIG: Route(None, to.broker_admin.settings),
        Code.UPDATE_BROKER_CONFIG: Route(None, to.broker_admin.change_settings),
        Code.GET_BROKER_RUNTIME_INFO: Route(None, to.broker_admin.state),
        Code.VIEW_BROKER_STATS_DATA: Route(headers.ViewBrokerStats, to.broker_admin.rates),
        Code.GET_ALL_DELAY_OFFSET: Route(None, to.broker_admin.delay_offsets),
        Code.GET_TIMER_CHECK_POINT: Route(None, to.broker_admin.timer_checkpoint),
        Code.GET_BROKER_HA_STATUS: Route(None, to.broker_admin.ha_status),
        Code.GET_COLD_DATA_FLOW_CTR_INFO: Route(None, to.broker_admin.cold_data),
        Code.CLEAN_EXPIRED_CONSUMEQUEUE: Route(None, to.broker_admin.clean_up),
        Code.CLEAN_UNUSED_TOPIC: Route(None, to.broker_admin.clean_up),
        Code.DELETE_EXPIRED_COMMITLOG: Route(None, to.broker_admin.clean_up),
        # users
        Code.AUTH_CREATE_USER: Route(headers.NamedUser, to.access.create_user),
        Code.AUTH_UPDATE_USER: Route(headers.NamedUser, to.access.update_user),
        Code.AUTH_DELETE_USER: Route(headers.NamedUser, to.access.delete_user),
        Code.AUTH_GET_USER: Route(headers.NamedUser, to.access.user),
        Code.AUTH_LIST_USER: Route(headers.ListUsers, to.access.users),
        Code.AUTH_CREATE_ACL: Route(headers.NamedSubject, to.access.put_acl),
        Code.AUTH_UPDATE_ACL: Route(headers.NamedSubject, to.access.put_acl),
        Code.AUTH_DELETE_ACL: Route(headers.DeleteAcl, to.access.delete_acl),
        Code.AUTH_GET_ACL: Route(headers.NamedSubject, to.access.acl),
        Code.AUTH_LIST_ACL: Route(headers.ListAcls, to.access.acls),
    }
