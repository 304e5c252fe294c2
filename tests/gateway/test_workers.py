"""The leader of several workers, on a reactor that starts no processes."""

from __future__ import annotations

import errno
from pathlib import Path
from signal import SIGBUS
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.logger import LogLevel, capturedLogs
from twisted.python.failure import Failure

from gateway.apart import DIED
from gateway.process import NOT_READY, READY, WRONG_SETTINGS
from gateway.settings.config import Config
from gateway.settings.loading import load
from gateway.settings.values import HostPort, parse_host_port
from gateway.wire.codes import RequestCode
from gateway.wire.commands import decode_command, encode_command
from gateway.wire.frames import FrameBuffer
from gateway.wire.messages import pack_host
from gateway.workers.leader import LONGEST_START, Leader
from gateway.workers.worker import (
    FIRST_PAUSE,
    HEARING_SECONDS,
    LONGEST_END,
    LONGEST_PAUSE,
    TIMES_UNTIL_KILLED,
    TIMES_UNTIL_TOLD,
)
from storage import DATA_FILE


class Process:
    """A worker's process, with what its leader needs of it."""

    def __init__(self, protocol: Any, command: list[str]) -> None:
        self.protocol = protocol
        self.command = command
        self.signals: list[str] = []

    @property
    def folder(self) -> Path:
        """The worker's data folder."""
        return Path(flags_of(self)["--data"])

    def signalProcess(self, name: str) -> None:
        """Record a signal."""
        self.signals.append(name)

    def end(self, status: int = 0, signal: int | None = None) -> None:
        """End the process."""
        failed = status or signal
        reason = ProcessTerminated(status, signal) if failed else ProcessDone(0)  # type: ignore[no-untyped-call]
        self.protocol.processEnded(Failure(reason))  # type: ignore[no-untyped-call]

    def listen(self, port: int, http: int | None = None) -> None:
        """Report that the worker listens, perhaps for HTTP too, and make its folder."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / DATA_FILE).touch()
        address = b"127.0.0.1:%d" % port
        self.protocol.outReceived(
            b"listening on %b, clients are told %b, data\n" % (address, address)
        )
        if http is not None:
            self.protocol.outReceived(b"metrics on http://127.0.0.1:%d/metrics\n" % http)


class ProcessReactor(MemoryReactorClock):
    """Records which processes were to be started."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.started: list[Process] = []
        self.can_start = True

    def spawnProcess(
        self, protocol: object, _: str, command: list[str], **options: object
    ) -> Process:
        """Start a process."""
        if not self.can_start:
            raise OSError(errno.EMFILE, "Too many open files")
        process = Process(protocol, list(command))
        self.started.append(process)
        return process


@pytest.fixture
def reactor() -> Any:
    return ProcessReactor()


@pytest.fixture
def leader(reactor: Any, tmp_path: Path) -> Leader:
    """The leader of two workers that have been started."""
    logs: Any = SimpleNamespace(configure=lambda _: None)
    environment = {"TIDEGATE_DATA": str(tmp_path), "TIDEGATE_WORKERS": "2"}
    leader = Leader(load({}, environment).config, reactor, environment, logs)
    leader.start()
    return leader


@pytest.fixture
def http(reactor: Any, tmp_path: Path) -> Leader:
    """A leader of two workers that listen, also for HTTP."""
    logs: Any = SimpleNamespace(configure=lambda _: None)
    config = Config(data=tmp_path, workers=2, http=HostPort("127.0.0.1", 9877))
    leader = Leader(config, reactor, {}, logs)
    leader.start()
    for port, process in zip((9886, 9896), reactor.started, strict=True):
        process.listen(port, http=port + 1)
    return leader


def tick(reactor: Any, *heard: Process) -> None:
    """Let the time until the next check of the workers pass. These processes send a sign of life in it."""
    for process in heard:
        process.protocol.outReceived(b".....")
    reactor.advance(HEARING_SECONDS)


