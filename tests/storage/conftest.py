"""Fixtures of the storage tests: each test ends with a check of its whole database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage import Store
from tests.storage.folder import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """A data folder that does not exist yet; it is checked when the test is over."""
    folder = Folder(tmp_path / "data")
    yield folder
    folder.check()


@pytest.fixture
def store(folder: Folder) -> Store:
    """An empty store, on a real LMDB."""
    return folder.open()


@pytest.fixture
def reopen(folder: Folder) -> Callable[[], Store]:
    """Closes the store and opens it again."""
    return folder.open
