"""The command `tidegate`, run in the tests' own process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway import cli
from tests.cli.fake import Run, Tidegate


@pytest.fixture
def tidegate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Tidegate:
    """Runs the command in this process, in an empty folder and without TIDEGATE_ variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("TIDEGATE_SERVER", raising=False)

    def run(*arguments: str) -> Run:
        monkeypatch.setattr(sys, "argv", ["tidegate", *arguments])
        status: object = 0
        try:
            cli.main()
        except SystemExit as end:
            status = end.code
        printed = capsys.readouterr()
        return Run(int(str(status or 0)), printed.out, printed.err)

    return run
