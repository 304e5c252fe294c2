"""The bodies of the requests that manage users and their policies: 3001 to 3010."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.wire.bodies import BodyError, read_body


class UserInfo(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """A user (UserInfo): the body of 3001 and 3002. A change leaves omitted fields as they are."""

    password: str | None = None
    """The secret key that requests are signed with."""
    user_status: str | None = None
    """`enable` or `disable`."""
    user_type: str | None = None
    """`Normal` or `Super`."""
    username: str | None = None
    """The access key."""


class AclEntry(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """The part of a policy about one resource (AclInfo.PolicyEntryInfo)."""

    actions: list[str] = []
    decision: str | None = None
    """`Allow` or `Deny`."""
    resource: str | None = None
    """Such as `Topic:orders`, `Group:pay*`, `Cluster:*` or `*`."""
    source_ips: list[str] | None = None
    """Addresses and ranges that requests may come from; without any, they may come from anywhere."""


class AclPolicy(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """A set of entries that apply together (AclInfo.PolicyInfo)."""

    entries: list[AclEntry] = []
    policy_type: str | None = None
    """`Custom`, also when omitted, or `Default`."""


class AclInfo(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """All policies of a user (AclInfo)."""

    policies: list[AclPolicy] = []
    subject: str | None = None
    """`User:` and the user's name."""


HIDDEN = "***"
"""Stands for a password in logs."""


def without_password(body: bytes) -> bytes:
    """Return the body of requests 3001 and 3002 as logs may have it.

    :raises BodyError: when it is not a user.
    """
    info = read_body(body, UserInfo)
    if info.password is not None:
        info.password = HIDDEN
    return encode_info(info)


def parse_acl(body: bytes) -> AclInfo:
    """Read the body of requests 3006 and 3007.

    :raises BodyError: when it is not a set of policies, or an empty one.
    """
    acl = read_body(body, AclInfo) if body else AclInfo()
    if not acl.policies:
        raise BodyError("The body of acl is null")
    return acl


def encode_info(info: UserInfo | AclInfo | Sequence[UserInfo] | Sequence[AclInfo]) -> bytes:
    """Return the answer to 3004, 3005, 3009 or 3010: a user, a user's policies, or a list of these."""
    return msgspec.json.encode(info)