def serving(leader: Leader) -> list[bool]:
    """Return for each worker whether it gets clients' requests to the shared addresses."""
    assert leader.http is not None
    links = leader._front._links.values()
    by_remoting = [link is not None and link.serves for link in links]
    assert by_remoting == [port.serves for port in leader.http._ports.values()]
    return by_remoting


def flags_of(process: Process) -> dict[str, str]:
    """Return the flags that a process was started with, after the switch for TLS."""
    return dict(zip(process.command[6::2], process.command[7::2], strict=True))


def test_what_an_empty_flag_leaves_out_workers_leave_out(reactor: Any, tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text('http = "127.0.0.1:9999"\nlog_file = "log"\nadvertise = "192.0.2.7"\n')
    given = {"workers": "2", "http": "", "log_file": "", "advertise": "", "data": str(tmp_path)}
    config = load(given, {}, file).config
    logs: Any = SimpleNamespace(configure=lambda _: None)
    Leader(config, reactor, {}, logs, ["http", "log_file", "advertise"]).start()
    given = flags_of(reactor.started[1])
    flags = {flag.removeprefix("--").replace("-", "_"): text for flag, text in given.items()}
    own = load(flags, {}, file).config
    assert (own.http, own.log_file, own.advertise) == (None, None, None)
    assert (own.broker_name, own.workers) == ("broker-a-1", 1)


@pytest.mark.parametrize(
    ("shared", "own"),
    [
        (
            {"listen": "127.0.0.1:9876", "advertise": "192.0.2.7:30876", "http": "127.0.0.1:9877"},
            [
                ("127.0.0.1:9886", "192.0.2.7:30886", "127.0.0.1:9878"),
                ("127.0.0.1:9896", "192.0.2.7:30896", "127.0.0.1:9879"),
            ],
        ),
        (
            {"listen": "127.0.0.1:0", "advertise": "192.0.2.7", "http": "127.0.0.1:0"},
            [("127.0.0.1:0", "192.0.2.7:0", "127.0.0.1:0")] * 2,
        ),
    ],
)
def test_each_worker_has_addresses_of_its_own(
    reactor: Any, tmp_path: Path, shared: dict[str, str], own: list[tuple[str, str, str]]
) -> None:
    logs: Any = SimpleNamespace(configure=lambda _: None)
    config = load({"workers": "2", "data": str(tmp_path), **shared}, {}).config
    Leader(config, reactor, {}, logs).start()
    for number, process in enumerate(reactor.started):
        flags = flags_of(process)
        assert (flags["--listen"], flags["--advertise"], flags["--http"]) == own[number]
        assert flags["--data"] == str(tmp_path / f"worker-{number}")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"listen": "192.0.2.1:9876"}, ("192.0.2.1:9886", "192.0.2.1:9896")),
        (
            {"listen": "[::]:9876", "advertise": "192.0.2.7"},
            ("192.0.2.7:9886", "192.0.2.7:9896"),
        ),
        ({"advertise": "192.0.2.7:30876"}, ("192.0.2.7:30886", "192.0.2.7:30896")),
    ],
)
def test_it_is_known_where_workers_will_be_that_are_long_in_starting(
    reactor: Any, tmp_path: Path, given: dict[str, str], told: tuple[str, str]
) -> None:
    """Otherwise tools that change all brokers would leave such a worker out, and report its messages as missing."""
    logs: Any = SimpleNamespace(configure=lambda _: None)
    both = {"workers": "2", "data": str(tmp_path), "http": "127.0.0.1:9877"}
    leader = Leader(load(both | given, {}).config, reactor, {}, logs)
    leader.start()
    (question,) = FrameBuffer().feed(encode_command(RequestCode.GET_BROKER_CLUSTER_INFO, 1))
    frames: list[bytes] = []
    client: Any = SimpleNamespace(send=frames.append)
    leader._front.clients.on_command(decode_command(question), client)
    (answer,) = FrameBuffer().feed(frames[0])
    brokers = msgspec.json.decode(decode_command(answer).body)["brokerAddrTable"]
    assert {name: broker["brokerAddrs"]["0"] for name, broker in brokers.items()} == {
        "broker-a-0": told[0],
        "broker-a-1": told[1],
    }
    assert leader.http is not None
    owners = {pack_host(*parse_host_port(one)): f"broker-a-{n}" for n, one in enumerate(told)}
    assert leader.http._owners == owners
    assert serving(leader) == [False, False]


