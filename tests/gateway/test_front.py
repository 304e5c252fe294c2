"""The address that workers share: before they listen, and for the requests it does not answer."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import msgspec
import pytest
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure

from gateway.connections.connection import RemotingConnection
from gateway.connections.outgoing import Outgoing
from gateway.settings.config import Config
from gateway.settings.values import HostPort
from gateway.wire.bodies import encode_cluster_info, encode_topic_list
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import (
    Command,
    CommandError,
    decode_command,
    encode_command,
    encode_response,
)
from gateway.wire.frames import JSON, FrameBuffer, join_frame
from gateway.wire.signatures import is_signed
from gateway.workers.front import PATIENCE, ROUTE_PATIENCE, Front, WorkerLink
from gateway.workers.taking_turns import AT_ONCE, MOST_OF_A_CLIENT

KEY = "k" * 32


def command(frame: bytes) -> Command:
    """Decode a frame."""
    (whole,) = FrameBuffer().feed(frame)
    return decode_command(whole)


def route_of(topic: str) -> Command:
    """Return a request for a topic's route."""
    return command(encode_command(RequestCode.GET_ROUTEINFO_BY_TOPIC, 7, ext={"topic": topic}))


class Client:
    """A client's connection with what the front needs of it."""

    host = bytes(8)
    address = "192.0.2.7:50000"
    source = "192.0.2.7"
    open = True
    congested = False

    def __init__(self) -> None:
        self.answers: list[Command] = []

    def send(self, frame: bytes) -> None:
        self.answers.append(command(frame))


class Shared:
    """The shared address of two workers that do not listen yet."""

    def __init__(self, config: Config | None = None) -> None:
        self.reactor: Any = MemoryReactorClock()  # type: ignore[no-untyped-call]
        names = ("broker-a-0", "broker-a-1")
        self.changes: list[Command] = []
        self.passed_on: list[Command] = []
        self.front = Front(self.reactor, config or Config(), names, self.changes.append, KEY)
        self._asked: Any = self.front.clients.on_command

    def joined(self, broker: str, port: int) -> None:
        """Have a worker listen on a port."""
        address = HostPort("127.0.0.1", port)
        self.front.joined(broker, address, address)

    def ask(self, code: int, ext: dict[str, str] | None = None, *, flag: int = 0) -> list[Command]:
        """Send one request, and return its responses."""
        client = Client()
        self.ask_for(client, code, ext, flag=flag)
        return client.answers

    def ask_for(
        self,
        client: Client,
        code: int,
        ext: dict[str, str] | None,
        *,
        flag: int = 0,
        body: bytes = b"",
    ) -> None:
        """Send one request, whose response the client gets."""
        self._asked(command(encode_command(code, 7, flag=flag, ext=ext, body=body)), client)

    def link(self) -> WorkerLink:
        """Return a connection to a worker that is not opened."""
        outgoing = Outgoing(self.reactor)
        return WorkerLink(self.reactor, self.front.clients, outgoing, HostPort("127.0.0.1", 1))

    def connected(self, number: int = 0) -> RemotingConnection:
        """Accept a connection to a worker, as the worker would, and return it; by default the first connection."""
        connection: RemotingConnection = self.reactor.tcpClients[number][2].buildProtocol(None)
        transport: Any = StringTransport()  # type: ignore[no-untyped-call]
        transport.setTcpNoDelay = lambda _: None
        transport.writeSomeData = self._passed_on
        connection.makeConnection(transport)  # type: ignore[no-untyped-call]
        self.reactor.advance(0)
        return connection

    def _passed_on(self, frames: bytes) -> int:
        self.passed_on += map(decode_command, FrameBuffer().feed(frames))
        return len(frames)


def send(properties: str) -> dict[str, str]:
    """Return the fields of a send."""
    ext = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0"}
    return ext | {"h": "0", "i": properties}


