"""Settings of the network: how clients and operators reach the gateway, and TLS."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final, Literal

from gateway.settings.fields import SettingsGroup, setting
from gateway.settings.values import (
    LONGEST,
    Address,
    AdvertisedAddress,
    Count,
    Duration,
    HostPort,
    Kind,
    OptionalAddress,
    OptionalFile,
    Switch,
)

_NETWORK: Final = "Network"
_TLS: Final = "TLS"

DEFAULT_PORT: Final = 9876
WORKER_PORT_DISTANCE: Final = 10
"""Distance between the ports of two workers, and from the shared port to the first worker's. It leaves room for their
VIP channels."""


class NetworkSettings(SettingsGroup):
    """Settings of the network: how clients and operators reach the gateway, and TLS."""

    listen: Address = setting(
        HostPort("127.0.0.1", DEFAULT_PORT),
        _NETWORK,
        "Address to listen on. The gateway is name server and broker in one. Port 0 picks a free port.",
        upstream="listenPort",
    )
    advertise: AdvertisedAddress = setting(
        None,
        _NETWORK,
        "IPv4 address that clients are told to connect to. Without a port, or with port 0, the listening port "
        "is added. If not set, it is the listening address; it must be set if that is 0.0.0.0 or IPv6.",
        upstream="brokerIP1",
    )
    vip_channel: Switch = setting(
        True,
        _NETWORK,
        "Also listen on the listening port minus 2, where old clients send if their VIP channel is on. If "
        "that port is taken, the gateway starts without it and says so, unless this was explicitly set to "
        "true.",
    )
    http: OptionalAddress = setting(
        None,
        _NETWORK,
        "Address of the web console (/), the HTTP API (/api/v1), Prometheus metrics (/metrics) and health "
        "checks (/health, /ready). If not set, there is none. On other addresses than loopback, console and "
        "API require authentication or http_token_file; metrics and health checks are always open. Port 0 "
        "picks a free port, which is printed at start.",
    )
    max_connections: Count = setting(
        10_000,
        _NETWORK,
        "Maximum number of connections at a time; more are closed.",
        least=1,
        most=1_000_000,
        live=True,
    )
    max_http_connections: Count = setting(
        200,
        _NETWORK,
        "Maximum number of connections to the HTTP port at a time. A new one takes the place of the oldest one that "
        "waits for a request; while there is none, it is closed. A browser makes up to six. "
        "With several workers it counts for the shared HTTP port and for that of each worker.",
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
    workers: Count = setting(
        1,
        _NETWORK,
        "Number of processes that share the listening address. Each process uses one core, and is a broker of "
        "its own with its own port (the listening port plus 10, 20, ...), name and folder. Clients find all "
        "of them.",
        unit="processes",
        least=1,
        most=64,
    )
    tls: Annotated[
        Literal["disabled", "permissive", "enforcing"],
        Kind("disabled, permissive or enforcing", metavar="disabled|permissive|enforcing"),
    ] = setting(
        "permissive",
        _TLS,
        "Whether clients may, or must, use TLS. TLS and plain connections share the port: the first bytes "
        "tell which it is.",
        upstream="tls.server.mode",
    )
    tls_certificate: OptionalFile = setting(
        None,
        _TLS,
        "PEM file with the certificate, followed by its chain of CA certificates. It is read again when it "
        "changes. If not set, a self-signed certificate is made at start.",
        upstream="tls.server.certPath",
    )
    tls_key: OptionalFile = setting(
        None,
        _TLS,
        "PEM file with the certificate's private key, without a password. If not set, the key is in the "
        "certificate's file.",
        upstream="tls.server.keyPath",
    )
    tls_client_ca: OptionalFile = setting(
        None,
        _TLS,
        "PEM file with the CA certificates for client certificates. If set, every client that uses TLS needs "
        "a certificate from one of these CAs.",
        upstream="tls.server.trustCertPath",
    )
    http_tls: Switch = setting(
        False,
        _TLS,
        "Whether the HTTP port uses TLS only, with the same certificate.",
    )

    @property
    def vip_channel_required(self) -> bool:
        """Whether a taken VIP port is an error, which it is only when the channel was explicitly switched on."""
        return self.vip_channel and "vip_channel" in self.model_fields_set

    def advertised(self, bound_port: int) -> HostPort:
        """Return the address that clients are told, given the port that the gateway really listens on."""
        address = self.advertise or self.listen
        return address if self.advertise and address.port else HostPort(address.host, bound_port)
