"""Repairing a damaged queue: messages are at their offsets again, and no offset is given to a second message."""

from __future__ import annotations

import pytest

from storage.keys import NO_MESSAGE
from storage.queue_repairs import MAX_HOLES, Lost, Mended, Row, mend_queue


def lost(sequence: int, since_ms: int = 0, *, may_wait: bool = False) -> Lost:
    return Lost(sequence, since_ms, tag_hash=0, size=10, may_wait=may_wait)


def right(offset: int, sequence: int, stored_ms: int) -> Row:
    """A row that names its message."""
    return Row(offset, sequence, 0, 10, stored_ms, lost(sequence))


def wrong(offset: int, stored_ms: int, size: int = 10, *, is_gone: bool = False) -> Row:
    """A row that names a message which is not of this queue, or none at all."""
    return Row(offset, 77, 0, size, stored_ms, is_gone=is_gone)


def mend(
    rows: list[Row], ends: tuple[int, int] | None, *those: Lost, is_known: bool = True
) -> Mended:
    return mend_queue(rows, ends, those, is_known=is_known)


def places(mended: Mended) -> list[tuple[int, int, int]]:
    """Offset, sequence and stored ms of each row."""
    return [(row.offset, row.sequence, row.stored_ms) for row in mended.rows]


@pytest.mark.parametrize(
    ("rows", "ends", "is_known", "expected"),
    [
        ([], None, True, None),
        ([], (3, 9), False, (9, 9)),
        ([wrong(4, 1), wrong(5, 1)], (3, 5), False, (6, 6)),
        ([wrong(4, 1), wrong(5, 1)], None, True, (6, 6)),
        # An unknown topic's queue has no progress of any group.
        ([wrong(4, 1), wrong(5, 1)], None, False, None),
    ],
)
def test_where_nothing_is_left_the_next_offset_is_a_new_one(
    rows: list[Row], ends: tuple[int, int] | None, is_known: bool, expected: tuple[int, int] | None
) -> None:
    mended = mend(rows, ends, is_known=is_known)
    assert (mended.rows, mended.ends) == ([], expected)


@pytest.mark.parametrize(
    ("ends", "expected", "begins"),
    [
        (None, [0, 1], None),
        ((0, 2), [0, 1], (0, 2)),
        ((5, 7), [5, 6], (5, 7)),
        ((5, 6), [5, 6], (5, 6)),
        ((5, 9), [7, 8], (7, 9)),
        ((30_005, 30_009), [30_007, 30_008], (30_007, 30_009)),
        ((5, 1 << 60), [5, 6], (5, 7)),
    ],
)
def test_where_no_row_is_left_the_messages_end_where_consumers_are(
    ends: tuple[int, int] | None, expected: list[int], begins: tuple[int, int] | None
) -> None:
    """There were more messages than are left. The next ones get offsets behind all that any consumer has seen."""
    mended = mend([], ends, lost(2, 20), lost(1, 10))
    assert places(mended) == [(expected[0], 1, 10), (expected[1], 2, 20)]
    assert mended.ends == begins


def test_what_may_wait_is_put_into_no_queue_that_has_no_place_for_it() -> None:
    timer = lost(1, 10, may_wait=True)
    mended = mend([], (5, 9), timer)
    assert (mended.rows, mended.ends, mended.waiting) == ([], (9, 9), [timer])
    mended = mend([right(0, 2, 5)], None, timer)
    assert (places(mended), mended.ends, mended.waiting) == ([(0, 2, 5)], None, [timer])
    mended = mend([right(0, 2, 5), right(2, 3, 15)], None, timer)
    assert (places(mended)[1], mended.waiting) == ((1, 1, 10), [])


def test_an_offset_that_a_repair_has_left_empty_stays_so() -> None:
    rows = [right(0, 1, 5), Row(1, NO_MESSAGE, 0, 0, 5), right(2, 2, 15)]
    mended = mend(rows, None, lost(3, 5))
    assert places(mended) == [(0, 1, 5), (1, NO_MESSAGE, 5), (2, 2, 15), (3, 3, 15)]
    mended = mend([Row(4, NO_MESSAGE, 0, 0, 5)], (4, 5))
    assert (places(mended), mended.ends) == ([(4, NO_MESSAGE, 5)], (4, 5))


def test_a_message_goes_where_its_time_and_its_columns_fit() -> None:
    rows = [right(0, 1, 10), right(2, 2, 20), wrong(3, 30, 99), wrong(4, 40), right(5, 3, 50)]
    mended = mend(rows, None, lost(5, 15), lost(4, 12))
    # Either could also be at offset 1. What a row still says about its message is stronger evidence.
    assert places(mended) == [
        (0, 1, 10),
        (1, 5, 15),
        (2, 2, 20),
        (3, NO_MESSAGE, 30),
        (4, 4, 40),
        (5, 3, 50),
    ]


def test_gaps_are_filled_in_the_order_of_times_and_what_is_too_late_comes_last() -> None:
    rows = [right(0, 1, 10), right(3, 2, 20), right(5, 3, 30)]
    mended = mend(rows, None, lost(7, 25), lost(6, 14), lost(5, 12), lost(4, 13))
    assert [sequence for _, sequence, _ in places(mended)] == [1, 5, 4, 2, 6, 3, 7]
    assert places(mended)[-1] == (6, 7, 30)


