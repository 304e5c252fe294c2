"""Every setting of the gateway: its name, type, default, unit, bounds and meaning, once.

`Config` is the frozen model that the rest of the program reads. `load` fills it from command-line
flags, environment variables (`TIDEGATE_` and the setting's name in capitals), one TOML file and the
defaults, in that order of strength, and remembers where each value came from. The flags, `tidegate
config` and the TOML sample are made from the model's fields, so a setting is added by adding its
field here and nowhere else.

Knows nothing of sockets, storage or the command line.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from gateway.setting_values import (
    LONGEST,
    Address,
    AdvertisedAddress,
    Count,
    Duration,
    FilePath,
    HostPort,
    Hours,
    Kind,
    Levels,
    Name,
    OptionalAddress,
    OptionalFile,
    Size,
    Switch,
    parse_delay_levels,
    show_size,
)

ENVIRONMENT_PREFIX: Final = "TIDEGATE_"
FILE_VARIABLE: Final = "TIDEGATE_CONFIG"
"""Environment variable that names the TOML file; not itself a setting."""

LEADER_VARIABLE: Final = "TIDEGATE_LEADER_PID"
"""Environment variable by which one of several workers knows the process that started it (`gateway.workers`); not
itself a setting."""

SERVER_VARIABLE: Final = "TIDEGATE_SERVER"
"""Environment variable that names the gateway for the client commands; not itself a setting."""

DEFAULT_PORT: Final = 9876
VIP_CHANNEL_DISTANCE: Final = 2
"""Old clients send to the advertised port minus this (upstream: MixAll.brokerVIPChannel)."""

DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""Upstream's MessageStoreConfig.messageDelayLevel."""

CLIENT_VARIABLES: Final = (
    FILE_VARIABLE,
    LEADER_VARIABLE,
    SERVER_VARIABLE,
    "TIDEGATE_ACCESS_KEY",
    "TIDEGATE_SECRET_KEY",
)
"""Variables that are not settings; the last two are a user's credentials for the client commands."""

# Beside its body a message has a header and up to 32,767 bytes of properties, escaped as JSON text.
FRAME_ALLOWANCE: Final = 256 * 1024

# Variables that Kubernetes and Docker links set in containers beside a service named `tidegate`.
_INJECTED = re.compile(r"TIDEGATE_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP)(_\w+)?)?|NAME)")


class ConfigError(Exception):
    """A setting that cannot be used.

    The text is one line: the setting, its value, where that came from and the fix.
    """


@dataclass(frozen=True, slots=True)
class About:
    """What a person should know of one setting beside its meaning."""

    group: str
    unit: str = ""
    upstream: str = ""
    """Name of RocketMQ's own setting of the same meaning, if it has one."""
    least: object = None
    most: object = None
    live: bool = False
    """Whether it can be changed while the gateway serves."""


def _default_data() -> Path:
    return platformdirs.user_data_path("tidegate")


def setting(
    default: Any,
    group: str,
    meaning: str,
    *,
    unit: str = "",
    upstream: str = "",
    least: Any = None,
    most: Any = None,
    live: bool = False,
) -> Any:
    """One setting's field: its default (or a function that makes it), its place and its meaning."""
    field: FieldInfo = (
        Field(default_factory=default, description=meaning, ge=least, le=most)
        if callable(default)
        else Field(default, description=meaning, ge=least, le=most)
    )
    field.metadata.append(About(group, unit, upstream, least, most, live))
    return field


# --- the settings ---------------------------------------------------------------------------------

_NETWORK = "Network"
_TLS = "TLS"
_ACCESS = "Access"
_STORAGE = "Storage"
_LATER = "Messages for later"
_BROKER = "Broker"
_TRANSACTIONS = "Transactions and replies"
_LIMITS = "Limits"
_CAPTURE = "Recorded traffic"
_LOGS = "Logs"


