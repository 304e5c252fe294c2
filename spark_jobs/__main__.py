"""`python -m spark_jobs ingest ...`, and the program for `spark-submit`."""

from __future__ import annotations

import sys

from spark_jobs.command import main

if __name__ == "__main__":
    main(sys.argv[1:])
