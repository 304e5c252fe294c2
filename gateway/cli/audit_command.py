"""`tidegate audit`: shows who aborted, rescheduled or administered what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

from gateway.cli.asking import moment, refuse_empty
from gateway.cli.data_folder import data_option, tell


@click.command()
@data_option
@click.option("--who", metavar="NAME", help="Changes by this user, or from this address.")
@click.option("--topic", metavar="TOPIC", help="Changes to this topic or its messages.")
@click.option(
    "--id", "message_id", metavar="ID", help="Changes to the message with this id, the client's."
)
@click.option(
    "--action",
    metavar="ACTION",
    help="Changes of this kind, such as abort or update_broker_config.",
)
@click.option("--from", "begin", metavar="TIME", callback=moment, help="At this time or later.")
@click.option("--to", "end", metavar="TIME", callback=moment, help="Before this time.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line, as in the log.")
def audit(
    data: Path,
    who: str | None,
    topic: str | None,
    message_id: str | None,
    action: str | None,
    begin: int | None,
    end: int | None,
    as_json: bool,
) -> None:
    """Show who aborted, rescheduled or administered what, the oldest first. A gateway may be serving.

    Reads audit.jsonl and its older files in the data folder. A TIME is written as for 'tidegate pending'.
    Lines begin with the local time; with --json it is UTC, as in the log. Times such as dueMs are epoch ms.

    \b
    Examples:
      tidegate audit --data ./data --from -1h
      tidegate audit --data ./data --topic orders --action abort
      tidegate audit --data ./data --who alice --json
    """
    from gateway.cli.display import json_lines, printable
    from gateway.moments import show_moment
    from gateway.monitoring.audit import FILE, read_lines
    from storage import DATA_FILE

    refuse_empty({"who": who, "topic": topic, "id": message_id, "action": action})
    if not any((data / name).exists() for name in (FILE, DATA_FILE)):
        raise click.ClickException(
            f"{data} is not a data folder: it has neither {FILE} nor {DATA_FILE}"
        )
    wanted = {"topic": topic, "msgId": message_id, "action": action}
    shown = 0
    for line in read_lines(data):
        at_ms = _epoch_ms(str(line.get("at", "")))
        if (
            (begin is not None and at_ms < begin)
            or (end is not None and at_ms >= end)
            or (who is not None and who not in (line.get("who"), line.get("from"), _host(line)))
            or any(text is not None and line.get(name) != text for name, text in wanted.items())
        ):
            continue
        shown += 1
        if as_json:
            json_lines([line])
        else:
            click.echo(printable(f"{show_moment(at_ms)}  {_text(line)}"))
    if not shown:
        tell("no line matches")


def _text(line: dict[str, Any]) -> str:
    """Return a line without its time, as people read it."""
    rest = (
        f"{name}={value}"
        for name, value in line.items()
        if name not in ("at", "who", "from", "action")
    )
    return f"{line.get('who') or '-'} {line.get('from')}  {line.get('action')}  {' '.join(rest)}"


def _host(line: dict[str, Any]) -> str:
    """Return the address of a line without its port."""
    return str(line.get("from", "")).rpartition(":")[0].strip("[]")


def _epoch_ms(text: str) -> int:
    from gateway.moments import parse_moment

    try:
        return parse_moment(text, 0)
    except ValueError:
        return 0
