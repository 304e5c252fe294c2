"""Output of the command line: tables for people, JSON lines for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gateway.cli.data_folder import counted
from gateway.control_characters import SHOWN
from gateway.moments import show_distance, show_moment
from gateway.settings.config import descriptions
from gateway.settings.loading import Loaded
from gateway.settings.values import show_size
from gateway.wire.clock_bodies import ClockState
from gateway.wire.pending_bodies import AbortOutcome, HeldMessage, PausedTopic, RescheduleOutcome
from gateway.wire.recurring_bodies import RecurringMessage, RecurringTimes

if TYPE_CHECKING:
    from gateway.cli.recurring_client import Done

# Wide enough that nothing is folded or cut when the output goes to a file or another program.
_UNFOLDED = 10_000
_STATE_STYLE = {"pending": "cyan", "fired": "green", "aborted": "yellow"}
_RECURRING_STYLE = {"active": "green", "paused": "yellow"}
_OUTCOME_STYLE = {
    "aborted": "green",
    "rescheduled": "green",
    "already fired": "red",
    "already aborted": "yellow",
}


def printable(text: str) -> str:
    """Return a text with its unprintable characters escaped, such as `\\x1b`: they could control the terminal.

    Topics, keys and tags are any text that a client sent.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def _console() -> Console:
    console = Console(highlight=False, soft_wrap=False)
    return console if console.is_terminal else Console(width=_UNFOLDED, highlight=False)


def _table(*columns: str, right: Iterable[str] = ()) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _print(table: Table, narrow: Iterable[Text]) -> None:
    """Print a table or, on a terminal that is too narrow for it, these lines: it would break up ids and names, which
    people copy."""
    console = _console()
    if Measurement.get(console, console.options, table).maximum < console.width:
        console.print(table)
    else:
        console.print(*narrow, sep="\n", soft_wrap=True)


class MessageLines:
    """Prints each message as a line of JSON at once, and the cursor of a next page as the last line."""

    def add(self, page: Sequence[HeldMessage]) -> None:
        """Show a page."""
        json_lines(page)

    def end(self, cursor: str | None) -> None:
        """Print the cursor of the next page, if there is one."""
        if cursor is not None:
            print(json.dumps({"cursor": cursor}))


class MessageTable:
    """A table of all messages. After so many rows that its head is out of sight, another table begins. On a narrow
    terminal each message is three lines.

    The number of messages, and how to see more, is printed on standard error.

    :param none: what to print there if there are none.
    """

    MOST_ROWS = 500

    def __init__(self, now_ms: int, none: str = "no message matches") -> None:
        self._now_ms = now_ms
        self._none = none
        self._count = 0
        self._rows: list[tuple[str, ...]] = []

    def add(self, page: Sequence[HeldMessage]) -> None:
        """Keep a page for the table, and show the table if it is long."""
        for message in page:
            # One without a delay was due when it entered its queue.
            due_ms = message.due_ms or message.moved_ms or 0
            row = (
                show_moment(due_ms) if due_ms else "",
                show_distance(due_ms, self._now_ms) if due_ms else "",
                self._state(message),
                message.topic,
                str(message.queue_id),
                message.tags or "",
                message.keys or "",
                show_size(message.body_size),
                message.born_host or "",
                message.msg_id or message.offset_msg_id,
            )
            self._rows.append(tuple(map(printable, row)))
        self._count += len(page)
        if len(self._rows) >= self.MOST_ROWS:
            self._show()

    def _state(self, message: HeldMessage) -> str:
        """Return the state, with when a message fired or was aborted if it was not when it was due."""
        parts = [message.state]
        if message.moved_ms and message.due_ms:
            moved = show_distance(message.moved_ms, self._now_ms)
            if moved != show_distance(message.due_ms, self._now_ms):
                parts.append(moved)
        if message.rescheduled_ms:
            parts.append("rescheduled")
        return ", ".join(parts)

    def end(self, cursor: str | None) -> None:
        """Show the table, and say whether there is more."""
        count = self._count
        if self._rows:
            self._show()
        told = counted(count, "message") if count else self._none
        more = f"; more follow: --all, or --cursor {cursor}" if cursor is not None else ""
        print(told + more, file=sys.stderr)

    def _show(self) -> None:
        _print(self._table(), self._narrow())
        self._rows.clear()

    def _table(self) -> Table:
        table = _table(
            *("Due (local time)", "", "State", "Topic", "Queue", "Tag", "Keys", "Size", "From"),
            "Message id",
            right=("Queue", "Size"),
        )
        for row in self._rows:
            cells = [Text(cell) for cell in row]
            cells[2].style = _STATE_STYLE.get(row[2].partition(",")[0], "")
            table.add_row(*cells)
        return table

    def _narrow(self) -> Iterator[Text]:
        for due, distance, state, topic, queue, tags, keys, size, host, message_id in self._rows:
            head = Text(f"{due}  {distance}  ").append(
                state, _STATE_STYLE.get(state.partition(",")[0], "")
            )
            facts = f"  {topic}, queue {queue}"
            facts += f", tag {tags}" if tags else ""
            facts += f", keys {keys}" if keys else ""
            facts += f", size {size}"
            facts += f", from {host}" if host else ""
            yield from (head, Text(facts), Text(f"  {message_id}"))


