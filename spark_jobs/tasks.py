"""Runs functions in Spark's tasks, and reports their failures in one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from spark_jobs.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OWN_ERROR: Final = re.compile(r"JobError: (.+)")
_Given = TypeVar("_Given")
_Got = TypeVar("_Got")


def in_tasks(
    spark: SparkSession, function: Callable[[_Given], _Got], given: Sequence[_Given]
) -> list[_Got]:
    """Call a function for each item, in a task of its own, and return the results in order.

    :raises JobError: if a task fails.
    """
    if not given:
        return []
    with explained():
        found: list[_Got] = (
            spark.sparkContext.parallelize(given, len(given)).map(function).collect()
        )
    return found


@contextmanager
def explained() -> Iterator[None]:
    """Turn failures of Spark within the block into a `JobError`."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise JobError(_cause(str(error))) from error
    except Py4JJavaError as error:
        raise JobError(_cause(str(error.java_exception.getMessage()))) from error


def _cause(text: str) -> str:
    own = _OWN_ERROR.findall(text)
    if own:
        return str(own[-1])
    said = [line for line in text.splitlines() if line.strip()]
    return f"a task failed: {said[0] if said else 'Spark does not say why'}"
