"""Reads packet capture files (pcap and pcapng): the packets of a whole file, or of a range of its bytes.

    pcap      24 bytes of head; then packets: seconds, fraction, bytes kept, original bytes (four
              numbers of 4 bytes), and the bytes that were kept
    pcapng    blocks: type, length, body, length again (numbers of 4 bytes, the body padded to 4)

Neither format marks where a packet begins. Reading a range starts at the first place where several
heads follow one another, which is only likely to be right. `survey` reads only the heads and finds
where the first packet of a range begins. That is certain once the range before it ends there. Reading
continues after damage in the same way, and the damage is returned with its place.

The formats are those of draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from spark_jobs.errors import Damage, JobError

Order = Literal["<", ">"]
_Words = NDArray[np.uint32]
_Mask = NDArray[np.bool_]

_PCAP_MAGICS: Final[dict[bytes, tuple[Order, int]]] = {
    bytes.fromhex("a1b2c3d4"): (">", 10**6),
    bytes.fromhex("d4c3b2a1"): ("<", 10**6),
    bytes.fromhex("a1b23c4d"): (">", 10**9),
    bytes.fromhex("4d3cb2a1"): ("<", 10**9),
}
_PCAP_HEAD: Final = 24
_PACKET_HEAD: Final = 16

_SECTION: Final = 0x0A0D0D0A
_INTERFACE: Final = 1
_OLD_PACKET: Final = 2
_SIMPLE_PACKET: Final = 3
_PACKET: Final = 6
_BLOCKS: Final = (_INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, 4, 5, _PACKET, _SECTION)
"""Types of blocks that count as found when blocks are searched."""
_BYTE_ORDER: Final = 0x1A2B3C4D
_LEAST_BLOCK: Final = 12
_LONGEST_BLOCK: Final = 16 * 1024 * 1024
_RESOLUTION, _OFFSET = 9, 14
"""Options of an interface: the unit and the offset of its times (if_tsresol, if_tsoffset)."""

_LONGEST: Final = 262_144
"""The most bytes kept of a packet, unless the file has a higher limit (libpcap)."""
_LARGEST: Final = 1 << 20
"""The most bytes that a packet may have had, kept or not, when packets are searched."""
_CHAIN: Final = 4
"""A search must find so many packets in a row, or packets up to the file's end."""
_NEAR_NS: Final = 24 * 60 * 60 * 10**9
_WINDOW: Final = 1 << 20
_NS: Final = 10**9
_NO_TIME: Final = 1 << 63


class Interface(msgspec.Struct, frozen=True):
    """A network interface on which packets were recorded."""

    link: int
    """Link type (LINKTYPE_)."""
    unit: int
    """The unit of times: so many are a second."""
    offset_s: int = 0


class Layout(msgspec.Struct, frozen=True):
    """The format of a file from some place on."""

    is_blocks: bool
    """Whether it is pcapng."""
    order: Order
    """The byte order."""
    interfaces: tuple[Interface, ...]
    """The interfaces that were described before that place; a pcap file has one."""
    longest: int = _LONGEST


class Packet(NamedTuple):
    """A packet, and the byte of the file where it, or its block, begins."""

    position: int
    time_ns: int
    link: int
    data: bytes
    is_cut: bool
    """Whether the recorder kept only a part of it."""


class Survey(msgspec.Struct, kw_only=True):
    """The contents of a range."""

    first: int
    """Where the range's first packet, block or damage begins."""
    after: int
    """Where the first packet, block or damage after the range begins."""
    last_ns: int | None
    """Time of the range's last packet, or else of the last before it. For pcapng: 0 if the range has a block."""
    section: Order | None = None
    """Byte order of the last section that begins in the range."""
    interfaces: tuple[Interface, ...] = ()
    """The interfaces that the range describes, after the beginning of that section."""

    def follow(self, layout: Layout) -> Layout:
        """Return the layout after this range, given the layout before it."""
        before = () if self.section else layout.interfaces
        order = self.section or layout.order
        return msgspec.structs.replace(layout, order=order, interfaces=before + self.interfaces)


