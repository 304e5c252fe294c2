"""A model of what a gateway holds: plain state with RocketMQ's semantics and Tidegate's promises (docs/later.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

Place = tuple[str, int]
"""A topic and the number of one of its queues."""

PENDING, FIRED, ABORTED, UNTIMED = "pending", "fired", "aborted", "untimed"

MADE_FOR_GROUPS = ("%RETRY%", "%DLQ%")


@dataclass(eq=False)
class Message:
    """A message. `moved_ms` is when it entered its queue, or was aborted. Where the model's clock cannot tell that
    exactly, the gateway's value is adopted after it was found to be possible."""

    sequence: int
    message_id: str
    topic: str
    queue: int
    body: str
    tag: str = ""
    keys: tuple[str, ...] = ()
    retries: int = 0
    state: str = UNTIMED
    due_ms: int = 0
    due_before_ms: int = 0
    from_ms: int = 0
    moved_ms: int = 0
    offset: int = -1
    handle: str = ""
    group: str = ""
    delay_ms: int | None = None
    debounce: str = ""

    @property
    def is_of_group(self) -> bool:
        """Whether the message is in a retry or dead-letter topic of a group."""
        return self.topic.startswith(MADE_FOR_GROUPS)


@dataclass
class Rows:
    """A queue: its messages from offset `first` on. `begin` is the offset at which the queue began."""

    begin: int = 0
    first: int = 0
    messages: list[Message] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return self.first + len(self.messages)

    def at(self, offset: int) -> Message | None:
        """Return the message at an offset, if it is held."""
        held = self.first <= offset < self.end
        return self.messages[offset - self.first] if held else None


class Pop(NamedTuple):
    """A message that is invisible to the rest of a group until `back_ms`. Then it counts as retried, unless it was
    `suspended`."""

    group: str
    place: Place
    offset: int
    back_ms: int
    message: Message
    suspended: bool


@dataclass
class Order:
    """The messages that a group popped last in order from a queue, and until when each is invisible; None once it is
    acknowledged."""

    popped_ms: int
    until_ms: dict[int, int | None]

    def blocks(self, now_ms: int) -> bool:
        """Whether the next pop has to wait."""
        return any(until is not None and until > now_ms for until in self.until_ms.values())

    @property
    def next_offset(self) -> int:
        """The offset at which the group continues."""
        left = [offset for offset, until in self.until_ms.items() if until is not None]
        return min(left, default=max(self.until_ms) + 1)


@dataclass
class Recurrence:
    """A message that recurs every `every_ms`, next at `next_ms`. `rule` has the properties that define that."""

    queue: int
    body: str
    rule: dict[str, str]
    every_ms: int
    next_ms: int
    paused: bool = False
    fired: int = 0
    count: int | None = None


