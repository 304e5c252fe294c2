"""Runs work in a child process, as a damaged data file can kill it: LMDB trusts most of its file's pages."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

COMMANDS: Final = frozenset({"fsck", "backup", "compact", "export", "drain"})
"""The commands that read whole data folders."""

DIED: Final = (
    "LMDB crashed while it read data.mdb: the structure of the file is damaged; "
    "restore a backup, unless 'tidegate fsck --repair' can repair it"
)

DEATHS: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)
"""The signals that a damaged file kills the child with."""

_AWAITED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
"""What the parent waits for: signals that it passes on, and the one of its child's end."""

_PR_SET_PDEATHSIG: Final = 1


def run_apart(work: Callable[[], None], complain: Callable[[str], None]) -> None:
    """Run work in a child process, and exit with its status.

    :param complain: called with `DIED` if the child died of a damaged file; the status is 1 then.
    """
    # They wait until the parent asks for them. A handler of Python's would not see one that comes just before the
    # parent begins to wait for its child.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    child = os.fork()
    if not child:
        # The child ends when the parent is killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt_once)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            work()
        finally:
            if signal.getsignal(signal.SIGINT) is _interrupt_once:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.exit()
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        number = signal.sigwait(_AWAITED)
        if number != signal.SIGCHLD:
            os.kill(child, number)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    status = os.waitstatus_to_exitcode(ended[1])
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