def layout_of(file: Path) -> Layout:
    """Return the layout of a file from its first byte on.

    :raises JobError: if the file is no packet capture.
    """
    with file.open("rb") as stream:
        layout = layout_told(stream.read(_PCAP_HEAD))
    if layout is None:
        raise JobError(f"{file} is no packet capture: it does not begin as pcap or pcapng does")
    return layout


def layout_told(head: bytes) -> Layout | None:
    """Return the layout of a file; None if it is no packet capture.

    :param head: the file's first 24 bytes.
    """
    known = _PCAP_MAGICS.get(head[:4])
    if known is not None and len(head) == _PCAP_HEAD:
        order, unit = known
        kept, link = struct.unpack_from(f"{order}II", head, 16)
        interface = Interface(link & 0xFFFF, unit)
        return Layout(False, order, (interface,), max(kept, _LONGEST))
    if len(head) >= _LEAST_BLOCK and int.from_bytes(head[:4], "big") == _SECTION:
        for order in ("<", ">"):
            if struct.unpack_from(f"{order}I", head, 8)[0] == _BYTE_ORDER:
                return Layout(True, order, ())
    return None


def read_packets(
    file: Path, layout: Layout, start: int = 0, end: int | None = None, last_ns: int | None = None
) -> Iterator[Packet | Damage]:
    """Yield the packets that begin within a range of a file, and the damage there.

    :param layout: the layout at `start`.
    :param start: where a packet, a block or damage begins; 0 is the file's beginning.
    :param last_ns: time of the packet before `start`.
    """
    if file.stat().st_size == 0:
        return
    with closing(_map(file)) as data:
        reader = _reader(data, layout)
        yield from reader.packets(start, len(data) if end is None else end, last_ns)


def survey(
    file: Path,
    layout: Layout,
    start: int,
    end: int,
    *,
    is_certain: bool,
    last_ns: int | None = None,
) -> Survey:
    """Survey a range of a file by its heads.

    :param layout: the layout at `start`, or at the file's beginning.
    :param is_certain: whether a packet, a block or damage begins at `start`.
    """
    with closing(_map(file)) as data:
        reader = _reader(data, layout)
        first = max(start, reader.head)
        if not is_certain:
            first = reader.following(first, None)
        return reader.survey(first, end, last_ns)


def _map(file: Path) -> mmap.mmap:
    with file.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


class _Packets:
    """A pcap file."""

    head: Final = _PCAP_HEAD

    def __init__(self, data: mmap.mmap, layout: Layout) -> None:
        self._data = data
        self._size = len(data)
        self._order = layout.order
        self._heads = struct.Struct(f"{layout.order}IIII").unpack_from
        [interface] = layout.interfaces
        self._link = interface.link
        self._unit = interface.unit
        self._tick_ns = _NS // interface.unit
        self._longest = layout.longest

    def packets(self, start: int, end: int, last_ns: int | None) -> Iterator[Packet | Damage]:
        for found in self._walk(max(start, self.head), end, last_ns):
            if isinstance(found, Damage):
                yield found
            else:
                position, stop, time_ns = found
                data = self._data[position + _PACKET_HEAD : stop]
                _, _, kept, size = self._heads(self._data, position)
                yield Packet(position, time_ns, self._link, data, kept < size)

    def survey(self, first: int, end: int, last_ns: int | None) -> Survey:
        found = Survey(first=first, after=first, last_ns=last_ns)
        for one in self._walk(first, end, last_ns):
            if isinstance(one, Damage):
                found.after = one.position + one.size
            else:
                _, found.after, found.last_ns = one
        return found

    def following(self, position: int, last_ns: int | None) -> int:
        """Return the next place that looks like a packet; else the file's end."""
        for at in _words(self._data, position, self._size, self._order, self._may_be):
            if self._is_chain(at, last_ns):
                return at
        return self._size

    def _walk(
        self, position: int, end: int, last_ns: int | None
    ) -> Iterator[tuple[int, int, int] | Damage]:
        """Yield beginning, end and time of packets, and damage."""
        end = min(end, self._size)
        while position < end:
            found = self._packet_at(position)
            if found is not None:
                stop, last_ns = found
                yield position, stop, last_ns
                position = stop
                continue
            following = self.following(position + 1, last_ns)
            yield _gap(position, following, self._size, "packet")
            position = following

    def _packet_at(self, position: int) -> tuple[int, int] | None:
        """Return end and time of the packet at a byte; None if there is no packet."""
        if position + _PACKET_HEAD > self._size:
            return None
        seconds, fraction, kept, size = self._heads(self._data, position)
        stop = position + _PACKET_HEAD + kept
        if fraction >= self._unit or not 0 < kept <= self._longest or kept > size:
            return None
        return None if stop > self._size else (stop, seconds * _NS + fraction * self._tick_ns)

    def _may_be(self, words: _Words) -> _Mask:
        fraction, kept, size = words[1:-2], words[2:-1], words[3:]
        mask: _Mask = (fraction < self._unit) & (kept > 0) & (kept <= size) & (size <= _LARGEST)
        return mask

    def _is_chain(self, position: int, last_ns: int | None) -> bool:
        for _ in range(_CHAIN):
            found = self._packet_at(position)
            if found is None:
                return False
            position, time_ns = found
            if last_ns is not None and abs(time_ns - last_ns) > _NEAR_NS:
                return False
            if position == self._size:
                return True
            last_ns = time_ns
        return True


