"""Child processes that never outlive the process that started them (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

_PR_SET_PDEATHSIG: Final = 1
_C_LIBRARY: Final = ctypes.CDLL(None, use_errno=True)


def start(
    command: Sequence[str | Path],
    *,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in a folder, with `environment` added to the variables of this process.

    The kernel kills the program when the *thread* that called this ends, for whatever reason. Start
    a program that must live long from a thread that lives as long.
    """
    parent = os.getpid()

    def tie_to_parent() -> None:
        # Runs in the child between fork and exec.
        _C_LIBRARY.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the call above
            os._exit(1)

    return subprocess.Popen(
        [str(part) for part in command],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        preexec_fn=tie_to_parent,  # noqa: PLW1509  the function takes no lock
    )


def stop(process: subprocess.Popen[bytes], grace_s: float) -> int:
    """Terminate a process, kill it if it has not ended in time, and return its exit status."""
    process.terminate()
    try:
        return process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
