"""Decodes a frame into a command, and encodes commands as frames (RemotingCommand, RocketMQSerializable).

The fields of a request are text in `extFields`. Nearly all headers are JSON, decoded in one pass into a structure for
their request code. A header that this refuses, for example because of numbers in place of text, is decoded again in a
slower and more tolerant way. Every answer is JSON with text for every field, whatever the request was: some clients
read nothing else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from gateway.wire.codes import CommandFlag, LanguageCode
from gateway.wire.fields import FieldError, Fields, Int32, as_java_reads, explain
from gateway.wire.frames import JSON, Frame, join_frame
from gateway.wire.headers import FIELDS_OF_REQUESTS

VERSION: Final = 513
"""The gateway's own MQVersion: V5_5_0. Clients use fewer features of older servers."""

_LANGUAGES: Final = {int(code): code.name for code in LanguageCode}
_FieldsType = TypeVar("_FieldsType", bound=Fields)
_encode_json = msgspec.json.Encoder().encode
_pack_lengths = struct.Struct(">iI").pack


class CommandError(Exception):
    """A header that cannot be read. The connection is closed without an answer, as upstream does."""


class Command(
    msgspec.Struct,
    gc=False,
    kw_only=True,
    # The names with a # are not read from a header: any value there is overwritten.
    rename={"_ext": "extFields", "header": "#header", "body": "#body"},
):
    """A request or a response."""

    code: Int32 = 0
    """A `RequestCode`, or a `ResponseCode` in a response."""
    opaque: Int32 = 0
    """The sender's number for a request; the response repeats it."""
    flag: Int32 = 0
    """Bits of `CommandFlag`."""
    version: Int32 = 0
    """MQVersion of the sender."""
    language: str = "JAVA"
    """Name of a `LanguageCode`; clients may send others."""
    remark: str | None = None
    body: bytes = b""
    header: bytes = b""
    """The header as it arrived."""
    _ext: Any = None

    @property
    def is_response(self) -> bool:
        """Whether this is a response."""
        return self.flag & CommandFlag.RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return self.flag & CommandFlag.ONEWAY != 0

    def fields(self, kind: type[_FieldsType]) -> _FieldsType:
        """Return the request's fields as a structure of `headers`.

        :raises FieldError: when one is missing or cannot be read.
        """
        ext = self._ext
        if type(ext) is kind:
            return ext
        texts = self.ext()
        try:
            return msgspec.convert(texts, kind, strict=False)
        except msgspec.ValidationError:
            texts = as_java_reads(kind, texts)
        try:
            return msgspec.convert(texts, kind, strict=False)
        except msgspec.ValidationError as error:
            raise FieldError(explain(kind, texts)) from error

    def ext(self) -> dict[str, str]:
        """Return all extFields as text, with numbers and booleans as they were written; nulls are left out."""
        ext = self._ext
        if isinstance(ext, Fields):
            return _decode_as_text(self.header).ext()
        return ext if ext is not None else {}

    def shed(self) -> None:
        """Drop header, fields and body."""
        self.header = self.body = b""
        self._ext = None


def request(code: int, ext: dict[str, str]) -> Command:
    """Return a request of the gateway's own, with fields and no body."""
    return Command(code=code, _ext=ext)


def with_fields(command: Command, more: Mapping[str, str]) -> Command:
    """Return a request with more fields."""
    return msgspec.structs.replace(command, _ext={**command.ext(), **more})


class _TextCommand(Command):
    """Decodes headers without a structure of their own: responses, and requests without fields."""

    _ext: dict[str, str] | None = None


def _reader(kind: type[Fields]) -> msgspec.json.Decoder[Command]:
    reads = msgspec.defstruct(
        kind.__name__ + "Command", [("_ext", kind)], bases=(Command,), kw_only=True, gc=False
    )
    return msgspec.json.Decoder(reads, strict=False)


# Decoders by the text of the request code. Java, Go and C++ write the code first. Other headers are decoded without a
# structure, and a second time when a handler needs the fields.
_CODE_AT: Final = len(b'{"code":')
_LONGEST_CODE: Final = 11
_readers: Final = {
    str(int(code)).encode(): _reader(kind).decode for code, kind in FIELDS_OF_REQUESTS.items()
}
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_read_text = msgspec.json.Decoder(_TextCommand, strict=False).decode


