"""The fields of the requests of producers and consumers, and the table of all requests with fields.

Each structure names its request code and the class of RocketMQ that it follows. On the wire a field has its name in
camel case unless the structure says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from msgspec import field

from gateway.wire.admin_headers import (
    CloneGroupOffset,
    ConsumeMessageDirectly,
    CreateTopic,
    DeleteAcl,
    DeleteGroup,
    DeleteTopic,
    DeleteTopicInNameServer,
    GetAllGroups,
    GetAllTopics,
    GetBrokerConsumeStats,
    GetConsumerConnections,
    GetConsumerRunningInfo,
    GetConsumerStatus,
    GetConsumeStats,
    GetGroupConfig,
    GetProducerConnections,
    GetRouteInfo,
    GetTopicConfig,
    GetTopicsByCluster,
    GetTopicStats,
    KvConfig,
    KvNamespace,
    ListAcls,
    ListUsers,
    NamedSubject,
    NamedUser,
    NameServerBroker,
    PutKvConfig,
    QueryConsumeQueue,
    QueryConsumeTimeSpan,
    QueryMessage,
    QuerySubscription,
    QueryTopicConsumers,
    QueryTopicsByConsumer,
    ResetOffset,
    ViewBrokerStats,
    ViewMessage,
)
from gateway.wire.codes import RequestCode
from gateway.wire.fields import Fields, Int32, Int64
from gateway.wire.pop_headers import (
    AckMessage,
    ChangeInvisibleTime,
    Notification,
    PeekMessage,
    PollingInfo,
    PopMessage,
)
from gateway.wire.recurring_headers import ChangeRecurring, ListRecurring, NextRecurring

__all__ = [
    "FIELDS_OF_REQUESTS",
    "AbortTimers",
    "AckMessage",
    "BulkChangeTimers",
    "ChangeInvisibleTime",
    "ChangeRecurring",
    "CloneGroupOffset",
    "ConsumeMessageDirectly",
    "ConsumerSendMsgBack",
    "CreateTopic",
    "DeleteAcl",
    "DeleteGroup",
    "DeleteTopic",
    "DeleteTopicInNameServer",
    "EndTransaction",
    "GetAllGroups",
    "GetAllTopics",
    "GetBrokerConsumeStats",
    "GetConsumeStats",
    "GetConsumerConnections",
    "GetConsumerList",
    "GetConsumerRunningInfo",
    "GetConsumerStatus",
    "GetEarliestStoreTime",
    "GetGroupConfig",
    "GetMaxOffset",
    "GetMinOffset",
    "GetProducerConnections",
    "GetRouteInfo",
    "GetTopicConfig",
    "GetTopicStats",
    "GetTopicsByCluster",
    "KvConfig",
    "KvNamespace",
    "ListAcls",
    "ListRecurring",
    "ListUsers",
    "LookUpTimers",
    "MoveClock",
    "NameServerBroker",
    "NamedSubject",
    "NamedTopic",
    "NamedUser",
    "NextRecurring",
    "Notification",
    "PeekMessage",
    "PollingInfo",
    "PopMessage",
    "PullMessage",
    "PutKvConfig",
    "QueryConsumeQueue",
    "QueryConsumeTimeSpan",
    "QueryConsumerOffset",
    "QueryMessage",
    "QuerySubscription",
    "QueryTopicConsumers",
    "QueryTopicsByConsumer",
    "RecallMessage",
    "RescheduleTimers",
    "ResetOffset",
    "SearchOffset",
    "SendMessage",
    "SendMessageV2",
    "UnregisterClient",
    "UpdateConsumerOffset",
    "ViewBrokerStats",
    "ViewMessage",
]


class SendMessage(Fields):
    """10 and 324, SendMessageRequestHeader."""

    unsent: ClassVar = {"producerGroup": "", "defaultTopic": "", "defaultTopicQueueNums": "4"}

    producer_group: str
    topic: str
    default_topic: str
    """The topic whose settings a new topic copies."""
    default_topic_queue_nums: Int32
    queue_id: Int32
    """A negative number leaves the choice to the server."""
    sys_flag: Int32
    born_timestamp: Int64
    """Epoch ms by the client's clock."""
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    """Whether the body is a batch, whatever the request code says."""
    broker_name: str | None = field(default=None, name="bname")


_LETTERS: Final = dict(zip(SendMessage.__struct_fields__, "abcdefghijklmn", strict=True))


class SendMessageV2(Fields, rename=_LETTERS):
    """310, 320 and 325, SendMessageRequestHeaderV2: the fields of `SendMessage`, each named by one letter."""

    unsent: ClassVar = {"a": "", "c": "", "d": "4"}

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    broker_name: str | None = None


class PullMessage(Fields):
    """11 and 361, PullMessageRequestHeader."""

    unsent: ClassVar = {"commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0"}

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    """Bits of `PullSysFlag`."""
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_froward_client_id: str | None = None
    """Misspelt upstream as well."""
    lite_topic: str | None = None


