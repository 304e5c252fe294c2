"""The signature of a request (AclClientRPCHook, AclUtils, DefaultAuthenticationContextBuilder).

It is the Base64 of HMAC-SHA1 with the user's secret key. The signed text is the values of all extFields except the
signature itself, in the order of their names and without separators, followed by the body.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105  the name of a field

SENDER: Final = "tidegateSender"
SENDER_PROOF: Final = "tidegateSenderProof"
OF_LEADER: Final = frozenset({SENDER, SENDER_PROOF})
"""With these the leader of several workers tells them where a request came from (`gateway.workers.vouching`). Nobody
has signed them. They may be those of another leader, when a recorded request is sent again."""

FIELDS: Final = OF_LEADER | {ACCESS_KEY, SIGNATURE, SECURITY_TOKEN}
"""The fields that prove who sends a request. They are for the gateway alone, and neither logged nor passed on."""

UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
LAST_WITHOUT_UNIQUE_KEY_QUERY: Final = 399
"""Clients up to this version (MQVersion V4_9_3) add UNIQUE_KEY_QUERY after they have signed."""


def sign(ext: Mapping[str, str], body: bytes, key: bytes) -> str:
    """Return the signature of a request with these fields. Names are sorted as Java sorts them; they are all ASCII."""
    values = "".join(ext[name] for name in sorted(ext) if name != SIGNATURE)
    content = values.encode(errors="replace") + body
    return base64.b64encode(hmac.digest(key, content, "sha1")).decode()


def is_signed(ext: Mapping[str, str], body: bytes, version: int, key: bytes) -> bool:
    """Return whether the owner of the key has signed the request.

    :param version: the client's MQVersion.
    """
    signature = ext.get(SIGNATURE, "").encode(errors="replace")
    if not OF_LEADER.isdisjoint(ext):
        ext = {name: value for name, value in ext.items() if name not in OF_LEADER}
    if version <= LAST_WITHOUT_UNIQUE_KEY_QUERY and UNIQUE_KEY_QUERY in ext:
        ext = {name: value for name, value in ext.items() if name != UNIQUE_KEY_QUERY}
    if hmac.compare_digest(sign(ext, body, key).encode(), signature):
        return True
    if SECURITY_TOKEN not in ext:
        return False
    # The Go client adds the token after it has signed.
    ext = {name: value for name, value in ext.items() if name != SECURITY_TOKEN}
    return hmac.compare_digest(sign(ext, body, key).encode(), signature)
