"""Maps recorded pops to those of a replay, so that acknowledgements name messages that the replay popped.

A consumer that pops refers to a message by a handle (`extraInfo`) with the pop's time and the message's
queue and offset, which all differ from run to run. A message of the recording and one of the replay
are the same if their ids are, in whatever pops they were. The module does no I/O, like `rewriting`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from gateway.wire import properties as names
from gateway.wire.bodies import BodyError
from gateway.wire.codes import RequestCode
from gateway.wire.fields import FieldError
from gateway.wire.group_topics import retry_topic
from gateway.wire.messages import MessageError, decode_messages
from gateway.wire.pops import (
    NORMAL,
    RETRIED,
    BatchAck,
    Handle,
    parse_batch_acks,
    parse_handle,
)
from gateway.wire.properties import find
from spark_jobs.latest import Latest

POLLS: Final = frozenset({RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION})
"""Codes of requests that contain the time when they were made and wait from that time on."""
_CHANGE: Final = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
ACKS: Final = frozenset({RequestCode.ACK_MESSAGE, _CHANGE, RequestCode.BATCH_ACK_MESSAGE})
"""Codes of requests about popped messages."""
TELLING: Final = frozenset({RequestCode.POP_MESSAGE, _CHANGE})
"""Codes of requests whose answers make handles."""

_MOST_POPPED: Final = 100_000
"""Of the messages that were popped and not acknowledged, so many are known: those that came last."""
_NO_END: Final = 1 << 62


class _Place(NamedTuple):
    """The place of a recorded popped message: the time of its pop, and its queue and offset."""

    pop_time: int
    retried: str
    queue: int
    offset: int


def ids_needed(code: int, ext: Mapping[str, str], body: bytes) -> tuple[str, ...]:
    """Return tokens for the recorded pops, or changes of invisible times, that a request refers to."""
    try:
        if code in (RequestCode.ACK_MESSAGE, _CHANGE):
            handle = parse_handle(ext.get("extraInfo", ""))
            return (_token(handle.pop_time, handle.retried, handle.queue),)
        if code == RequestCode.BATCH_ACK_MESSAGE:
            acks = parse_batch_acks(body)
            return tuple({_token(one.pop_time, str(one.retried), one.queue) for one in acks})
    except (FieldError, ValueError):
        pass  # invalid, and sent as recorded
    return ()


def ids_told(code: int, ext: Mapping[str, str], answer_ext: Mapping[str, str]) -> tuple[str, ...]:
    """Return the tokens, as in `ids_needed`, for the handles that a recorded answer makes."""
    time = answer_ext.get("popTime", "0")
    if code == RequestCode.POP_MESSAGE:
        places = [part.split(" ") for part in answer_ext.get("startOffsetInfo", "").split(";")]
        return tuple(_token(time, one[0], one[1]) for one in places if len(one) == 3)
    if code == _CHANGE and time != "0":
        try:
            handle = parse_handle(ext.get("extraInfo", ""))
        except FieldError:
            return ()
        return (_token(time, handle.retried, handle.queue),)
    return ()


def _token(pop_time: int | str, retried: str, queue: int | str) -> str:
    return f"pop {pop_time} {retried} {queue}"


class Receipts:
    """The handles of popped messages, in the recording and in this run.

    :param topics: by recorded topic: its new name. `groups` is the same for groups.
    :param new_id: returns the id that a recorded message has in this run.
    """

    def __init__(
        self, topics: Mapping[str, str], groups: Mapping[str, str], new_id: Callable[[str], str]
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._new_id = new_id
        self._ids = Latest[_Place, tuple[str, str]](_MOST_POPPED)
        """By recorded place: the message's topic, as in the request, and its recorded id."""
        self._handles = Latest[tuple[str, str], Handle](_MOST_POPPED)
        """By topic and new id: the latest handle that this run's pops got."""

    def answer(
        self,
        code: int,
        ext: Mapping[str, str],
        recorded: tuple[Mapping[str, str], bytes],
        replayed: tuple[Mapping[str, str], bytes],
    ) -> None:
        """Learn handles from the answer to a pop, or to a change of an invisible time.

        :param ext: the fields of the recorded request.
        """
        if code == _CHANGE:
            self._changed(ext, recorded[0], replayed[0])
            return
        topic = ext.get("topic", "")
        for handle, message_id in _popped(*recorded):
            self._ids[_place(handle)] = (topic, message_id)
        for handle, message_id in _popped(*replayed):
            self._handles[self._topics.get(topic, topic), message_id] = handle

    def request(self, code: int, ext: dict[str, str], body: bytes, unmapped: list[str]) -> bytes:
        """Put this run's handles into a request and return its body.

        :param ext: the fields of the recorded request, with topics and groups renamed; changed in place.
        """
        if code == RequestCode.BATCH_ACK_MESSAGE:
            return self._batch(body, unmapped)
        try:
            recorded = parse_handle(ext.get("extraInfo", ""))
        except FieldError:
            return body  # invalid, and sent as recorded
        known = self._known(_place(recorded))
        if known is None:
            unmapped.append("extraInfo")
            return body
        topic, handle = known
        handle = handle._replace(broker_name=recorded.broker_name)
        if code == RequestCode.ACK_MESSAGE:
            self._forget(_place(recorded))
        is_back = handle.retried != NORMAL
        ext |= {
            "topic": _back_topic(topic, ext.get("consumerGroup", ""), handle) if is_back else topic,
            "queueId": str(handle.queue),
            "offset": str(handle.offset),
            "extraInfo": handle.encode(),
        }
        return body

    def _known(self, place: _Place) -> tuple[str, Handle] | None:
        """Return the new name of the topic and this run's handle of a recorded message."""
        if place not in self._ids:
            return None
        topic, message_id = self._ids[place]
        topic = self._topics.get(topic, topic)
        for one in (self._new_id(message_id), message_id):
            if (topic, one) in self._handles:
                return topic, self._handles[topic, one]
        return None

    def _changed(
        self, ext: Mapping[str, str], old: Mapping[str, str], new: Mapping[str, str]
    ) -> None:
        """Replace a message's handles by those with the times of the answers."""
        try:
            place = _place(parse_handle(ext.get("extraInfo", "")))
            known = self._known(place)
            if known is None:
                return
            topic, handle = known
            _, message_id = self._ids[place]
            self._ids[place._replace(pop_time=int(old["popTime"]))] = self._ids[place]
            changed = handle._replace(
                pop_time=int(new["popTime"]),
                invisible_time=int(new["invisibleTime"]),
                revive_queue=int(new["reviveQid"]),
            )
        except (FieldError, KeyError, ValueError):
            return  # refused, or broken
        new_id = self._new_id(message_id)
        is_new = (topic, new_id) in self._handles
        self._handles[topic, new_id if is_new else message_id] = changed

    def _batch(self, body: bytes, unmapped: list[str]) -> bytes:
        try:
            acks = parse_batch_acks(body)
            each = [(ack, offset) for ack in acks for offset in ack.offsets(_NO_END)]
            whole = msgspec.json.decode(body)
        except (BodyError, ValueError, msgspec.DecodeError):
            return body  # invalid, and sent as recorded
        found: dict[tuple[object, ...], tuple[BatchAck, set[int]]] = {}
        for recorded, recorded_offset in each:
            place = _Place(
                recorded.pop_time, str(recorded.retried), recorded.queue, recorded_offset
            )
            ack, offset = self._acked(recorded, place, unmapped)
            found.setdefault(msgspec.structs.astuple(ack), (ack, set()))[1].add(offset)
        whole["acks"] = [
            msgspec.structs.replace(ack, bits=_bits(ack.start_offset, offsets))
            for ack, offsets in found.values()
        ]
        return msgspec.json.encode(whole)

    def _acked(
        self, recorded: BatchAck, place: _Place, unmapped: list[str]
    ) -> tuple[BatchAck, int]:
        """Return this run's acknowledgement for one recorded message, without its bit, and the offset."""
        ack = msgspec.structs.replace(
            recorded,
            topic=self._topics.get(recorded.topic, recorded.topic),
            group=self._groups.get(recorded.group, recorded.group),
            bits="",
        )
        known = self._known(place)
        if known is None:
            if "acks" not in unmapped:
                unmapped.append("acks")
            return ack, place.offset
        topic, handle = known
        self._forget(place)
        ack = msgspec.structs.replace(
            ack,
            topic=topic,
            queue=handle.queue,
            start_offset=handle.start_offset,
            pop_time=handle.pop_time,
            invisible_time=handle.invisible_time,
            retried=handle.retried,
            revive_queue=handle.revive_queue,
        )
        return ack, handle.offset

    def _forget(self, place: _Place) -> None:
        """Forget a message that was acknowledged: no further request refers to it."""
        topic, message_id = self._ids.pop(place)
        for one in (self._new_id(message_id), message_id):
            self._handles.pop((self._topics.get(topic, topic), one), None)


