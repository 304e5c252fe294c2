"""The scenarios: each file shows what one part of the product does, each function one promise."""

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
"""The files that registered them; importing these is what fills the table."""

__all__ = ["FILES", "SCENARIOS", "Scenario", "Stage"]
