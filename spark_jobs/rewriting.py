"""Rewrites recorded requests for another run: times, ids and offsets become those of that run.

The module does no I/O. A `Rewriter` gets the requests of one connection and their answers, in the order
of the replay, and learns ids and offsets from the answers; what other connections may need is `Learned`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, Literal, NamedTuple

from gateway.wire import properties as names
from gateway.wire.codes import RequestCode
from gateway.wire.group_topics import RETRY_PREFIX
from gateway.wire.messages import (
    BatchItem,
    Message,
    MessageError,
    decode_messages,
    encode_batch,
    physical_offsets,
    split_batch,
)
from gateway.wire.properties import find, join, parse
from spark_jobs import popped
from spark_jobs.latest import Latest
from spark_jobs.messages import PULLS, SENDS

Delays = Literal["keep", "scale"]

DESTRUCTIVE: Final = frozenset(
    {
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.TRIGGER_DELETE_FILES,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.SWITCH_TIMER_ENGINE,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        RequestCode.SET_COMMITLOG_READ_MODE,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_CREATE_ACL,  # of a user that has policies it replaces those about the same resources
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
        RequestCode.ABORT_TIMERS,
        RequestCode.BULK_CHANGE_TIMERS,
        RequestCode.PAUSE_TOPIC,
        RequestCode.RESUME_TOPIC,
        RequestCode.CHANGE_RECURRING,
    }
)
"""Requests whose effects go beyond their sender, such as deletions. They are sent only if named."""

TOPIC_FIELDS: Final = ("topic", "b", "originTopic")
GROUP_FIELDS: Final = ("consumerGroup", "group", "producerGroup", "a", "groupName")
_QUEUE_OFFSET_FIELDS: Final = {
    RequestCode.PULL_MESSAGE: ("queueOffset", "commitOffset"),
    RequestCode.LITE_PULL_MESSAGE: ("queueOffset", "commitOffset"),
    RequestCode.UPDATE_CONSUMER_OFFSET: ("commitOffset",),
}
_TELLING_OFFSETS: Final = frozenset(
    {
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    }
)
"""Requests whose answers tell a consumer from where on to pull."""
_NAMED_IN_BODY: Final = {
    RequestCode.HEART_BEAT,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
}
"""Requests that have topics and groups in a JSON body."""
_NAME: Final = re.compile(rb'"(topic|topicName|groupName|consumerGroup)":"([^"\\]+)"')
"""A topic or group in a JSON body."""
_MOMENTS: Final = {
    RequestCode.BULK_CHANGE_TIMERS: ("begin", "end", "due"),
    RequestCode.LOOK_UP_TIMERS: ("begin", "end"),
    RequestCode.QUERY_MESSAGE: ("beginTimestamp", "endTimestamp"),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: ("timestamp",),
}
"""Fields that are times, epoch ms."""
_HOLDS: Final = {
    **dict.fromkeys(PULLS, "suspendTimeoutMillis"),
    **dict.fromkeys(popped.POLLS, "pollTime"),
}
"""The field of a poll that says how long the server may hold it while there is no message."""
_LAST_MOMENT: Final = (1 << 63) - 1
"""What clients send as the end of a range that has none; the beginning is then often 0."""
_MOST_KNOWN: Final = 100_000
"""Of each kind of value in answers, such as handles, so many are known for each connection, and for all that share
them: those that came last."""
_LONGEST_NUMBER: Final = 20
"""The most characters of a number of 64 bits, with its sign."""


def ids_needed(
    server: str | None, code: int, ext: Mapping[str, str], body: bytes
) -> tuple[str, ...]:
    """Return the ids in a recorded request to a server that are from an earlier answer and differ in each run."""
    if code in (
        RequestCode.RECALL_MESSAGE,
        RequestCode.ABORT_TIMERS,
        RequestCode.RESCHEDULE_TIMERS,
    ):
        return tuple(ext[name] for name in ("recallHandle", "handle") if ext.get(name))
    if code == RequestCode.END_TRANSACTION:
        return tuple(ext[name] for name in ("transactionId", "msgId") if name in ext)
    if code == RequestCode.CONSUMER_SEND_MSG_BACK:
        return (_pulled(server, ext.get("group", ""), ext.get("offset", "")),)
    if code in PULLS:
        return (_next_of(server, ext, ext.get("queueOffset", "")),)
    return popped.ids_needed(server, code, ext, body)


def ids_told(
    server: str | None,
    code: int,
    ext: Mapping[str, str],
    answer_ext: Mapping[str, str],
    answer_body: bytes,
) -> tuple[str, ...]:
    """Return the ids in a server's recorded answer to a request that later requests may need."""
    if code in SENDS:
        told = ("recallHandle", "transactionId")
        return tuple(answer_ext[name] for name in told if name in answer_ext)
    if code in PULLS:
        group = ext.get("consumerGroup", "")
        messages = (_pulled(server, group, offset) for offset in physical_offsets(answer_body))
        return (_next_of(server, ext, answer_ext.get("nextBeginOffset", "")), *messages)
    return popped.ids_told(server, code, ext, answer_ext)


