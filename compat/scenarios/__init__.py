"""The scenarios: each file covers one part of the product, each function one promise."""

from __future__ import annotations

from compat.scenarios import (
    admin,
    clients,
    consuming,
    dashboard,
    filters,
    later,
    ordered,
    popping,
    queries,
    recall,
    sending,
    traces,
    transactions,
)
from compat.scenarios.stage import SCENARIOS, Scenario, Stage

FILES = (
    *(admin, clients, consuming, dashboard, filters, later, ordered, popping, queries),
    *(recall, sending, traces, transactions),
)
"""The modules that register the scenarios when they are imported."""

__all__ = ["FILES", "SCENARIOS", "Scenario", "Stage"]