def outcome_table(
    outcomes: Sequence[AbortOutcome] | Sequence[RescheduleOutcome], now_ms: int
) -> None:
    """Print the outcome for each message."""
    if not outcomes:
        print("no message matches", file=sys.stderr)
        return
    table = _table("Outcome", "Due (local time)", "", "Topic", "Message id")
    narrow: list[Text] = []
    for outcome in outcomes:
        what = Text(outcome.outcome, _OUTCOME_STYLE.get(outcome.outcome, "red"))
        due = show_moment(outcome.due_ms) if outcome.due_ms else ""
        distance = show_distance(outcome.due_ms, now_ms) if outcome.due_ms else ""
        topic, message_id = printable(outcome.topic or ""), printable(outcome.msg_id or "")
        table.add_row(what, due, distance, Text(topic), Text(message_id))
        narrow += (
            Text.assemble(what, f"  {due}  {distance}"),
            Text(f"  {topic}"),
            Text(f"  {message_id}"),
        )
    _print(table, narrow)


def changed(count: int, done: str, *, as_json: bool) -> None:
    """Print how many messages match, or were changed."""
    if as_json:
        print(json.dumps({"messages": count}))
    elif not count:
        print("no message matches", file=sys.stderr)
    else:
        print(f"{counted(count, 'message')} {done}")


def paused_topics(topics: Sequence[PausedTopic], now_ms: int, *, as_json: bool) -> None:
    """Print the paused topics."""
    if as_json:
        json_lines(topics)
    elif not topics:
        print("no topic is paused", file=sys.stderr)
    else:
        for one in topics:
            print(_pause_text(one, now_ms))


def paused_note(topics: Iterable[PausedTopic], now_ms: int) -> None:
    """Print on standard error which of the shown topics are paused."""
    for one in topics:
        print(_pause_text(one, now_ms), file=sys.stderr)


def _pause_text(one: PausedTopic, now_ms: int) -> str:
    how = "resumed, on their way" if one.resumed else "due and waiting"
    since = f"{show_moment(one.since_ms)} ({show_distance(one.since_ms, now_ms)})"
    return f"{printable(one.topic)}: paused since {since}, {one.waiting:,} {how}"


def pause_set(topic: str, state: str, *, changed: bool, as_json: bool) -> None:
    """Print whether a topic was paused or resumed just now."""
    if as_json:
        print(json.dumps({"topic": topic, "changed": changed}))
    elif changed:
        print(f"{printable(topic)}: {state}")
    else:
        was = "was paused before" if state == "paused" else "was not paused"
        print(f"{printable(topic)}: {was}")


def clock(state: ClockState, *, as_json: bool) -> None:
    """Print the time of a gateway's clock, and how many messages fired when it was moved."""
    if as_json:
        json_lines([state])
        return
    how = "stands still" if state.clock == "manual" else "the machine's"
    print(f"{show_moment(state.now_ms)} ({how})")
    if state.fired:
        print(f"{counted(state.fired, 'message')} fired")
    if state.next_due_ms is not None:
        print(f"next due {show_moment(state.next_due_ms)}")