@dataclass
class World:
    """The whole state. `messages` has the messages that are held, by sequence; half messages are in `halves`."""

    topics: dict[str, int] = field(default_factory=dict)
    messages: dict[int, Message] = field(default_factory=dict)
    halves: dict[int, Message] = field(default_factory=dict)
    queues: dict[Place, Rows] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    progress: dict[tuple[str, str, int], int] = field(default_factory=dict)
    unsure: dict[tuple[str, str, int], set[int | None]] = field(default_factory=dict)
    """Earlier offsets that a crash may restore, besides the last one, for progress that was committed recently."""
    resets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    woken: set[str] = field(default_factory=set)
    """Topics at whose queues all who wait there have just looked again, as some group's progress was reset."""
    pops: list[Pop] = field(default_factory=list)
    orders: dict[tuple[str, str, int], Order] = field(default_factory=dict)
    recurring: dict[tuple[str, str], Recurrence] = field(default_factory=dict)

    def rows(self, place: Place) -> Rows:
        """Return a queue."""
        return self.queues.setdefault(place, Rows())

    def places(self) -> Iterator[Place]:
        """Return the queues of all topics."""
        for topic, queues in self.topics.items():
            for number in range(queues):
                yield topic, number

    def make(self, topic: str, queues: int) -> None:
        """Create a topic. A topic that was deleted is created anew, and its queues begin where the deleted ones
        ended."""
        if topic not in self.topics:
            for place in [place for place in self.queues if place[0] == topic]:
                self.clear(place)
        self.topics[topic] = queues

    def clear(self, place: Place) -> None:
        """Empty a queue of a deleted topic."""
        rows = self.rows(place)
        for one in rows.messages:
            del self.messages[one.sequence]
        self.queues[place] = Rows(rows.end, rows.end)

    def delete(self, topic: str) -> None:
        """Delete a topic with its queues and everything about it. Its pending messages fire into a deleted topic."""
        if self.topics.pop(topic, None) is None:
            return
        self.paused.discard(topic)
        for table in (self.progress, self.unsure, self.resets, self.orders):
            for key in [key for key in table if key[1] == topic]:
                del table[key]
        self.pops = [pop for pop in self.pops if pop.place[0] != topic]
        for name in [name for name in self.recurring if name[0] == topic]:
            del self.recurring[name]
        for place in [place for place in self.queues if place[0] == topic]:
            self.clear(place)

    def pop(
        self, group: str, place: Place, one: Message, back_ms: int, *, suspended: bool = False
    ) -> None:
        """Note that a group has popped a message until `back_ms`, in place of an earlier pop until the same time."""
        pop = Pop(group, place, one.offset, back_ms, one, suspended)
        self.pops = [other for other in self.pops if other[:4] != pop[:4]]
        self.pops.append(pop)

    def tell(self, key: tuple[str, str, int], offset: int) -> None:
        """Note a group's progress that is stored soon, but not at once."""
        if self.progress.get(key) != offset:
            self.unsure.setdefault(key, set()).add(self.progress.get(key))
            self.progress[key] = offset

    def advance(self, key: tuple[str, str, int], offset: int) -> None:
        """Note a group's progress that is stored at once."""
        self.progress[key] = offset
        self.unsure.pop(key, None)

    def enqueue(self, one: Message, moved_ms: int) -> None:
        """Put a message into its queue."""
        rows = self.rows((one.topic, one.queue))
        one.state = FIRED if one.due_ms else UNTIMED
        one.offset, one.moved_ms = rows.end, moved_ms
        rows.messages.append(one)
        self.messages[one.sequence] = one

    def forget(self, one: Message) -> None:
        """Remove a message by retention: the first of its queue, or an aborted one."""
        del self.messages[one.sequence]
        if one.state != ABORTED:
            rows = self.rows((one.topic, one.queue))
            assert rows.messages.pop(0) is one
            rows.first += 1

    def hold(self, one: Message, due_ms: int, now_ms: int) -> None:
        """Hold a message until it is due."""
        one.state, one.due_ms, one.from_ms = PENDING, due_ms, now_ms
        self.messages[one.sequence] = one

    def pending(self, topic: str | None = None) -> list[Message]:
        """Return the pending messages in the order in which they fire."""
        return sorted(
            (
                one
                for one in self.messages.values()
                if one.state == PENDING and topic in (None, one.topic)
            ),
            key=lambda one: (one.due_ms, one.topic, one.sequence),
        )

    def newest_first(self) -> list[Message]:
        """Return all messages, the newest first."""
        return sorted(self.messages.values(), key=lambda one: -one.sequence)

    def with_id(self, message_id: str, topic: str | None = None) -> list[Message]:
        """Return the messages with an id, the newest first."""
        return [
            one
            for one in self.newest_first()
            if one.message_id == message_id and topic in (None, one.topic)
        ]

    def with_key(self, topic: str, key: str) -> list[Message]:
        """Return the messages of a topic with a key, the newest first."""
        return [one for one in self.newest_first() if one.topic == topic and key in one.keys]

    def abort(self, one: Message, now_ms: int) -> str:
        """Abort a message. Return the outcome."""
        if one.state == PENDING:
            one.state, one.moved_ms = ABORTED, now_ms
            return "aborted"
        return "already aborted" if one.state == ABORTED else "already fired"

    def move(self, one: Message, due_ms: int, now_ms: int) -> str:
        """Reschedule a message. Return the outcome."""
        if one.state == PENDING:
            one.due_before_ms, one.due_ms, one.from_ms = one.due_ms, due_ms, now_ms
            return "rescheduled"
        return "already aborted" if one.state == ABORTED else "already fired"

    def debounce(self, topic: str, key: str, now_ms: int) -> int:
        """Abort the pending messages with a key. Return how many."""
        older = [one for one in self.with_key(topic, key) if one.state == PENDING]
        for one in older:
            self.abort(one, now_ms)
        return len(older)
