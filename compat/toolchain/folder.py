"""The folder `.tools`: each of its parts is made completely or not at all, and again if its sources change."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parents[2]
TOOLS: Final = PROJECT / ".tools"


class ToolchainError(Exception):
    """Something cannot be got or made here. The text is one line and says what to do."""


def say(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock of `.tools/NAME`, which only one process at a time can hold."""
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_folder(name: str, stamp: str, make: Callable[[Path], None]) -> Path:
    """Return the folder `.tools/NAME`. `make` makes it, unless it was made with the same stamp before.

    The folder is made under another name and renamed, so an interrupted call leaves no incomplete folder.
    """
    folder = TOOLS / name
    stamp_file = folder / ".stamp"
    with locked(name):
        if stamp_file.is_file() and stamp_file.read_text() == stamp:
            return folder
        if folder.exists():
            shutil.rmtree(folder)
        unfinished = TOOLS / f".{name}.unfinished"
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir()
        make(unfinished)
        (unfinished / ".stamp").write_text(stamp)
        unfinished.rename(folder)
    return folder


def install(requirement: str, target: Path, sha256: Sequence[str]) -> None:
    """Install one Python package, without its dependencies, into a folder of its own.

    :param sha256: the digests of its files, of which pip takes the one for this machine; any other is refused.
    """
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(" ".join((requirement, *(f"--hash=sha256:{digest}" for digest in sha256))))
        file.flush()
        run(
            [
                *(*pip, "--no-deps", "--no-warn-script-location", "--target", str(target)),
                *("--require-hashes", "--requirement", file.name),
            ],
            f"pip cannot install {requirement} as it was published",
        )


def run(
    command: Sequence[str],
    trouble: str,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a program that makes something.

    :param trouble: the error's text if it fails; the last line of its standard error is added as the reason.
    :param folder: its working directory.
    """
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip() or "no reason given").splitlines()[-1].strip()
        raise ToolchainError(f"{trouble}: {reason}")
