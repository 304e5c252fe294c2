"""Messages that have not fired, taken out of a data folder and sent to a gateway or a RocketMQ broker.

Each is a line of JSON, so that other programs can read, filter and keep an export.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Final, NamedTuple, TypeVar

import msgspec

from gateway.client import ClientError, NoAnswerError, RefusalError, RemotingClient
from gateway.intake import terms_of
from gateway.topics import DEFAULT_TOPIC, PERM_WRITE
from gateway.wire import properties as names
from gateway.wire.addresses import parse_address, show_address
from gateway.wire.bodies import BodyError, Route, read_body
from gateway.wire.codes import RequestCode, ResponseCode, SysFlag
from gateway.wire.commands import Command
from gateway.wire.fields import to_ext
from gateway.wire.group_topics import is_of_group
from gateway.wire.headers import SendMessageV2
from gateway.wire.messages import decode_stored, unpack_host
from gateway.wire.pending_bodies import HeldMessage, HeldPage
from gateway.wire.properties import join, parse
from gateway.wire.recurring_bodies import RecurringMessage
from storage import MAX_WITH_ID, State, read_pending

_MADE_QUEUES: Final = 4
"""Queues of a topic that a send creates, if its template has as many (DefaultMQProducer.defaultTopicQueueNums)."""

_BY_SERVER: Final = (
    *(names.DELAY, names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS),
    *(names.START_DELIVER_TIME, names.TIMER_OUT_MS, names.TIMER_ENQUEUE_MS),
    *(names.TIMER_DEQUEUE_MS, names.TIMER_ROLL_TIMES, names.TIMER_DELAY_LEVEL),
    *(names.REAL_TOPIC, names.REAL_QID, names.MSG_REGION, names.TRACE_ON, names.CLUSTER),
    *(names.DEBOUNCE, names.TRAN_MSG, names.TIMER_DEL_UNIQKEY),
)
"""Properties that are not sent along. Some say when the message is due, or are added by each server anew. Others say
what was done when the message was accepted, and that must not be done again: a debounce would abort later messages, and
a committed message would be a half message again that nobody sees. And TIMER_DEL_UNIQKEY beside a due time is an order
to abort another message, which it was not before."""

_LONG: Final = 4 * 1024**2
"""Bytes of a body that every server has room for in a frame (maxMessageSize). A server closes the connection at a
frame that is longer than it accepts."""

_KEPT_FLAGS: Final = SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK | SysFlag.MULTI_TAGS
"""Bits of sysFlag that describe the body and the tags; they hold wherever the message is."""

_NOT_NOW: Final = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
"""Answers to a look-up that was not made. By the second, one of several workers does not serve, as in a rolling
restart."""

_STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""Answers to a send whose message is stored. All but the first say that the broker's disk or its slave does not have
the message yet; the broker delivers it all the same (SendStatus). If it were kept here as well, it would certainly be
delivered twice."""

PATIENCE_S: Final = 30.0
"""Seconds for which a server that cannot answer for the moment is asked again. Above a topic's `max.send.rate` that is
less than one, in a rolling restart of its workers some ten."""

_PAUSE_S: Final = 0.1
"""Seconds between two such questions."""

_V5_0_0: Final = 413
"""MQVersion of the first release of RocketMQ whose brokers hold messages until a given time."""

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
    """Yield the messages of a data folder that have not fired, the next due first.

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
    """Yield the same messages, each as a line of JSON."""
    for line in export_held(data, damaged):
        yield msgspec.json.encode(line) + b"\n"


def line_of(record: bytes, due_ms: int) -> HeldLine:
    """Return a message as a line, from its record and its due time."""
    message = decode_stored(record)
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
    """The broker that a topic's messages are sent to: its address and its number of queues."""

    host: str
    port: int
    queues: int


