"""Finds, describes and aborts messages that have not fired, for any caller.

Both the handlers of the remoting protocol and the HTTP API use this module; they differ only in how they read a
request and write an answer. Changes join the store's batch: an answer may leave once the batch is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from functools import cache
from typing import NamedTuple, TypeVar

from gateway.access.policies import PUB, READ, May
from gateway.broker import Broker
from gateway.intake import terms_of
from gateway.router import Actor, RequestError
from gateway.wire import properties as names
from gateway.wire.addresses import show_address
from gateway.wire.codes import ResponseCode
from gateway.wire.group_topics import is_of_group
from gateway.wire.messages import (
    decode_message,
    java_hash,
    offset_msg_id,
    parse_offset_msg_id,
    unpack_host,
)
from gateway.wire.pending_bodies import (
    MAX_CHANGED_BY_KEY,
    AbortOutcome,
    HeldMessage,
    HeldPage,
    PausedTopic,
    RescheduleOutcome,
)
from gateway.wire.properties import find
from gateway.wire.recall import RecallHandle, RecallHandleError
from storage import (
    MAX_BYTES_SCANNED,
    MAX_WITH_ID,
    Aborted,
    AbortResult,
    Found,
    FoundPage,
    Pause,
    State,
    abort,
    abort_sequences,
    check_readable,
    check_readable_with_key,
    find_by_id,
    find_by_sequence,
    find_by_sequences,
    has_too_many,
    scan_aborted,
    scan_fired,
    scan_pending,
    scan_with_key,
    topics_with_key,
)

MAX_PAGE = 1_000
"""Most messages in one answer to a look-up."""

PIECE = 100
"""Messages that one step of a look-up reads, some 5 ms of work, or of a change by key changes, some 15 ms."""

MAX_PIECES = 10
"""Steps after which a page ends, however little they have found: with a tag that few messages have, each of them looks
through thousands, up to 20 ms of work."""

MAX_WITH_KEY = 2_000
"""Most messages with one key that a look-up, an abort or a reschedule by key considers, the newest first.
`select_with_key` reaches all."""

TOPICS_AT_ONCE = 5_000
"""Topics in which one step of a look-up looks for a key, some 6 ms of work."""

_LATEST_MS = (1 << 63) - 1

Outcome = TypeVar("Outcome", AbortOutcome, RescheduleOutcome)

_Readable = Callable[[bytes], bool]

_Steps = Generator[None, None, tuple[list[HeldMessage], bytes | None]]
"""The steps of a look-up, and what the last one returns: the messages of a page, and where the next one begins."""


class Wanted(NamedTuple):
    """What a look-up asks for. An empty text does not narrow the search.

    `id` is the client's or the offset id. `begin_ms` (inclusive) and `end_ms` (exclusive) are due times; in a list of
    fired or aborted messages without an id or a key, they are the times of firing or aborting. `state` is a `State`'s
    value or "any".
    """

    id: str = ""
    key: str = ""
    topic: str = ""
    tag: str = ""
    begin_ms: int = 0
    end_ms: int | None = None
    state: str = State.PENDING.value


class Place(NamedTuple):
    """The client's id of a message, and its topic."""

    message_id: str
    topic: str

    @classmethod
    def of(cls, found: Found) -> Place:
        """Return the place of a message that a look-up found."""
        terms = terms_of(found.record)
        return cls(terms.message_id.decode(), terms.topic.decode())


