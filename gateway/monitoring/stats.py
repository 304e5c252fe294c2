"""Counts of what goes in and out, and their rates over the last minute, hour and day.

The hot path only adds to counters that it has at hand anyway: a queue counts what is put into it, and a group's
counter adds up whole pulls. Everything else is computed from samples that are taken every ten seconds.
(BrokerStatsManager, StatsItem, StoreStatsService, BrokerStats)
"""

from __future__ import annotations

from array import array
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from itertools import chain, islice
from time import localtime
from typing import Final, NamedTuple

from storage import Store

SAMPLE_SECONDS = 10.0
"""Seconds between two samples."""

SAMPLED_AT_ONCE = 250
"""Topics, and pairs of topic and group, whose counters are noted in one turn: 0.3 ms of work, or 4 ms where each of
their histories drops rows."""

SAMPLES_TO_HOURLY = 60
SAMPLES_TO_DAILY = 360
"""Every 60th sample (ten minutes) serves the hour, every 360th (an hour) the day."""

MINUTE_SAMPLES, HOUR_SAMPLES, DAY_SAMPLES = 7, 7, 25
"""Samples that span the minute, hour and day: one more than their steps."""

MOST_ROWS = 48
"""Rows that a history has before it drops those that serve no span; at most 41 serve one."""

TOPIC_COUNTERS: Final = {"TOPIC_PUT_NUMS": (0, 0), "TOPIC_PUT_SIZE": (1, 0)}
"""Counters of a topic, whose name is the key: the counter's index in `_topic_counts`, and the index of the count of its
steps."""

GROUP_COUNTERS: Final = {
    "GROUP_GET_NUMS": (0, 2),
    "GROUP_GET_SIZE": (1, 2),
    "SNDBCK_PUT_NUMS": (3, 3),
}
"""Counters of a group and a topic, with keys `topic@group`: likewise, with indexes in `GroupReads.counts`."""

TOTALS = ("put", "got", "found", "missed", "pulls", "fired")
"""Totals of the whole broker: messages accepted, messages handed out, pulls that found messages, pulls that found none,
all pulls, and messages fired."""

IDLE_MS = 6 * 3_600_000
"""Ms after which a group is forgotten for a topic if nothing was counted there: groups come and go under random names.
Topics stay."""


class Rate(NamedTuple):
    """What a counter added in a span: in total, per second, and per step."""

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
    """When a sample began, and when its last counter was noted, in ms."""

    begun: int
    ended: int


class Samples:
    """Times of the samples with which the last minute, hour and day begin, now or later on."""

    def __init__(self, now_ms: int) -> None:
        start = Taken(now_ms, now_ms)
        self._number = 0
        self.next_serves_day = False
        """Whether the sample that is being taken, or else the next one, serves the day."""
        self.minute = deque([start], MINUTE_SAMPLES)
        self.hour = deque([start], HOUR_SAMPLES)
        self.day = deque([start], DAY_SAMPLES)

    def add(self, taken: Taken) -> None:
        """Note that a sample was taken."""
        self._number += 1
        self.minute.append(taken)
        if self._number % SAMPLES_TO_HOURLY == 0:
            self.hour.append(taken)
        if self._number % SAMPLES_TO_DAILY == 0:
            self.day.append(taken)
        self.next_serves_day = (self._number + 1) % SAMPLES_TO_DAILY == 0

    @property
    def last(self) -> Taken:
        """The last sample."""
        return self.minute[-1]

    @property
    def before_last(self) -> Taken:
        """The sample before the last one, with which the last complete ten seconds begin; the only one at first."""
        return self.minute[max(0, len(self.minute) - 2)]

    def all(self) -> set[Taken]:
        """Return each sample once."""
        return {*self.minute, *self.hour, *self.day}


