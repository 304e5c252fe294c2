"""The process that drives a real client, where it ends too soon."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from typing import Any

import pytest

from compat.clients.driver import Driver, DriverError

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
