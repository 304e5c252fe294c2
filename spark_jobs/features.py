"""The feature that a request uses. `compare` judges by feature as well as by request code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from gateway.wire import properties as names
from gateway.wire.codes import RequestCode
from gateway.wire.group_topics import RETRY_PREFIX
from spark_jobs.messages import PULLS, SENDS

if TYPE_CHECKING:
    from pyspark.sql import Column

_BY_CODE: Final[tuple[tuple[str, frozenset[RequestCode]], ...]] = (
    ("transactions", frozenset({RequestCode.END_TRANSACTION, RequestCode.CHECK_TRANSACTION_STATE})),
    (
        "ordered consumption",
        frozenset({RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ}),
    ),
    ("recall", frozenset({RequestCode.RECALL_MESSAGE})),
    ("retries", frozenset({RequestCode.CONSUMER_SEND_MSG_BACK})),
    (
        "request and reply",
        frozenset({RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}),
    ),
    (
        "pops",
        frozenset(
            {
                RequestCode.POP_MESSAGE,
                RequestCode.ACK_MESSAGE,
                RequestCode.BATCH_ACK_MESSAGE,
                RequestCode.PEEK_MESSAGE,
                RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
                RequestCode.NOTIFICATION,
                RequestCode.POLLING_INFO,
                RequestCode.QUERY_ASSIGNMENT,
            }
        ),
    ),
    (
        "offsets",
        frozenset(
            {
                RequestCode.QUERY_CONSUMER_OFFSET,
                RequestCode.UPDATE_CONSUMER_OFFSET,
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                RequestCode.GET_MAX_OFFSET,
                RequestCode.GET_MIN_OFFSET,
                RequestCode.GET_EARLIEST_MSG_STORETIME,
            }
        ),
    ),
    ("look-up", frozenset({RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID})),
    (
        "clients",
        frozenset(
            {
                RequestCode.HEART_BEAT,
                RequestCode.UNREGISTER_CLIENT,
                RequestCode.CHECK_CLIENT_CONFIG,
                RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            }
        ),
    ),
    (
        "routes",
        frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO}),
    ),
)
_TIMES: Final = (
    names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS,
    names.TIMER_DELIVER_MS,
    names.START_DELIVER_TIME,
)
_ORDERED: Final = (names.SHARDING_KEY, names.SHARDING_KEY_GO)
_FILTERED: Final = "filters"
_ADMIN: Final = "admin"


def feature() -> Column:
    """Return the expression for a request's feature, from the columns `code` and `ext`."""
    from pyspark.sql import functions as f

    def field(*fields: str) -> Column:
        return f.coalesce(*(f.try_element_at("ext", f.lit(name)) for name in fields), f.lit(""))

    properties = field("i", "properties")

    def has(wanted: Iterable[str]) -> Column:
        # A property is at the start of the text, or after the end of another.
        return properties.rlike(f"(^|\\x02)({'|'.join(wanted)})\\x01")

    is_send = f.col("code").isin(*map(int, SENDS))
    is_pull = f.col("code").isin(*map(int, PULLS))
    is_batch = (f.col("code") == int(RequestCode.SEND_BATCH_MESSAGE)) | (
        field("m", "batch").isin("true", "1")
    )
    is_filtered = ~field("subscription").isin("", "*")
    found = (
        f.when(
            (is_send | is_pull) & field("b", "topic").startswith(RETRY_PREFIX),
            "retries",
        )
        .when(is_send & has([names.TRAN_MSG]), "transactions")
        .when(is_send & has([names.DELAY]), "delay levels")
        .when(is_send & has(_TIMES), "arbitrary times")
        .when(is_send & is_batch, "batches")
        .when(is_send & has(_ORDERED), "ordered sends")
        .when(is_send, "sends")
        .when(is_pull & is_filtered, _FILTERED)
        .when(is_pull, "pulls")
    )
    for name, codes in _BY_CODE:
        found = found.when(f.col("code").isin(*map(int, codes)), name)
    return found.otherwise(_ADMIN).alias("feature")
