"""The commands of the demonstration, as a user would type them one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from compat.demo.recording import Recorded

BASELINE = "rocketmq"
AGAIN = "rocketmq-again"

_WATCH_S = 4.0
_GRACE_S = 2.0


def jobs(
    folder: Path,
    recorded: Recorded,
    targets: Mapping[str, str],
    *,
    candidate: str,
    speed: float,
    patience: float,
) -> list[list[str]]:
    """Return the commands: tables of each recording, profile, replays of the capture, comparison and report.

    :param targets: by name of the replay: the address of its name server. `BASELINE`, `AGAIN` and the
        candidate must be among the names.
    """
    tables = folder / "tables-capture"
    lines: list[list[object]] = [["ingest", recorded.capture, "--out", tables]]
    if recorded.packets is not None:
        ports = [part for port in recorded.ports for part in ("--port", port)]
        lines.append(["ingest", recorded.packets, *ports, "--out", folder / "tables-packets"])
    lines += [
        ["ingest", recorded.commit_log, "--out", folder / "tables-commitlog"],
        ["profile", tables, "--json", folder / "profile.json"],
        ["verify", tables, "--json", folder / "recorded.json"],
    ]
    for name, address in targets.items():
        lines.append(
            [
                *("replay", tables, "--to", address, "--out", folder / name),
                *("--speed", speed, "--delays", "scale", "--patience", patience),
                *("--watch", _WATCH_S, "--json", folder / f"replay-{name}.json"),
            ]
        )
        verified = folder / f"replayed-{name}.json"
        lines.append(["verify", folder / name, "--grace", _GRACE_S, "--json", verified])
    lines.append(
        [
            *("compare", folder / candidate, "--baseline", folder / BASELINE),
            *("--noise", folder / AGAIN, "--json", folder / "compare.json"),
        ]
    )
    lines.append(
        [
            *("report", "--compare", folder / "compare.json", "--verify", folder / "recorded.json"),
            *(f"--verify={folder / f'replayed-{name}.json'}" for name in targets),
            *(f"--replay={folder / f'replay-{name}.json'}" for name in targets),
            *("--profile", folder / "profile.json", "--out", folder / "report"),
        ]
    )
    return [[str(part) for part in line] for line in lines]