def json_lines(found: Iterable[object]) -> None:
    """Print one JSON object a line. Control characters that JSON may have as they are could control the terminal: they
    are escaped too."""
    for one in found:
        print(msgspec.json.encode(one).decode().translate(SHOWN))


def recurring_table(found: Sequence[RecurringMessage], now_ms: int) -> None:
    """Print recurring messages with their rules and next times."""
    table = _table(
        *("Topic", "Name", "State", "Recurs", "Next (local time)", "", "Fired", "Misfire"),
        right=("Fired",),
    )
    narrow: list[Text] = []
    for one in found:
        topic, name = printable(one.topic), printable(one.name)
        state = Text(one.state, _RECURRING_STYLE.get(one.state, ""))
        rule = f"{one.cron} ({one.zone})" if one.cron is not None else f"every {one.every}"
        due, distance = show_moment(one.next_ms), show_distance(one.next_ms, now_ms)
        fired = f"{one.fired:,}" + (f" of {one.count:,}" if one.count is not None else "")
        table.add_row(
            *(Text(topic), Text(name), state, Text(rule), due, distance, fired, one.misfire)
        )
        narrow += (
            Text.assemble(f"{topic}  {name}  ", state),
            Text(f"  {rule}, misfire {one.misfire}"),
            Text(f"  next {due}, {distance}; fired {fired}"),
        )
    if found:
        _print(table, narrow)
    print(counted(len(found), "recurring message"), file=sys.stderr)


def recurring_change(done: Done, now_ms: int, *, as_json: bool) -> None:
    """Print what was done to a recurring message."""
    if as_json:
        json_lines([done])
        return
    line = f"{done.topic} {done.name}: {done.outcome}"
    if done.outcome != "deleted":
        state = "" if done.outcome.endswith(done.state) else f", {done.state}"
        if done.state == "paused":
            then = "the next would be"
        elif done.next_ms < now_ms:
            then = "its misfire policy decides about"
        else:
            then = "the next is"
        distance = show_distance(done.next_ms, now_ms)
        line += f"{state}; {then} {show_moment(done.next_ms)}, {distance}"
    print(printable(line))


def recurring_times(found: RecurringTimes, now_ms: int, *, as_json: bool) -> None:
    """Print the times of a rule, also in the rule's own zone if it differs."""
    if as_json:
        json_lines([found])
        return
    table = _table("Local time", "", f"In {found.zone}")
    for time_ms in found.times:
        table.add_row(
            show_moment(time_ms), show_distance(time_ms, now_ms), _in_zone(time_ms, found.zone)
        )
    _console().print(table)


def _in_zone(time_ms: int, zone: str) -> str:
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, ZoneInfo(zone))
    except (OverflowError, ValueError, KeyError):
        # Past the year 9999, or a zone that only the gateway's machine has.
        return ""
    return moment.strftime("%a %Y-%m-%d %H:%M:%S %Z")


def settings_table(loaded: Loaded) -> None:
    """Print every setting with its value, the value's origin, its default and its meaning."""
    table = _table("Setting", "Value", "From", "Default", "Meaning")
    group = ""
    for entry in descriptions().values():
        if entry.about.group != group:
            group = entry.about.group
            table.add_section()
            table.add_row(Text(group, "bold"))
        value = entry.show(getattr(loaded.config, entry.name))
        origin = loaded.origins.get(entry.name, "")
        table.add_row(
            Text(entry.name),
            Text(printable(value) or "-", "cyan" if origin else ""),
            Text(origin or "default"),
            Text("" if not origin else entry.show(entry.default) or "-"),
            Text(entry.meaning),
        )
    _console().print(table)


def settings_json(loaded: Loaded) -> str:
    """Return the settings as a JSON object. Sizes are in bytes, durations in seconds; a setting without a value is
    null.
    """
    return json.dumps(
        {
            entry.name: {
                "value": entry.plain(getattr(loaded.config, entry.name)),
                "from": loaded.origins.get(entry.name, "default"),
                "default": entry.plain(entry.default),
                "unit": entry.about.unit,
                "meaning": entry.meaning,
                "flag": entry.flag,
                "variable": entry.variable,
                "upstream": entry.about.upstream,
            }
            for entry in descriptions().values()
        },
        indent=2,
        ensure_ascii=False,
    )
