"""The first bytes of a connection: an optional PROXY header, and then TLS or frames.

A load balancer sends a PROXY header before its client's bytes, to name the client (HAProxy's PROXY protocol):

    version 1   PROXY TCP4 192.0.2.1 192.0.2.7 51000 9876 CR LF          at most 107 bytes
                PROXY UNKNOWN ... CR LF
    version 2   signature 12 | version and command 1 | family 1 | length 2 | addresses, more
                command 0x20: the balancer itself, 0x21: for a client
                family 0x11: IPv4 4, IPv4 4, port 2, port 2; 0x21: IPv6 16, 16, port 2, port 2

TLS begins with the byte 0x16. A frame begins with its length; only one of more than 200 MB could be mistaken for TLS or
a PROXY header.
"""

from __future__ import annotations

import ipaddress
from typing import Final

from gateway.wire.addresses import parse_port, show_address, unmapped

_SIGNATURE_V1: Final = b"PROXY"
_SIGNATURE_V2: Final = b"\r\n\r\n\0\r\nQUIT\n"
_LONGEST_V1: Final = 107
_HEAD_V2: Final = 16
_FOR_ITSELF: Final = 0x20
_FOR_A_CLIENT: Final = 0x21
_ADDRESS_SIZES: Final = {0x11: 4, 0x21: 16}
"""Bytes of an address, by the family of version 2."""

_TLS_HANDSHAKE: Final = 0x16


class OpeningError(ValueError):
    """A malformed PROXY header; the connection is to be closed."""


class Opening:
    """Takes the first bytes of a connection, until it is clear what follows.

    `source` is the client's address from the load balancer, `1.2.3.4:5` or `[::1]:5`, or None without one. `rest` is
    what has arrived after the header: TLS if `is_tls`, else frames.
    """

    def __init__(self) -> None:
        self.source: str | None = None
        self.is_tls = False
        self.rest = b""
        self._is_announced = False

    def feed(self, data: bytes) -> bool:
        """Take more bytes, and return whether it is clear now what follows.

        :raises OpeningError: for a malformed PROXY header.
        """
        data = self.rest + data
        if not self._is_announced:
            size = self._header(data)
            if size is None:
                self.rest = data
                return False
            data = data[size:]
        self.rest = data
        if not data:
            return False
        self.is_tls = data[0] == _TLS_HANDSHAKE
        return True

    def _header(self, data: bytes) -> int | None:
        """Return the size of the PROXY header in bytes: 0 if there is none, None if it is not complete."""
        if _may_become(data, _SIGNATURE_V1):
            return self._version_1(data)
        if _may_become(data, _SIGNATURE_V2):
            return self._version_2(data)
        return 0

    def _version_1(self, data: bytes) -> int | None:
        end = data.find(b"\r\n", 0, _LONGEST_V1)
        if end < 0:
            if len(data) >= _LONGEST_V1:
                raise OpeningError("the PROXY header does not end")
            return None
        words = data[:end].decode("latin-1").split(" ")
        self._is_announced = True
        if words[:2] == ["PROXY", "UNKNOWN"]:
            return end + 2
        if len(words) != 6 or words[0] != "PROXY" or words[1] not in ("TCP4", "TCP6"):
            raise OpeningError(f"no PROXY header: {' '.join(words)!r}")
        try:
            address = ipaddress.ip_address(words[2])
            ipaddress.ip_address(words[3])
            source_port, _ = map(parse_port, words[4:])
        except ValueError as error:
            raise OpeningError(f"a PROXY header that cannot be read: {error}") from error
        # Python also reads a zone behind an IPv6 address, in any characters: they would come into the log.
        if address.version != int(words[1][3]) or "%" in words[2]:
            raise OpeningError(f"a PROXY header with {words[1]} and {words[2]!r}")
        self.source = show_address(unmapped(str(address)), source_port)
        return end + 2

    def _version_2(self, data: bytes) -> int | None:
        if len(data) < _HEAD_V2:
            return None
        command, family = data[12], data[13]
        size = _HEAD_V2 + int.from_bytes(data[14:16], "big")
        if command not in (_FOR_ITSELF, _FOR_A_CLIENT):
            raise OpeningError(f"a PROXY header with the command {command:#x}")
        if len(data) < size:
            return None
        self._is_announced = True
        width = _ADDRESS_SIZES.get(family)
        if command == _FOR_A_CLIENT and width is not None:
            if size < _HEAD_V2 + 2 * width + 4:
                raise OpeningError("a PROXY header too short for its addresses")
            address = ipaddress.ip_address(data[_HEAD_V2 : _HEAD_V2 + width])
            port_at = _HEAD_V2 + 2 * width
            port = int.from_bytes(data[port_at : port_at + 2], "big")
            self.source = show_address(unmapped(str(address)), port)
        return size


def _may_become(data: bytes, signature: bytes) -> bool:
    """Return whether data begins with a signature, or with a part of it if data is shorter."""
    size = min(len(data), len(signature))
    return data[:size] == signature[:size]
