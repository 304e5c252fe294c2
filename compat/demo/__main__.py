"""`python -m compat.demo [--out DIR]`: records real clients, replays them, and makes a report."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from compat import children
from compat.children import StartError
from compat.clients.driver import ClientFailure, DriverError
from compat.demo.jobs import AGAIN, BASELINE, jobs
from compat.demo.recording import SETTINGS, record
from compat.java_tools import ToolError
from compat.real_broker import RealBroker, RealBrokerError
from compat.toolchain.folder import ToolchainError

_PATIENCE_S: Final = 10.0
"""How long a replay waits for answers, such as those to pulls that wait when the recording ends."""
_DIFFERENT: Final = 3
"""The exit status of jobs that found a difference."""


class DemoError(Exception):
    """The jobs failed; the text is one line."""


_INTERRUPTED: Final = 130
"""The exit status of an interrupted program, as a shell gives it."""

_KNOWN_ERRORS: Final = (
    *(ClientFailure, DemoError, DriverError, OSError, RealBrokerError),
    *(StartError, ToolError, ToolchainError),
)


class Demo:
    """One demonstration in one folder."""

    def __init__(self, folder: Path, speed: float, master: str) -> None:
        self._folder = folder
        self._speed = speed
        self._master = master
        self._began = time.monotonic()

    def run(self) -> Path:
        """Run the whole demonstration and return the report's page. Raises DemoError."""
        self._title("Real clients talk to a real RocketMQ 5.5.0 and are recorded")
        recorded = record(self._folder, self._tell)
        self._title("Where it is sent again: to Tidegate, and twice to a fresh RocketMQ 5.5.0")
        with self._gateway() as gateway, self._broker() as broker, self._broker() as again:
            targets = {"tidegate": gateway, BASELINE: broker, AGAIN: again}
            self._title("Tables, profile, replays, comparison, report: in one Spark session")
            self._run_jobs(
                jobs(
                    *(self._folder, recorded, targets),
                    candidate="tidegate",
                    speed=self._speed,
                    patience=_PATIENCE_S,
                )
            )
        return self._folder / "report" / "report.html"

    def _run_jobs(self, lines: Sequence[Sequence[str]]) -> None:
        file = self._folder / "jobs"
        file.write_text("".join(f"{shlex.join(line)}\n" for line in lines))
        command = ("jobs", str(file), "--master", self._master)
        self._tell(f"$ tidegate {' '.join(command)}")
        process = children.start(
            [sys.executable, "-m", "gateway", *command],
            folder=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        for line in process.stdout:
            self._tell(f"  {line.decode().rstrip()}")
        status = process.wait()
        process.stdout.close()
        if status not in (0, _DIFFERENT):
            raise DemoError(f"tidegate jobs failed with status {status}")

    @contextmanager
    def _gateway(self) -> Iterator[str]:
        flags = (
            *("serve", "--data", str(self._folder / "data"), "--listen", "127.0.0.1:0"),
            *("--transaction-timeout", "3s", "--transaction-check-interval", "1s"),
        )
        self._tell(f"$ tidegate {' '.join(flags)}")
        log = self._folder / "tidegate.log"
        with children.server("gateway", *flags, output=log) as server:
            yield server.address

    @contextmanager
    def _broker(self) -> Iterator[str]:
        with RealBroker(settings=SETTINGS) as broker:
            self._tell(f"RocketMQ 5.5.0: name server {broker.namesrv_address}")
            yield broker.namesrv_address

    def _title(self, text: str) -> None:
        print(f"\n== {text}", flush=True)

    def _tell(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)


def main() -> int:
    """Run the demonstration and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m compat.demo", description=__doc__)
    parser.add_argument(
        "--out", type=Path, help="a new folder; default: one in the temporary folder"
    )
    parser.add_argument(
        "--speed", type=float, default=2.0, help="how much faster the replays are; default: 2"
    )
    parser.add_argument("--master", default="local[2]", help="Spark's master; default: local[2]")
    options = parser.parse_args()
    if options.out is not None and options.out.is_dir() and any(options.out.iterdir()):
        parser.error(f"{options.out} is not empty: name a new folder")
    folder = options.out or Path(tempfile.mkdtemp(prefix="tidegate-demo-"))
    children.end_in_order()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        report = Demo(folder.resolve(), options.speed, options.master).run()
    except _KNOWN_ERRORS as error:
        print(f"demo: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"demo: interrupted; what there is so far is in {folder}", file=sys.stderr)
        return _INTERRUPTED
    print(f"\nEverything is in {folder}. Open the report: {report}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
