"""Counts of what goes in and out, and their rates over the last minute, hour and day.

The hot path only adds to counters that it has at hand anyway: a queue counts what is put into it, and a group's
counter adds up whole pulls. Everything else is worked out from samples that are taken every ten seconds.
(BrokerStatsManager, StatsItem, StoreStatsService, BrokerStats)
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from datetime import date, datetime
from itertools import chain, islice
from typing import Final, NamedTuple

from storage import Store

SAMPLE_SECONDS = 10.0
"""How often `sample` is to be called."""

SAMPLED_AT_ONCE = 250
"""Topics, and topics with groups, whose counters are noted in one turn, 1 to 3 ms of work."""

SAMPLES_TO_HOURLY = 60
SAMPLES_TO_DAILY = 360
"""A sample in ten minutes serves the hour, one in an hour the day."""

MINUTE_SAMPLES, HOUR_SAMPLES, DAY_SAMPLES = 7, 7, 25
"""Samples that span each of the three: one more than their steps."""

TOPIC_COUNTERS = ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")
"""Counters of a topic, with its name as key."""

GROUP_COUNTERS = ("GROUP_GET_NUMS", "GROUP_GET_SIZE", "SNDBCK_PUT_NUMS")
"""Counters of a group and a topic, with keys `topic@group`."""

IDLE_BY = "GROUP_GET_NUMS"
"""Groups come and go under random names: those whose counter of this name is idle are forgotten. Topics stay."""

TOTALS = ("put", "got", "found", "missed", "pulls", "fired")
"""What is counted of the broker as a whole: messages accepted and handed out, pulls that found some, that found none,
and both, messages fired."""

IDLE_SAMPLES = 6 * SAMPLES_TO_DAILY
"""A counter that has not moved for so many samples, six hours, is dropped."""


class Sample(NamedTuple):
    """A counter at a time: what it had added up, and in how many steps."""

    ms: int
    value: int
    times: int


_WIDTH: Final = len(Sample._fields)


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


class Window:
    """The last samples of one counter that serve a span.

    They are kept as bare numbers, the oldest first, and of several in front with the same count the last alone: of a
    counter that does not move there is one. An instance for each sample would take 10 KB for each counter.

    :param most: samples that span it, of which the first stands for its begin.
    :param step_ms: from one to the next.
    """

    __slots__ = ("_began_ms", "_most", "_numbers", "_step_ms")

    def __init__(self, most: int, step_ms: int, start: Sample) -> None:
        self._most = most
        self._step_ms = step_ms
        self._began_ms = start.ms
        self._numbers = array("q", start)

    @property
    def last(self) -> int:
        """The count of the last sample."""
        return self._numbers[-2]

    def add(self, sample: Sample) -> None:
        """Note a sample."""
        numbers = self._numbers + array("q", sample)
        begin = max(0, len(numbers) - _WIDTH * self._most)
        behind = begin + _WIDTH
        while numbers[begin + 1 : behind] == numbers[behind + 1 : behind + _WIDTH]:
            begin, behind = behind, behind + _WIDTH
        # A copy: an array from which a little is deleted keeps its memory.
        self._numbers = numbers[begin:]

    def rate(self, now: Sample, samples: int | None = None) -> Rate:
        """The rate over the whole span, or over its last so many samples."""
        numbers, samples = self._numbers, samples or self._most
        kept = len(numbers) // _WIDTH
        first = Sample(*numbers[-_WIDTH * min(samples, kept) :][:_WIDTH])
        if samples > kept:
            # The first stands for those before it, which had the same count.
            begin_ms = max(self._began_ms, numbers[-_WIDTH] - (samples - 1) * self._step_ms)
            first = first._replace(ms=min(first.ms, begin_ms))
        return _between(first, now)


class History:
    """Samples of one counter that begins at 0."""

    __slots__ = ("_day", "_hour", "_idle", "_minute")

    def __init__(self, now_ms: int) -> None:
        start = Sample(now_ms, 0, 0)
        step_ms = round(SAMPLE_SECONDS * 1000)
        self._minute = Window(MINUTE_SAMPLES, step_ms, start)
        self._hour = Window(HOUR_SAMPLES, SAMPLES_TO_HOURLY * step_ms, start)
        self._day = Window(DAY_SAMPLES, SAMPLES_TO_DAILY * step_ms, start)
        self._idle = 0

    def add(self, sample: Sample, number: int) -> bool:
        """Note a sample, the `number`-th of all; False once the counter has not moved for long."""
        self._idle = self._idle + 1 if sample.value == self._minute.last else 0
        self._minute.add(sample)
        if number % SAMPLES_TO_HOURLY == 0:
            self._hour.add(sample)
        if number % SAMPLES_TO_DAILY == 0:
            self._day.add(sample)
        return self._idle < IDLE_SAMPLES

    def rates(self, now: Sample) -> Spans:
        """The rates up to now."""
        return Spans(self._minute.rate(now), self._hour.rate(now), self._day.rate(now))

    def rate_over(self, samples: int, now: Sample) -> Rate:
        """The rate over the last so many samples, at most a minute's."""
        return self._minute.rate(now, samples)


