"""Builds the `Config` from command-line flags, environment variables, one TOML file and the defaults, in that order of
precedence, and remembers where each value came from.

The variables are `TIDEGATE_` and the setting's name in capitals.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from gateway.settings.config import ENVIRONMENT_PREFIX, Config, descriptions
from gateway.settings.values import SecretValueError, in_home

FILE_VARIABLE: Final = "TIDEGATE_CONFIG"
"""Environment variable that names the TOML file; not itself a setting."""

LEADER_VARIABLE: Final = "TIDEGATE_LEADER_PID"
"""Environment variable that gives a worker the process id of its leader (`gateway.workers.leader`); not a setting."""

WORKERS_VARIABLE: Final = "TIDEGATE_LEADER_WORKERS"
"""Environment variable that gives a worker the number of workers; not itself a setting."""

LEADER_ADDRESS_VARIABLE: Final = "TIDEGATE_LEADER_ADDRESS"
LEADER_KEY_VARIABLE: Final = "TIDEGATE_LEADER_KEY"
"""Environment variables that give a worker the leader's address, and the key that workers sign with; not themselves
settings."""

_NOT_SETTINGS: Final = (
    FILE_VARIABLE,
    LEADER_VARIABLE,
    WORKERS_VARIABLE,
    LEADER_ADDRESS_VARIABLE,
    LEADER_KEY_VARIABLE,
    "TIDEGATE_SERVER",
    "TIDEGATE_ACCESS_KEY",
    "TIDEGATE_SECRET_KEY",
)
"""Variables that are not settings; the last three are flags of the client commands (`gateway.cli.asking`)."""

# Variables that Kubernetes and Docker links set in containers beside a service named `tidegate`.
_INJECTED = re.compile(r"TIDEGATE_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP)(_\w+)?)?|NAME)")


class ConfigError(Exception):
    """A setting cannot be used. The text is one line: the setting, its value, the value's origin and the fix."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings in force and, for each that is not at its default, where its value came from."""

    config: Config
    origins: Mapping[str, str]


def load(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None
) -> Loaded:
    """Return all settings: flags win over environment variables, these over the TOML file, and this over defaults.

    :param flags: values by setting name; None counts as not given.
    :param environ: environment variables; an empty one counts as not given.
    :param file: the TOML file; without it the one that TIDEGATE_CONFIG names, if any.
    :raises ConfigError: when the file cannot be read, a setting is unknown or a value is wrong.
    """
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    if file is None and environ.get(FILE_VARIABLE):
        try:
            file = in_home(Path(environ[FILE_VARIABLE]))
        except ValueError as error:
            raise ConfigError(
                f"{FILE_VARIABLE} = {environ[FILE_VARIABLE]} is wrong: {error}; write the whole path"
            ) from None
    if file is not None:
        _read_file(file, values, origins)
    _read_environment(environ, values, origins)
    for name, value in flags.items():
        if value is not None:
            values[name] = value
            origins[name] = "--" + name.replace("_", "-")
    try:
        return Loaded(Config.model_validate(values), origins)
    except ValidationError as error:
        raise ConfigError(_explain(error, values, origins)) from None


def changed(config: Config, values: Mapping[str, object]) -> Config:
    """Return the settings with other values for some of them, by name.

    :raises ConfigError: when a value is wrong, or does not fit with the others.
    """
    merged = {name: getattr(config, name) for name in config.model_fields_set} | dict(values)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_explain(error, merged, dict.fromkeys(merged, "asked for"))) from None


def _read_file(file: Path, values: dict[str, object], origins: dict[str, str]) -> None:
    try:
        # With or without the byte order mark that Windows editors write.
        text = file.read_text("utf-8-sig")
        table = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(
            f"cannot read the settings file {file}: {error.strerror}; check the path"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"cannot read the settings file {file}: it is not UTF-8 text; save it as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"cannot read the settings file {file}: it is not TOML: {error}; "
            "'tidegate config --toml' prints a sample"
        ) from None
    except (ValueError, RecursionError):
        # A number of thousands of digits, or thousands of brackets in each other: Python reads neither.
        raise ConfigError(
            f"cannot read the settings file {file}: a value is too long to be a setting; "
            "'tidegate config --toml' prints a sample"
        ) from None
    for key, value in table.items():
        name = key.replace("-", "_")
        line = re.search(rf"(?m)^\s*[\"']?{re.escape(key)}[\"']?\s*=", text)
        at = f", line {text.count(chr(10), 0, line.end()) + 1}" if line else ""
        if name not in Config.model_fields:
            raise ConfigError(_unknown(key, f"{file}{at}", isinstance(value, dict)))
        if isinstance(value, dict | list):
            raise ConfigError(
                f"{name} in {file}{at} is not a single value; "
                f"write {descriptions()[name].kind.expects}"
            )
        values[name] = value
        origins[name] = f"{file}{at}"


def _read_environment(
    environ: Mapping[str, str], values: dict[str, object], origins: dict[str, str]
) -> None:
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or not value:
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name in Config.model_fields:
            values[name] = value
            origins[name] = variable
        elif variable not in _NOT_SETTINGS and not _INJECTED.fullmatch(variable):
            raise ConfigError(_unknown(name, f"the environment ({variable})"))


def _unknown(key: str, origin: str, is_table: bool = False) -> str:
    names = descriptions()
    upstream = {entry.about.upstream: name for name, entry in names.items() if entry.about.upstream}
    near = difflib.get_close_matches(key.replace("-", "_").lower(), names, 1)
    if key in upstream:
        fix = f"its name here is {upstream[key]}"
    elif near:
        fix = f"did you mean {near[0]}?"
    elif is_table:
        fix = "settings stand at the top of the file, not in sections"
    else:
        fix = "'tidegate config' lists them all"
    return f"unknown setting {key} in {origin}; {fix}"


def _explain(
    error: ValidationError, values: Mapping[str, object], origins: Mapping[str, str]
) -> str:
    """Return the first of the errors as one line."""
    problem = error.errors()[0]
    text = str(problem["ctx"]["error"]) if problem["type"] == "value_error" else ""
    if not problem["loc"]:
        return text
    name = str(problem["loc"][0])
    entry = descriptions()[name]
    if problem["type"] == "greater_than_equal":
        text = f"the least is {entry.show(entry.about.least)}"
    elif problem["type"] == "less_than_equal":
        text = f"the most is {entry.show(entry.about.most)}"
    is_secret = isinstance(problem.get("ctx", {}).get("error"), SecretValueError)
    shown = "..." if is_secret else _one_line(values[name])
    return (
        f"{name} = {shown} ({origins[name]}) is wrong: "
        f"{text + '; ' if text else ''}write {entry.kind.expects}"
    )


def _one_line(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= 80 else text[:77] + "..."