@pytest.mark.parametrize(
    ("advertise", "told"),
    [("192.0.2.7", "192.0.2.7:9876"), ("192.0.2.7:30876", "192.0.2.7:30876")],
)
def test_console_and_name_server_tell_an_address_that_clients_can_use(
    reactor: Any, tmp_path: Path, advertise: str, told: str
) -> None:
    given = {"workers": "2", "listen": "[::]:9876", "advertise": advertise, "data": str(tmp_path)}
    config = load(given | {"http": "127.0.0.1:9877"}, {}).config
    logs: Any = SimpleNamespace(configure=lambda _: None)
    leader = Leader(config, reactor, {}, logs)
    leader.start()
    assert leader.http is not None
    assert leader.http.address == told
    assert leader._front.port == parse_host_port(told).port


def connected(reactor: Any, sent: bytes = b"") -> Any:
    """Return the transport of a client at the shared address that has sent this."""
    connection = reactor.tcpServers[0][1].buildProtocol(None)
    transport: Any = StringTransport()  # type: ignore[no-untyped-call]
    transport.setTcpNoDelay = lambda _: None
    connection.makeConnection(transport)
    if sent:
        connection.dataReceived(sent)
    return transport


def test_a_silent_connection_to_the_shared_address_is_closed(reactor: Any, leader: Leader) -> None:
    transport = connected(reactor)
    reactor.pump([10.0] * 12)
    assert not transport.disconnecting
    reactor.pump([10.0] * 2)
    assert transport.disconnecting


@pytest.mark.parametrize(
    ("tls", "why"),
    [
        ("permissive", "the address that workers share does not offer it"),
        ("disabled", "tls = disabled"),
    ],
)
def test_a_client_that_uses_tls_at_the_shared_address_is_told_of(
    reactor: Any, tmp_path: Path, tls: Any, why: str
) -> None:
    logs: Any = SimpleNamespace(configure=lambda _: None)
    Leader(Config(data=tmp_path, workers=2, tls=tls), reactor, {}, logs).start()
    with capturedLogs() as events:
        transport = connected(reactor, b"\x16\x03\x01\x00\xc8" + b"x" * 200)
    assert transport.disconnecting
    assert [event["reason"].partition(":")[0] for event in events if "reason" in event] == [why]


def test_a_worker_that_does_not_end_is_killed(reactor: Any, leader: Leader) -> None:
    hanging, other = reactor.started
    gone: list[object] = []
    leader.stop().addCallback(gone.append)
    other.end()
    reactor.advance(LONGEST_END)
    assert (hanging.signals, other.signals) == (["TERM", "KILL"], ["TERM"])
    hanging.end()
    assert gone
    assert reactor.started == [hanging, other]


def test_a_worker_that_was_to_be_started_again_is_not_once_all_end(
    reactor: Any, leader: Leader
) -> None:
    one, other = reactor.started
    one.listen(9886)
    one.end(9)
    gone: list[object] = []
    leader.stop().addCallback(gone.append)
    other.end()
    assert gone
    reactor.advance(FIRST_PAUSE)
    assert reactor.started == [one, other]


def test_a_worker_that_hangs_does_not_end_a_rolling_restart(reactor: Any, leader: Leader) -> None:
    hanging, other = reactor.started
    leader.roll()
    reactor.advance(LONGEST_END)
    assert hanging.signals == ["TERM", "KILL"]
    hanging.end()
    reactor.advance(0)
    new = reactor.started[-1]
    new.listen(9886)
    assert other.signals == ["TERM"]
    reactor.advance(LONGEST_END)
    assert new.signals == []


