"""Messages that have not fired, taken out of a data folder and sent to a gateway or a RocketMQ broker.

Each is a line of JSON, so that what is taken along can be read, filtered and kept by other programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from gateway.client import ClientError, NoAnswerError, RefusalError, RemotingClient
from gateway.intake import terms_of
from gateway.topics import DEFAULT_TOPIC, DLQ_PREFIX, PERM_WRITE, RETRY_PREFIX
from gateway.wire import properties as names
from gateway.wire.addresses import parse_address, show_address
from gateway.wire.codes import RequestCode, ResponseCode, SysFlag
from gateway.wire.commands import Command
from gateway.wire.fields import to_ext
from gateway.wire.headers import SendMessageV2
from gateway.wire.messages import decode_message, unpack_host
from gateway.wire.pending_bodies import HeldMessage, HeldPage
from gateway.wire.properties import join, parse
from gateway.wire.recurring_bodies import RecurringMessage
from storage import MAX_WITH_ID, State, read_pending

_MADE_QUEUES: Final = 4
"""Queues of a topic that a send makes, if its template has as many (DefaultMQProducer.defaultTopicQueueNums)."""

_BY_SERVER: Final = (
    *(names.DELAY, names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS),
    *(names.START_DELIVER_TIME, names.TIMER_OUT_MS, names.TIMER_ENQUEUE_MS),
    *(names.TIMER_DEQUEUE_MS, names.TIMER_ROLL_TIMES, names.TIMER_DELAY_LEVEL),
    *(names.REAL_TOPIC, names.REAL_QID, names.MSG_REGION, names.TRACE_ON, names.CLUSTER),
    *(names.DEBOUNCE, names.TRAN_MSG, names.TIMER_DEL_UNIQKEY),
)
"""Properties that say when, or that a server adds: the next one adds its own. And what was done when the message was
accepted: done again, a debounce would abort what came after it, a message that was committed would be a half again,
and nobody would see it; and beside its time, what was no order to abort another message would be one."""

_LONG: Final = 4 * 1024**2
"""Bytes of a body that every server has room for in a frame (maxMessageSize). At a longer frame than it takes, it hangs
up."""

_KEPT_FLAGS: Final = SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK | SysFlag.MULTI_TAGS
"""Bits of sysFlag that tell of the body and the tags, and hold wherever the message is."""

_STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""Answers to a send that is stored. With all but the first a broker says that its disk or its slave does not have it
yet, and delivers it (SendStatus); kept here as well, it would be delivered twice for certain."""

_V5_0_0: Final = 413
"""MQVersion of the first release of RocketMQ whose brokers know times."""

_Answer = TypeVar("_Answer")


class HeldLine(
    msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True
):
    """One line of an export: a message that has not fired. Times are epoch ms; JSON has the body in base64."""

    topic: str
    queue_id: int
    due_ms: int
    msg_id: str
    properties: dict[str, str]
    body: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    born_ms: int = 0
    born_host: str = ""
    store_ms: int = 0


class LineError(ValueError):
    """A line is not one of an export. The text says which, and why."""


def export_held(data: Path, damaged: set[bytes]) -> Iterator[HeldLine]:
    """The messages of a data folder that have not fired, the next due first.

    :param damaged: see `read_pending`.
    :raises storage.StorageError: when the folder cannot be read.
    """
    for due_ms, sequence, record in read_pending(data, terms_of, damaged):
        try:
            line = line_of(record, due_ms)
        except ValueError:
            damaged.add(sequence.to_bytes(8))
            continue
        yield line


def export_lines(data: Path, damaged: set[bytes]) -> Iterator[bytes]:
    """The same, each as a line of JSON."""
    for line in export_held(data, damaged):
        yield msgspec.json.encode(line) + b"\n"


