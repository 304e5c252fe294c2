"""Permissions: actions, resources, and the policies of a user (PolicyEntry, AclAuthorizationHandler)."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum, unique
from typing import Final, NamedTuple

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


_ACTIONS: Final = {action.value.lower(): action for action in Action}

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
    """The resources that an entry is about: one name, or all names that begin with a prefix. `kind` is `*` for all
    kinds."""

    kind: str
    name: str
    is_prefix: bool = False

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Parse `Topic:orders`, `Topic:ord*`, `Topic:*` or `*`; the kind may be in any case.

        :raises PolicyError: when it is none of these.
        """
        if text == ANY:
            return ANYTHING
        kind, _, name = text.partition(":")
        kind = kind.capitalize()
        if kind not in KINDS or not name:
            raise PolicyError("The resource is null.")
        return cls(kind, name.removesuffix(ANY), name.endswith(ANY))

    def __str__(self) -> str:
        if self.kind == ANY:
            return ANY
        return f"{self.kind}:{self.name}" + (ANY if self.is_prefix else "")


ANYTHING: Final = Pattern(ANY, "", is_prefix=True)


class Entry(NamedTuple):
    """One line of a policy."""

    pattern: Pattern
    actions: frozenset[Action]
    networks: tuple[Network, ...]
    """Networks that requests must come from; without any, they may come from anywhere."""
    allows: bool

    def is_about(self, actions: frozenset[Action], source: str) -> bool:
        """Return whether the entry is about one of these actions, when it is asked for from an IP address."""
        if Action.ALL not in self.actions and self.actions.isdisjoint(actions):
            return False
        if not self.networks:
            return True
        address = ipaddress.ip_address(source)
        return any(address in network for network in self.networks)


class _Policy:
    """Entries of one policy type, by what they are about: a user may have thousands, and a request may name thousands
    of topics."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries: dict[Pattern, list[Entry]] = {}
        for entry in entries:
            self._entries.setdefault(entry.pattern, []).append(entry)
        prefixes = {len(pattern.name) for pattern in self._entries if pattern.is_prefix}
        self._lengths = sorted(prefixes, reverse=True)

    def allows(self, need: Need, source: str) -> bool | None:
        """Return what the most specific of the entries that match says; None where none matches."""
        for pattern in self._patterns(*need.resource):
            found = [
                entry.allows
                for entry in self._entries.get(pattern, ())
                if entry.is_about(need.actions, source)
            ]
            if found:
                # Of equally specific entries, those that deny come first.
                return all(found)
        return None

    def _patterns(self, kind: str, name: str) -> Iterator[Pattern]:
        """Yield the patterns that match a resource, the most specific first: its name, the longest prefix, anything."""
        yield Pattern(kind, name)
        for length in self._lengths:
            yield Pattern(kind, name[:length], is_prefix=True)
        yield ANYTHING


class Rules:
    """The policies of one user, parsed."""

    def __init__(self, acl: AclInfo) -> None:
        """:raises PolicyError: when a policy is not valid."""
        self._policies = [
            _Policy(
                entry
                for policy in acl.policies
                if (policy.policy_type or POLICY_TYPES[0]) == policy_type
                for entry in _entries(policy.entries)
            )
            for policy_type in POLICY_TYPES
        ]

    def objection(self, need: Need, source: str) -> str | None:
        """Return why the policies do not permit something; None if they do.

        :param source: IP address that the request comes from.
        """
        for policy in self._policies:
            allowed = policy.allows(need, source)
            if allowed is not None:
                return None if allowed else "the decision is deny."
        return "no matched policies."


def parse_actions(texts: Iterable[str]) -> frozenset[Action]:
    """Parse names of actions, in any case. As upstream, unknown names are skipped.

    :raises PolicyError: when none is left.
    """
    lowered = [text.strip().lower() for text in texts]
    if "any" in lowered:
        raise PolicyError("The actions can not be Any.")
    actions = frozenset(_ACTIONS[text] for text in lowered if text in _ACTIONS)
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
