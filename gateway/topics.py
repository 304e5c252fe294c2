"""Topics and consumer groups: their settings, which are stored, and their creation on first use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Annotated

import msgspec
from twisted.logger import Logger

from gateway.limits import limits_of
from gateway.notes import read_note, read_notes
from gateway.router import RequestError, TooMuchError
from gateway.settings.config import Config
from gateway.unstored import Unstored
from gateway.wire.bodies import GroupSettings, TopicSettings
from gateway.wire.codes import ResponseCode
from gateway.wire.group_topics import RETRY_PREFIX, is_of_group
from gateway.wire.messages import MAX_PROPERTIES
from storage import (
    Store,
    begin_queue,
    cut_topic,
    emptied_queues,
    expire_topic,
    resume_topic,
)

PERM_INHERIT, PERM_WRITE, PERM_READ = 1, 2, 4
"""Bits of a topic's perm (PermName)."""

CLEARED_AT_ONCE = 500
"""Messages of deleted topics that are removed with them, some 10 ms of work. The next clean-up removes the rest."""

DEFAULT_TOPIC = "TBW102"
"""The topic whose route clients ask for before they send to an unknown one; its settings are the template."""

SCHEDULE_TOPIC, TIMER_TOPIC = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
CHECKED_OUT_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Topic of transactions that are still undecided after the last check."""
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"

FORBIDDEN_TO_SEND = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        CHECKED_OUT_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
"""TopicValidator's list and the timer topic, which upstream leaves out: a send to it halts upstream's timers."""

SYSTEM_GROUPS = ("TOOLS_CONSUMER", "SELF_TEST_C_GROUP")
"""Groups that tools and clients use without creating them; they exist even where groups are not created on first
use."""

MAX_NAME = 127
"""Longest topic name (TopicValidator.TOPIC_MAX_LENGTH); retry and dead-letter topics may have 255 bytes."""

MAX_PREFIXED_NAME = 255

MAX_GROUP_NAME = 120
"""Longest name of a consumer group (TopicValidator.GROUP_MAX_LENGTH)."""

MAX_QUEUES = 10_000
"""Most queues of a topic. A request about a topic looks at each of them, 20 us each, while other requests wait."""

MAX_PUT = 10_000
"""Most topics or groups that one request creates or changes."""

PUT_AT_ONCE = 200
"""Those of them that one turn of the reactor checks or stores, some 10 ms of work."""

HANDLE_ROOM = 256
"""Bytes that the property `POP_CK` may take: a broker's name of at most 127 bytes, and numbers."""

_BEGINS = b"begins\0"
"""Prefix of the notes that hold the `begin_of` of a topic's queues where it is not 0. The topic's name follows."""

_BEGINS_KIND = "end of the deleted topic"

_log = Logger()

_decode_topic = msgspec.json.Decoder(TopicSettings).decode
_decode_group = msgspec.json.Decoder(GroupSettings).decode
_decode_begins = msgspec.json.Decoder(
    dict[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)], int]
).decode

_ILLEGAL = re.compile(r"[^%|a-zA-Z0-9_-]")

NOT_FOUND_HELP = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
"""The end of upstream's remarks on unknown topics and groups; operators search their logs for it."""


class Topic:
    """A topic's settings, its name as the store has it, and values that each send needs from the settings.

    `is_retry` is True for a retry topic, and `is_of_group` for a retry or dead-letter topic. `queues` counts the queues
    that can be read or sent to; they are numbered from 0. `most_properties` is the most bytes that a message's
    properties may have: in a retry topic they leave room for the handle that a popped message gets.
    """

    __slots__ = (
        "is_of_group",
        "is_retry",
        "limits",
        "most_properties",
        "name",
        "queues",
        "settings",
        "stored_name",
    )

    def __init__(self, settings: TopicSettings) -> None:
        self.name = settings.topic_name
        self.stored_name = self.name.encode()
        self.settings = settings
        self.limits = limits_of(settings.attributes)
        self.is_retry = self.name.startswith(RETRY_PREFIX)
        self.is_of_group = is_of_group(self.name)
        self.queues = max(settings.read_queue_nums, settings.write_queue_nums)
        self.most_properties = MAX_PROPERTIES - (HANDLE_ROOM if self.is_retry else 0)


