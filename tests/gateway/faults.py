"""What can go wrong below the gateway, made to happen."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import lmdb

from tests.gateway.memory import MemoryGateway
from tests.storage import faults
from tests.storage.faults import DISK_FULL


@contextmanager
def commits_fail(gateway: MemoryGateway, trouble: lmdb.Error = DISK_FULL) -> Iterator[None]:
    """No commit succeeds."""
    with faults.commits_fail(gateway.store, trouble):
        yield


@contextmanager
def file_cannot_grow(gateway: MemoryGateway) -> Iterator[None]:
    """The kernel refuses to let the database's file become larger."""
    size = (gateway.data / "data.mdb").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
