"""The benchmark: the official Java client puts load on a gateway and on a real RocketMQ broker in turn.

`tidegate bench` or `python -m compat.bench`; docs/performance.md explains each figure.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its status: 0 for success, 1 if a part failed, 2 for a wrong flag."""
    from compat.bench.command import bench

    bench.main(args=arguments, prog_name="tidegate bench")
