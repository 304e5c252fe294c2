"""Consumer groups as tools manage them: create (200, 225), read (201, 352) and delete (207)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec

from gateway import attributes
from gateway.broker import Broker
from gateway.handlers.steps import Steps, in_turns
from gateway.reactor import Reactor
from gateway.router import Call, RequestError, check_number
from gateway.topics import (
    MAX_GROUP_NAME,
    MAX_PUT,
    PUT_AT_ONCE,
    check_queues,
    is_group_name,
)
from gateway.versions import TableVersion
from gateway.wire.admin_bodies import (
    encode_groups,
    parse_group_settings,
    parse_group_settings_list,
)
from gateway.wire.bodies import (
    GroupRetryPolicy,
    GroupSettings,
    encode_group_settings,
)
from gateway.wire.codes import ResponseCode
from gateway.wire.headers import DeleteGroup, GetAllGroups, GetGroupConfig

MAX_RETRY_DELAYS = 1_000
"""Most times between retries in a group's policy. With millions of them, the list of all groups would have no room for
other groups."""


class GroupAdmin:
    """Changes groups; each change is answered once it is on disk."""

    def __init__(self, broker: Broker, reactor: Reactor) -> None:
        self._broker = broker
        self._groups = broker.groups
        self._steps = Steps(reactor, broker.committer)
        self._version = TableVersion(broker.groups)

    def put_group(self, call: Call) -> None:
        """Create a consumer group or change its settings (200)."""
        settings = parse_group_settings(call.command.body)
        self._groups.check_room(settings.group_name)
        self._settle(settings)
        self._put(settings)
        self._answer_on_disk(call)

    def put_groups(self, call: Call) -> None:
        """Create consumer groups or change their settings (225): all of them, or none if one is refused. There can be
        thousands, so other work has its turn in between."""
        groups = parse_group_settings_list(call.command.body)
        check_number("groups in one request", len(groups), MAX_PUT)
        self._groups.check_room(*(settings.group_name for settings in groups))
        self._steps.change_in_parts(self._put_groups(call, groups), call)

    def _put_groups(self, call: Call, groups: list[GroupSettings]) -> Iterator[None]:
        yield from in_turns(self._settle, groups, PUT_AT_ONCE)
        yield from self._broker.committer.in_parts(in_turns(self._put, groups, PUT_AT_ONCE))
        self._answer_on_disk(call)

    def _settle(self, settings: GroupSettings) -> None:
        """Refuse settings that no group can have. Replace the changes of attributes in them by the resulting
        attributes."""
        _check(settings)
        settings.group_retry_policy = _retry_policy(settings)
        current = self._groups.get(settings.group_name)
        settings.attributes = attributes.changed(
            current.attributes if current is not None else None,
            settings.attributes,
            attributes.OF_GROUPS,
        )

    def group_config(self, call: Call) -> None:
        """Answer with a consumer group's settings (352)."""
        fields: GetGroupConfig = call.fields
        group = self._groups.find(fields.group)
        if group is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        call.answer(body=encode_group_settings(group))

    def all_groups(self, call: Call) -> None:
        """Answer with the settings of all consumer groups, or of a page of them (201)."""
        fields: GetAllGroups = call.fields
        settings = list(self._groups)
        total = len(settings)
        if fields.group_seq is not None:
            begin = max(0, fields.group_seq)
            settings = settings[begin : begin + max(0, fields.max_group_num or total)]
        version = self._version.at(self._broker.clock.now_ms())
        call.answer({"totalGroupNum": str(total)}, encode_groups(version, settings))

    def delete_group(self, call: Call) -> None:
        """Delete a consumer group (207), and its progress if the request says so. That may be in thousands of queues,
        so other work has its turn in between."""
        self._steps.change_in_parts(self._delete(call, call.fields), call)

    def _delete(self, call: Call, fields: DeleteGroup) -> Iterator[None]:
        self._groups.delete(fields.group_name)
        self._broker.orders.forget_group(fields.group_name)
        self._broker.modes.forget_group(fields.group_name)
        committer = self._broker.committer
        committer.once_stored(partial(self._broker.stats.forget_group, fields.group_name))
        if fields.clean_offset:
            forgetting = self._broker.store.progress.forget_group(fields.group_name.encode())
            yield from committer.in_parts(forgetting)
            committer.once_stored(self._broker.resets.reload)
        self._answer_on_disk(call)

    def _put(self, settings: GroupSettings) -> None:
        if self._groups.get(settings.group_name) != settings:
            self._groups.put(settings)

    def _answer_on_disk(self, call: Call) -> None:
        self._broker.committer.answer(call, call.encode())


def _check(settings: GroupSettings) -> None:
    name = settings.group_name
    if not name.strip():
        raise RequestError(ResponseCode.INVALID_PARAMETER, "The specified group is blank.")
    if len(name) > MAX_GROUP_NAME:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"The specified group: {name}, is longer than group max length: {MAX_GROUP_NAME}",
        )
    if not is_group_name(name):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"The specified group: {name}, contains illegal characters, allowing only "
            "^[%|a-zA-Z0-9_-]+$",
        )
    check_queues(name, settings.retry_queue_nums)


def _retry_policy(settings: GroupSettings) -> dict[str, Any]:
    """Return a group's retry policy without unknown fields, which would keep Java from reading the list of all
    groups."""
    try:
        policy = msgspec.convert(settings.group_retry_policy, GroupRetryPolicy, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the groupRetryPolicy of {settings.group_name} is none: {error}",
        ) from error
    delays = policy.customized_retry_policy
    if delays is not None and len(delays.next or ()) > MAX_RETRY_DELAYS:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"the groupRetryPolicy of {settings.group_name} has {len(delays.next or ())} times between retries; "
            f"{MAX_RETRY_DELAYS} are possible",
        )
    kept: dict[str, Any] = msgspec.to_builtins(policy)
    return kept
