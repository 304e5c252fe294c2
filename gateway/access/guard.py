"""Checks who sent a request (authentication), and whether that user may make it (authorization)."""

from __future__ import annotations

from gateway.access.permissions import PERMISSIONS, topic_need
from gateway.access.policies import Action, Need
from gateway.access.users import SUBJECT, SUPER, User, Users, refused
from gateway.broker import Broker
from gateway.router import Call, check_number
from gateway.wire.access_bodies import UserInfo
from gateway.wire.signatures import ACCESS_KEY, is_signed
from gateway.workers.siblings import WORKERS, SharedAddress
from gateway.workers.vouching import vouched_host

MAX_NEEDS = 20_000
"""Most permissions that one request may need, 3 us each: one for each topic and each group that it names."""


class Caller:
    """The user who sent a request; see `router.Caller`."""

    __slots__ = ("_is_free", "_source", "_user", "_users")

    def __init__(self, users: Users, user: User, source: str, *, is_free: bool) -> None:
        """:param is_free: whether every user may do everything."""
        self._users = users
        self._user = user
        self._source = source
        self._is_free = is_free or user.is_super

    @property
    def name(self) -> str:
        """The user's access key."""
        return self._user.name

    @property
    def is_super(self) -> bool:
        """Whether the user is a super user, who may do everything."""
        return self._user.is_super

    @property
    def may_everything(self) -> bool:
        """Whether no policy is checked for the user."""
        return self._is_free

    def may(self, actions: frozenset[Action], topic: str) -> bool:
        """Return whether the user may do one of these actions to a topic."""
        return self.objection(topic_need(topic, actions)) is None

    def objection(self, need: Need) -> str | None:
        """Return why something is not permitted; None if it is."""
        if self._is_free:
            return None
        rules = self._users.rules(self._user.name)
        why = rules.objection(need, self._source) if rules else "no matched policies."
        if why is None:
            return None
        name = self._user.name
        what = need.called or need.resource
        return f"{SUBJECT}{name} has no permission to access {what} from {self._source}, {why}"


class Guard:
    """Checks the sender of each request and, with `authorization`, the sender's permissions. Refusals have upstream's
    texts (DefaultAuthenticationHandler, AclAuthorizationHandler).

    :param shared: has the key with which workers sign requests to one another, and by which they believe their leader
        where a request came from; None if this gateway is not a worker.
    """

    def __init__(self, broker: Broker, users: Users, shared: SharedAddress | None) -> None:
        self._broker = broker
        self._users = users
        self._worker = None
        self._key = shared.key.encode() if shared is not None else None
        if shared is not None:
            self._worker = User(UserInfo(username=WORKERS, password=shared.key, user_type=SUPER))
        self._by_policies = broker.config.authorization

    def authenticate(self, call: Call) -> None:
        """Find out which user sent a request.

        :raises RequestError: when no user did.
        """
        command = call.command
        ext = command.ext()
        source = vouched_host(ext.get, self._key) or call.peer.source
        name = ext.get(ACCESS_KEY)
        if not name:
            raise refused("username cannot be null.")
        user = self._worker if name == WORKERS else self._users.get(name)
        if user is None:
            raise refused(f"User:{name} is not found.")
        if user.is_disabled:
            raise refused(f"User:{name} is disabled.")
        if not is_signed(ext, command.body, command.version, user.key):
            raise refused("check signature failed.")
        call.caller = Caller(self._users, user, source, is_free=not self._by_policies)

    def authorize(self, call: Call) -> None:
        """Check a request, whose fields have been read, against its sender's permissions.

        :raises RequestError: when the request is not permitted.
        """
        caller = call.caller
        assert isinstance(caller, Caller)
        if caller.may_everything:
            return
        requirement = PERMISSIONS.get(call.command.code)
        if requirement is None:
            raise refused(f"request {call.command.code} is for super users only")
        for number, need in enumerate(requirement(call, self._broker), 1):
            check_number("permissions for one request", number, MAX_NEEDS)
            objection = caller.objection(need)
            if objection is not None:
                raise refused(objection)
