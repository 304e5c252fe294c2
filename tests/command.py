"""The command `tidegate`, run in the tests' own process; `conftest.py` has the fixture of that name."""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

import pytest

from gateway import cli


class Run(NamedTuple):
    """What a command printed, and the status it ended with."""

    status: int
    out: str
    err: str

    def ok(self) -> str:
        """What it printed: it has ended well."""
        assert self.status == 0, self.err
        return self.out

    def told(self) -> list[dict[str, Any]]:
        """What it told a program, by `--json`."""
        return [json.loads(line) for line in self.ok().splitlines()]


class Tidegate:
    """Runs the command with arguments; a server given beside them is what TIDEGATE_SERVER names."""

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
