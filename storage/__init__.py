"""All use of LMDB: messages, timers, queues, indexes, offsets and settings, in one environment behind a redo log.

Callers use typed calls and receive plain values. No LMDB object leaves this package, and nothing here depends on
RocketMQ or Twisted.
"""

from storage.aborting import Aborted, AbortResult, abort, abort_sequences
from storage.check import find_faults
from storage.copies import (
    Compacted,
    Pending,
    back_up,
    compact,
    data_file,
    read_pending,
    restore,
)
from storage.debouncing import (
    MAX_LOOKED_AT,
    count_candidates,
    note_older,
    replace_pending,
    replaceable,
)
from storage.disk import sync
from storage.environment import FOLDER_FILES, lock_folder
from storage.errors import (
    DamagedError,
    DataFolderError,
    RestartNeededError,
    StorageError,
    StorageFullError,
    as_told,
    check_command,
)
from storage.evidence import RecordReader
from storage.firing import Fired, fire_crowded_out, fire_due
from storage.halves import (
    Half,
    find_half,
    halves_to_check,
    put_half,
    put_off_check,
    remove_half,
    take_half,
)
from storage.history import scan_aborted, scan_fired
from storage.inbox import INBOX_SIZE
from storage.increments import (
    Increment,
    back_up_changes,
    is_chain,
    read_chain,
    restore_changes,
)
from storage.inspection import Findings, Inspection
from storage.keys import HELD_SPAN_MS, Terms
from storage.lookup import (
    MAX_BYTES_SCANNED,
    MAX_WITH_ID,
    Found,
    FoundPage,
    State,
    all_with_id,
    check_readable,
    check_readable_with_key,
    find_by_id,
    find_by_key,
    find_by_sequence,
    find_by_sequences,
    find_record,
    has_too_many,
    scan_with_key,
    topics_with_key,
)
from storage.meta_pages import DATA_FILE
from storage.newest import newest_stored_ms
from storage.paused import Pause
from storage.pausing import fire_resumed, pause_topic, resume_topic
from storage.pending import scan_pending
from storage.pops import Pop, PopDue, due_pops, put_pops, take_pop
from storage.queues import MAX_RECORDS_JUDGED, MAX_ROWS_FILTERED, Page, Queue, StoredMessage
from storage.recurring import (
    Recurring,
    RecurringPage,
    count_recurring,
    current_recurring,
    delete_recurring,
    delete_recurring_of,
    due_recurring,
    find_recurring,
    next_recurring_due,
    plan_recurring,
    put_recurring,
    scan_recurring,
)
from storage.rescheduling import (
    Rescheduled,
    RescheduleResult,
    reschedule,
    reschedule_sequences,
)
from storage.retention import (
    Step,
    begin_queue,
    cut_topic,
    emptied_queues,
    expire_messages,
    expire_topic,
    expired_bounds,
    remove_expired,
)
from storage.soon import count_overdue, count_soon
from storage.store import Growth, Store
from storage.timeline import Columns, Cursor, count_due, due_range, with_whole
from storage.usage import Usage, usage_of

__all__ = [
    "DATA_FILE",
    "FOLDER_FILES",
    "HELD_SPAN_MS",
    "INBOX_SIZE",
    "MAX_BYTES_SCANNED",
    "MAX_LOOKED_AT",
    "MAX_RECORDS_JUDGED",
    "MAX_ROWS_FILTERED",
    "MAX_WITH_ID",
    "AbortResult",
    "Aborted",
    "Columns",
    "Compacted",
    "Cursor",
    "DamagedError",
    "DataFolderError",
    "Findings",
    "Fired",
    "Found",
    "FoundPage",
    "Growth",
    "Half",
    "Increment",
    "Inspection",
    "Page",
    "Pause",
    "Pending",
    "Pop",
    "PopDue",
    "Queue",
    "RecordReader",
    "Recurring",
    "RecurringPage",
    "RescheduleResult",
    "Rescheduled",
    "RestartNeededError",
    "State",
    "Step",
    "StorageError",
    "StorageFullError",
    "Store",
    "StoredMessage",
    "Terms",
    "Usage",
    "abort",
    "abort_sequences",
    "all_with_id",
    "as_told",
    "back_up",
    "back_up_changes",
    "begin_queue",
    "check_command",
    "check_readable",
    "check_readable_with_key",
    "compact",
    "count_candidates",
    "count_due",
    "count_overdue",
    "count_recurring",
    "count_soon",
    "current_recurring",
    "cut_topic",
    "data_file",
    "delete_recurring",
    "delete_recurring_of",
    "due_pops",
    "due_range",
    "due_recurring",
    "emptied_queues",
    "expire_messages",
    "expire_topic",
    "expired_bounds",
    "find_by_id",
    "find_by_key",
    "find_by_sequence",
    "find_by_sequences",
    "find_faults",
    "find_half",
    "find_record",
    "find_recurring",
    "fire_crowded_out",
    "fire_due",
    "fire_resumed",
    "halves_to_check",
    "has_too_many",
    "is_chain",
    "lock_folder",
    "newest_stored_ms",
    "next_recurring_due",
    "note_older",
    "pause_topic",
    "plan_recurring",
    "put_half",
    "put_off_check",
    "put_pops",
    "put_recurring",
    "read_chain",
    "read_pending",
    "remove_expired",
    "remove_half",
    "replace_pending",
    "replaceable",
    "reschedule",
    "reschedule_sequences",
    "restore",
    "restore_changes",
    "resume_topic",
    "scan_aborted",
    "scan_fired",
    "scan_pending",
    "scan_recurring",
    "scan_with_key",
    "sync",
    "take_half",
    "take_pop",
    "topics_with_key",
    "usage_of",
    "with_whole",
]