def test_the_limit_of_connections_is_one_of_clients_and_not_of_workers() -> None:
    shared = Shared(Config(max_connections=1))
    for number, broker in enumerate(("broker-a-0", "broker-a-1")):
        shared.joined(broker, 9_886 + 10 * number)
        shared.ask(RequestCode.GET_ALL_TOPIC_LIST)
        assert shared.connected(number).open


@pytest.mark.parametrize(
    "code",
    [RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.LOOK_UP_TIMERS, RequestCode.LIST_RECURRING],
)
def test_nobody_answers_yet(code: int) -> None:
    (answer,) = Shared().ask(code, {"topic": "orders"})
    assert (answer.code, answer.opaque) == (ResponseCode.SERVICE_NOT_AVAILABLE, 7)
    assert (answer.remark or "").startswith("2 of 2 workers do not ")
    assert (answer.remark or "").endswith("ask again")


@pytest.mark.parametrize("code", [RequestCode.PAUSE_TOPIC, RequestCode.RESCHEDULE_TIMERS])
def test_no_worker_is_asked_for_a_change_while_one_does_not_serve(code: int) -> None:
    shared = Shared()
    shared.joined("broker-a-0", 9886)
    (answer,) = shared.ask(code, {"topic": "orders"})
    assert answer.remark == "1 of 2 workers do not serve (broker-a-1): none was asked; ask again"
    assert shared.reactor.tcpClients == []


def test_who_does_not_answer_is_told_before_a_tool_gives_up() -> None:
    """`tidegate` commands and mqadmin wait five seconds."""
    assert max(PATIENCE, ROUTE_PATIENCE) < 5


class TestWhatRecurs:
    """A send that sets a recurring message."""

    ORDER = send("TIDEGATE_NAME\x01n\x02TIDEGATE_EVERY\x012m\x02")

    @pytest.mark.parametrize(
        ("codes", "port"),
        [
            ((ResponseCode.MESSAGE_ILLEGAL, ResponseCode.MESSAGE_ILLEGAL), 9886),
            ((ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL), 9886),
            ((ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SUCCESS), 9896),
        ],
    )
    def test_it_is_set_at_the_worker_that_has_it_or_at_the_first_one(
        self, codes: tuple[int, int], port: int
    ) -> None:
        """Otherwise there would be two of its name, and both would fire."""
        shared, client = Shared(), Client()
        for number, own in enumerate((9886, 9896)):
            shared.joined(f"broker-a-{number}", own)
        shared.ask_for(client, RequestCode.SEND_MESSAGE_V2, self.ORDER)
        workers = {9886: shared.connected(0), 9896: shared.connected(1)}
        looks, shared.passed_on = shared.passed_on, []
        for worker, look, code in zip(workers.values(), looks, codes, strict=True):
            ext = look.ext()
            assert (look.code, ext["topic"], ext["name"]) == (31_012, "orders", "n")
            assert is_signed(ext, b"", look.version, KEY.encode())
            worker.dataReceived(encode_response(look.opaque, code))
        (order,) = shared.passed_on
        assert (order.code, order.ext()) == (RequestCode.SEND_MESSAGE_V2, self.ORDER)
        workers[port].dataReceived(encode_response(order.opaque, ResponseCode.SUCCESS))
        assert [answer.code for answer in client.answers] == [ResponseCode.SUCCESS]

    def test_none_is_set_while_a_worker_has_one_that_it_cannot_read(self) -> None:
        shared, client = Shared(), Client()
        for number, own in enumerate((9886, 9896)):
            shared.joined(f"broker-a-{number}", own)
        shared.ask_for(client, RequestCode.SEND_MESSAGE_V2, self.ORDER)
        codes = (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.ILLEGAL_OPERATION)
        for number, code in enumerate(codes):
            shared.connected(number).dataReceived(encode_response(number + 1, code, remark="why"))
        assert [(answer.code, answer.remark) for answer in client.answers] == [(codes[1], "why")]
        assert len(shared.passed_on) == 2

    def test_none_is_set_while_a_worker_does_not_serve_that_may_have_it(self) -> None:
        shared = Shared()
        shared.joined("broker-a-0", 9886)
        (answer,) = shared.ask(RequestCode.SEND_MESSAGE_V2, self.ORDER)
        remark = "1 of 2 workers do not serve (broker-a-1): none was asked; ask again"
        assert (answer.opaque, answer.remark) == (7, remark)


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.SEND_MESSAGE_V2, send("KEYS\x01TIDEGATE_EVERY\x02")),
        (RequestCode.SEND_MESSAGE_V2, {"i": "TIDEGATE_EVERY\x012m\x02"}),
        (RequestCode.PULL_MESSAGE, {}),
        (99_999, {}),
    ],
)
def test_what_is_for_one_broker_is_refused(code: int, ext: dict[str, str]) -> None:
    (answer,) = Shared().ask(code, ext)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "send it to one of them; mqadmin clusterList shows their addresses" in (
        answer.remark or ""
    )


