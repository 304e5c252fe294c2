"""`tidegate audit` on the audit log of a gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.router import Named
from tests.gateway.memory import MemoryGateway
from tests.ops.conftest import Command


@pytest.fixture
def gateway(gateway: MemoryGateway) -> MemoryGateway:
    audit = gateway.service.broker.audit
    with audit.acting(Named("alice", "192.0.2.1:5000")):
        audit.note("abort", topic="orders", msgId="A")
    gateway.advance(60_000)
    with audit.acting(Named("", "192.0.2.2:5000")):
        audit.note("abort", topic="bills", msgId="B\x1b[2J")
        audit.note("update_broker_config", body="x=1")
    return gateway


@pytest.mark.parametrize(
    ("asked", "actions"),
    [
        ((), ["abort A", "abort B\x1b[2J", "update_broker_config "]),
        (("--who", "alice"), ["abort A"]),
        (("--who", "192.0.2.2"), ["abort B\x1b[2J", "update_broker_config "]),
        (("--topic", "orders"), ["abort A"]),
        (("--id", "A"), ["abort A"]),
        (("--action", "update_broker_config"), ["update_broker_config "]),
        (("--to", "2027-01-15T08:00:30Z"), ["abort A"]),
        (("--from", "2027-01-15T08:00:30Z", "--topic", "orders"), []),
    ],
)
def test_lines_are_chosen(
    gateway: MemoryGateway, tidegate: Command, asked: tuple[str, ...], actions: list[str]
) -> None:
    done = tidegate("audit", "--data", gateway.data, "--json", *asked)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [f"{line['action']} {line.get('msgId', '')}" for line in lines] == actions
    assert done.stderr == ("" if actions else "no line matches\n")


def test_a_folder_without_data_is_refused(tidegate: Command, tmp_path: Path) -> None:
    done = tidegate("audit", "--data", tmp_path)
    assert done.returncode == 1
    assert f"{tmp_path} is not a data folder" in done.stderr


def test_files_that_somebody_put_beside_the_log_are_left_out(
    gateway: MemoryGateway, tidegate: Command
) -> None:
    (gateway.data / "audit.jsonl.gz").write_bytes(b"packed")
    done = tidegate("audit", "--data", gateway.data, "--json")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


def test_lines_for_people(gateway: MemoryGateway, tidegate: Command) -> None:
    done = tidegate("audit", "--data", gateway.data)
    first, second, third = done.stdout.splitlines()
    assert first.endswith("alice 192.0.2.1:5000  abort  topic=orders msgId=A")
    assert "\x1b" not in second
    assert third.endswith("- 192.0.2.2:5000  update_broker_config  body=x=1")
