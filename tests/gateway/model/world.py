"""What a gateway holds, as a plain account of RocketMQ's semantics and of Tidegate's promises (docs/later.md)."""

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
    """A message. `moved_ms` is when it entered its queue, or was aborted; what its clock could not tell
    exactly is taken over from the gateway, once it was found to be possible."""

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
        """Whether it is in a topic of a group's own."""
        return self.topic.startswith(MADE_FOR_GROUPS)


@dataclass
class Rows:
    """A queue: the messages from offset `first` on. It began at `begin`."""

    begin: int = 0
    first: int = 0
    messages: list[Message] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The offset of the next message."""
        return self.first + len(self.messages)

    def at(self, offset: int) -> Message | None:
        """The message with an offset, if it is held."""
        held = self.first <= offset < self.end
        return self.messages[offset - self.first] if held else None


class Pop(NamedTuple):
    """A message that a group has until `back_ms`."""

    group: str
    place: Place
    offset: int
    back_ms: int
    message: Message


@dataclass
class Order:
    """What a group popped last in order from a queue, and until when each of it is invisible; None once it is
    acknowledged."""

    popped_ms: int
    until_ms: dict[int, int | None]

    def blocks(self, now_ms: int) -> bool:
        """Whether the next pop has to wait."""
        return any(until is not None and until > now_ms for until in self.until_ms.values())

    @property
    def next_offset(self) -> int:
        """Where the group goes on."""
        left = [offset for offset, until in self.until_ms.items() if until is not None]
        return min(left, default=max(self.until_ms) + 1)


@dataclass
class Recurrence:
    """A message that recurs every `every_ms`, next at `next_ms`; `rule` are the properties that say so."""

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
    """All that there is. `messages` are those that are held, by sequence; halves are apart."""

    topics: dict[str, int] = field(default_factory=dict)
    messages: dict[int, Message] = field(default_factory=dict)
    halves: dict[int, Message] = field(default_factory=dict)
    queues: dict[Place, Rows] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    progress: dict[tuple[str, str, int], int] = field(default_factory=dict)
    unsure: dict[tuple[str, str, int], set[int | None]] = field(default_factory=dict)
    """What a crash may leave of progress that was told lately, beside what was told last."""
    resets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    pops: list[Pop] = field(default_factory=list)
    orders: dict[tuple[str, str, int], Order] = field(default_factory=dict)
    recurring: dict[tuple[str, str], Recurrence] = field(default_factory=dict)

    def rows(self, place: Place) -> Rows:
        """A queue."""
        return self.queues.setdefault(place, Rows())

    def places(self) -> Iterator[Place]:
        """The queues of all topics."""
        for topic, queues in self.topics.items():
            for number in range(queues):
                yield topic, number

    def make(self, topic: str, queues: int) -> None:
        """A topic is there, anew where it was deleted: it begins where the deleted one ended."""
        if topic not in self.topics:
            for place in [place for place in self.queues if place[0] == topic]:
                self.clear(place)
        self.topics[topic] = queues

    def clear(self, place: Place) -> None:
        """A queue of a deleted topic is emptied."""
        rows = self.rows(place)
        for one in rows.messages:
            del self.messages[one.sequence]
        self.queues[place] = Rows(rows.end, rows.end)

    def delete(self, topic: str) -> None:
        """A topic goes, with its queues, and what is known of it; what is pending fires into nothing."""
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

    def pop(self, group: str, place: Place, one: Message, back_ms: int) -> None:
        """A group has a message until then; once, if it has it already."""
        pop = Pop(group, place, one.offset, back_ms, one)
        if pop not in self.pops:
            self.pops.append(pop)

    def tell(self, key: tuple[str, str, int], offset: int) -> None:
        """A group's progress is told, which is stored soon."""
        if self.progress.get(key) != offset:
            self.unsure.setdefault(key, set()).add(self.progress.get(key))
            self.progress[key] = offset

    def advance(self, key: tuple[str, str, int], offset: int) -> None:
        """A group's progress is stored at once."""
        self.progress[key] = offset
        self.unsure.pop(key, None)

    def enqueue(self, one: Message, moved_ms: int) -> None:
        """A message enters its queue."""
        rows = self.rows((one.topic, one.queue))
        one.state = FIRED if one.due_ms else UNTIMED
        one.offset, one.moved_ms = rows.end, moved_ms
        rows.messages.append(one)
        self.messages[one.sequence] = one

    def forget(self, one: Message) -> None:
        """A message is removed, as it was there for long enough: the first of its queue, or one that was aborted."""
        del self.messages[one.sequence]
        if one.state != ABORTED:
            rows = self.rows((one.topic, one.queue))
            assert rows.messages.pop(0) is one
            rows.first += 1

    def hold(self, one: Message, due_ms: int, now_ms: int) -> None:
        """A message waits for its time."""
        one.state, one.due_ms, one.from_ms = PENDING, due_ms, now_ms
        self.messages[one.sequence] = one

    def pending(self, topic: str | None = None) -> list[Message]:
        """What waits, in the order in which it fires."""
        return sorted(
            (
                one
                for one in self.messages.values()
                if one.state == PENDING and topic in (None, one.topic)
            ),
            key=lambda one: (one.due_ms, one.topic, one.sequence),
        )

    def newest_first(self) -> list[Message]:
        """All messages."""
        return sorted(self.messages.values(), key=lambda one: -one.sequence)

    def with_id(self, message_id: str, topic: str | None = None) -> list[Message]:
        """Messages with an id, the newest first."""
        return [
            one
            for one in self.newest_first()
            if one.message_id == message_id and topic in (None, one.topic)
        ]

    def with_key(self, topic: str, key: str) -> list[Message]:
        """Messages of a topic with a key, the newest first."""
        return [one for one in self.newest_first() if one.topic == topic and key in one.keys]

    def abort(self, one: Message, now_ms: int) -> str:
        """Take a message back; what is true of it."""
        if one.state == PENDING:
            one.state, one.moved_ms = ABORTED, now_ms
            return "aborted"
        return "already aborted" if one.state == ABORTED else "already fired"

    def move(self, one: Message, due_ms: int, now_ms: int) -> str:
        """Give a message another time; what is true of it."""
        if one.state == PENDING:
            one.due_before_ms, one.due_ms, one.from_ms = one.due_ms, due_ms, now_ms
            return "rescheduled"
        return "already aborted" if one.state == ABORTED else "already fired"

    def debounce(self, topic: str, key: str, now_ms: int) -> int:
        """Abort what is pending with a key; how many."""
        older = [one for one in self.with_key(topic, key) if one.state == PENDING]
        for one in older:
            self.abort(one, now_ms)
        return len(older)