def test_a_worker_that_is_to_end_gets_no_more_requests(reactor: Any, http: Leader) -> None:
    """It would answer none of them, and a change that the others make meanwhile would be made in part."""
    assert http.http is not None
    one, other = reactor.started
    http.roll()
    assert (one.signals, serving(http)) == (["TERM"], [False, True])
    one.protocol.outReceived(NOT_READY)
    assert http.http._not_ready() == ["broker-a-0 does not serve"]
    for _ in range(TIMES_UNTIL_TOLD):
        tick(reactor, other)
    one.protocol.outReceived(NOT_READY)
    assert serving(http) == [False, True]
    one.end()
    reactor.advance(0)
    reactor.started[-1].listen(9886, http=9887)
    assert (other.signals, serving(http)) == (["TERM"], [True, False])


def test_a_worker_that_is_told_to_end_while_it_starts_has_not_started(
    reactor: Any, leader: Leader
) -> None:
    """It may listen for a moment before it ends."""
    one, other = reactor.started
    other.listen(9896)
    leader.roll()
    one.listen(9886)
    assert (one.signals, other.signals) == (["TERM"], [])
    one.end()
    reactor.advance(0)
    reactor.started[-1].listen(9886)
    assert other.signals == ["TERM"]


def test_a_second_rolling_restart_meanwhile_is_passed_over_aloud(
    reactor: Any, leader: Leader
) -> None:
    one, other = reactor.started
    leader.roll()
    with capturedLogs() as events:
        leader.roll()
    assert (one.signals, other.signals) == (["TERM"], [])
    assert [(event["log_level"], "SIGHUP" in event["log_format"]) for event in events] == [
        (LogLevel.warn, True)
    ]


def test_a_worker_that_does_not_start_again_ends_a_rolling_restart(
    reactor: Any, leader: Leader
) -> None:
    one, other = reactor.started
    one.listen(9886)
    other.listen(9896)
    leader.roll()
    one.end()
    reactor.advance(0)
    with capturedLogs() as events:
        reactor.advance(LONGEST_START)
    assert [event["log_level"] for event in events if "number" in event] == [LogLevel.error]
    assert (other.signals, leader.trouble) == ([], None)
    # It may listen after all, and then the leader may restart another worker.
    reactor.started[-1].listen(9886)
    leader.roll()
    assert reactor.started[-1].signals == ["TERM"]
    reactor.started[-1].end()
    reactor.advance(0)
    reactor.started[-1].listen(9886)
    assert other.signals == ["TERM"]


def test_settings_that_a_worker_cannot_start_with_end_all(reactor: Any, leader: Leader) -> None:
    one, other = reactor.started
    one.listen(9886)
    other.end(WRONG_SETTINGS)
    assert reactor.hasStopped
    assert leader.trouble is not None
    assert leader.trouble.status == WRONG_SETTINGS


@pytest.mark.parametrize("status", [1, WRONG_SETTINGS])
def test_a_worker_that_cannot_start_again_leaves_the_others_alone(
    reactor: Any, leader: Leader, status: int
) -> None:
    one, other = reactor.started
    one.listen(9886)
    other.listen(9896)
    other.end(status)
    assert (leader.trouble, reactor.hasStopped, one.signals) == (None, False, [])
    reactor.advance(FIRST_PAUSE)
    assert len(reactor.started) == 3


def test_a_worker_that_cannot_start_does_not_keep_the_others_from_serving(
    reactor: Any, tmp_path: Path
) -> None:
    """systemd is told then: otherwise it would end all of them once its own time for a start is over."""
    logs: Any = SimpleNamespace(configure=lambda _: None)
    leader = Leader(Config(data=tmp_path, workers=2), reactor, {}, logs)
    serving: list[object] = []
    leader.start().addCallback(serving.append)
    one, other = reactor.started
    other.end(1)
    assert serving == []
    one.listen(9886)
    assert len(serving) == 1
    # What is wrong with one of them later is no reason to end the others.
    reactor.advance(FIRST_PAUSE)
    reactor.started[-1].end(WRONG_SETTINGS)
    assert (leader.trouble, reactor.hasStopped, one.signals) == (None, False, [])
    reactor.advance(2 * FIRST_PAUSE)
    reactor.started[-1].listen(9896)
    assert len(serving) == 1


