"""Settings of the store: where messages are stored, how safely, and for how long."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal

import platformdirs

from gateway.settings.fields import SettingsGroup, setting
from gateway.settings.values import Duration, FilePath, Hours, Kind, Size

_STORAGE: Final = "Storage"


_OF_NOBODY: Final = Path("/var/lib/tidegate")
"""Default data folder of a user without a home, as in a container that runs under a numeric user id."""


def _default_data() -> Path:
    try:
        return platformdirs.user_data_path("tidegate")
    except RuntimeError:
        return _OF_NOBODY


class StorageSettings(SettingsGroup):
    """Settings of the store: where messages are stored, how safely, and for how long."""

    data: FilePath = setting(
        _default_data,
        _STORAGE,
        "Folder with everything that was accepted, in several files that belong together: copy it with "
        "'tidegate backup'. It is created if it is missing. Only one gateway can use it at a time.",
        upstream="storePathRootDir",
    )
    flush: Annotated[Literal["sync", "async"], Kind("sync or async", metavar="sync|async")] = (
        setting(
            "sync",
            _STORAGE,
            "sync: a send is answered once it is on disk. async: it is answered sooner, and is on disk within "
            "half a second; a power cut can lose that last half second, a killed process loses nothing.",
            upstream="flushDiskType",
        )
    )
    commit_wait: Duration = setting(
        timedelta(milliseconds=2),
        _STORAGE,
        "How long a commit may wait for more sends, because one commit for several costs less. It waits only for "
        "senders that send again as soon as they are answered. While thousands of sends per second come from others, "
        "the gateway rests between its turns, as long at most, and 2 ms. A single sender never waits.",
        unit="duration",
        least=timedelta(0),
        most=timedelta(seconds=1),
    )
    retention_hours: Hours = setting(
        72.0,
        _STORAGE,
        "How long fired and aborted messages can still be read and found. Pending ones are kept, whatever "
        "their age.",
        unit="hours",
        upstream="fileReservedTime",
        least=0,
        most=876_000,
        live=True,
    )
    map_size_initial: Size = setting(
        1024**3,
        _STORAGE,
        "Address space that is first reserved for the data file (LMDB's map). The file itself grows only as "
        "it is used.",
        unit="bytes",
        least=1024**2,
        most=64 * 1024**4,
    )
    disk_reserve: Size = setting(
        512 * 1024**2,
        _STORAGE,
        "If the disk has less than this free, sends are refused; deliveries go on.",
        unit="bytes",
        least=0,
        most=64 * 1024**4,
        live=True,
    )

    @cached_property
    def retention_ms(self) -> int:
        """`retention_hours` in ms."""
        return int(self.retention_hours * 3_600_000)
