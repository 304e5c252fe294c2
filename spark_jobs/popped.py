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
    """The place of a recorded popped message: who popped it when, and the message's queue and offset."""

    group: str
    topic: str
    """As `_real_topic` gives it."""
    pop_time: int
    queue: int
    offset: int


def ids_needed(code: int, ext: Mapping[str, str], body: bytes) -> tuple[str, ...]:
    """Return tokens for the recorded pops, or changes of invisible times, that a request refers to."""
    try:
        if code in (RequestCode.ACK_MESSAGE, _CHANGE):
            return (_token(_place(ext, parse_handle(ext.get("extraInfo", "")))),)
        if code == RequestCode.BATCH_ACK_MESSAGE:
            return tuple({_token(_place_in(one)) for one in parse_batch_acks(body)})
    except (FieldError, ValueError):
        pass  # invalid, and sent as recorded
    return ()


def ids_told(code: int, ext: Mapping[str, str], answer_ext: Mapping[str, str]) -> tuple[str, ...]:
    """Return the tokens, as in `ids_needed`, for the handles that a recorded answer makes."""
    try:
        time = int(answer_ext.get("popTime", "0"))
        if code == RequestCode.POP_MESSAGE:
            group, topic = ext.get("consumerGroup", ""), ext.get("topic", "")
            parts = (part.split(" ") for part in answer_ext.get("startOffsetInfo", "").split(";"))
            places = ((one[0], int(one[1])) for one in parts if len(one) == 3)
            return tuple(
                _token(_Place(group, _real_topic(topic, group, retried), time, queue, 0))
                for retried, queue in places
            )
        if code == _CHANGE and time:
            place = _place(ext, parse_handle(ext.get("extraInfo", "")))
            return (_token(place._replace(pop_time=time)),)
    except (FieldError, ValueError):
        pass  # broken, and of no use
    return ()


def _token(place: _Place) -> str:
    """Return the same token for all messages of a queue that were popped together."""
    return " ".join(("pop", *map(str, place[:-1])))


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
        """By recorded place: the message's topic, as in the pop, and its recorded id."""
        self._handles = Latest[tuple[str, str, str], Handle](_MOST_POPPED)
        """By group, topic, both by their new names, and new id: the latest handle that this run's pops got."""

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
        group, topic = ext.get("consumerGroup", ""), ext.get("topic", "")
        for handle, message_id in _popped(*recorded):
            real = _real_topic(topic, group, handle.retried)
            place = _Place(group, real, handle.pop_time, handle.queue, handle.offset)
            self._ids[place] = (topic, message_id)
        for handle, message_id in _popped(*replayed):
            self._handles[(*self._renamed(group, topic), message_id)] = handle

    def request(
        self,
        code: int,
        recorded_ext: Mapping[str, str],
        ext: dict[str, str],
        body: bytes,
        unmapped: list[str],
    ) -> bytes:
        """Put this run's handles into a request and return its body.

        :param recorded_ext: the fields of the recorded request.
        :param ext: the same, with topics and groups renamed; changed in place.
        """
        if code == RequestCode.BATCH_ACK_MESSAGE:
            return self._batch(body, unmapped)
        try:
            recorded = parse_handle(recorded_ext.get("extraInfo", ""))
        except FieldError:
            return body  # invalid, and sent as recorded
        place = _place(recorded_ext, recorded)
        known = self._known(place)
        if known is None:
            unmapped.append("extraInfo")
            return body
        (group, topic, _), handle = known
        handle = handle._replace(broker_name=recorded.broker_name)
        if code == RequestCode.ACK_MESSAGE:
            self._forget(place)
        ext |= {
            "topic": _real_topic(topic, group, handle.retried),
            "queueId": str(handle.queue),
            "offset": str(handle.offset),
            "extraInfo": handle.encode(),
        }
        return body

    def _renamed(self, group: str, topic: str) -> tuple[str, str]:
        return self._groups.get(group, group), self._topics.get(topic, topic)

    def _known(self, place: _Place) -> tuple[tuple[str, str, str], Handle] | None:
        """Return this run's handle of a recorded message, with its key in `_handles`."""
        if place not in self._ids:
            return None
        topic, message_id = self._ids[place]
        names_now = self._renamed(place.group, topic)
        for one in (self._new_id(message_id), message_id):
            if (handle := self._handles.get((*names_now, one))) is not None:
                return (*names_now, one), handle
        return None

    def _changed(
        self, ext: Mapping[str, str], old: Mapping[str, str], new: Mapping[str, str]
    ) -> None:
        """Replace a message's handles by those with the times of the answers."""
        try:
            place = _place(ext, parse_handle(ext.get("extraInfo", "")))
            known = self._known(place)
            if known is None:
                return
            key, handle = known
            self._ids[place._replace(pop_time=int(old["popTime"]))] = self._ids[place]
            self._handles[key] = handle._replace(
                pop_time=int(new["popTime"]),
                invisible_time=int(new["invisibleTime"]),
                revive_queue=int(new["reviveQid"]),
            )
        except (FieldError, KeyError, ValueError):
            return  # refused, or broken

    def _batch(self, body: bytes, unmapped: list[str]) -> bytes:
        try:
            acks = parse_batch_acks(body)
            each = [(ack, offset) for ack in acks for offset in ack.offsets(_NO_END)]
            whole = msgspec.json.decode(body)
        except (BodyError, ValueError, msgspec.DecodeError):
            return body  # invalid, and sent as recorded
        found: dict[tuple[object, ...], tuple[BatchAck, set[int]]] = {}
        for recorded, recorded_offset in each:
            place = _place_in(recorded)._replace(offset=recorded_offset)
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
        group, topic = self._renamed(recorded.group, recorded.topic)
        ack = msgspec.structs.replace(recorded, topic=topic, group=group, bits="")
        known = self._known(place)
        if known is None:
            if "acks" not in unmapped:
                unmapped.append("acks")
            return ack, place.offset
        (_, topic, _), handle = known
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
            self._handles.pop((*self._renamed(place.group, topic), one), None)


def _place(ext: Mapping[str, str], handle: Handle) -> _Place:
    """Return the place of the message of an acknowledgement with these fields."""
    group, topic = ext.get("consumerGroup", ""), ext.get("topic", "")
    return _Place(group, topic, handle.pop_time, handle.queue, handle.offset)


def _place_in(ack: BatchAck) -> _Place:
    """Return the place of the first message that a part of a batch may acknowledge."""
    topic = _real_topic(ack.topic, ack.group, str(ack.retried))
    return _Place(ack.group, topic, ack.pop_time, ack.queue, ack.start_offset)


def _real_topic(topic: str, group: str, retried: str) -> str:
    """Return the topic in which a popped message is: that of the pop, or the one where a group's messages come back
    that were not acknowledged, by its old or its new name (ExtraInfoUtil.getRealTopic)."""
    if retried == NORMAL:
        return topic
    if retried == RETRIED:
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
