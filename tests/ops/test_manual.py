"""Shell completion and manual pages, made from the commands' help."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import rich_click as click

from gateway.cli.main import cli
from tests.ops.conftest import Command


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(tidegate: Command, shell: str) -> None:
    done = tidegate("completion", shell)
    assert done.returncode == 0, done.stderr
    assert f"_TIDEGATE_COMPLETE={shell}_complete" in done.stdout
    program = shutil.which(shell)
    if program is not None:
        checked = subprocess.run([program, "-n"], input=done.stdout.encode(), check=False)
        assert checked.returncode == 0


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("tidegate cl", ["clock"]),
        ("tidegate clock a", ["advance"]),
        ("tidegate serve --clo", ["--clock"]),
        ("tidegate pending --state f", ["fired"]),
    ],
)
def test_what_is_offered(typed: str, offered: list[str]) -> None:
    words = typed.split()
    done = subprocess.run(
        [sys.executable, "-m", "gateway"],
        env={
            **os.environ,
            "_TIDEGATE_COMPLETE": "bash_complete",
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(words) - 1),
        },
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == offered


def test_a_page_for_each_command(tidegate: Command, tmp_path: Path) -> None:
    done = tidegate("man", "--to", tmp_path / "man1")
    assert done.returncode == 0, done.stderr
    written = {file.name for file in (tmp_path / "man1").iterdir()}
    assert {"tidegate.1", *(f"tidegate-{name}.1" for name in cli.commands)} <= written
    for name, group in cli.commands.items():
        if isinstance(group, click.Group):
            assert {f"tidegate-{name}-{below}.1" for below in group.commands} <= written
    page = (tmp_path / "man1" / "tidegate-serve.1").read_text()
    assert page.startswith('.TH "TIDEGATE-SERVE" "1"')
    assert "\n.B \\-\\-max\\-delay DURATION\n" in page
    assert ".nf\nExamples:\n  tidegate serve\n" in page
    page = (tmp_path / "man1" / "tidegate-pause.1").read_text()
    assert "\n.B \\-h, \\-\\-help\n" in page
    assert "\n.B [TOPIC]\n" not in page  # it has no meaning of its own, as in --help
    groff = shutil.which("groff")
    if groff is not None:
        for file in (tmp_path / "man1").iterdir():
            checked = subprocess.run(
                [groff, "-man", "-Tutf8", "-ww", file], capture_output=True, check=True
            )
            assert checked.stderr == b""
