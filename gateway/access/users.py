"""Users and their permissions, which are stored (AuthenticationMetadataManager, AuthorizationMetadataManager)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import msgspec

from gateway.access.policies import POLICY_TYPES, Action, Pattern, PolicyError, Rules, parse_actions
from gateway.notes import read_note, read_notes
from gateway.router import RequestError
from gateway.unstored import Unstored
from gateway.wire.access_bodies import AclEntry, AclInfo, AclPolicy, UserInfo
from gateway.wire.codes import ResponseCode
from storage import Store

MAX_NAME = 400
"""Longest name of a user, in bytes: it is a key of the store."""

MAX_PASSWORD = 1_000
"""Longest password, in bytes: each request of the user is checked against a signature that is made with it."""

MAX_POLICIES = 256 * 1024
"""Most bytes of a user's policies as they are stored, some 4,000 entries. Each change reads all of them again, 10 us an
entry, and each request of the user searches them."""

MAX_ALL_POLICIES = 16 << 20
"""Most bytes of all users' policies as they are stored, some 250,000 entries. In memory they take 5 to 25 times as
much."""

MAX_USERS = 10_000
"""Most users, 0.6 KB of memory each. A list of so many, all with the longest names and passwords, takes 15 MB, which
clients accept."""

SUPER, NORMAL = "Super", "Normal"
"""Types of users (UserType). A super user may do everything."""

ENABLED, DISABLED = "enable", "disable"
"""States of users (UserStatus). Requests of a disabled user are refused."""

SUBJECT = "User:"

_ByResource = dict[str, list[AclEntry]]
"""Entries by resource. Several may be about one, with other actions, sources or decisions."""

_USER, _USER_KIND = b"user\0", "user"
_ACL, _ACL_KIND = b"acl\0", "policies of the user"


class User:
    """A user, with the fields that each request is checked by."""

    __slots__ = ("info", "is_disabled", "is_super", "key", "name")

    def __init__(self, info: UserInfo) -> None:
        self.info = info
        self.name = info.username or ""
        self.key = (info.password or "").encode()
        self.is_super = info.user_type == SUPER
        self.is_disabled = info.user_status == DISABLED


class Users:
    """All users, and their policies. A stored row that cannot be read permits nobody anything."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._users: dict[str, User] = {}
        self._acls: dict[str, AclInfo] = {}
        self._rules: dict[str, Rules] = {}
        self._sizes: dict[str, int] = {}
        self._unstored = Unstored[str](store)
        read_notes(store, _USER, _USER_KIND, self._take_user)
        read_notes(store, _ACL, _ACL_KIND, self._take_acl)

    def reload(self) -> None:
        """Read again what a refused batch has changed."""
        self._unstored.restore(self._reload)

    def _reload(self, name: str) -> None:
        for table in (self._users, self._acls, self._rules, self._sizes):
            table.pop(name, None)
        read_note(self._store, _USER, name.encode(), _USER_KIND, self._take_user)
        read_note(self._store, _ACL, name.encode(), _ACL_KIND, self._take_acl)

    def _take_user(self, _: bytes, value: bytes) -> None:
        user = User(msgspec.json.decode(value, type=UserInfo))
        self._users[user.name] = user

    def _take_acl(self, name: bytes, value: bytes) -> None:
        acl = msgspec.json.decode(value, type=AclInfo)
        self._rules[name.decode()] = Rules(acl)
        self._acls[name.decode()] = acl
        self._sizes[name.decode()] = len(value)

    def __bool__(self) -> bool:
        return bool(self._users)

    def get(self, name: str) -> User | None:
        """Return a user, or None."""
        return self._users.get(name)

    def matching(self, text: str | None) -> list[User]:
        """Return the users whose name contains a text, by name; without a text, all users."""
        return [self._users[name] for name in sorted(self._users) if (text or "") in name]

    def check_room(self) -> None:
        """Check that there may be one more user.

        :raises RequestError: when there may not.
        """
        if len(self._users) >= MAX_USERS:
            raise refused(f"there are {len(self._users)} users; {MAX_USERS} are possible")

    def create(self, info: UserInfo) -> None:
        """Add a user. The change joins the store's batch.

        :raises RequestError: when the user is not valid, or exists already.
        """
        name = info.username or ""
        if not name.strip():
            raise refused("username can not be blank")
        if len(name.encode()) > MAX_NAME or "\0" in name:
            raise refused(f"username has at most {MAX_NAME} bytes, none of them 0")
        if not (info.password or "").strip():
            raise refused("password can not be blank")
        _check_password(info)
        if name in self._users:
            raise refused("The user is existed")
        self._put(_merged(UserInfo(username=name, user_type=NORMAL, user_status=ENABLED), info))

    def update(self, info: UserInfo) -> None:
        """Change the given fields of a user. The change joins the store's batch.

        :raises RequestError: when there is no such user, or a field is not valid.
        """
        user = self._users.get(info.username or "")
        if user is None:
            raise refused("The user is not exist")
        _check_password(info)
        self._put(_merged(user.info, info))

    def delete(self, name: str) -> None:
        """Delete a user and the user's policies. The change joins the store's batch."""
        if name in self._users:
            self._store.delete_note(_USER + name.encode())
            self._unstored.add(name)
            del self._users[name]
        self._forget_acl(name)

    def rules(self, name: str) -> Rules | None:
        """Return a user's policies, in the form in which requests are checked."""
        return self._rules.get(name)

    def acl(self, name: str) -> AclInfo | None:
        """Return a user's policies, in the form that tools use.

        :raises RequestError: when there is no such user.
        """
        if name not in self._users:
            raise refused("The subject is not exist.")
        return self._acls.get(name)

    def acls(self, subject: str | None, resource: str | None) -> list[AclInfo]:
        """Return policies by user. Where texts are given, the names of subjects and of resources must contain them."""
        found = []
        wanted = resource or ""
        for name in sorted(self._acls):
            if (subject or "") not in SUBJECT + name:
                continue
            policies = [
                AclPolicy(policy_type=policy.policy_type, entries=entries)
                for policy in self._acls[name].policies
                if (entries := [one for one in policy.entries if wanted in (one.resource or "")])
            ]
            if policies:
                found.append(AclInfo(subject=SUBJECT + name, policies=policies))
        return found

    def put_policies(self, name: str, policies: list[AclPolicy]) -> None:
        """Add entries to a user's policies; they replace older entries about the same resources. The change joins the
        store's batch.

        :raises RequestError: when there is no such user, a policy is not valid, or there would be too many.
        """
        if name not in self._users:
            raise refused(f"The subject of {SUBJECT}{name} is not exist.")
        if not any(policy.entries for policy in policies):
            raise refused("The policies is empty.")
        # Check the size of the new ones first: reading a million of them takes seconds.
        _check_size(policies)
        old = _by_type(self._acls.get(name, AclInfo()).policies)
        try:
            new = _by_type([_tidy(policy) for policy in policies])
            acl = _acl(name, {one: old[one] | new[one] for one in POLICY_TYPES})
            _check_size(acl)
            self._check_size_of_all(name, acl)
            self._put_acl(name, acl)
        except PolicyError as error:
            raise refused(str(error)) from error

    def delete_policies(self, name: str, policy_type: str | None, resource: str | None) -> None:
        """Delete the entries about a resource, or all of a user's policies. The change joins the store's batch.

        :raises RequestError: when there is no such user, or no policy.
        """
        if name not in self._users:
            raise refused("The subject is not exist.")
        if name not in self._acls:
            raise refused("The acl is not exist.")
        if not resource:
            self._forget_acl(name)
            return
        by_type = _by_type(self._acls[name].policies)
        try:
            by_type[_policy_type(policy_type)].pop(str(Pattern.parse(resource)), None)
        except PolicyError as error:
            raise refused(str(error)) from error
        if not any(by_type.values()):
            self._forget_acl(name)
            return
        self._put_acl(name, _acl(name, by_type))

    def _put(self, info: UserInfo) -> None:
        user = User(info)
        self._store.put_note(_USER + user.name.encode(), msgspec.json.encode(info))
        self._unstored.add(user.name)
        self._users[user.name] = user

    def _check_size_of_all(self, name: str, acl: AclInfo) -> None:
        """Refuse policies of a user that become longer where there is no room. Shorter ones always have it."""
        more = len(msgspec.json.encode(acl)) - self._sizes.get(name, 0)
        size = sum(self._sizes.values()) + more
        if more > 0 and size > MAX_ALL_POLICIES:
            raise refused(f"policies of all users of {size} bytes; {MAX_ALL_POLICIES} are possible")

    def _put_acl(self, name: str, acl: AclInfo) -> None:
        rules = Rules(acl)
        value = msgspec.json.encode(acl)
        self._store.put_note(_ACL + name.encode(), value)
        self._unstored.add(name)
        self._sizes[name] = len(value)
        self._rules[name] = rules
        self._acls[name] = acl

    def _forget_acl(self, name: str) -> None:
        if name in self._acls:
            self._store.delete_note(_ACL + name.encode())
            self._unstored.add(name)
            del self._acls[name], self._rules[name], self._sizes[name]


