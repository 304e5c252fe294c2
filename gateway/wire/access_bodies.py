"""The bodies of the requests that manage users and what they may do: 3001 to 3010."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.wire.bodies import BodyError, read_body


class UserInfo(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """A user (UserInfo). In a change, what is left out stays."""

    password: str | None = None
    """The secret key that requests are signed with."""
    user_status: str | None = None
    """`enable` or `disable`."""
    user_type: str | None = None
    """`Normal` or `Super`."""
    username: str | None = None
    """The access key."""


class AclEntry(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """What a policy says of one resource (AclInfo.PolicyEntryInfo)."""

    actions: list[str] = []
    decision: str | None = None
    """`Allow` or `Deny`."""
    resource: str | None = None
    """Such as `Topic:orders`, `Group:pay*`, `Cluster:*` or `*`."""
    source_ips: list[str] | None = None
    """Addresses and ranges that requests may come from; none is anywhere."""


class AclPolicy(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Entries that count together (AclInfo.PolicyInfo)."""

    entries: list[AclEntry] = []
    policy_type: str | None = None
    """`Custom`, which is meant when it is left out, or `Default`."""


class AclInfo(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """All policies of a user (AclInfo)."""

    policies: list[AclPolicy] = []
    subject: str | None = None
    """`User:` and the user's name."""


def parse_user(body: bytes) -> UserInfo:
    """Read the body of requests 3001 and 3002.

    :raises BodyError: when it is no user.
    """
    return read_body(body, UserInfo)


def parse_acl(body: bytes) -> AclInfo:
    """Read the body of requests 3006 and 3007.

    :raises BodyError: when it is no set of policies, or an empty one.
    """
    acl = read_body(body, AclInfo) if body else AclInfo()
    if not acl.policies:
        raise BodyError("The body of acl is null")
    return acl


def encode_info(info: UserInfo | AclInfo | Sequence[UserInfo] | Sequence[AclInfo]) -> bytes:
    """A user, a user's policies, or several of these: the answers to 3004, 3005, 3009 and 3010."""
    return msgspec.json.encode(info)
