"""Child processes that never outlive the process that started them (Linux), and among them programs that listen."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, NamedTuple

from compat.toolchain.folder import PROJECT

_PR_SET_PDEATHSIG: Final = 1
_C_LIBRARY: Final = ctypes.CDLL(None, use_errno=True)
_LISTENING: Final = re.compile(r"^(?:[\d:]+ )?listening on ([^\s,]+)[\s,]", re.MULTILINE)
"""What a program prints when it listens; `tidegate capture` logs it, with the time of day before it."""
_START_LIMIT_S: Final = 120.0
_STOP_LIMIT_S: Final = 120.0


class StartError(Exception):
    """A program did not start to listen; the text is one line."""


class Server(NamedTuple):
    """A running program that listens."""

    address: str
    """`HOST:PORT`."""
    pid: int
    output: Path
    """The file with what it prints: its log, and why it ended."""


def end_in_order() -> None:
    """From now on let SIGTERM, and SIGHUP, as of a closed terminal, end this program as Ctrl-C does: what it started is
    stopped, and its data removed. Under `nohup` SIGHUP stays ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


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

    Python programs import this project's modules from where those of this one are, wherever others are installed.

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
        env={**os.environ, "PYTHONPATH": str(PROJECT), **(environment or {})},
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


@contextmanager
def server(module: str, *arguments: object, output: Path) -> Iterator[Server]:
    """Run a Python program of this project, in the folder of the file `output`, until the end of the block.

    :param output: a new file for what it prints.
    :raises StartError: if it ends before it listens, or takes too long.
    """
    with output.open("wb") as out:
        process = start(
            [sys.executable, "-m", module, *map(str, arguments)],
            folder=output.parent,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Server(_address(process, output), process.pid, output)
    finally:
        stop(process, _STOP_LIMIT_S)


def _address(process: subprocess.Popen[bytes], output: Path) -> str:
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        has_ended = process.poll() is not None
        said = output.read_text(errors="replace")
        if found := _LISTENING.search(said):
            return found[1]
        if has_ended:
            lines = said.strip().splitlines() or [f"exit status {process.returncode}"]
            raise StartError(f"the server did not start: {lines[-1]}")
        time.sleep(0.01)
    raise StartError(f"the server was not listening after {_START_LIMIT_S:g} s")
