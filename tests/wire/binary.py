"""Writes ROCKETMQ headers, as clients with that setting send them (RocketMQSerializable)."""

from __future__ import annotations

import struct
from collections.abc import Mapping


def binary_header(
    code: int,
    opaque: int,
    ext: Mapping[str, str],
    *,
    flag: int = 0,
    language: int = 0,
    version: int = 513,
    remark: str = "",
) -> bytes:
    """Return a header in the binary form."""
    said = remark.encode()
    pairs = b"".join(
        struct.pack(">h", len(name.encode()))
        + name.encode()
        + struct.pack(">i", len(value.encode()))
        + value.encode()
        for name, value in ext.items()
    )
    return (
        struct.pack(">hBhiii", code, language, version, opaque, flag, len(said))
        + said
        + struct.pack(">i", len(pairs))
        + pairs
    )