class Sender:
    """Sends messages to the brokers that a name server names for their topics; `with` closes its connections.

    A Tidegate gateway is asked first whether it has a message already, so what was interrupted can be repeated. Other
    servers cannot answer that.

    :param name_server: host and port; a gateway is its own name server.
    :param connect: makes a connection to a host and a port.
    :param patience_s: see `PATIENCE_S`.
    """

    def __init__(
        self,
        name_server: tuple[str, int],
        connect: Callable[[str, int], RemotingClient],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._connect = connect
        self._patience_s = patience_s
        self._busy_since: float | None = None
        """When a server was busy first since the last message that went through."""
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
        """Have a message held until its time; an overdue message is delivered at once.

        :param number: counts messages that a look-up cannot tell apart, such as those of one object in a batch: 2 for
            the second. The server has this one already if it has as many of them.
        :returns: False when the server has it already.
        :raises ClientError: when a server cannot be reached.
        :raises RefusalError: when a server refuses this message.
        """
        place = self._place_of(line.topic)
        address = (place.host, place.port)
        broker = self._brokers.get(address)
        if broker is None:
            broker = self._brokers[address] = self._connect(*address)
        if self._can_tell and line.msg_id and self._is_known(line, number):
            self._busy_since = None
            return False
        if not self._can_tell and 0 < self._version_of(broker, address) < _V5_0_0:
            raise RefusalError("its broker is older than RocketMQ 5, and would deliver it at once")
        properties = {
            name: value for name, value in line.properties.items() if name not in _BY_SERVER
        }
        properties[names.TIMER_DELIVER_MS] = str(line.due_ms)
        if line.msg_id:
            # The properties of a line that another program has written may have no id.
            properties[names.UNIQ_KEY] = line.msg_id
        try:
            text = join(properties)
        except ValueError as error:
            # No server refuses such a property when it is sent, as none parses it then.
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
            # Otherwise a message that was retried more often than its group allows would be a dead letter on arrival.
            max_reconsume_times=line.reconsume_times,
        )
        try:
            answer = self._ask(broker, RequestCode.SEND_MESSAGE_V2, to_ext(fields), line.body)
        except ClientError as error:
            if len(line.body) <= _LONG or isinstance(error, NoAnswerError):
                raise
            # If the server is gone, the next message shows it.
            size = len(line.body)
            raise RefusalError(f"its body of {size:,} bytes may be too long: {error}") from None
        if answer.code not in _STORED:
            raise RefusalError(_reason(answer))
        self._busy_since = None
        return True

    def _ask(
        self,
        server: RemotingClient,
        code: int,
        ext: Mapping[str, str],
        body: bytes = b"",
        later: Container[int] = (ResponseCode.SYSTEM_BUSY,),
    ) -> Command:
        """Ask a server, and again if it wants to be asked later. Once no message has gone through for too long, ask it
        only once for each.

        :param later: the codes by which it says that it has done nothing, and wants to be asked later.
        """
        while True:
            answer = server.ask(code, ext, body)
            if answer.code not in later:
                return answer
            now = monotonic()
            if self._busy_since is None:
                self._busy_since = now
            if now >= self._busy_since + self._patience_s:
                return answer
            sleep(_PAUSE_S)

    def _is_known(self, line: HeldLine, number: int) -> bool:
        # Each of several workers may have it; the address that they share answers for all.
        asked = {"id": line.msg_id, "topic": line.topic, "state": "any", "limit": str(MAX_WITH_ID)}
        answer = self._ask(self._name_server, RequestCode.LOOK_UP_TIMERS, asked, later=_NOT_NOW)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._can_tell = False
            return False
        if answer.code != ResponseCode.SUCCESS:
            # The refusal may be temporary, or for this user. If sent all the same, the message could be there twice.
            raise RefusalError(
                f"the server cannot tell whether it has this message already: {_reason(answer)}"
            )
        same = sum(_is_same(one, line) for one in _read(answer.body, HeldPage).messages)
        return same >= number

    def _version_of(self, broker: RemotingClient, address: tuple[str, int]) -> int:
        """Return a broker's MQVersion; 0 where it does not say. Every answer has it, even to an unknown request."""
        if address not in self._versions:
            self._versions[address] = broker.ask(RequestCode.LOOK_UP_TIMERS).version
        return self._versions[address]

    def _place_of(self, topic: str) -> Place:
        place = self._places.get(topic)
        if place is None:
            place = self._places[topic] = self._ask_route(topic) or self._place_to_be_made(topic)
        return place

    def _place_to_be_made(self, topic: str) -> Place:
        """Return the place at which a send creates the topic."""
        template = self._ask_route(DEFAULT_TOPIC)
        if template is None:
            raise RefusalError(
                f"no writable broker has topic {topic}, and none creates topics by itself: create it first"
            )
        # A group's topics are created with one queue, whatever the template has.
        most = 1 if is_of_group(topic) else _MADE_QUEUES
        return template._replace(queues=min(most, template.queues))

    def _ask_route(self, topic: str) -> Place | None:
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = self._name_server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise RefusalError(f"the name server {_reason(answer)}")
        route = _read(answer.body, Route)
        queues = {
            one.broker_name: one.write_queue_nums
            for one in route.queue_datas
            if one.perm & PERM_WRITE
        }
        for broker in route.broker_datas:
            master = broker.broker_addrs.get("0")
            if master is not None and queues.get(broker.broker_name):
                try:
                    return Place(*parse_address(master), queues[broker.broker_name])
                except ValueError as error:
                    raise ClientError(f"a server's answer is not understood: {error}") from None
        return None


def _reason(answer: Command) -> str:
    """Return a server's reason for a refusal, as one line."""
    remark = " ".join((answer.remark or "no reason given").split())
    return f"refused (code {answer.code}): {remark}"


def _is_same(one: HeldMessage, line: HeldLine) -> bool:
    """Whether a message that a look-up by the line's id found was sent from the line. A look-up may find others: the
    id may read as an offset id, and clients give all messages that are made of one object the same id."""
    if one.state == State.ABORTED.value and one.store_ms < line.store_ms:
        # The line's message was sent from this one, which a drain has aborted, and now comes back.
        return False
    # A message that was overdue, or was rescheduled since, does not have the line's time.
    has_its_time = one.due_ms == line.due_ms or one.rescheduled_ms or line.due_ms <= one.store_ms
    return bool(
        one.msg_id == line.msg_id
        and one.born_ms == line.born_ms
        and one.body_size == len(line.body)
        and has_its_time
    )


def _read(body: bytes, kind: type[_Answer]) -> _Answer:
    try:
        return read_body(body, kind)
    except BodyError as error:
        raise ClientError(f"a server's answer is not understood: {error}") from None
