"""The examples and commands that the README tells readers to run, against a real gateway process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from compat.clients.driver import until
from compat.ports import free_port
from compat.toolchain.cpp import has_cpp_client
from compat.toolchain.folder import PROJECT
from gateway.cli.asking import now_ms
from tests.live.ledger import send
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live

RUN = [sys.executable, "-m", "compat.toolchain"]


def output_of(*command: str, status: int = 0) -> str:
    """Run a command that must end with this status, and return its output."""
    done = subprocess.run(
        [*command], cwd=PROJECT, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def tidegate(gateway: GatewayProcess, *arguments: str, status: int = 0) -> str:
    """Run `tidegate`, and return its output."""
    command = [sys.executable, "-m", "gateway", *arguments, "--server", gateway.address]
    return output_of(*command, status=status)


def test_the_java_example(own_gateway: GatewayProcess) -> None:
    said = output_of(*RUN, "run-java", "examples/OrderTimeout.java", own_gateway.address)
    assert "order-2 is paid: its close is taken back" in said
    assert "closing order-1" in said
    assert "closing order-2" not in said


def test_the_java_example_ends_where_no_gateway_serves() -> None:
    output_of(*RUN, "run-java", "examples/OrderTimeout.java", f"127.0.0.1:{free_port()}", status=1)


@pytest.mark.skipif(not has_cpp_client(), reason="no C++ client library for this kind of machine")
def test_the_python_example(own_gateway: GatewayProcess) -> None:
    for _ in ("the first time", "after another run, whose message may come once more"):
        said = output_of(*RUN, "run-python", "examples/order_timeout.py", own_gateway.address)
        assert "order-2 is paid: its close is taken back" in said
        assert "closing order-1" in said
        assert "closing order-2" not in said
        assert (
            tidegate(own_gateway, "pending", "--topic", "close-order") == ""
        )  # the example waited for its own message


@pytest.mark.skipif(not has_cpp_client(), reason="no C++ client library for this kind of machine")
def test_the_python_example_ends_after_an_error(own_gateway: GatewayProcess) -> None:
    """Here of the abort: the client takes two addresses, but the abort is for one."""
    addresses = f"{own_gateway.address};{own_gateway.address}"
    output_of(*RUN, "run-python", "examples/order_timeout.py", addresses, status=1)


def test_pending_and_abort(own_gateway: GatewayProcess) -> None:
    with own_gateway.client() as client:
        for number in range(25):
            assert send(client, f"ID{number:02}", now_ms() + 600_000)
        assert send(client, "SOON", now_ms() + 100)
    until(lambda: state_of(own_gateway, "SOON") == "fired", "the one for soon to fire")
    listed = tidegate(own_gateway, "pending", "--topic", "ledger", "--from", "now", "--to", "+1h")
    assert "ID00" in listed
    pages = tidegate(own_gateway, "pending", "--topic", "ledger", "--json", "--all")
    messages = [json.loads(line) for line in pages.splitlines()]
    assert {message["msgId"] for message in messages} == {f"ID{number:02}" for number in range(25)}
    shown = {"state", "dueMs", "topic", "queueId", "keys", "tags", "bornHost", "bodySize"}
    assert shown <= messages[0].keys()
    one = ("--id", "ID01", "--json")
    assert json.loads(tidegate(own_gateway, "abort", *one))["outcome"] == "aborted"
    again = tidegate(own_gateway, "abort", *one, status=3)
    assert json.loads(again)["outcome"] == "already aborted"
    offset_id = messages[0]["offsetMsgId"]
    found = tidegate(own_gateway, "pending", "--id", offset_id, "--state", "any", "--json")
    assert json.loads(found)["msgId"] == messages[0]["msgId"]
    fired = tidegate(own_gateway, "abort", "--id", "SOON", "--json", status=3)
    assert json.loads(fired)["outcome"] == "already fired"
    unknown = tidegate(own_gateway, "abort", "--id", "nothing", "--json", status=3)
    assert json.loads(unknown)["outcome"] == "unknown"


def state_of(gateway: GatewayProcess, message_id: str) -> str:
    """Return the state of a message."""
    found = tidegate(gateway, "pending", "--id", message_id, "--state", "any", "--json")
    state: str = json.loads(found)["state"]
    return state