class History:
    """What some counters of one thing had added up to at each sample. They begin at 0.

    It is kept as bare numbers, because there can be a hundred thousand histories. Each sample that finds a counter
    changed adds a row: the time, then the counts. So counters that rest have one row.
    """

    __slots__ = ("_numbers",)

    def __init__(self, begun_ms: int, counters: int) -> None:
        self._numbers = array("q", [begun_ms, *[0] * counters])

    def add(self, now_ms: int, counts: list[int], samples: Samples) -> int:
        """Note the counts at a sample.

        :returns: for how long no counter has changed, in ms.
        """
        numbers, width = self._numbers, 1 + len(counts)
        if numbers[1 - width :].tolist() != counts:
            # A copy: an array that grows reserves room for more, which most never need.
            numbers = self._numbers = numbers + array("q", [now_ms, *counts])
        rested_ms = now_ms - numbers[-width]
        # A history that rests is trimmed now and then as well: it needs fewer rows with each hour.
        if len(numbers) > (2 if samples.next_serves_day else MOST_ROWS) * width:
            self._trim(width, samples)
        return rested_ms

    def _trim(self, width: int, samples: Samples) -> None:
        """Drop the rows with which no span begins, now or later on."""
        numbers = self._numbers
        times = numbers[::width]
        kept = {max(0, bisect(times, taken.ended) - 1) for taken in samples.all()}
        kept.add(len(times) - 1)
        rows = (numbers[row * width : (row + 1) * width] for row in sorted(kept))
        self._numbers = array("q", chain.from_iterable(rows))

    def rate(self, since: Taken, now_ms: int, counts: list[int], counter: int, times: int) -> Rate:
        """Return a counter's rate since a sample, or over its life where that is shorter.

        :param counts: what the counters add up to now.
        :param counter: the counter's index among them.
        :param times: the index of the count of its steps.
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
        """Return the counter's rates over the three spans; the parameters are those of `rate`."""
        minute, hour, day = (
            self.rate(span[0], now_ms, counts, counter, times)
            for span in (samples.minute, samples.hour, samples.day)
        )
        return Spans(minute, hour, day)


class GroupReads:
    """What a group was handed of a topic: `messages` and their `size`, in so many `times`, and how many it `sent_back`.
    `reached` is, by queue, the offset behind the last message."""

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
        """The counts that `GROUP_COUNTERS` refers to."""
        return [self.messages, self.size, self.times, self.sent_back]


class Day(NamedTuple):
    """The totals of messages accepted and handed out when a day began."""

    put: int
    got: int


