"""Counts of what goes in and out, and their rates over the last minute, hour and day.

The hot path only adds to counters that it has at hand anyway: a queue counts what is put into it, and a group's
counter adds up whole pulls. Everything else is worked out from samples that are taken every ten seconds.
(BrokerStatsManager, StatsItem, StoreStatsService, BrokerStats)
"""

from __future__ import annotations

from array import array
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from time import localtime
from typing import Final, NamedTuple

from storage import Store

SAMPLE_SECONDS = 10.0
"""How often `sample` is to be called."""

SAMPLED_AT_ONCE = 250
"""Topics, and topics with groups, whose counters are noted in one turn, 0.3 ms of work, or 4 where each of their
histories lets go of rows."""

SAMPLES_TO_HOURLY = 60
SAMPLES_TO_DAILY = 360
"""A sample in ten minutes serves the hour, one in an hour the day."""

MINUTE_SAMPLES, HOUR_SAMPLES, DAY_SAMPLES = 7, 7, 25
"""Samples that span each of the three: one more than their steps."""

MOST_ROWS = 48
"""Samples that a history has before it lets go of those that serve no span; at most 41 do."""

TOPIC_COUNTERS: Final = {"TOPIC_PUT_NUMS": (0, 0), "TOPIC_PUT_SIZE": (1, 0)}
"""Counters of a topic, with its name as key: which of its counts each has, and which tells in how many steps."""

GROUP_COUNTERS: Final = {
    "GROUP_GET_NUMS": (0, 2),
    "GROUP_GET_SIZE": (1, 2),
    "SNDBCK_PUT_NUMS": (3, 3),
}
"""Counters of a group and a topic, with keys `topic@group`: likewise."""

TOTALS = ("put", "got", "found", "missed", "pulls", "fired")
"""What is counted of the broker as a whole: messages accepted and handed out, pulls that found some, that found none,
and both, messages fired."""

IDLE_MS = 6 * 3_600_000
"""A group of which nothing was counted in a topic for so long is forgotten there: groups come and go under random
names. Topics stay."""


class Rate(NamedTuple):
    """What a counter did in a span: how much, how much a second, and how much a step."""

    total: int
    per_second: float
    per_time: float


NO_RATE = Rate(0, 0.0, 0.0)


class Spans(NamedTuple):
    """A counter's rates over the last minute, hour and day, or over its life where that is shorter."""

    minute: Rate
    hour: Rate
    day: Rate


class Taken(NamedTuple):
    """When a sample was begun, and when the last counter was noted, in ms."""

    begun: int
    ended: int


class Samples:
    """When those samples were taken with which the last minute, hour and day begin, now or later on."""

    def __init__(self, now_ms: int) -> None:
        start = Taken(now_ms, now_ms)
        self._number = 0
        self.next_serves_day = False
        """Whether the one that is being taken, or is the next, serves the day."""
        self.minute = deque([start], MINUTE_SAMPLES)
        self.hour = deque([start], HOUR_SAMPLES)
        self.day = deque([start], DAY_SAMPLES)

    def add(self, taken: Taken) -> None:
        """A sample was taken."""
        self._number += 1
        self.minute.append(taken)
        if self._number % SAMPLES_TO_HOURLY == 0:
            self.hour.append(taken)
        if self._number % SAMPLES_TO_DAILY == 0:
            self.day.append(taken)
        self.next_serves_day = (self._number + 1) % SAMPLES_TO_DAILY == 0

    @property
    def last(self) -> Taken:
        """The last one."""
        return self.minute[-1]

    @property
    def before_last(self) -> Taken:
        """The one before it, with which the last ten seconds begin that are over; the only one at first."""
        return self.minute[max(0, len(self.minute) - 2)]

    def all(self) -> set[Taken]:
        """Each of them once."""
        return {*self.minute, *self.hour, *self.day}