def test_what_a_worker_told_last_counts_while_it_is_starting_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(WorkerLink, "MOST_REMEMBERED", 2)
    shared = Shared()
    link = shared.link()

    def told(topic: str, body: bytes, code: int = ResponseCode.SUCCESS) -> None:
        answer = command(encode_response(1, code, body=body))
        assert link.told(route_of(topic), answer) is answer

    def remembered(topic: str) -> bytes | None:
        assert link.told(route_of(topic), None) is None
        answer = link.remembered(route_of(topic))
        return answer.body if answer is not None else None

    told("first", b"4 queues")
    told("second", b"4 queues")
    told("first", b"8 queues")
    assert (remembered("first"), remembered("second")) == (b"8 queues", b"4 queues")
    told("third", b"4 queues")
    assert (remembered("first"), remembered("second")) == (b"8 queues", None)
    told("third", b"", ResponseCode.TOPIC_NOT_EXIST)
    assert remembered("third") is None
    # The response of a stopping worker says nothing about where a topic is.
    assert link.told(route_of("first"), command(encode_response(1, ResponseCode.GO_AWAY))) is None
    assert remembered("first") == b"8 queues"


def test_fields_that_mean_nothing_push_no_route_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerLink, "MOST_REMEMBERED", 2)
    shared = Shared()
    link = shared.link()
    answer = command(encode_response(1, ResponseCode.SUCCESS, body=b"4 queues"))
    link.told(route_of("orders"), answer)
    for number in range(3):
        ext = {"topic": f"t{number}"}
        link.told(command(encode_command(RequestCode.GET_BROKER_CLUSTER_INFO, 7, ext=ext)), answer)
    assert link.remembered(route_of("orders")) is answer


@pytest.mark.parametrize(
    ("code", "second", "told"),
    [
        (RequestCode.UPDATE_BROKER_CONFIG, ResponseCode.SUCCESS, 1),
        (RequestCode.UPDATE_BROKER_CONFIG, ResponseCode.SYSTEM_ERROR, 0),
        (RequestCode.PUT_KV_CONFIG, ResponseCode.SUCCESS, 0),
    ],
)
def test_a_change_of_settings_is_told_of_once_all_have_made_it(
    code: int, second: int, told: int
) -> None:
    shared, client = Shared(), Client()
    for broker, port in (("broker-a-0", 9886), ("broker-a-1", 9896)):
        shared.joined(broker, port)
    shared.ask_for(client, code, {})
    shared.connected().dataReceived(encode_response(1, ResponseCode.SUCCESS))
    assert (client.answers, shared.changes) == ([], [])
    shared.connected(1).dataReceived(encode_response(2, second))
    assert [answer.code for answer in client.answers] == [second]
    assert [change.code for change in shared.changes] == [code] * told


