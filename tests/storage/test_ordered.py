"""The inbox in order: whatever is added, taken and undone, a reader finds what was committed last."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from storage.inbox import Generation, Inbox
from storage.keys import timer_key, timer_topic

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


@pytest.mark.parametrize("span_ms", [1_000, 100_000, 10_000_000])
@pytest.mark.parametrize("moves", [False, True])
def test_a_page_puts_few_more_in_order_than_it_reads(span_ms: int, *, moves: bool) -> None:
    """The inbox has 64,000 timers, which take 25 ms to sort."""

    class Counted(dict[bytes, bytes]):
        asked = 0

        def __contains__(self, key: object) -> bool:
            self.asked += 1
            return super().__contains__(key)

    chance = random.Random(span_ms)
    keys = [
        timer_key(chance.randrange(span_ms), b"even" if number % 2 else b"odd", number, b"id")
        for number in range(20_000)
    ]
    here = Counted(dict.fromkeys(keys, b"value"))
    generation = Generation()
    for key in keys:
        generation.put(timer_topic(key), key)
    if moves:
        generation.set_out()
        assert generation.latest(5) == sorted(keys)[-5:]
    start = (span_ms // 2).to_bytes(8)
    for topic in (None, b"odd"):
        own = [key for key in keys if key >= start and topic in (None, timer_topic(key))]
        here.asked = 0
        page = list(islice(generation.between(start, END, topic, here), 20))
        assert page == sorted(own)[:20]
        assert here.asked <= 6_000
