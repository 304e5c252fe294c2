"""Makes files like those of recorders and brokers, from given frames and messages."""

from __future__ import annotations

import shutil
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import dpkt
import pyarrow.parquet as pq

from gateway.wire.commands import encode_command, encode_response
from gateway.wire.messages import encode_message, pack_host
from recording.format import MAGIC
from spark_jobs.capture import CLOSED, OPENED, Record
from spark_jobs.messages import DEFAULT_LEVELS, parse_levels
from spark_jobs.seams import stitch
from spark_jobs.tables import ASIDES, PAIRS, Receipt

LEVELS = parse_levels(DEFAULT_LEVELS)

CLIENT = (b"\x7f\0\0\2", 40_000)
SERVER = (b"\x7f\0\0\1", 10_911)
HOST = pack_host("127.0.0.1", 10_911)


def capture_bytes(records: Iterable[tuple[int, int, int, bytes]]) -> bytes:
    """Return a capture file of records: time in ns, connection, kind and data."""
    parts = [MAGIC]
    for time_ns, connection, kind, data in records:
        parts.append(struct.pack(">QIBI", time_ns, connection, kind, len(data)) + data)
    return b"".join(parts)


def exchange(number: int) -> list[bytes]:
    """Return a request and its answer."""
    return [encode_command(34, number, body=b"{}"), encode_response(number, 0)]


def packet(
    sequence: int,
    data: bytes,
    *,
    from_client: bool = True,
    acknowledged: int = 0,
    flags: int = dpkt.tcp.TH_ACK,
    client: tuple[bytes, int] = CLIENT,
) -> bytes:
    """Return an Ethernet frame with one TCP segment."""
    sender, receiver = (client, SERVER) if from_client else (SERVER, client)
    ports = {"sport": sender[1], "dport": receiver[1]}
    numbers = {"seq": sequence & 0xFFFFFFFF, "ack": acknowledged & 0xFFFFFFFF}
    tcp = dpkt.tcp.TCP(**ports, **numbers, flags=flags, data=data)
    tcp.off = 5
    ip = dpkt.ip.IP(src=sender[0], dst=receiver[0], p=dpkt.ip.IP_PROTO_TCP, data=tcp)
    ip.len = 20 + len(bytes(tcp))
    return bytes(dpkt.ethernet.Ethernet(data=ip))


def pcap_bytes(packets: Iterable[tuple[int, bytes]], order: str = "<", unit: int = 10**6) -> bytes:
    """Return a pcap file of packets, each a time in ns and its bytes; `unit` is a million or a billion."""
    magic = 0xA1B2C3D4 if unit == 10**6 else 0xA1B23C4D
    parts = [struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 65_535, 1)]
    for time_ns, data in packets:
        seconds, rest = divmod(time_ns, 10**9)
        head = (seconds, rest * unit // 10**9, len(data), len(data))
        parts.append(struct.pack(f"{order}IIII", *head) + data)
    return b"".join(parts)


def pcapng_bytes(packets: Iterable[tuple[int, bytes]], order: str = "<") -> bytes:
    """Return a pcapng file with two interfaces, and half-way a second section with one."""

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        length = struct.pack(f"{order}I", len(body) + 12)
        return struct.pack(f"{order}I", kind) + length + body + length

    def begin(*resolutions: int) -> bytes:
        section = struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1)
        return block(0x0A0D0D0A, section) + b"".join(
            block(1, struct.pack(f"{order}HHIHHB3xHH", 1, 0, 65_535, 9, 1, one, 0, 0))
            for one in resolutions
        )

    packets = list(packets)
    parts = [begin(9, 6)]
    for number, (time_ns, data) in enumerate(packets):
        if number == len(packets) // 2:
            parts.append(begin(6))
        is_second = number >= len(packets) // 2
        interface = 0 if is_second else number % 2
        ticks = time_ns if not is_second and interface == 0 else time_ns // 1000
        head = (interface, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data))
        parts.append(block(6, struct.pack(f"{order}IIIII", *head) + data))
        if number % 3 == 0:
            parts.append(block(5, bytes(12)))
    return b"".join(parts)


def log_bytes(messages: Iterable[tuple[str, bytes, str]], base: int = 0) -> bytes:
    """Return a commit log of messages, each a topic, body and properties."""
    log = b""
    for number, (topic, body, properties) in enumerate(messages):
        log += encode_message(
            topic=topic.encode(),
            queue_id=0,
            flag=0,
            sys_flag=0,
            born_ms=1_000_000 + number,
            born_host=HOST,
            store_ms=1_000_005 + number,
            store_host=HOST,
            reconsume_times=0,
            prepared_offset=0,
            physical_offset=base + len(log),
            queue_offset=number,
            body=body,
            properties=properties.encode(),
        )
    return log


def as_records(file: Path) -> list[Record]:
    """Return the frames of a complete capture, without the openings and closings."""
    from spark_jobs.capture import read_records

    records = [record for record in read_records(file) if isinstance(record, Record)]
    return [record for record in records if record.kind not in (OPENED, CLOSED)]


class Tables(NamedTuple):
    """The tables made from a file."""

    pairs: list[dict[str, Any]]
    asides: list[dict[str, Any]]
    counts: dict[str, int]

    @property
    def frames(self) -> int:
        """The number of frames in rows: two in a pair, one in a request without an answer or in an aside."""
        ends = [
            (one["asked_ns"] is not None) + (one["answered_ns"] is not None) for one in self.pairs
        ]
        return sum(ends) + sum(one["body"] is not None for one in self.asides)


def tables_of(folder: Path, *receipts: Receipt) -> Tables:
    """Return the tables that tasks wrote to a folder, and delete the folder."""
    stitched = stitch(folder, receipts, LEVELS)
    counts: Counter[str] = Counter()
    for one in [receipt.counts for receipt in receipts] + [one for _, one in stitched]:
        counts.update(one)
    pairs, asides = (
        [
            row
            for file in sorted((folder / table).glob("*"))
            for row in pq.read_table(file).to_pylist()
        ]
        for table in (PAIRS, ASIDES)
    )
    shutil.rmtree(folder)
    pairs.sort(key=lambda row: (row["position"], repr(row)))
    asides.sort(key=lambda row: (row["position"], repr(row)))
    return Tables(pairs, asides, dict(counts))