def test_of_two_rows_in_the_wrong_order_the_one_that_is_too_early_was_moved() -> None:
    """The row of offset 1 is at offset 3. By its time, the message before it would have fired before it was due."""
    due = Row(2, 3, 0, 10, 30, lost(3, 25))
    rows = [right(0, 1, 10), due, right(3, 2, 20), right(4, 5, 40)]
    mended = mend(rows, None, lost(4, 35))
    assert places(mended) == [
        (0, 1, 10),
        (1, NO_MESSAGE, 10),
        (2, 3, 30),
        (3, 2, 30),
        (4, 5, 40),
        (5, 4, 40),
    ]


def test_a_row_of_a_message_that_is_gone_tells_of_no_other() -> None:
    rows = [right(0, 1, 10), wrong(1, 20, is_gone=True), right(2, 2, 30)]
    assert places(mend(rows, None, lost(3, 15)))[1:] == [
        (1, NO_MESSAGE, 20),
        (2, 2, 30),
        (3, 3, 30),
    ]


def test_the_offsets_behind_the_last_row_are_not_given_again() -> None:
    mended = mend([right(0, 1, 10)], (0, 4), lost(2, 20))
    assert places(mended) == [(0, 1, 10), (1, 2, 20), (2, NO_MESSAGE, 20), (3, NO_MESSAGE, 20)]
    mended = mend([right(0, 1, 10)], (0, MAX_HOLES + 2))
    assert (places(mended), mended.ends) == ([(0, 1, 10)], (0, 1))


def test_a_row_far_from_all_others_was_not_there() -> None:
    many = [right(offset, offset + 1, offset) for offset in range(4)]
    far = right(MAX_HOLES + 9, 9, 9)
    assert places(mend([*many, far], None)) == [
        (0, 1, 0),
        (1, 2, 1),
        (2, 3, 2),
        (3, 4, 3),
        (4, 9, 3),
    ]
    assert len(mend([*many, wrong(MAX_HOLES + 9, 9)], None).rows) == 4
    near = [right(MAX_HOLES + 9 + offset, offset + 1, offset) for offset in range(3)]
    assert places(mend([right(1, 9, 0), *near], None)) == [
        (MAX_HOLES + 8, 9, 0),
        (MAX_HOLES + 9, 1, 0),
        (MAX_HOLES + 10, 2, 1),
        (MAX_HOLES + 11, 3, 2),
    ]


def test_a_row_behind_a_gap_whose_time_is_wrong_too_was_not_there() -> None:
    front = [right(0, 1, 50), right(4, 2, 10), right(5, 3, 20)]
    assert places(mend(front, (3, 6))) == [(3, 1, 0), (4, 2, 10), (5, 3, 20)]
    back = [right(3, 1, 10), right(4, 2, 20), right(9, 3, 5)]
    assert places(mend(back, (3, 5))) == [(3, 1, 10), (4, 2, 20), (5, 3, 20)]


def test_a_row_beside_another_stays_there_though_its_time_is_wrong() -> None:
    """There is room for its message elsewhere, but consumers know it by this offset."""
    front = [right(0, 1, 50), right(1, 2, 10), right(3, 3, 20)]
    assert places(mend(front, None)) == [(0, 1, 0), (1, 2, 10), (2, NO_MESSAGE, 10), (3, 3, 20)]
    back = [right(0, 1, 10), right(2, 2, 20), right(3, 3, 5)]
    assert places(mend(back, None)) == [(0, 1, 10), (1, NO_MESSAGE, 10), (2, 2, 20), (3, 3, 20)]


def test_a_time_that_is_wrong_becomes_one_that_is_possible() -> None:
    rows = [right(0, 1, 10), right(1, 2, 1 << 40), right(2, 3, 30), right(3, 4, 1), right(4, 5, 50)]
    assert [place for _, _, place in places(mend(rows, None))] == [10, 10, 30, 30, 50]
    late = Row(1, 2, 0, 10, 1 << 40, lost(2, 35))
    rows = [right(0, 1, 10), late, right(2, 3, 30), wrong(3, 1), right(4, 5, 50)]
    assert places(mend(rows, None)) == [
        (0, 1, 10),
        (1, 2, 30),
        (2, 3, 30),
        (3, NO_MESSAGE, 30),
        (4, 5, 50),
    ]


def test_what_stands_in_front_is_there_again() -> None:
    rows = [right(2, 3, 30)]
    front = (lost(2, 20), lost(1, 10))
    assert places(mend(rows, (0, 3), *front)) == [(0, 1, 10), (1, 2, 20), (2, 3, 30)]
    # Where messages are missing, the queue begins later.
    mended = mend(rows, (0, 3), front[0])
    assert (places(mended), mended.ends) == ([(1, 2, 20), (2, 3, 30)], (1, 3))
    # If the queue's first offset is unknown, retention may have removed what was there. So the message still waits.
    timer = lost(1, 10, may_wait=True)
    mended = mend(rows, None, timer)
    assert (places(mended), mended.ends, mended.waiting) == ([(2, 3, 30)], (2, 3), [timer])
