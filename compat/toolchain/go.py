"""The driver of the Go client, built by an installed Go."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from compat.toolchain.folder import PROJECT, ToolchainError, make_folder, run, say

_SOURCES: Final = PROJECT / "compat" / "clients" / "go"
_SUFFIXES: Final = {".go", ".mod", ".sum"}
_VERSION: Final = (1, 22)  # the version in go.mod


def has_go_client() -> bool:
    """Whether a Go is installed that is new enough to build the client's driver."""
    return installed_go() is not None


@functools.cache
def installed_go() -> str | None:
    """Return the Go on the path if its version is suitable."""
    if not (go := shutil.which("go")):
        return None
    done = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    found = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return go if found and (int(found[1]), int(found[2])) >= _VERSION else None


def go_client() -> Path:
    """Return the program that drives the Go client. It is built again if its sources have changed."""
    go = installed_go()
    if go is None:
        raise ToolchainError("there is no Go of version 1.22 or newer on the path: install one")
    sources = sorted(file for file in _SOURCES.iterdir() if file.suffix in _SUFFIXES)
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())

    def make(folder: Path) -> None:
        say("Building the driver of the Go client, with its modules")
        run(
            [go, "build", "-trimpath", "-mod=readonly", "-o", str(folder / "driver"), "."],
            "Go cannot build the driver of the Go client",
            folder=_SOURCES,
            environment={**os.environ, "CGO_ENABLED": "0"},
        )

    return make_folder("go-client", digest.hexdigest(), make) / "driver"
