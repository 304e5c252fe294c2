"""One Spark session for all tests, on one core."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.ingest import ingest
from spark_jobs.messages import DEFAULT_LEVELS
from spark_jobs.session import open_session
from tests.gateway.conftest import failures, make_gateway

__all__ = ["failures", "make_gateway"]

RECORDED = Path(__file__).parent.parent / "wire" / "recorded"
"""Captures of real clients and a real broker."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session, started for the first test that uses it."""
    # For small tables, compiling takes longer than running.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        session = open_session("local[1]", memory="1g")
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables made from the captures of real clients."""
    folder = tmp_path_factory.mktemp("tables")
    ingest(spark, [RECORDED], folder, levels=DEFAULT_LEVELS)
    return folder
