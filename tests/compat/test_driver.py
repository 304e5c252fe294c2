"""The processes that drive real clients and tools, where they end too soon or do not start."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import pytest

from compat.clients.driver import Driver, DriverError
from compat.java_tools import Dashboard, Mqadmin, ToolError
from compat.toolchain.folder import ToolchainError

ENDS_AT_A_REQUEST = """
import sys
print('{"ready": true}', flush=True)
sys.stdin.readline()
"""

ANSWERS_NONSENSE = """
import sys
print('{"ready": true}', flush=True)
for line in sys.stdin:
    print("no JSON", flush=True)
"""


def test_a_driver_whose_answers_cannot_be_read_has_ended() -> None:
    with Driver("test", lambda _: [sys.executable, "-c", ANSWERS_NONSENSE]) as driver:
        for end in ("ended", "has ended"):
            with pytest.raises(DriverError, match=f"the driver test {end}: .*cannot be read"):
                driver.call("anything")


def test_all_who_wait_are_told_that_it_has_ended() -> None:
    """Also while a caller has not taken its answer yet."""
    with Driver("test", lambda _: [sys.executable, "-c", ENDS_AT_A_REQUEST]) as driver:
        answered = Future[Any]()
        answered.set_result(None)
        driver._waiting[0] = answered
        with pytest.raises(DriverError, match="the driver test ended"):
            driver.call("anything")
        del driver._waiting[0]


def no_java(*_: object) -> NoReturn:
    raise ToolchainError("there is no Java")


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (no_java, ToolchainError),
        (lambda _: ["/nothing/of/this/name"], FileNotFoundError),
        (lambda _: [sys.executable, "-c", ""], DriverError),
    ],
)
def test_a_driver_that_does_not_start_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[[Path], list[str]],
    error: type[Exception],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(error):
        Driver("test", command).start()
    assert list(tmp_path.iterdir()) == []


def test_a_tool_that_does_not_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("compat.java_tools.classpath", no_java)
    with pytest.raises(ToolchainError), Mqadmin("127.0.0.1:1", ("access", "secret")):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_call_of_no_method_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers would seem to refuse it alike."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dashboard = Dashboard("127.0.0.1:1")
    monkeypatch.setattr(
        dashboard, "_ask", lambda _: '{"refused":17,"said":"MQClientException: no"}'
    )
    assert dashboard.call("examineTopicStats", "none") == {"refused": 17}
    monkeypatch.setattr(dashboard, "_ask", lambda _: '{"said":"NoSuchMethodException: [x]"}')
    with pytest.raises(ToolError, match="NoSuchMethodException"):
        dashboard.call("x")
