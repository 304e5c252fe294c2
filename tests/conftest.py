"""The command line, and what is started once for a whole run, at its first use: real clients, broker and browser."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from compat.clients.cpp import cpp_driver
from compat.clients.driver import Driver
from compat.clients.java import VERSIONS, Version, java_driver
from compat.real_broker import PATIENT, RealBroker
from compat.toolchain.cpp import has_cpp_client
from tests.browser import Browser, skip_without_browser
from tests.command import Tidegate
from tests.scratch import scratch_folder

# The time of an example only depends on how busy the machine is.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell has what it starts in the background ignore Ctrl-C, and so would the programs under test.
    signal.signal(signal.SIGINT, signal.default_int_handler)

COMPUTING: Final = ("tests/spark",)
WAITING: Final = ("tests/compat", "tests/live", "tests/web", "tests/ops")
"""Folders whose tests mostly wait."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files that compute and files that wait in turn, so that processes which share the tests by files use what the
    others leave. What remains for the end is short, so that they end at about the same time."""
    turns: dict[str, tuple[int, int]] = {}
    for order, folders in enumerate((COMPUTING, WAITING)):
        files = dict.fromkeys(
            file
            for folder in folders
            for file in map(file_of, items)
            if file.rpartition("/")[0] == folder
        )
        turns |= {file: (turn, order) for turn, file in enumerate(files)}
    items.sort(key=lambda item: turns.get(file_of(item), (len(turns), 0)))
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("live"):
            # Other programs and other users of the machine affect these tests. The summary reports what was run again.
            item.add_marker(pytest.mark.flaky(reruns=1))


def file_of(item: pytest.Item) -> str:
    """Return the file of a test, as its id names it."""
    return item.nodeid.partition("::")[0]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show in full why a first try failed, even if the second passes."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"first try of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture
def tmp_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A folder for this test alone (tests/scratch.py)."""
    if request.node.get_closest_marker("live"):
        yield tmp_path_factory.mktemp("live")
    else:
        with scratch_folder() as folder:
            yield folder


@pytest.fixture
def tidegate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Tidegate:
    """The command `tidegate` in this process, in an empty folder and without a configured server."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("TIDEGATE_SERVER", raising=False)
    return Tidegate(capsys)


@pytest.fixture(scope="session")
def drivers() -> Iterator[dict[Version, Driver]]:
    """A JVM for each generation of the Java client; a test that uses one starts it."""
    drivers = {version: java_driver(version) for version in VERSIONS}
    yield drivers
    for driver in drivers.values():
        driver.close()


@pytest.fixture(scope="session")
def cpp_process() -> Iterator[Driver]:
    """A process with rocketmq-client-python; a test that uses it starts it."""
    if not has_cpp_client():
        pytest.skip("there is no C++ client library for this kind of machine")
    driver = cpp_driver()
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def real_broker() -> Iterator[RealBroker]:
    """A real RocketMQ broker that all tests share; each test uses topics of its own."""
    with RealBroker(settings=PATIENT) as broker:
        yield broker


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium without a window; each `open` starts afresh."""
    skip_without_browser()
    with Browser() as browser:
        yield browser
