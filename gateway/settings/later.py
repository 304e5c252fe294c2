"""Settings of delayed and recurring messages."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import Annotated, Final, Literal

from gateway.settings.fields import SettingsGroup, setting
from gateway.settings.values import (
    LONGEST,
    Count,
    Duration,
    Kind,
    Levels,
    Switch,
    parse_delay_levels,
)

_LATER: Final = "Delayed and recurring messages"

DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""Upstream's MessageStoreConfig.messageDelayLevel."""


class LaterSettings(SettingsGroup):
    """Settings of delayed and recurring messages."""

    delay_levels: Levels = setting(
        DEFAULT_DELAY_LEVELS,
        _LATER,
        "The delay of each level, starting with level 1: whole numbers with the unit s, m, h or d.",
        upstream="messageDelayLevel",
        live=True,
    )
    max_delay: Duration = setting(
        timedelta(days=730),
        _LATER,
        "How far in the future a message may be due; a later time is refused.",
        unit="seconds",
        upstream="timerMaxDelaySec",
        live=True,
        least=timedelta(seconds=1),
        most=LONGEST,
    )
    clock: Annotated[Literal["real", "manual"], Kind("real or manual", metavar="real|manual")] = (
        setting(
            "real",
            _LATER,
            "manual is for tests of your own programs: time stands still until 'tidegate clock' moves it. It "
            "needs a data folder of its own.",
        )
    )
    recall_enabled: Switch = setting(
        True,
        _LATER,
        "Whether pending messages may be aborted (recalled), rescheduled, or replaced (TIDEGATE_DEBOUNCE).",
        upstream="recallMessageEnable",
        live=True,
    )
    recurring_max: Count = setting(
        10_000,
        _LATER,
        "Maximum number of recurring messages, paused ones included; more are refused.",
        least=0,
        most=10_000_000,
        live=True,
    )
    recurring_min_period: Duration = setting(
        timedelta(seconds=1),
        _LATER,
        "Shortest time from one occurrence of a recurring message to the next; a shorter one is refused.",
        least=timedelta(milliseconds=1),
        most=LONGEST,
        live=True,
    )
    recurring_misfire_threshold: Duration = setting(
        timedelta(seconds=60),
        _LATER,
        "How late an occurrence of a recurring message may fire before it counts as missed. The misfire "
        "policy decides what happens to missed ones (docs/recurring.md). Being some milliseconds late is "
        "normal, so the minimum is one second.",
        least=timedelta(seconds=1),
        most=LONGEST,
        live=True,
    )

    @cached_property
    def delay_level_ms(self) -> tuple[int, ...]:
        """The delay of each level in ms; level 1 is the first."""
        return parse_delay_levels(self.delay_levels)

    @cached_property
    def max_delay_ms(self) -> int:
        """`max_delay` in ms."""
        return self.max_delay // timedelta(milliseconds=1)

    @cached_property
    def recurring_min_period_ms(self) -> int:
        """`recurring_min_period` in ms."""
        return self.recurring_min_period // timedelta(milliseconds=1)

    @cached_property
    def recurring_misfire_threshold_ms(self) -> int:
        """`recurring_misfire_threshold` in ms."""
        return self.recurring_misfire_threshold // timedelta(milliseconds=1)
