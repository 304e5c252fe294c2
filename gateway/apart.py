"""Runs work in a child process, as a damaged data file can kill it: LMDB trusts most of its file's pages."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

COMMANDS: Final = frozenset({"fsck", "backup", "compact", "export", "drain"})
"""The commands that read whole data folders."""

DIED: Final = (
    "LMDB crashed while it read data.mdb: the structure of the file is damaged; restore a backup"
)

DEATHS: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)
"""The signals that a damaged file kills the child with."""

_PR_SET_PDEATHSIG: Final = 1


def run_apart(work: Callable[[], None], complain: Callable[[str], None]) -> None:
    """Run work in a child process, and exit with its status.

    :param complain: called with `DIED` if the child died of a damaged file; the status is 1 then.
    """
    child = os.fork()
    if not child:
        # The child ends when the parent is killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt_once)
        try:
            work()
        finally:
            if signal.getsignal(signal.SIGINT) is _interrupt_once:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.exit()

    def pass_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if -status in DEATHS:
        complain(DIED)
        sys.exit(1)
    if status < 0:
        # SIGKILL, which the kernel sends to a process when memory runs out, cannot be handled.
        if status != -signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _interrupt_once(number: int, frame: object) -> None:
    """Interrupt the work, but not what it then cleans up: a Ctrl-C at the terminal reaches both processes, and the
    parent passes it on as well."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
