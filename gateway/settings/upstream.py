"""The settings as operators of RocketMQ know them: with upstream's names and units.

Tools read them (request code 26), and change those that can be changed while the gateway serves (25). A setting that
upstream does not have keeps its own name and form.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from gateway.settings.config import Config, Description, descriptions
from gateway.settings.loading import ConfigError, changed
from gateway.settings.values import HostPort

MASTER_ID = "0"
"""A gateway is its own master, and has no slaves."""

_FLUSH_TYPES = {"sync": "SYNC_FLUSH", "async": "ASYNC_FLUSH"}
"""FlushDiskType."""

_IN_MS = frozenset({"transactionTimeOut", "transactionCheckInterval"})
"""Durations that upstream has in milliseconds, not in seconds."""


def shown(config: Config, advertised: HostPort, workers: int) -> dict[str, str]:
    """Return all settings in force by name, and the facts that tools look for among them.

    :param advertised: the address that clients use; the settings may only say to choose one.
    :param workers: how many processes share one address. Each runs with `workers = 1`, which is not what was set.
    """
    config = _as_set(config, workers)
    values = {
        _name_of(entry): _text_of(entry, config)
        for entry in descriptions().values()
        if getattr(config, entry.name) is not None
    }
    return values | {
        "brokerIP1": advertised.host,
        "listenPort": str(advertised.port),
        "namesrvAddr": str(advertised),
        "brokerId": MASTER_ID,
        "brokerRole": "SYNC_MASTER" if config.flush == "sync" else "ASYNC_MASTER",
        "brokerPermission": "6",
        "timerWheelEnable": "true",
    }


def after(config: Config, changes: Mapping[str, str], advertised: HostPort, workers: int) -> Config:
    """Return the settings with these changes.

    :param changes: values by name, in upstream's names and units or in ours. What `shown` returns is no change.
    :param advertised: as for `shown`, and so are `workers`.
    :raises ConfigError: when a setting does not exist, cannot be changed now, or would have a wrong value. Then no
        change is made.
    """
    known = {_name_of(entry): entry for entry in descriptions().values()} | descriptions()
    present = shown(config, advertised, workers)
    before = _as_set(config, workers)
    values: dict[str, object] = {}
    for name, text in changes.items():
        if present.get(name) == text:
            continue
        entry = known.get(name)
        if entry is None:
            if name in present:
                raise ConfigError(f"{name} is shown for tools only, and cannot be changed")
            raise ConfigError(f"there is no setting {name}; getBrokerConfig shows them all")
        is_own = name == entry.name
        if text == (entry.show(getattr(before, name)) if is_own else _text_of(entry, before)):
            continue
        if not entry.about.live:
            raise ConfigError(
                f"{name} cannot be changed while the gateway serves: set {entry.name} in its settings "
                "and start it again"
            )
        values[entry.name] = f"{text}ms" if name in _IN_MS and text.isdigit() else text
    return changed(config, values) if values else config


def _as_set(config: Config, workers: int) -> Config:
    return config.model_copy(update={"workers": workers})


def _name_of(entry: Description) -> str:
    return entry.about.upstream or entry.name


def _text_of(entry: Description, config: Config) -> str:
    value = getattr(config, entry.name)
    if entry.about.upstream == "flushDiskType":
        return _FLUSH_TYPES[value]
    if not entry.about.upstream or value is None or isinstance(value, str | bool):
        return entry.show(value)
    if isinstance(value, timedelta):
        unit_ms = 1 if entry.about.upstream in _IN_MS else 1000
        return f"{value / timedelta(milliseconds=unit_ms):.15g}"
    return f"{value:g}" if isinstance(value, float) else str(entry.plain(value))
