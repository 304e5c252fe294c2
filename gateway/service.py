"""Composition: builds the gateway from its parts, starts and stops it. The only file that knows every part."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from twisted.internet import error
from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from gateway.access.guard import Guard
from gateway.access.users import Users
from gateway.broker import Broker
from gateway.clients import Clients
from gateway.clock import Clock
from gateway.committer import Committer
from gateway.connections.connection import RemotingConnection, RemotingFactory
from gateway.connections.outgoing import Outgoing
from gateway.connections.tap import Tapping
from gateway.firing import Firing
from gateway.handlers.access_admin import AccessAdmin
from gateway.handlers.assignments import Assignments
from gateway.handlers.broker_admin import BrokerAdmin
from gateway.handlers.clients import ClientRequests
from gateway.handlers.connections import Connections
from gateway.handlers.group_admin import GroupAdmin
from gateway.handlers.manual_time import ManualTime
from gateway.handlers.name_server import NameServer
from gateway.handlers.offsets import Offsets
from gateway.handlers.ordered_pops import OrderedPops
from gateway.handlers.pop_acks import PopAcks
from gateway.handlers.pop_views import PopViews
from gateway.handlers.popping import Popping
from gateway.handlers.progress import GroupProgress
from gateway.handlers.pulling import Pulling
from gateway.handlers.queries import Queries
from gateway.handlers.recurring import RecurringRequests
from gateway.handlers.relays import Relays
from gateway.handlers.replies import Replies
from gateway.handlers.routing import Routing
from gateway.handlers.sending import Sending
from gateway.handlers.timer_orders import TimerOrders
from gateway.handlers.timers import Timers
from gateway.handlers.topic_admin import TopicAdmin
from gateway.handlers.transactions import Transactions
from gateway.housekeeping import Housekeeping
from gateway.intake import Intake, terms_of
from gateway.kv_config import KvConfig
from gateway.manual_clock import ClockError, clock_for
from gateway.monitoring.audit import AuditLog
from gateway.monitoring.logs import Logs
from gateway.monitoring.metrics import Metrics
from gateway.monitoring.service_manager import ServiceManager
from gateway.monitoring.stats import Statistics
from gateway.parked import ParkingLot
from gateway.pending.bulk import BulkChanges
from gateway.pending.messages import PendingMessages
from gateway.pending.pauses import Pauses
from gateway.pending.rescheduling import Rescheduling
from gateway.pops.consume_modes import ConsumeModes
from gateway.pops.orders import PopOrders
from gateway.pops.queues import PopQueues
from gateway.pops.waits import PopWaits
from gateway.process import (
    BACKLOG,
    NOT_READY,
    READY,
    ServeError,
    SettingsError,
    StartError,
    allow_open_files,
    announce,
    begin,
    cannot_listen,
    exit_status,
    reason_of,
    stop,
    stop_on_signals,
    tell_http,
)
from gateway.queue_locks import QueueLocks
from gateway.quotas import Quotas
from gateway.recurring.messages import RecurringMessages
from gateway.resets import Resets
from gateway.router import RequestError, Router, send_away
from gateway.routes import Handlers, routes
from gateway.settings.config import Config
from gateway.settings.loading import LEADER_VARIABLE
from gateway.settings.named_files import http_token, initial_user, no_user, tls_layers
from gateway.settings.values import HostPort
from gateway.topics import Groups, Topics
from gateway.web.doorkeeper import Doorkeeper
from gateway.web.port import BoundedSite, make_site
from gateway.web.site import Api
from gateway.web.table import compose, endpoints
from gateway.wire.access_bodies import UserInfo
from gateway.wire.addresses import VIP_CHANNEL_DISTANCE
from gateway.wire.commands import Command
from gateway.wire.messages import pack_host
from gateway.workers.siblings import SharedAddress, Siblings
from gateway.workers.worker_folders import check_folder_of_one
from recording.writer import Counts
from storage import INBOX_SIZE, DataFolderError, StorageError, Store, newest_stored_ms

MOST_PORTS_TRIED = 10
"""Free ports to try, where the system may choose the port, until the port of the VIP channel is free too."""

LONGEST_GOODBYE = 3.0
"""Seconds that a stopping gateway waits for clients to take their last answers."""

LEADER_LOOK_SECONDS = 1.0
"""Seconds between a worker's checks that its leader is still there. With each it writes a sign of life."""

