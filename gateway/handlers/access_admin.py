"""Users (3001 to 3005) and their policies (3006 to 3010), as tools manage them."""

from __future__ import annotations

import msgspec

from gateway.access.users import SUBJECT, SUPER, User, Users, refused
from gateway.broker import Broker
from gateway.router import Call, RequestError
from gateway.wire.access_bodies import UserInfo, encode_info, parse_acl
from gateway.wire.bodies import read_body
from gateway.wire.codes import ResponseCode
from gateway.wire.headers import DeleteAcl, ListAcls, ListUsers, NamedSubject, NamedUser


class AccessAdmin:
    """Changes users and policies; each change is answered once it is on disk."""

    def __init__(self, broker: Broker, users: Users) -> None:
        self._committer = broker.committer
        self._users = users

    def create_user(self, call: Call) -> None:
        """Add a user (3001)."""
        info = self._user_of(call)
        if _becomes_super(info) and not _is_super(call):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "The super user can only be create by super user"
            )
        # The first user, which the settings name, is not refused: the gateway would not start.
        self._users.check_room()
        self._users.create(info)
        self._answer_on_disk(call)

    def update_user(self, call: Call) -> None:
        """Change a user's password, type or state (3002)."""
        info = self._user_of(call)
        if _becomes_super(info) and not _is_super(call):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "The super user can only be update by super user"
            )
        self._spare_super(call, info.username or "")
        self._users.update(info)
        self._answer_on_disk(call)

    def delete_user(self, call: Call) -> None:
        """Delete a user, if there is one, and the user's policies (3003)."""
        fields: NamedUser = call.fields
        if not fields.username.strip():
            raise refused("username can not be blank")
        self._spare_super(call, fields.username)
        self._users.delete(fields.username)
        self._answer_on_disk(call)

    def user(self, call: Call) -> None:
        """Answer with a user (3004), or without a body if there is none."""
        fields: NamedUser = call.fields
        if not fields.username.strip():
            raise RequestError(ResponseCode.INVALID_PARAMETER, "The username is blank")
        user = self._users.get(fields.username)
        call.answer(body=encode_info(_shown(user, call)) if user is not None else b"")

    def users(self, call: Call) -> None:
        """Answer with all users, or those whose names contain a text (3005), or without a body if there are none."""
        fields: ListUsers = call.fields
        found = [_shown(user, call) for user in self._users.matching(fields.filter)]
        call.answer(body=encode_info(found) if found else b"")

    def put_acl(self, call: Call) -> None:
        """Add to a user's policies (3006, 3007); upstream does not distinguish the two requests."""
        fields: NamedSubject = call.fields
        acl = parse_acl(call.command.body)
        name = _name_of(acl.subject or fields.subject)
        self._spare_super(call, name)
        self._users.put_policies(name, acl.policies)
        self._answer_on_disk(call)

    def delete_acl(self, call: Call) -> None:
        """Delete a user's policies about a resource, or all of them (3008)."""
        fields: DeleteAcl = call.fields
        self._users.delete_policies(_name_of(fields.subject), fields.policy_type, fields.resource)
        self._answer_on_disk(call)

    def acl(self, call: Call) -> None:
        """Answer with a user's policies (3009), or without a body if there are none."""
        fields: NamedSubject = call.fields
        acl = self._users.acl(_name_of(fields.subject))
        call.answer(body=encode_info(acl) if acl is not None else b"")

    def acls(self, call: Call) -> None:
        """Answer with all policies, or those of some users about some resources (3010), or without a body if there are
        none."""
        fields: ListAcls = call.fields
        found = self._users.acls(fields.subject_filter, fields.resource_filter)
        call.answer(body=encode_info(found) if found else b"")

    @staticmethod
    def _user_of(call: Call) -> UserInfo:
        fields: NamedUser = call.fields
        if not fields.username:
            raise RequestError(ResponseCode.INVALID_PARAMETER, "The username is blank")
        info = read_body(call.command.body, UserInfo)
        info.username = fields.username
        return info

    def _spare_super(self, call: Call, name: str) -> None:
        """Refuse a change of a super user by anyone else than a super user."""
        user = self._users.get(name)
        if user is not None and user.is_super and not _is_super(call):
            raise refused("The super user can only be update by super user")

    def _answer_on_disk(self, call: Call) -> None:
        self._committer.answer(call, call.encode())


def _is_super(call: Call) -> bool:
    """Return whether the sender may do everything, as everybody may when requests need no user."""
    return call.caller is None or call.caller.is_super


def _becomes_super(info: UserInfo) -> bool:
    return (info.user_type or "").lower() == SUPER.lower()


def _shown(user: User, call: Call) -> UserInfo:
    """Return a user as the sender may see it. Only super users get to see keys: with a super user's key anybody would
    be one."""
    if call.caller is not None and call.caller.is_super:
        return user.info
    return msgspec.structs.replace(user.info, password=None)


def _name_of(subject: str | None) -> str:
    """Return the name of the user that a subject names (Subject)."""
    kind, _, name = (subject or "").partition(":")
    if kind.lower() + ":" != SUBJECT.lower() or not name:
        raise refused("The subject is null.")
    return name