def _between(first: Sample, now: Sample) -> Rate:
    total, times = now.value - first.value, now.times - first.times
    if total <= 0:
        return NO_RATE
    # A counter that is younger than a second has not shown yet what it does in one.
    seconds = max(1.0, (now.ms - first.ms) / 1000)
    return Rate(total, total / seconds, total / times if times else 0.0)


class GroupReads:
    """What a group has been handed of a topic. `reached` is, by queue, the offset behind the last message."""

    __slots__ = ("messages", "reached", "size", "times")

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0
        self.times = 0
        self.reached: dict[int, int] = {}


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
        self._samples = 0
        self._begun_ms = self._sampling_ms = self._sampled_ms = steady_ms()
        # What is still to be noted of the sample that is being taken; None between two samples.
        self._unsampled: Iterator[tuple[str, str | None]] | None = None
        self._reads: dict[tuple[str, str], GroupReads] = {}
        self._sent_back: dict[tuple[str, str], int] = {}
        self.got = 0
        """Messages handed out."""
        self.found = 0
        """Pulls answered with messages."""
        self.missed = 0
        """Pulls answered without."""
        self._histories: dict[tuple[str, str], History] = {}
        self._totals = {name: History(self._begun_ms) for name in TOTALS}
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
        reads = self._reads.get((topic, group))
        if reads is None:
            reads = self._reads[topic, group] = GroupReads()
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
        place = (topic, group)
        self._sent_back[place] = self._sent_back.get(place, 0) + 1

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
            total = "put" if name == "BROKER_PUT_NUMS" else "got"
            known = key == self._cluster
            return self._totals[total].rates(self._total(total, now_ms)) if known else None
        topic, _, group = key.partition("@")
        for counted, counter_key, sample in self._counters_of(topic, group or None, now_ms):
            if counted == name and counter_key == key:
                return self._history(name, key).rates(sample)
        return None

    def topic_put_rate(self, topic: str) -> float:
        """Messages a second that entered a topic's queues in the last minute."""
        rates = self.rates("TOPIC_PUT_NUMS", topic)
        return rates.minute.per_second if rates is not None else 0.0

    def group_get_rate(self, topic: str, group: str) -> float:
        """Messages a second that a group was handed of a topic in the last minute."""
        reads = self._reads.get((topic, group))
        if reads is None:
            return 0.0
        now = Sample(self._steady_ms(), reads.messages, reads.times)
        return self._history("GROUP_GET_NUMS", f"{topic}@{group}").rates(now).minute.per_second

    def total_rates(self, total: str) -> tuple[float, float, float]:
        """How much of a total there was a second in the last ten seconds and the last minute, and since the start.

        :param total: one of `TOTALS`.
        """
        history = self._totals[total]
        now = self._total(total, self._steady_ms())
        life = max(1.0, (now.ms - self._begun_ms) / 1000)
        return (
            history.rate_over(1, now).per_second,
            history.rate_over(MINUTE_SAMPLES, now).per_second,
            now.value / life,
        )

    def counters(self) -> Iterator[tuple[str, str, int]]:
        """What was counted since the start: upstream's name of the counter, its key, the count."""
        now_ms = self._steady_ms()
        for topic, group in self._places():
            for name, key, sample in self._counters_of(topic, group, now_ms):
                yield name, key, sample.value

    def entered(self, topic: str) -> int:
        """Messages that entered a topic's queues since the start."""
        queues = self._store.open_queues(topic.encode())
        return sum(queue.visible - queue.opened for queue in queues)

    def sample(self) -> bool:
        """Take note of counters, as many as can be in one turn of the reactor, and before the first of them of a new
        day. True while there are more: then it is to be called again, in another turn."""
        now_ms = self._steady_ms()
        if self._unsampled is None:
            self._unsampled = self._begin_sample(now_ms)
        looked_at = 0
        for topic, group in islice(self._unsampled, SAMPLED_AT_ONCE):
            looked_at += 1
            idle = [
                name
                for name, key, sample in self._counters_of(topic, group, now_ms)
                if not self._history(name, key).add(sample, self._samples)
            ]
            if IDLE_BY in idle and group is not None:
                self._forget(topic, group)
        if looked_at == SAMPLED_AT_ONCE:
            return True
        self._unsampled = None
        self._sampled_ms = self._sampling_ms
        return False

    def _begin_sample(self, now_ms: int) -> Iterator[tuple[str, str | None]]:
        """Note the totals; what is to be noted beside them."""
        self._samples += 1
        self._sampling_ms = now_ms
        for total, history in self._totals.items():
            history.add(self._total(total, now_ms), self._samples)
        today = _day_of(self._now_ms())
        if today != self._date:
            self._date = today
            self.yesterday_morning = self.this_morning
            self.this_morning = Day(self.put, self.got)
        return self._places()

    def forget_topic(self, topic: str) -> None:
        """Drop what is known of a topic that is deleted. Another of its name counts from 0."""
        for queue in self._store.open_queues(topic.encode()):
            queue.count_anew()
        for name in TOPIC_COUNTERS:
            self._histories.pop((name, topic), None)
        for place in [place for place in (*self._reads, *self._sent_back) if place[0] == topic]:
            self._forget(*place)

    def forget_group(self, group: str) -> None:
        """Drop what is known of a group that is deleted."""
        for place in [place for place in (*self._reads, *self._sent_back) if place[1] == group]:
            self._forget(*place)

    def _forget(self, topic: str, group: str) -> None:
        self._reads.pop((topic, group), None)
        self._sent_back.pop((topic, group), None)
        for name in GROUP_COUNTERS:
            self._histories.pop((name, f"{topic}@{group}"), None)

    def _history(self, name: str, key: str) -> History:
        history = self._histories.get((name, key))
        if history is None:
            # Nothing was counted yet when samples were last taken.
            history = self._histories[name, key] = History(self._sampled_ms)
        return history

    def _total(self, total: str, now_ms: int) -> Sample:
        value = {
            "put": self.put,
            "got": self.got,
            "found": self.found,
            "missed": self.missed,
            "pulls": self.found + self.missed,
            "fired": self._fired(),
        }[total]
        return Sample(now_ms, value, value)

    def _places(self) -> Iterator[tuple[str, str | None]]:
        """Every topic, and every topic with a group, of which something may have been counted until now; there can be
        a hundred thousand, so their names are made as they are asked for."""
        topics = self._store.open_topics()
        sent_back_alone = [place for place in self._sent_back if place not in self._reads]
        return chain(
            ((topic.decode(), None) for topic in topics), list(self._reads), sent_back_alone
        )

    def _counters_of(
        self, topic: str, group: str | None, now_ms: int
    ) -> Iterator[tuple[str, str, Sample]]:
        """The counters of a topic, or of a group and a topic, as they are now: name, key and sample of each."""
        if group is None:
            count = self.entered(topic)
            if count:
                size = sum(one.added_bytes for one in self._store.open_queues(topic.encode()))
                yield "TOPIC_PUT_NUMS", topic, Sample(now_ms, count, count)
                yield "TOPIC_PUT_SIZE", topic, Sample(now_ms, size, count)
            return
        key = f"{topic}@{group}"
        reads = self._reads.get((topic, group))
        if reads is not None:
            yield "GROUP_GET_NUMS", key, Sample(now_ms, reads.messages, reads.times)
            yield "GROUP_GET_SIZE", key, Sample(now_ms, reads.size, reads.times)
        count = self._sent_back.get((topic, group), 0)
        if count:
            yield "SNDBCK_PUT_NUMS", key, Sample(now_ms, count, count)


def _day_of(now_ms: int) -> date:
    """The day in the machine's own time zone, by which operators count."""
    return datetime.fromtimestamp(now_ms / 1000).astimezone().date()
