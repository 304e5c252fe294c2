"""Topics and consumer groups: their settings, which are stored, and their creation on first use."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
from twisted.logger import Logger

from gateway.config import Config
from gateway.limits import limits_of
from gateway.notes import read_notes
from gateway.router import RequestError
from gateway.unstored import Unstored
from gateway.wire.bodies import GroupSettings, TopicSettings
from gateway.wire.codes import ResponseCode
from gateway.wire.messages import MAX_PROPERTIES
from storage import Store, emptied_queues, remove_topic, resume_topic

PERM_INHERIT, PERM_WRITE, PERM_READ = 1, 2, 4
"""Bits of a topic's perm (PermName)."""

CLEARED_AT_ONCE = 500
"""Messages of a deleted topic that go with it, some 10 ms of work; what is more goes with the next clean-up."""

DEFAULT_TOPIC = "TBW102"
"""The topic whose route clients ask for before they send to an unknown one; its settings are the template."""

RETRY_PREFIX, DLQ_PREFIX = "%RETRY%", "%DLQ%"

SCHEDULE_TOPIC, TIMER_TOPIC = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
CHECKED_OUT_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Where transactions go that are still undecided after the last check."""
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
"""TopicValidator's list, and the timer topic, which upstream forgot: a send to it halts upstream's timers."""

SYSTEM_GROUPS = ("TOOLS_CONSUMER", "SELF_TEST_C_GROUP")
"""Groups that tools and clients use unasked; they exist even where groups are not created on first use."""

MAX_NAME = 127
"""Longest topic name (TopicValidator.TOPIC_MAX_LENGTH); retry and dead-letter topics may have 255 bytes."""

MAX_PREFIXED_NAME = 255

MAX_GROUP_NAME = 120
"""Longest name of a consumer group (TopicValidator.GROUP_MAX_LENGTH)."""

MAX_QUEUES = 10_000
"""Most queues of a topic. What is told of a topic looks at each of them, 20 us a piece, while everybody waits."""

HANDLE_ROOM = 256
"""Bytes that the property `POP_CK` may take: the name of a broker, which has 127 at most, and numbers."""

_BEGINS = b"begins\0"
"""Notes that begin so, and end with a topic's name, have its `begin_of` where that is not 0."""

_BEGINS_KIND = "end of the deleted topic"

_log = Logger()

_decode_topic = msgspec.json.Decoder(TopicSettings).decode
_decode_group = msgspec.json.Decoder(GroupSettings).decode
_decode_begins = msgspec.json.Decoder(dict[int, int]).decode

_ILLEGAL = re.compile(r"[^%|a-zA-Z0-9_-]")

NOT_FOUND_HELP = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
"""Upstream ends its remarks on unknown topics and groups so; operators search their logs for it."""