def test_a_process_that_cannot_be_had_is_tried_for_again(reactor: Any, leader: Leader) -> None:
    one, _ = reactor.started
    one.listen(9886)
    reactor.can_start = False
    one.end(9)
    with capturedLogs() as events:
        reactor.advance(FIRST_PAUSE)
    assert [event["reason"] for event in events] == ["Too many open files"]
    reactor.can_start = True
    reactor.advance(2 * FIRST_PAUSE)
    assert len(reactor.started) == 3


def test_a_worker_that_is_started_again_is_where_it_was(reactor: Any, http: Leader) -> None:
    one, _ = reactor.started
    assert serving(http) == [True, True]
    one.end(9)
    assert serving(http) == [False, True]
    reactor.advance(FIRST_PAUSE)
    assert flags_of(reactor.started[2])["--listen"] == "127.0.0.1:9886"
    assert flags_of(reactor.started[2])["--http"] == "127.0.0.1:9887"
    # The worker ends before its output is complete. The output of the next one starts anew, and its address is used.
    reactor.started[2].listen(40_001)
    reactor.started[2].end(9)
    reactor.advance(2 * FIRST_PAUSE)
    reactor.started[3].listen(40_002, http=40_003)
    assert serving(http) == [True, True]
    reactor.started[3].end(9)
    reactor.advance(FIRST_PAUSE)
    assert flags_of(reactor.started[4])["--listen"] == "127.0.0.1:40002"
    assert flags_of(reactor.started[4])["--http"] == "127.0.0.1:40003"


def test_a_worker_that_ends_again_and_again_is_started_less_and_less_often(
    reactor: Any, leader: Leader
) -> None:
    one, other = reactor.started
    one.listen(9886)
    other.listen(9896)
    for pause in (0.5, 1, 2, 4, 8, 16, 30, 30):
        reactor.started[-1].end(9)
        begun = len(reactor.started)
        reactor.advance(pause - 0.1)
        assert len(reactor.started) == begun
        reactor.advance(0.1)
        assert len(reactor.started) == begun + 1
    reactor.started[-1].listen(9896)
    reactor.started[-1].end(9)
    reactor.advance(FIRST_PAUSE)
    assert len(reactor.started) == begun + 2


def test_a_worker_that_hangs_is_killed_and_another_one_follows(reactor: Any, http: Leader) -> None:
    hanging, other = reactor.started
    assert http.http is not None
    for _ in range(TIMES_UNTIL_TOLD - 1):
        tick(reactor, other)
    assert http.http._not_ready() == []
    asked = [port.ask("GET", "/", {}, b"") for port in http.http._ports.values()]
    tick(reactor, other)
    assert http.http._not_ready() == ["broker-a-0 does not serve"]
    assert [answer.called for answer in asked] == [True, False]
    for _ in range(TIMES_UNTIL_KILLED - TIMES_UNTIL_TOLD):
        assert hanging.signals == []
        assert serving(http) == [False, True]
        tick(reactor, other)
    assert (hanging.signals, other.signals) == (["KILL"], [])
    hanging.end(9)
    reactor.advance(FIRST_PAUSE)
    assert len(reactor.started) == 3
    # The silence of the previous process does not count against it.
    reactor.started[-1].listen(9886, http=9887)
    for _ in range(TIMES_UNTIL_TOLD - 1):
        tick(reactor, other)
    assert serving(http) == [True, True]


def test_a_worker_that_goes_on_serves_again(reactor: Any, http: Leader) -> None:
    one, other = reactor.started
    for _ in range(TIMES_UNTIL_KILLED - 1):
        tick(reactor, other)
    assert serving(http) == [False, True]
    one.protocol.outReceived(b".")
    assert serving(http) == [True, True]
    for _ in range(TIMES_UNTIL_KILLED - 1):
        tick(reactor, other)
    assert one.signals == []


def test_a_worker_whose_data_are_away_is_not_started_on_an_empty_folder(
    reactor: Any, leader: Leader
) -> None:
    first, other = reactor.started
    first.listen(9886)
    other.listen(9896)
    away = other.folder.rename(other.folder.with_name("away"))
    with capturedLogs() as events:
        other.end(9)
        reactor.pump([1.0] * 10)
    assert len(reactor.started) == 2
    assert str(other.folder) in events[1]["reason"]
    away.rename(other.folder)
    reactor.advance(LONGEST_PAUSE)
    assert flags_of(reactor.started[-1])["--data"] == str(other.folder)


