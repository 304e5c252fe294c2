"""The command line of the torture test."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

import rich_click as click

from compat import children
from gateway.client import ClientError, RefusalError
from tests.torture import harms
from tests.torture.harms import Terms
from tests.torture.site import MAX_CONNECTIONS, Site, disk

_MIB = 1 << 20
_SPELL_S = 3.0
_PATIENCE_S = 180
"""Seconds that a run may take beyond three times its length, until each harm is done once."""

TROUBLES: Final = (AssertionError, ClientError, OSError, RefusalError)
"""What ends a run before its verdict."""


class Verdict(NamedTuple):
    """The result of a run."""

    acknowledged: int
    fired: int
    aborted: int
    moved: int
    refused: int
    faults: dict[str, set[str]]
    harms: Counter[str]
    undone: list[str]
    """Harms that are possible here, but met an error each time."""
    own_memory: int
    """The highest memory use measured, in bytes."""

    @property
    def is_clean(self) -> bool:
        """Whether there was no fault, although each harm was done and messages fired."""
        return self.fired > 0 and not self.undone and not any(self.faults.values())

    def __str__(self) -> str:
        done = ", ".join(f"{count} x {name}" for name, count in sorted(self.harms.items()))
        faults = ", ".join(f"{len(ids)} {kind}" for kind, ids in self.faults.items())
        undone = f", NEVER DONE: {', '.join(self.undone)}" if self.undone else ""
        return (
            f"{self.harms.total()} harms ({done}){undone}; {self.acknowledged:,} messages acknowledged, "
            f"{self.moved:,} moved, {self.aborted:,} aborted, {self.fired:,} fired, "
            f"{self.refused:,} requests refused; {faults}; "
            f"{self.own_memory / _MIB:.0f} MiB of memory at most"
        )


def torture(
    site: Site, seconds: float, senders: int, terms: Terms, seed: int, tell: Callable[[str], None]
) -> Verdict:
    """Harm a gateway under load for so many seconds; each harm is tried once before any is repeated. Raises one of
    `TROUBLES` if the gateway ends by itself or does not serve again, or if the load does not go on."""
    chance = random.Random(seed)
    known, missing = harms.possible(site)
    for reason in missing:
        tell(f"left out: {reason}")
    done: Counter[str] = Counter()
    with site.gateway:
        site.wait_until_serving()
        with site.load(senders):
            begin = time.monotonic()
            left: list[str] = []
            while (passed := time.monotonic() - begin) < seconds or (
                len(done) < len(known) and passed < 3 * seconds + _PATIENCE_S
            ):
                time.sleep(chance.uniform(0.3, 1.5))
                if not left:
                    left = chance.sample(list(known), len(known))
                name = left.pop()
                site.watch_memory()  # a gateway that has ended by itself must not be killed and started again
                try:
                    said = known[name](site, chance, terms)
                    done[name] += 1
                except harms.KNOWN_ERRORS as error:
                    said = f"met {error}"
                site.watch_memory()
                tell(
                    f"{time.monotonic() - begin:5.0f} s  {name}: {said}; "
                    f"{len(site.ledger.sent):,} acknowledged so far"
                )
        tell("waiting for what is pending")
        found = site.fired()
    ledger = site.ledger
    return Verdict(
        acknowledged=len(ledger.sent),
        fired=len(found),
        aborted=len(ledger.aborted),
        moved=len(ledger.moved),
        refused=ledger.refused,
        faults={
            **ledger.faults(found),
            "workers ended by themselves": site.crashes(),
            "tracebacks": site.tracebacks(),
        },
        harms=done,
        undone=[name for name in known if name not in done],
        own_memory=site.peak_own_memory,
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--minutes", type=click.FloatRange(0.1), default=5.0, help="Length of the test. Default: 5."
)
@click.option(
    "--workers", type=click.IntRange(1, 16), default=1, help="The gateway's workers. Default: 1."
)
@click.option(
    "--flush",
    type=click.Choice(["sync", "async"]),
    default="sync",
    help="The gateway's setting flush. Default: sync.",
)
@click.option(
    "--senders", type=click.IntRange(1, 256), default=8, help="Threads that send. Default: 8."
)
@click.option(
    "--pause", type=click.FloatRange(0), default=30.0, help="Seconds of a SIGSTOP. Default: 30."
)
@click.option(
    "--connections",
    type=click.IntRange(1, MAX_CONNECTIONS),
    default=20_000,
    help="Idle connections at a time. Default: 20000.",
)
@click.option(
    "--disk",
    "disk_mib",
    type=click.IntRange(64),
    default=2_048,
    help="Size of the disk to fill, MiB. Default: 2048.",
)
@click.option(
    "--seed", type=int, default=None, help="Seed for the order of harms. Default: random."
)
def main(
    minutes: float,
    workers: int,
    flush: str,
    senders: int,
    pause: float,
    connections: int,
    disk_mib: int,
    seed: int | None,
) -> None:
    """Kill, suspend, starve and crowd a gateway under load, and check what became of each message.

    No message may be lost, early or doubled, and each harm that is possible here must be done; the exit status is 0
    only then. A full disk needs root (a file system in memory is mounted), and a stepped clock needs Debian's
    libfaketime.
    """
    children.end_in_order()
    chosen = random.randrange(1 << 32) if seed is None else seed
    click.echo(f"seed {chosen}, workers {workers}, flush {flush}, {minutes:g} min")
    harms.raise_file_limit(MAX_CONNECTIONS)
    with disk(disk_mib) as (folder, is_own):
        site = Site(folder, workers, flush, has_own_disk=is_own)
        try:
            verdict = torture(
                site, minutes * 60, senders, Terms(pause, _SPELL_S, connections), chosen, click.echo
            )
        except TROUBLES as error:
            log = site.gateway.log
            said = log.read_text()[-3000:] if log.exists() else ""
            click.echo(f"torture: {error}\n{said}", err=True)
            sys.exit(1)
    click.echo(f"torture: {verdict}")
    for kind, ids in verdict.faults.items():
        if ids:
            click.echo(f"{kind}: {', '.join(sorted(ids)[:20])}", err=True)
    sys.exit(0 if verdict.is_clean else 1)