class History:
    """What some counters of one thing had added up when samples were taken. They begin at 0.

    It is kept as bare numbers, a row for each sample that found one of them moved: when, then the counts. So one that
    rests has one row. There can be a hundred thousand.
    """

    __slots__ = ("_numbers",)

    def __init__(self, begun_ms: int, counters: int) -> None:
        self._numbers = array("q", [begun_ms, *[0] * counters])

    def add(self, now_ms: int, counts: list[int], samples: Samples) -> int:
        """Note a sample.

        :returns: for how long the counters have rested, in ms.
        """
        numbers, width = self._numbers, 1 + len(counts)
        if numbers[1 - width :].tolist() != counts:
            # A copy: an array that grows has room for more, which most never need.
            numbers = self._numbers = numbers + array("q", [now_ms, *counts])
        rested_ms = now_ms - numbers[-width]
        # One that rests is looked at as well now and then: it has fewer rows with each hour.
        if len(numbers) > (2 if samples.next_serves_day else MOST_ROWS) * width:
            self._trim(width, samples)
        return rested_ms

    def _trim(self, width: int, samples: Samples) -> None:
        """Let go of the rows with which no span begins, now or later on."""
        numbers = self._numbers
        times = numbers[::width]
        kept = {max(0, bisect(times, taken.ended) - 1) for taken in samples.all()}
        kept.add(len(times) - 1)
        rows = (numbers[row * width : (row + 1) * width] for row in sorted(kept))
        self._numbers = array("q", chain.from_iterable(rows))

    def rate(self, since: Taken, now_ms: int, counts: list[int], counter: int, times: int) -> Rate:
        """What a counter did since a sample, or in its life where that is shorter.

        :param counts: what the counters have added up now.
        :param counter: which of them it is.
        :param times: the one that counts its steps.
        """
        numbers, width = self._numbers, 1 + len(counts)
        row = width * max(0, bisect(numbers[::width], since.ended) - 1)
        total = counts[counter] - numbers[row + 1 + counter]
        if total <= 0:
            return NO_RATE
        steps = counts[times] - numbers[row + 1 + times]
        # A counter that is younger than a second has not shown yet what it does in one.
        seconds = max(1.0, (now_ms - max(numbers[row], since.begun)) / 1000)
        return Rate(total, total / seconds, total / steps if steps else 0.0)

    def rates(
        self, samples: Samples, now_ms: int, counts: list[int], counter: int, times: int
    ) -> Spans:
        """Likewise, over the three spans."""
        minute, hour, day = (
            self.rate(span[0], now_ms, counts, counter, times)
            for span in (samples.minute, samples.hour, samples.day)
        )
        return Spans(minute, hour, day)


class GroupReads:
    """What a group has been handed of a topic in so many `times`, and what it `sent_back`. `reached` is, by queue, the
    offset behind the last message."""

    __slots__ = ("history", "messages", "reached", "sent_back", "size", "times")

    def __init__(self, begun_ms: int) -> None:
        self.messages = 0
        self.size = 0
        self.times = 0
        self.sent_back = 0
        self.reached: dict[int, int] = {}
        self.history = History(begun_ms, 4)

    @property
    def counts(self) -> list[int]:
        """What `GROUP_COUNTERS` count."""
        return [self.messages, self.size, self.times, self.sent_back]


class Day(NamedTuple):
    """The totals of messages accepted and handed out when a day began."""

    put: int
    got: int


