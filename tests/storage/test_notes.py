"""Notes that a caller keeps in the store."""

from __future__ import annotations

from tests.storage.folder import Folder


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