class PendingMessages:
    """Finds, describes and aborts messages that have not fired. What cannot be done raises `RequestError`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store

    def look_up(
        self, wanted: Wanted, may: May, *, limit: int = 100, cursor: str = ""
    ) -> Generator[None, None, HeldPage]:
        """Make a page of messages by id, by key, or by time, each with its state, step by step: anything may change
        between two of them. The next due comes first; in a list of fired or aborted messages, the latest. Only messages
        that the caller may read are shown, and the cursor tells nothing about others.

        :param limit: most messages of the page, clamped to 1 to `MAX_PAGE`.
        :param cursor: the cursor that the page before returned.
        """
        behind = parse_cursor(cursor)
        if wanted.topic and not may(READ, wanted.topic):
            return HeldPage([])
        # There can be thousands of rows, mostly of the same few topics.
        readable = cache(lambda topic: may(READ, topic.decode()))
        find = self._named if wanted.id or wanted.key else self._listed
        limit = max(1, min(limit, MAX_PAGE))
        messages, last = yield from find(wanted, limit, behind, readable)
        topics = {message.topic for message in messages} | {wanted.topic}
        pauses = map(self.pause_of, sorted(topics))
        paused = [one for one in pauses if one is not None and may(READ, one.topic)]
        return HeldPage(messages, last.hex() if last is not None else None, paused)

    def _listed(
        self, wanted: Wanted, limit: int, behind: bytes | None, readable: _Readable
    ) -> _Steps:
        """List messages by time."""
        messages: list[HeldMessage] = []
        for piece in range(MAX_PIECES):
            if piece:
                yield
            page = self.select(wanted, min(limit - len(messages), PIECE), behind, readable)
            messages += map(self.describe, page.found)
            behind = page.cursor
            if behind is None or len(messages) == limit:
                break
        return messages, behind

    def _named(
        self, wanted: Wanted, limit: int, behind: bytes | None, readable: _Readable
    ) -> _Steps:
        """Find the messages with an id or a key, in the order of due times."""
        # Sort their places, not the messages themselves, whose bodies can be large.
        spots: list[bytes] = []
        if wanted.id:
            pieces = iter([self.find(wanted.id)])
        else:
            pieces = self._with_key((yield from self._topics_having(wanted)), wanted.key)
        for piece, found in enumerate(pieces):
            if piece:
                yield
            spots += (
                spot
                for one in found
                if _is_wanted(wanted, one)
                and (spot := _spot_of(one)) > (behind or b"")
                and readable(terms_of(one.record).topic)
            )
        spots.sort()
        messages: list[HeldMessage] = []
        last = b""
        for begin in range(0, min(limit, len(spots)), PIECE):
            if begin:
                yield
            part = spots[begin : min(begin + PIECE, limit)]
            shown = find_by_sequences(self._store, [int.from_bytes(spot[8:]) for spot in part])
            messages += (self.describe(one) for one in shown if _is_wanted(wanted, one))
            last = part[len(shown) - 1]
            if len(shown) < len(part):  # they are large
                break
        return messages, last if spots and last < spots[-1] else None

    def paused(self) -> list[PausedTopic]:
        """Return the paused topics: nothing of these fires for now."""
        return [_shown(topic.decode(), pause) for topic, pause in self._store.paused.items()]

    def pause_of(self, topic: str) -> PausedTopic | None:
        """Return a topic's pause, or None when it is not paused."""
        pause = self._store.paused.get(topic.encode())
        return _shown(topic, pause) if pause is not None else None

    def select(
        self,
        wanted: Wanted,
        limit: int,
        behind: bytes | None,
        readable: Callable[[bytes], bool] | None = None,
    ) -> FoundPage:
        """Return a page of the messages that match a topic, a tag, a time and a state, in the order of `look_up`.

        :param behind: cursor of the page before.
        :param readable: when given, only messages of topics that it accepts; the caller has checked `wanted.topic`.
        """
        if wanted.state == State.PENDING.value:
            page = scan_pending(
                self._store,
                topic=wanted.topic.encode() or None,
                begin_ms=max(0, wanted.begin_ms),
                end_ms=_end_of(wanted),
                tag_hash=java_hash(wanted.tag) if wanted.tag else None,
                cursor=behind,
                limit=limit,
                readable=readable,
            )
        else:
            page = self._past(wanted, limit, behind, readable)
        if not wanted.tag:
            return page
        # The scan compares hashes, and two tags can share one.
        return page._replace(found=[one for one in page.found if _tag_of(one) == wanted.tag])

    def select_with_key(self, wanted: Wanted, limit: int, behind: bytes | None) -> FoundPage:
        """Return those of the next `limit` messages with the key that match, the newest first, without checking
        permissions. Page by page this reaches all messages with the key, however many there are: unlike a page of
        `select`, none reads all of them.

        :param behind: cursor of the page before.
        """
        page = scan_with_key(
            self._store,
            self._topics_of(wanted),
            wanted.key.encode(),
            cursor=behind[1:] if behind is not None else None,
            limit=limit,
        )
        found = [one for one in page.found if _is_wanted(wanted, one)]
        # `parse_cursor` wants a cursor of at least 9 bytes.
        return FoundPage(found, b"\0" + page.cursor if page.cursor is not None else None)

    def _past(
        self,
        wanted: Wanted,
        limit: int,
        behind: bytes | None,
        readable: Callable[[bytes], bool] | None,
    ) -> FoundPage:
        """Return a page of a topic's fired messages by the time of firing, or of aborted messages by the time of
        the abort."""
        begin_ms, end_ms = max(0, wanted.begin_ms), _end_of(wanted)
        if wanted.state == State.ABORTED.value:
            return scan_aborted(
                self._store,
                topic=wanted.topic.encode() or None,
                begin_ms=begin_ms,
                end_ms=end_ms,
                cursor=behind,
                limit=limit,
                readable=readable,
            )
        if wanted.state != State.FIRED.value or not wanted.topic:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                "messages that fired are listed by topic, and those of any state by id or key: name one",
            )
        topic = self._broker.topics.get(wanted.topic)
        if topic is None:
            return FoundPage([], None)
        return scan_fired(
            self._store,
            [self._store.queue(topic.stored_name, number) for number in range(topic.queues)],
            begin_ms=begin_ms,
            end_ms=end_ms,
            tag_hash=java_hash(wanted.tag) if wanted.tag else None,
            cursor=behind,
            limit=limit,
        )

    def find(self, message_id: str) -> list[Found]:
        """Find messages by the client's id, or else by the offset id: both look the same, so both are tried.

        :raises StorageError: when nothing is found because it cannot be read.
        """
        found = find_by_id(self._store, message_id.encode())
        if found:
            return found
        check_readable(self._store, message_id.encode())
        one = self.find_by_offset_id(message_id)
        return [one] if one is not None else []

    def find_by_offset_id(self, message_id: str) -> Found | None:
        """Return the message to which this gateway gave an offset id."""
        try:
            host, sequence = parse_offset_msg_id(message_id)
        except ValueError:
            return None
        found = find_by_sequence(self._store, sequence)
        if found is None:
            return None
        # Each of several workers has its own message with that number, so the host must match. And the gateway's
        # address may have been another one when the message came.
        is_own = host == self._broker.host or host == decode_message(found.record).store_host
        return found if is_own else None

    def client_id(self, offset_id: str, topic: str) -> str | None:
        """Return the client's id of a topic's message with an offset id; None when the topic has no such message."""
        places = [Place.of(found) for found in self.find(offset_id)]
        return next((place.message_id for place in places if place.topic == topic), None)

    def describe(self, found: Found) -> HeldMessage:
        """Describe a message, without its body and its further properties."""
        message = decode_message(found.record)
        message_id = find(message.properties, names.UNIQ_KEY) or ""
        handle = None
        if found.state is State.PENDING:
            handle = RecallHandle(
                message.topic, self._broker.config.broker_name, found.due_ms, message_id
            ).encode()
        return HeldMessage(
            msg_id=message_id,
            offset_msg_id=offset_msg_id(self._broker.host, found.sequence),
            topic=message.topic,
            queue_id=message.queue_id,
            tags=find(message.properties, names.TAGS) or "",
            keys=find(message.properties, names.KEYS) or "",
            due_ms=found.due_ms,
            state=found.state.value,
            moved_ms=found.moved_ms,
            rescheduled_ms=found.rescheduled_ms,
            due_before_ms=found.due_before_ms,
            queue_offset=found.offset,
            store_ms=message.store_ms,
            born_ms=message.born_ms,
            born_host=show_address(*unpack_host(message.born_host)),
            body_size=len(message.body),
            recall_handle=handle,
        )

    def check_enabled(self) -> None:
        """Refuse unless the setting `recall_enabled` lets messages be taken back."""
        if not self._broker.config.recall_enabled:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden (setting recall_enabled)",
            )

    def check_number(self, message_id: str) -> None:
        """Refuse an id that more than `MAX_WITH_ID` messages have. To change 50,000 at once takes a second, while all
        other requests wait.

        :raises RequestError: when more messages have it.
        """
        if has_too_many(self._store, message_id.encode()):
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"more than {MAX_WITH_ID} messages have the id {message_id}: "
                "change many at once, by topic, tag and time",
            )

    def read_handle(self, text: str, topic: str | None = None) -> RecallHandle:
        """Read a recall handle, and check it in upstream's order (RecallMessageProcessor).

        :param topic: where given, the handle's topic must be the same.
        """
        try:
            handle = RecallHandle.parse(text)
        except RecallHandleError as error:
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, str(error)) from error
        if topic not in (None, handle.topic):
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker != self._broker.config.broker_name:
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available"
            )
        return handle

    def abort_by_handle(self, text: str, may: May) -> list[AbortOutcome]:
        """Abort the message whose send was answered with this recall handle."""
        self.check_enabled()
        handle = self.read_handle(text)
        check_may_send(may, handle.topic)
        return self._abort_places({Place(handle.message_id, handle.topic)})

    def abort_by_id(self, message_id: str, topic: str, may: May) -> list[AbortOutcome]:
        """Abort the messages with an id, the client's or the offset id.

        :param topic: where not empty, only messages of this topic count.
        """
        self.check_enabled()
        places = self.places_of(message_id, topic, may)
        return self._abort_places(places) or [_outcome(message_id, topic, 0, Aborted.UNKNOWN)]

    def abort_by_key(
        self, topic: str, key: str, may: May, actor: Actor
    ) -> Generator[None, None, list[AbortOutcome]]:
        """Abort a topic's messages with a key, at most `MAX_CHANGED_BY_KEY`, pending ones first, step by step.

        :param actor: whom the audit log names.
        """
        self.check_enabled()
        parts = yield from self.places_with_key(topic, key, may)
        outcomes = yield from self.change_in_parts(
            parts, self._check_numbers, self._abort_places, actor
        )
        return outcomes or [_outcome("", topic, 0, Aborted.UNKNOWN)]

    def change_in_parts(
        self,
        parts: list[list[Place]],
        check: Callable[[list[Place]], None],
        change: Callable[[list[Place]], list[Outcome]],
        actor: Actor,
    ) -> Generator[None, None, list[Outcome]]:
        """Change messages, each part in a step. If there are several, each is committed on its own, and all of them are
        checked first, so that nothing is changed where one of them is refused.

        :param change: refuses a part that `check` would refuse.
        """
        outcomes: list[Outcome] = []
        if len(parts) > 1:
            for part in parts:
                check(part)
                yield

        def steps() -> Iterator[None]:
            for part in parts:
                with self._broker.audit.acting(actor):
                    outcomes.extend(change(part))
                if len(parts) > 1:
                    yield

        yield from self._broker.committer.in_parts(steps())
        return outcomes

    def _topics_of(self, wanted: Wanted) -> list[bytes]:
        """Return the topics that are searched for a key."""
        if wanted.topic:
            return [wanted.topic.encode()]
        names = set(self._broker.topics_with_pending())
        if wanted.state != State.PENDING.value:
            names.update(self._broker.topics.names())
        return [name.encode() for name in names]

    def _topics_having(self, wanted: Wanted) -> Generator[None, None, list[bytes]]:
        """Find those of the topics that are searched that have messages with the key, step by step."""
        topics = self._topics_of(wanted)
        having: list[bytes] = []
        for begin in range(0, len(topics), TOPICS_AT_ONCE):
            if begin:
                yield
            some = topics[begin : begin + TOPICS_AT_ONCE]
            having += topics_with_key(self._store, some, wanted.key.encode())
        return having

    def _with_key(self, topics: list[bytes], key: str) -> Iterator[list[Found]]:
        """Return the newest messages with a key, piece by piece; anything may change between two of them."""
        cursor, size = None, 0
        for begin in range(0, MAX_WITH_KEY, PIECE):
            limit = min(PIECE, MAX_WITH_KEY - begin)
            page = scan_with_key(self._store, topics, key.encode(), cursor=cursor, limit=limit)
            yield page.found
            size += sum(len(one.record) for one in page.found)
            cursor = page.cursor
            if cursor is None or size >= MAX_BYTES_SCANNED:
                return

    def places_of(self, message_id: str, topic: str, may: May) -> set[Place]:
        """Return the places of the messages with an id that the caller may change. Redeliveries to consumers count
        only where `topic` names their topic.

        :param topic: where not empty, only messages of this topic count.
        """
        places = {Place.of(found) for found in self.find(message_id)}
        if topic:
            check_may_send(may, topic)
            return {place for place in places if place.topic == topic}
        return _permitted(may, {one for one in places if not is_of_group(one.topic)})

    def places_with_key(
        self, topic: str, key: str, may: May
    ) -> Generator[None, None, list[list[Place]]]:
        """Find the places of a topic's messages with a key, at most `MAX_CHANGED_BY_KEY`, pending ones first, step by
        step. Return them in parts of a `PIECE`.

        :raises StorageError: when nothing is found because it cannot be read.
        """
        check_may_send(may, topic)
        pending: list[Place] = []
        others: list[Place] = []
        for piece, found in enumerate(self._with_key([topic.encode()], key)):
            if piece:
                yield
            for one in found:
                (pending if one.state is State.PENDING else others).append(Place.of(one))
        if not pending + others:
            check_readable_with_key(self._store, topic.encode(), key.encode())
        # Pending messages first, so that a second request reaches those that the first one left.
        places = sorted(set((pending + others)[:MAX_CHANGED_BY_KEY]))
        return [places[begin : begin + PIECE] for begin in range(0, len(places), PIECE)]

    def _check_numbers(self, places: Iterable[Place]) -> None:
        for place in places:
            self.check_number(place.message_id)

    def _abort_places(self, places: Collection[Place]) -> list[AbortOutcome]:
        self._check_numbers(places)
        outcomes = []
        for message_id, topic in sorted(places):
            for result in self.abort(message_id, topic):
                outcomes.append(_outcome(message_id, topic, result.due_ms, result.outcome))
        return outcomes

    def abort(self, message_id: str, topic: str) -> list[AbortResult]:
        """Abort a topic's messages with a client's id, without checking permissions. Note each abort in the audit
        log."""
        self.check_number(message_id)
        now_ms = self._broker.clock.now_ms()
        results = abort(self._store, message_id.encode(), now_ms, topic.encode())
        if results[0].outcome is Aborted.UNKNOWN:
            # A message that cannot be read may fire all the same.
            check_readable(self._store, message_id.encode())
        for result in results:
            if result.outcome is Aborted.ABORTED:
                self._note_abort(Place(message_id, topic), result.due_ms)
        return results

    def abort_found(self, found: list[Found]) -> int:
        """Abort those of the found messages that are still pending, without checking permissions. Return how many these
        were."""
        self.check_enabled()
        sequences = (one.sequence for one in found)
        aborted = abort_sequences(self._store, sequences, self._broker.clock.now_ms())
        for one in found:
            if one.sequence in aborted:
                self._note_abort(Place.of(one), one.due_ms)
        return len(aborted)

    def _note_abort(self, place: Place, due_ms: int) -> None:
        self._broker.audit.note("abort", topic=place.topic, msgId=place.message_id, dueMs=due_ms)


