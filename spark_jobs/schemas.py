"""Translates an Arrow schema into Spark's DDL."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

_NAMES: Final = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "bigint",
}


def ddl(schema: pa.Schema) -> str:
    """Return a schema as `DataFrameReader.schema` and `DataFrame.mapInArrow` take it."""
    return ", ".join(f"`{field.name}` {_name(field.type)}" for field in schema)


def _name(kind: pa.DataType) -> str:
    if pa.types.is_map(kind):
        return f"map<{_name(kind.key_type)},{_name(kind.item_type)}>"
    return _NAMES[kind]