def test_a_worker_whose_folder_cannot_be_read_is_tried_for_again(
    reactor: Any, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> bool:
        raise OSError(errno.EIO, "Input/output error", str(path))

    first, other = reactor.started
    first.listen(9886)
    other.listen(9896)
    other.end(9)
    with monkeypatch.context() as patch, capturedLogs() as events:
        patch.setattr(Path, "exists", fail)
        reactor.advance(FIRST_PAUSE)
    assert [event["reason"] for event in events] == [
        f"{other.folder} cannot be read: Input/output error"
    ]
    assert len(reactor.started) == 2
    reactor.advance(2 * FIRST_PAUSE)
    assert flags_of(reactor.started[-1])["--data"] == str(other.folder)


def test_a_worker_that_is_not_ready_is_named(reactor: Any, http: Leader) -> None:
    assert http.http is not None
    one, other = reactor.started
    one.protocol.outReceived(NOT_READY)
    other.protocol.outReceived(READY)
    assert http.http._not_ready() == ["broker-a-0 is not ready: its own /ready says why"]
    one.end(9)
    assert http.http._not_ready() == ["broker-a-0 does not serve"]
    reactor.advance(FIRST_PAUSE)
    reactor.started[-1].listen(9886, http=9887)
    assert http.http._not_ready() == []
    other.protocol.outReceived(NOT_READY + READY)
    assert http.http._not_ready() == []


def test_no_worker_is_stopped_for_settings_that_it_could_not_start_with(
    reactor: Any, tmp_path: Path
) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text("")
    logs: Any = SimpleNamespace(configure=lambda _: None)
    environment = {"TIDEGATE_CONFIG": str(file), "TIDEGATE_WORKERS": "2"}
    environment["TIDEGATE_DATA"] = str(tmp_path)
    leader = Leader(load({}, environment).config, reactor, environment, logs)
    leader.start()
    for port, process in zip((9886, 9896), reactor.started, strict=True):
        process.listen(port)
    for text, says in (
        ('flush = "sometimes"\n', "flush = sometimes"),
        (f'http_token_file = "{tmp_path}/none"\n', "cannot read http_token_file"),
    ):
        file.write_text(text)
        with capturedLogs() as events:
            leader.roll()
        assert [process.signals for process in reactor.started] == [[], []]
        assert says in events[0]["reason"]
    file.write_text('flush = "async"\n')
    leader.roll()
    assert [process.signals for process in reactor.started] == [["TERM"], []]


def test_a_rolling_restart_takes_up_settings_but_those_that_the_leader_has(
    reactor: Any, tmp_path: Path
) -> None:
    file, token = tmp_path / "tidegate.toml", tmp_path / "token"
    token.write_text("a-token-of-some-letters")
    file.write_text('advertise = "192.0.2.7"\n')
    environment = {"TIDEGATE_CONFIG": str(file), "TIDEGATE_DATA": str(tmp_path)}
    environment |= {"TIDEGATE_WORKERS": "2", "TIDEGATE_HTTP": "127.0.0.1:9877"}
    taken: list[Config] = []
    logs: Any = SimpleNamespace(configure=taken.append)
    leader = Leader(load({}, environment).config, reactor, environment, logs)
    leader.start()
    for port, process in zip((9886, 9896), reactor.started, strict=True):
        process.listen(port, http=port + 1)
    file.write_text(
        f'http_token_file = "{token}"\nmax_connections = 7\nmax_http_connections = 8\nhttp_tls = true\n'
        f'log_file = "{tmp_path}/log"\nbroker_name = "other"\n'
    )
    with capturedLogs() as events:
        leader.roll()
    assert events[0]["names"] == "advertise, http_tls, broker_name, log_file"
    assert (taken[0].max_connections, leader._front.clients.max_connections) == (7, 7)
    assert leader.http is not None
    assert leader.http._site._most == 8
    reactor.started[0].end()
    reactor.advance(0)
    begun = reactor.started[2]
    assert "--no-http-tls" in begun.command
    flags = {flag[2:].replace("-", "_"): text for flag, text in flags_of(begun).items()}
    own = load(flags, {}, file).config
    assert own.http_token_file == token
    assert (own.advertise, own.log_file) == (HostPort("192.0.2.7", 0), None)


def test_what_a_worker_told_is_for_everybody_until_users_are_asked_for(
    reactor: Any, leader: Leader
) -> None:
    for port, process in zip((9886, 9896), reactor.started, strict=True):
        process.listen(port)
    assert leader._front._is_open
    user = leader._config.data / "user.json"
    user.write_text('{"username": "root", "password": "root-secret"}')
    leader._environment["TIDEGATE_AUTHENTICATION"] = "true"
    leader._environment["TIDEGATE_INITIAL_USER_FILE"] = str(user)
    leader.roll()
    assert not leader._front._is_open


def test_the_shared_http_port_asks_for_what_the_workers_let_people_in_by(
    http: Leader, tmp_path: Path
) -> None:
    assert http.http is not None
    assert http.http._door.challenge.startswith("Bearer")
    user = tmp_path / "user.json"
    user.write_text('{"username": "root", "password": "root-secret"}')
    http._environment["TIDEGATE_AUTHENTICATION"] = "true"
    http._environment["TIDEGATE_INITIAL_USER_FILE"] = str(user)
    http.roll()
    assert http.http._door.challenge.startswith("Basic")


def test_how_long_requests_may_be_counts_for_the_leader_too(reactor: Any, leader: Leader) -> None:
    for port, process in zip((9886, 9896), reactor.started, strict=True):
        process.listen(port)
    longer = (20 * 1024**2).to_bytes(4)
    assert connected(reactor, longer).disconnecting
    leader._environment["TIDEGATE_MAX_FRAME_SIZE"] = "32MiB"
    leader.roll()
    assert not connected(reactor, longer).disconnecting
    assert leader._front._to_workers.max_frame_size == 32 * 1024**2


def test_a_start_may_be_long(reactor: Any, leader: Leader) -> None:
    for _ in range(2 * TIMES_UNTIL_KILLED):
        tick(reactor)
    assert [process.signals for process in reactor.started] == [[], []]


def test_a_leader_that_slept_kills_nobody(reactor: Any, leader: Leader) -> None:
    one, other = reactor.started
    one.listen(9886)
    other.listen(9896)
    reactor.advance(86_400)
    tick(reactor, one, other)
    assert (one.signals, other.signals) == ([], [])


def test_workers_begin_as_the_command_does(reactor: Any, leader: Leader) -> None:
    """A Ctrl-C at a terminal also reaches workers that still import their modules (see `gateway.__main__`). They must
    not import from the current folder, which may have a `gateway.py`."""
    begin = ["-P", "-m", "gateway", "serve"]
    assert [process.command[1:5] for process in reactor.started] == [begin] * 2


def test_what_every_worker_shows_is_no_change(reactor: Any, tmp_path: Path) -> None:
    logs: Any = SimpleNamespace(configure=lambda _: None)
    leader = Leader(Config(data=tmp_path, workers=2), reactor, {}, logs)
    leader.start()
    body = b"workers=2\nbrokerIP1=127.0.0.1\nmaxMessageSize=2048"
    (frame,) = FrameBuffer().feed(encode_command(RequestCode.UPDATE_BROKER_CONFIG, 1, body=body))
    leader._changed(decode_command(frame))
    assert leader._environment["TIDEGATE_MAX_MESSAGE_SIZE"] == "2KiB"


def test_one_that_a_damaged_file_killed_is_told_of(leader: Leader, reactor: Any) -> None:
    """The worker could not report that itself."""
    with capturedLogs() as events:
        reactor.started[0].end(signal=SIGBUS)
    [told] = [event for event in events if event["log_level"] is LogLevel.error]
    assert told["reason"] == DIED
