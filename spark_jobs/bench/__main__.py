"""`python -m spark_jobs.bench`."""

from __future__ import annotations

from spark_jobs.bench.command import bench

if __name__ == "__main__":
    bench()
