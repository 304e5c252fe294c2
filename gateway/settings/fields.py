"""The description of a setting besides its value: its group, unit, bounds and meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class About:
    """The description of one setting, besides its meaning."""

    group: str
    unit: str = ""
    upstream: str = ""
    """Name of RocketMQ's own setting with the same meaning, if there is one."""
    least: object = None
    most: object = None
    live: bool = False
    """Whether it can be changed while the gateway runs."""


def setting(
    default: Any,
    group: str,
    meaning: str,
    *,
    unit: str = "",
    upstream: str = "",
    least: Any = None,
    most: Any = None,
    live: bool = False,
) -> Any:
    """Return the field of one setting with its default (or a function that makes it), its group and its meaning."""
    field: FieldInfo = (
        Field(default_factory=default, description=meaning, ge=least, le=most)
        if callable(default)
        else Field(default, description=meaning, ge=least, le=most)
    )
    field.metadata.append(About(group, unit, upstream, least, most, live))
    return field


class SettingsGroup(BaseModel):
    """Settings of one subject; frozen. Durations are timedeltas, sizes are bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")
