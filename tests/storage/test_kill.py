"""After a kill, everything that the process had confirmed is in the reopened folder once and whole."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from storage import State, Store, find_by_id, find_by_key, find_faults
from tests.storage.folder import Folder
from tests.storage.sample import TOPIC, id_of, ids_in
from tests.storage.victim import ids_of_batch

ROOT = Path(__file__).parents[2]
RUNS = 6
LONGEST_RUN = 40
"""The longest run before the kill, roughly, in batches."""
LONGEST_MOMENT = 0.02
"""The longest wait before the kill, in seconds: about the time of a batch."""


@dataclass
class Answered:
    """What all killed processes together had confirmed."""

    accepted: list[str] = field(default_factory=list)
    aborted: set[str] = field(default_factory=set)
    fired: int = 0
    batches: dict[int, int] = field(default_factory=dict)
    """The number of confirmed batches, by run."""

    def add(self, run: int, line: bytes) -> None:
        batch = json.loads(line)
        self.accepted += batch["accepted"]
        self.aborted.update(batch["aborted"])
        self.fired += batch["fired"]
        self.batches[run] = batch["batch"] + 1


def run_and_kill(path: Path, run: int, batches: int, moment: float, answered: Answered) -> None:
    """Let a process work for some batches, kill it in the middle of its work, and note what it confirmed."""
    command = [sys.executable, "-m", "tests.storage.victim", str(path), str(run)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        lines = [victim.stdout.readline() for _ in range(batches)]
        # A commit takes some milliseconds, so the kill may hit any part of a batch.
        time.sleep(moment)
        victim.kill()
        # The process continued meanwhile, so these lines are confirmed too.
        lines += victim.stdout.readlines()
    assert victim.returncode == -9
    for line in lines:
        if line.endswith(b"\n"):
            answered.add(run, line)


def check(store: Store, answered: Answered) -> None:
    """Check a reopened store against what was confirmed."""
    assert find_faults(store) == []
    queued = Counter(ids_in(store, TOPIC, 0) + ids_in(store, TOPIC, 1))
    assert [message_id for message_id, times in queued.items() if times != 1] == []
    for message_id in answered.accepted:
        (found,) = find_by_id(store, message_id.encode())
        assert id_of(found.record).decode() == message_id
        assert (found.state in (State.FIRED, State.UNTIMED)) == (message_id.encode() in queued)
        if message_id in answered.aborted:
            assert found.state is State.ABORTED
    # At most one batch was not confirmed yet, and it is there as a whole or not at all.
    unanswered = 0
    for run, batches in answered.batches.items():
        there = [len(find_by_id(store, name.encode())) for name in ids_of_batch(run, batches)]
        assert there in ([0] * len(there), [1] * len(there))
        unanswered += sum(there)
        beyond = ids_of_batch(run, batches + 1)
        assert [find_by_id(store, name.encode()) for name in beyond] == [[]] * len(beyond)
    everything = find_by_key(store, [TOPIC], b"k", 1 << 30)
    assert len(everything) == len(answered.accepted) + unanswered
    counted = Counter(found.state for found in everything)
    assert counted[State.FIRED] >= answered.fired
    assert counted[State.ABORTED] >= len(answered.aborted)
    assert counted[State.PENDING] == sum(store.held_totals().values())
    sequences = [found.sequence for found in everything]
    assert len(set(sequences)) == len(sequences)
    assert store.next_sequence == max(sequences) + 1


def test_nothing_that_was_answered_is_lost_or_doubled(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    # On the disk, where a sync takes time in which a kill may fall.
    folder = Folder(tmp_path_factory.mktemp("kill") / "data")
    random = Random()
    answered = Answered()
    for run in range(1, RUNS + 1):
        batches, moment = random.randint(1, LONGEST_RUN), random.uniform(0, LONGEST_MOMENT)
        run_and_kill(folder.path, run, batches, moment, answered)
        check(folder.open(), answered)
        folder.close()
    assert len(answered.batches) == RUNS
    assert answered.fired > 0
    assert answered.aborted