class Statistics:
    """All counters.

    :param now_ms: the wall clock, for the days.
    :param steady_ms: a clock that is never set, for the rates.
    :param cluster: the cluster's name, which is the key of the broker's own counters.
    :param fired: returns how many messages have fired since the start.
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
        # Iterates over what is still to be noted for the sample that is being taken; None between two samples.
        self._unsampled: Iterator[None] | None = None
        self._reads: dict[tuple[str, str], GroupReads] = {}
        self._entered: dict[bytes, History] = {}
        self.got = 0
        """Messages handed out."""
        self.found = 0
        """Pulls answered with messages."""
        self.missed = 0
        """Pulls answered without messages."""
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
        """Count a pull that was answered with messages of `size` bytes together."""
        reads = self._reads.get((topic, group)) or self._begin_reads(topic, group)
        reads.messages += count
        reads.size += size
        reads.times += 1
        reads.reached[queue] = next_offset
        self.got += count
        self.found += 1

    def moved(self, topic: str, group: str, queue: int) -> None:
        """Note that a group goes on at another offset: what it was handed before no longer counts as under way."""
        reads = self._reads.get((topic, group))
        if reads is not None:
            reads.reached.pop(queue, None)

    def sent_back(self, topic: str, group: str) -> None:
        """Count a message that a consumer sent back."""
        reads = self._reads.get((topic, group)) or self._begin_reads(topic, group)
        reads.sent_back += 1

    def reached(self, topic: str, group: str, queue: int) -> int:
        """Return the offset behind the last message that a group was handed of a queue; 0 when it was handed none."""
        reads = self._reads.get((topic, group))
        return reads.reached.get(queue, 0) if reads is not None else 0

    def rates(self, name: str, key: str) -> Spans | None:
        """Return the rates of a counter by its upstream name and key; None where nothing was ever counted.

        A topic's counters count what entered its queues, so a message for later counts when it fires. The broker's
        counters count what was accepted and handed out.
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
        """Return how many messages a second entered a topic's queues in the last minute."""
        rates = self.rates("TOPIC_PUT_NUMS", topic)
        return rates.minute.per_second if rates is not None else 0.0

    def group_get_rate(self, topic: str, group: str) -> float:
        """Return how many messages a second a group was handed of a topic in the last minute."""
        rates = self.rates("GROUP_GET_NUMS", f"{topic}@{group}")
        return rates.minute.per_second if rates is not None else 0.0

    def total_rates(self, total: str) -> tuple[float, float, float]:
        """Return the rates of a total, per second, over the last ten seconds, over the last minute and since the start.
        The first two begin with a sample, so they reach up to ten seconds further back.

        :param total: one of `TOTALS`.
        """
        now_ms, counts = self._steady_ms(), self._total_counts()
        number = TOTALS.index(total)
        ten_seconds, minute = (
            self._totals.rate(since, now_ms, counts, number, number).per_second
            for since in (self._samples.before_last, self._samples.minute[0])
        )
        return ten_seconds, minute, counts[number] / max(1.0, (now_ms - self._begun_ms) / 1000)

    def counters(self) -> Iterator[tuple[str, str, int] | None]:
        """Yield the counters since the start: upstream's name of the counter, its key, the count. Yield None after some
        topics, and after some pairs of topic and group, also those without traffic: others may have a turn there."""
        for number, stored_name in enumerate(self._store.open_topics(), 1):
            if number % SAMPLED_AT_ONCE == 0:
                yield None
            counts = self._topic_counts(stored_name)
            if counts[0]:
                topic = stored_name.decode()
                for name, (counter, _) in TOPIC_COUNTERS.items():
                    yield name, topic, counts[counter]
        for number, ((topic, group), reads) in enumerate(list(self._reads.items()), 1):
            if number % SAMPLED_AT_ONCE == 0:
                yield None
            counts = reads.counts
            for name, (counter, times) in GROUP_COUNTERS.items():
                if counts[times]:
                    yield name, f"{topic}@{group}", counts[counter]

    def entered(self, topic: str) -> int:
        """Return how many messages entered a topic's queues since the start."""
        return self._topic_counts(topic.encode())[0]

    def sample(self) -> bool:
        """Note counters, as many as fit in one turn of the reactor. The first sample of a new day also notes the totals
        with which the day begins. Return True while there are more counters: then call it again in another turn."""
        if self._unsampled is None:
            self._unsampled = self._begin_sample()
        if sum(1 for _ in islice(self._unsampled, SAMPLED_AT_ONCE)) == SAMPLED_AT_ONCE:
            return True
        self._unsampled = None
        self._samples.add(Taken(self._sampling_ms, self._steady_ms()))
        return False

    def _begin_sample(self) -> Iterator[None]:
        """Note the totals, and return an iterator that notes the rest. Each of its steps notes a topic, or a topic with
        a group, of which something may have been counted until then."""
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

    def forget_topics(self, topics: AbstractSet[str]) -> None:
        """Drop the counts of deleted topics. New topics of the same names count from 0."""
        for topic in topics:
            for queue in self._store.open_queues(topic.encode()):
                queue.count_anew()
            self.forget_entered(topic)
        for place in [place for place in self._reads if place[0] in topics]:
            del self._reads[place]

    def forget_entered(self, topic: str) -> None:
        """Drop the history of a topic's queues that the store has closed."""
        self._entered.pop(topic.encode(), None)

    def forget_group(self, group: str) -> None:
        """Drop the counts of a deleted group."""
        for place in [place for place in self._reads if place[1] == group]:
            del self._reads[place]

    def _begin_reads(self, topic: str, group: str) -> GroupReads:
        reads = self._reads[topic, group] = GroupReads(self._samples.last.begun)
        return reads

    def _topic_history(self, topic: bytes) -> History:
        history = self._entered.get(topic)
        if history is None:
            # Nothing was counted yet when the last sample was taken.
            history = self._entered[topic] = History(self._samples.last.begun, 2)
        return history

    def _topic_counts(self, topic: bytes) -> list[int]:
        """Return the counts that `TOPIC_COUNTERS` refers to."""
        count = size = 0
        for queue in self._store.open_queues(topic):
            count += queue.visible - queue.opened
            size += queue.added_bytes
        return [count, size]

    def _total_counts(self) -> list[int]:
        """Return the counts of `TOTALS`."""
        pulls = self.found + self.missed
        return [self.put, self.got, self.found, self.missed, pulls, self._fired()]


def _day_of(now_ms: int) -> tuple[int, int, int]:
    """Return year, month and day in the machine's own time zone, by which operators count. The year may be 10000."""
    day = localtime(now_ms / 1000)
    return day.tm_year, day.tm_mon, day.tm_mday