def refused(remark: str) -> RequestError:
    """Return the error for a request about users or policies (AuthenticationException, AuthorizationException)."""
    return RequestError(ResponseCode.NO_PERMISSION, remark)


def _check_password(info: UserInfo) -> None:
    if len((info.password or "").encode()) > MAX_PASSWORD:
        raise refused(f"password has at most {MAX_PASSWORD} bytes")


def _check_size(policies: AclInfo | list[AclPolicy]) -> None:
    size = len(msgspec.json.encode(policies))
    if size > MAX_POLICIES:
        raise refused(f"policies of {size} bytes; a user can have {MAX_POLICIES}")


def _merged(old: UserInfo, new: UserInfo) -> UserInfo:
    """Return a user with the given fields of another; an unknown type or state is ignored, as upstream does."""
    types = {one.lower(): one for one in (SUPER, NORMAL)}
    status = (new.user_status or "").lower()
    return UserInfo(
        username=old.username,
        password=new.password if (new.password or "").strip() else old.password,
        user_type=types.get((new.user_type or "").lower(), old.user_type),
        user_status=status if status in (ENABLED, DISABLED) else old.user_status,
    )


def _policy_type(text: str | None) -> str:
    """Return a policy's type; an unknown one counts as Custom, as in upstream."""
    return next((one for one in POLICY_TYPES if one.lower() == (text or "").lower()), "Custom")