def _next_of(server: str | None, ext: Mapping[str, str], offset: str) -> str:
    """Return a token for the offset of a queue at which the next pull begins.

    :param ext: the fields of a pull.
    """
    place = (ext.get(name, "") for name in ("consumerGroup", "topic", "queueId"))
    return " ".join(("next", str(server), *place, offset))


def _pulled(server: str | None, group: str, physical_offset: int | str) -> str:
    """Return a token for a message that a group pulled."""
    return f"pulled {server} {group} {physical_offset}"


class Rules(NamedTuple):
    """How to change requests. `run` makes this run's ids differ from those of others.

    :param speed: how much faster than recorded; 0 is as fast as possible.
    """

    run: str
    speed: float = 1.0
    delays: Delays = "keep"
    topics: Mapping[str, str] = {}
    groups: Mapping[str, str] = {}


class Rewritten(NamedTuple):
    """A request to send. `unmapped` has the names of fields that still have recorded values."""

    ext: dict[str, str]
    body: bytes
    unmapped: tuple[str, ...]


class _Pulled(NamedTuple):
    """What later requests tell of a message that was pulled."""

    message_id: str
    queue_offset: int
    physical_offset: int


_Key = tuple[str, str, str, int]
"""Identifies a message among those that a connection pulls: its topic and queue, its id in this run, and how often it
was consumed before."""


class Learned:
    """What answers gave that any connection may refer to: a Proxy spreads its clients' requests over several."""

    def __init__(self, rules: Rules) -> None:
        self.handles = Latest[str, str](_MOST_KNOWN)
        self.ids = Latest[str, str](_MOST_KNOWN)
        self.physical = Latest[tuple[str | None, int], int](_MOST_KNOWN)
        """By server: of messages as they were sent; only the connection that pulls one knows it as it fired or was
        returned."""
        self.transactions = Latest[str, dict[str, str]](_MOST_KNOWN)
        self.popped = popped.Receipts(
            _renamed_topics(rules), rules.groups, lambda id_: new_id(id_, rules.run)
        )