class Config(BaseModel):
    """The settings in force; frozen.

    Built by `load`, or directly with keyword arguments, where a wrong one raises pydantic's
    ValidationError. Durations are timedeltas, each with a property in whole ms beside it; sizes are
    bytes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    listen: Address = setting(
        HostPort("127.0.0.1", DEFAULT_PORT),
        _NETWORK,
        "Address to answer on, as name server and broker in one. Port 0 picks a free one.",
        upstream="listenPort",
    )
    advertise: AdvertisedAddress = setting(
        None,
        _NETWORK,
        "Address that clients are told to connect to; IPv4. Without a port, or with port 0: the "
        "port listened on. When left out: the listening address, so it must be given when that is "
        "0.0.0.0 or IPv6.",
        upstream="brokerIP1",
    )
    vip_channel: Switch = setting(
        True,
        _NETWORK,
        "Also answer on the listening port minus 2, where old clients with their VIP channel on "
        "send. When that port is taken, serving goes on without it and says so, unless this was "
        "set to true by hand.",
    )
    http: OptionalAddress = setting(
        None,
        _NETWORK,
        "Address of the console (/), the HTTP API (/api/v1), metrics for Prometheus (/metrics) and health checks "
        "(/health, /ready). When left out: none. On other addresses than loopback, console and API "
        "need authentication or http_token_file; metrics and checks are open everywhere. Port 0 "
        "picks a free one, printed at start.",
    )
    max_connections: Count = setting(
        10_000,
        _NETWORK,
        "Connections at a time; further ones are closed.",
        least=1,
        most=1_000_000,
        live=True,
    )
    connection_idle: Duration = setting(
        timedelta(seconds=120),
        _NETWORK,
        "A connection silent for this long is closed. Clients send a heartbeat every 30 s.",
        unit="seconds",
        upstream="serverChannelMaxIdleTimeSeconds",
        least=timedelta(seconds=1),
        most=LONGEST,
        live=True,
    )

    tls: Annotated[
        Literal["disabled", "permissive", "enforcing"],
        Kind("disabled, permissive or enforcing", metavar="disabled|permissive|enforcing"),
    ] = setting(
        "permissive",
        _TLS,
        "Whether clients may, or must, use TLS. It is on the same port: what a connection begins with tells.",
        upstream="tls.server.mode",
    )
    tls_certificate: OptionalFile = setting(
        None,
        _TLS,
        "PEM file with the certificate, followed by those that vouch for it. It is read again when it "
        "changes. When left out, one is made at start that nobody vouches for.",
        upstream="tls.server.certPath",
    )
    tls_key: OptionalFile = setting(
        None,
        _TLS,
        "PEM file with the certificate's key, without a password. When left out: it is in the "
        "certificate's file.",
        upstream="tls.server.keyPath",
    )
    tls_client_ca: OptionalFile = setting(
        None,
        _TLS,
        "PEM file with the authorities for clients' certificates. When given, every client that uses "
        "TLS needs a certificate from one of them.",
        upstream="tls.server.trustCertPath",
    )

    authentication: Switch = setting(
        False,
        _ACCESS,
        "Whether every request must be signed by a user. Users are kept in the data folder and "
        "managed with mqadmin (createUser and its like).",
        upstream="authenticationEnabled",
    )
    http_tls: Switch = setting(
        False,
        _TLS,
        "Whether the HTTP port speaks TLS, and nothing else, with the same certificate.",
    )
    http_token_file: OptionalFile = setting(
        None,
        _ACCESS,
        "File with a token of 16 letters or more that every request of the HTTP API must bring. "
        "Where requests must be signed by users, their keys count instead.",
    )
    authorization: Switch = setting(
        False,
        _ACCESS,
        "Whether users may do only what their policies permit (mqadmin createAcl and its like). "
        "Super users may do everything. It needs authentication.",
        upstream="authorizationEnabled",
    )
    initial_user_file: OptionalFile = setting(
        None,
        _ACCESS,
        'JSON file with the super user to begin with, {"username": "...", "password": "..."}. It is '
        "made at start unless there is a user of that name.",
    )

    data: FilePath = setting(
        _default_data,
        _STORAGE,
        "Folder that holds everything that was accepted. Made when it is missing; used by one "
        "gateway at a time.",
        upstream="storePathRootDir",
    )
    flush: Annotated[Literal["sync", "async"], Kind("sync or async", metavar="sync|async")] = (
        setting(
            "sync",
            _STORAGE,
            "sync: a send is answered when it is on disk. async: it is answered sooner and reaches "
            "the disk soon after; a power cut can take back what was accepted last, a killed "
            "process cannot.",
            upstream="flushDiskType",
        )
    )
    workers: Count = setting(
        1,
        _NETWORK,
        "Processes that share the listening address. Each is a broker of its own, with a port (the "
        "listening port plus 10, 20, ...), a name and a folder; clients find all of them. One uses "
        "one core.",
        unit="processes",
        least=1,
        most=64,
    )
    commit_wait: Duration = setting(
        timedelta(milliseconds=2),
        _STORAGE,
        "How long a commit may wait for the senders that the one before it answered: they are "
        "likely to send again, and one commit for all of them is cheaper. A single sender never "
        "waits.",
        unit="duration",
        least=timedelta(0),
        most=timedelta(seconds=1),
    )
    retention_hours: Hours = setting(
        72.0,
        _STORAGE,
        "How long fired and aborted messages stay readable and findable. Unfired ones are kept "
        "whatever their age.",
        unit="hours",
        upstream="fileReservedTime",
        least=0,
        most=876_000,
        live=True,
    )
    map_size_initial: Size = setting(
        1024**3,
        _STORAGE,
        "Address space first reserved for the data file (LMDB's map). The file itself grows only "
        "as it is used.",
        unit="bytes",
        least=1024**2,
        most=64 * 1024**4,
    )
    disk_reserve: Size = setting(
        512 * 1024**2,
        _STORAGE,
        "When the disk has less than this free, sends are refused and deliveries go on.",
        unit="bytes",
        least=0,
        most=64 * 1024**4,
        live=True,
    )

    delay_levels: Levels = setting(
        DEFAULT_DELAY_LEVELS,
        _LATER,
        "The delay of each level, level 1 first: whole numbers with the unit s, m, h or d.",
        upstream="messageDelayLevel",
        live=True,
    )
    max_delay: Duration = setting(
        timedelta(days=730),
        _LATER,
        "The furthest ahead that a message may be sent for; further ones are refused.",
        unit="seconds",
        upstream="timerMaxDelaySec",
        live=True,
        least=timedelta(seconds=1),
        most=LONGEST,
    )
    clock: Annotated[Literal["real", "manual"], Kind("real or manual", metavar="real|manual")] = (
        setting(
            "real",
            _LATER,
            "manual is for tests of your own programs: time stands still until 'tidegate clock' moves it. "
            "It needs a data folder of its own.",
        )
    )
    recall_enabled: Switch = setting(
        True,
        _LATER,
        "Whether clients may abort (recall) messages that have not fired.",
        upstream="recallMessageEnable",
        live=True,
    )

    recurring_max: Count = setting(
        10_000,
        _LATER,
        "Most recurring messages, paused ones too; further ones are refused.",
        least=0,
        most=10_000_000,
        live=True,
    )
    recurring_min_period: Duration = setting(
        timedelta(seconds=1),
        _LATER,
        "Shortest time from one occurrence of a recurring message to the next; what recurs more often is refused.",
        least=timedelta(milliseconds=1),
        most=LONGEST,
        live=True,
    )
    recurring_misfire_threshold: Duration = setting(
        timedelta(seconds=60),
        _LATER,
        "How late an occurrence of a recurring message may be and still count as in time; for what is later, its "
        "misfire policy decides (docs/recurring.md).",
        least=timedelta(0),
        most=LONGEST,
        live=True,
    )

    broker_name: Name = setting(
        "broker-a", _BROKER, "The broker's name in routes.", upstream="brokerName"
    )
    cluster_name: Name = setting(
        "DefaultCluster", _BROKER, "The cluster's name in routes.", upstream="brokerClusterName"
    )
    auto_create_topic: Switch = setting(
        True,
        _BROKER,
        "Whether the first send to an unknown topic creates it.",
        upstream="autoCreateTopicEnable",
        live=True,
    )
    default_topic_queues: Count = setting(
        8,
        _BROKER,
        "Most queues of a topic created by its first send; the client's own number counts when it "
        "is lower.",
        unit="queues",
        upstream="defaultTopicQueueNums",
        least=1,
        most=1024,
    )
    auto_create_group: Switch = setting(
        True,
        _BROKER,
        "Whether the first use of an unknown consumer group creates it.",
        upstream="autoCreateSubscriptionGroup",
        live=True,
    )

    property_filter: Switch = setting(
        True,
        _BROKER,
        "Whether consumers may select messages on their properties by SQL92 expressions.",
        upstream="enablePropertyFilter",
        live=True,
    )

    transaction_timeout: Duration = setting(
        timedelta(seconds=6),
        _TRANSACTIONS,
        "How long a transaction may be undecided until its producer is asked about it. A message "
        "may ask for a time of its own (CHECK_IMMUNITY_TIME_IN_SECONDS).",
        unit="seconds",
        upstream="transactionTimeOut",
        live=True,
        least=timedelta(milliseconds=1),
        most=LONGEST,
    )
    transaction_check_interval: Duration = setting(
        timedelta(seconds=30),
        _TRANSACTIONS,
        "Time from one such question to the next.",
        unit="seconds",
        upstream="transactionCheckInterval",
        live=True,
        least=timedelta(milliseconds=100),
        most=LONGEST,
    )
    transaction_check_max: Count = setting(
        15,
        _TRANSACTIONS,
        "Questions after which an undecided transaction is given up: its message goes to the topic "
        "TRANS_CHECK_MAX_TIME_TOPIC.",
        unit="questions",
        upstream="transactionCheckMax",
        live=True,
        least=0,
        most=1_000_000,
    )
    reject_transactions: Switch = setting(
        False,
        _TRANSACTIONS,
        "Whether transactional messages are refused.",
        upstream="rejectTransactionMessage",
        live=True,
    )
    store_replies: Switch = setting(
        True,
        _TRANSACTIONS,
        "Whether replies to requests are kept in the topic that they were sent to, beside being "
        "handed to whoever asked.",
        upstream="storeReplyMessageEnable",
        live=True,
    )

    max_held_messages: Count = setting(
        0,
        _LIMITS,
        "Most messages of one topic that wait for their time; further ones are refused. 0 is no limit. "
        "A topic's attribute max.held.messages counts instead.",
        unit="messages",
        live=True,
        least=0,
        most=10**15,
    )
    max_held_bytes: Size = setting(
        0,
        _LIMITS,
        "Most bytes of one topic's messages that wait for their time; further ones are refused. 0 is no "
        "limit. A topic's attribute max.held.bytes counts instead.",
        unit="bytes",
        live=True,
        least=0,
        most=1024**5,
    )
    max_send_rate: Count = setting(
        0,
        _LIMITS,
        "Most messages that one topic takes in a second; further ones are refused. 0 is no limit. "
        "A topic's attribute max.send.rate counts instead.",
        unit="messages a second",
        live=True,
        least=0,
        most=10**9,
    )
    max_message_size: Size = setting(
        4 * 1024**2,
        _LIMITS,
        "Largest body of a message; larger ones are refused.",
        unit="bytes",
        upstream="maxMessageSize",
        live=True,
        least=1024,
        most=1024**3,
    )
    max_frame_size: Size = setting(
        16 * 1024**2,
        _LIMITS,
        "Largest request as a whole; a connection that announces a larger one is closed.",
        unit="bytes",
        least=1024 + FRAME_ALLOWANCE,
        most=2 * 1024**3 - 1,
    )
    max_unfinished_bytes: Size = setting(
        256 * 1024**2,
        _LIMITS,
        "Bytes of requests that have not arrived whole, over all connections; past it the "
        "connections with the largest ones are closed.",
        unit="bytes",
        least=1024**2,
        most=64 * 1024**3,
    )
    max_unsent_bytes: Size = setting(
        64 * 1024**2,
        _LIMITS,
        "Bytes that wait for one client to read them; past it the connection is closed. While any wait, "
        "nothing more is read from it.",
        unit="bytes",
        live=True,
        least=1024**2,
        most=64 * 1024**3,
    )
    max_waiting_requests: Count = setting(
        100_000,
        _LIMITS,
        "Pulls and pops that wait for a message at a time, a pop once for each queue; further ones are "
        "refused and come back later.",
        unit="requests",
        upstream="maxPopPollingSize",
        live=True,
        least=1,
        most=100_000_000,
    )
    max_asked_clients: Count = setting(
        65_535,
        _LIMITS,
        "Requests that clients have been asked for others and have not answered, such as for a reply or "
        "for what a tool wants to know; further ones are refused.",
        unit="requests",
        upstream="clientAsyncSemaphoreValue",
        live=True,
        least=1,
        most=10_000_000,
    )
    max_pull_messages: Count = setting(
        32,
        _LIMITS,
        "Most messages in the answer to one pull.",
        unit="messages",
        upstream="maxTransferCountOnMessageInMemory",
        live=True,
        least=1,
        most=10_000,
    )
    max_pull_bytes: Size = setting(
        256 * 1024,
        _LIMITS,
        "Most bytes in the answer to one pull; one message is sent whatever its size.",
        unit="bytes",
        upstream="maxTransferBytesOnMessageInMemory",
        live=True,
        least=1024,
        most=1024**3,
    )

    capture: OptionalFile = setting(
        None,
        _CAPTURE,
        "Folder that everything clients and the gateway say to each other is recorded in, for "
        "tidegate ingest. When left out: nothing is. Passwords in requests of mqadmin are recorded too. "
        "While the disk has less than twice disk_reserve free, or is too slow, frames are left out.",
    )
    capture_active: Switch = setting(
        True,
        _CAPTURE,
        "Whether traffic is recorded now, where capture names a folder.",
        live=True,
    )
    capture_file_size: Size = setting(
        256 * 1024**2,
        _CAPTURE,
        "Size past which the next capture file begins; it also does after an hour.",
        unit="bytes",
        live=True,
        least=1024,
        most=64 * 1024**4,
    )
    capture_keep: Count = setting(
        0,
        _CAPTURE,
        "Capture files that are kept; the oldest are removed. 0 keeps all.",
        unit="files",
        live=True,
        least=0,
        most=1_000_000,
    )

    log_level: Annotated[
        Literal["debug", "info", "warn", "error"],
        Kind("debug, info, warn or error", metavar="debug|info|warn|error"),
    ] = setting(
        "info",
        _LOGS,
        "The least important events that are logged. With debug each request is a line. "
        "'tidegate log-level' changes it.",
        live=True,
    )
    log_format: Annotated[
        Literal["text", "logfmt", "json"],
        Kind("text, logfmt or json", metavar="text|logfmt|json"),
    ] = setting(
        "text",
        _LOGS,
        "How events are written: text for people, logfmt or json for programs, where each is one line with "
        "the request that it came of.",
    )
    log_file: OptionalFile = setting(
        None, _LOGS, "File that the log is appended to. When left out: standard error."
    )
    audit: Switch = setting(
        True,
        _LOGS,
        "Whether aborts, reschedules and changes by administrators are noted in audit.jsonl in the "
        "data folder; 'tidegate audit' shows them.",
    )
    audit_file_size: Size = setting(
        64 * 1024**2,
        _LOGS,
        "When that file is this large it is put aside as audit.jsonl.1, and a new one begun.",
        unit="bytes",
        least=1024,
        most=64 * 1024**3,
    )
    audit_files: Count = setting(
        8,
        _LOGS,
        "Such files that are kept; the oldest one goes.",
        unit="files",
        least=2,
        most=10_000,
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        listening = ipaddress.ip_address(self.listen.host)
        if self.advertise is None and (listening.is_unspecified or listening.version != 4):
            raise ValueError(
                f"listen = {self.listen} gives clients no address to connect to; "
                "set advertise to the IPv4 address that they reach this machine at"
            )
        if self.workers > 1 and self.tls == "enforcing":
            raise ValueError(
                f"workers = {self.workers} share an address that does not speak TLS; "
                "set tls to permissive, or workers to 1"
            )
        if self.workers > 1 and self.clock == "manual":
            raise ValueError(
                f"workers = {self.workers} would each have a clock to move; set workers to 1"
            )
        if self.tls_key is not None and self.tls_certificate is None:
            raise ValueError(
                f"tls_key = {self.tls_key} is the key of no certificate; set tls_certificate too"
            )
        if self.http_tls and self.tls == "disabled":
            raise ValueError("http_tls = true needs TLS; set tls to permissive or enforcing")
        if self.http_token_file is not None and self.authentication:
            raise ValueError(
                f"http_token_file = {self.http_token_file} would be no use: with authentication = true "
                "the HTTP API knows users by their keys; leave one of the two out"
            )
        if self.authorization and not self.authentication:
            raise ValueError(
                "authorization = true needs to know who asks; set authentication to true too"
            )
        if self.max_frame_size < self.max_message_size + FRAME_ALLOWANCE:
            raise ValueError(
                f"max_frame_size = {show_size(self.max_frame_size)} has no room for a message of "
                f"max_message_size = {show_size(self.max_message_size)}; "
                f"set it to {show_size(self.max_message_size + FRAME_ALLOWANCE)} or more"
            )
        return self

    @cached_property
    def delay_level_ms(self) -> tuple[int, ...]:
        """The delay of each level in ms; level 1 is the first."""
        return parse_delay_levels(self.delay_levels)

    @cached_property
    def max_delay_ms(self) -> int:
        """`max_delay` in ms."""
        return self.max_delay // timedelta(milliseconds=1)

    @cached_property
    def recurring_min_period_ms(self) -> int:
        """`recurring_min_period` in ms."""
        return self.recurring_min_period // timedelta(milliseconds=1)

    @cached_property
    def recurring_misfire_threshold_ms(self) -> int:
        """`recurring_misfire_threshold` in ms."""
        return self.recurring_misfire_threshold // timedelta(milliseconds=1)

    @cached_property
    def connection_idle_ms(self) -> int:
        """`connection_idle` in ms."""
        return self.connection_idle // timedelta(milliseconds=1)

    @cached_property
    def transaction_timeout_ms(self) -> int:
        """`transaction_timeout` in ms."""
        return self.transaction_timeout // timedelta(milliseconds=1)

    @cached_property
    def transaction_check_interval_ms(self) -> int:
        """`transaction_check_interval` in ms."""
        return self.transaction_check_interval // timedelta(milliseconds=1)

    @cached_property
    def commit_wait_ms(self) -> int:
        """`commit_wait` in ms."""
        return self.commit_wait // timedelta(milliseconds=1)

    @cached_property
    def retention_ms(self) -> int:
        """`retention_hours` in ms."""
        return int(self.retention_hours * 3_600_000)

    @property
    def vip_channel_required(self) -> bool:
        """Whether a taken VIP port is an error: only when the channel was asked for by hand."""
        return self.vip_channel and "vip_channel" in self.model_fields_set

    def advertised(self, bound_port: int) -> HostPort:
        """The address to tell clients, given the port that is really listened on."""
        address = self.advertise or self.listen
        return address if self.advertise and address.port else HostPort(address.host, bound_port)


# --- the settings as help, tables and files have them ---------------------------------------------


@dataclass(frozen=True, slots=True)
class Description:
    """One setting as a person or a command line sees it."""

    name: str
    about: About
    kind: Kind
    meaning: str
    default: object

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def is_switch(self) -> bool:
        return isinstance(self.default, bool)

    def show(self, value: object) -> str:
        """A value as text; nothing for a setting that is left out."""
        return "" if value is None else self.kind.show(value)

    def plain(self, value: object) -> object:
        """A value as JSON has it: sizes in bytes, durations in seconds."""
        return None if value is None else self.kind.plain(value)


def _describe(name: str, field: FieldInfo) -> Description:
    about = next(entry for entry in field.metadata if isinstance(entry, About))
    kind = next(entry for entry in field.metadata if isinstance(entry, Kind))
    default = field.get_default(call_default_factory=True, validated_data={})
    return Description(name, about, kind, field.description or "", default)


def descriptions() -> dict[str, Description]:
    """Every setting by name, in the order of their groups."""
    return {name: _describe(name, field) for name, field in Config.model_fields.items()}


def toml_sample(config: Config, *, chosen: frozenset[str] = frozenset()) -> str:
    """A TOML file that explains every setting; those in `chosen` are set, others commented out."""
    lines = [
        "# Settings of tidegate. Environment variables (TIDEGATE_LISTEN=...) and flags (--listen",
        "# ...) are stronger. A setting behind a # is left at its default, the value shown.",
    ]
    group = ""
    for entry in descriptions().values():
        if entry.about.group != group:
            group = entry.about.group
            lines += ["", f"# --- {group} " + "-" * (70 - len(group))]
        lines.append("")
        lines += [f"# {line}" for line in _wrapped(entry)]
        value = getattr(config, entry.name)
        text = entry.show(value)
        literal = text if entry.kind.bare else json.dumps(text, ensure_ascii=False)
        lines.append(f"{'' if entry.name in chosen else '# '}{entry.name} = {literal}")
    return "\n".join(lines) + "\n"


def _wrapped(entry: Description) -> list[str]:
    text = f"{entry.meaning} Write {entry.kind.expects}."
    if entry.about.upstream:
        text += f" RocketMQ: {entry.about.upstream}."
    return textwrap.wrap(text, 96)


# --- from flags, environment and file to one Config -----------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings in force and, for each that is not at its default, where its value came from."""

    config: Config
    origins: Mapping[str, str]


