"""The C++ client: `rocketmq-client-python` and the library that it loads."""

from __future__ import annotations

import hashlib
import platform
import sys
import tempfile
from pathlib import Path
from typing import Final

from compat.toolchain.folder import TOOLS, ToolchainError, install, make_folder, say

_PYTHON_CLIENT: Final = "rocketmq-client-python==2.0.0"
_PYTHON_CLIENT_SHA256: Final = "692324adaa8107eebd0369117043871d90035ddb1562f9999c5681136f16f738"
_LIBRARY_PACKAGE: Final = "rocketmq-python-cvs==2.1.0.3"
_LIBRARY_PACKAGE_SHA256: Final = "99e4ce8008554a74193a3ad94b60f939a4666c48ffabbf4c4417a109daf1419d"
_LIBRARY_SHA256: Final = "ed3fce39f2b926637637a2b8b9122799f207b0cdf98dbd9110505bf43170fa30"
# The offset of DefaultMQPushConsumerImpl::shutdownMessageTraceInnerProducer() in the library. Without
# tracing it follows a null pointer, so every shutdown of a consumer crashes. The patch makes it return
# at once (x86: push %rbx becomes ret).
_LIBRARY_PATCH: Final = (0x184280, 0x53, 0xC3)


def has_cpp_client() -> bool:
    """Whether the C++ client's library runs on this kind of machine: Linux on x86-64, glibc."""
    return (
        sys.platform == "linux"
        and platform.machine() == "x86_64"
        and platform.libc_ver()[0] == "glibc"
    )


def cpp_client() -> Path:
    """Return a folder for PYTHONPATH from which `import rocketmq` loads rocketmq-client-python 2.0.0.

    The package is as published, but has no library. The library beside it is from another package and
    has every symbol that is called.
    """
    if not has_cpp_client():
        raise ToolchainError("the C++ client library exists for Linux on x86-64 with glibc only")

    def make(folder: Path) -> None:
        say(f"Getting {_PYTHON_CLIENT} and a library for it")
        install(_PYTHON_CLIENT, folder, [_PYTHON_CLIENT_SHA256])
        with tempfile.TemporaryDirectory(dir=TOOLS) as scratch:
            install(_LIBRARY_PACKAGE, Path(scratch), [_LIBRARY_PACKAGE_SHA256])
            library = (Path(scratch) / "rocketmq/librocketmq.so").read_bytes()
        (folder / "rocketmq/librocketmq.so").write_bytes(without_crash(library))

    return make_folder("cpp-client", f"{_PYTHON_CLIENT} {_LIBRARY_PACKAGE} {_LIBRARY_PATCH}", make)


def without_crash(library: bytes) -> bytes:
    """Return the library with the function that crashes patched to return at once."""
    if hashlib.sha256(library).hexdigest() != _LIBRARY_SHA256:
        raise ToolchainError(f"the library in {_LIBRARY_PACKAGE} is not the expected one")
    offset, before, after = _LIBRARY_PATCH
    assert library[offset] == before
    return library[:offset] + bytes([after]) + library[offset + 1 :]