class Statistics:
    """All counters.

    :param now_ms: the wall clock, for the days.
    :param steady_ms: one that is never set, for the rates.
    :param cluster: the key of the broker's own counters.
    :param fired: how many messages have fired since the start.
    """

    def __init__(
        self,
        store: Store,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        cluster: str,
        fired: Callable[[], int],
    ) -> None:
        self._store = store
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._cluster = cluster
        self._fired = fired
        self.started_ms = now_ms()
        self._first_sequence = store.committed_sequence
        self._begun_ms = self._sampling_ms = steady_ms()
        self._samples = Samples(self._begun_ms)
        # What is still to be noted of the sample that is being taken; None between two samples.
        self._unsampled: Iterator[None] | None = None
        self._reads: dict[tuple[str, str], GroupReads] = {}
        self._entered: dict[bytes, History] = {}
        self.got = 0
        """Messages handed out."""
        self.found = 0
        """Pulls answered with messages."""
        self.missed = 0
        """Pulls answered without."""
        self._totals = History(self._begun_ms, len(TOTALS))
        self._date = _day_of(self.started_ms)
        self.this_morning = self.yesterday_morning = Day(0, 0)

    @property
    def put(self) -> int:
        """Messages accepted since the start, for now or for later."""
        return self._store.committed_sequence - self._first_sequence

    def handed_out(
        self, topic: str, group: str, queue: int, next_offset: int, count: int, size: int
    ) -> None:
        """A pull was answered with messages of `size` bytes together."""
        reads = self._reads.get((topic, group)) or self._begin_reads(topic, group)
        reads.messages += count
        reads.size += size
        reads.times += 1
        reads.reached[queue] = next_offset
        self.got += count
        self.found += 1

    def moved(self, topic: str, group: str, queue: int) -> None:
        """A group goes on elsewhere: what it was handed before does not count as under way."""
        reads = self._reads.get((topic, group))
        if reads is not None:
            reads.reached.pop(queue, None)

    def sent_back(self, topic: str, group: str) -> None:
        """A consumer sent a message back."""
        reads = self._reads.get((topic, group)) or self._begin_reads(topic, group)
        reads.sent_back += 1

    def reached(self, topic: str, group: str, queue: int) -> int:
        """The offset behind the last message that a group was handed of a queue; 0 when it was handed none."""
        reads = self._reads.get((topic, group))
        return reads.reached.get(queue, 0) if reads is not None else 0

    def rates(self, name: str, key: str) -> Spans | None:
        """The rates of a counter by its upstream name and key; None where nothing was ever counted.

        A topic's counters are of what entered its queues, so a message for later counts when it fires; the broker's
        are of what was accepted.
        """
        now_ms = self._steady_ms()
        if name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):
            if key != self._cluster:
                return None
            number = TOTALS.index("put" if name == "BROKER_PUT_NUMS" else "got")
            return self._totals.rates(self._samples, now_ms, self._total_counts(), number, number)
        topic, _, group = key.partition("@")
        if name in GROUP_COUNTERS:
            reads = self._reads.get((topic, group))
            counter, times = GROUP_COUNTERS[name]
            if reads is None or not reads.counts[times]:
                return None
            return reads.history.rates(self._samples, now_ms, reads.counts, counter, times)
        counts = self._topic_counts(key.encode())
        if name not in TOPIC_COUNTERS or not counts[0]:
            return None
        history = self._topic_history(key.encode())
        return history.rates(self._samples, now_ms, counts, *TOPIC_COUNTERS[name])

    def topic_put_rate(self, topic: str) -> float:
        """Messages a second that entered a topic's queues in the last minute."""
        rates = self.rates("TOPIC_PUT_NUMS", topic)
        return rates.minute.per_second if rates is not None else 0.0

    def group_get_rate(self, topic: str, group: str) -> float:
        """Messages a second that a group was handed of a topic in the last minute."""
        rates = self.rates("GROUP_GET_NUMS", f"{topic}@{group}")
        return rates.minute.per_second if rates is not None else 0.0

    def total_rates(self, total: str) -> tuple[float, float, float]:
        """How much of a total there was a second in the last ten seconds and the last minute, and since the start. The
        first two begin with a sample, up to ten seconds before.

        :param total: one of `TOTALS`.
        """
        now_ms, counts = self._steady_ms(), self._total_counts()
        number = TOTALS.index(total)
        ten_seconds, minute = (
            self._totals.rate(since, now_ms, counts, number, number).per_second
            for since in (self._samples.before_last, self._samples.minute[0])
        )
        return ten_seconds, minute, counts[number] / max(1.0, (now_ms - self._begun_ms) / 1000)

    def counters(self) -> Iterator[tuple[str, str, int]]:
        """What was counted since the start: upstream's name of the counter, its key, the count."""
        for stored_name in self._store.open_topics():
            counts = self._topic_counts(stored_name)
            if counts[0]:
                topic = stored_name.decode()
                for name, (counter, _) in TOPIC_COUNTERS.items():
                    yield name, topic, counts[counter]
        for (topic, group), reads in list(self._reads.items()):
            counts = reads.counts
            for name, (counter, times) in GROUP_COUNTERS.items():
                if counts[times]:
                    yield name, f"{topic}@{group}", counts[counter]

    def entered(self, topic: str) -> int:
        """Messages that entered a topic's queues since the start."""
        return self._topic_counts(topic.encode())[0]

    def sample(self) -> bool:
        """Take note of counters, as many as can be in one turn of the reactor, and before the first of them of a new
        day. True while there are more: then it is to be called again, in another turn."""
        if self._unsampled is None:
            self._unsampled = self._begin_sample()
        if sum(1 for _ in islice(self._unsampled, SAMPLED_AT_ONCE)) == SAMPLED_AT_ONCE:
            return True
        self._unsampled = None
        self._samples.add(Taken(self._sampling_ms, self._steady_ms()))
        return False

    def _begin_sample(self) -> Iterator[None]:
        """Note the totals. Every topic, and every topic with a group, of which something may have been counted until
        now is noted as the iterator comes to it."""
        self._sampling_ms = self._steady_ms()
        self._totals.add(self._sampling_ms, self._total_counts(), self._samples)
        today = _day_of(self._now_ms())
        if today != self._date:
            self._date = today
            self.yesterday_morning = self.this_morning
            self.this_morning = Day(self.put, self.got)
        return chain(
            map(self._sample_topic, self._store.open_topics()),
            map(self._sample_group, list(self._reads)),
        )

    def _sample_topic(self, topic: bytes) -> None:
        counts = self._topic_counts(topic)
        if counts[0]:
            self._topic_history(topic).add(self._steady_ms(), counts, self._samples)

    def _sample_group(self, place: tuple[str, str]) -> None:
        reads = self._reads.get(place)
        if reads is not None:
            rested_ms = reads.history.add(self._steady_ms(), reads.counts, self._samples)
            if rested_ms >= IDLE_MS:
                del self._reads[place]

    def forget_topic(self, topic: str) -> None:
        """Drop what is known of a topic that is deleted. Another of its name counts from 0."""
        for queue in self._store.open_queues(topic.encode()):
            queue.count_anew()
        self.forget_entered(topic)
        for place in [place for place in self._reads if place[0] == topic]:
            del self._reads[place]

    def forget_entered(self, topic: str) -> None:
        """Drop what is known of what entered a topic's queues, which the store has let go of."""
        self._entered.pop(topic.encode(), None)

    def forget_group(self, group: str) -> None:
        """Drop what is known of a group that is deleted."""
        for place in [place for place in self._reads if place[1] == group]:
            del self._reads[place]

    def _begin_reads(self, topic: str, group: str) -> GroupReads:
        reads = self._reads[topic, group] = GroupReads(self._samples.last.begun)
        return reads

    def _topic_history(self, topic: bytes) -> History:
        history = self._entered.get(topic)
        if history is None:
            # Nothing was counted yet when samples were last taken.
            history = self._entered[topic] = History(self._samples.last.begun, 2)
        return history

    def _topic_counts(self, topic: bytes) -> list[int]:
        """What `TOPIC_COUNTERS` count."""
        count = size = 0
        for queue in self._store.open_queues(topic):
            count += queue.visible - queue.opened
            size += queue.added_bytes
        return [count, size]

    def _total_counts(self) -> list[int]:
        """What `TOTALS` count."""
        pulls = self.found + self.missed
        return [self.put, self.got, self.found, self.missed, pulls, self._fired()]


def _day_of(now_ms: int) -> tuple[int, int, int]:
    """Year, month and day in the machine's own time zone, by which operators count. There the year may be 10000."""
    day = localtime(now_ms / 1000)
    return day.tm_year, day.tm_mon, day.tm_mday