def system_topics(config: Config) -> Iterator[TopicSettings]:
    """Return the settings of the topics that exist without being stored."""
    queues = config.default_topic_queues
    yield TopicSettings(DEFAULT_TOPIC, queues, queues, PERM_READ | PERM_WRITE | PERM_INHERIT)
    levels = len(config.delay_level_ms)
    yield TopicSettings(SCHEDULE_TOPIC, levels, levels, PERM_READ | PERM_WRITE)
    for name in (
        TIMER_TOPIC,
        HALF_TOPIC,
        TRACE_TOPIC,
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        f"{config.cluster_name}_REPLY_TOPIC",
    ):
        yield TopicSettings(name, 1, 1, PERM_READ | PERM_WRITE)
    # Tools find the address of a cluster or a broker by requesting the route of a topic of that name.
    for name, queues in ((config.cluster_name, 16), (config.broker_name, 1)):
        yield TopicSettings(name, queues, queues, PERM_READ | PERM_WRITE | PERM_INHERIT)


class Topics:
    """All topics."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config
        self._topics: dict[str, Topic] = {}
        self._begins: dict[str, dict[int, int]] = {}
        self._unstored = Unstored[str](store)
        self.changes = 0
        for settings in system_topics(config):
            self._topics[settings.topic_name] = Topic(settings)
        self.system = frozenset(self._topics)
        for name, settings_json in store.topics():
            self._take(name, settings_json)
        read_notes(store, _BEGINS, _BEGINS_KIND, self._take_begins)

    def reload(self) -> None:
        """Read again what a refused batch has changed. A topic that is only in memory would be gone after a restart,
        and its messages would count as those of a deleted topic."""
        self._unstored.restore(self._reload)

    def _reload(self, name: str) -> None:
        settings_json = self._store.topic(name.encode())
        if settings_json is not None:
            self._take(name.encode(), settings_json)
        else:
            self._topics.pop(name, None)
        self._begins.pop(name, None)
        read_note(self._store, _BEGINS, name.encode(), _BEGINS_KIND, self._take_begins)

    def _take(self, name: bytes, settings_json: bytes) -> None:
        """Take over a stored topic. A topic whose settings cannot be read gets other ones, as without any it would
        count as deleted."""
        try:
            topic = _read_topic(name, settings_json)
        except ValueError as error:
            _tell_unreadable("topic", name, error)
            topic = Topic(self._without_settings(name))
        self._topics[topic.name] = topic

    def _take_begins(self, name: bytes, value: bytes) -> None:
        """Take over where a topic's queues begin. A queue that ends before its beginning has lost its rows to damage;
        it is noted anew, as the queue's new messages would count as the deleted topic's otherwise."""
        noted = _decode_begins(value)
        begins = {
            queue: first
            for queue, first in noted.items()
            if begin_queue(self._store, name, queue, first)
        }
        self._begins[name.decode()] = begins
        if begins != noted:
            self._store.put_note(_BEGINS + name, msgspec.json.encode(begins))

    def _without_settings(self, name: bytes) -> TopicSettings:
        """Return settings for a topic whose own cannot be read, with at least the queues that hold messages."""
        held = min(self._store.count_queues(name), MAX_QUEUES)
        queues = max(self._config.default_topic_queues, held)
        shown = name.decode(errors="backslashreplace")
        return TopicSettings(shown, queues, queues, PERM_READ | PERM_WRITE)

    def configure(self, config: Config) -> None:
        """Use these settings to create topics."""
        self._config = config

    def get(self, name: str) -> Topic | None:
        """Return a topic, or None."""
        return self._topics.get(name)

    def need(self, name: str) -> Topic:
        """Return a topic.

        :raises RequestError: when there is none.
        """
        topic = self._topics.get(name)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please! {NOT_FOUND_HELP}",
            )
        return topic

    def begin_of(self, name: str, queue: int) -> int:
        """Return the offset of a queue's first message, past or future. It is 0, or where the queue of a deleted topic
        of the same name ended. What the queue holds before it is still to be removed."""
        return self._begins.get(name, {}).get(queue, 0)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def kept_since(self, name: str, now_ms: int) -> int | None:
        """Return the time since which a topic's fired messages are kept, epoch ms; None unless the topic has its own
        retention."""
        topic = self._topics.get(name)
        if topic is None or topic.limits.retention_ms is None:
            return None
        return now_ms - topic.limits.retention_ms

    def names(self) -> list[str]:
        """Return the names of all topics, system topics included."""
        return list(self._topics)

    def check_room(self, *names: str) -> None:
        """Check that these topics may be created. Those of them that exist take no room.

        :raises RequestError: when there would be more than `max_topics`.
        """
        _check_room(
            "topics",
            names,
            self._topics.keys(),
            self._config.max_topics,
            ResponseCode.TOPIC_NOT_EXIST,
            "topic[{}] not exist",
        )

    def create_on_send(self, name: str, default_topic: str, queues: int) -> Topic:
        """Create the topic that a first send names (TopicConfigManager.createTopicInSendMessageMethod).

        :raises RequestError: when sends may not create topics, the template does not pass its settings on, or there are
            too many topics.
        """
        template = self._template(default_topic)
        if template is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please!{NOT_FOUND_HELP}",
            )
        self.check_room(name)
        self.clear(name)
        queues = max(0, min(queues, template.write_queue_nums))
        return self.put(TopicSettings(name, queues, queues, template.perm & ~PERM_INHERIT))

    def ensure_on_send(self, name: str, default_topic: str, queues: int) -> Topic:
        """Return a group's topic that a send names. If it is missing, it gets as many queues as a topic that a first
        send creates, since its sender has chosen one of them; one queue where sends may create no topic."""
        template = self._template(default_topic)
        most = template.write_queue_nums if template is not None else 1
        return self.ensure(name, max(1, min(queues, most)))

    def _template(self, default_topic: str) -> TopicSettings | None:
        """Return the settings that a topic created by a send takes over; None where sends may create none."""
        template = self._topics.get(default_topic)
        if template is None or not self._config.auto_create_topic:
            return None
        return template.settings if template.settings.perm & PERM_INHERIT else None

    def ensure(self, name: str, queues: int = 1) -> Topic:
        """Return a topic that the gateway makes by itself, such as a retry topic; create it when it is missing, even if
        there are too many: the message that needs the topic was accepted before. If a deleted topic of the same name
        has left messages, the new one's queues begin behind them: the message cannot wait until they are removed."""
        topic = self._topics.get(name)
        if topic is None:
            self._note_begins(name, cut_topic(self._store, name.encode()))
            topic = self.put(TopicSettings(name, queues, queues, PERM_READ | PERM_WRITE))
        return topic

    def put(self, settings: TopicSettings) -> Topic:
        """Create a topic, or change its settings. The change joins the store's batch."""
        topic = Topic(settings)
        self._store.put_topic(topic.stored_name, msgspec.json.encode(settings))
        self._unstored.add(topic.name)
        self._topics[topic.name] = topic
        self.changes += 1
        return topic

    def delete(self, *names: str) -> None:
        """Delete topics and end their pauses: waiting messages fire, and are removed with the rest. At most
        `CLEARED_AT_ONCE` messages of all these topics are removed at once, those of the first topics. The change joins
        the store's batch."""
        left = CLEARED_AT_ONCE
        for topic in filter(None, map(self._topics.get, names)):
            self._store.delete_topic(topic.stored_name)
            self._unstored.add(topic.name)
            resume_topic(self._store, topic.stored_name)
            if left:
                removed = expire_topic(self._store, topic.stored_name, left)
                left = left - removed.messages if removed.behind is None else 0
            del self._topics[topic.name]
            if self._begins.pop(topic.name, None) is not None:
                self._store.delete_note(_BEGINS + topic.stored_name)
            self.changes += 1

    def clear(self, name: str) -> None:
        """Remove what is left of a deleted topic, so that a new topic of the same name does not show it. Note where the
        new topic's queues begin. The change joins the store's batch.

        :raises RequestError: when more is left than can be removed at once.
        """
        stored_name = name.encode()
        if expire_topic(self._store, stored_name, CLEARED_AT_ONCE).behind is not None:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"topic[{name}] was deleted, and what it held is still being removed; try again in some seconds",
            )
        self._note_begins(name, emptied_queues(self._store, stored_name))

    def _note_begins(self, name: str, begins: dict[int, int]) -> None:
        if begins:
            self._store.put_note(_BEGINS + name.encode(), msgspec.json.encode(begins))
            self._unstored.add(name)
            self._begins[name] = begins


