"""A frame as a command, and commands as frames (RemotingCommand, RocketMQSerializable).

A request's fields come as text in `extFields`. Nearly all headers are JSON that is read in one pass
into a structure for its request code; what that refuses, such as numbers where text is due, is read
again in a slower, more patient way. Everything is answered in JSON with text for every field,
whatever the request was: some clients read nothing else.
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
"""What the gateway says it is: MQVersion V5_5_0. Clients ask less of older servers."""

_LANGUAGES: Final = {int(code): code.name for code in LanguageCode}
_FieldsType = TypeVar("_FieldsType", bound=Fields)
_encode_json = msgspec.json.Encoder().encode
_pack_lengths = struct.Struct(">iI").pack


class CommandError(Exception):
    """A header that cannot be read. The connection is to be closed unanswered, as upstream does."""


class Command(
    msgspec.Struct,
    gc=False,
    kw_only=True,
    # The names with a # are not read from a header: what it has there is overwritten.
    rename={"_ext": "extFields", "header": "#header", "body": "#body"},
):
    """A request or an answer."""

    code: Int32 = 0
    """A `RequestCode`, or a `ResponseCode` in an answer."""
    opaque: Int32 = 0
    """The sender's number for a request; its answer has the same."""
    flag: Int32 = 0
    """Bits of `CommandFlag`."""
    version: Int32 = 0
    """MQVersion of the sender."""
    language: str = "JAVA"
    """Name of a `LanguageCode`; clients may send others."""
    remark: str | None = None
    body: bytes = b""
    header: bytes = b""
    """A JSON header as it came."""
    _ext: Any = None

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return self.flag & CommandFlag.RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender wants no answer."""
        return self.flag & CommandFlag.ONEWAY != 0

    def fields(self, kind: type[_FieldsType]) -> _FieldsType:
        """The request's fields as a structure of `headers`.

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
        """All extFields as text, numbers and booleans as they are written; nulls are left out."""
        ext = self._ext
        if isinstance(ext, Fields):
            return _decode_as_text(self.header).ext()
        return ext if ext is not None else {}


class _TextCommand(Command):
    """Reads the headers of which nothing is known: answers, and requests without fields."""

    _ext: dict[str, str] | None = None


def _reader(kind: type[Fields]) -> msgspec.json.Decoder[Command]:
    reads = msgspec.defstruct(
        kind.__name__ + "Command", [("_ext", kind)], bases=(Command,), kw_only=True, gc=False
    )
    return msgspec.json.Decoder(reads, strict=False)


# Readers by the text of the request code. Headers have their code in front when Java, Go or C++
# wrote them; others are read without, which costs a second look when the fields are asked for.
_CODE_AT: Final = len(b'{"code":')
_LONGEST_CODE: Final = 11
_readers: Final = {
    str(int(code)).encode(): _reader(kind).decode for code, kind in FIELDS_OF_REQUESTS.items()
}
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_read_text = msgspec.json.Decoder(_TextCommand, strict=False).decode


def decode_command(frame: Frame) -> Command:
    """Read a frame's header.

    :raises CommandError: when it is no header of its type.
    """
    kind, header, body = frame
    if kind == JSON:
        end = header.find(b",", _CODE_AT, _CODE_AT + _LONGEST_CODE)
        read = _readers.get(header[_CODE_AT:end], _read_text)
        try:
            command: Command = read(header)
        except _UNREADABLE:
            command = _decode_as_text(header)
        command.header = header
    else:
        command = _decode_binary(header)
    command.body = body
    return command


def _decode_as_text(header: bytes) -> Command:
    """Read a JSON header with its fields as text, whatever its code is."""
    try:
        return _read_text(header)
    except _UNREADABLE:
        return _decode_patiently(header)


def _decode_patiently(header: bytes) -> Command:
    """Read a JSON header as fastjson would: values of any type where text or a number is due, characters of control as
    they are, as properties have them, and C's end of a text behind it."""
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
        if ext is not None and not isinstance(ext, dict):
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
    number = 0 if value is None else int(_text(value))
    if not -(1 << 31) <= number < 1 << 31:
        raise CommandError(f"the number {number} in a header")
    return number


def _text(value: object) -> str:
    if isinstance(value, str):
        # Half of a surrogate pair cannot be written again; Java makes it a question mark too.
        return value.encode(errors="replace").decode()
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, separators=(",", ":"))


def _language(text: str) -> str:
    return _LANGUAGES.get(int(text), text) if text.isdecimal() else text


_unpack_binary_head = struct.Struct(">hBhiiI").unpack_from
_BINARY_HEAD_SIZE: Final = 17
# Lengths are signed in Java. Read without a sign, a negative one is past any header's end.
_unpack_short_length = struct.Struct(">H").unpack_from
_unpack_length = struct.Struct(">I").unpack_from


def _decode_binary(header: bytes) -> Command:
    """Read a ROCKETMQ header.

        | code 2 | language 1 | version 2 | opaque 4 | flag 4 |
        | remark length 4 | remark | ext length 4 | ext |

    where ext repeats `| name length 2 | name | value length 4 | value |`. Nobody reads what is behind it.
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
    """The frame of a command, with a JSON header.

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
    """The frame that answers a request. It always has extFields: Java fails without them."""
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
    """The frame that answers a send with success (SendMessageResponseHeader).

    :param msg_id: offsetMsgId; several, joined by commas, for a batch.
    :param transaction_id: the message's UNIQ_KEY, if it has one.
    :param recall_handle: for a timed message only.
    :param replaced: Tidegate's own: of how many messages a debounced one took the place.
    """
    more = f',"recallHandle":"{recall_handle}"' if recall_handle is not None else ""
    if replaced is not None:
        more += f',"replaced":"{replaced}"'
    if transaction_id is not None:
        # Ids are letters and digits, but they are the client's, so one may need escapes.
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
    """The frame that answers a pull (PullMessageResponseHeader).

    :param remark: name of the store's finding (GetMessageStatus).
    :param next_offset: where the client goes on.
    :param body: records, each whole, one behind the other.
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
