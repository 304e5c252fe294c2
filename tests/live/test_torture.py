"""The torture test's short form; `make torture` is the long one."""

from __future__ import annotations

import pytest

from tests.torture import harms
from tests.torture.command import torture
from tests.torture.harms import Terms
from tests.torture.site import Site, disk

pytestmark = pytest.mark.live


def test_whatever_is_done_nothing_is_lost_early_or_doubled() -> None:
    told: list[str] = []
    with disk(256) as (folder, is_own):
        site = Site(folder, 2, "sync", has_own_disk=is_own)
        known, _ = harms.possible(site)
        verdict = torture(
            site, 5, 4, Terms(pause_s=2, spell_s=1.5, connections=500), 1, told.append
        )
    assert {kind: ids for kind, ids in verdict.faults.items() if ids} == {}, "\n".join(told)
    # A harm that met the gateway at an unsuitable moment was repeated later.
    assert verdict.harms.keys() == known.keys(), "\n".join(told)
    assert verdict.acknowledged > 100
    assert verdict.fired > 100