class QueryConsumerOffset(Fields):
    """14, QueryConsumerOffsetRequestHeader."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(Fields):
    """15, UpdateConsumerOffsetRequestHeader."""

    consumer_group: str
    topic: str
    queue_id: Int32 | None = None
    commit_offset: Int64 | None = None


class SearchOffset(Fields):
    """29, SearchOffsetRequestHeader. `timestamp` is a store time, epoch ms."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str | None = None
    """`lower` or `upper`, in any case."""


class GetMaxOffset(Fields):
    """30, GetMaxOffsetRequestHeader."""

    topic: str
    queue_id: Int32
    committed: bool = True


class GetMinOffset(Fields):
    """31, GetMinOffsetRequestHeader."""

    topic: str
    queue_id: Int32


class GetEarliestStoreTime(Fields):
    """32, GetEarliestMsgStoretimeRequestHeader."""

    topic: str
    queue_id: Int32


class UnregisterClient(Fields):
    """35, UnregisterClientRequestHeader. NewLife's .NET client sends no fields, which changes nothing."""

    unsent: ClassVar = {"clientID": ""}

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class ConsumerSendMsgBack(Fields):
    """36, ConsumerSendMsgBackRequestHeader."""

    offset: Int64
    """Physical offset of the message that was not consumed."""
    group: str
    delay_level: Int32
    """0 leaves the level to the server; a negative level sends the message to the dead letter topic at once."""
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class EndTransaction(Fields):
    """37, EndTransactionRequestHeader."""

    producer_group: str
    tran_state_table_offset: Int64
    """Queue offset of the half message."""
    commit_log_offset: Int64
    """Physical offset of the half message."""
    commit_or_rollback: Int32
    """SysFlag.TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, or 0 for a decision that is not known yet."""
    msg_id: str | None = None
    from_transaction_check: bool = False
    transaction_id: str | None = None
    topic: str | None = None


class GetConsumerList(Fields):
    """38, GetConsumerListByGroupRequestHeader."""

    consumer_group: str


class RecallMessage(Fields):
    """370, RecallMessageRequestHeader."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class LookUpTimers(Fields):
    """31001, Tidegate's own: looks up messages by id, by key, or by due time. An empty text does not narrow the
    search."""

    id: str = ""
    """UNIQ_KEY or offsetMsgId."""
    key: str = ""
    topic: str = ""
    tag: str = ""
    begin: Int64 = 0
    """Earliest due time, epoch ms."""
    end: Int64 | None = None
    """End of the due times, epoch ms, exclusive."""
    state: Literal["pending", "fired", "aborted", "any"] = "pending"
    limit: Int32 = 100
    """Most messages in the answer."""
    cursor: str = ""
    """From the answer with the previous page."""


class AbortTimers(Fields):
    """31002, Tidegate's own: aborts pending messages by handle, by id, or by topic and key."""

    handle: str = ""
    """A recall handle."""
    id: str = ""
    """UNIQ_KEY or offsetMsgId."""
    key: str = ""
    topic: str = ""


class MoveClock(Fields):
    """31020, Tidegate's own: returns the clock of a gateway, after moving it if one of the fields is set."""

    advance: Int64 | None = None
    """Milliseconds."""
    to: Int64 | None = None
    """Epoch ms."""


class RescheduleTimers(Fields):
    """31003, Tidegate's own: reschedules pending messages by handle, by id, or by topic and key. Exactly one of `due`,
    `delay` and `shift` is set.
    """

    handle: str = ""
    """A recall handle."""
    id: str = ""
    """UNIQ_KEY or offsetMsgId."""
    key: str = ""
    topic: str = ""
    due: Int64 | None = None
    """Epoch ms."""
    delay: Int64 | None = None
    """Milliseconds from now."""
    shift: Int64 | None = None
    """Milliseconds after the time that it has now; before that time, if negative."""


class NamedTopic(Fields):
    """31004 and 31005, Tidegate's own: pauses or resumes the firing of a topic."""

    topic: str


class BulkChangeTimers(Fields):
    """31007, Tidegate's own: counts, aborts or reschedules, step by step, a topic's pending messages that match all
    given fields. An empty text does not narrow the search.
    """

    topic: str
    action: Literal["count", "abort", "reschedule"]
    key: str = ""
    tag: str = ""
    begin: Int64 = 0
    """Earliest due time, epoch ms."""
    end: Int64 | None = None
    """End of the due times, epoch ms, exclusive."""
    due: Int64 | None = None
    """The new time, see `RescheduleTimers`."""
    delay: Int64 | None = None
    shift: Int64 | None = None
    cursor: str = ""
    """From the answer to the previous step."""