def _tidy(policy: AclPolicy) -> AclPolicy:
    """Return a policy in the form in which it is stored and shown.

    :raises PolicyError: when it is not valid.
    """
    entries = []
    for entry in policy.entries:
        actions = parse_actions(entry.actions)
        tidy = AclEntry(
            resource=str(Pattern.parse(entry.resource or "")),
            actions=[action for action in Action if action in actions],
            source_ips=entry.source_ips or None,
            decision=(entry.decision or "").capitalize() or None,
        )
        entries.append(tidy)
    return AclPolicy(policy_type=policy.policy_type, entries=entries)


def _by_type(policies: Iterable[AclPolicy]) -> dict[str, _ByResource]:
    """Return the entries of tidy policies by policy type and resource."""
    by_type: dict[str, _ByResource] = {one: {} for one in POLICY_TYPES}
    for policy in policies:
        entries = by_type[_policy_type(policy.policy_type)]
        for entry in policy.entries:
            entries.setdefault(entry.resource or "", []).append(entry)
    return by_type


def _acl(name: str, by_type: dict[str, _ByResource]) -> AclInfo:
    policies = [
        AclPolicy(policy_type=policy_type, entries=list(chain.from_iterable(entries.values())))
        for policy_type, entries in by_type.items()
        if entries
    ]
    return AclInfo(subject=SUBJECT + name, policies=policies)
