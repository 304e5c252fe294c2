"""`tidegate completion` and `tidegate man`: completion scripts and manual pages, made from the commands' help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import rich_click as click
from click.shell_completion import get_completion_class

from gateway.cli.data_folder import FOLDER

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a completion script for a shell: the tab key then completes commands and flags.

    Write it to where your shell looks for such scripts, and start a new shell.

    \b
    Examples:
      tidegate completion bash > /etc/bash_completion.d/tidegate
      tidegate completion zsh > "${fpath[1]}/_tidegate"
      tidegate completion fish > ~/.config/fish/completions/tidegate.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(_root(), {}, "tidegate", "_TIDEGATE_COMPLETE").source())


@click.command()
@click.option(
    "--to",
    "target",
    required=True,
    type=FOLDER,
    metavar="DIR",
    help="Folder for the pages; created if it is missing.",
)
def man(target: Path) -> None:
    """Write a manual page for each command.

    The pages have the same text as --help; tidegate-serve.1 has all settings.

    \b
    Examples:
      tidegate man --to /usr/local/share/man/man1
      tidegate man --to ./man && man ./man/tidegate-serve.1
    """
    from importlib.metadata import version

    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, text in pages(_root(), f"tidegate {version('tidegate')}"):
            (target / f"{name}.1").write_text(text)
    except OSError as error:
        raise click.ClickException(f"cannot write to {target}: {error.strerror}") from None


def _root() -> click.Command:
    context = click.get_current_context()
    assert context is not None
    return context.find_root().command


def pages(command: click.Command, source: str) -> Iterator[tuple[str, str]]:
    """Yield the pages of a command and of its subcommands: names and texts in roff.

    :param source: the footer of each page, such as the version.
    """
    context = click.Context(command, info_name="tidegate", **command.context_settings)
    yield from _pages(context, source)


def _pages(context: click.Context, source: str) -> Iterator[tuple[str, str]]:
    yield _title(context), _page(context, source)
    for name, below in _below(context):
        yield from _pages(click.Context(below, info_name=name, parent=context), source)


def _below(context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of a group, by name."""
    group = context.command
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if command is not None and not command.hidden:
                yield name, command


def _title(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _page(context: click.Context, source: str) -> str:
    command = context.command
    title = _title(context)
    blocks = [block for block in (command.help or "").split("\n\n") if block.strip()]
    synopsis = " ".join(command.collect_usage_pieces(context))
    lines = [
        f'.TH "{title.upper()}" "1" "" "{source}" "Tidegate"',
        *(".SH NAME", f"{_roff(title)} \\- {_roff(_one_line(blocks[0]) if blocks else title)}"),
        *(".SH SYNOPSIS", f".B {_roff(context.command_path)}", _roff(synopsis)),
        *(".SH DESCRIPTION", *_paragraphs(blocks)),
    ]
    options = [
        record
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option)
        and (record := parameter.get_help_record(context)) is not None
    ]
    if options:
        lines.append(".SH OPTIONS")
        for flags, meaning in options:
            lines += [".TP", f".B {_roff(flags)}", _roff(_one_line(meaning))]
    commands = list(_below(context))
    if commands:
        lines.append(".SH COMMANDS")
        for name, below in commands:
            page = _roff(f"{title}-{name}")
            lines += [".TP", f".BR {page} (1)", _roff(below.get_short_help_str(200))]
    return "\n".join(lines) + "\n"


def _paragraphs(blocks: list[str]) -> Iterator[str]:
    for block in blocks:
        text = block.strip("\n")
        yield ".PP"
        if text.lstrip().startswith("\b"):
            # Lines that are kept as they are, such as examples.
            kept = dedent(text.partition("\n")[2]).rstrip()
            yield from (".nf", *(_roff(line) for line in kept.splitlines()), ".fi")
        else:
            yield _roff(_one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _roff(text: str) -> str:
    """Escape what has a meaning to roff."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text)