FIELDS_OF_REQUESTS: Final[Mapping[int, type[Fields]]] = {
    RequestCode.SEND_MESSAGE: SendMessage,
    RequestCode.PULL_MESSAGE: PullMessage,
    RequestCode.QUERY_MESSAGE: QueryMessage,
    RequestCode.QUERY_CONSUMER_OFFSET: QueryConsumerOffset,
    RequestCode.UPDATE_CONSUMER_OFFSET: UpdateConsumerOffset,
    RequestCode.UPDATE_AND_CREATE_TOPIC: CreateTopic,
    RequestCode.GET_ALL_TOPIC_CONFIG: GetAllTopics,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffset,
    RequestCode.GET_MAX_OFFSET: GetMaxOffset,
    RequestCode.GET_MIN_OFFSET: GetMinOffset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: GetEarliestStoreTime,
    RequestCode.VIEW_MESSAGE_BY_ID: ViewMessage,
    RequestCode.UNREGISTER_CLIENT: UnregisterClient,
    RequestCode.CONSUMER_SEND_MSG_BACK: ConsumerSendMsgBack,
    RequestCode.END_TRANSACTION: EndTransaction,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: GetConsumerList,
    RequestCode.PUT_KV_CONFIG: PutKvConfig,
    RequestCode.GET_KV_CONFIG: KvConfig,
    RequestCode.DELETE_KV_CONFIG: KvConfig,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: GetRouteInfo,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: GetAllGroups,
    RequestCode.GET_TOPIC_STATS_INFO: GetTopicStats,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: GetConsumerConnections,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: GetProducerConnections,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: NameServerBroker,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: DeleteGroup,
    RequestCode.GET_CONSUME_STATS: GetConsumeStats,
    RequestCode.DELETE_TOPIC_IN_BROKER: DeleteTopic,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: DeleteTopicInNameServer,
    RequestCode.GET_KVLIST_BY_NAMESPACE: KvNamespace,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffset,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: GetConsumerStatus,
    RequestCode.GET_TOPICS_BY_CLUSTER: GetTopicsByCluster,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: QueryTopicConsumers,
    RequestCode.QUERY_CONSUME_TIME_SPAN: QueryConsumeTimeSpan,
    RequestCode.GET_CONSUMER_RUNNING_INFO: GetConsumerRunningInfo,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: ConsumeMessageDirectly,
    RequestCode.SEND_MESSAGE_V2: SendMessageV2,
    RequestCode.CLONE_GROUP_OFFSET: CloneGroupOffset,
    RequestCode.VIEW_BROKER_STATS_DATA: ViewBrokerStats,
    RequestCode.GET_BROKER_CONSUME_STATS: GetBrokerConsumeStats,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageV2,
    RequestCode.QUERY_CONSUME_QUEUE: QueryConsumeQueue,
    RequestCode.SEND_REPLY_MESSAGE: SendMessage,
    RequestCode.SEND_REPLY_MESSAGE_V2: SendMessageV2,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: NameServerBroker,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: QueryTopicsByConsumer,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: QuerySubscription,
    RequestCode.GET_TOPIC_CONFIG: GetTopicConfig,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: GetGroupConfig,
    RequestCode.LITE_PULL_MESSAGE: PullMessage,
    RequestCode.RECALL_MESSAGE: RecallMessage,
    RequestCode.AUTH_CREATE_USER: NamedUser,
    RequestCode.AUTH_UPDATE_USER: NamedUser,
    RequestCode.AUTH_DELETE_USER: NamedUser,
    RequestCode.AUTH_GET_USER: NamedUser,
    RequestCode.AUTH_LIST_USER: ListUsers,
    RequestCode.AUTH_CREATE_ACL: NamedSubject,
    RequestCode.AUTH_UPDATE_ACL: NamedSubject,
    RequestCode.AUTH_DELETE_ACL: DeleteAcl,
    RequestCode.AUTH_GET_ACL: NamedSubject,
    RequestCode.AUTH_LIST_ACL: ListAcls,
    RequestCode.POP_MESSAGE: PopMessage,
    RequestCode.ACK_MESSAGE: AckMessage,
    RequestCode.PEEK_MESSAGE: PeekMessage,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisibleTime,
    RequestCode.NOTIFICATION: Notification,
    RequestCode.POLLING_INFO: PollingInfo,
    RequestCode.LOOK_UP_TIMERS: LookUpTimers,
    RequestCode.ABORT_TIMERS: AbortTimers,
    RequestCode.RESCHEDULE_TIMERS: RescheduleTimers,
    RequestCode.PAUSE_TOPIC: NamedTopic,
    RequestCode.RESUME_TOPIC: NamedTopic,
    RequestCode.BULK_CHANGE_TIMERS: BulkChangeTimers,
    RequestCode.LIST_RECURRING: ListRecurring,
    RequestCode.CHANGE_RECURRING: ChangeRecurring,
    RequestCode.NEXT_RECURRING: NextRecurring,
    RequestCode.CLOCK: MoveClock,
}
"""The structure of fields for every request code that has fields."""