def load(
    flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None = None
) -> Loaded:
    """Settles every setting: `flags` over `environ` over the TOML file over defaults.

    `flags` goes by setting name; None counts as not given, and so does an empty environment
    variable. The file is `file` or else what TIDEGATE_CONFIG names; without either none is read.
    Raises ConfigError for an unreadable file, an unknown setting or a wrong value.
    """
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    if file is None and environ.get(FILE_VARIABLE):
        file = Path(environ[FILE_VARIABLE]).expanduser()
    if file is not None:
        _read_file(file, values, origins)
    _read_environment(environ, values, origins)
    for name, value in flags.items():
        if value is not None:
            values[name] = value
            origins[name] = "--" + name.replace("_", "-")
    try:
        return Loaded(Config.model_validate(values), origins)
    except ValidationError as error:
        raise ConfigError(_explain(error, values, origins)) from None


def changed(config: Config, values: Mapping[str, object]) -> Config:
    """The settings with other values for some of them, by name.

    Raises ConfigError where one has a wrong value, or does not fit with the others.
    """
    merged = {name: getattr(config, name) for name in config.model_fields_set} | dict(values)
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_explain(error, merged, dict.fromkeys(merged, "asked for"))) from None


def _read_file(file: Path, values: dict[str, object], origins: dict[str, str]) -> None:
    try:
        text = file.read_text("utf-8")
        table = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(
            f"cannot read the settings file {file}: {error.strerror}; check the path"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"cannot read the settings file {file}: it is not UTF-8 text; save it as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"cannot read the settings file {file}: it is not TOML: {error}; "
            "'tidegate config --toml' prints a sample"
        ) from None
    for key, value in table.items():
        name = key.replace("-", "_")
        line = re.search(rf"(?m)^\s*[\"']?{re.escape(key)}[\"']?\s*=", text)
        at = f", line {text.count(chr(10), 0, line.end()) + 1}" if line else ""
        if name not in Config.model_fields:
            raise ConfigError(_unknown(key, f"{file}{at}", isinstance(value, dict)))
        if isinstance(value, dict | list):
            raise ConfigError(
                f"{name} in {file}{at} is not a single value; "
                f"write {descriptions()[name].kind.expects}"
            )
        values[name] = value
        origins[name] = f"{file}{at}"


