"""Names of the topics that belong to consumer groups: their messages wait there for another try, or were given up."""

from __future__ import annotations

from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
"""The name of the group follows either (MixAll)."""


def is_of_group(topic: str) -> bool:
    """Return whether a topic is a retry or dead-letter topic."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def group_of(topic: str) -> str:
    """Return the group that a retry or dead-letter topic belongs to."""
    return topic.split("%", 2)[2]


def retry_topic(topic: str, group: str) -> str:
    """Return the topic where a group's unacknowledged messages of a topic come back from pops (KeyBuilder)."""
    return f"{RETRY_PREFIX}{group}_{topic}"
