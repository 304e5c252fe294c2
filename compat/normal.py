"""Makes the answers of two servers comparable: a value that differs from run to run becomes a word for its kind.

Such values are ids, offsets, times, addresses and the numbers of requests. All others are kept.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from gateway.wire import messages, properties
from gateway.wire.codes import RequestCode
from gateway.wire.commands import Command
from gateway.wire.dialect import DialectError, to_json

_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "id": ("CORRELATION_ID",),
    "handle": ("recallHandle", "recall_handle"),
    "place": (
        *("physicOffset", "physicSize", "commitLogOffset", "commit_log_offset", "store_size"),
        *("tranStateTableOffset", "TRAN_PREPARED_QUEUE_OFFSET", "prepared_offset"),
        *("indexLastUpdatePhyoffset", "masterCommitLogMaxOffset", "masterFlushOffset", "offset_id"),
    ),
    "time": (
        *("bornTimestamp", "storeTimestamp", "born_ms", "stored_ms", "received_ms", "store_ms"),
        *("lastUpdateTimestamp", "timestamp", "timeStamp", "lastTimestamp", "TIMER_OUT_MS"),
        *(
            "TIMER_DELIVER_MS",
            "CONSUME_START_TIME",
            "popTime",
            "1ST_POP_TIME",
            "ARRIVE_TIME",
            "PUSH_REPLY_TIME",
            "bootTime",
        ),
        *("consumeTimeStamp", "consumeTimeStampStr", "maxTimeStamp", "maxTimeStampStr"),
        *("minTimeStamp", "minTimeStampStr", "indexLastUpdateTimestamp"),
        *("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"),
        "subVersion",
    ),
    "duration": ("delayTime", "spentTimeMills"),
    "count": ("counter", "stateVersion", "tps", "topicPutTps", "consumeTps", "avgpt"),
    "opaque": ("opaque",),
    "address": ("born_host", "store_host", "bornHost", "storeHost"),
}
_KIND_OF: Final = {name: kind for kind, names in _KINDS.items() for name in names}

_IN_NO_ORDER: Final = frozenset({"consumerIdList"})
"""Lists of texts whose order is chance on RocketMQ."""

_MILLISECONDS: Final = r"(?:1[7-9]|2\d)\d{11}"
"""Since 1970, from late 2023 on. Earlier times, and 0, are those that a scenario chose."""

_TIME: Final = re.compile(rf"{_MILLISECONDS}|\d{{4}}-\d\d-\d\d\D.*")

_TEXTS: Final = tuple(
    (re.compile(pattern), word)
    for pattern, word in (
        (r"\b127\.0\.0\.\d+(?::\d+)?@[\w.#-]+", "<client>"),
        (r"/?\b127\.0\.0\.\d+:\d+\b", "<address>"),
        (r"\b127\.0\.0\.\d+\b", "<host>"),
        # Of a message: the Go client writes a part of it in small letters.
        (r"\b(?:[0-9A-F]{16}[0-9A-Fa-f]{16}|[0-9A-F]{56})\b", "<id>"),
        (r"<id>@\d+\b", "<place>"),
        (rf"\b{_MILLISECONDS}\b", "<time>"),
        (r"\b(?:puller|consume|poller|producer|transactor)-\d+-\d+\b", "<instance>"),
    )
)
_RECORDS: Final = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.QUERY_MESSAGE,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
    }
)
"""Codes of requests with stored messages in the body of the request or of its answer."""


def text(value: str) -> str:
    """Return a text with the parts replaced that differ from run to run."""
    for pattern, word in _TEXTS:
        value = pattern.sub(word, value)
    return value


def normal(value: Any, name: str = "") -> Any:
    """Return the value of the field `name` as JSON types, made comparable."""
    if isinstance(value, Mapping):
        return {_key(str(key)): normal(each, str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        items = [normal(each, name) for each in value]
        return sorted(items) if name in _IN_NO_ORDER else items
    kind = _KIND_OF.get(name)
    if value in (None, "", -1, "-1"):
        return value
    if kind == "handle":
        return _handle(value)
    if kind is not None and (kind != "time" or _TIME.fullmatch(str(value))):
        return f"<{kind}>"
    return text(value) if isinstance(value, str) else value


def _handle(value: str) -> str:
    """Return the fields of a recall handle, made comparable; a text that is no handle as it is."""
    try:
        return text(base64.urlsafe_b64decode(value).decode())
    except ValueError:
        return value


def _key(name: str) -> str:
    """Return a map's key made comparable. A key that is a JSON object itself gets its fields sorted."""
    if name.startswith("{"):
        name = msgspec.json.encode(msgspec.json.decode(name), order="sorted").decode()
    return text(name)


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a normal value with their paths. A list's items have their number in the path."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from flat(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from flat(each, f"{path}.{number}" if path else str(number))
    else:
        yield path, value


def facts(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield like `flat`, but with one path for all items of a list, because their order is not fixed."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from facts(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for each in value:
            yield from facts(each, f"{path}.each")
    else:
        yield path, value


def command(request: int, answer: Command) -> dict[str, Any]:
    """Return the compared fields of an answer, or of a request that the server made.

    A remark counts only with an error: no client reads the remark of a success.
    """
    known: dict[str, Any] = {
        "version": answer.version,
        "language": answer.language,
        "flag": answer.flag,
        "ext": normal(answer.ext()),
    }
    if answer.is_response:
        known["code"] = answer.code
        if answer.code != 0:
            known["remark"] = text(answer.remark or "")
    if answer.body:
        known["body"] = body(request, answer.body)
    if props := known["ext"].get("properties"):
        known["ext"]["properties"] = normal(properties.parse(props))
    return known


def body(request: int, data: bytes) -> Any:
    """Return a body as records of messages if the request has such, else as JSON, else as text."""
    if request in _RECORDS:
        return [record(message) for message in messages.decode_messages(data)]
    if data[:1] in (b"{", b"["):
        try:
            return normal(msgspec.json.decode(to_json(data)))
        except (DialectError, msgspec.DecodeError):
            pass
    return text(data.decode(errors="replace"))


def record(message: messages.Message) -> dict[str, Any]:
    """Return the compared fields of a message, with its properties as a map."""
    return {
        "topic": message.topic,
        "queue": message.queue_id,
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "reconsumeTimes": message.reconsume_times,
        "body": message.body[:64].decode(errors="replace"),
        "bodyCrc": message.body_crc,
        "properties": normal(properties.parse(message.properties)),
    }