def test_the_name_server_listens_at_the_shared_address() -> None:
    shared, client = Shared(), Client()
    shared.front.port = 30876
    shared.joined("broker-a-0", 9886)
    shared.joined("broker-a-1", 9896)
    shared.ask_for(client, RequestCode.GET_NAMESRV_CONFIG, {})
    for number in range(2):
        body = b"bindAddress=0.0.0.0\nlistenPort=98%d6\n" % (8 + number)
        told = encode_response(1 + number, ResponseCode.SUCCESS, body=body)
        shared.connected(number).dataReceived(told)
    assert [answer.body for answer in client.answers] == [
        b"bindAddress=0.0.0.0\nlistenPort=30876\n"
    ]


def test_more_requests_than_may_wait_for_workers_are_refused() -> None:
    shared, client = Shared(Config(max_asked_clients=3)), Client()
    for broker, port in (("broker-a-0", 9886), ("broker-a-1", 9896)):
        shared.joined(broker, port)

    def ask() -> None:
        shared.ask_for(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})

    ask()
    workers = [shared.connected(number) for number in (0, 1)]
    ask()
    (refused,) = client.answers
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert (refused.remark or "").endswith("max_asked_clients = 3 is reached")
    for opaque, worker in enumerate(workers, 1):
        worker.dataReceived(encode_response(opaque, ResponseCode.TOPIC_NOT_EXIST))
    ask()
    assert [answer.code for answer in client.answers[1:]] == [ResponseCode.TOPIC_NOT_EXIST]
    for opaque, worker in enumerate(workers, 3):
        worker.dataReceived(encode_response(opaque, ResponseCode.TOPIC_NOT_EXIST))
    assert [answer.code for answer in client.answers[1:]] == [ResponseCode.TOPIC_NOT_EXIST] * 2


