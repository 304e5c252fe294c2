"""Addresses as text, and back."""

from __future__ import annotations

import pytest

from gateway.wire.addresses import parse_address, parse_port, show_address


@pytest.mark.parametrize("address", [("127.0.0.1", 9876), ("::1", 65_535), ("broker.example", 1)])
def test_what_is_shown_is_read(address: tuple[str, int]) -> None:
    assert parse_address(show_address(*address)) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "9876", ":9876", "host:", "host:0", "host:65536", "host:-1", "host:9876 "),
        *(
            "host:²",
            "host:\u0665",
            "host:000001",
            "host:" + "9" * 5_000,
            "host:" + "0" * 5_000,
            "host:00000065536",
        ),
        *("http://127.0.0.1:9876", "http://127.0.0.1:9877/"),
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT") as refused:
        parse_address(text)
    assert len(str(refused.value)) < 200


def test_a_port_may_be_0_where_one_is_to_be_chosen() -> None:
    assert (parse_port("0"), parse_port("65535")) == (0, 65_535)
    with pytest.raises(ValueError, match="'65536' is not a port from 0 to 65535"):
        parse_port("65536")
