"""Makes send requests from the records of a commit log: each message as the request that sent it.

A delayed message becomes a request by its parked record, which was written when the message was
accepted, with its real topic, queue and time. The record that was stored when it fired does not
become one. Neither do messages of the broker itself, messages that consumers sent back, and half
messages: a transaction becomes a request by the record of its commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from gateway.wire import properties as names
from gateway.wire.codes import RequestCode, SysFlag
from gateway.wire.group_topics import DLQ_PREFIX, RETRY_PREFIX
from gateway.wire.messages import Message, unpack_host
from gateway.wire.properties import find, remove
from spark_jobs.exchanges import ROWS, text_maps
from spark_jobs.messages import PARKING, asked_time, is_rolled

GROUP: Final = "tidegate-replay-log"
"""The producer group for records without one."""

_VERSION: Final = 513
"""The version of a 5.5.0 client (MQVersion)."""
NOT_SENT: Final = (RETRY_PREFIX, DLQ_PREFIX, "RMQ_SYS_", "rmq_sys_")
"""Prefixes of topics that no client sends to."""
_ADDED: Final = (
    *(names.REAL_TOPIC, names.REAL_QID, names.MSG_REGION, names.TRACE_ON, names.CLUSTER),
    *(names.TIMER_OUT_MS, names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS, names.TRAN_MSG),
    *(names.TRANSACTION_ID, names.TRAN_PREPARED_QUEUE_OFFSET, names.TRANSACTION_CHECK_TIMES),
    *(names.BORN_TIMESTAMP, names.BORN_HOST, names.CRC32, names.DUP_INFO),
)
"""Properties that the server or a transaction adds."""
_HOSTS: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_BATCHED: Final = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
_ORDER_BODY: Final = b"x"
"""The body for a recall order: its record has none, and servers refuse an empty body."""


def send_of(message: Message) -> dict[str, Any] | None:
    """Return a record's request as a row of `exchanges.ROWS` without file and position.

    The result is None if no client sent the record.
    """
    properties = message.properties
    topic, queue = message.topic, message.queue_id
    is_parked = topic in PARKING
    real = find(properties, names.REAL_TOPIC)
    if is_parked:
        if real is None or is_rolled(properties):
            return None
        topic = real
        text = find(properties, names.REAL_QID) or ""
        queue = int(text) if text.isdecimal() else 0
    elif real is not None or _was_pending(message):
        return None  # it has fired
    if topic.startswith(NOT_SENT) or message.sys_flag & _BATCHED:
        return None
    host, port = unpack_host(message.born_host)
    ext = {
        "a": find(properties, names.PGROUP) or GROUP,
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue),
        "f": str(message.sys_flag & ~(_HOSTS | SysFlag.TRANSACTION_MASK)),
        "g": str(message.born_ms),
        "h": str(message.flag),
        "i": remove(properties, _ADDED),
        "j": "0",
        "k": "false",
        "m": "false",
    }
    is_order = find(properties, names.TIMER_DEL_UNIQKEY) is not None
    return {
        "connection": f"log#{host}:{port}",
        "from_client": True,
        "asked_ns": message.store_ms * 1_000_000,
        "opaque": 0,
        "code": int(RequestCode.SEND_MESSAGE_V2),
        "flag": 0,
        "version": _VERSION,
        "language": "JAVA",
        "ext": ext,
        "body": message.body or (_ORDER_BODY if is_order else b""),
    }


def _was_pending(message: Message) -> bool:
    """Whether a message asks for a time after it was made; a broker stores any other in its topic at once.

    One that was pending and has fired has its real topic in a property, except from the RocksDB timeline.
    """
    _, _, due_ms = asked_time(message.properties, message.born_ms, (1,))
    return due_ms is not None and due_ms > message.born_ms


def send_batch(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return rows as a batch of `exchanges.ROWS`. Columns that a row lacks are null."""
    rows = list(rows)
    arrays = [
        text_maps([row.get(field.name) for row in rows])
        if pa.types.is_map(field.type)
        else pa.array([row.get(field.name) for row in rows], field.type)
        for field in ROWS
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)
