"""Notes, and the store's totals."""

from __future__ import annotations

from storage import Store
from tests.storage.folder import Folder
from tests.storage.sample import TOPIC, Sample, fire, hold, id_of, send


def test_notes_are_kept_changed_and_forgotten(folder: Folder) -> None:
    store = folder.open()
    store.put_note(b"b", b"1")
    store.put_note(b"a", b"2")
    store.put_note(b"c", b"3")
    store.commit()
    store.put_note(b"b", b"4")
    store.delete_note(b"c")
    store.delete_note(b"never there")
    store.commit()
    assert store.notes() == [(b"a", b"2"), (b"b", b"4")]
    assert folder.open().notes() == [(b"a", b"2"), (b"b", b"4")]


def test_notes_by_what_their_names_begin_with(folder: Folder) -> None:
    store = folder.open()
    for name in (b"kind", b"kind b", b"kind a", b"kin", b"other"):
        store.put_note(name, name)
    store.commit()
    assert store.notes(b"kind ") == [(b"a", b"kind a"), (b"b", b"kind b")]


def test_a_note_cannot_harm_the_stores_own_names(folder: Folder) -> None:
    store = folder.open()
    store.put_note(b"format", b"99")
    store.put_note(b"next sequence", b"x")
    store.commit()
    assert dict(folder.open().notes()) == {b"format": b"99", b"next sequence": b"x"}


def test_a_topics_progress_is_forgotten_for_all_groups(folder: Folder) -> None:
    store = folder.open()
    store.progress.note(b"g1", b"gone", 0, 5)
    store.progress.note(b"g2", b"gone", 1, 6)
    store.progress.note(b"g1", b"kept", 0, 7)
    store.progress.include()
    store.commit()
    list(store.progress.forget_topics(b"gone"))
    store.commit()
    expected = [(b"g1", b"kept", 0, 7)]
    assert list(store.progress.rows()) == expected
    assert list(folder.open().progress.rows()) == expected


def test_what_was_added_to_a_queue_is_counted_from_when_it_was_first_seen(folder: Folder) -> None:
    first = Sample(b"m1", body=b"x" * 100)
    later = Sample(b"m2", body=b"y" * 50)
    store = folder.open()
    send(store, first, 1_000)
    hold(store, later, 5_000, 1_000)
    store.commit()
    queue = store.queue(TOPIC, 0)
    size = len(first.record(1_000))
    assert (queue.opened, queue.visible, queue.added_bytes) == (0, 1, size)
    fire(store, 5_000)
    store.commit()
    size += len(later.record(1_000))
    assert (queue.opened, queue.visible, queue.added_bytes) == (0, 2, size)
    assert (store.open_topics(), list(store.open_queues(TOPIC))) == ([TOPIC], [queue])
    again = folder.open().queue(TOPIC, 0)
    assert (again.opened, again.visible, again.added_bytes) == (2, 2, 0)


def test_the_oldest_message_and_the_number_of_pending_ones(store: Store) -> None:
    assert store.oldest_record() is None
    assert store.pending_count() == 0
    hold(store, Sample(b"m1"), 5_000, 1_000)
    send(store, Sample(b"m2"), 1_001)
    hold(store, Sample(b"m3"), 6_000, 1_002)
    store.commit()
    oldest = store.oldest_record()
    assert oldest is not None
    assert id_of(oldest) == b"m1"
    assert store.pending_count() == 2