class Groups:
    """All consumer groups."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config
        self._groups = {name: GroupSettings(name) for name in SYSTEM_GROUPS}
        self._unstored = Unstored[str](store)
        self.changes = 0
        for name, settings_json in store.groups():
            self._take(name, settings_json)

    def reload(self) -> None:
        """Read again what a refused batch has changed."""
        self._unstored.restore(self._reload)

    def _reload(self, name: str) -> None:
        settings_json = self._store.group(name.encode())
        if settings_json is not None:
            self._take(name.encode(), settings_json)
        elif name in SYSTEM_GROUPS:
            self._groups[name] = GroupSettings(name)
        else:
            self._groups.pop(name, None)

    def _take(self, name: bytes, settings_json: bytes) -> None:
        try:
            settings = _read_group(name, settings_json)
        except ValueError as error:
            _tell_unreadable("group", name, error)
            settings = GroupSettings(name.decode(errors="backslashreplace"))
        self._groups[settings.group_name] = settings

    def configure(self, config: Config) -> None:
        """Use these settings to create groups."""
        self._config = config

    def __iter__(self) -> Iterator[GroupSettings]:
        return iter(self._groups.values())

    def names(self) -> list[str]:
        """Return the names of all groups."""
        return list(self._groups)

    def get(self, name: str) -> GroupSettings | None:
        """Return a group, or None."""
        return self._groups.get(name)

    def check_room(self, *names: str) -> None:
        """Check that these groups may be created. Those of them that exist take no room.

        :raises RequestError: when there would be more than `max_groups`.
        """
        _check_room(
            "groups",
            names,
            self._groups.keys(),
            self._config.max_groups,
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            "subscription group [{}] does not exist",
        )

    def find(self, name: str) -> GroupSettings | None:
        """Return a group; create it when it is missing and groups may be created on first use. Else return None.

        :raises RequestError: when there are too many groups to create it.
        """
        group = self._groups.get(name)
        if group is None and self._config.auto_create_group and is_group_name(name):
            self.check_room(name)
            group = self.put(GroupSettings(name))
        return group

    def need(self, name: str) -> GroupSettings:
        """Return a group to consume as; create it as `find` does.

        :raises RequestError: when there is none.
        """
        group = self.find(name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{name}] does not exist, {NOT_FOUND_HELP}",
            )
        return group

    def put(self, settings: GroupSettings) -> GroupSettings:
        """Create a group, or change its settings. The change joins the store's batch."""
        self._store.put_group(settings.group_name.encode(), msgspec.json.encode(settings))
        self._unstored.add(settings.group_name)
        self._groups[settings.group_name] = settings
        self.changes += 1
        return settings

    def delete(self, name: str) -> None:
        """Delete a group. The change joins the store's batch."""
        if name in self._groups:
            self._store.delete_group(name.encode())
            self._unstored.add(name)
            del self._groups[name]
            self.changes += 1