def test_what_waited_for_a_connection_and_has_no_room_then_is_answered() -> None:
    """Requests count once they are sent, so several may find room before the first connection is there."""
    shared, client = Shared(Config(max_asked_clients=2)), Client()
    for broker, port in (("broker-a-0", 9886), ("broker-a-1", 9896)):
        shared.joined(broker, port)
    for _ in range(3):
        shared.ask_for(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    for number in (0, 1):
        shared.connected(number)
    shared.reactor.advance(ROUTE_PATIENCE)
    assert len(client.answers) == 3
    assert {answer.code for answer in client.answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}


class TestWhatIsRemembered:
    """The second worker has given a topic's route, and is starting again."""

    @pytest.fixture
    def shared(self, request: pytest.FixtureRequest) -> Shared:
        shared = Shared(Config(authentication=request.param))
        for broker, port in (("broker-a-0", 9886), ("broker-a-1", 9896)):
            shared.joined(broker, port)
        link = shared.front._links["broker-a-1"]
        assert link is not None
        body = b'{"brokerDatas":[],"queueDatas":[]}'
        link.told(route_of("orders"), command(encode_response(1, 0, body=body)))
        shared.front.left("broker-a-1")
        return shared

    @pytest.mark.parametrize(
        ("shared", "said", "code"),
        [
            (False, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUCCESS),
            (False, ResponseCode.SYSTEM_BUSY, ResponseCode.SUCCESS),
            (True, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUCCESS),
            (True, ResponseCode.NO_PERMISSION, ResponseCode.NO_PERMISSION),
        ],
        indirect=["shared"],
    )
    def test_it_is_for_whom_the_other_lets_in(self, shared: Shared, said: int, code: int) -> None:
        client = Client()
        shared.ask_for(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        shared.connected().dataReceived(encode_response(1, said))
        assert [answer.code for answer in client.answers] == [code]

    @pytest.mark.parametrize(
        ("shared", "code"),
        [(False, ResponseCode.SUCCESS), (True, ResponseCode.SERVICE_NOT_AVAILABLE)],
        indirect=["shared"],
    )
    def test_it_is_for_everybody_or_nobody_without_the_other(
        self, shared: Shared, code: int
    ) -> None:
        shared.front.left("broker-a-0")
        (answer,) = shared.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        assert answer.code == code


def test_many_who_ask_at_once_share_one_connection_to_a_worker() -> None:
    shared = Shared()
    shared.joined("broker-a-0", 9886)
    clients = [Client() for _ in range(3)]
    for client in clients:
        shared.ask_for(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    ((_, _, connecting, *_),) = shared.reactor.tcpClients
    assert [client.answers for client in clients] == [[], [], []]
    connecting.clientConnectionFailed(None, Failure(ConnectionRefusedError()))  # type: ignore[no-untyped-call]
    shared.reactor.advance(0)
    assert [len(client.answers) for client in clients] == [1, 1, 1]


def test_answers_are_read_also_while_a_worker_takes_no_questions() -> None:
    """A worker reads no requests while its responses are not read. If both sides did so, neither would read again."""
    shared, client = Shared(), Client()
    shared.joined("broker-a-0", 9886)
    shared.ask_for(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    link = shared.connected()
    link.pauseProducing()
    link.dataReceived(encode_response(1, ResponseCode.TOPIC_NOT_EXIST))
    assert link.transport.producerState == "producing"
    assert [answer.code for answer in client.answers] == [ResponseCode.TOPIC_NOT_EXIST]


def test_a_tool_is_told_of_a_worker_that_nobody_had_asked_for_before_it_ended() -> None:
    """Otherwise a tool that changes all brokers would leave this worker out."""
    shared, client = Shared(), Client()
    for broker, port in (("broker-a-0", 9886), ("broker-a-1", 9896)):
        shared.joined(broker, port)
    shared.front.left("broker-a-1")
    shared.ask_for(client, RequestCode.GET_BROKER_CLUSTER_INFO, None)
    body = encode_cluster_info("DefaultCluster", "broker-a-0", "127.0.0.1:9886")
    shared.connected().dataReceived(encode_response(1, ResponseCode.SUCCESS, body=body))
    [answer] = client.answers
    told = msgspec.json.decode(answer.body)
    addresses = {name: one["brokerAddrs"] for name, one in told["brokerAddrTable"].items()}
    assert addresses == {
        "broker-a-0": {"0": "127.0.0.1:9886"},
        "broker-a-1": {"0": "127.0.0.1:9896"},
    }
    assert told["clusterAddrTable"] == {"DefaultCluster": ["broker-a-0", "broker-a-1"]}


def test_routes_are_told_while_clients_still_wait_for_them() -> None:
    """A worker that has just been stopped can still accept connections, but answers nothing."""
    shared = Shared()
    for broker, port in (("broker-a-0", 9886), ("broker-a-1", 9896)):
        shared.joined(broker, port)
    route, pending = Client(), Client()
    shared.ask_for(route, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    shared.ask_for(pending, RequestCode.LOOK_UP_TIMERS, {})
    for number in range(2):
        shared.connected(number)
    shared.reactor.advance(ROUTE_PATIENCE)
    assert (len(route.answers), len(pending.answers)) == (1, 0)
    shared.reactor.advance(PATIENCE - ROUTE_PATIENCE)
    assert len(pending.answers) == 1


def test_answers_of_workers_may_be_longer_than_requests() -> None:
    """A worker's answer has up to 16 MiB, however short requests are to be."""
    shared, client = Shared(Config(max_message_size=1024, max_frame_size=1024**2)), Client()
    shared.joined("broker-a-0", 9886)
    shared.ask_for(client, RequestCode.GET_ALL_TOPIC_LIST, {})
    body = encode_topic_list(f"topic-{number:06}" for number in range(100_000))
    shared.connected().dataReceived(encode_response(1, ResponseCode.SUCCESS, body=body))
    assert [(answer.code, answer.body) for answer in client.answers] == [(0, body)]


@pytest.mark.parametrize(
    ("code", "name", "remark", "ext"),
    [
        (RequestCode.GET_ALL_TOPIC_LIST, "topicList", "", {}),
        (RequestCode.ABORT_TIMERS, "results", "done, but ", {"mayHaveChanged": "true"}),
    ],
)
def test_an_answer_of_all_workers_that_clients_would_not_read_is_refused(
    code: int, name: str, remark: str, ext: dict[str, str]
) -> None:
    """As a single gateway refuses it: a client closes the connection on which so much comes."""
    shared, client = Shared(), Client()
    for broker, port in (("broker-a-0", 9886), ("broker-a-1", 9896)):
        shared.joined(broker, port)
    shared.ask_for(client, code, {"topic": "orders"})
    for number in range(2):
        text = f"{number}" * (9 << 20)
        item = {"msgId": text, "outcome": "aborted", "topic": "orders", "dueMs": 1}
        body = msgspec.json.encode({name: [text if name == "topicList" else item]})
        shared.connected(number).dataReceived(
            encode_response(1 + number, ResponseCode.SUCCESS, body=body)
        )
    [answer] = client.answers
    assert (answer.code, answer.ext()) == (ResponseCode.SYSTEM_ERROR, ext)
    assert answer.remark == (
        f"{remark}the answer would be longer than the 16777216 bytes that clients accept: ask for less at once"
    )


def test_a_worker_that_hangs_is_not_asked_until_it_goes_on() -> None:
    shared = Shared()
    for broker, port in (("broker-a-0", 9886), ("broker-a-1", 9896)):
        shared.joined(broker, port)
    shared.front.left("broker-a-0")
    (answer,) = shared.ask(RequestCode.LOOK_UP_TIMERS)
    assert answer.remark == "1 of 2 workers do not serve (broker-a-0): none was asked; ask again"
    shared.front.serves("broker-a-0")
    assert (shared.ask(RequestCode.LOOK_UP_TIMERS), len(shared.reactor.tcpClients)) == ([], 2)


@pytest.mark.parametrize("flag", [1, 2])
def test_nothing_is_said_to_answers_and_oneway_requests(flag: int) -> None:
    assert Shared().ask(RequestCode.LOOK_UP_TIMERS, flag=flag) == []


@pytest.mark.parametrize("of_body", [True, False], ids=["body", "name of a field"])
def test_more_bytes_than_may_wait_for_workers_are_refused(of_body: bool) -> None:
    shared, client = Shared(), Client()
    for broker, port in (("broker-a-0", 9886), ("broker-a-1", 9896)):
        shared.joined(broker, port)

    def ask(size: int) -> None:
        ext, body = {"topic": "orders"}, b""
        if of_body:
            body = bytes(size)
        else:
            ext["x" * size] = ""
        shared.ask_for(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, body=body)

    size, number = (15 << 20, 2) if of_body else (1_000_000, 33)
    ask(size)
    workers = [shared.connected(number) for number in (0, 1)]
    for _ in range(number - 1):
        ask(size)
    assert client.answers == []
    ask(size // 5 if of_body else size)
    (refused,) = client.answers
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert (refused.remark or "").endswith("requests that wait for workers = 33554432 is reached")
    ask(0)  # what clients need is asked for all the same
    assert len(client.answers) == 1
    for opaque, worker in enumerate(workers, 1):
        worker.dataReceived(encode_response(opaque, ResponseCode.TOPIC_NOT_EXIST))
    ask(1_000_000)
    assert [answer.code for answer in client.answers[1:]] == [ResponseCode.TOPIC_NOT_EXIST]


def test_answers_that_cannot_be_merged_hold_nothing_up(failures: list[str]) -> None:
    shared, client = Shared(), Client()
    for broker, port in (("broker-a-0", 9886), ("broker-a-1", 9896)):
        shared.joined(broker, port)
    workers: list[RemotingConnection] = []
    look_up, abort = RequestCode.LOOK_UP_TIMERS, RequestCode.ABORT_TIMERS
    for opaque, code in ((1, look_up), (3, look_up), (5, abort)):
        shared.ask_for(client, code, {}, body=bytes(15 << 20))
        workers = workers or [shared.connected(number) for number in (0, 1)]
        for number, worker in enumerate(workers):
            worker.dataReceived(encode_response(opaque + number, ResponseCode.SUCCESS, body=b"?"))
    assert [answer.code for answer in client.answers] == [ResponseCode.SYSTEM_ERROR] * 3
    assert {answer.remark[:11] for answer in client.answers if answer.remark} == {"DecodeError"}
    fields = [answer.ext() for answer in client.answers]
    assert fields == [{}, {}, {"mayHaveChanged": "true"}]
    assert len(failures) == 3
    failures.clear()


def test_a_large_header_that_cannot_be_passed_on_does_not_count_as_waiting() -> None:
    """As a number it is read at first, but not where all fields are to be text."""
    shared, client = Shared(), Client()
    for broker, port in (("broker-a-0", 9886), ("broker-a-1", 9896)):
        shared.joined(broker, port)
    shared.ask_for(client, RequestCode.LOOK_UP_TIMERS, {})
    for number in (0, 1):
        shared.connected(number)
    large = b"x" * 900_000
    header = b'{"code":31001,"opaque":7.0,"extFields":{"limit":5},"more":"' + large + b'"}'
    for _ in range(40):
        unread = command(join_frame(JSON, header, b""))
        with pytest.raises(CommandError):
            shared.front.clients.on_command(unread, cast(Any, client))
    shared.ask_for(client, RequestCode.LOOK_UP_TIMERS, {}, body=large)
    assert (client.answers, len(shared.passed_on)) == ([], 4)


def test_while_a_worker_has_not_read_the_last_large_request_there_is_no_other() -> None:
    shared, client = Shared(), Client()
    for broker, port in (("broker-a-0", 9886), ("broker-a-1", 9896)):
        shared.joined(broker, port)

    def ask() -> str:
        shared.ask_for(client, RequestCode.LOOK_UP_TIMERS, {}, body=bytes(5_000))
        return client.answers[-1].remark or ""

    shared.ask_for(client, RequestCode.LOOK_UP_TIMERS, {})
    shared.connected().pauseProducing()
    shared.connected(1)
    assert ask().startswith("[OVERLOAD]")
    shared.front.left("broker-a-0")  # it hangs
    assert ask().startswith("1 of 2 workers do not serve (broker-a-0)")


@pytest.mark.parametrize(
    ("escaped", "body"), [(200_000, 0), (2_000, 1 << 20)], ids=["header", "whole request"]
)
def test_a_request_that_grows_too_large_for_workers_is_not_passed_on(
    escaped: int, body: int
) -> None:
    """They would close the connection, and those whose requests wait there would be told that no worker answers."""
    shared, client = Shared(Config(max_message_size=1024, max_frame_size=1_055_000)), Client()
    for broker, port in (("broker-a-0", 9886), ("broker-a-1", 9896)):
        shared.joined(broker, port)
    header = b'{"code":31001,"opaque":7,"extFields":{"key":"' + b"\x01" * escaped + b'"}}'
    grows = command(join_frame(JSON, header, bytes(body)))
    for _ in range(40):
        shared.front.clients.on_command(grows, cast(Any, client))
    assert {answer.code for answer in client.answers} == {ResponseCode.INVALID_PARAMETER}
    assert (len(client.answers), shared.reactor.tcpClients) == (40, [])
    shared.ask_for(client, RequestCode.LOOK_UP_TIMERS, {}, body=bytes(1 << 20))
    assert len(shared.reactor.tcpClients) == 2


class TestTakingTurns:
    """A client that sends thousands of look-ups at once, each of which takes a worker 20 ms."""

    @pytest.fixture
    def shared(self) -> Shared:
        shared = Shared()
        for number, port in enumerate((9886, 9896)):
            shared.joined(f"broker-a-{number}", port)
        return shared

    @pytest.fixture
    def sender(self, shared: Shared) -> Client:
        sender = Client()
        for number in range(AT_ONCE + MOST_OF_A_CLIENT):
            shared.ask_for(sender, RequestCode.LOOK_UP_TIMERS, {"topic": f"t{number}"})
        return sender

    def answer(self, workers: list[RemotingConnection], *opaques: int) -> None:
        """Have both workers answer the requests that they got with these opaques."""
        for worker, opaque in zip(workers, opaques, strict=True):
            worker.dataReceived(encode_response(opaque, ResponseCode.TOPIC_NOT_EXIST))

    def test_others_need_not_wait_until_all_are_answered(
        self, shared: Shared, sender: Client
    ) -> None:
        other = Client()
        shared.ask_for(other, RequestCode.LIST_PAUSED_TOPICS, {})
        shared.ask_for(other, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        workers = [shared.connected(number) for number in (0, 1)]
        looks, route = shared.passed_on[:AT_ONCE], shared.passed_on[AT_ONCE]
        assert [look.ext()["topic"] for look in looks] == [f"t{number}" for number in range(4)]
        assert route.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        assert len(shared.passed_on) == 2 * (AT_ONCE + 1)
        shared.passed_on.clear()
        for first, second in ((1, AT_ONCE + 2), (2, AT_ONCE + 3)):
            self.answer(workers, first, second)
            shared.reactor.advance(0)
        assert len(sender.answers) == 2
        codes = [one.code for one in shared.passed_on]
        assert codes == [RequestCode.LOOK_UP_TIMERS] * 2 + [RequestCode.LIST_PAUSED_TOPICS] * 2

    def test_what_waits_too_long_is_answered_and_not_passed_on(
        self, shared: Shared, sender: Client
    ) -> None:
        workers = [shared.connected(number) for number in (0, 1)]
        shared.reactor.advance(PATIENCE / 2)
        other = Client()
        shared.ask_for(other, RequestCode.PAUSE_TOPIC, {"topic": "orders"})
        shared.reactor.advance(PATIENCE / 2)
        assert len(sender.answers) == AT_ONCE + MOST_OF_A_CLIENT
        codes = {ResponseCode.SERVICE_NOT_AVAILABLE: AT_ONCE, ResponseCode.SYSTEM_BUSY: 1_000}
        assert Counter(answer.code for answer in sender.answers) == codes
        remarks = {answer.remark for answer in sender.answers}
        assert "the workers were busy for 4 s: none was asked; ask again" in remarks
        shared.reactor.advance(0)
        passed_on = [one.code for one in shared.passed_on[2 * AT_ONCE :]]
        assert passed_on == [RequestCode.PAUSE_TOPIC] * 2
        # What is left of its time counts, so that its sender is told before it gives up.
        shared.reactor.advance(PATIENCE / 2)
        assert [answer.code for answer in other.answers] == [ResponseCode.SERVICE_NOT_AVAILABLE]
        assert all(worker.open for worker in workers)

    def test_more_are_refused(self, shared: Shared, sender: Client) -> None:
        shared.ask_for(sender, RequestCode.LOOK_UP_TIMERS, {})
        (refused,) = sender.answers
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert (refused.remark or "").endswith("that wait for workers = 1000 is reached")

    def test_all_are_answered_once_a_worker_is_gone(self, shared: Shared, sender: Client) -> None:
        workers = [shared.connected(number) for number in (0, 1)]
        shared.front.left("broker-a-1")
        for opaque in range(1, AT_ONCE + 1):
            self.answer(workers, opaque, AT_ONCE + opaque)
        for _ in range(MOST_OF_A_CLIENT):
            shared.reactor.advance(0)
        assert len(sender.answers) == AT_ONCE + MOST_OF_A_CLIENT
        assert len(shared.passed_on) == 2 * AT_ONCE