def line_of(record: bytes, due_ms: int) -> HeldLine:
    """A message as a line, from its record and its due time."""
    message = decode_message(record)
    properties = parse(message.properties)
    return HeldLine(
        topic=message.topic,
        queue_id=message.queue_id,
        due_ms=due_ms,
        msg_id=properties.get(names.UNIQ_KEY, ""),
        properties=properties,
        body=message.body,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        born_ms=message.born_ms,
        born_host=show_address(*unpack_host(message.born_host)),
        store_ms=message.store_ms,
    )


def parse_lines(lines: Iterable[bytes]) -> Iterator[HeldLine]:
    """Read what `export_lines` wrote.

    :raises LineError: at the first line that is something else.
    """
    decoder = msgspec.json.Decoder(HeldLine)
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if _is_recurring(line):
                    raise LineError(
                        f"line {number} is a recurring message: 'tidegate recurring import' takes those"
                    ) from None
                raise LineError(f"line {number} is not of an export: {error}") from None


def _is_recurring(line: bytes) -> bool:
    """Whether `tidegate recurring list` wrote a line."""
    try:
        msgspec.json.decode(line, type=RecurringMessage)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


class Place(NamedTuple):
    """Where a topic's messages are sent: a broker's address and its number of queues."""

    host: str
    port: int
    queues: int


class _QueueData(msgspec.Struct):
    broker_name: str = msgspec.field(name="brokerName")
    write_queues: int = msgspec.field(name="writeQueueNums")
    perm: int


class _BrokerData(msgspec.Struct):
    name: str = msgspec.field(name="brokerName")
    addresses: dict[str, str] = msgspec.field(name="brokerAddrs")


class _Route(msgspec.Struct):
    queues: list[_QueueData] = msgspec.field(name="queueDatas")
    brokers: list[_BrokerData] = msgspec.field(name="brokerDatas")


