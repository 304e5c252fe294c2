"""Assembles the packets of RocketMQ servers' ports into connections and their frames."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import dpkt

from gateway.wire.addresses import show_address
from spark_jobs.errors import Damage
from spark_jobs.exchanges import Connection, Pairer
from spark_jobs.pcap import Packet
from spark_jobs.tcp import FrameScanner, Gap, Piece, Skipped, Stream

Address = tuple[bytes, int]
"""Address and port."""

_NO_STATIONS: Final = bytes(12)
"""Stands for the two addresses before the type of an Ethernet frame."""
_WITHOUT_LINK: Final = (dpkt.pcap.DLT_RAW, 101, 228, 229)
"""Link types of packets that begin with IP; the last two are LINKTYPE_IPV4 and LINKTYPE_IPV6."""
_TELLING: Final = dpkt.tcp.TH_SYN | dpkt.tcp.TH_RST
_port = struct.Struct(">H").pack


class Segment(NamedTuple):
    """A packet of a TCP connection: data, or the connection's beginning or reset."""

    sender: Address
    receiver: Address
    sequence: int
    acknowledged: int | None
    """The sender has received all bytes before this number; None without an acknowledgement."""
    flags: int
    data: bytes

    @property
    def key(self) -> bytes:
        """The key of the connection: the same in both directions, made of both addresses and ports."""
        low, high = sorted((self.sender, self.receiver))
        return b"".join((low[0], _port(low[1]), high[0], _port(high[1])))


class _Way:
    """One direction of a connection."""

    def __init__(self, first: int | None) -> None:
        self.first = first
        """Sequence number of its first byte; None if its beginning was not recorded."""
        self.stream = Stream(first)
        self.frames = FrameScanner(in_step=first is not None)


class _Connection:
    def __init__(self, number: int, server: Address, frames: Connection) -> None:
        self.number = number
        self.server = server
        self.frames = frames
        self.ways: dict[bool, _Way] = {}
        self.position = 0
        """The place of the last packet; `time_ns` is its time."""
        self.time_ns = 0

    def has_begun(self, sender: Address, first: int | None) -> bool:
        """Whether this is a repetition of a side's opening packet."""
        way = self.ways.get(sender != self.server)
        return way is not None and first is not None and way.first == first

    def is_answered(self, opening: Segment) -> bool:
        """Whether an opening packet is the server's answer to this connection's.

        If it answers another one, that was not recorded, and this connection has ended.
        """
        from_client = opening.sender != self.server
        if opening.acknowledged is None or from_client in self.ways:
            return False
        asked = self.ways.get(not from_client)
        return asked is None or asked.first in (None, opening.acknowledged)


