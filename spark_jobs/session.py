"""Opens a Spark session, on this machine unless another master is given."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_jobs.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OLDEST_JAVA: Final = 17
_BATCH_BYTES: Final = 64 * 1024 * 1024
_VECTOR_MODULE: Final = "jdk.incubator.vector"
_WRAPPER: Final = "java-for-spark"
"""The folder in `.tools` with the wrapper of Java."""
_WRAPPER_STAMP: Final = "1"
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")


def open_session(
    master: str = "local[*]", *, memory: str = "2g", progress: bool = False
) -> SparkSession:
    """Return a session with the data source of commit logs. One that runs already is returned as it is.

    :param memory: the driver's memory, as a JVM size; in local mode Spark uses no other.
    :raises JobError: if there is no Java runtime for it, or it does not start.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    from py4j.protocol import Py4JJavaError  # isort: skip

    from spark_jobs.sources import CommitLogSource

    os.environ["JAVA_HOME"] = str(_java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = (
        SparkSession.builder.master(master)
        .appName("tidegate")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", str(progress).lower())
        .config("spark.driver.extraJavaOptions", f"-Dlog4j2.configurationFile={_LOG_SETTINGS}")
        .config("spark.driver.memory", memory)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "4096")
        .config("spark.sql.execution.arrow.maxBytesPerBatch", str(_BATCH_BYTES))
        # For error messages to name lines of code, Python tells Java at each step of a query where it is.
        .config("spark.python.sql.dataFrameDebugging.enabled", "false")
        # A task that runs twice would send its requests twice.
        .config("spark.speculation", "false")
    )
    if master.startswith("local"):
        builder = (
            builder.config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", str(2 * (os.cpu_count() or 1)))
        )
    logging.getLogger().addFilter(_is_not_of_py4j)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        with interrupted_later():
            session = builder.getOrCreate()
    except (PySparkException, Py4JJavaError) as error:
        raise JobError(
            "Spark does not start; the lines above say why, and --memory and --master must suit it"
        ) from error
    session.dataSource.register(CommitLogSource)
    return session


@contextmanager
def interrupted_later() -> Iterator[None]:
    """Delay a Ctrl-C until the end of the block. A second Ctrl-C is not delayed.

    A JVM that is starting ignores a Ctrl-C. It would run for ever if the process that it reports to ended.
    """
    came = False
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # a Ctrl-C is ignored anyway, or Spark runs and cancels its jobs first
        return

    def wait(number: int, frame: object) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is wait:  # Spark has not set its own
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


@contextmanager
def silent_if_interrupted() -> Iterator[None]:
    """Let Spark say no more after a Ctrl-C in the block: as it ends, it reports each task that ends with it."""
    from pyspark import SparkContext

    try:
        yield
    except KeyboardInterrupt:
        context = SparkContext._active_spark_context  # noqa: SLF001  the others start Spark, or ask it
        if context is not None:
            context.setLogLevel("OFF")
        raise


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Drop log records of Py4J. It logs, at the root too, tracebacks of what it raises anyway, and after a Ctrl-C of
    what it could not do with the connection on which it waited."""
    return "py4j" not in Path(record.pathname).parts


def _java_home() -> Path:
    from compat.toolchain.folder import ToolchainError
    from compat.toolchain.java import java

    try:
        return _without_vector_module(java(_OLDEST_JAVA).resolve())
    except ToolchainError as error:
        raise JobError(str(error)) from error


def _without_vector_module(executable: Path) -> Path:
    """Return a JAVA_HOME whose `java` drops the flag for a module that not every runtime has.

    Spark's launcher always sets the flag. Spark runs as well without the module, and Java warns about the
    module on every start.
    """
    from compat.toolchain.folder import TOOLS, make_folder

    home = TOOLS / _WRAPPER
    if executable == (home / "bin" / "java").resolve():
        return home  # the JAVA_HOME of a process with a session; a wrapper of itself would run for ever

    def make(folder: Path) -> None:
        (folder / "bin").mkdir()
        wrapper = folder / "bin" / "java"
        wrapper.write_text(
            "#!/bin/sh\n"
            "for argument do\n"
            "    shift\n"
            f'    [ "$argument" = --add-modules={_VECTOR_MODULE} ] || set -- "$@" "$argument"\n'
            "done\n"
            f'exec {shlex.quote(str(executable))} "$@"\n'
        )
        wrapper.chmod(0o755)

    return make_folder(_WRAPPER, f"{_WRAPPER_STAMP} {executable}", make)
