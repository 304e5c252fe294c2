"""`python -m spark_jobs ingest ...`, and what `spark-submit` is given."""

from __future__ import annotations

import sys

from spark_jobs.command import main

if __name__ == "__main__":
    main(sys.argv[1:])