class PacketReader:
    """Assembles the connections of one file and passes their frames to a `Pairer`.

    Connections do not depend on one another, so they may be read together or one after the other.

    :param name: the path of the file, with which the names of its connections begin.
    :param ports: the ports of servers. They choose the server of a connection whose opening was not
        recorded; without them it is the side with the lower port.
    """

    def __init__(self, name: str, pairer: Pairer, ports: frozenset[int] = frozenset()) -> None:
        self._name = name
        self._pairer = pairer
        self._ports = ports
        self._connections: dict[bytes, _Connection] = {}
        self._uses: dict[bytes, int] = {}
        self._number = 0

    def segment(self, position: int, time_ns: int, segment: Segment) -> None:
        """Take a segment. The segments of a connection must be in the order of the file."""
        key = segment.key
        opens = bool(segment.flags & dpkt.tcp.TH_SYN)
        first = (segment.sequence + 1) & 0xFFFFFFFF if opens else None
        known = self._connections.get(key)
        is_again = known is not None and known.has_begun(segment.sender, first)
        if known is not None and opens and not is_again and not known.is_answered(segment):
            self._end(known)
            known = None
        if known is None:
            known = self._connections[key] = self._open(key, segment, opens)
        if time_ns < known.time_ns:
            self._pairer.count("clock went back")
        known.position, known.time_ns = position, time_ns
        from_client = segment.sender != known.server
        way = known.ways.get(from_client)
        if way is None or (opens and not is_again):
            if not opens and segment.data:
                self._pairer.count("directions begun before the recording")
            way = known.ways[from_client] = _Way(first)
        other = known.ways.get(not from_client)
        if other is not None and segment.acknowledged is not None:
            pieces = other.stream.acknowledge(segment.acknowledged)
            self._tell(known, not from_client, other, pieces)
        if segment.data:
            at = (segment.sequence + opens) & 0xFFFFFFFF
            pieces = way.stream.add(at, segment.data, position, time_ns)
            self._tell(known, from_client, way, pieces)
        if segment.flags & dpkt.tcp.TH_RST:
            self._end(known)
            del self._connections[key]

    def end(self) -> None:
        """End all connections: the file ends, or no more of their segments follow."""
        for connection in self._connections.values():
            self._end(connection)
        self._connections.clear()
        self._uses.clear()

    def _open(self, key: bytes, segment: Segment, opens: bool) -> _Connection:
        sides = (segment.sender, segment.receiver)
        server = min(sides, key=lambda side: (side[1] not in self._ports, side[1]))
        if opens:
            answers = segment.flags & dpkt.tcp.TH_ACK
            server = segment.sender if answers else segment.receiver
        [client] = [side for side in sides if side != server] or [server]
        self._number += 1
        uses = self._uses[key] = self._uses.get(key, 0) + 1
        again = f"#{uses}" if uses > 1 else ""
        name = f"{self._name}#{_shown(client)}-{_shown(server)}{again}"
        frames = self._pairer.open(self._number, name, _shown(server))
        return _Connection(self._number, server, frames)

    def _end(self, connection: _Connection) -> None:
        for from_client, way in connection.ways.items():
            self._tell(connection, from_client, way, way.stream.end())
            for lost in way.frames.end():
                self._aside(connection, lost)
        connection.ways = {}
        self._pairer.close(connection.number)

    def _tell(
        self, connection: _Connection, from_client: bool, way: _Way, pieces: Iterable[Piece | Gap]
    ) -> None:
        """Pass on the frames that pieces of a stream complete."""
        for piece in pieces:
            if isinstance(piece, Gap):
                self._pairer.count("bytes that were not recorded", piece.size)
                for lost in way.frames.gap(piece.size):
                    self._aside(connection, lost)
                continue
            # A packet ends fewer frames than it has bytes, so each frame gets a place of its own.
            place = piece.position
            for one in way.frames.feed(piece.data):
                if isinstance(one, Skipped):
                    self._aside(connection, one)
                    continue
                self._pairer.frame(place, piece.time_ns, connection.frames, from_client, one)
                place += 1

    def _aside(self, connection: _Connection, what: Skipped) -> None:
        self._pairer.aside(connection.position, connection.frames.name, what.size, what.reason)


def told_segments(
    found: Iterable[Packet | Damage], ports: frozenset[int], pairer: Pairer
) -> Iterator[tuple[Packet, Segment] | None]:
    """Yield the segments of connections of servers, and None for each packet that has none to keep.

    All packets are counted. A packet that only acknowledges is not kept.
    """
    for one in found:
        if isinstance(one, Damage):
            pairer.aside(one.position, None, one.size, one.reason)
            yield None
            continue
        pairer.count("packets")
        if one.is_cut:
            pairer.count("packets of which the recorder kept only the beginning")
        segment = segment_of(one.link, one.data)
        if segment is None:
            pairer.count("packets of other protocols")
        elif ports and not {segment.sender[1], segment.receiver[1]} & ports:
            pairer.count("packets of other ports")
        elif segment.data or segment.flags & _TELLING:
            yield one, segment
            continue
        yield None


def _shown(address: Address) -> str:
    """Return host and port as people write them."""
    host, port = address
    return show_address(dpkt.utils.inet_to_str(host), port)


def segment_of(link: int, data: bytes) -> Segment | None:
    """Return the segment in a packet; None if it is not TCP, or not readable.

    :param link: the link type (LINKTYPE_).
    """
    try:
        if link == dpkt.pcap.DLT_LINUX_SLL:  # from the type on as in Ethernet, with VLAN tags too
            packet = dpkt.ethernet.Ethernet(_NO_STATIONS + data[14:]).data
        elif link == dpkt.pcap.DLT_LINUX_SLL2:
            packet = dpkt.ethernet.Ethernet(_NO_STATIONS + data[:2] + data[20:]).data
        elif link in (dpkt.pcap.DLT_NULL, dpkt.pcap.DLT_LOOP):
            packet = dpkt.loopback.Loopback(data).data
        elif link in _WITHOUT_LINK:
            packet = dpkt.ip.IP(data) if data[0] >> 4 == 4 else dpkt.ip6.IP6(data)
        else:
            packet = dpkt.ethernet.Ethernet(data).data
        segment = packet.data
        if not isinstance(segment, dpkt.tcp.TCP):
            return None
        return Segment(
            (packet.src, segment.sport),
            (packet.dst, segment.dport),
            segment.seq,
            segment.ack if segment.flags & dpkt.tcp.TH_ACK else None,
            segment.flags,
            bytes(segment.data),
        )
    except (dpkt.dpkt.Error, IndexError, AttributeError):
        return None
