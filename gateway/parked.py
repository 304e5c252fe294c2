"""Pulls, pops and notifications that wait for a message, by queue. All are called pulls here."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Final, NamedTuple, Protocol

from gateway.reactor import Reactor
from gateway.router import Peer, overloaded
from gateway.settings.config import Config
from storage import Growth, Queue

WOKEN_AT_ONCE = 16
"""Woken pulls that are retried in one turn, some 1 ms of work, or 20 ms where each reads 500 messages to judge them.
Thousands of pulls can wait for one queue, for example those of broadcasting consumers."""

SWEEP_SECONDS = 0.5
"""Seconds between two checks of the deadlines of waiting pulls."""

LET_GO_AT_ONCE = 2_000
"""Pulls that are let go in one turn of the reactor, some 10 ms of work. The pulls of thousands of clients that came
together, as after a restart, end together as well."""

SWEPT_AT_ONCE = 2_000
"""Queues whose pulls are checked in one turn, some 3 ms of work, or up to 10 ms where they hold most pulls."""


UNSHARED: Final = 1_000
"""As many of those that may wait may always be of one connection."""

SHARE: Final = 4
"""Beyond that, one connection may have this many times what it leaves for others: four fifths of all where it alone has
many. It may be that of a proxy in front of many clients, or of a client whose few pops wait for 10,000 queues each."""

MANY_TAGS: Final = 64
"""A pull that takes more tags than this looks at each new message, as one that takes any: to keep it by its tags, of
which a subscription may have thousands, takes 0.1 us and 45 bytes for each at least."""

_NO_TAG: Final = frozenset({None})
"""Stands for the tags of pulls that take no message, so that these pulls are kept here and let go too."""


class Kind(NamedTuple):
    """Pulls of one kind find the same in a queue: they share their group's progress, and `wish` is all else that
    decides what they find."""

    group: str
    wish: Hashable


class Parked(Protocol):
    """A pull that waits.

    `deadline` is in reactor seconds: then the pull is answered without messages. With `tag_hashes` it takes only
    messages whose tag has one of these hashes. Of the pulls of one `kind` only one looks, until it finds something;
    None is a kind of its own. `weight` is as how many of those that may wait it counts. `peer` has sent it.
    """

    queue: Queue
    deadline: float
    weight: int

    @property
    def peer(self) -> Peer:
        """The connection that the pull came by."""

    @property
    def kind(self) -> Kind | None:
        """What the pull shares with others."""

    @property
    def tag_hashes(self) -> AbstractSet[int] | None:
        """Hashes of the tags that the pull takes; None for any tag."""

    @property
    def alive(self) -> bool:
        """False once the client is gone."""

    def retry(self, first: int) -> bool:
        """Answer if there is something to answer with; return whether the pull was answered.

        :param first: nothing before this offset is new to the pull.
        """

    def give_up(self) -> None:
        """Answer without messages, if the client is still there."""

    def fail(self, error: Exception) -> None:
        """Answer that `retry` failed. To be called while its error is handled."""


class _Waiting:
    """The pulls that wait for one queue: those of a kind, by kind, those that take any message or many tags, and those
    that take certain tags, by tag."""

    def __init__(self) -> None:
        self._of_kind: dict[Kind, dict[Parked, None]] = {}
        self._for_any: dict[Parked, None] = {}
        self._by_tag: dict[int | None, dict[Parked, None]] = {}
        # The kinds of which one pull was taken out and has not looked yet.
        self._will_look: set[Kind] = set()

    def __bool__(self) -> bool:
        return bool(self._of_kind or self._for_any or self._by_tag)

    def add(self, pull: Parked) -> None:
        kind, tags = pull.kind, _kept_by(pull)
        if kind is not None:
            self._of_kind.setdefault(kind, {})[pull] = None
        elif tags is None:
            self._for_any[pull] = None
        else:
            for tag in tags or _NO_TAG:
                self._by_tag.setdefault(tag, {})[pull] = None

    def remove(self, pull: Parked) -> None:
        kind, tags = pull.kind, _kept_by(pull)
        if kind is not None:
            alike = self._of_kind.get(kind, {})
            alike.pop(pull, None)
            if not alike:
                self._of_kind.pop(kind, None)
        elif tags is None:
            self._for_any.pop(pull, None)
        else:
            for tag in tags or _NO_TAG:
                waiting = self._by_tag.get(tag, {})
                waiting.pop(pull, None)
                if not waiting:
                    self._by_tag.pop(tag, None)

    def take(self, tags: AbstractSet[int | None]) -> dict[Parked, None]:
        """Take out the pulls that take messages with one of these tags, each once, and one of each kind. Those of one
        tag keep their order."""
        taken, self._for_any = self._for_any, {}
        if self._of_kind:
            taken |= self._take_one_of_each(self._of_kind)
        if self._by_tag:
            tagged: dict[Parked, None] = {}
            for tag in self._by_tag.keys() & tags:
                tagged |= self._by_tag[tag]
            for pull in tagged:
                self.remove(pull)
            taken |= tagged
        return taken

    def take_all(self) -> dict[Parked, None]:
        """Take out all pulls, but of each kind only one."""
        return self.take(self._by_tag.keys())

    def take_of(self, group: str) -> dict[Parked, None]:
        """Take out one pull of each kind of a group."""
        return self._take_one_of_each(kind for kind in self._of_kind if kind.group == group)

    def take_next(self, kind: Kind) -> dict[Parked, None]:
        """Take out the next pull of a kind, as one of them has found something."""
        return self._take_one_of_each([kind])

    def looks(self, kind: Kind) -> None:
        """Note that a pull of a kind that was taken out looks now. It may not see what comes later."""
        self._will_look.discard(kind)

    def _take_one_of_each(self, kinds: Iterable[Kind]) -> dict[Parked, None]:
        due = [kind for kind in kinds if kind in self._of_kind and kind not in self._will_look]
        taken = {next(iter(self._of_kind[kind])): None for kind in due}
        for pull in taken:
            self.remove(pull)
        self._will_look.update(due)
        return taken

    def all(self) -> dict[Parked, None]:
        """Return all pulls, each once."""
        if not self._by_tag and not self._of_kind:
            return self._for_any
        groups = (*self._by_tag.values(), *self._of_kind.values())
        return self._for_any | {pull: None for waiting in groups for pull in waiting}


def _kept_by(pull: Parked) -> AbstractSet[int] | None:
    """Return the tags by which a pull is kept; None where it is kept by none."""
    tags = pull.tag_hashes
    return None if tags is not None and len(tags) > MANY_TAGS else tags


class ParkingLot:
    """Parks pulls, wakes them when their queue grows, and lets them go at their deadline.

    A caller parks a pull right after reading its queue, with no commit in between, so no message is missed. New
    messages wake only the pulls that want one of their tags: each pull here has read its queue to the end, or would
    have skipped the rest. Of the pulls of one kind they wake one. When it is done without having found that there is
    nothing, the next is woken, and so on. At most `max_waiting_requests` pulls are to wait, of which no connection has
    all if these are many.
    """

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._queues: dict[Queue, _Waiting] = {}
        # The same queues by topic.
        self._of_topic: dict[bytes, dict[Queue, None]] = {}
        # Woken pulls that are still to be retried, each with the offset of the first message that is new to it.
        self._woken: deque[tuple[Parked, int]] = deque()
        # Queues that the sweep under way has still to check.
        self._unswept: list[Queue] = []
        self._count = 0
        self._weight = 0
        self._weights: dict[Peer, int] = {}
        self._limit = 0

    def configure(self, config: Config) -> None:
        """Set how many pulls may wait."""
        self._limit = config.max_waiting_requests

    def __len__(self) -> int:
        return self._count

    def awaits(self, queue: Queue) -> bool:
        """Whether a pull waits for a queue."""
        return queue in self._queues

    def has_room(self, weight: int, peer: Peer) -> bool:
        """Whether so many more of one connection may wait."""
        left = self._limit - self._weight - weight
        own = self._weights.get(peer, 0) + weight
        return left >= 0 and own <= max(UNSHARED, SHARE * left)

    def check_room(self, weight: int, peer: Peer) -> None:
        """Check that one more pull of a connection, of this weight, may wait.

        :raises RequestError: when it may not.
        """
        if not self.has_room(weight, peer):
            if self._weight + weight <= self._limit:
                own = self._weights.get(peer, 0)
                raise overloaded("one connection's share of max_waiting_requests", own)
            raise overloaded("max_waiting_requests", self._limit)

    def park(self, pull: Parked) -> None:
        """Let a pull wait until its queue grows, but not past its deadline."""
        waiting = self._queues.get(pull.queue)
        if waiting is None:
            waiting = self._queues[pull.queue] = _Waiting()
            self._of_topic.setdefault(pull.queue.topic, {})[pull.queue] = None
        waiting.add(pull)
        self._counted(pull, 1)

    def grown(self, growth: Growth) -> None:
        """Retry the pulls that may want the new messages of a queue."""
        waiting = self._queues.get(growth.queue)
        if waiting is not None:
            self._wake([(pull, growth.first) for pull in waiting.take(growth.tag_hashes)])

    def wake(self, queues: Iterable[Queue], popping: str | None = None) -> None:
        """Retry the pulls that wait for these queues, even if the queues have not grown, or only the pops and
        notifications of one group (`popping`)."""
        woken: list[tuple[Parked, int]] = []
        for queue in queues:
            waiting = self._queues.get(queue)
            if waiting is not None:
                pulls = waiting.take_all() if popping is None else waiting.take_of(popping)
                woken += [(pull, queue.visible) for pull in pulls]
        self._wake(woken)

    def awaited_of(self, topics: Iterable[str]) -> Iterator[Queue]:
        """Return the queues of these topics for which a pull waits. Topics may have thousands of others."""
        for topic in topics:
            yield from self._of_topic.get(topic.encode(), ())

    def sweep(self, now: float) -> bool:
        """Let go of the pulls whose deadline has passed or whose client is gone, as many as fit in one turn. Return
        True when there may be more: then call it again in another turn.

        Every parked pull is checked. Most are answered long before their deadline, so a list ordered by deadline would
        be larger and costlier to keep than this walk is.
        """
        if not self._unswept:
            self._unswept = list(self._queues)
        left = LET_GO_AT_ONCE
        for _ in range(min(SWEPT_AT_ONCE, len(self._unswept))):
            queue = self._unswept.pop()
            waiting = self._queues.get(queue)
            if waiting is None:
                continue
            ended = (pull for pull in waiting.all() if pull.deadline <= now or not pull.alive)
            over = list(islice(ended, left))
            for pull in over:
                waiting.remove(pull)
            if not waiting and not self._woken:
                # Only the sweep deletes an empty entry: where pulls come and go, the same queue is soon waited for.
                self._forget(queue)
            for pull in over:
                self._counted(pull, -1)
            for pull in over:
                pull.give_up()
            left -= len(over)
            if not left:
                self._unswept.append(queue)
                return True
        return bool(self._unswept)

    def release_all(self) -> None:
        """Let go of all pulls, as the gateway stops."""
        # First retry the woken pulls: answered without messages, their clients would go on behind the new ones.
        while self._woken:
            self._retry_first()
        self._unswept.clear()
        while self.sweep(float("inf")):
            pass

    def _counted(self, pull: Parked, times: int) -> None:
        """Count a pull once more (1) or once less (-1)."""
        self._count += times
        weight, peer = times * pull.weight, pull.peer
        self._weight += weight
        own = self._weights.get(peer, 0) + weight
        if own:
            self._weights[peer] = own
        else:
            del self._weights[peer]

    def _forget(self, queue: Queue) -> None:
        del self._queues[queue]
        queues = self._of_topic[queue.topic]
        del queues[queue]
        if not queues:
            del self._of_topic[queue.topic]

    def _wake(self, woken: list[tuple[Parked, int]]) -> None:
        """Retry these pulls behind those that were woken before. If none of those is left, retry some now.

        :param woken: each with the offset of the first message that is new to it.
        """
        is_first = not self._woken
        self._woken += woken
        if is_first:
            self._retry_some()

    def _retry_some(self) -> None:
        try:
            left = WOKEN_AT_ONCE
            while self._woken and left:
                self._retry_first()
                left -= 1
        finally:
            if self._woken:
                self._reactor.callLater(0, self._retry_some)

    def _retry_first(self) -> None:
        """Retry the pull that was woken first. It stays there meanwhile, so that those that it wakes come after it."""
        pull, first = self._woken[0]
        try:
            self._retry(pull, first)
        finally:
            self._woken.popleft()

    def _retry(self, pull: Parked, first: int) -> None:
        # The pull does not count while it is answered: an answer can bring the same client back at once.
        self._counted(pull, -1)
        kind = pull.kind
        if kind is not None:
            self._queues[pull.queue].looks(kind)
        is_over = True
        if not pull.alive:
            pull.give_up()
        else:
            try:
                is_over = pull.retry(first)
            except Exception as error:  # noqa: BLE001 - the other pulls are retried all the same
                # The pull is not parked again: at its deadline it would be answered as if there were nothing new.
                pull.fail(error)
        if not is_over:
            self.park(pull)
        elif kind is not None:
            self._woken += [(one, first) for one in self._queues[pull.queue].take_next(kind)]
