"""The layout on disk: keys sort by their meaning, and none is too long for LMDB."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from storage import Store, abort
from storage.keys import (
    MAX_TERM,
    MAX_TOPIC,
    held_key,
    key_prefix,
    offset_key,
    pack_u64,
    queue_prefix,
    split_offset_key,
    split_queue_key,
    split_timer_key,
    term,
    timer_key,
)
from tests.storage.sample import Sample, fire, hold, ids_in, send, states

LMDB_LONGEST_KEY = 511

NAMES = st.binary(min_size=1, max_size=MAX_TOPIC).filter(lambda name: 0 not in name)
"""Topics and groups: no zero byte, because it ends them."""
U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
IDS = st.binary(max_size=2 * MAX_TERM)

Timer = tuple[int, bytes, int, bytes]
TIMERS = st.tuples(U64, NAMES, U64, IDS.map(term))


@given(TIMERS)
def test_timer_key_gives_its_parts_back(timer: Timer) -> None:
    assert split_timer_key(timer_key(*timer)) == timer


@given(TIMERS, TIMERS)
def test_timers_stand_in_the_order_of_time_then_topic_then_acceptance(a: Timer, b: Timer) -> None:
    assert (timer_key(*a) < timer_key(*b)) == (a < b)


@given(st.lists(st.tuples(U64, st.sampled_from([b"a", b"aa", b"b"]), U64, IDS.map(term))))
def test_timers_of_few_topics_sort_by_meaning(timers: list[Timer]) -> None:
    # Close neighbours: some topics are prefixes of others, as with real names.
    assert sorted(timers) == [
        split_timer_key(key) for key in sorted(timer_key(*timer) for timer in timers)
    ]


@given(U64, NAMES, U64, IDS, U64)
def test_a_time_alone_bounds_the_timers_before_it(
    due_ms: int, topic: bytes, sequence: int, message_id: bytes, bound_ms: int
) -> None:
    key = timer_key(due_ms, topic, sequence, term(message_id))
    assert (key < pack_u64(bound_ms)) == (due_ms < bound_ms)


Place = tuple[bytes, int, int]
PLACES = st.tuples(NAMES, U32, U64)


@given(PLACES, PLACES)
def test_queue_rows_stand_in_the_order_of_topic_queue_offset(a: Place, b: Place) -> None:
    keys = [queue_prefix(topic, queue) + pack_u64(offset) for topic, queue, offset in (a, b)]
    assert [split_queue_key(key) for key in keys] == [a, b]
    assert (keys[0] < keys[1]) == (a < b)


@given(PLACES)
def test_no_row_of_a_queue_stands_behind_the_bound_used_to_leap_to_the_next(place: Place) -> None:
    topic, queue, offset = place
    bound = queue_prefix(topic, queue) + b"\xff" * 9
    assert queue_prefix(topic, queue) + pack_u64(offset) < bound
    if queue < (1 << 32) - 1:
        assert bound < queue_prefix(topic, queue + 1) + pack_u64(0)


@given(NAMES, U64, NAMES, U64)
def test_held_spans_stand_in_the_order_of_topic_then_time(
    a: bytes, a_span: int, b: bytes, b_span: int
) -> None:
    assert (held_key(a, a_span) < held_key(b, b_span)) == ((a, a_span) < (b, b_span))


@given(NAMES, NAMES, U32)
def test_offset_key_gives_its_parts_back(group: bytes, topic: bytes, queue: int) -> None:
    assert split_offset_key(offset_key(group, topic, queue)) == (group, topic, queue)


@given(IDS)
def test_a_term_is_never_too_long_and_short_ones_stay_as_they_are(text: bytes) -> None:
    assert len(term(text)) <= MAX_TERM
    assert term(term(text)) == term(text)
    if len(text) <= MAX_TERM:
        assert term(text) == text


def test_long_terms_that_only_differ_in_their_end_stay_apart() -> None:
    start = b"x" * 1_000
    assert term(start + b"1") != term(start + b"2")
    assert term(start).startswith(b"x" * 100)


def test_the_longest_topic_id_and_key_make_keys_that_lmdb_takes() -> None:
    topic = b"t" * MAX_TOPIC
    longest = term(b"k" * 30_000)
    keys = [
        timer_key((1 << 64) - 1, topic, (1 << 64) - 1, longest),
        key_prefix(topic, longest) + pack_u64(1),
        longest + b"\0" + pack_u64(1),
        queue_prefix(topic, 1) + b"\xff" * 9,
        held_key(topic, 1),
    ]
    assert max(map(len, keys)) <= LMDB_LONGEST_KEY


def test_a_message_with_the_longest_names_lives_through_everything(store: Store) -> None:
    message = Sample(b"i" * 5_000, b"t" * MAX_TOPIC, (1 << 31) - 1, (b"k" * 5_000, b"k" * 5_001))
    send(store, message)
    hold(store, message, 1_000)
    hold(store, message, 2_000)
    store.commit()
    assert states(store, message.message_id) == ["pending", "pending", "untimed"]
    assert fire(store, 1_000) == 1
    abort(store, message.message_id, 1_500)
    store.commit()
    assert states(store, message.message_id) == ["aborted", "fired", "untimed"]
    assert ids_in(store, message.topic, message.queue) == [message.message_id] * 2
