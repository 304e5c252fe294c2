"""Property tests have no deadline: how long an example takes says something of the machine only."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
