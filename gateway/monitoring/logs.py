"""The log: one line for each event, as text for people, or as logfmt or JSON for programs.

A line of logfmt or JSON has `time` (UTC), `level`, `logger` and `message`, and the event's other values. While a
request is handled it also has `user`, and `request`: the client's address and the number that the client gave to the
request. A traceback is in `traceback`. Workers write to one log, so their lines have `broker`, the worker's name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from io import TextIOBase
from typing import Any, Final, cast

from twisted.logger import (
    FilteringLogObserver,
    LogBeginner,
    Logger,
    LogLevel,
    LogLevelFilterPredicate,
    formatEvent,
    textFileLogObserver,
)

from gateway.router import GATEWAY, Actor, Call
from gateway.settings.config import Config

MOST_ALIKE: Final = 100
"""Lines with the same text, apart from the values in it, that are written in a span. Thousands of clients may fail in
the same way at once, and again and again: a line for each time would fill the disk."""

SPAN_SECONDS: Final = 10.0

_OWN: Final = ("log_", "_")
"""Prefixes of the names that Twisted adds to an event."""

_LEGACY: Final = "log_legacy"
"""The namespace of Twisted's older way of logging. Its events matter only for debugging: ports report their address and
their end by names of classes, and the gateway logs both itself."""

_BARE: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+#@%[]"
)
"""Characters that logfmt needs no quotes for."""


_Kind = tuple[str | None, str | None]
"""What alike events have in common: their logger, and their text without values."""


class Logs:
    """Writes the events of a level and above, but of many that are alike in a span only the first, and their number.
    The level can be changed while the gateway serves.

    :param worker: the broker's name of a worker.
    :param actor: returns the sender of the current request; set once there is a gateway.
    """

    log = Logger()

    def __init__(self, config: Config, stream: TextIOBase, worker: str | None = None) -> None:
        self._worker = worker
        self._alike: Counter[_Kind] = Counter()
        self._left_out: dict[_Kind, dict[str, Any]] = {}  # the last event of each kind
        self.actor: Callable[[], Actor] = lambda: GATEWAY
        self._stream = stream
        self.configure(config)

    def begin(self, beginner: LogBeginner) -> None:
        """Begin to write the events of Twisted's loggers."""
        observe: Any = self.observe
        beginner.beginLoggingTo([observe], redirectStandardIO=False, discardBuffer=True)

    def configure(self, config: Config) -> None:
        """Apply the level and the format of the settings."""
        level = LogLevel.lookupByName(config.log_level)
        predicate: Any = LogLevelFilterPredicate(level)
        of_ports = level if level == LogLevel.debug else max(level, LogLevel.warn)
        predicate.setLogLevelForNamespace(_LEGACY, of_ports)
        if config.log_format == "text":
            write: Any = self._text_writer()
        else:
            write = self._writer(_json if config.log_format == "json" else _logfmt)
        self._observer: Any = FilteringLogObserver(self._limited(write), [predicate])

    def observe(self, event: dict[str, Any]) -> None:
        """Write an event if its level is high enough."""
        self._observer(event)

    def end_span(self) -> None:
        """Log how many events were left out, and leave none out until there are too many again."""
        alike, self._alike = self._alike, Counter()
        left_out, self._left_out = self._left_out, {}
        for kind, event in left_out.items():
            self.log.emit(
                event["log_level"],
                "{count} more lines like this one were left out: {line}",
                count=alike[kind] - MOST_ALIKE,
                line=formatEvent(event),
            )

    def _limited(self, write: Callable[[dict[str, Any]], None]) -> Any:
        def write_some(event: dict[str, Any]) -> None:
            kind = (event.get("log_namespace"), event.get("log_format"))
            # Who sets the level to debug wants every line of it.
            if event["log_level"] != LogLevel.debug:
                self._alike[kind] += 1
            if self._alike[kind] <= MOST_ALIKE:
                write(event)
            else:
                self._left_out[kind] = event

        return write_some

    def _text_writer(self) -> Callable[[dict[str, Any]], None]:
        write: Any = textFileLogObserver(cast(Any, self._stream))

        def write_named(event: dict[str, Any]) -> None:
            namespace, level = event.get("log_namespace", "-"), event["log_level"].name
            write({**event, "log_system": f"{self._worker} {namespace}#{level}"})

        return write if self._worker is None else write_named

    def _writer(self, form: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], None]:
        def write(event: dict[str, Any]) -> None:
            self._stream.write(form(_line(event, self.actor(), self._worker)) + "\n")
            self._stream.flush()

        return write


def _line(event: dict[str, Any], actor: Actor, worker: str | None) -> dict[str, Any]:
    """Return the fields of an event's line."""
    at = datetime.fromtimestamp(event["log_time"], UTC).isoformat(timespec="milliseconds")
    line = {
        "time": at.replace("+00:00", "Z"),
        "level": event["log_level"].name,
        "logger": event.get("log_namespace", ""),
        "message": formatEvent(event),
    }
    if worker is not None:
        line["broker"] = worker
    for name, value in event.items():
        if not name.startswith(_OWN) and name not in line:
            line[name] = value if isinstance(value, str | int | float) else str(value)
    if isinstance(actor, Call):
        line["request"] = actor.request
        if actor.name:
            line["user"] = actor.name
    failure = event.get("log_failure")
    if failure is not None:
        line["traceback"] = failure.getTraceback()
    return line


def _json(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False)


def _logfmt(line: dict[str, Any]) -> str:
    return " ".join(f"{name}={_word(value)}" for name, value in line.items())


def _word(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if text and _BARE.issuperset(text) else json.dumps(text, ensure_ascii=False)
