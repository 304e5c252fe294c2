"""Pages of pending messages, in the order of due times."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import INBOX_SIZE, Found, State, Store, abort, pending, reschedule
from storage.keys import id_key, pack_u64
from tests.storage.folder import Folder, scratch_data
from tests.storage.sample import (
    TOPIC,
    Sample,
    fire,
    hold,
    hold_all,
    id_of,
    numbered,
    pending_ids,
    pending_page,
)


def pages_of(store: Store, **asked: Any) -> tuple[list[bytes], list[bytes]]:
    """Return the ids of the pending messages of all pages, and the cursors of the pages."""
    found: list[bytes] = []
    cursors: list[bytes] = []
    page = pending_page(store, **asked)
    while True:
        found += [id_of(one.record) for one in page.found]
        if page.cursor is None:
            return found, cursors
        cursors.append(page.cursor)
        page = pending_page(store, cursor=page.cursor, **asked)


class TestScan:
    def test_order_is_time_then_topic_then_acceptance(self, store: Store) -> None:
        for due_ms, topic in [(9, b"a"), (5, b"b"), (5, b"a"), (5, b"b"), (5, b"aa")]:
            hold(store, Sample(b"%d%b" % (due_ms, topic), topic), due_ms)
        store.commit()
        assert pending_ids(store) == [b"5a", b"5aa", b"5b", b"5b", b"9a"]
        assert pending_ids(store, topic=b"b") == [b"5b", b"5b"]
        assert pending_ids(store, topic=b"nobody's") == []

    def test_what_a_page_tells_of_a_message(self, store: Store) -> None:
        message = Sample(b"a")
        sequence = hold(store, message, 1_500, 7)
        store.commit()
        expected = [Found(sequence, message.record(7), State.PENDING, 1_500, 0, -1)]
        assert pending_page(store).found == expected
        assert pending_page(store, topic=TOPIC).found == expected

    @pytest.mark.parametrize("inbox_size", [0, INBOX_SIZE])
    @pytest.mark.parametrize("topic", [None, TOPIC])
    @pytest.mark.parametrize(
        ("begin_ms", "end_ms", "expected"),
        [
            (0, 1, []),
            (0, 999, []),
            (0, 1_000, [999]),
            (999, 1_001, [999, 1_000]),
            (1_000, 2_000, [1_000, 1_999]),
            (1_001, 3_000, [1_999, 2_000, 2_001]),
            (2_001, 1 << 62, [2_001]),
            (2_002, 1 << 62, []),
            (2_000, 1_000, []),
        ],
    )
    def test_bounds(
        self,
        folder: Folder,
        inbox_size: int,
        topic: bytes | None,
        begin_ms: int,
        end_ms: int,
        expected: list[int],
    ) -> None:
        store = folder.open(inbox_size=inbox_size)
        for due_ms in (999, 1_000, 1_999, 2_000, 2_001):
            hold(store, Sample(b"x"), due_ms)
        store.commit()
        page = pending_page(store, topic=topic, begin_ms=begin_ms, end_ms=end_ms)
        assert [found.due_ms for found in page.found] == expected

    @pytest.mark.parametrize("topic", [None, TOPIC])
    def test_tag(self, store: Store, topic: bytes | None) -> None:
        for tag_hash in (1, -2, 1, 3):
            hold(store, Sample(b"%d" % tag_hash, tag_hash=tag_hash), 5)
        store.commit()
        for tag_hash, expected in ((1, [b"1", b"1"]), (-2, [b"-2"]), (9, [])):
            page = pending_page(store, topic=topic, tag_hash=tag_hash)
            assert [id_of(found.record) for found in page.found] == expected

    @pytest.mark.parametrize("topic", [None, TOPIC])
    @pytest.mark.parametrize("limit", [1, 3, 10, 11])
    def test_pages_follow_each_other_without_gap_or_repetition(
        self, store: Store, topic: bytes | None, limit: int
    ) -> None:
        ids = numbered(10)
        for number, message_id in enumerate(ids):
            hold(store, Sample(message_id), 998 + number // 3)
        store.commit()
        seen: list[bytes] = []
        cursor = None
        while True:
            page = pending_page(store, topic=topic, cursor=cursor, limit=limit)
            assert len(page.found) <= limit
            seen += [id_of(found.record) for found in page.found]
            cursor = page.cursor
            if cursor is None:
                break
        assert seen == ids

    @pytest.mark.parametrize("topic", [None, TOPIC])
    def test_a_cursor_is_steady_while_messages_fire_and_arrive(
        self, store: Store, topic: bytes | None
    ) -> None:
        ids = numbered(10)
        for number, message_id in enumerate(ids):
            hold(store, Sample(message_id), 1_000 + number)
        store.commit()
        first = pending_page(store, topic=topic, limit=4)
        # Listed messages fire, also the one at the cursor. One message is added before it and one after it.
        fire(store, 1_003)
        abort(store, b"m00005", 1_003)
        hold(store, Sample(b"before"), 1_002)
        hold(store, Sample(b"after"), 1_006)
        store.commit()
        rest = pending_page(store, topic=topic, cursor=first.cursor)
        assert [id_of(found.record) for found in first.found] == ids[:4]
        assert [id_of(found.record) for found in rest.found] == [
            b"m00004",
            b"m00006",
            b"after",
            *ids[7:],
        ]
        assert rest.cursor is None

    @pytest.mark.parametrize("topic", [None, TOPIC])
    def test_a_cursor_from_elsewhere_does_not_widen_the_scan(
        self, store: Store, topic: bytes | None
    ) -> None:
        hold_all(store, [b"early"], 10)
        hold_all(store, [b"late"], 2_000)
        for cursor in (b"", b"\0", b"\0" * 30):
            page = pending_page(store, topic=topic, begin_ms=1_000, cursor=cursor)
            assert [id_of(found.record) for found in page.found] == [b"late"]
        assert pending_page(store, topic=topic, cursor=b"\xff" * 30).found == []

    @pytest.mark.parametrize("topic", [None, TOPIC])
    def test_a_page_looks_at_a_bounded_number_of_timers(
        self, store: Store, topic: bytes | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pending, "MAX_TIMERS_SCANNED", 10)
        hold_all(store, numbered(25), 5)
        hold(store, Sample(b"wanted", tag_hash=1), 5)
        store.commit()
        found: list[bytes] = []
        pages, cursor = 0, None
        while pages == 0 or cursor is not None:
            page = pending_page(store, topic=topic, tag_hash=1, cursor=cursor)
            found += [id_of(one.record) for one in page.found]
            pages, cursor = pages + 1, page.cursor
        assert found == [b"wanted"]
        assert pages == 3

    def test_a_search_among_other_topics_ends_early_and_goes_on(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pending, "LEAPS", 3)
        monkeypatch.setattr(pending, "LEAPS_WEIGH", 7)
        monkeypatch.setattr(pending, "MAX_TIMERS_SCANNED", 10)
        store = folder.open(inbox_size=0)
        for due_ms in range(1_000, 1_100):
            for other in (b"a", b"z"):
                hold(store, Sample(b"x", other), due_ms)
        for due_ms in (1_000, 1_044, 1_044, 1_099, 1_200):
            hold(store, Sample(b"%d" % due_ms), due_ms)
        store.commit()
        store = folder.open()
        hold(store, Sample(b"in memory"), 1_050)
        store.commit()
        found: list[bytes] = []
        pages, cursor = 0, None
        while pages == 0 or cursor is not None:
            page = pending_page(store, topic=TOPIC, cursor=cursor)
            found += [id_of(one.record) for one in page.found]
            pages, cursor = pages + 1, page.cursor
        assert found == [b"1000", b"1044", b"1044", b"in memory", b"1099", b"1200"]
        assert pages > 5

    def test_a_cursor_among_other_topics_names_none_of_them(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pending, "LEAPS", 3)
        monkeypatch.setattr(pending, "MAX_TIMERS_SCANNED", 1)
        store = folder.open(inbox_size=0)
        for due_ms in range(1_000, 1_030):
            for other in (b"bills", b"orders-2", b"wares"):
                hold(store, Sample(b"secret", other), due_ms)
        for due_ms in (1_000, 1_014, 1_029):
            hold(store, Sample(b"%d" % due_ms), due_ms)
        store.commit()
        store = folder.open()
        found, cursors = pages_of(store, topic=TOPIC)
        assert found == [b"1000", b"1014", b"1029"]
        assert len(cursors) > 5
        for cursor in cursors:
            assert cursor[8:].partition(b"\0")[0].rstrip(b"\xff") == TOPIC
            assert b"secret" not in cursor

    @pytest.mark.parametrize("inbox_size", [0, INBOX_SIZE], ids=["in table", "in memory"])
    @pytest.mark.parametrize("weigh", [1, 3, 7])
    def test_only_readable_topics(
        self, folder: Folder, weigh: int, inbox_size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = folder.open(inbox_size=inbox_size)
        monkeypatch.setattr(pending, "LEAPS", weigh)
        monkeypatch.setattr(pending, "LEAPS_WEIGH", weigh)
        monkeypatch.setattr(pending, "MAX_TIMERS_SCANNED", 10)
        for due_ms in (1_000, 1_001, 1_002, 1_030, 1_031):
            for other in (b"a", b"p", b"z"):
                hold_all(store, [b"secret"] * 9, due_ms, other)
            for own in (b"o1", b"o2"):
                hold(store, Sample(b"%s-%d" % (own, due_ms), own), due_ms)
        store.commit()
        found, cursors = pages_of(store, readable=lambda topic: topic.startswith(b"o"))
        assert found == [
            b"%s-%d" % (own, due_ms)
            for due_ms in (1_000, 1_001, 1_002, 1_030, 1_031)
            for own in (b"o1", b"o2")
        ]
        for cursor in cursors:
            assert cursor[8:9] in (b"o", b"\xff")
        found, cursors = pages_of(store, readable=lambda topic: False)
        assert found == []
        assert {cursor[8:] for cursor in cursors} <= {b"\xff"}

    def test_very_many_of_other_topics_at_one_time_are_leapt_over(self, folder: Folder) -> None:
        store = folder.open(inbox_size=0)
        for other in (b"a", b"b", b"secrets", b"t"):
            hold_all(store, numbered(50), 1_000, other)
        hold(store, Sample(b"wanted", b"wares"), 1_000)
        store.commit()
        store = folder.open()
        examined: list[bytes] = []

        def readable(topic: bytes) -> bool:
            examined.append(topic)
            return topic == b"wares"

        found, cursors = pages_of(store, readable=readable)
        assert (found, cursors) == ([b"wanted"], [])
        assert len(examined) == 5

    @pytest.mark.parametrize("table", ["messages", "ids"])
    def test_one_of_which_a_row_cannot_be_read_is_left_out(
        self, folder: Folder, table: str
    ) -> None:
        store = folder.open(inbox_size=0)
        number = pack_u64(hold(store, Sample(b"a"), 5))
        hold(store, Sample(b"b"), 1_000)
        reschedule(store, b"a", lambda _: 1_000, 5)
        store.commit()
        key = number if table == "messages" else id_key(b"a", number)
        whole = store.reader().get(key, db=getattr(store.tables, table))
        store = folder.damage(table, key, b"short")
        assert pending_ids(store) == [b"b"]
        folder.damage(table, key, whole)

    def test_a_topic_is_found_among_many_others(self, store: Store) -> None:
        # Others are due in the seconds before, between and after the topic's, and in its own seconds before and after.
        others = [b"a", b"orde", b"order", b"orders2", b"z"]
        for due_ms in (500, 1_000, 1_001, 1_002, 1_500, 7_000):
            for other in others:
                hold(store, Sample(b"x", other), due_ms)
        for due_ms in (1_001, 1_001, 1_500, 5_000):
            hold(store, Sample(b"%d" % due_ms), due_ms)
        store.commit()
        assert pending_ids(store, topic=TOPIC) == [b"1001", b"1001", b"1500", b"5000"]
        assert store.held_totals()[TOPIC] == 4


Timers = list[tuple[int, bytes]]


@given(
    timers=st.lists(
        st.tuples(
            st.sampled_from([998, 999, 1_000, 1_001, 2_500, 90_000]),
            st.sampled_from([b"a", b"aa", b"b"]),
        ),
        max_size=25,
    ),
    begin_ms=st.sampled_from([0, 999, 1_000, 2_000]),
    end_ms=st.sampled_from([999, 1_000, 1_002, 2_500, 100_000]),
    topic=st.sampled_from([None, b"a", b"aa", b"b", b"c"]),
    limit=st.integers(1, 5),
)
def test_a_scan_is_what_sorting_and_filtering_gives(
    timers: Timers,
    begin_ms: int,
    end_ms: int,
    topic: bytes | None,
    limit: int,
) -> None:
    with scratch_data() as folder:
        store = folder.open()
        held = [(due_ms, name, hold(store, Sample(b"x", name), due_ms)) for due_ms, name in timers]
        store.commit()
        expected = [
            sequence
            for due_ms, name, sequence in sorted(held)
            if begin_ms <= due_ms < end_ms and topic in (None, name)
        ]
        seen: list[int] = []
        cursor, first = None, True
        while first or cursor is not None:
            first = False
            page = pending_page(
                store, topic=topic, begin_ms=begin_ms, end_ms=end_ms, cursor=cursor, limit=limit
            )
            seen += [found.sequence for found in page.found]
            cursor = page.cursor
        assert seen == expected
