"""Hypothesis strategies for the wire: numbers, texts, properties, fields, frames."""

from __future__ import annotations

import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from gateway.wire.fields import Fields
from gateway.wire.frames import Frame

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
"""Any text that UTF-8 can encode."""

PROPERTY_TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=12
)
NAMES = st.sampled_from(["A", "AB", "B", "TAGS", "DELAY", "TIMER_DELAY_MS"]) | PROPERTY_TEXT
PROPERTIES = st.dictionaries(NAMES, PROPERTY_TEXT, max_size=6)

HOSTS = st.binary(min_size=8, max_size=8)

FRAMES: st.SearchStrategy[Frame] = st.tuples(
    st.integers(0, 1), st.binary(max_size=60), st.binary(max_size=200)
)


def fields_of(kind: type[Fields]) -> st.SearchStrategy[Fields]:
    """Return a strategy for the fields of one structure."""
    fields = msgspec.structs.fields(kind)
    return st.builds(kind, **{field.name: _values(field.type) for field in fields})


def _values(hint: Any) -> st.SearchStrategy[Any]:
    if hint is str:
        return TEXT
    if hint is bool:
        return st.booleans()
    if hint is type(None):
        return st.none()
    if get_origin(hint) is Annotated:
        bounds = get_args(hint)[1]
        return st.integers(bounds.ge, bounds.le)
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return st.one_of([_values(one) for one in get_args(hint)])
    raise NotImplementedError(f"fields of type {hint}")