class Topic:
    """A topic's settings, its name as the store has it, and what each send asks of them.

    `is_retry` is true of a retry topic, and `is_of_group` of that and of a dead-letter topic. There are `queues` queues
    that can be read or sent to, numbered from 0. A message's properties have `most_properties` bytes at most: what is
    popped from a retry topic is given its handle with it.
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
        self.is_of_group = self.name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        self.queues = max(settings.read_queue_nums, settings.write_queue_nums)
        self.most_properties = MAX_PROPERTIES - (HANDLE_ROOM if self.is_retry else 0)


class Topics:
    """All topics."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config
        self._topics: dict[str, Topic] = {}
        self._begins: dict[str, dict[int, int]] = {}
        self._unstored = Unstored(store)
        self.changes = 0
        for settings in self._system_topics():
            self._topics[settings.topic_name] = Topic(settings)
        self.system = frozenset(self._topics)
        for name, settings_json in store.topics():
            self._take(name, settings_json)
        read_notes(store, _BEGINS, _BEGINS_KIND, self._take_begins)

    def reload(self) -> None:
        """Take over what is stored. A topic that is only known here would be gone after a restart, and its messages
        would be taken for those of a deleted one."""
        self._unstored.restore(self._reload)

    def _reload(self, name: str) -> None:
        settings_json = self._store.topic(name.encode())
        if settings_json is not None:
            self._take(name.encode(), settings_json)
        else:
            self._topics.pop(name, None)
        self._begins.pop(name, None)
        read_notes(
            self._store,
            _BEGINS + name.encode(),
            _BEGINS_KIND,
            lambda rest, value: self._take_begins(name.encode() + rest, value),
        )

    def _take(self, name: bytes, settings_json: bytes) -> None:
        """Take over a topic. One whose settings cannot be read would be taken for a deleted one, were it not given
        others."""
        try:
            settings = _decode_topic(settings_json)
        except msgspec.DecodeError as error:
            _tell_unreadable("topic", name, error)
            settings = self._without_settings(name)
        self._topics[settings.topic_name] = Topic(settings)

    def _take_begins(self, name: bytes, value: bytes) -> None:
        self._begins[name.decode()] = _decode_begins(value)

    def _without_settings(self, name: bytes) -> TopicSettings:
        """What a topic has whose settings cannot be read: at least the queues that hold messages."""
        held = min(self._store.count_queues(name), MAX_QUEUES)
        queues = max(self._config.default_topic_queues, held)
        shown = name.decode(errors="backslashreplace")
        return TopicSettings(shown, queues, queues, PERM_READ | PERM_WRITE)

    def _system_topics(self) -> Iterator[TopicSettings]:
        queues = self._config.default_topic_queues
        yield TopicSettings(DEFAULT_TOPIC, queues, queues, PERM_READ | PERM_WRITE | PERM_INHERIT)
        levels = len(self._config.delay_level_ms)
        yield TopicSettings(SCHEDULE_TOPIC, levels, levels, PERM_READ | PERM_WRITE)
        for name in (
            TIMER_TOPIC,
            HALF_TOPIC,
            TRACE_TOPIC,
            "SELF_TEST_TOPIC",
            "OFFSET_MOVED_EVENT",
            f"{self._config.cluster_name}_REPLY_TOPIC",
        ):
            yield TopicSettings(name, 1, 1, PERM_READ | PERM_WRITE)
        # Tools find a cluster's or a broker's address by asking for it as for a topic.
        for name, queues in ((self._config.cluster_name, 16), (self._config.broker_name, 1)):
            yield TopicSettings(name, queues, queues, PERM_READ | PERM_WRITE | PERM_INHERIT)

    def configure(self, config: Config) -> None:
        """Create topics by these settings."""
        self._config = config

    def get(self, name: str) -> Topic | None:
        """A topic, if it exists."""
        return self._topics.get(name)

    def need(self, name: str) -> Topic:
        """A topic.

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
        """The offset that a queue's first message had or will have: 0, or where the queue of a deleted topic of that
        name ended."""
        return self._begins.get(name, {}).get(queue, 0)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def kept_since(self, name: str, now_ms: int) -> int | None:
        """From when on what has fired is kept, epoch ms, of a topic that has a time of its own for it."""
        topic = self._topics.get(name)
        if topic is None or topic.limits.retention_ms is None:
            return None
        return now_ms - topic.limits.retention_ms

    def names(self) -> list[str]:
        """Names of all topics, the system's among them."""
        return list(self._topics)

    def create_on_send(self, name: str, default_topic: str, queues: int) -> Topic:
        """The topic that a first send creates (TopicConfigManager.createTopicInSendMessageMethod).

        :raises RequestError: when topics are not to be created so, or the template does not pass its settings on.
        """
        template = self._topics.get(default_topic)
        if (
            template is None
            or not self._config.auto_create_topic
            or not template.settings.perm & PERM_INHERIT
        ):
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please!{NOT_FOUND_HELP}",
            )
        self.clear(name)
        queues = max(0, min(queues, template.settings.write_queue_nums))
        return self.put(TopicSettings(name, queues, queues, template.settings.perm & ~PERM_INHERIT))

    def ensure(self, name: str, queues: int = 1) -> Topic:
        """A topic of the gateway's own making, such as a retry topic; created when it is missing."""
        topic = self._topics.get(name)
        if topic is None:
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

    def delete(self, name: str) -> None:
        """Forget a topic, and end its pause: what waits fires, and is removed with the rest. The change joins the
        store's batch."""
        topic = self._topics.get(name)
        if topic is not None:
            self._store.delete_topic(topic.stored_name)
            self._unstored.add(name)
            resume_topic(self._store, topic.stored_name)
            remove_topic(self._store, topic.stored_name, CLEARED_AT_ONCE)
            del self._topics[name]
            if self._begins.pop(name, None) is not None:
                self._store.delete_note(_BEGINS + topic.stored_name)
            self.changes += 1

    def clear(self, name: str) -> None:
        """See that nothing is left of a deleted topic that another of the same name would show, and note where the
        queues of that one begin. The change joins the store's batch.

        :raises RequestError: when more is left than can be removed at once.
        """
        stored_name = name.encode()
        if remove_topic(self._store, stored_name, CLEARED_AT_ONCE).behind is not None:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"topic[{name}] was deleted, and what it held is still being removed; try again in some seconds",
            )
        begins = emptied_queues(self._store, stored_name)
        if begins:
            self._store.put_note(_BEGINS + stored_name, msgspec.json.encode(begins))
            self._unstored.add(name)
            self._begins[name] = begins