def decode_command(frame: Frame) -> Command:
    """Decode a frame's header.

    :raises CommandError: when the header cannot be read.
    """
    kind, header, body = frame
    if kind == JSON:
        end = header.find(b",", _CODE_AT, _CODE_AT + _LONGEST_CODE)
        read = _readers.get(header[_CODE_AT:end], _read_text)
        try:
            command: Command = read(header)
        except _UNREADABLE:
            command = _decode_as_text(header)
    else:
        command = _decode_binary(header)
    command.header = header
    command.body = body
    return command


def _decode_as_text(header: bytes) -> Command:
    """Decode a JSON header with its fields as text, whatever its code is."""
    try:
        return _read_text(header)
    except _UNREADABLE:
        return _decode_patiently(header)


def _decode_patiently(header: bytes) -> Command:
    """Decode a JSON header as fastjson would: with values of any type in place of text or numbers, with empty text for
    null, with unescaped control characters, as properties have them, and with C's NUL at the end."""
    try:
        found = json.loads(
            header.decode(errors="replace").rstrip("\0"),
            parse_int=str,
            parse_float=str,
            parse_constant=str,
            strict=False,
        )
        if not isinstance(found, dict):
            raise CommandError("a header that is no JSON object")
        ext = found.get("extFields")
        if ext not in (None, "") and not isinstance(ext, dict):
            raise CommandError("extFields that are no JSON object")
        language = found.get("language")
        remark = found.get("remark")
        return Command(
            code=_int32(found.get("code")),
            opaque=_int32(found.get("opaque")),
            flag=_int32(found.get("flag")),
            version=_int32(found.get("version")),
            language="JAVA" if language is None else _language(_text(language)),
            remark=None if remark is None else _text(remark),
            _ext={_text(k): _text(v) for k, v in (ext or {}).items() if v is not None},
        )
    except (ValueError, RecursionError) as error:
        raise CommandError(f"a header that cannot be read: {error}") from error


def _int32(value: object) -> int:
    number = 0 if value in (None, "") else int(_text(value))
    if not -(1 << 31) <= number < 1 << 31:
        raise CommandError(f"the number {number} in a header")
    return number


def _text(value: object) -> str:
    if isinstance(value, str):
        # Half of a surrogate pair cannot be encoded; Java too replaces it by a question mark.
        return value.encode(errors="replace").decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, separators=(",", ":"))


def _language(text: str) -> str:
    return _LANGUAGES.get(int(text), text) if text.isdecimal() else text


_unpack_binary_head = struct.Struct(">hBhiiI").unpack_from
_BINARY_HEAD_SIZE: Final = 17
# Lengths are signed in Java. Read as unsigned, a negative length points past the end of any header.
_unpack_short_length = struct.Struct(">H").unpack_from
_unpack_length = struct.Struct(">I").unpack_from


def _decode_binary(header: bytes) -> Command:
    """Decode a ROCKETMQ header.

        | code 2 | language 1 | version 2 | opaque 4 | flag 4 |
        | remark length 4 | remark | ext length 4 | ext |

    where ext repeats `| name length 2 | name | value length 4 | value |`. Bytes after it are ignored.
    """
    ext = {}
    try:
        code, language, version, opaque, flag, size = _unpack_binary_head(header)
        remark_end = _BINARY_HEAD_SIZE + size
        (size,) = _unpack_length(header, remark_end)
        at = remark_end + 4
        end = at + size
        if end > len(header):
            raise CommandError("the lengths in a binary header do not fit")
        while at < end:
            name_end = at + 2 + _unpack_short_length(header, at)[0]
            name = str(header[at + 2 : name_end], "utf-8", "replace")
            value_start = name_end + 4
            at = value_start + _unpack_length(header, name_end)[0]
            if at > end:
                raise CommandError("a length in a binary header does not fit")
            if at > value_start:
                ext[name] = str(header[value_start:at], "utf-8", "replace")
    except struct.error as error:
        raise CommandError("a binary header that is cut off") from error
    return Command(
        code=code,
        opaque=opaque,
        flag=flag,
        version=version,
        language=_LANGUAGES.get(language, "OTHER"),
        remark=str(header[_BINARY_HEAD_SIZE:remark_end], "utf-8", "replace") or None,
        _ext=ext,
    )


