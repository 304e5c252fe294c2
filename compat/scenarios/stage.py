"""The stage of a scenario: clients of one server, names of its own, and notes of what it sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from compat import normal
from compat.clients.cpp import CppClient
from compat.clients.driver import PATIENCE_S, ClientFailure, Driver, until
from compat.clients.go import GoClient
from compat.clients.java import OLD_VERSIONS, VERSIONS, JavaClient, Version
from compat.comparison import RACING
from compat.comparison import RAW as RAW_LANGUAGE
from compat.java_tools import Dashboard, Mqadmin
from compat.peers import Peer
from compat.scenarios.raw import RawClient, heartbeat
from gateway.wire.codes import RequestCode
from gateway.wire.commands import Command

JAVA5: Final = ("java-5.5.0",)
JAVA: Final = tuple(f"java-{version}" for version in VERSIONS)
OLD_JAVA: Final = tuple(f"java-{version}" for version in OLD_VERSIONS)
GO: Final = ("go",)
ABLE: Final = (*JAVA, *GO)
"""Clients that can do more than send messages and consume them by push."""
OFFICIAL: Final = (*ABLE, "cpp")
OFFICIAL_AND_OLD: Final = (*OFFICIAL, *OLD_JAVA)
RAW: Final = ("raw",)
MQADMIN: Final = ("mqadmin",)
DASHBOARD: Final = ("dashboard",)


_VERSION_OF: Final[Mapping[str, Version]] = {
    f"java-{version}": version for version in (*VERSIONS, *OLD_VERSIONS)
}


class Scenario(NamedTuple):
    """One promise: what a client does and sees."""

    name: str
    """Made from the names of file and function, such as `sending.one-message`."""
    promise: str
    clients: tuple[str, ...]
    act: Callable[[Stage], None]
    is_alone: bool
    """Whether it changes what other scenarios see, and therefore runs alone."""


SCENARIOS: Final[dict[str, Scenario]] = {}


def scenario(
    *clients: str, alone: bool = False
) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    """Register a function as a scenario for these clients. Its docstring is the promise."""

    def register(act: Callable[[Stage], None]) -> Callable[[Stage], None]:
        file = act.__module__.rpartition(".")[2]
        name = f"{file}.{act.__name__.replace('_', '-')}"
        promise = " ".join((act.__doc__ or "").split())
        SCENARIOS[name] = Scenario(name, promise, clients, act, alone)
        return act

    return register


@dataclass
class Stage:
    """A scenario's view of one server."""

    peer: Peer
    side: int
    """Which of the two servers it is, 0 or 1."""
    client: str
    tag: str
    drivers: Mapping[str, Driver]
    seen: dict[str, Any] = field(default_factory=dict)
    """By step: what was seen, made comparable."""
    codes: dict[str, int] = field(default_factory=dict)
    """By step, for the steps that are answers to raw requests: the request code."""
    _open: ExitStack = field(default_factory=ExitStack)

    def topic(self, name: str = "") -> str:
        """Return the name of a topic or group of this scenario's own."""
        return f"{self.tag}{name}"

    def wait_for_answers(self) -> None:
        """Wait until the clients have all the answers that are compared.

        Clients do not wait for each answer themselves, and then it would be chance whether it is
        recorded. A request that is never answered shows in the comparison.
        """
        if self.peer.questions is not None:
            self.peer.questions.wait_until_answered(
                self.tag, PATIENCE_S, but=RACING, not_of=RAW_LANGUAGE
            )

    def close(self) -> None:
        """Shut down the clients that were made here."""
        self._open.close()

    # --- clients

    def official(self) -> JavaClient | CppClient | GoClient:
        """Start the client of this run, for actions that all clients can do."""
        if self.client == "cpp":
            cpp = CppClient(self.peer.namesrv_text, driver=self._driver("cpp"))
            return self._open.enter_context(cpp)
        return self.able()

    def able(self, **options: Any) -> JavaClient | GoClient:
        """Start the client of this run, for actions that the C++ client cannot do."""
        if self.client == "go":
            driver = self._driver(f"go-{self.side}")
            return self._open.enter_context(
                GoClient(self.peer.namesrv_text, driver=driver, **options)
            )
        return self.java(**options)

    def java(self, **options: Any) -> JavaClient:
        """Start a Java client, of this run's version or else of the current one."""
        version = _VERSION_OF.get(self.client, VERSIONS[0])
        client = JavaClient(
            self.peer.namesrv_text, version, driver=self._driver(f"java-{version}"), **options
        )
        return self._open.enter_context(client)

    def _driver(self, name: str) -> Driver:
        driver = self.drivers[name]
        driver.start()  # if it has ended during another scenario
        return driver

    def raw(self) -> RawClient:
        """Open a connection to the broker."""
        return self._open.enter_context(RawClient(self.peer.broker))

    def raw_namesrv(self) -> RawClient:
        """Open a connection to the name server."""
        return self._open.enter_context(RawClient(self.peer.namesrv))

    def raw_direct(self) -> RawClient:
        """Open a connection to the broker past the recorder, for bytes that are no frame."""
        return self._open.enter_context(RawClient(self.peer.direct))

    def mqadmin(self) -> Mqadmin:
        """Start RocketMQ's own mqadmin."""
        return self._open.enter_context(Mqadmin(self.peer.namesrv_text))

    def dashboard(self) -> Dashboard:
        """Start the admin client as RocketMQ's dashboard uses it."""
        return self._open.enter_context(Dashboard(self.peer.namesrv_text))

    def make_group(self, group: str) -> None:
        """Create a group with its retry topic, and wait for the route to that topic.

        The Go client looks for the route when it starts, and again only after half a minute.
        """
        raw, names = self.raw(), self.raw_namesrv()
        raw.ask(RequestCode.HEART_BEAT, body=heartbeat(group, group, self.topic()))
        route = {"topic": f"%RETRY%{group}"}
        until(
            lambda: names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, route).code == 0,
            f"the retry topic of {group}",
        )
        raw.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": group, "consumerGroup": group})

    # --- what is seen

    def see(self, step: str, value: Any) -> None:
        """Note what a step saw: a structure of the drivers, the fields of an answer, or any plain value."""
        assert step not in self.seen, f"step {step} is there already"
        self.seen[step] = normal.normal(_plain(value))

    def ask(
        self,
        step: str,
        client: RawClient,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        version: int = 513,
    ) -> Command:
        """Send a raw request, and note the whole answer."""
        return self.note(step, code, client.ask(code, ext, body, version=version))

    def send(
        self,
        step: str,
        client: RawClient,
        topic: str,
        body: bytes = b"-",
        code: int = RequestCode.SEND_MESSAGE_V2,
        **ext: str,
    ) -> Command:
        """Send a message by a raw request, and note the whole answer."""
        return self.note(step, code, client.send(topic, body, code=code, **ext))

    def note(self, step: str, code: int, answer: Command) -> Command:
        """Note an answer to a request of that code."""
        assert step not in self.seen, f"step {step} is there already"
        self.seen[step] = normal.command(code, answer)
        self.codes[step] = code
        return answer

    def attempt(self, step: str, action: Callable[[], object]) -> None:
        """Note what an action returns, or the ClientFailure that it raises."""
        try:
            self.see(step, action())
        except ClientFailure as failure:
            self.see(step, failure)


def _plain(value: Any) -> Any:
    if isinstance(value, ClientFailure):
        # The text is the client's own, around the server's remark, which is compared elsewhere.
        return {"refused": value.code if value.code is not None else value.kind}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(_plain(each) for each in value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, msgspec.Struct):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    return value
