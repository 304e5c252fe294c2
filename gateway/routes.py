"""THE TABLE: request code -> its fields -> its handler. What stands here is supported; nothing else is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gateway.handlers.admin import Admin
from gateway.handlers.clients import ClientRequests
from gateway.handlers.offsets import Offsets
from gateway.handlers.pulling import Pulling
from gateway.handlers.queries import Queries
from gateway.handlers.relays import Relays
from gateway.handlers.routing import Routing
from gateway.handlers.sending import Sending
from gateway.handlers.timers import Timers
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
    offsets: Offsets
    timers: Timers
    transactions: Transactions
    queries: Queries
    relays: Relays
    admin: Admin


def routes(to: Handlers) -> Mapping[int, Route]:
    """The router's table for these handlers."""
    return {
        # name server
        Code.GET_ROUTEINFO_BY_TOPIC: Route(headers.GetRouteInfo, to.routing.route),
        Code.GET_BROKER_CLUSTER_INFO: Route(None, to.routing.cluster_info),
        Code.GET_ALL_TOPIC_LIST: Route(None, to.routing.topic_list),
        Code.GET_TOPICS_BY_CLUSTER: Route(headers.GetTopicsByCluster, to.routing.topics_by_cluster),
        Code.DELETE_TOPIC_IN_NAMESRV: Route(headers.DeleteTopicInNameServer, to.admin.delete_topic),
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
        Code.END_TRANSACTION: Route(headers.EndTransaction, to.transactions.end),
        # pulling
        Code.PULL_MESSAGE: Route(headers.PullMessage, to.pulling.pull),
        Code.LITE_PULL_MESSAGE: Route(headers.PullMessage, to.pulling.pull),
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
        Code.GET_TIMER_METRICS: Route(None, to.timers.metrics),
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
        # topics and groups
        Code.UPDATE_AND_CREATE_TOPIC: Route(headers.CreateTopic, to.admin.create_topic),
        Code.GET_TOPIC_CONFIG: Route(headers.GetTopicConfig, to.admin.topic_config),
        Code.DELETE_TOPIC_IN_BROKER: Route(headers.DeleteTopic, to.admin.delete_topic),
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Route(None, to.admin.put_group),
        Code.GET_SUBSCRIPTIONGROUP_CONFIG: Route(headers.GetGroupConfig, to.admin.group_config),
        Code.DELETE_SUBSCRIPTIONGROUP: Route(headers.DeleteGroup, to.admin.delete_group),
    }
