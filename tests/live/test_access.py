"""A real gateway that requires users: mqadmin 5.5.0 manages users and sends as them, and so does the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compat.java_tools import Mqadmin
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live


def pending(address: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `tidegate pending` with credentials in its environment."""
    command = [sys.executable, "-m", "gateway.cli", "pending", "--server", address, "--json"]
    return subprocess.run(
        command,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_mqadmin_manages_users_and_works_as_them(tmp_path: Path) -> None:
    user = tmp_path / "user.json"
    user.write_text(json.dumps({"username": "root", "password": "root-secret"}))
    flags = ("--authentication", "--authorization", "--initial-user-file", str(user))
    with GatewayProcess(tmp_path / "data", *flags) as gateway:
        at = ("-b", gateway.address)
        with Mqadmin(gateway.address, ("root", "root-secret")) as root:
            made = root.run("createUser", *at, "-u", "alice", "-p", "secret99", "-t", "Normal")
            assert "success" in made, made
            assert "alice" in root.run("listUser", *at)
            root.run("updateTopic", *at, "-t", "orders", "-r", "1", "-w", "1")
            root.run("updateTopic", *at, "-t", "secret", "-r", "1", "-w", "1")
            subject = ("-s", "User:alice")
            rights = ("-r", "Topic:ord*", "-a", "Pub,Sub", "-d", "Allow")
            granted = root.run("createAcl", *at, *subject, *rights)
            assert "success" in granted, granted
            assert "Topic:ord*" in root.run("getAcl", *at, *subject)
            assert "Topic:ord*" in root.run("listAcl", *at)
            with Mqadmin(gateway.address, ("alice", "secret99")) as alice:
                assert "SEND_OK" in alice.run("sendMessage", "-t", "orders", "-p", "hello")
                assert "no permission to access" in alice.run("topicStatus", "-t", "secret")
                refused = alice.run("sendMessage", "-t", "secret", "-p", "hello")
                assert "SEND_OK" not in refused
                withdrawn = root.run("deleteAcl", *at, *subject, "-r", "Topic:ord*")
                assert "success" in withdrawn, withdrawn
                assert "SEND_OK" not in alice.run("sendMessage", "-t", "orders", "-p", "hello")
            root.run("updateUser", *at, "-u", "alice", "-s", "disable")
            assert "disable" in root.run("getUser", *at, "-u", "alice")
            deleted = root.run("deleteUser", *at, "-u", "alice")
            assert "success" in deleted, deleted
        stranger = pending(gateway.address)
        assert stranger.returncode == 1
        assert "username cannot be null." in stranger.stderr
        keys = {"TIDEGATE_ACCESS_KEY": "root", "TIDEGATE_SECRET_KEY": "root-secret"}
        assert pending(gateway.address, **keys).returncode == 0
