"""What the commands that work on a data folder share: which one, what they say, how they end."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import rich_click as click

FAULTY: Final = 4
"""Exit status when faults were found, or not everything could be done, beside those of `gateway.cli`."""

FOLDER: Final = click.Path(path_type=Path, file_okay=False)


def _one_folder(ctx: click.Context, param: click.Parameter, data: Path) -> Path:
    # Several workers have a folder each below the one that they were started with (gateway/worker_folders.py).
    workers = sorted(file.parent for file in data.glob("worker-*/data.mdb"))
    if workers and not (data / "data.mdb").exists():
        raise click.ClickException(
            f"{data} has a folder for each of {len(workers)} workers; name one of them, such as {workers[0]}"
        )
    return data


data_option = click.option(
    "--data",
    required=True,
    envvar="TIDEGATE_DATA",
    type=FOLDER,
    metavar="DIR",
    callback=_one_folder,
    help="The gateway's data folder. Variable: TIDEGATE_DATA.",
)
"""Adds the flag that names the folder to a command."""


def tell(text: str) -> None:
    """Say something on standard error: standard output is for what was asked for."""
    click.echo(text, err=True)
