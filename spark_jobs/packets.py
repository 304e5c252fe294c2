"""Reads packet captures (pcap, pcapng) of ports where RocketMQ servers listen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import dpkt

from spark_jobs.errors import JobError
from spark_jobs.exchanges import Connection, Pairer
from spark_jobs.tcp import FrameScanner, Gap, Skipped, Stream

_CUT: Final = "the file ends within a packet"


class _Segment(NamedTuple):
    """A TCP segment. `sender` and `receiver` are address and port."""

    sender: tuple[bytes, int]
    receiver: tuple[bytes, int]
    sequence: int
    flags: int
    data: bytes


class _Way:
    """One direction of a connection."""

    def __init__(self, first: int | None) -> None:
        self.stream = Stream(first)
        self.frames = FrameScanner(in_step=first is not None)


class _Connection:
    def __init__(self, number: int, server: tuple[bytes, int], frames: Connection) -> None:
        self.number = number
        self.server = server
        self.frames = frames
        self.ways: dict[bool, _Way] = {}


class PacketReader:
    """Puts the connections of one file together and hands their frames to a `Pairer`.

    :param ports: where servers listen. Without any, a connection's server is who was connected to,
        or, where that was not seen, the side with the lower port.
    """

    def __init__(self, name: str, pairer: Pairer, ports: frozenset[int] = frozenset()) -> None:
        self._name = name
        self._pairer = pairer
        self._ports = ports
        self._connections: dict[frozenset[tuple[bytes, int]], _Connection] = {}
        self._number = 0

    def packet(self, position: int, time_ns: int, link: int, data: bytes) -> None:
        """Take a packet. `link` is the capture's link type."""
        self._pairer.count("packets")
        segment = _segment(link, data)
        if segment is None:
            self._pairer.count("packets of other protocols")
            return
        if self._ports and not {segment.sender[1], segment.receiver[1]} & self._ports:
            self._pairer.count("packets of other ports")
            return
        ends = frozenset((segment.sender, segment.receiver))
        opens = bool(segment.flags & dpkt.tcp.TH_SYN)
        known = self._connections.get(ends)
        if known is None or (opens and not segment.flags & dpkt.tcp.TH_ACK and known.ways):
            if known is not None:
                self._end(position, known)
            known = self._open(segment, opens)
            self._connections[ends] = known
        from_client = segment.sender != known.server
        way = known.ways.get(from_client)
        if way is None or opens:
            first = (segment.sequence + 1) & 0xFFFFFFFF if opens else None
            if not opens:
                self._pairer.count("directions begun before the recording")
            way = known.ways[from_client] = _Way(first)
        if segment.data:
            at = (segment.sequence + opens) & 0xFFFFFFFF
            for piece in way.stream.add(at, segment.data):
                self._piece(position, time_ns, known, from_client, way, piece)
        if segment.flags & dpkt.tcp.TH_RST:
            self._end(position, known)
            del self._connections[ends]

    def end(self, position: int) -> None:
        """The file ends."""
        for connection in self._connections.values():
            self._end(position, connection)
        self._connections.clear()

    def _open(self, segment: _Segment, opens: bool) -> _Connection:
        sides = (segment.sender, segment.receiver)
        server = min(sides, key=lambda side: (side[1] not in self._ports, side[1]))
        if opens:
            answers = segment.flags & dpkt.tcp.TH_ACK
            server = segment.sender if answers else segment.receiver
        self._number += 1
        name = f"{self._name}#{self._number}"
        frames = self._pairer.open(self._number, name, show_address(server))
        return _Connection(self._number, server, frames)

    def _end(self, position: int, connection: _Connection) -> None:
        for from_client, way in connection.ways.items():
            for piece in way.stream.end():
                self._piece(position, 0, connection, from_client, way, piece)
            for lost in way.frames.end():
                self._pairer.aside(position, connection.frames.name, lost.size, lost.reason)
        connection.ways = {}
        self._pairer.close(connection.number)

    def _piece(
        self,
        position: int,
        time_ns: int,
        connection: _Connection,
        from_client: bool,
        way: _Way,
        piece: bytes | Gap,
    ) -> None:
        if isinstance(piece, Gap):
            self._pairer.count("bytes that were not recorded", piece.size)
            found: Iterator[bytes | Skipped] = iter(way.frames.gap(piece.size))
        else:
            found = way.frames.feed(piece)
        for one in found:
            if isinstance(one, Skipped):
                self._pairer.aside(position, connection.frames.name, one.size, one.reason)
            else:
                at_ns = time_ns or self._last_ns
                self._pairer.frame(position, at_ns, connection.frames, from_client, one)
        self._last_ns = time_ns or self._last_ns

    _last_ns = 0


def read_packets(file: Path, ports: frozenset[int], pairer: Pairer) -> Iterator[None]:
    """Hand a file's frames to a pairer; stops behind each packet, for what is there to be taken.

    :raises JobError: when it is no packet capture.
    """
    reader = PacketReader(file.name, pairer, ports)
    with file.open("rb") as stream:
        position = 0
        try:
            packets = _open(stream)
            link = packets.datalink()
        except (ValueError, dpkt.dpkt.Error) as error:
            raise JobError(f"{file} is no packet capture: {error}") from error
        try:
            for seconds, data in packets:
                reader.packet(position, round(seconds * 1_000_000_000), link, data)
                position = stream.tell()
                yield
        except (dpkt.dpkt.Error, ValueError) as error:
            pairer.aside(position, None, file.stat().st_size - position, f"{_CUT}: {error}")
        reader.end(position)


def _open(stream: BinaryIO) -> Any:
    return dpkt.pcap.UniversalReader(stream)


def show_address(address: tuple[bytes, int]) -> str:
    """Host and port as people write them."""
    host, port = address
    if len(host) == 4:
        return f"{'.'.join(str(byte) for byte in host)}:{port}"
    return f"[{dpkt.utils.inet_to_str(host)}]:{port}"


def _segment(link: int, data: bytes) -> _Segment | None:
    try:
        if link == dpkt.pcap.DLT_LINUX_SLL:
            packet = dpkt.sll.SLL(data).data
        elif link == dpkt.pcap.DLT_LINUX_SLL2:
            packet = dpkt.sll2.SLL2(data).data
        elif link == dpkt.pcap.DLT_NULL:
            packet = dpkt.loopback.Loopback(data).data
        elif link in (dpkt.pcap.DLT_RAW, 101):
            packet = dpkt.ip.IP(data) if data[0] >> 4 == 4 else dpkt.ip6.IP6(data)
        else:
            packet = dpkt.ethernet.Ethernet(data).data
        segment = packet.data
        if not isinstance(segment, dpkt.tcp.TCP):
            return None
        return _Segment(
            (packet.src, segment.sport),
            (packet.dst, segment.dport),
            segment.seq,
            segment.flags,
            bytes(segment.data),
        )
    except (dpkt.dpkt.Error, IndexError, AttributeError):
        return None