class Sender:
    """Sends messages to where a name server says their topics are; `with` closes its connections.

    A Tidegate gateway is asked first whether it has a message already, so what was cut short can be done again.
    Another server cannot be asked that.

    :param name_server: host and port; a gateway is its own.
    :param connect: makes a connection to a host and a port.
    """

    def __init__(
        self, name_server: tuple[str, int], connect: Callable[[str, int], RemotingClient]
    ) -> None:
        self._connect = connect
        self._name_server = connect(*name_server)
        self._places: dict[str, Place] = {}
        self._brokers: dict[tuple[str, int], RemotingClient] = {}
        self._can_tell = True
        self._versions: dict[tuple[str, int], int] = {}

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *exc: object) -> None:
        self._name_server.close()
        for broker in self._brokers.values():
            broker.close()

    def send(self, line: HeldLine, number: int = 1) -> bool:
        """Have a message held until its time; what is overdue is delivered at once.

        :param number: of the messages that differ in nothing that a look-up tells, such as two of one object in a
            batch, this is the second or third: the server has it already where it has as many.
        :returns: False when the server has it already.
        :raises ClientError: when a server cannot be reached.
        :raises RefusalError: when it refuses this message.
        """
        place = self._place_of(line.topic)
        address = (place.host, place.port)
        broker = self._brokers.setdefault(address, self._connect(*address))
        if self._can_tell and line.msg_id and self._is_known(line, number):
            return False
        if not self._can_tell and 0 < self._version_of(broker, address) < _V5_0_0:
            raise RefusalError("its broker is older than RocketMQ 5, and would deliver it at once")
        properties = {
            name: value for name, value in line.properties.items() if name not in _BY_SERVER
        }
        properties[names.TIMER_DELIVER_MS] = str(line.due_ms)
        if line.msg_id:
            # Of a line that another program has written, its properties may have none.
            properties[names.UNIQ_KEY] = line.msg_id
        try:
            text = join(properties)
        except ValueError as error:
            # Nobody refuses such a property where it is sent, as nobody takes it apart there.
            raise RefusalError(str(error)) from None
        fields = SendMessageV2(
            producer_group="tidegate-import",
            topic=line.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=_MADE_QUEUES,
            queue_id=line.queue_id if line.queue_id < place.queues else 0,
            sys_flag=line.sys_flag & _KEPT_FLAGS,
            born_timestamp=line.born_ms,
            flag=line.flag,
            properties=text,
            reconsume_times=line.reconsume_times,
            # Else one that its consumers let be retried more often than their group is dead on arrival.
            max_reconsume_times=line.reconsume_times,
        )
        try:
            answer = broker.ask(RequestCode.SEND_MESSAGE_V2, to_ext(fields), line.body)
        except ClientError as error:
            if len(line.body) <= _LONG or isinstance(error, NoAnswerError):
                raise
            # Where the server is gone, the next message tells.
            size = len(line.body)
            raise RefusalError(f"its body of {size:,} bytes may be too long: {error}") from None
        if answer.code not in _STORED:
            raise RefusalError(_reason(answer))
        return True

    def _is_known(self, line: HeldLine, number: int) -> bool:
        # Where several workers serve, each may have it: the address that they share answers for all.
        asked = {"id": line.msg_id, "topic": line.topic, "state": "any", "limit": str(MAX_WITH_ID)}
        answer = self._name_server.ask(RequestCode.LOOK_UP_TIMERS, asked)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._can_tell = False
            return False
        if answer.code != ResponseCode.SUCCESS:
            # As for the time being, or to this user. Sent all the same, it could be there twice.
            raise RefusalError(f"whether it is there already is not told: {_reason(answer)}")
        same = sum(_is_same(one, line) for one in _read(answer.body, HeldPage).messages)
        return same >= number

    def _version_of(self, broker: RemotingClient, address: tuple[str, int]) -> int:
        """MQVersion of a broker; 0 where it does not say. Every answer has it, also to what it does not know."""
        if address not in self._versions:
            self._versions[address] = broker.ask(RequestCode.LOOK_UP_TIMERS).version
        return self._versions[address]

    def _place_of(self, topic: str) -> Place:
        place = self._places.get(topic)
        if place is None:
            place = self._places[topic] = self._ask_route(topic) or self._place_to_be_made(topic)
        return place

    def _place_to_be_made(self, topic: str) -> Place:
        """Where a send makes the topic."""
        template = self._ask_route(DEFAULT_TOPIC)
        if template is None:
            raise RefusalError(
                f"no broker that may be sent to has topic {topic}, and none makes topics: create it"
            )
        # A group's topics are made with one queue, whatever the template has.
        most = 1 if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else _MADE_QUEUES
        return template._replace(queues=min(most, template.queues))

    def _ask_route(self, topic: str) -> Place | None:
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = self._name_server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise RefusalError(f"the name server {_reason(answer)}")
        route = _read(answer.body, _Route)
        queues = {
            one.broker_name: one.write_queues for one in route.queues if one.perm & PERM_WRITE
        }
        for broker in route.brokers:
            master = broker.addresses.get("0")
            if master is not None and queues.get(broker.name):
                try:
                    return Place(*parse_address(master), queues[broker.name])
                except ValueError as error:
                    raise ClientError(f"a server's answer is not understood: {error}") from None
        return None


def _reason(answer: Command) -> str:
    """Why a server refuses, as one line."""
    remark = " ".join((answer.remark or "no reason given").split())
    return f"refused (code {answer.code}): {remark}"


def _is_same(one: HeldMessage, line: HeldLine) -> bool:
    """Whether a message that a look-up by the line's id has found was sent from it. Another may be found by an id that
    reads as an offset id; and clients give all messages that are made of one object the same id."""
    if one.state == State.ABORTED.value and one.store_ms < line.store_ms:
        # The line's was sent from this one, which a drain has ended, and now comes back.
        return False
    # One that was overdue, or was given another time since, does not have the line's.
    has_its_time = one.due_ms == line.due_ms or one.rescheduled_ms or line.due_ms <= one.store_ms
    return bool(
        one.msg_id == line.msg_id
        and one.born_ms == line.born_ms
        and one.body_size == len(line.body)
        and has_its_time
    )


def _read(body: bytes, kind: type[_Answer]) -> _Answer:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClientError(f"a server's answer is not understood: {error}") from None
