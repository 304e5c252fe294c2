"""The report of work that a damaged file kills, and the normal end of all other work."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from gateway.apart import DIED

_APART = (
    "import os, signal, sys; from gateway.apart import run_apart; run_apart(lambda: {work}, print)"
)


def apart(work: str) -> tuple[int, str]:
    """Do some work in a child process, and return the exit status and the output."""
    return run(_APART.format(work=work))


def run(script: str) -> tuple[int, str]:
    """Run Python with signals of its own, and return the exit status and the output."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGBUS", "SIGABRT"])
def test_whoever_is_killed_by_a_damaged_file_has_a_line_of_it(name: str) -> None:
    assert apart(f"os.kill(os.getpid(), signal.{name})") == (1, DIED)


def test_else_it_ends_as_its_work_does() -> None:
    assert apart("None") == (0, "")
    assert apart("sys.exit(4)") == (4, "")
    assert apart("os.kill(os.getpid(), signal.SIGTERM)") == (-signal.SIGTERM, "")
    assert apart("os.kill(os.getpid(), signal.SIGKILL)") == (-signal.SIGKILL, "")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_who_is_told_to_end_has_the_work_end(name: str) -> None:
    """Also if it alone gets a SIGINT, as from a supervisor and not by a Ctrl-C at a terminal."""
    told = getattr(signal, name)
    assert apart(f"(os.kill(os.getppid(), {told:d}), signal.sigtimedwait([], 60))") == (-told, "")


def test_a_ctrl_c_does_not_cut_short_what_the_work_cleans_up() -> None:
    """It reaches both processes."""
    script = """
import os, signal, time
from gateway.apart import run_apart

def work():
    try:
        os.killpg(0, signal.SIGINT)
        signal.sigtimedwait([], 60)
    finally:
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(0.2)
        print("cleaned up")

run_apart(work, print)
"""
    assert run(script) == (-signal.SIGINT, "cleaned up")
