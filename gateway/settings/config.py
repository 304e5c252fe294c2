"""All settings of the gateway in one model, and how they are shown.

`Config` is the frozen model that the rest of the program reads; `gateway.settings.loading` fills it. Each setting
stands once, in a file of this folder, with its type, default, unit, bounds and meaning. The flags, `tidegate config`
and the TOML sample are made from the model's fields, so a setting is added by adding its field there and nowhere else.

It depends on neither sockets, storage nor the command line.
"""

from __future__ import annotations

import ipaddress
import json
import textwrap
from dataclasses import dataclass
from typing import Final, Self

from pydantic import model_validator
from pydantic.fields import FieldInfo

from gateway.settings.access import AccessSettings
from gateway.settings.broker import BrokerSettings
from gateway.settings.fields import About
from gateway.settings.later import LaterSettings
from gateway.settings.limits import FRAME_ALLOWANCE, LimitSettings
from gateway.settings.network import WORKER_PORT_DISTANCE, NetworkSettings
from gateway.settings.records import RecordSettings
from gateway.settings.storage import StorageSettings
from gateway.settings.values import LONGEST_NAME, Kind, show_size
from gateway.wire.addresses import LAST_PORT, VIP_CHANNEL_DISTANCE

ENVIRONMENT_PREFIX: Final = "TIDEGATE_"


class Config(
    # Pydantic orders the fields from the last of these classes to the first.
    RecordSettings,
    LimitSettings,
    BrokerSettings,
    LaterSettings,
    StorageSettings,
    AccessSettings,
    NetworkSettings,
):
    """The settings in force; frozen.

    `load` builds it. It can also be built with keyword arguments; a wrong one raises pydantic's ValidationError.
    Durations are timedeltas, some with a property in whole ms beside it. Sizes are in bytes.
    """

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        listening = ipaddress.ip_address(self.listen.host)
        if self.advertise is None and (listening.is_unspecified or listening.version != 4):
            raise ValueError(
                f"listen = {self.listen} gives clients no address to connect to; "
                "set advertise to the IPv4 address that they reach this machine at"
            )
        if self.workers > 1:
            self._check_workers()
        self._check_http_port()
        if self.tls_key is not None and self.tls_certificate is None:
            raise ValueError(
                f"tls_key = {self.tls_key} has no certificate; set tls_certificate too"
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

    @property
    def is_api_closed(self) -> bool:
        """Whether console and API refuse everybody: other machines can reach them, and no credentials are set up."""
        if self.http is None or self.authentication or self.http_token_file is not None:
            return False
        return not ipaddress.ip_address(self.http.host).is_loopback

    def _check_workers(self) -> None:
        """Check that several workers can serve with these settings."""
        if self.tls == "enforcing":
            raise ValueError(
                f"tls = enforcing does not go with the address that workers = {self.workers} share, which has no TLS; "
                "set tls to permissive, or workers to 1"
            )
        if self.clock == "manual":
            raise ValueError(
                f"clock = manual would give each of workers = {self.workers} its own clock to move; set workers to 1"
            )
        if self.http is not None and self.http_tls and self.tls_client_ca is not None:
            raise ValueError(
                f"with http_tls and tls_client_ca, workers = {self.workers} would refuse the requests of the shared "
                "http port, which has no client certificate; set http_tls to false, or workers to 1"
            )
        most = LONGEST_NAME - len(f"-{self.workers - 1}")
        if len(self.broker_name) > most:
            raise ValueError(
                f"broker_name = {self.broker_name} has no room for the numbers of {self.workers} workers; "
                f"set it to a name of at most {most} letters"
            )
        self._check_last_ports()

    def _check_last_ports(self) -> None:
        distance = WORKER_PORT_DISTANCE * self.workers
        for name, address, added in (
            ("listen", self.listen, distance),
            ("advertise", self.advertise, distance),
            ("http", self.http, self.workers),
        ):
            if address is not None and address.port and address.port + added > LAST_PORT:
                raise ValueError(
                    f"workers = {self.workers} with {name} = {address} need ports up to {address.port + added}; "
                    f"set {name} to a port of at most {LAST_PORT - added}"
                )

    def _check_http_port(self) -> None:
        """Check that no port would be needed for HTTP and for clients: the start would say that somebody uses it."""
        listen, http = self.listen, self.http
        if http is None or not http.port or not listen.port:
            return
        hosts = [ipaddress.ip_address(address.host) for address in (listen, http)]
        if hosts[0] != hosts[1] and not any(host.is_unspecified for host in hosts):
            return
        own, more = [listen.port], 0
        if self.workers > 1:
            own = [listen.port + WORKER_PORT_DISTANCE * one for one in range(1, self.workers + 1)]
            more = self.workers
        # The address that workers share has no VIP channel.
        for_clients = {listen.port, *own}
        if self.vip_channel:
            for_clients |= {port - VIP_CHANNEL_DISTANCE for port in own}
        twice = for_clients.intersection(range(http.port, http.port + more + 1))
        if twice:
            workers = f"workers = {self.workers} with " if more else ""
            raise ValueError(
                f"{workers}listen = {listen} and http = {http} would need port {min(twice)} for both; "
                f"set http to a port past {max(own)}"
            )


@dataclass(frozen=True, slots=True)
class Description:
    """A setting as people and the command line see it."""

    name: str
    about: About
    kind: Kind
    meaning: str
    default: object

    @property
    def flag(self) -> str:
        """The flag on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable of the setting."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def is_switch(self) -> bool:
        """Whether the value is a boolean."""
        return isinstance(self.default, bool)

    def show(self, value: object) -> str:
        """Return a value as text; empty for a setting without a value."""
        return "" if value is None else self.kind.show(value)

    def plain(self, value: object) -> object:
        """Return a value for JSON: sizes in bytes, durations in seconds."""
        return None if value is None else self.kind.plain(value)


def _describe(name: str, field: FieldInfo) -> Description:
    about = next(entry for entry in field.metadata if isinstance(entry, About))
    kind = next(entry for entry in field.metadata if isinstance(entry, Kind))
    default = field.get_default(call_default_factory=True, validated_data={})
    return Description(name, about, kind, field.description or "", default)


def descriptions() -> dict[str, Description]:
    """Return every setting by name, in the order of the groups."""
    return {name: _describe(name, field) for name, field in Config.model_fields.items()}


def toml_sample(config: Config, *, chosen: frozenset[str] = frozenset()) -> str:
    """Return a TOML file that explains every setting. Settings in `chosen` are set, the others are commented out."""
    lines = [
        "# Settings of tidegate. Environment variables (TIDEGATE_LISTEN=...) and flags (--listen ...)",
        "# override this file. A setting that is commented out has its default, the value shown.",
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
