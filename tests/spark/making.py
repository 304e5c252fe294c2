"""Files as recorders and brokers write them, made of frames and messages of our own."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import dpkt

from gateway.wire.messages import encode_message, pack_host
from spark_jobs.capture import CLOSED, MAGIC, OPENED, Record

CLIENT = (b"\x7f\0\0\2", 40_000)
SERVER = (b"\x7f\0\0\1", 10_911)
HOST = pack_host("127.0.0.1", 10_911)


def capture_bytes(records: Iterable[tuple[int, int, int, bytes]]) -> bytes:
    """A capture file of time in ns, connection, kind and data."""
    parts = [MAGIC]
    for time_ns, connection, kind, data in records:
        parts.append(struct.pack(">QIBI", time_ns, connection, kind, len(data)) + data)
    return b"".join(parts)


def packet(
    sequence: int, data: bytes, *, from_client: bool = True, flags: int = dpkt.tcp.TH_ACK
) -> bytes:
    """An Ethernet frame with one TCP segment."""
    sender, receiver = (CLIENT, SERVER) if from_client else (SERVER, CLIENT)
    tcp = dpkt.tcp.TCP(
        sport=sender[1], dport=receiver[1], seq=sequence & 0xFFFFFFFF, flags=flags, data=data
    )
    tcp.off = 5
    ip = dpkt.ip.IP(src=sender[0], dst=receiver[0], p=dpkt.ip.IP_PROTO_TCP, data=tcp)
    ip.len = 20 + len(bytes(tcp))
    return bytes(dpkt.ethernet.Ethernet(data=ip))


def pcap_bytes(packets: Iterable[tuple[float, bytes]]) -> bytes:
    """A pcap file of time in s and packet."""
    stream = BytesIO()
    writer = dpkt.pcap.Writer(stream)
    for time_s, data in packets:
        writer.writepkt(data, ts=time_s)
    return stream.getvalue()


def log_bytes(messages: Iterable[tuple[str, bytes, str]], base: int = 0) -> bytes:
    """A commit log of topic, body and properties."""
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
    """The frames of a whole capture, with the openings and closings left out."""
    from spark_jobs.capture import read_records

    records = [record for record in read_records(file) if isinstance(record, Record)]
    return [record for record in records if record.kind not in (OPENED, CLOSED)]
