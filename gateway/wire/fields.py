"""The base of the structures of requests' fields: their types, their names on the wire, and their conversion back to
extFields.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, get_args, get_origin

import msgspec

Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
"""A Java int; it arrives as decimal text or as a JSON number."""
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""A Java long."""


class Fields(msgspec.Struct, gc=False, rename="camel"):
    """The fields of one request. A field without a default must be sent. Fields that a request does not have are
    ignored.
    """

    unsent: ClassVar[Mapping[str, str]] = {}
    """Values of fields without a default that a request may leave out nevertheless, by the name on the wire. Upstream
    requires these fields with an annotation, but its own decoding of these headers ignores that (FastCodesHeader)."""


class FieldError(Exception):
    """A field of a request is missing or cannot be read. The error's text can be the remark of an answer with code
    1."""


def to_ext(fields: Fields) -> dict[str, str]:
    """Return the extFields that carry these fields, all as text; None is left out."""
    ext = {}
    for name, wire_name in _names(type(fields)):
        value = getattr(fields, name)
        if isinstance(value, bool):
            ext[wire_name] = "true" if value else "false"
        elif value is not None:
            ext[wire_name] = str(value)
    return ext


_JAVA_NUMBER: Final = re.compile(r"[+-]?\d{1,40}")


def as_java_reads(kind: type[Fields], ext: dict[str, str]) -> dict[str, str]:
    """Return these extFields with the `unsent` fields of `kind`, and with numbers and booleans in their usual form.

    Java also reads `+1`, `01` and the digits of every script as numbers, and any text but `true` as false. But the C++
    client writes `1` for true.
    """
    usual = {**kind.unsent, **ext}
    for field in msgspec.structs.fields(kind):
        text = ext.get(field.encode_name)
        if text is None:
            continue
        if _is_of(field.type, bool):
            usual[field.encode_name] = "true" if text.lower() in ("true", "1") else "false"
        elif _is_of(field.type, int) and _JAVA_NUMBER.fullmatch(text):
            usual[field.encode_name] = str(int(text))
    return usual


def _is_of(kind: Any, wanted: type) -> bool:
    return kind is wanted or any(_is_of(each, wanted) for each in get_args(kind))


def explain(kind: type[Fields], ext: dict[str, str]) -> str:
    """Return why these extFields are not those of `kind`."""
    for field in msgspec.structs.fields(kind):
        wire_name = field.encode_name
        shown = wire_name if len(wire_name) > 1 else f"{wire_name} ({field.name})"
        if wire_name not in ext:
            if field.required:
                return f"the field {shown} is missing"
            continue
        try:
            msgspec.convert(ext[wire_name], field.type, strict=False)
        except msgspec.ValidationError:
            return f"the field {shown} is {_type_name(field.type)}, not {ext[wire_name][:64]!r}"
    return f"these are not the fields of {kind.__name__}"


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    return "a number of 64 bits" if str(1 << 63) in str(kind) else "a number of 32 bits"


@functools.cache
def _names(kind: type[Fields]) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, field.encode_name) for field in msgspec.structs.fields(kind))
