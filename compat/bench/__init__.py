"""The benchmark: the official Java client as load on a gateway and on a real RocketMQ broker in turn.

`tidegate bench` or `python -m compat.bench`; docs/performance.md says what each figure means.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and exits: 0 done; 1 it could not be run; 2 a wrong flag."""
    from compat.bench.command import bench

    bench.main(args=arguments, prog_name="tidegate bench")
