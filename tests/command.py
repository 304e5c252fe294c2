"""The command `tidegate`, run in the tests' own process; `conftest.py` has the fixture of that name."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

import pytest

from gateway.cli import main as cli


class Run(NamedTuple):
    """A command's output and exit status."""

    status: int
    out: str
    err: str

    def ok(self) -> str:
        """Return the output of a command that must have succeeded."""
        assert self.status == 0, self.err
        return self.out

    def told(self) -> list[dict[str, Any]]:
        """Return the lines that the command printed with `--json`."""
        return [json.loads(line) for line in self.ok().splitlines()]


class Tidegate:
    """Runs the command with arguments. A given server is set as TIDEGATE_SERVER."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, server: str | None = None) -> Run:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["tidegate", *arguments])
            if server is not None:
                patch.setenv("TIDEGATE_SERVER", server)
            status: object = 0
            try:
                cli.run()
            except SystemExit as end:
                status = end.code
        printed = self._capsys.readouterr()
        return Run(int(str(status or 0)), printed.out, printed.err)