def encode_command(
    code: int,
    opaque: int,
    *,
    flag: int = 0,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    remark: str | None = None,
    language: str = "JAVA",
    version: int = VERSION,
) -> bytes:
    """Return the frame of a command with a JSON header.

    :param flag: bits of `CommandFlag`.
    """
    header: dict[str, object] = {"code": int(code)}
    if ext is not None:
        header["extFields"] = dict(ext)
    header |= {"flag": flag, "language": language, "opaque": opaque}
    if remark is not None:
        header["remark"] = remark
    header |= {"serializeTypeCurrentRPC": "JSON", "version": version}
    return join_frame(JSON, _encode_json(header), body)


_SENT: Final = '{"code":0,"extFields":{"MSG_REGION":"DefaultRegion","TRACE_ON":"true","msgId":"'
_TAIL: Final = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'


def encode_response(
    opaque: int,
    code: int,
    *,
    ext: Mapping[str, str] | None = None,
    remark: str | None = None,
    body: bytes = b"",
) -> bytes:
    """Return the frame of a response. It always has extFields: Java fails without them."""
    fields = _encode_json(dict(ext)).decode() if ext else "{}"
    said = f',"remark":{_quoted(remark)}' if remark is not None else ""
    header = (
        f'{{"code":{code:d},"extFields":{fields},"flag":1,"language":"JAVA","opaque":{opaque}'
        f"{said}{_TAIL}"
    ).encode()
    return _pack_lengths(4 + len(header) + len(body), len(header)) + header + body


def send_response(
    opaque: int,
    msg_id: str,
    queue_id: int,
    queue_offset: int,
    transaction_id: str | None,
    recall_handle: str | None = None,
    replaced: int | None = None,
) -> bytes:
    """Return the frame that answers a send with success (SendMessageResponseHeader).

    :param msg_id: offsetMsgId; for a batch one for each message, joined by commas.
    :param transaction_id: the message's UNIQ_KEY, if it has one.
    :param recall_handle: for a timed message only.
    :param replaced: Tidegate's own: the number of messages that a debounced message, or those of a batch, replaced.
    """
    more = f',"recallHandle":"{recall_handle}"' if recall_handle is not None else ""
    if replaced is not None:
        more += f',"replaced":"{replaced}"'
    if transaction_id is not None:
        # Ids are usually letters and digits, but the client chooses them, so one may need escapes.
        more += f',"transactionId":{_quoted(transaction_id)}'
    header = (
        f'{_SENT}{msg_id}","queueId":"{queue_id}","queueOffset":"{queue_offset}"{more}}},"flag":1,'
        f'"language":"JAVA","opaque":{opaque}{_TAIL}'
    ).encode()
    return _pack_lengths(4 + len(header), len(header)) + header


def pull_response(
    opaque: int,
    code: int,
    remark: str,
    next_offset: int,
    min_offset: int,
    max_offset: int,
    body: bytes | bytearray = b"",
) -> bytes:
    """Return the frame that answers a pull (PullMessageResponseHeader).

    :param remark: name of the store's finding (GetMessageStatus).
    :param next_offset: the offset of the client's next pull.
    :param body: whole records, one after the other.
    """
    header = (
        f'{{"code":{code:d},"extFields":{{"groupSysFlag":"0","maxOffset":"{max_offset}",'
        f'"minOffset":"{min_offset}","nextBeginOffset":"{next_offset}","suggestWhichBrokerId":"0",'
        f'"topicSysFlag":"0"}},"flag":1,"language":"JAVA","opaque":{opaque},'
        f'"remark":{_quoted(remark)}{_TAIL}'
    ).encode()
    lengths = _pack_lengths(4 + len(header) + len(body), len(header))
    return b"".join((lengths, header, body))


def _quoted(text: str) -> str:
    return _encode_json(text).decode()
