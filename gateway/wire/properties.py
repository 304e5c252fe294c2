"""A message's properties: reserved names, and the string that holds them (MessageConst, MessageDecoder).

The string is `name 0x01 value 0x02 name 0x01 value 0x02 ...`; the last 0x02 may be missing. Nothing is escaped. Pairs
with an empty name or an empty value are ignored. If several pairs have one name, the last one counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

NAME_END: Final = "\x01"
"""Separates a name from its value."""
PAIR_END: Final = "\x02"
"""Ends a pair."""

# Set by the sender.
KEYS: Final = "KEYS"
"""Keys for look-ups, separated by blanks; see `keys_in`."""
TAGS: Final = "TAGS"
"""The one tag that consumers filter by."""
WAIT: Final = "WAIT"
"""Whether the answer waits until the message is safely stored: "true" or "false"."""
UNIQ_KEY: Final = "UNIQ_KEY"
"""The message's id, made by the client; users identify the message by it."""
EXTEND_UNIQ_INFO: Final = "EXTEND_UNIQ_INFO"
SHARDING_KEY: Final = "__SHARDINGKEY"
SHARDING_KEY_GO: Final = "SHARDING_KEY"
INSTANCE_ID: Final = "INSTANCE_ID"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
BUYER_ID: Final = "BUYER_ID"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"

# When the message is to be delivered.
DELAY: Final = "DELAY"
"""Delay level, from 1."""
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
"""Time of delivery, epoch ms."""
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
START_DELIVER_TIME: Final = "__STARTDELIVERTIME"
"""Time of delivery, epoch ms; written by the clients of some cloud services."""
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
"""Marks an order to delete the timed message with this id."""
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
"""Time of delivery as the server rounded it, epoch ms; set by the server."""
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_ROLL_LABEL: Final = "TIMER_ROLL_LABEL"
TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"

# Tidegate's own: how a message recurs.
RECUR_CRON: Final = "TIDEGATE_CRON"
"""A cron expression; the message is the template of all messages that follow."""
RECUR_EVERY: Final = "TIDEGATE_EVERY"
"""A period such as `2m`."""
RECUR_ZONE: Final = "TIDEGATE_ZONE"
"""Time zone of the expression, and of times without a zone; UTC by default."""
RECUR_START: Final = "TIDEGATE_START"
RECUR_END: Final = "TIDEGATE_END"
RECUR_COUNT: Final = "TIDEGATE_COUNT"
"""The number of messages after which it ends."""
RECUR_MISFIRE: Final = "TIDEGATE_MISFIRE"
"""How missed messages are handled."""
RECUR_CHANGE: Final = "TIDEGATE_RECURRING"
"""An order for the recurring message with a name: pause, resume or delete. The order itself is not delivered."""
RECUR_NAME: Final = "TIDEGATE_NAME"
"""The name of a recurring message in its topic; each message that fires has it too."""
PLANNED_MS: Final = "TIDEGATE_PLANNED_MS"
"""The time that a fired message was planned for, epoch ms; on each message that fires."""

# The place where a delayed or retried message belongs.
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
"""The original topic of a retried message."""
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
"""The original offsetMsgId of a retried message."""
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"

# Transactions.
TRAN_MSG: Final = "TRAN_MSG"
"""The message is the first half of a transaction: "true"."""
PGROUP: Final = "PGROUP"
"""Producer group; any of its members can be asked about the transaction."""
TRANSACTION_ID: Final = "__transactionId__"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANS_OFFSET: Final = "TRANS_OFFSET"

# Added by the server.
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
CLUSTER: Final = "CLUSTER"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
BORN_HOST: Final = "__BORNHOST"
CRC32: Final = "__CRC32#"
REDIRECT: Final = "REDIRECT"
FORWARD_QUEUE_ID: Final = "PROPERTY_FORWARD_QUEUE_ID"
TRANSFER_FLAG: Final = "TRANSFER_FLAG"
CORRECTION_FLAG: Final = "CORRECTION_FLAG"
MQ2_FLAG: Final = "MQ2_FLAG"
DUP_INFO: Final = "DUP_INFO"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
LITE_TOPIC: Final = "__LITE_TOPIC"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"

# Tidegate's own, set by the sender.
RESCHEDULE: Final = "TIDEGATE_RESCHEDULE"
"""Marks an order to deliver the timed message with this id at the order's time."""
DEBOUNCE: Final = "TIDEGATE_DEBOUNCE"
"""One of the message's keys. This message aborts the topic's messages with that key that have not fired."""

# Added by Tidegate to the messages that a query finds, so that any tool shows them.
STATE: Final = "TIDEGATE_STATE"
"""The state of a timed message: pending, fired or aborted."""
DUE_MS: Final = "TIDEGATE_DUE_MS"
"""The time at which a timed message is due, or was, epoch ms."""

# Set by a consumer's client on messages that it pulled.
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"

# Requests that are answered with messages.
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
"""How long the requesting client waits, in ms."""
MSG_TYPE: Final = "MSG_TYPE"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"

# Pop consumption.
POP_CK: Final = "POP_CK"
POP_CK_OFFSET: Final = "POP_CK_OFFSET"
FIRST_POP_TIME: Final = "1ST_POP_TIME"


def find(properties: str, name: str) -> str | None:
    """Return the value of one property, or None when it is missing or empty. Nothing else is parsed."""
    if name not in properties:
        return None
    # Search from the end: the last pair of a name counts. If it is empty, an earlier pair counts. A separator in front
    # makes the first pair like any other.
    rest, found, behind = f"{PAIR_END}{properties}".rpartition(f"{PAIR_END}{name}{NAME_END}")
    while found:
        value = behind.partition(PAIR_END)[0]
        if value:
            return value
        rest, found, behind = rest.rpartition(found)
    return None


def parse(properties: str) -> dict[str, str]:
    """Return all properties by name, in the order of their first appearance."""
    found: dict[str, str] = {}
    for pair in properties.split(PAIR_END):
        name, _, value = pair.partition(NAME_END)
        if name and value:
            found[name] = value
    return found


def keys_in(text: str) -> list[bytes]:
    """Return the keys in a value of `KEYS`. Only blanks separate them (MessageConst.KEY_SEPARATOR): a tab or the end of
    a line is part of a key."""
    return [key for key in text.encode().split(b" ") if key]


def join(properties: Mapping[str, str]) -> str:
    """Return the string of these properties. Empty values are left out: no reader would see them.

    :raises ValueError: for an empty name, or for a separator in a name or value.
    """
    pairs = []
    for name, value in properties.items():
        if not name or any(mark in name or mark in value for mark in (NAME_END, PAIR_END)):
            raise ValueError(f"not a property: {name!r}: {value!r}")
        if value:
            pairs.append(f"{name}{NAME_END}{value}{PAIR_END}")
    return "".join(pairs)


def remove(properties: str, names: Collection[str]) -> str:
    """Return the string without the properties of these names. It ends with 0x02 unless it is empty."""
    kept = [
        pair
        for pair in properties.split(PAIR_END)
        if pair and pair.partition(NAME_END)[0] not in names
    ]
    return PAIR_END.join(kept) + PAIR_END if kept else ""
