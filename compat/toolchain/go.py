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
_VERSION: Final = (1, 22)  # what go.mod asks for


def has_go_client() -> bool:
    """Whether there is a Go that is new enough to build the client's driver with."""
    return installed_go() is not None


@functools.cache
def installed_go() -> str | None:
    """The Go on the path, if it is of a suitable version."""
    if not (go := shutil.which("go")):
        return None
    done = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    found = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return go if found and (int(found[1]), int(found[2])) >= _VERSION else None


def go_client() -> Path:
    """The program that drives the Go client, built unless its sources have not changed."""
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
