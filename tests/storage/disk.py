"""A disk that loses its power: generates the states in which a folder's files can be then if they were not synced.

Only data whose sync has returned is certain. Every other sector may be as it was at the last sync, or at any time
since, independently of the order of writes.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from errno import EIO
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, ParamSpec, TypeVar

import pytest

from storage import DATA_FILE, durable, environment

P = ParamSpec("P")
Result = TypeVar("Result")

SECTOR: Final = 512
PAGE: Final = 4096

NOT_ON_DISK: Final = ("lock.mdb", "tidegate.lock")
"""Files that nobody needs after a power cut."""

NEWNESS: Final = (0.0, 0.1, 0.5, 0.9, 0.97, 1.0)
"""The probability that a sector of a file has changed; one of these is chosen for each file."""


class Disk:
    """The disk below one folder. It replaces `os.fsync` and `os.fdatasync`, and the thread in which a store calls
    them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._folder = Path()
        self._states: dict[str, list[bytes]] = {}
        """For each file its state on disk, and its states since."""
        self._names: set[str] = set()
        """The files whose names are on disk."""
        self._syncs = 0
        self._action: Callable[[], None] | None = None
        self._broken = ""
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._sync)
        patch.setattr(durable, "ThreadPoolExecutor", Worker)
        for name in ("_check_version", "open_tables"):
            patch.setattr(environment, name, self._synced_by_lmdb(getattr(environment, name)))

    def hold(self, folder: Path) -> None:
        """Become the disk below another folder, and treat everything in it as synced."""
        self._folder = folder
        self._states = {}
        self._action = None
        self._broken = ""
        self.look()
        self._states = {name: states[-1:] for name, states in self._states.items()}
        self._names = set(self._states)

    def look(self) -> None:
        """Note the current state of all files. Every state must be noted before it is overwritten."""
        files = [path for path in self._folder.glob("*") if path.name not in NOT_ON_DISK]
        for path in files:
            states = self._states.setdefault(path.name, [b""])
            if (content := path.read_bytes()) != states[-1]:
                states.append(content)

    def before_sync(self, number: int, action: Callable[[], None]) -> None:
        """Do something after this many syncs have begun, before the last of them has had any effect."""
        self._syncs, self._action = number, action

    def break_once(self, name: str) -> None:
        """Let the next sync of a file fail."""
        self._broken = name

    def cut_power(self, target: Path, random: Random) -> None:
        """Create the folder as it is after a power cut."""
        self.look()
        self._action = None
        target.mkdir()
        for name, states in sorted(self._states.items()):
            if name in self._names or random.random() < 0.5:
                unit = random.choice((SECTOR, PAGE)) if name == DATA_FILE else SECTOR
                (target / name).write_bytes(_mixed(states, unit, random))

    def _sync(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if self._folder not in (path, path.parent):
            # A copy that a test makes.
            return
        self.look()
        names, written = set(self._states), self._states.get(path.name, [b""])[-1]
        task = threading.current_thread()
        if isinstance(task, _Task):
            task.pause()
        self._syncs -= 1
        if self._syncs == 0 and self._action is not None:
            self._action()
        if path == self._folder:
            self._names |= names
        elif path.name == self._broken:
            self._broken = ""
            raise OSError(EIO, os.strerror(EIO))
        else:
            self._take(path.name, written)

    def _take(self, name: str, written: bytes) -> None:
        states = self._states[name]
        # Data written after the sync began may be on disk or not.
        while any(state is written for state in states[1:]):
            del states[0]

    def _synced_by_lmdb(self, function: Callable[P, Result]) -> Callable[P, Result]:
        """Wrap a function that sets up a folder: LMDB syncs what it changes there by itself, which cannot be seen
        here."""

        def synced(*args: P.args, **kwargs: P.kwargs) -> Result:
            self.look()
            before = self._states.get(DATA_FILE, [b""])[-1]
            result = function(*args, **kwargs)
            self.look()
            after = self._states.get(DATA_FILE, [b""])[-1]
            if after is not before:
                self._take(DATA_FILE, after)
            return result

        return synced


def _mixed(states: list[bytes], unit: int, random: Random) -> bytes:
    newness = random.choice(NEWNESS)

    def choice() -> bytes:
        return random.choice(states[1:] or states) if random.random() < newness else states[0]

    size = len(choice())
    units = (choice()[at : at + unit].ljust(unit, b"\0") for at in range(0, size, unit))
    return b"".join(units)[:size]


class Worker:
    """Replaces a store's thread. Its work proceeds only on request, from sync to sync, so that the same work is always
    done between the same two commits."""

    def __init__(self, max_workers: int, name: str) -> None:
        assert max_workers == 1
        self._tasks: deque[_Task] = deque()

    def submit(self, work: Callable[..., None], *args: object) -> Future[None]:
        """Add work, which does not begin yet."""
        task = _Task(self, partial(work, *args))
        self._tasks.append(task)
        return task.future

    def step(self) -> bool:
        """Work until the next sync begins, or until the end of a task. Return False when there is nothing to do."""
        if not self._tasks:
            return False
        self._tasks[0].go_on()
        if self._tasks[0].future.done():
            self._tasks.popleft()
        return True

    def kill(self) -> None:
        """Never do the remaining work."""
        for task in self._tasks:
            task.is_killed = True

    def shutdown(self) -> None:
        """Do all remaining work."""
        while self.step():
            pass


class _Outcome(Future[None]):
    """A future that makes the work proceed when somebody waits for it."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker

    def result(self, timeout: float | None = None) -> None:
        while not self.done():
            self._worker.step()
        super().result(timeout)


class _KilledError(Exception):
    """The process was killed."""


class _Task(threading.Thread):
    """A thread that runs only while the thread that resumes it waits."""

    def __init__(self, worker: Worker, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.future: Future[None] = _Outcome(worker)
        self.is_killed = False
        self._work = work
        self._own_turn = threading.Semaphore(0)
        self._other_turn = threading.Semaphore(0)

    def run(self) -> None:
        """See `Thread`."""
        self._own_turn.acquire()
        try:
            if not self.is_killed:
                self._work()
        except Exception as error:  # noqa: BLE001 - as a pool of threads has it
            self.future.set_exception(error)
        else:
            self.future.set_result(None)
        finally:
            self._other_turn.release()

    def pause(self) -> None:
        """Let the other thread go on; called by the work."""
        self._other_turn.release()
        self._own_turn.acquire()
        if self.is_killed:
            raise _KilledError

    def go_on(self) -> None:
        """Resume the work, and wait until it pauses or ends."""
        if not self.is_alive():
            self.start()
        self._own_turn.release()
        self._other_turn.acquire()
