"""Every `tidegate ...` in the README and the documents is an existing command, with existing flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from compat.command import compat
from gateway.cli.main import cli

PROJECT: Final = Path(__file__).parent.parent.parent
PAGES: Final = (PROJECT / "README.md", *sorted(PROJECT.glob("docs/*.md")))

_BLOCK: Final = re.compile(r"```\w*\n(.*?)```|^((?: {4}[^\n]*\n)+)", re.DOTALL | re.MULTILINE)
_IN_BLOCK: Final = re.compile(r"(?:^|[\s/])tidegate ([a-z].*)$", re.MULTILINE)
_IN_TEXT: Final = re.compile(r"`(?:\S*/)?tidegate ([a-z][^`]*)`")
_END: Final = re.compile(r"\s(?:[|>&#]|2>|\.\.\.).*|;.*")


def shown(page: Path) -> Iterator[str]:
    """Yield the arguments after each `tidegate` in a page, without comments and redirections of the output."""
    text = page.read_text()
    for block in map("".join, _BLOCK.findall(text)):
        yield from (_END.sub("", found) for found in _IN_BLOCK.findall(block.replace("\\\n", " ")))
    yield from (_END.sub("", found) for found in _IN_TEXT.findall(_BLOCK.sub("", text)))


def unknown(words: list[str]) -> list[str]:
    """Return the words of a command line that do not exist."""
    name, *rest = words
    command: click.Command | None = compat if name == "compat" else cli.commands.get(name)
    if isinstance(command, click.Group) and rest:
        name, *rest = rest
        command = command.commands.get(name)
    if command is None:
        return [name]
    if command.context_settings.get("ignore_unknown_options"):  # another parser reads its line
        return []
    parameters = command.get_params(click.Context(command))
    flags = {flag for each in parameters for flag in (*each.opts, *each.secondary_opts)}
    asked = (word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word))
    return [flag for flag in asked if flag not in flags]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_shown_is_there(page: Path) -> None:
    assert [(line, found) for line in shown(page) if (found := unknown(shlex.split(line)))] == []


def test_what_is_not_there_is_found() -> None:
    assert unknown(["pending", "--topic", "orders"]) == []
    assert unknown(["pendign"]) == ["pendign"]
    assert unknown(["recurring", "ad"]) == ["ad"]
    assert unknown(["abort", "--topics=orders"]) == ["--topics"]
    assert len(set(shown(PROJECT / "README.md"))) > 10
    # This page has its commands in indented blocks.
    assert "drain --data ./data --to NAMESRV:9876" in shown(PROJECT / "docs/moving.md")
