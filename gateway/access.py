"""Permissions: actions, resources, and the policies of a user (PolicyEntry, AclAuthorizationHandler)."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum, unique
from typing import NamedTuple

from gateway.wire.access_bodies import AclEntry, AclInfo

ANY = "*"

KINDS = ("Cluster", "Namespace", "Topic", "Group")
"""Kinds of resources (ResourceType). No request needs a namespace."""

POLICY_TYPES = ("Custom", "Default")
"""Types of policies. Those of the second type count only if no entry of the first type matches a request."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class PolicyError(Exception):
    """A policy is not valid. The text is shown to the user of the tool."""


@unique
class Action(StrEnum):
    """An action on a resource (Action). In a policy `ALL` stands for each of the others."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


PUB = frozenset({Action.PUB})
READ = frozenset({Action.SUB, Action.GET})
"""The actions that let a user see messages; either is enough."""


May = Callable[[frozenset[Action], str], bool]
"""Returns whether the sender may do one of these actions to a topic; `Call.may` is one."""


class Resource(NamedTuple):
    """One topic, group or cluster."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class Need(NamedTuple):
    """A permission that a request needs: one of these actions on a resource."""

    resource: Resource
    actions: frozenset[Action]
    called: str = ""
    """What a refusal calls the resource where it must not tell the name."""


class Pattern(NamedTuple):
    """The resources that an entry is about. `kind` is `*` for all kinds.

    `rank` orders patterns, the most specific first: an exact name, the longest prefix, any name, anything.
    """

    kind: str
    prefix: str
    rank: tuple[int, int]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Parse `Topic:orders`, `Topic:ord*`, `Topic:*` or `*`; the kind may be in any case.

        :raises PolicyError: when it is none of these.
        """
        if text == ANY:
            return cls(ANY, "", (3, 0))
        kind, colon, name = text.partition(":")
        kind = kind.capitalize()
        if kind not in KINDS or not colon or not name:
            raise PolicyError("The resource is null.")
        if name == ANY:
            return cls(kind, "", (2, 0))
        if name.endswith(ANY):
            return cls(kind, name[:-1], (1, 1 - len(name)))
        return cls(kind, name, (0, 0))

    def __str__(self) -> str:
        if self.kind == ANY:
            return ANY
        return f"{self.kind}:{self.prefix}" + (ANY if self.rank[0] else "")

    def covers(self, resource: Resource) -> bool:
        """Return whether a resource matches the pattern."""
        if self.kind == ANY:
            return True
        if self.kind != resource.kind:
            return False
        if self.rank[0]:
            return resource.name.startswith(self.prefix)
        return resource.name == self.prefix


class Entry(NamedTuple):
    """One line of a policy."""

    pattern: Pattern
    actions: frozenset[Action]
    networks: tuple[Network, ...]
    """Networks that requests must come from; without any, they may come from anywhere."""
    allows: bool


class Rules:
    """The policies of one user, parsed."""

    def __init__(self, acl: AclInfo) -> None:
        """:raises PolicyError: when a policy is not valid."""
        self._policies = [
            [
                entry
                for policy in acl.policies
                if (policy.policy_type or POLICY_TYPES[0]) == policy_type
                for entry in _entries(policy.entries)
            ]
            for policy_type in POLICY_TYPES
        ]

    def objection(self, need: Need, source: str) -> str | None:
        """Return why the policies do not permit something; None if they do.

        :param source: IP address that the request comes from.
        """
        for entries in self._policies:
            matching = [entry for entry in entries if _matches(entry, need, source)]
            if matching:
                # Of equally specific entries, those that deny come first.
                best = min(matching, key=lambda entry: (entry.pattern.rank, entry.allows))
                return None if best.allows else "the decision is deny."
        return "no matched policies."


def parse_actions(texts: Iterable[str]) -> frozenset[Action]:
    """Parse names of actions, in any case. As upstream, unknown names are skipped.

    :raises PolicyError: when none is left.
    """
    known = {action.value.lower(): action for action in Action}
    lowered = [text.strip().lower() for text in texts]
    if "any" in lowered:
        raise PolicyError("The actions can not be Any.")
    actions = frozenset(known[text] for text in lowered if text in known)
    if not actions:
        raise PolicyError("The actions is empty.")
    return actions


def parse_network(text: str) -> Network:
    """Parse an IP address, or a network such as `192.0.2.0/24`.

    :raises PolicyError: when it is neither.
    """
    if not text.strip():
        raise PolicyError("The source ip is empty.")
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise PolicyError("The source ip is invalid.") from None


def _entries(infos: Sequence[AclEntry]) -> Iterator[Entry]:
    for info in infos:
        decision = (info.decision or "").lower()
        pattern = Pattern.parse(info.resource or "")
        actions = parse_actions(info.actions)
        networks = tuple(parse_network(text) for text in info.source_ips or ())
        if decision not in ("allow", "deny"):
            raise PolicyError("The decision is null or illegal.")
        yield Entry(pattern, actions, networks, decision == "allow")


def _matches(entry: Entry, need: Need, source: str) -> bool:
    if not entry.pattern.covers(need.resource):
        return False
    if Action.ALL not in entry.actions and entry.actions.isdisjoint(need.actions):
        return False
    if not entry.networks:
        return True
    address = ipaddress.ip_address(source)
    return any(address in network for network in entry.networks)