class Groups:
    """All consumer groups."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config
        self._groups = {name: GroupSettings(name) for name in SYSTEM_GROUPS}
        self._unstored = Unstored(store)
        self.changes = 0
        for name, settings_json in store.groups():
            self._take(name, settings_json)

    def reload(self) -> None:
        """Take over what is stored."""
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
            settings = _decode_group(settings_json)
        except msgspec.DecodeError as error:
            _tell_unreadable("group", name, error)
            settings = GroupSettings(name.decode(errors="backslashreplace"))
        self._groups[settings.group_name] = settings

    def configure(self, config: Config) -> None:
        """Create groups by these settings."""
        self._config = config

    def __iter__(self) -> Iterator[GroupSettings]:
        return iter(self._groups.values())

    def names(self) -> list[str]:
        """Names of all groups."""
        return list(self._groups)

    def get(self, name: str) -> GroupSettings | None:
        """A group, if it exists."""
        return self._groups.get(name)

    def find(self, name: str) -> GroupSettings | None:
        """A group; created when it is missing and groups are to be created on first use."""
        group = self._groups.get(name)
        if group is None and self._config.auto_create_group and is_group_name(name):
            group = self.put(GroupSettings(name))
        return group

    def need(self, name: str) -> GroupSettings:
        """A group to consume as; created likewise.

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
        """Forget a group. The change joins the store's batch."""
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


def are_settings(table: str, value: bytes) -> bool:
    """Whether a row of `topics` or `groups` can be read."""
    try:
        (_decode_topic if table == "topics" else _decode_group)(value)
    except msgspec.DecodeError:
        return False
    return True


def is_group_name(name: str) -> bool:
    """Whether a group may be called so (TopicValidator.validateGroup)."""
    return bool(name) and len(name) <= MAX_GROUP_NAME and not _ILLEGAL.search(name)


def check_queues(name: str, queues: int) -> None:
    """Refuse a number of queues that is too large.

    :param name: of the topic or the group that is to have them.
    :raises RequestError: then.
    """
    if queues > MAX_QUEUES:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, f"{name} cannot have {queues} queues, but {MAX_QUEUES}"
        )


def check_topic_name(name: str) -> None:
    """Refuse what cannot be a topic (TopicValidator.validateTopic).

    :raises RequestError: with the remark that names the fault.
    """
    if not name.strip():
        raise RequestError(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    if _ILLEGAL.search(name):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"The specified topic: {name}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        )
    prefixed = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    longest = MAX_PREFIXED_NAME if prefixed else MAX_NAME
    if len(name) > longest:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"The specified topic: {name}, is longer than topic max length: {longest}",
        )
