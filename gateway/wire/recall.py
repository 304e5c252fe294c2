"""Recall handles, by which a client takes back a timed message (RecallMessageHandle).

A handle is the URL-safe base64 of `v1 <topic> <broker name> <due ms> <UNIQ_KEY>`. It is not signed.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, Self

import msgspec

_VERSION: Final = "v1"
_URL_SAFE: Final = re.compile(r"[A-Za-z0-9_-]*={0,2}")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


class RecallHandleError(ValueError):
    """The text is not a recall handle. The error's text is upstream's remark (RecallMessageProcessor)."""


class RecallHandle(msgspec.Struct, frozen=True, gc=False):
    """Identifies one timed message: `due_ms` is its due time, `message_id` its UNIQ_KEY."""

    topic: str
    broker: str
    due_ms: int
    message_id: str

    def encode(self) -> str:
        """Return the handle as text, with base64's padding, as upstream writes it."""
        text = f"{_VERSION} {self.topic} {self.broker} {self.due_ms} {self.message_id}"
        encoded = binascii.b2a_base64(text.encode(), newline=False).decode()
        # Text seldom has them: to look for each is cheaper than to translate all.
        return encoded.replace("+", "-").replace("/", "_")

    @classmethod
    def parse(cls, handle: str) -> Self:
        """Read a handle. As upstream, padding may be missing.

        The id is all text after the time, since an id that its sender chose may have blanks in it. Upstream takes only
        the text's first word, which is then the id of no message.

        :raises RecallHandleError: for anything else.
        """
        if not _URL_SAFE.fullmatch(handle):
            raise RecallHandleError("recall handle is invalid")
        try:
            # Padding beyond what is needed is ignored.
            text = base64.urlsafe_b64decode(f"{handle}==").decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise RecallHandleError("recall handle is invalid") from error
        items = text.split(" ", 4)
        if len(items) < 5 or items[0] != _VERSION:
            raise RecallHandleError("recall handle is invalid")
        if not _NUMBER.fullmatch(items[3]):
            raise RecallHandleError("recall failed, timestamp invalid")
        return cls(items[1], items[2], int(items[3]), items[4])