class Rewriter:
    """Rewrites the requests of one connection.

    :param learned: what it shares with others; None for a connection alone.
    :param server: the recorded server of the connection, if known. What is shared of a place is of its server alone.
    """

    def __init__(
        self, rules: Rules, learned: Learned | None = None, server: str | None = None
    ) -> None:
        self._rules = rules._replace(topics=_renamed_topics(rules))
        self._learned = learned or Learned(rules)
        self._server = server
        self._offsets = Latest[tuple[str, str, int], int](_MOST_KNOWN)
        self._physical = Latest[int, int](_MOST_KNOWN)
        self._handles = Latest[str, str](_MOST_KNOWN)
        self._ids = Latest[str, str](_MOST_KNOWN)
        """Without those of UNIQ_KEY, which are made from the recorded ones, except of messages that came by a pull."""
        self._recorded = Latest[_Key, _Pulled](_MOST_KNOWN)
        """Messages that recorded answers to pulls had, and those of this run not yet; `_now` is the reverse."""
        self._now = Latest[_Key, _Pulled](_MOST_KNOWN)

    def request(
        self,
        code: int,
        ext: Mapping[str, str],
        body: bytes,
        recorded_ms: int,
        now_ms: int,
        *,
        is_in_vain: bool = False,
    ) -> Rewritten:
        """Return a request that was recorded at `recorded_ms` as it must be sent at `now_ms`.

        :param is_in_vain: whether no message came for the recorded request, if it is a poll.
        """
        changed = dict(ext)
        for fields, renamed in (
            (TOPIC_FIELDS, self._rules.topics),
            (GROUP_FIELDS, self._rules.groups),
        ):
            for name in fields:
                if name in changed and changed[name] in renamed:
                    changed[name] = renamed[changed[name]]
        unmapped: list[str] = []
        if is_in_vain and code in _HOLDS:
            self._hold_shorter(changed, _HOLDS[RequestCode(code)])
        if code in SENDS:
            body = self._send(code, changed, body, recorded_ms, now_ms)
        elif code in _NAMED_IN_BODY:
            body = self._rename_in(body)
        elif code in _QUEUE_OFFSET_FIELDS:
            place = (ext.get("topic", ""), ext.get("queueId", ""))
            for name in _QUEUE_OFFSET_FIELDS[RequestCode(code)]:
                self._map_offset(changed, name, place, unmapped)
        elif code == RequestCode.RECALL_MESSAGE:
            self._map_handle(changed, "recallHandle", unmapped)
        elif code in (RequestCode.ABORT_TIMERS, RequestCode.RESCHEDULE_TIMERS):
            self._change(changed, recorded_ms, now_ms, unmapped)
        elif code in popped.POLLS:
            if changed.get("bornTime", "0") != "0":
                changed["bornTime"] = str(now_ms)
        elif code in popped.ACKS:
            body = self._learned.popped.request(self._server, code, ext, changed, body, unmapped)
        elif code == RequestCode.CONSUMER_SEND_MSG_BACK:
            self._map_physical(changed, "offset", unmapped)
            if changed.get("originMsgId"):
                changed["originMsgId"] = self._id(changed["originMsgId"])
        elif code == RequestCode.VIEW_MESSAGE_BY_ID:
            self._map_physical(changed, "offset", unmapped)
        elif code == RequestCode.END_TRANSACTION:
            ended = ext.get("msgId", "") or ext.get("transactionId", "")
            known = self._learned.transactions.get(ended)
            if known is None:
                unmapped.append("transactionId")
            else:
                changed |= known
        elif code in _MOMENTS:
            self._look(code, changed, unmapped)
            self._move_times(changed, recorded_ms, now_ms, _MOMENTS[RequestCode(code)])
        return Rewritten(changed, body, tuple(unmapped))

    def answer(
        self,
        code: int,
        ext: Mapping[str, str],
        recorded: tuple[Mapping[str, str], bytes],
        replayed: tuple[Mapping[str, str], bytes],
    ) -> None:
        """Learn from an answer which ids and offsets of this run replace the recorded ones.

        :param ext: the fields of the recorded request.
        :param recorded: fields and body of the recorded answer; `replayed` has those of this run's.
        """
        (old, old_body), (new, new_body) = recorded, replayed
        if code in SENDS:
            for name, own, shared in (
                ("recallHandle", self._handles, self._learned.handles),
                ("msgId", self._ids, self._learned.ids),
            ):
                if name in old and name in new:
                    own[old[name]] = shared[old[name]] = new[name]
            places = [_physical_of(answer.get("msgId", "")) for answer in (old, new)]
            for physical, now_at in zip(*places, strict=False):
                self._physical[physical] = now_at
                self._learned.physical[self._server, physical] = now_at
            is_half = find(ext.get("i", ext.get("properties", "")), names.TRAN_MSG) is not None
            if is_half and "transactionId" in old and "transactionId" in new and "msgId" in new:
                found = {"transactionId": new["transactionId"], "msgId": new["transactionId"]}
                found["tranStateTableOffset"] = new.get("queueOffset", "0")
                found["commitLogOffset"] = str(places[1][0] if places[1] else 0)
                self._learned.transactions[old["transactionId"]] = found
        elif code in popped.TELLING:
            self._learned.popped.answer(self._server, code, ext, replayed)
        elif code in PULLS:
            place = (ext.get("topic", ""), ext.get("queueId", ""))
            self._learn_offset(place, old, new, "nextBeginOffset")
            with suppress(MessageError):
                self._learn_pulled(place, decode_messages(old_body), decode_messages(new_body))
        elif code in _TELLING_OFFSETS:
            self._learn_offset((ext.get("topic", ""), ext.get("queueId", "")), old, new, "offset")

    def _learn_pulled(
        self, place: tuple[str, str], old: Iterable[Message], new: Iterable[Message]
    ) -> None:
        """Learn ids and offsets of messages, each from the first answers that have it. These need not be of the same
        pull: a pull that is answered a moment later has other messages. Messages without an id are left out."""
        for message in new:
            now = _pulled_of(message)
            if not now.message_id:
                continue
            key = (*place, now.message_id, message.reconsume_times)
            # A message that the replay did not send has its recorded id.
            known = (*place, new_id(now.message_id, self._rules.run), message.reconsume_times)
            recorded = self._recorded.pop(key, None) or self._recorded.pop(known, None)
            if recorded is None:
                self._now[key] = now
            else:
                self._learn_message(place, recorded, now)
        for message in old:
            recorded = _pulled_of(message)
            if not recorded.message_id:
                continue
            key = (*place, new_id(recorded.message_id, self._rules.run), message.reconsume_times)
            known = (*place, recorded.message_id, message.reconsume_times)
            found = self._now.pop(key, None) or self._now.pop(known, None)
            if found is None:
                self._recorded[key] = recorded
            else:
                self._learn_message(place, recorded, found)

    def _learn_message(self, place: tuple[str, str], recorded: _Pulled, now: _Pulled) -> None:
        # The message may have been sent on another connection.
        self._ids[recorded.message_id] = now.message_id
        self._physical[recorded.physical_offset] = now.physical_offset
        self._offsets[(*place, recorded.queue_offset)] = now.queue_offset

    def _rename_in(self, body: bytes) -> bytes:
        def renamed(found: re.Match[bytes]) -> bytes:
            field, old = found[1], found[2].decode(errors="replace")
            new = self._rules.topics if field.startswith(b"topic") else self._rules.groups
            return b'"%b":"%b"' % (field, new[old].encode()) if old in new else found[0]

        return _NAME.sub(renamed, body)

    def _learn_offset(
        self, place: tuple[str, str], old: Mapping[str, str], new: Mapping[str, str], name: str
    ) -> None:
        if _is_number(old.get(name, "")) and _is_number(new.get(name, "")):
            self._offsets[(*place, int(old[name]))] = int(new[name])

    def _map_offset(
        self, ext: dict[str, str], name: str, place: tuple[str, str], unmapped: list[str]
    ) -> None:
        if not _is_number(ext.get(name, "")):
            return  # invalid, and sent as recorded
        recorded = int(ext[name])
        if recorded <= 0:
            return  # 0 is the same in each run, and so is -1, which says that there is no offset
        known = self._offsets.get((*place, recorded))
        if known is None:
            unmapped.append(name)
        else:
            ext[name] = str(known)

    def _hold_shorter(self, ext: dict[str, str], name: str) -> None:
        """Let a poll in vain of a fast replay be held as much shorter. Held as long as recorded, the target would have
        many at once for each that a consumer had, and the replay would wait for them."""
        speed = self._rules.speed
        if (speed > 1 or not speed) and _is_number(ext.get(name, "")):
            ext[name] = str(round(int(ext[name]) / speed)) if speed else "0"

    def _map_physical(self, ext: dict[str, str], name: str, unmapped: list[str]) -> None:
        text = ext.get(name, "")
        recorded = int(text) if _is_number(text) else -1
        known = self._physical.get(recorded)
        if known is None:
            known = self._learned.physical.get((self._server, recorded))
        if known is None:
            unmapped.append(name)
        else:
            ext[name] = str(known)

    def _map_handle(self, ext: dict[str, str], name: str, unmapped: list[str]) -> None:
        if name not in ext:
            return
        known = self._handles.get(ext[name]) or self._learned.handles.get(ext[name])
        if known is None:
            unmapped.append(name)
        else:
            ext[name] = known

    def _send(
        self, code: int, ext: dict[str, str], body: bytes, recorded_ms: int, now_ms: int
    ) -> bytes:
        is_long = code == RequestCode.SEND_MESSAGE
        properties, born, batch = (
            ("properties", "bornTimestamp", "batch") if is_long else ("i", "g", "m")
        )
        if born in ext:
            ext[born] = str(now_ms)
        if ext.get(batch) in ("true", "1"):
            try:
                items = split_batch(body)
            except MessageError:
                return body  # invalid, and sent as recorded
            return encode_batch(
                BatchItem(flag, content, self._properties(text, recorded_ms, now_ms))
                for flag, content, text in items
            )
        if properties in ext:
            ext[properties] = self._properties(ext[properties], recorded_ms, now_ms)
        return body

    def _change(
        self, ext: dict[str, str], recorded_ms: int, now_ms: int, unmapped: list[str]
    ) -> None:
        """Rewrite a request that aborts or reschedules pending messages."""
        if ext.get("handle"):
            self._map_handle(ext, "handle", unmapped)
        if ext.get("id"):
            ext["id"] = self._id(ext["id"])
        self._move_times(ext, recorded_ms, now_ms, ("due",))

    def _look(self, code: int, ext: dict[str, str], unmapped: list[str]) -> None:
        """Rewrite what a request looks for, other than times."""
        is_by_id = ext.get("indexType") == "U" or ext.get("_UNIQUE_KEY_QUERY") == "true"
        if code == RequestCode.QUERY_MESSAGE and is_by_id and "key" in ext:
            ext["key"] = self._id(ext["key"])
        if code == RequestCode.LOOK_UP_TIMERS and ext.get("id"):
            ext["id"] = self._id(ext["id"])
        if ext.get("cursor"):
            unmapped.append("cursor")

    def _id(self, recorded: str) -> str:
        """Return this run's id of a message. Replayed sends have new ids, which are made from the recorded ones."""
        known = self._ids.get(recorded) or self._learned.ids.get(recorded)
        return known or new_id(recorded, self._rules.run)

    def _move_times(
        self, ext: dict[str, str], recorded_ms: int, now_ms: int, moments: Iterable[str]
    ) -> None:
        for name in moments:
            if _is_number(ext.get(name, "")) and 0 < int(ext[name]) < _LAST_MOMENT:
                ext[name] = str(self._moved(int(ext[name]), recorded_ms, now_ms))
        for name in ("delay", "shift"):
            if self._rules.delays == "scale" and _is_number(ext.get(name, "")):
                ext[name] = str(round(int(ext[name]) / self._rules.speed))

    def _properties(self, text: str, recorded_ms: int, now_ms: int) -> str:
        found = parse(text)
        if names.UNIQ_KEY in found:
            found[names.UNIQ_KEY] = new_id(found[names.UNIQ_KEY], self._rules.run)
        for name in (names.RESCHEDULE, names.TIMER_DEL_UNIQKEY):
            if name in found:  # a recall or reschedule order about another message
                topic, plus, target = found[name].rpartition("+")
                found[name] = f"{self._rules.topics.get(topic, topic)}{plus}{self._id(target)}"
        for name in (names.TIMER_DELIVER_MS, names.START_DELIVER_TIME):
            if _is_number(found.get(name, "")):
                found[name] = str(self._moved(int(found[name]), recorded_ms, now_ms))
        if self._rules.delays == "scale":
            self._scale(found)
        try:
            return join(found)
        except ValueError:
            return text  # invalid, and sent as recorded

    def _moved(self, moment_ms: int, recorded_ms: int, now_ms: int) -> int:
        """Return the moment that is as far from now as the recorded one was from its request.

        With `delays` "scale" that time is divided by the speed.
        """
        ahead = moment_ms - recorded_ms
        if self._rules.delays == "scale":
            ahead = round(ahead / self._rules.speed)
        return now_ms + ahead

    def _scale(self, properties: dict[str, str]) -> None:
        """Divide relative delays by the speed. Delay levels stay, as the server defines them."""
        seconds = properties.get(names.TIMER_DELAY_SEC, "")
        if _is_number(seconds):
            del properties[names.TIMER_DELAY_SEC]
            properties[names.TIMER_DELAY_MS] = str(round(int(seconds) * 1000 / self._rules.speed))
        elif _is_number(properties.get(names.TIMER_DELAY_MS, "")):
            delay = int(properties[names.TIMER_DELAY_MS])
            properties[names.TIMER_DELAY_MS] = str(round(delay / self._rules.speed))


