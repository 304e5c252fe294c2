"""Reads what a stored row says by itself, for the repair of a damaged data folder."""

from __future__ import annotations

from typing import Final

from gateway.intake import terms_of
from gateway.recurring.definitions import definition_of
from gateway.settings.config import Config
from gateway.topics import HALF_TOPIC, are_settings, system_topics
from gateway.wire import properties as names
from gateway.wire.messages import decode_message
from gateway.wire.properties import find
from storage import RecordReader, Recurring


def due_of(record: bytes) -> int:
    """Return when a message asked to be delivered, epoch ms; 0 where its record does not say.

    A delay level counts from the time when the message was stored, with RocketMQ's levels.
    """
    message = decode_message(record)
    # A sender may write any number of zeros in front.
    level_text = (find(message.properties, names.DELAY) or "").removeprefix("+").lstrip("0")
    if level_text.isascii() and level_text.isdigit():
        level = min(int(level_text), len(_LEVELS_MS))
        return message.store_ms + _LEVELS_MS[level - 1]
    if find(message.properties, names.REAL_TOPIC) != message.topic:
        return 0  # it waits for nothing: a retry or a dead letter, say, which keeps the time of its first delivery
    text = find(message.properties, names.TIMER_OUT_MS) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def is_half(record: bytes) -> bool:
    """Whether a record is a half message that waits for its transaction's decision."""
    return decode_message(record).topic == HALF_TOPIC


def is_readable(table: str, key: bytes, value: bytes) -> bool:
    """Whether settings of a topic or a group, or a recurring message, can be read."""
    if table == "recurring":
        return definition_of(Recurring(b"", key, 0, 0, False, value)) is not None
    # A system topic needs no settings, and nobody could set them again.
    is_system = table == "topics" and key in _SYSTEM_TOPICS
    return is_system or are_settings(table, key, value)


_LEVELS_MS: Final = Config().delay_level_ms

_SYSTEM_TOPICS: Final = {one.topic_name.encode() for one in system_topics(Config())}

READER: Final = RecordReader(terms_of, due_of, is_half, is_readable)
"""The functions by which `storage.Inspection` reads records."""
