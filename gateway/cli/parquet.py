"""Messages that have not fired as a Parquet file: a column for each field of `HeldLine`, named as in JSON.

Needs pyarrow, which the extra `parquet` brings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from gateway.cli.transfer import HeldLine, LineError

_GROUP: Final = 5_000
"""Messages that are written and read together: with large bodies, some tens of MB."""

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("queueId", pa.int32(), nullable=False),
        pa.field("dueMs", pa.int64(), nullable=False),
        pa.field("msgId", pa.string(), nullable=False),
        pa.field("properties", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
        pa.field("flag", pa.int32(), nullable=False),
        pa.field("sysFlag", pa.int32(), nullable=False),
        pa.field("reconsumeTimes", pa.int32(), nullable=False),
        pa.field("bornMs", pa.int64(), nullable=False),
        pa.field("bornHost", pa.string(), nullable=False),
        pa.field("storeMs", pa.int64(), nullable=False),
    ]
)
"""Times are epoch ms."""


def write_held(messages: Iterable[HeldLine], target: IO[bytes]) -> int:
    """Write messages in their order. On an error the file is emptied: cut short, it would look whole.

    :returns: how many messages were written.
    """
    count = 0
    rest = iter(messages)
    group = list(islice(rest, _GROUP))
    try:
        with pq.ParquetWriter(target, SCHEMA, compression="zstd") as writer:
            while group:
                rows = [msgspec.to_builtins(line, builtin_types=(bytes,)) for line in group]
                for row in rows:
                    row["properties"] = list(row["properties"].items())
                writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
                count += len(rows)
                group = list(islice(rest, _GROUP))
    except BaseException:
        if target.seekable():
            target.truncate(0)
        raise
    return count


def read_held(source: IO[bytes]) -> Iterator[HeldLine]:
    """Read what `write_held` wrote, or what another program wrote with the same columns.

    :raises LineError: when the file is not an export.
    """
    try:
        file = pq.ParquetFile(source)
        for batch in file.iter_batches(_GROUP):
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                yield msgspec.convert(row, HeldLine)
    except (pa.ArrowException, ValueError, KeyError, OSError) as error:
        # ValueError: a value is not of its type, or not UTF-8. KeyError: a property is there twice.
        raise LineError(f"the file is not of an export: {error}") from None