def _renamed_topics(rules: Rules) -> dict[str, str]:
    """Return the new names of topics, with the retry topics of renamed groups."""
    retries = {RETRY_PREFIX + old: RETRY_PREFIX + new for old, new in rules.groups.items()}
    return retries | dict(rules.topics)


def new_id(recorded: str, run: str) -> str:
    """Return the id of a recorded message in a run: upper-case hex, as long as it was, but at least 16 digits."""
    digest = hashlib.blake2b(f"{run}\0{recorded}".encode(), digest_size=32).hexdigest().upper()
    return (digest * (len(recorded) // len(digest) + 1))[: max(len(recorded), 16)]


def _is_number(text: str) -> bool:
    """Whether a text is a number of 64 bits, or not much longer. Other texts are replayed as recorded."""
    return text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= _LONGEST_NUMBER


def _pulled_of(message: Message) -> _Pulled:
    message_id = find(message.properties, names.UNIQ_KEY) or ""
    return _Pulled(message_id, message.queue_offset, message.physical_offset)


def _physical_of(message_ids: str) -> list[int]:
    """Return the physical offsets in a server's ids of the messages of a send; nothing if they are no such ids."""
    try:
        return [int(one[-16:], 16) for one in message_ids.split(",")]
    except ValueError:
        return []
