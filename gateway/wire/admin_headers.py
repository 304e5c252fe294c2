"""The fields of the requests of name-server clients and of tools; `headers` re-exports them."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from gateway.wire.fields import Fields, Int32, Int64


class GetRouteInfo(Fields):
    """105, GetRouteInfoRequestHeader."""

    topic: str
    accept_standard_json_only: bool = False


class GetTopicsByCluster(Fields):
    """224, GetTopicsByClusterRequestHeader."""

    cluster: str


class KvConfig(Fields):
    """101 and 102, GetKVConfigRequestHeader and DeleteKVConfigRequestHeader."""

    namespace: str
    key: str


class PutKvConfig(Fields):
    """100, PutKVConfigRequestHeader."""

    namespace: str
    key: str
    value: str


class KvNamespace(Fields):
    """219, GetKVListByNamespaceRequestHeader."""

    namespace: str


class NameServerBroker(Fields):
    """205 and 327, WipeWritePermOfBrokerRequestHeader and AddWritePermOfBrokerRequestHeader."""

    broker_name: str


class DeleteTopicInNameServer(Fields):
    """216, DeleteTopicFromNamesrvRequestHeader."""

    topic: str
    cluster_name: str | None = None


class QueryMessage(Fields):
    """12, QueryMessageRequestHeader. Times are store times, epoch ms, both inclusive."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp: Int64
    end_timestamp: Int64
    index_type: str | None = None
    """K for a key, U for a UNIQ_KEY, T for a tag; older clients do not send it."""
    last_key: str | None = None
    unique_key_query: bool = field(default=False, name="_UNIQUE_KEY_QUERY")
    """Whether `key` is a UNIQ_KEY (MixAll.UNIQUE_MSG_QUERY_FLAG)."""


class ViewMessage(Fields):
    """33, ViewMessageRequestHeader."""

    offset: Int64
    """Physical offset."""
    topic: str | None = None


class CreateTopic(Fields):
    """17, CreateTopicRequestHeader."""

    unsent: ClassVar = {"defaultTopic": ""}

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    """Changes of attributes: `+name=value` and `-name`, separated by commas."""
    force: bool = False


class GetTopicConfig(Fields):
    """351, GetTopicConfigRequestHeader."""

    topic: str
    lo: bool | None = None
    """Whether to leave out the part of a logical topic that is spread over brokers (TopicRequestHeader)."""


class GetAllTopics(Fields):
    """21, GetAllTopicConfigRequestHeader."""

    topic_seq: Int32 | None = None
    data_version: str | None = None
    max_topic_num: Int32 | None = None


class DeleteTopic(Fields):
    """215, DeleteTopicRequestHeader."""

    topic: str


class GetAllGroups(Fields):
    """201, GetAllSubscriptionGroupRequestHeader."""

    group_seq: Int32 | None = None
    data_version: str | None = None
    max_group_num: Int32 | None = None


class GetGroupConfig(Fields):
    """352, GetSubscriptionGroupConfigRequestHeader."""

    group: str


class DeleteGroup(Fields):
    """207, DeleteSubscriptionGroupRequestHeader."""

    group_name: str
    clean_offset: bool = False


class GetTopicStats(Fields):
    """202, GetTopicStatsInfoRequestHeader."""

    topic: str


class GetConsumerConnections(Fields):
    """203, GetConsumerConnectionListRequestHeader."""

    consumer_group: str


class GetProducerConnections(Fields):
    """204, GetProducerConnectionListRequestHeader."""

    producer_group: str


class GetConsumeStats(Fields):
    """208, GetConsumeStatsRequestHeader."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None
    """Topics, separated by semicolons."""


class GetBrokerConsumeStats(Fields):
    """317, GetConsumeStatsInBrokerHeader."""

    is_order: bool


class QueryConsumeTimeSpan(Fields):
    """303, QueryConsumeTimeSpanRequestHeader."""

    topic: str
    group: str


class QueryTopicConsumers(Fields):
    """300, QueryTopicConsumeByWhoRequestHeader."""

    topic: str


class QueryTopicsByConsumer(Fields):
    """343, QueryTopicsByConsumerRequestHeader."""

    group: str


class QuerySubscription(Fields):
    """345, QuerySubscriptionByConsumerRequestHeader."""

    group: str
    topic: str | None = None


class ResetOffset(Fields):
    """222, ResetOffsetRequestHeader."""

    unsent: ClassVar = {"timestamp": "0", "isForce": "false"}

    topic: str
    group: str
    timestamp: Int64
    """Epoch ms; -1 means the end of each queue."""
    is_force: bool
    queue_id: Int32 = -1
    """-1 means all queues."""
    offset: Int64 | None = None
    """The new offset; without one the timestamp counts."""


class GetConsumerStatus(Fields):
    """223, GetConsumerStatusRequestHeader."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfo(Fields):
    """307, GetConsumerRunningInfoRequestHeader."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectly(Fields):
    """309, ConsumeMessageDirectlyResultRequestHeader."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class CloneGroupOffset(Fields):
    """314, CloneGroupOffsetRequestHeader."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class ViewBrokerStats(Fields):
    """315, ViewBrokerStatsDataRequestHeader."""

    stats_name: str
    stats_key: str


class QueryConsumeQueue(Fields):
    """321, QueryConsumeQueueRequestHeader."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class NamedUser(Fields):
    """3001, 3002, 3003 and 3004, CreateUserRequestHeader and similar classes."""

    username: str = ""


class ListUsers(Fields):
    """3005, ListUsersRequestHeader."""

    filter: str | None = None


class NamedSubject(Fields):
    """3006, 3007 and 3009, CreateAclRequestHeader and similar classes."""

    subject: str | None = None
    """`User:` and a user's name."""


class DeleteAcl(Fields):
    """3008, DeleteAclRequestHeader."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None
    """Without a resource, all policies of the subject are deleted."""


class ListAcls(Fields):
    """3010, ListAclsRequestHeader."""

    subject_filter: str | None = None
    resource_filter: str | None = None