def _outcome(message_id: str, topic: str, due_ms: int, outcome: Aborted) -> AbortOutcome:
    return AbortOutcome(outcome=outcome.value, msg_id=message_id, topic=topic, due_ms=due_ms)


def check_may_send(may: May, topic: str) -> None:
    """Refuse unless the caller may send to a topic: whoever changes a topic's messages needs that permission.

    :raises RequestError: when the caller may not.
    """
    if not may(PUB, topic):
        raise RequestError(
            ResponseCode.NO_PERMISSION, f"you have no permission to send to topic {topic}"
        )


def _permitted(may: May, places: set[Place]) -> set[Place]:
    """Return the places where the caller may change messages. The caller learns nothing about a message that it may not
    even read.

    :raises RequestError: when the caller may read one of the messages, but not change it.
    """
    permitted = {place for place in places if may(PUB, place.topic)}
    for _, topic in places - permitted:
        if may(READ, topic):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"a message of topic {topic} has this id, and you have no permission to send to it",
            )
    return permitted


def _tag_of(found: Found) -> str | None:
    return find(decode_message(found.record).properties, names.TAGS)


def _is_wanted(wanted: Wanted, found: Found) -> bool:
    """Whether a message has the state, time, topic and tag that a look-up asks for."""
    return (
        wanted.state in ("any", found.state.value)
        and wanted.begin_ms <= found.due_ms < _end_of(wanted)
        and (not wanted.topic or wanted.topic == terms_of(found.record).topic.decode())
        and (not wanted.tag or wanted.tag == _tag_of(found))
    )


def _shown(topic: str, pause: Pause) -> PausedTopic:
    return PausedTopic(
        topic=topic, since_ms=pause.since_ms, waiting=pause.waiting, resumed=pause.resumed
    )


def _spot_of(found: Found) -> bytes:
    """Return a message's place in a list by due times."""
    return found.due_ms.to_bytes(8) + found.sequence.to_bytes(8)


def _end_of(wanted: Wanted) -> int:
    return _LATEST_MS if wanted.end_ms is None else max(0, wanted.end_ms)


def parse_cursor(text: str) -> bytes | None:
    """Return the cursor that a page gave out as text; None for an empty text.

    :raises RequestError: when it is no cursor.
    """
    if not text:
        return None
    try:
        cursor = bytes.fromhex(text)
    except ValueError:
        cursor = b""
    if len(cursor) < 9:
        raise RequestError(ResponseCode.INVALID_PARAMETER, "the cursor is not one of this gateway")
    return cursor
