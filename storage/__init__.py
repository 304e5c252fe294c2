"""Everything LMDB: messages, timers, queues, indexes, offsets and settings, in one environment.

Typed calls in, plain values out; no LMDB object leaves this room, and nothing here knows RocketMQ
or Twisted.
"""

from storage.check import find_faults
from storage.errors import DataFolderError, StorageError, StorageFullError
from storage.lookup import (
    Found,
    FoundPage,
    State,
    find_by_id,
    find_by_key,
    find_by_sequence,
    held_by_topic,
    scan_pending,
)
from storage.queues import Page, Queue, StoredMessage
from storage.retention import remove_expired
from storage.store import Aborted, AbortResult, Fired, Store, Terms

__all__ = [
    "AbortResult",
    "Aborted",
    "DataFolderError",
    "Fired",
    "Found",
    "FoundPage",
    "Page",
    "Queue",
    "State",
    "StorageError",
    "StorageFullError",
    "Store",
    "StoredMessage",
    "Terms",
    "find_by_id",
    "find_by_key",
    "find_by_sequence",
    "find_faults",
    "held_by_topic",
    "remove_expired",
    "scan_pending",
]
