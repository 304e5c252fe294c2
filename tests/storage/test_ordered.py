"""The inbox in order: whatever is added, taken and undone, a reader finds what was committed last."""

from __future__ import annotations

import random
from itertools import islice

from storage.inbox import MAX_ORDERED, Inbox
from storage.keys import timer_key
from storage.ordered import OrderedKeys

TOPICS = (b"bills", b"orders", b"orders2")
END = b"\xff" * 8


def a_key(chance: random.Random, sequence: int) -> bytes:
    return timer_key(chance.randrange(1_000), chance.choice(TOPICS), sequence, b"id")


def change(inbox: Inbox, chance: random.Random, sequence: int) -> list[bytes]:
    """Add a few timers, fire the earliest, take any others, and return the keys that were added."""
    added = [a_key(chance, sequence + number) for number in range(chance.choice((0, 1, 5, 60)))]
    for key in added:
        inbox.add(key, b"value of " + key)
    for _ in range(chance.randrange(10)):
        inbox.take(inbox.first())
    for key, _ in chance.sample(inbox.rows(), min(3, len(inbox.rows()))):
        inbox.take(key)
    return added


def check(inbox: Inbox, chance: random.Random) -> None:
    expected = sorted(inbox.rows())
    start, end = sorted((chance.randrange(1_000).to_bytes(8), chance.randrange(1_100).to_bytes(8)))
    for topic in (None, *TOPICS):
        own = [row for row in expected if topic is None or row[0][8:].startswith(topic + b"\0")]
        assert list(inbox.between(b"", END, topic)) == own
        assert sorted(inbox.keys(topic)) == [key for key, _ in own]
        inside = [row for row in own if start <= row[0] < end]
        assert list(inbox.between(start, end, topic)) == inside
        assert list(islice(inbox.between(start, end, topic), 3)) == inside[:3]


def test_readers_see_what_was_committed() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        inbox = Inbox(chance.choice((5, 50, 1_000)), [])
        for turn in range(60):
            before = sorted(inbox.rows())
            added = change(inbox, chance, turn * 100)
            assert sorted(inbox.rows()) == before
            if chance.random() < 0.5:
                check(inbox, chance)
            if chance.random() < 0.3:
                inbox.abandon()
                assert sorted(inbox.rows()) == before
            else:
                if inbox.is_ripe:
                    inbox.ripen()
                inbox.take_latest()
                inbox.commit(len(added))
            if chance.random() < 0.5:
                check(inbox, chance)


def test_as_many_topics_as_there_are_can_be_read() -> None:
    topics = [b"t%d" % number for number in range(2 * MAX_ORDERED)]
    keys = [timer_key(number, topic, 1, b"id") for number, topic in enumerate(topics)]
    inbox = Inbox(10, [(key, b"value") for key in keys])
    for _ in range(2):
        for key, topic in zip(keys, topics, strict=True):
            assert list(inbox.between(b"", END, topic)) == [(key, b"value")]
        assert len(inbox._ordered) == MAX_ORDERED
        late = timer_key(5_000, topics[-1], 2, b"id")
        inbox.add(late, b"late")
        inbox.commit(1)
        assert list(inbox.between(late, END, topics[-1])) == [(late, b"late")]
        inbox.take(late)
        inbox.commit(1)


def test_a_page_looks_at_no_more_than_it_reads() -> None:
    asked = 0

    def is_alive(_: bytes) -> bool:
        nonlocal asked
        asked += 1
        return True

    keys = OrderedKeys((number.to_bytes(8) for number in range(10_000)), is_alive)
    page = islice(keys.between((5_000).to_bytes(8), END), 20)
    assert [int.from_bytes(key) for key in page] == list(range(5_000, 5_020))
    assert asked < 30
