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
    """The place of a recorded popped message: who popped it where and when, and the message's queue and offset."""

    server: str | None
    """The broker, whose queues have the same numbers as those of others, as the recording names it."""
    group: str
    topic: str
    """As `_real_topic` gives it."""
    pop_time: int
    queue: int
    offset: int


def ids_needed(
    server: str | None, code: int, ext: Mapping[str, str], body: bytes
) -> tuple[str, ...]:
    """Return tokens for the recorded changes of invisible times that a request may refer to."""
    return tuple(map(_token, _places(server, code, ext, body)))


def ids_told(
    server: str | None, code: int, ext: Mapping[str, str], answer_ext: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the token, as in `ids_needed`, for the handle that a recorded answer to such a change makes."""
    changed = _changed_places(server, ext, answer_ext) if code == _CHANGE else ()
    return tuple(_token(after) for _, after in changed)


def _token(place: _Place) -> str:
    return " ".join(("popped", *map(str, place)))


def _places(server: str | None, code: int, ext: Mapping[str, str], body: bytes) -> list[_Place]:
    """Return the places of the messages that a recorded request is about; none if it is invalid."""
    try:
        if code in (RequestCode.ACK_MESSAGE, _CHANGE):
            return [_place(server, ext, parse_handle(ext.get("extraInfo", "")))]
        if code == RequestCode.BATCH_ACK_MESSAGE:
            return [place for _, place in _acked_places(server, body)]
    except (FieldError, BodyError, ValueError):
        pass
    return []


def _acked_places(server: str | None, body: bytes) -> list[tuple[BatchAck, _Place]]:
    """Return the messages of a batch of acknowledgements. Raises BodyError and ValueError."""
    return [
        (ack, _Place(server, ack.group, topic, ack.pop_time, ack.queue, offset))
        for ack in parse_batch_acks(body)
        for topic in (_real_topic(ack.topic, ack.group, str(ack.retried)),)
        for offset in ack.offsets(_NO_END)
    ]


def _changed_places(
    server: str | None, ext: Mapping[str, str], answer_ext: Mapping[str, str]
) -> list[tuple[_Place, _Place]]:
    """Return the place of a message before and after a change of its invisible time; nothing if that was refused."""
    try:
        time = int(answer_ext["popTime"])
    except (KeyError, ValueError):
        return []
    return [(place, place._replace(pop_time=time)) for place in _places(server, _CHANGE, ext, b"")]


_Key = tuple[str, str, str]
"""Identifies a message in this run: group and topic, both by their new names, and id."""


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
        self._handles = Latest[_Key, Handle](_MOST_POPPED)
        """The latest handles that this run's pops got."""
        self._calls = Latest[_Key, list[Callable[[], None]]](_MOST_POPPED)
        """What is called when a pop of this run gets a message."""

    def expect(
        self,
        server: str | None,
        code: int,
        ext: Mapping[str, str],
        recorded: tuple[Mapping[str, str], bytes],
    ) -> None:
        """Learn which messages recorded handles name, from the recorded answer to a pop or a change of an invisible
        time.

        :param server: the server of the recorded request.
        :param ext: its fields.
        """
        if code == RequestCode.POP_MESSAGE:
            group, topic = ext.get("consumerGroup", ""), ext.get("topic", "")
            for handle, message_id in _popped(*recorded):
                real = _real_topic(topic, group, handle.retried)
                place = _Place(server, group, real, handle.pop_time, handle.queue, handle.offset)
                self._ids[place] = (topic, message_id)
        elif code == _CHANGE:
            for before, after in _changed_places(server, ext, recorded[0]):
                if before in self._ids:
                    self._ids[after] = self._ids[before]

    def answer(
        self,
        server: str | None,
        code: int,
        ext: Mapping[str, str],
        replayed: tuple[Mapping[str, str], bytes],
    ) -> None:
        """Learn handles from this run's answer to a pop, or to a change of an invisible time.

        :param server: the server of the recorded request.
        :param ext: its fields.
        """
        if code == _CHANGE:
            self._changed(server, ext, replayed[0])
            return
        names_now = self._renamed(ext.get("consumerGroup", ""), ext.get("topic", ""))
        for handle, message_id in _popped(*replayed):
            self._handles[(*names_now, message_id)] = handle
            # A message that the replay did not send has its recorded id.
            for one in (message_id, self._new_id(message_id)) if self._calls else ():
                for call in self._calls.pop((*names_now, one), ()):
                    call()

    def missing(
        self, server: str | None, code: int, ext: Mapping[str, str], body: bytes
    ) -> list[_Key]:
        """Return those messages of a recorded acknowledgement that this run has not popped yet, or has popped only
        before they came back."""
        found = []
        for place in _places(server, code, ext, body):
            if place not in self._ids:
                continue
            topic, message_id = self._ids[place]
            known = self._known(place)
            if known is None or (known[1].retried == NORMAL) != (place.topic == topic):
                found.append((*self._renamed(place.group, topic), self._new_id(message_id)))
        return found

    def call_when_popped(self, message: _Key, call: Callable[[], None]) -> None:
        """Call a function when the next pop of this run gets one of the `missing` messages, if one does."""
        self._calls.setdefault(message, []).append(call)

    def request(
        self,
        server: str | None,
        code: int,
        recorded_ext: Mapping[str, str],
        ext: dict[str, str],
        body: bytes,
        unmapped: list[str],
    ) -> bytes:
        """Put this run's handles into a request and return its body.

        :param server: the server of the recorded request.
        :param recorded_ext: its fields.
        :param ext: the same, with topics and groups renamed; changed in place.
        """
        if code == RequestCode.BATCH_ACK_MESSAGE:
            return self._batch(server, body, unmapped)
        try:
            recorded = parse_handle(recorded_ext.get("extraInfo", ""))
        except FieldError:
            return body  # invalid, and sent as recorded
        place = _place(server, recorded_ext, recorded)
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

    def _known(self, place: _Place) -> tuple[_Key, Handle] | None:
        """Return this run's handle of a recorded message, with its key in `_handles`."""
        if place not in self._ids:
            return None
        topic, message_id = self._ids[place]
        names_now = self._renamed(place.group, topic)
        for one in (self._new_id(message_id), message_id):
            if (handle := self._handles.get((*names_now, one))) is not None:
                return (*names_now, one), handle
        return None

    def _changed(self, server: str | None, ext: Mapping[str, str], new: Mapping[str, str]) -> None:
        """Replace a message's handle by the one with the times of the answer."""
        for place in _places(server, _CHANGE, ext, b""):
            if (known := self._known(place)) is None:
                return
            key, handle = known
            try:
                self._handles[key] = handle._replace(
                    pop_time=int(new["popTime"]),
                    invisible_time=int(new["invisibleTime"]),
                    revive_queue=int(new["reviveQid"]),
                )
            except (KeyError, ValueError):
                return  # refused, or broken

    def _batch(self, server: str | None, body: bytes, unmapped: list[str]) -> bytes:
        try:
            each = _acked_places(server, body)
            whole = msgspec.json.decode(body)
        except (BodyError, ValueError, msgspec.DecodeError):
            return body  # invalid, and sent as recorded
        found: dict[tuple[object, ...], tuple[BatchAck, set[int]]] = {}
        for recorded, place in each:
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


def _place(server: str | None, ext: Mapping[str, str], handle: Handle) -> _Place:
    """Return the place of the message of an acknowledgement with these fields."""
    group, topic = ext.get("consumerGroup", ""), ext.get("topic", "")
    return _Place(server, group, topic, handle.pop_time, handle.queue, handle.offset)


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
