"""A gateway with authentication, its super user, and more users as tests need them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.access.signed import (
    ROOT,
    ROOT_KEY,
    Login,
    SignedClient,
    create_user,
    put_acl,
)
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import MemoryGateway


@pytest.fixture
def guarded(make_gateway: MakeGateway, tmp_path: Path) -> MemoryGateway:
    """A gateway with authentication and authorization, and one super user."""
    file = tmp_path / "initial-user.json"
    file.write_text(json.dumps({"username": ROOT, "password": ROOT_KEY}))
    return make_gateway(authentication=True, authorization=True, initial_user_file=file)


@pytest.fixture
def root(guarded: MemoryGateway) -> SignedClient:
    """The super user's connection."""
    return SignedClient(guarded, ROOT, ROOT_KEY)


@pytest.fixture
def login(guarded: MemoryGateway, root: SignedClient) -> Login:
    """Makes a user with permissions such as `("Topic:orders", "Pub")`, and connects."""

    def make(*grants: tuple[str, str], name: str = "alice", host: str = "127.0.0.1") -> Any:
        assert create_user(root, name).code == 0
        for resource, actions in grants:
            assert put_acl(root, name, resource, actions.split(",")).code == 0
        return SignedClient(guarded, name, "secret", host)

    return make
