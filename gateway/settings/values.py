"""How values of settings are written, read and shown: addresses, durations, sizes, switches and their like.

Each type of a setting (`Duration`, `Size`, ...) carries its parser and a `Kind`, which says what to write and how a
value is shown again. `config` has the settings themselves.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter

from gateway.wire.addresses import parse_port, show_address


class HostPort(NamedTuple):
    """A TCP address: an IP address as text and a port, where 0 is a port still to be chosen."""

    host: str
    port: int

    def __str__(self) -> str:
        return show_address(*self)

    @property
    def from_here(self) -> HostPort:
        """The address by which a process of this machine reaches what listens there, perhaps on all addresses."""
        host = ipaddress.ip_address(self.host)
        if not host.is_unspecified:
            return self
        return HostPort("127.0.0.1" if host.version == 4 else "::1", self.port)


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of one type are written and shown."""

    expects: str
    """What to write, for the end of an error line."""
    show: Callable[[Any], str] = str
    """A value as text that the setting accepts again."""
    plain: Callable[[Any], object] = str
    """A value as JSON has it."""
    metavar: str = "TEXT"
    bare: bool = False
    """Whether a TOML file has it without quotes."""


_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION_UNIT_MS: Final = {"ms": 1, **_UNIT_MS, "w": 7 * 86_400_000}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+")
_MINUTES_OR_MONTHS = re.compile(r"\d+(?:\.\d+)?M")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_ISO_DURATION: Final = TypeAdapter(timedelta)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)
_SIZE_POWER: Final = {"k": 1, "m": 2, "g": 3, "t": 4}
LONGEST_NAME: Final = 127
"""Most characters of a broker's or a cluster's name."""

LONGEST: Final = timedelta(days=36_500)
"""No duration may be longer: about 100 years."""


def parse_host_port(value: object) -> HostPort:
    """Read `HOST:PORT`, where HOST is an IP address (IPv6 in brackets) or `localhost`.

    Raises ValueError saying what is wrong.
    """
    if isinstance(value, tuple) and len(value) == 2:
        host, port = str(value[0]), str(value[1])
    else:
        host, colon, port = str(value).strip().rpartition(":")
        if not colon:
            raise ValueError("it has no port")
    host = host.removeprefix("[").removesuffix("]")
    if host == "localhost":
        host = "127.0.0.1"
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(
            "it has no host" if not host else f"{host!r} is not an IP address"
        ) from None
    return HostPort(host, parse_port(port))


def _advertised(value: object) -> HostPort | None:
    if value is None or value == "":
        return None
    if isinstance(value, str) and ":" not in value:
        value = f"{value}:0"
    address = parse_host_port(value)
    if ":" in address.host:
        raise ValueError("clients can only be given an IPv4 address")
    if ipaddress.ip_address(address.host).is_unspecified:
        raise ValueError("no client can connect to that address")
    return address


def _optional_address(value: object) -> HostPort | None:
    return None if value is None or value == "" else parse_host_port(value)


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delay of each level in ms, level 1 first, from text such as `1s 5s 2h`.

    Stricter than upstream's ScheduleMessageService.parseDelayLevel in that a level of no length is
    refused. Raises ValueError naming the part that is wrong.
    """
    parts = text.split()
    if not parts:
        raise ValueError("it names no level")
    delays: list[int] = []
    for part in parts:
        number, unit = part[:-1], part[-1]
        if unit not in _UNIT_MS or not (number.isascii() and number.isdigit()) or int(number) == 0:
            raise ValueError(f"level {len(delays) + 1} is {part!r}")
        delays.append(int(number) * _UNIT_MS[unit])
        if delays[-1] > LONGEST // timedelta(milliseconds=1):
            raise ValueError(f"level {len(delays)} is longer than 100 years")
    return tuple(delays)


def _delay_levels(value: object) -> str:
    text = " ".join(str(value).split())
    parse_delay_levels(text)
    return text


def parse_duration(value: object) -> timedelta:
    """Read `90s`, `1h30m`, `730d`, `500ms`, ISO 8601 (`PT48H`) or a bare number of seconds.

    Raises ValueError.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool):
        raise ValueError("it is not a duration")
    text = str(value).strip()
    if _MINUTES_OR_MONTHS.fullmatch(text):
        raise ValueError(f"it could be minutes or months; for minutes write {text.lower()}")
    text = text.lower()
    try:
        if _DURATION.fullmatch(text):
            parts = _DURATION_PART.findall(text)
            return timedelta(
                milliseconds=sum(float(number) * _DURATION_UNIT_MS[unit] for number, unit in parts)
            )
        if text.startswith("p"):
            return _ISO_DURATION.validate_python(text.upper())
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise ValueError("it is not a duration") from None