def _read_environment(
    environ: Mapping[str, str], values: dict[str, object], origins: dict[str, str]
) -> None:
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or not value:
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name in Config.model_fields:
            values[name] = value
            origins[name] = variable
        elif variable not in CLIENT_VARIABLES and not _INJECTED.fullmatch(variable):
            raise ConfigError(_unknown(name, f"the environment ({variable})"))


def _unknown(key: str, origin: str, is_table: bool = False) -> str:
    names = descriptions()
    upstream = {entry.about.upstream: name for name, entry in names.items() if entry.about.upstream}
    near = difflib.get_close_matches(key.replace("-", "_").lower(), names, 1)
    if key in upstream:
        fix = f"its name here is {upstream[key]}"
    elif near:
        fix = f"did you mean {near[0]}?"
    elif is_table:
        fix = "settings stand at the top of the file, not in sections"
    else:
        fix = "'tidegate config' lists them all"
    return f"unknown setting {key} in {origin}; {fix}"


def _explain(
    error: ValidationError, values: Mapping[str, object], origins: Mapping[str, str]
) -> str:
    """The first of the errors as one line."""
    problem = error.errors()[0]
    text = str(problem["ctx"]["error"]) if problem["type"] == "value_error" else ""
    if not problem["loc"]:
        return text
    name = str(problem["loc"][0])
    entry = descriptions()[name]
    if problem["type"] == "greater_than_equal":
        text = f"the least is {entry.show(entry.about.least)}"
    elif problem["type"] == "less_than_equal":
        text = f"the most is {entry.show(entry.about.most)}"
    return (
        f"{name} = {_one_line(values[name])} ({origins[name]}) is wrong: "
        f"{text + '; ' if text else ''}write {entry.kind.expects}"
    )


def _one_line(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= 80 else text[:77] + "..."
