"""Replies as clients send them."""

from __future__ import annotations

from typing import Any

from gateway.wire.headers import SendMessage
from tests.gateway.memory import START_MS, property_string

TOPIC = "DefaultCluster_REPLY_TOPIC"


def reply_fields(properties: dict[str, str], **changes: Any) -> SendMessage:
    """Return the fields of a reply."""
    values: dict[str, Any] = {
        "producer_group": "repliers",
        "topic": TOPIC,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": START_MS - 7,
        "flag": 9,
        "properties": property_string(properties),
        **changes,
    }
    return SendMessage(**values)
