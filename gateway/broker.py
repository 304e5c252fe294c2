"""What all handlers share: the settings and the parts of the gateway that hold state."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.clients import Clients
from gateway.clock import Clock
from gateway.committer import Committer
from gateway.config import Config, HostPort
from gateway.intake import Intake
from gateway.outgoing import Outgoing
from gateway.parked import ParkingLot
from gateway.topics import Groups, Topics
from storage import Store


@dataclass(slots=True)
class Broker:
    """A running gateway, without its sockets.

    `advertised` is the address that clients are told to connect to; `host` the same as records have it.
    """

    config: Config
    clock: Clock
    store: Store
    topics: Topics
    groups: Groups
    outgoing: Outgoing
    clients: Clients
    parked: ParkingLot
    committer: Committer
    intake: Intake
    advertised: HostPort
    host: bytes
