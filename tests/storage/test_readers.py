"""Views of a data folder: their number is limited, and those of dead processes do not count."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from storage import StorageError, read_pending
from storage.environment import MAX_READERS
from tests.storage.folder import Folder
from tests.storage.sample import Sample, clean_up, hold, pending_ids, states, terms_of

_READ = """
import os, signal, sys
import lmdb
environment = lmdb.open(sys.argv[1], readonly=True, max_readers=64)
views = [environment.begin() for _ in range(int(sys.argv[2]))]
os.kill(os.getpid(), signal.SIGKILL)
"""
"""Code of a process that dies while it reads."""


def die_reading(data: Path, views: int) -> None:
    """Leave behind what a killed backup leaves."""
    killed = subprocess.run([sys.executable, "-c", _READ, data, str(views)], check=False)
    assert killed.returncode == -signal.SIGKILL


def test_one_view_too_many_is_refused_and_nothing_else_harmed(folder: Folder) -> None:
    store = folder.open()
    hold(store, Sample(b"a"), 1_000)
    store.commit()
    with ExitStack() as views:
        for _ in range(MAX_READERS):
            views.enter_context(store.environment.view())
        with pytest.raises(
            StorageError, match=f"is being read {MAX_READERS} times, which is the most"
        ):
            store.environment.view()
        assert states(store, b"a") == ["pending"]
        hold(store, Sample(b"b"), 2_000)
        store.commit()
        store.checkpoint()
    assert pending_ids(store) == [b"a", b"b"]


@pytest.mark.parametrize("others", [MAX_READERS - 2, MAX_READERS])
def test_a_reader_beside_the_gateway_is_told(folder: Folder, others: int) -> None:
    """An export has two views, and one place is that of a reader that died."""
    store = folder.open()
    store.commit()
    die_reading(folder.path, 1)
    script = (
        "import sys; from pathlib import Path; from storage import *; "
        "from tests.storage.sample import terms_of\n"
        "try: list(read_pending(Path(sys.argv[1]), terms_of))\n"
        "except StorageError as error: print(error)"
    )
    with ExitStack() as views:
        for _ in range(others):
            views.enter_context(store.environment.view())
        said = subprocess.run(
            [sys.executable, "-c", script, folder.path], capture_output=True, text=True, check=True
        )
    assert "is being read 64 times, which is the most" in said.stdout


def test_places_of_dead_readers_are_used_again(folder: Folder) -> None:
    store = folder.open()
    hold(store, Sample(b"a"), 1_000)
    store.commit()
    die_reading(folder.path, MAX_READERS - 2)
    with ExitStack() as views:
        for _ in range(10):
            views.enter_context(store.environment.view())
        assert states(store, b"a") == ["pending"]


def test_retention_frees_what_dead_readers_held(folder: Folder) -> None:
    store = folder.open()
    store.commit()
    die_reading(folder.path, 3)
    assert store.environment.lmdb.info()["num_readers"] >= 3
    clean_up(store, 0, 10, lambda topic: False)
    assert store.environment.forget_dead_readers() == 0


def test_an_export_that_stops_halfway_lets_go(folder: Folder) -> None:
    store = folder.open()
    for number in range(3):
        hold(store, Sample(b"%d" % number), 1_000 + number)
    store.commit()
    folder.close()
    pending = read_pending(folder.path, terms_of)
    next(pending)
    del pending
    store = folder.open()
    assert len(pending_ids(store)) == 3