class _Blocks:
    """A pcapng file."""

    head: Final = 0

    def __init__(self, data: mmap.mmap, layout: Layout) -> None:
        self._data = data
        self._size = len(data)
        self._interfaces = list(layout.interfaces)
        self._use(layout.order)

    def _use(self, order: Order) -> None:
        self._order = order
        self._pair = struct.Struct(f"{order}II").unpack_from
        self._number = struct.Struct(f"{order}I").unpack_from
        self._packet = struct.Struct(f"{order}IIII").unpack_from
        self._old_packet = struct.Struct(f"{order}HHIII").unpack_from

    def packets(self, start: int, end: int, last_ns: int | None) -> Iterator[Packet | Damage]:
        for found in self._walk(start, end):
            if isinstance(found, Damage):
                yield found
                continue
            position, stop, kind = found
            if kind == _SECTION:
                self._interfaces = []
            elif kind == _INTERFACE:
                self._interfaces.append(self._interface(position, stop))
            elif kind in (_PACKET, _OLD_PACKET):
                yield self._packet_in(position, stop, kind)
            elif kind == _SIMPLE_PACKET:
                yield Damage(position, stop - position, "a packet without a time")

    def survey(self, first: int, end: int, last_ns: int | None) -> Survey:
        found = Survey(first=first, after=first, last_ns=last_ns)
        for one in self._walk(first, end):
            if isinstance(one, Damage):
                found.after = one.position + one.size
                continue
            position, found.after, kind = one
            found.last_ns = 0
            if kind == _SECTION:
                found.section, found.interfaces = self._order, ()
            elif kind == _INTERFACE:
                found.interfaces += (self._interface(position, found.after),)
        return found

    def following(self, position: int, last_ns: int | None) -> int:
        """Return the next place that looks like a block; else the file's end."""
        for at in _words(self._data, position, self._size, self._order, self._may_be):
            stop = self._end_of_block(at)
            if stop is not None and (stop == self._size or self._end_of_block(stop) is not None):
                return at
        return self._size

    def _walk(self, position: int, end: int) -> Iterator[tuple[int, int, int] | Damage]:
        """Yield beginning, end and type of blocks, and damage."""
        end = min(end, self._size)
        while position < end:
            stop = self._end_of_block(position)
            if stop is not None:
                kind = self._number(self._data, position)[0]
                if kind == _SECTION:
                    self._use(_order_of_section(self._data, position) or self._order)
                yield position, stop, kind
                position = stop
                continue
            following = self.following(position + 1, None)
            yield _gap(position, following, self._size, "block")
            position = following

    def _end_of_block(self, position: int) -> int | None:
        if position + _LEAST_BLOCK > self._size:
            return None
        kind, length = self._pair(self._data, position)
        number = self._number
        if kind == _SECTION:
            order = _order_of_section(self._data, position)
            if order is None:
                return None
            number = struct.Struct(f"{order}I").unpack_from
            length = number(self._data, position + 4)[0]
        stop = int(position + length)
        if length % 4 or not _LEAST_BLOCK <= length <= _LONGEST_BLOCK or stop > self._size:
            return None
        return stop if number(self._data, stop - 4)[0] == length else None

    def _may_be(self, words: _Words) -> _Mask:
        kind, length = words[:-3], words[1:-2]
        fits = (length % 4 == 0) & (length >= _LEAST_BLOCK) & (length <= _LONGEST_BLOCK)
        mask: _Mask = (np.isin(kind, _BLOCKS) & fits) | (kind == _SECTION)
        return mask

    def _interface(self, position: int, stop: int) -> Interface:
        data, order = self._data[position:stop], self._order
        link = int(struct.unpack_from(f"{order}H", data, 8)[0]) if len(data) >= 20 else -1
        unit, offset_s = 10**6, 0
        at = 16
        while at + 4 <= len(data) - 4:
            option, size = struct.unpack_from(f"{order}HH", data, at)
            value = data[at + 4 : at + 4 + size]
            if option == _RESOLUTION and value:
                unit = (2 if value[0] & 0x80 else 10) ** (value[0] & 0x7F)
            elif option == _OFFSET and len(value) == 8:
                offset_s = struct.unpack(f"{order}q", value)[0]
            at += 4 + size + -size % 4
        return Interface(link, unit, offset_s)

    def _packet_in(self, position: int, stop: int, kind: int) -> Packet | Damage:
        if stop - position < 32:
            return Damage(position, stop - position, "a block too short for a packet")
        if kind == _PACKET:
            number, high, low, kept = self._packet(self._data, position + 8)
        else:
            number, _, high, low, kept = self._old_packet(self._data, position + 8)
        if number >= len(self._interfaces):
            reason = f"a packet of interface {number}, which is not described"
            return Damage(position, stop - position, reason)
        if position + 28 + kept > stop - 4:
            return Damage(position, stop - position, "a packet longer than its block")
        of = self._interfaces[number]
        time_ns = of.offset_s * _NS + ((high << 32) | low) * _NS // of.unit
        if not 0 <= time_ns < _NO_TIME:
            return Damage(position, stop - position, "a packet with an impossible time")
        (size,) = self._number(self._data, position + 24)
        data = self._data[position + 28 : position + 28 + kept]
        return Packet(position, time_ns, of.link, data, kept < size)