def show_duration(value: timedelta) -> str:
    """Return the shortest exact text in days, hours, minutes, seconds and ms, such as `1h30m`."""
    rest = value // timedelta(microseconds=1)
    text = ""
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, _UNIT_MS[unit] * 1_000)
        text += f"{count}{unit}" if count else ""
    text += f"{rest / 1_000:g}ms" if rest else ""
    return text or "0s"


def parse_size(value: object) -> int:
    """Read bytes: a bare number, or one with KiB, MiB, GiB, TiB (powers of 1024).

    KB, MB, GB and TB are powers of 1000; a letter alone (`64M`) is a power of 1024.
    Raises ValueError.
    """
    if isinstance(value, bool):
        raise ValueError("it is not a size")
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if not match:
        raise ValueError("it is not a size")
    number, letter, binary = match.groups()
    factor = 1
    if letter:
        decimal = not binary and str(value).strip().lower().endswith("b")
        factor = (1000 if decimal else 1024) ** _SIZE_POWER[letter.lower()]
    try:
        return int(float(number) * factor)
    except OverflowError:
        raise ValueError("it is too large") from None


def show_size(value: int) -> str:
    """Return the shortest exact text in powers of 1024, such as `256KiB`."""
    for unit in ("", "KiB", "MiB", "GiB"):
        if value == 0 or value % 1024:
            return f"{value}{unit}"
        value //= 1024
    return f"{value}TiB"


def _switch(value: object) -> bool:
    text = str(value).strip().lower()
    if text in ("true", "on", "yes", "1"):
        return True
    if text in ("false", "off", "no", "0"):
        return False
    raise ValueError("it is neither true nor false")


def in_home(path: Path) -> Path:
    """Return a path with `~` expanded.

    :raises ValueError: when the user has no home.
    """
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("there is no home folder for its ~") from None


class SecretValueError(ValueError):
    """A value is wrong that may be a secret, so it must not be shown."""


_CONTENT: Final = re.compile(r"[\s\ufeff]*(-----BEGIN |\{\s*\")")
"""The beginning of the file of a key or a user."""


def _path(value: object) -> object:
    if isinstance(value, str):
        if not value:
            raise ValueError("it is empty")
        if "\0" in value:
            raise ValueError("no path has the character NUL")
        if _CONTENT.match(value):
            raise SecretValueError("it is the content of a file, not its path")
        return in_home(Path(value))
    return value


def _optional_path(value: object) -> object:
    return None if value == "" else _path(value)


def _count(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("it is not a number")
    return value.replace("_", "") if isinstance(value, str) else value


def _as_is(value: object) -> object:
    return value


Address = Annotated[
    HostPort,
    PlainValidator(parse_host_port),
    Kind("HOST:PORT with an IP address, such as 127.0.0.1:9876", metavar="HOST:PORT"),
]
AdvertisedAddress = Annotated[
    HostPort | None,
    PlainValidator(_advertised),
    Kind("an IPv4 address with or without a port, such as 192.0.2.7:9876", metavar="HOST[:PORT]"),
]
OptionalAddress = Annotated[
    HostPort | None,
    PlainValidator(_optional_address),
    Kind("HOST:PORT with an IP address, such as 127.0.0.1:9877", metavar="HOST:PORT"),
]
Levels = Annotated[
    str,
    BeforeValidator(_delay_levels),
    Kind(
        "whole numbers with the unit s, m, h or d, separated by blanks, such as '1s 5s 1h'",
        metavar="'1s 5s ...'",
    ),
]
Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    Kind(
        "a duration such as 90s, 30m, 48h, 730d or PT48H, or a number of seconds",
        show_duration,
        timedelta.total_seconds,
        "DURATION",
    ),
]
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    Kind("a number of bytes or a size such as 256KiB, 64MiB or 1GiB", show_size, _as_is, "SIZE"),
]
Count = Annotated[
    int, BeforeValidator(_count), Kind("a whole number", str, _as_is, "NUMBER", bare=True)
]
Hours = Annotated[
    float,
    BeforeValidator(_count),
    Kind("a number of hours, such as 72 or 0.5", "{:g}".format, _as_is, "HOURS", bare=True),
]
Switch = Annotated[
    bool,
    BeforeValidator(_switch),
    Kind("true or false", lambda value: str(value).lower(), _as_is, bare=True),
]
FilePath = Annotated[Path, BeforeValidator(_path), Kind("a path", metavar="PATH")]
OptionalFile = Annotated[
    Path | None, BeforeValidator(_optional_path), Kind("a path", metavar="PATH")
]
Name = Annotated[
    str,
    Field(pattern=rf"^[A-Za-z0-9._-]{{1,{LONGEST_NAME}}}$"),
    Kind(f"1 to {LONGEST_NAME} letters, digits, dots, dashes or underscores", metavar="NAME"),
]