def _tell_unreadable(kind: str, name: bytes, error: Exception) -> None:
    _log.error(
        "the settings of the {kind} {name} cannot be read ({error}): it has the default ones until they are set again; "
        "see 'tidegate fsck'",
        kind=kind,
        name=name.decode(errors="backslashreplace"),
        error=str(error),
    )


def _read_topic(name: bytes, settings_json: bytes) -> Topic:
    """:raises ValueError: when the settings of the topic of that name cannot be read."""
    settings = _decode_topic(settings_json)
    _check_name(name, settings.topic_name)
    return Topic(settings)


def _read_group(name: bytes, settings_json: bytes) -> GroupSettings:
    """:raises ValueError: when the settings of the group of that name cannot be read."""
    settings = _decode_group(settings_json)
    _check_name(name, settings.group_name)
    return settings


def _check_name(name: bytes, found: str) -> None:
    if found.encode() != name:
        raise ValueError(f"they are those of {found}")


def are_settings(table: str, name: bytes, value: bytes) -> bool:
    """Whether a row of `topics` or `groups` can be read."""
    try:
        (_read_topic if table == "topics" else _read_group)(name, value)
    except ValueError:
        return False
    return True


def is_group_name(name: str) -> bool:
    """Whether a group may have this name (TopicValidator.validateGroup)."""
    return bool(name) and len(name) <= MAX_GROUP_NAME and not _ILLEGAL.search(name)


def check_queues(name: str, queues: int) -> None:
    """Refuse a number of queues that is too large.

    :param name: the topic or group that is to have them.
    :raises RequestError: when there would be more than `MAX_QUEUES`.
    """
    if queues > MAX_QUEUES:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"{name} cannot have {queues} queues, but at most {MAX_QUEUES}",
        )


def check_topic_name(name: str) -> None:
    """Refuse a name that no topic may have (TopicValidator.validateTopic).

    :raises RequestError: with the remark that names the fault.
    """
    if not name.strip():
        raise RequestError(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    if _ILLEGAL.search(name):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"The specified topic: {name}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        )
    longest = MAX_PREFIXED_NAME if is_of_group(name) else MAX_NAME
    if len(name) > longest:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"The specified topic: {name}, is longer than topic max length: {longest}",
        )


def _check_room(
    kind: str,
    names: Iterable[str],
    known: AbstractSet[str],
    most: int,
    code: ResponseCode,
    missing: str,
) -> None:
    """Refuse to create topics or groups beyond their setting.

    :param kind: "topics" or "groups".
    :param missing: says that the one of a name does not exist.
    """
    new = {name for name in names if name not in known}
    if new and len(known) + len(new) > most:
        raise TooMuchError(
            code,
            f"{missing.format(min(new))}, and cannot be created: {len(new)} more than the {len(known)} {kind} "
            f"that exist would exceed max_{kind} = {most}",
        )
