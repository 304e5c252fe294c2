"""How connections begin: PROXY headers of both versions, TLS, frames."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.opening import Opening, OpeningError

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
FRAME = b"\0\0\0\x0arest"


def version_2(command: int, family: int, block: bytes) -> bytes:
    return SIGNATURE + bytes((command, family)) + len(block).to_bytes(2, "big") + block


def block(source: str, target: str, more: bytes = b"") -> bytes:
    hosts = ipaddress.ip_address(source).packed + ipaddress.ip_address(target).packed
    return hosts + (51_000).to_bytes(2, "big") + (9_876).to_bytes(2, "big") + more


HEADERS = [
    (b"PROXY TCP4 192.0.2.1 192.0.2.7 51000 9876\r\n", "192.0.2.1:51000"),
    (b"PROXY TCP6 2001:db8::1 2001:db8::2 51000 9876\r\n", "[2001:db8::1]:51000"),
    (b"PROXY TCP6 ::ffff:192.0.2.1 ::ffff:192.0.2.7 51000 9876\r\n", "192.0.2.1:51000"),
    (version_2(0x21, 0x21, block("::ffff:192.0.2.1", "::ffff:192.0.2.7")), "192.0.2.1:51000"),
    (b"PROXY UNKNOWN\r\n", None),
    (
        b"PROXY UNKNOWN"
        + b" ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff" * 2
        + b" 65535" * 2
        + b"\r\n",
        None,
    ),
    (version_2(0x21, 0x11, block("192.0.2.1", "192.0.2.7")), "192.0.2.1:51000"),
    (version_2(0x21, 0x21, block("2001:db8::1", "::2", b"\4\0\1x")), "[2001:db8::1]:51000"),
    (version_2(0x21, 0x11, block("192.0.2.1", "192.0.2.7", bytes(300))), "192.0.2.1:51000"),
    (version_2(0x20, 0x11, block("192.0.2.1", "192.0.2.7")), None),
    (version_2(0x20, 0x00, b""), None),
    (version_2(0x21, 0x00, b"anything"), None),
    (version_2(0x21, 0x31, bytes(216)), None),
]


@pytest.mark.parametrize(("header", "source"), HEADERS)
def test_a_header_is_taken_off_however_it_arrives(header: bytes, source: str | None) -> None:
    data = header + FRAME
    for size in (1, 5, 16, len(data)):
        opening = Opening()
        known = [opening.feed(data[at : at + size]) for at in range(0, len(header) + 1, size)]
        assert known[-1]
        assert not any(known[:-1])
        assert opening.source == source
        assert not opening.is_tls
        assert FRAME.startswith(opening.rest)
        assert opening.rest


def test_frames_may_begin_at_once() -> None:
    opening = Opening()
    assert not opening.feed(b"")
    assert opening.feed(FRAME)
    assert (opening.source, opening.is_tls, opening.rest) == (None, False, FRAME)


@pytest.mark.parametrize("header", [b"", HEADERS[0][0], HEADERS[7][0]])
def test_tls_with_and_without_a_header(header: bytes) -> None:
    opening = Opening()
    assert opening.feed(header + b"\x16\x03\x01")
    assert opening.is_tls
    assert opening.rest == b"\x16\x03\x01"


@pytest.mark.parametrize(("header", "source"), [HEADERS[0], HEADERS[4], HEADERS[6], HEADERS[10]])
def test_only_one_header_is_taken(header: bytes, source: str | None) -> None:
    """A client must not name itself by a header of its own behind the load balancer's, however they arrive."""
    own = b"PROXY TCP4 203.0.113.9 192.0.2.7 1 9876\r\n"
    for size in (1, len(header), len(header + own)):
        opening = Opening()
        data = header + own
        start = max(size, len(header) + 1)  # what follows is clear with its first byte
        assert any(opening.feed(data[at : at + size]) for at in range(0, start, size))
        assert own.startswith(opening.rest)
        assert opening.source == source


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY\r\n",
        b"PROXY TCP4 192.0.2.1\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.7 51000\r\n",
        b"PROXYX TCP4 192.0.2.1 192.0.2.7 51000 9876\r\n",
        b"PROXY UDP4 192.0.2.1 192.0.2.7 51000 9876\r\n",
        b"PROXY TCP4 192.0.2.1 elsewhere 51000 9876\r\n",
        b"PROXY TCP4 ::1 ::1 51000 9876\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.7 51000 65536\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.7 0000165536 9876\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.7 -1 9876\r\n",
        b"PROXYTCP4 192.0.2.1 192.0.2.7 1 9876\r\n",
        b"PROXY TCP4 " + b"1" * 96,
        b"PROXY TCP6 fe80::1%eth0 ::1 51000 9876\r\n",
        b"PROXY TCP6 fe80::1%a\nclosed ::1 51000 9876\r\n",
        version_2(0x11, 0x11, block("192.0.2.1", "192.0.2.7")),
        version_2(0x22, 0x11, block("192.0.2.1", "192.0.2.7")),
        version_2(0x21, 0x11, bytes(11)),
        version_2(0x21, 0x21, bytes(35)),
    ],
)
def test_malformed_headers(data: bytes) -> None:
    with pytest.raises(OpeningError) as refused:
        Opening().feed(data)
    assert str(refused.value).isprintable()


@given(st.binary(max_size=130), st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE]))
def test_any_beginning_is_known_refused_or_waited_for(data: bytes, start: bytes) -> None:
    opening = Opening()
    try:
        known = opening.feed(start + data)
    except OpeningError:
        return
    assert (start + data).endswith(opening.rest)
    assert known <= bool(opening.rest)
