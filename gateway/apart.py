"""Work that a damaged file can kill: LMDB trusts most of what the pages of its file say."""

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
    "LMDB died of what data.mdb says: the file is damaged beyond its rows; restore a backup"
)

DEATHS: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)
"""The signals that it dies of."""

_PR_SET_PDEATHSIG: Final = 1


def run_apart(work: Callable[[], None], complain: Callable[[str], None]) -> None:
    """Have a child do some work, and exit with its status, whatever that is.

    :param complain: is told `DIED` where the child died of a damaged file; the status is 1 then.
    """
    child = os.fork()
    if not child:
        # Nothing goes on once the parent was killed.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        work()
        sys.exit()
    # A terminal interrupts both.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: os.kill(child, received))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if -status in DEATHS:
        complain(DIED)
        sys.exit(1)
    if status < 0:
        # That one, by which a system without memory ends it, cannot be handled.
        if status != -signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)
