"""What the leader of several workers tells them of a request that it passes on: the address that it came from, which
policies may name. It is believed by the key that the leader and its workers share."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from gateway.wire.signatures import SENDER, SENDER_PROOF, sign


def vouched(host: str, key: bytes) -> dict[str, str]:
    """Return the fields, or the headers, that tell a sender's IP address."""
    return {SENDER: host, SENDER_PROOF: _proof(host, key)}


def vouched_host(told: Callable[[str], str | None], key: bytes | None) -> str | None:
    """Return the sender's IP address that the leader tells; None where it tells none.

    :param told: returns a field or a header by its name.
    :param key: None where this process is no worker.
    """
    host, proof = told(SENDER), told(SENDER_PROOF)
    if key is None or host is None or proof is None:
        return None
    right = _proof(host, key).encode()
    return host if hmac.compare_digest(right, proof.encode()) else None


def _proof(host: str, key: bytes) -> str:
    return sign({SENDER: host}, b"", key)