GC_THRESHOLDS = (20_000, 1, 100)
"""Objects between two runs of the cycle collector over the latest of them; how many such runs precede one that also
looks at those that they have left; and how many of these precede one over all. The hot path makes no object that needs
it, and each run is a pause: of up to 1 ms, and 4 ms. With Python's own 10 of the first before one of the second, and
50,000 objects, that one took 60 ms, as where a tool asks for the progress of 50,000 groups."""


class Gateway:
    """A gateway on a reactor."""

    log = Logger()

    def __init__(
        self,
        config: Config,
        reactor: Any,
        clock: Clock | None = None,
        logs: Logs | None = None,
        shared: SharedAddress | None = None,
    ) -> None:
        self.config = config
        self._reactor = reactor
        self._machine_clock = clock or Clock()
        self._logs = logs
        self._shared = shared
        self._workers = shared.workers if shared is not None else 1
        self._ports: list[Any] = []
        self._site: BoundedSite | None = None
        self._stopping = False
        self.trouble: str | None = None
        """Why the gateway stops by itself, in a line that says what to do."""
        self.port = 0
        self.http_port = 0

    def start(self) -> None:
        """Open the data folder and listen.

        :raises StartError: when one of the two fails.
        """
        config = self.config
        self._layers = tls = tls_layers(config, self._reactor)
        initial, token = initial_user(config), http_token(config)
        try:
            store = Store(
                config.data,
                terms_of,
                sync=config.flush == "sync",
                map_size=config.map_size_initial,
                # Workers share the memory as they share the messages: each inbox covers the same time as a lone
                # gateway's would.
                inbox_size=INBOX_SIZE // self._workers,
            )
        except DataFolderError as failure:
            raise StartError(str(failure)) from failure
        self._store = store
        if store.upgraded is not None:
            self.log.info("{upgraded}", upgraded=store.upgraded)
        if store.log_trouble is not None:
            self.log.error("{trouble}", trouble=store.log_trouble)
        with ExitStack() as opened:
            opened.callback(store.close)
            try:
                self._clock = clock_for(
                    store, manual=config.clock == "manual", clock=self._machine_clock
                )
                self._clock.continue_from(newest_stored_ms(store))
            except ClockError as failure:
                raise SettingsError(str(failure)) from failure
            except DataFolderError as failure:
                raise StartError(str(failure)) from failure
            users = self._users(store, initial)
            self.factory = RemotingFactory(
                self._reactor, self._on_command, self._on_disconnect, config, tls
            )
            self._listen()
            opened.pop_all()
        self._compose(store, users)
        self._start_http(users, token)

    def _users(self, store: Store, initial: UserInfo | None) -> Users:
        """Return the users. Create the first one if the settings name it and it does not exist.

        :raises SettingsError: when it cannot be created, or authentication is on and there is no user.
        """
        users = Users(store)
        if initial is not None and users.get(initial.username or "") is None:
            try:
                users.create(initial)
            except RequestError as failure:
                raise SettingsError(
                    f"initial_user_file = {self.config.initial_user_file}: {failure.remark}"
                ) from failure
        elif self.config.authentication and not users:
            raise no_user(self.config.data)
        return users

    def _listen(self) -> None:
        """Listen, on the VIP channel too. The advertised address may depend on the port that is really bound."""
        host, asked_port = self.config.listen
        try:
            self._ports.append(self._listen_at(host, asked_port))
        except error.CannotListenError as failure:
            raise cannot_listen(failure, "listen", self.config.listen) from failure
        has_vip_port = self._ports[0].getHost().port > VIP_CHANNEL_DISTANCE
        if self.config.vip_channel and has_vip_port:
            self._listen_on_vip_channel(host, asked_port)
        self.port = self._ports[0].getHost().port
        self.advertised = self.config.advertised(self.port)

    def _listen_on_vip_channel(self, host: str, asked_port: int) -> None:
        """Listen on the VIP channel. Where any port will do, exchange it for another while its VIP port is taken."""
        for _ in range(MOST_PORTS_TRIED if asked_port == 0 else 1):
            vip_port = self._ports[0].getHost().port - VIP_CHANNEL_DISTANCE
            try:
                self._ports.append(self._listen_at(host, vip_port))
                return
            except error.CannotListenError as failure:
                taken = failure
            if asked_port == 0:
                other = self._listen_at(host, 0)
                self._ports.pop().stopListening()
                self._ports.append(other)
        if self.config.vip_channel_required:
            self._ports.pop().stopListening()
            raise cannot_listen(taken, "vip_channel", HostPort(host, vip_port), "false") from taken
        self.log.warn(
            "not listening on {port}, the VIP channel of old clients: {reason}; free that port, or set "
            "vip_channel = false",
            port=vip_port,
            reason=reason_of(taken),
        )

    def _listen_at(self, host: str, port: int) -> Any:
        return self._reactor.listenTCP(port, self.factory, backlog=BACKLOG, interface=host)

    def _start_http(self, users: Users, token: str | None) -> None:
        """Serve HTTP (metrics, health, API), if the settings ask for it."""
        config = self.config
        address = config.http
        if address is None:
            return
        key = self._shared.key.encode() if self._shared is not None else None
        doorkeeper = Doorkeeper(config, users, token, key)
        connections = partial(len, self.factory.connections)
        metrics = Metrics(self.broker, connections, lambda: self.recorded, self.not_ready)
        web = compose(
            *(self.broker, self._pending, self._rescheduling, self._bulk, self._pauses),
            *(self._reactor, self._sending.send),
            not_ready=self.not_ready,
            connections=connections,
        )
        api = Api(
            *(endpoints(web), doorkeeper, self._clock, lambda: self._stopping),
            *(self.broker.audit.acting, self.broker.committer.settle),
        )
        layers = self._layers if config.http_tls else None
        site = make_site(config, metrics.pieces, self.not_ready, api, self._reactor, layers)
        try:
            port = self._reactor.listenTCP(address.port, site, interface=address.host)
        except error.CannotListenError as failure:
            self.stop()
            raise cannot_listen(failure, "http", address) from failure
        self.broker.follow(site.configure)
        self._site = site
        self._ports.append(port)
        self.http_port = port.getHost().port

    @property
    def recorded(self) -> Counts:
        """Counts of the traffic that the tap recorded."""
        return self._tapping.counts

    def not_ready(self) -> list[str]:
        """Return the reasons why no traffic should come to this gateway; an empty list when it is ready."""
        reasons = {
            "stopping": self._stopping,
            "the last batch could not be stored": self.broker.committer.failing,
            "the data folder was moved or deleted": self._store.environment.is_away,
            "the disk has less than disk_reserve free: sends are refused": self.broker.intake.disk_full,
        }
        return [reason for reason, is_so in reasons.items() if is_so]

    def _compose(self, store: Store, users: Users) -> None:
        config, clock, reactor = self.config, self._clock, self._reactor
        host = pack_host(*self.advertised)
        outgoing = Outgoing(reactor)
        parked = ParkingLot(reactor)
        topics, groups = Topics(store, config), Groups(store, config)
        kv, modes, orders = KvConfig(store), ConsumeModes(store), PopOrders(store)
        locks, resets = QueueLocks(store, reactor.seconds), Resets(store)
        audit = AuditLog(config, clock, lambda: store.has_changes)
        firing = Firing(clock, store)
        committer = Committer(
            reactor,
            clock,
            store,
            firing,
            parked,
            self.factory.unwritten,
            (clock, topics, groups, kv, users, modes, orders, locks, resets),
            audit,
            self._give_up,
            config.commit_wait.total_seconds(),
        )
        quotas = Quotas(store, config, reactor.seconds)
        intake = Intake(store, clock, firing, quotas, audit, config, host)
        recurring = RecurringMessages(
            store, clock, intake, topics, audit, config, committer.once_stored
        )
        firing.recur(recurring)
        self.broker = broker = Broker(
            config=config,
            clock=clock,
            store=store,
            topics=topics,
            groups=groups,
            outgoing=outgoing,
            clients=Clients(outgoing, reactor),
            parked=parked,
            committer=committer,
            firing=firing,
            quotas=quotas,
            intake=intake,
            recurring=recurring,
            stats=Statistics(
                store,
                clock.now_ms,
                lambda: int(reactor.seconds() * 1000),
                config.cluster_name,
                lambda: firing.fired,
            ),
            audit=audit,
            resets=resets,
            orders=orders,
            kv=kv,
            modes=modes,
            advertised=self.advertised,
            host=host,
            workers=self._workers,
        )
        self._tapping = Tapping(reactor, self.factory)
        for part in (
            topics,
            groups,
            parked,
            outgoing,
            quotas,
            intake,
            recurring,
            self.factory,
            self._tapping,
        ):
            broker.follow(part.configure)
        self._pending = pending = PendingMessages(broker)
        self._rescheduling = rescheduling = Rescheduling(broker, pending)
        self._bulk = bulk = BulkChanges(pending, rescheduling)
        self._pauses = pauses = Pauses(broker)
        timer_orders = TimerOrders(broker, pending, rescheduling)
        clients = ClientRequests(broker, reactor, locks)
        self._sending = sending = Sending(broker, timer_orders, locks.has_locks)
        transactions = Transactions(broker)
        pop_queues, pop_waits = PopQueues(broker), PopWaits(parked, reactor)
        ordered_pops = OrderedPops(broker)
        pop_acks = PopAcks(broker, ordered_pops)
        shared = self._shared
        siblings = Siblings(config, reactor, outgoing, shared) if shared is not None else None
        handlers = Handlers(
            routing=Routing(broker),
            clients=clients,
            sending=sending,
            pulling=Pulling(broker, reactor),
            popping=Popping(broker, pop_queues, pop_waits),
            pop_acks=pop_acks,
            pop_views=PopViews(broker, pop_queues, pop_waits),
            assignments=Assignments(broker, siblings),
            offsets=Offsets(broker),
            timers=Timers(broker, pending, rescheduling, bulk, pauses, reactor),
            recurring=RecurringRequests(broker, reactor),
            manual_time=ManualTime(broker, reactor),
            transactions=transactions,
            replies=Replies(broker, sending),
            queries=Queries(broker),
            relays=Relays(broker),
            names=NameServer(broker),
            topic_admin=TopicAdmin(broker, reactor),
            group_admin=GroupAdmin(broker, reactor),
            connections=Connections(broker, reactor),
            progress=GroupProgress(broker, reactor),
            broker_admin=BrokerAdmin(broker),
            access=AccessAdmin(broker, users),
        )
        gate = Guard(broker, users, shared) if config.authentication else None
        self._router = Router(routes(handlers), audit, gate)
        broker.follow(self._router.configure)
        if self._logs is not None:
            self._logs.actor = lambda: audit.actor
            broker.follow(self._logs.configure)
        self._housekeeping = Housekeeping(
            reactor, broker, self.factory, transactions, pop_acks, ordered_pops, locks
        )
        self._housekeeping.start()
        committer.start()
        committer.settle()

    def stop(self) -> Deferred[None]:
        """Finish what is under way: commit and answer accepted requests, answer waiting pulls, and answer requests that
        still arrive with GO_AWAY. Fires when the clients have their answers, at the latest after `LONGEST_GOODBYE`,
        and the folder is closed."""
        self._stopping = True
        for port in self._ports:
            port.stopListening()
        synced = self._housekeeping.stop()
        self.broker.parked.release_all()
        self.broker.outgoing.stop()
        self.broker.committer.stop()
        leaving = [self.factory.close_all()]
        if self._site is not None:
            leaving.append(self._site.close_all())
        gone: Deferred[Any] = DeferredList(leaving, consumeErrors=True)
        gone.addTimeout(LONGEST_GOODBYE, self._reactor)
        gone.addBoth(lambda _: self._tapping.stop())
        gone.addBoth(lambda _: synced)
        gone.addBoth(lambda _: self._close())
        return gone

    def _give_up(self, reason: str) -> None:
        """Stop the gateway so that it is started again; as it is, it would refuse every request."""
        if self.trouble is None:
            self.trouble = f"{reason}; everything that was acknowledged is there when the gateway is started again"
            self.log.critical("the gateway ends: {trouble}", trouble=self.trouble)
            stop(self._reactor)

    def _close(self) -> None:
        try:
            self._store.close()
        except StorageError as failure:
            self.log.error(
                "the data folder could not be closed, and the next start recovers it as after a kill: {error}",
                error=str(failure),
            )
        finally:
            self.broker.audit.close()

    def _on_command(self, command: Command, connection: RemotingConnection) -> None:
        if command.is_response:
            self.broker.outgoing.answered(command, connection)
        elif not self._stopping:
            self._router.dispatch(command, connection)
            self.broker.committer.settle()
        else:
            send_away(command, connection)

    def _on_disconnect(self, connection: RemotingConnection) -> None:
        self.broker.outgoing.disconnected(connection)
        self.broker.clients.disconnected(connection)