def _place(handle: Handle) -> _Place:
    return _Place(handle.pop_time, handle.retried, handle.queue, handle.offset)


def _back_topic(topic: str, group: str, handle: Handle) -> str:
    """Return the retry topic of a message that was not acknowledged. The handle's kind selects the old or new name."""
    if handle.retried == RETRIED:
        return retry_topic(topic, group)
    return f"{retry_topic('', group).removesuffix('_')}+{topic}"


def _bits(start: int, offsets: set[int]) -> str:
    """Return offsets as little-endian bits: bit n stands for the offset `start` + n (BatchAck)."""
    number = sum(1 << (offset - start) for offset in offsets if offset >= start)
    return base64.b64encode(number.to_bytes((number.bit_length() + 7) // 8, "little")).decode()


def _popped(ext: Mapping[str, str], body: bytes) -> Iterator[tuple[Handle, str]]:
    """Yield the handles that a client makes from the answer to a pop, with the messages' ids.

    A redelivered message contains its handle (`POP_CK`). For others the client makes it from the
    answer's fields and the message's queue and offset (ExtraInfoUtil.buildExtraInfo).
    """
    if not body or "popTime" not in ext:
        return
    try:
        time, invisible, revive = (
            int(ext[name]) for name in ("popTime", "invisibleTime", "reviveQid")
        )
        starts = dict(part.rsplit(" ", 1) for part in ext["startOffsetInfo"].split(";"))
        for message in decode_messages(body):
            own = find(message.properties, names.POP_CK)
            message_id = find(message.properties, names.UNIQ_KEY)
            if message_id is None:
                continue
            if own is not None:
                yield parse_handle(own), message_id
                continue
            start = int(starts[f"{NORMAL} {message.queue_id}"])
            place = (NORMAL, "", message.queue_id, message.queue_offset)
            yield Handle(start, time, invisible, revive, *place), message_id
    except (MessageError, FieldError, KeyError, ValueError):
        return  # broken; the handles so far are kept