def _reader(data: mmap.mmap, layout: Layout) -> _Packets | _Blocks:
    return _Blocks(data, layout) if layout.is_blocks else _Packets(data, layout)


def _gap(position: int, following: int, size: int, wanted: str) -> Damage:
    """Return the bytes before the next packet or block, or before the file's end, as damage."""
    reason = f"the file ends within a {wanted}" if following == size else f"no {wanted}"
    return Damage(position, following - position, reason)


def _order_of_section(data: mmap.mmap, position: int) -> Order | None:
    for order in ("<", ">"):
        if struct.unpack_from(f"{order}I", data, position + 8)[0] == _BYTE_ORDER:
            return order
    return None


def _words(
    data: mmap.mmap, position: int, size: int, order: Order, may_be: Callable[[_Words], _Mask]
) -> Iterator[int]:
    """Yield, in order, the places from `position` on where four numbers may be a head.

    :param may_be: returns for adjacent numbers a mask of those that may be the first of a head.
    """
    for begin in range(position, size, _WINDOW):
        window = data[begin : begin + _WINDOW + _PACKET_HEAD - 1]
        found: list[int] = []
        for shift in range(4):
            count = (len(window) - shift) // 4
            if count >= 4:
                words = np.frombuffer(window, f"{order}u4", count, shift)
                found += (np.flatnonzero(may_be(words)) * 4 + (begin + shift)).tolist()
        yield from sorted(found)