def run(config: Config) -> int:
    """Serve until stopped, and return the process's exit status."""
    return exit_status(partial(_serve, config))


def _serve(config: Config) -> None:
    check_folder_of_one(config)
    reactor, logs = begin(config)
    gateway = Gateway(config, reactor, logs=logs, shared=SharedAddress.of(os.environ))
    allow_open_files(config)
    gateway.start()
    # Set up before the gateway announces that it serves. A terminal that is closed sends SIGHUP, also to the workers of
    # a leader, which restarts them one by one then.
    if LEADER_VARIABLE in os.environ:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop_on_signals(reactor, signal.SIGHUP)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    announce(
        config,
        f"listening on {HostPort(config.listen.host, gateway.port)}, clients are told {gateway.advertised}, "
        f"data in {config.data.absolute()}",
    )
    if config.clock == "manual":
        announce(
            config,
            "the clock stands still until 'tidegate clock advance' or 'tidegate clock set' moves it",
        )
    if config.http is not None:
        tell_http(config, gateway.http_port)
    manager = ServiceManager()
    manager.ready(f"clients are told {gateway.advertised}", reactor)
    reactor.addSystemEventTrigger("before", "shutdown", manager.stopping)
    reactor.addSystemEventTrigger("before", "shutdown", gateway.stop)
    if LEADER_VARIABLE in os.environ:
        _follow(reactor, int(os.environ[LEADER_VARIABLE]), gateway.not_ready)
    reactor.run(installSignalHandlers=False)
    if gateway.trouble is not None:
        raise ServeError(gateway.trouble)


def _follow(reactor: Any, leader: int, not_ready: Callable[[], list[str]]) -> None:
    """Stop when the leader's process is gone, however it ended. Until then write a byte to standard output every
    `LEADER_LOOK_SECONDS`: it shows that the reactor runs, and whether traffic should come."""
    output = sys.stdout.fileno()
    os.set_blocking(output, False)

    def look() -> None:
        if os.getppid() == leader:
            # The pipe may be full: a leader that has not read for long needs no further byte.
            with suppress(OSError):
                os.write(output, NOT_READY if not_ready() else READY)
            reactor.callLater(LEADER_LOOK_SECONDS, look)
        else:
            stop(reactor)

    reactor.callWhenRunning(look)
