"""Runs functions in Spark's tasks, and reports their failures in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_jobs.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OWN_ERROR: Final = re.compile(r"JobError: (.+)")
_RAISED: Final = re.compile(r"Traceback \(most recent call last\):\n(?:\s.*\n)+(\S.*)")
"""Finds the last line of a traceback, which names the error."""
_ENDING_S: Final = 2.0
"""How long a killed process may take to end: its connections end first."""
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
    from pyspark import SparkContext  # first: without the extra there is no py4j either
    from pyspark.errors import PySparkException

    from py4j.protocol import Py4JError, Py4JJavaError  # isort: skip

    try:
        yield
    except PySparkException as error:
        raise JobError(_cause(str(error))) from error
    except Py4JJavaError as error:
        java = error.java_exception
        text = str(java.getMessage())
        while (cause := java.getCause()) is not None:
            java = cause
        raise JobError(_cause(text, str(java.toString()))) from error
    except (Py4JError, ConnectionError) as error:
        if not _java_has_ended(SparkContext._gateway):  # noqa: SLF001  only it knows the process
            raise
        raise JobError(
            "Spark's Java process was killed, perhaps as the machine ran out of memory: lower --memory, or run this "
            "where there is more"
        ) from error


def _java_has_ended(gateway: Any) -> bool:
    """Whether the process of Py4J's gateway has ended, or is ending."""
    if gateway is None:
        return False
    try:
        gateway.proc.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _cause(text: str, root: str = "") -> str:
    """Return the cause of a failure in one line. The traceback of an error that is not known is printed.

    :param root: the text of the Java error at the root of the failure, if any.
    """
    if own := _OWN_ERROR.findall(text):
        return str(own[-1])
    if raised := list(_RAISED.finditer(text)):
        sys.stderr.write(f"{raised[-1][0]}\n")  # Spark logs it nowhere
        return f"a task failed: {raised[-1][1]}"
    said = [line for part in (text, root) for line in part.splitlines()[:1] if line]
    return f"a task failed: {': '.join(dict.fromkeys(said)) or 'Spark does not say why'}"
