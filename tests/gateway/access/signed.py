"""Clients that sign their requests, and the requests of mqadmin for users and policies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.wire.commands import Command
from gateway.wire.signatures import ACCESS_KEY, SIGNATURE, sign
from tests.gateway.memory import MemoryClient, MemoryGateway

ROOT, ROOT_KEY = "root", "root secret"

Login = Callable[..., "SignedClient"]


class SignedClient(MemoryClient):
    """A connection whose requests are signed."""

    def __init__(
        self, gateway: MemoryGateway, name: str, key: str, host: str = "127.0.0.1"
    ) -> None:
        super().__init__(gateway, host)
        self._name = name
        self._key = key

    def send(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        **options: Any,
    ) -> int:
        """Send a request. Return its opaque."""
        fields = {**(ext or {}), ACCESS_KEY: self._name}
        fields[SIGNATURE] = sign(fields, body, self._key.encode())
        return super().send(code, fields, body, **options)


def create_user(client: MemoryClient, name: str, **info: str) -> Command:
    """Add a user (3001)."""
    body = {"password": "secret", "userType": "Normal", **info}
    return client.ask(3001, {"username": name}, json.dumps(body).encode())


def put_acl(
    client: MemoryClient,
    name: str,
    resource: str,
    actions: Iterable[str],
    decision: str | None = "Allow",
    *,
    ips: Iterable[str] = (),
    code: int = 3006,
    policy_type: str | None = None,
) -> Command:
    """Add to a user's policies as mqadmin's createAcl does (3006)."""
    entry = {"resource": resource, "actions": list(actions), "decision": decision}
    if ips:
        entry["sourceIps"] = list(ips)
    policy = {"entries": [entry], **({"policyType": policy_type} if policy_type else {})}
    body = {"subject": f"User:{name}", "policies": [policy]}
    return client.ask(code, {"subject": f"User:{name}"}, json.dumps(body).encode())
