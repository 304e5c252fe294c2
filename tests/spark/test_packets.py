"""Packet captures, whole and damaged, at once and in ranges: nothing is dropped silently."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import dpkt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from gateway.wire.codes import CommandFlag
from gateway.wire.commands import encode_command, encode_response
from spark_jobs.errors import Damage, JobError
from spark_jobs.ingest import ingest, read_table
from spark_jobs.messages import DEFAULT_LEVELS
from spark_jobs.packet_ranges import (
    SEGMENTS,
    Recording,
    Times,
    assemble,
    guess,
    in_recordings,
    packet_ranges,
    read_range,
)
from spark_jobs.packets import segment_of
from spark_jobs.pcap import Packet, layout_of, read_packets
from spark_jobs.sources import Part, ranges, read_packet_file
from spark_jobs.tables import receipts
from tests.spark.making import (
    LEVELS,
    Tables,
    exchange,
    packet,
    pcap_bytes,
    pcapng_bytes,
    tables_of,
)

NOW_NS = 1_700_000_000_000_000_000
ONE_FILE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
)
SYN, ACK, RST = dpkt.tcp.TH_SYN, dpkt.tcp.TH_ACK, dpkt.tcp.TH_RST


def packets_of(exchanges: int, *, opened: bool = True) -> list[bytes]:
    """Return a connection's packets, two for each exchange."""
    packets = []
    at = [100, 500]
    if opened:
        packets.append(packet(99, b"", flags=SYN))
        packets.append(packet(499, b"", from_client=False, acknowledged=100, flags=SYN | ACK))
    for number in range(exchanges):
        for side, data in enumerate(exchange(number)):
            other = at[1 - side]
            packets.append(packet(at[side], data, from_client=side == 0, acknowledged=other))
            at[side] += len(data)
    return packets


def timed(packets: list[bytes]) -> list[tuple[int, bytes]]:
    return [(NOW_NS + at * 1_000_000, data) for at, data in enumerate(packets)]


def at_once(file: Path) -> Tables:
    folder = file.parent / "out"
    part = Part(number=0, file=str(file), run=str(file), start=0, end=file.stat().st_size)
    return tables_of(folder, read_packet_file(part, folder, LEVELS, frozenset()))


def in_ranges(file: Path, cuts: list[int], parts: int = 2) -> Tables:
    """Read the file as Spark does, with `parts` tasks that put connections together."""
    folder = file.parent / "ranges"
    size = file.stat().st_size
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < size}), size]
    spans = [(str(file), start, end) for start, end in pairwise(edges)]
    found = packet_ranges(file, spans, [guess(span) for span in spans])
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(found)))})
    said = read_range(
        [numbers], parts=found, first=0, folder=folder, ports=frozenset(), levels=LEVELS
    )
    rows = sorted(
        (row for batch in said for row in batch.to_pylist()),
        key=lambda row: (row["key"], row["position"]),
    )
    for part in range(parts):
        mine = [row for row in rows if sum(row["key"]) % parts == part]
        batches = [
            pa.RecordBatch.from_pylist(mine[at : at + 3], SEGMENTS) for at in range(0, len(mine), 3)
        ]
        number = len(found) + part
        assemble(
            batches,
            number=number,
            recording=Recording.of([(str(file), size)]),
            folder=folder,
            ports=frozenset(),
            levels=LEVELS,
        )
    return tables_of(folder, *receipts(folder).values())


def read_pcap(folder: Path, packets: list[bytes], cut: int | None = None) -> Tables:
    file = folder / "a.pcap"
    file.write_bytes(pcap_bytes(timed(packets))[:cut])
    return at_once(file)


@pytest.mark.parametrize("opened", [True, False])
def test_packets_give_pairs(tmp_path: Path, opened: bool) -> None:
    read = read_pcap(tmp_path, packets_of(3, opened=opened))
    assert [row["opaque"] for row in read.pairs] == [0, 1, 2]
    assert {row["server"] for row in read.pairs} == {"127.0.0.1:10911"}
    name = f"{tmp_path / 'a.pcap'}#127.0.0.2:40000-127.0.0.1:10911"
    assert {row["connection"] for row in read.pairs} == {name}
    assert all(row["from_client"] and row["answer_code"] == 0 for row in read.pairs)
    assert read.counts["paired"] == 3
    begun = read.counts.get("directions begun before the recording", 0)
    assert begun == (0 if opened else 2)


def test_requests_in_one_packet_have_places_of_their_own(tmp_path: Path) -> None:
    asked = b"".join(exchange(number)[0] for number in range(3))
    head = packets_of(0)
    read = read_pcap(tmp_path, [*head, packet(100, asked)])
    places = [row["position"] for row in read.pairs]
    assert places == [places[0], places[0] + 1, places[0] + 2]
    assert [row["opaque"] for row in read.pairs] == [0, 1, 2]


def test_packets_that_were_recorded_twice_are_read_once(tmp_path: Path) -> None:
    packets = packets_of(3)
    repeated = [again for one in packets for again in (one, one)]  # as `tcpdump -i any` may
    repeated.insert(10, packets[0])
    expected = read_pcap(tmp_path, packets)
    found = read_pcap(tmp_path, repeated)
    assert found.counts == {**expected.counts, "packets": len(repeated)}
    assert {row["connection"] for row in found.pairs} == {
        row["connection"] for row in expected.pairs
    }


def test_a_lost_packet_costs_its_frame_alone(tmp_path: Path) -> None:
    packets = packets_of(4)
    lost = packets.pop(4)  # the request of the second exchange
    read = read_pcap(tmp_path, packets)
    counts = read.counts
    assert counts["frames"] == 7
    assert counts["bytes that were not recorded"] == len(lost) - 14 - 40
    # The server has acknowledged the packet, so nothing waits for it, and the following exchanges are unchanged.
    assert (counts["paired"], counts["unasked"], counts["unanswered"]) == (3, 1, 0)
    took = [row["answered_ns"] - row["asked_ns"] for row in read.pairs if row["asked_ns"]]
    assert took == [1_000_000] * 3


@pytest.mark.parametrize("at", [(1 << 31) + 1_000, 10_000], ids=["before", "behind"])
@pytest.mark.parametrize("opened", [True, False])
def test_a_port_that_is_used_again_begins_a_connection_even_if_its_first_packet_is_lost(
    tmp_path: Path, at: int, opened: bool
) -> None:
    again = [packet(at - 1, b"", from_client=False, acknowledged=at, flags=SYN | ACK)]
    for number, (asked, answered) in enumerate(map(exchange, (7, 8))):
        again.append(packet(at + number * len(asked), asked, acknowledged=at))
        place = at + number * len(answered)
        again.append(packet(place, answered, from_client=False, acknowledged=at))
    read = read_pcap(tmp_path, [*packets_of(2, opened=opened), *again, again[0]])
    assert [row["opaque"] for row in read.pairs] == [0, 1, 7, 8]
    assert read.counts["paired"] == 4
    names = [row["connection"].rpartition(":")[2] for row in read.pairs]
    assert names == ["10911", "10911", "10911#2", "10911#2"]
    assert read.asides == []


@pytest.mark.parametrize("comes", [True, False], ids=["late", "never"])
def test_what_waited_for_a_packet_has_places_and_times_of_its_own(
    tmp_path: Path, comes: bool
) -> None:
    flag = int(CommandFlag.ONEWAY)
    said = [encode_command(34, number, flag=flag) for number in range(400)]
    data = b"".join(said)
    ends = [0, len(said[0]), len(said[0] + said[1]), *range(1400, len(data), 1400), len(data)]
    packets = [packet(100 + start, data[start:end]) for start, end in pairwise(ends)]
    missing = packets.pop(1)
    if comes:
        packets.append(missing)
    other = packet(100, data[:1400], client=(b"\x7f\0\0\2", 40_001))
    read = read_pcap(tmp_path, [packet(99, b"", flags=SYN), *packets, other])
    assert len({row["position"] for row in read.pairs}) == len(read.pairs) > 400
    mine = [row for row in read.pairs if row["connection"].endswith(":40000-127.0.0.1:10911")]
    mine.sort(key=lambda row: (row["asked_ns"], row["position"]))
    expected = [number for number in range(400) if comes or number != 1]
    assert [row["opaque"] for row in mine] == expected, "replay sends in this order"
    times = [(row["asked_ns"] - NOW_NS) // 1_000_000 for row in mine]
    last = len(packets)
    assert times[0] == 1
    assert set(times[1:]) == ({last} if comes else set(range(2, last + 1)))


@pytest.mark.parametrize("cut", [10, 172, 180], ids=["data", "head alone", "half a head"])
def test_a_cut_packet_file_is_told(tmp_path: Path, cut: int) -> None:
    packets = packets_of(3)
    read = read_pcap(tmp_path, packets, cut=-cut)
    assert len(packets[-1]) == 172
    assert read.counts["frames"] == 5
    [aside] = read.asides
    assert aside["reason"] == "the file ends within a packet"
    assert aside["size"] == len(packets[-1]) + 16 - cut


@pytest.mark.parametrize(("write", "size_at"), [(pcap_bytes, 12), (pcapng_bytes, 24)])
def test_packets_without_their_ends_are_counted(
    tmp_path: Path, write: Callable[[Sequence[tuple[int, bytes]]], bytes], size_at: int
) -> None:
    """If a recorder keeps only packets' heads, nothing can be read, and nothing between them counts as missing."""
    heads = [one[:54] for one in packets_of(3)]
    file = tmp_path / "a.pcap"
    file.write_bytes(write(timed(heads)))
    said = "packets of which the recorder kept only the beginning"
    assert said not in at_once(file).counts
    data = bytearray(file.read_bytes())
    for one in read_packets(file, layout_of(file)):
        struct.pack_into("<I", data, one.position + size_at, 172)
    file.write_bytes(data)
    counts = at_once(file).counts
    assert (counts["frames"], counts["packets"], counts[said]) == (0, len(heads), len(heads))


def test_what_is_no_packet_capture_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.pcap"
    for data in (b"", pcap_bytes([])[:20], bytes.fromhex("0a0d0d0a") + bytes(24)):
        file.write_bytes(data)
        with pytest.raises(JobError, match=r"a\.pcap is no packet capture"):
            layout_of(file)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["us", "ns", "ng"])
def test_formats(tmp_path: Path, order: str, kind: str) -> None:
    packets = timed(packets_of(4))
    file = tmp_path / "a.pcap"
    if kind == "ng":
        file.write_bytes(pcapng_bytes(packets, order))
    else:
        file.write_bytes(pcap_bytes(packets, order, 10**6 if kind == "us" else 10**9))
    found = list(read_packets(file, layout_of(file)))
    assert all(isinstance(one, Packet) and one.link == 1 for one in found)
    assert [(one.time_ns, one.data) for one in found if isinstance(one, Packet)] == packets


def test_a_block_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    data = pcapng_bytes(timed(packets_of(4)))
    file = tmp_path / "a.pcapng"

    def block(kind: int, body: bytes) -> bytes:
        length = struct.pack("<I", len(body) + 12)
        return struct.pack("<I", kind) + length + body + length

    simple = block(3, struct.pack("<I", 60) + bytes(60))
    unknown = block(6, struct.pack("<IIIII", 7, 0, 0, 4, 4) + bytes(4))
    long = block(6, struct.pack("<IIIII", 0, 0, 0, 99, 99) + bytes(4))
    never = block(6, struct.pack("<IIIII", 0, 0xFFFFFFFF, 0, 4, 4) + bytes(4))
    file.write_bytes(data + simple + unknown + long + never)
    *_, first, second, third, last = read_packets(file, layout_of(file))
    assert [one.reason for one in (first, second, third, last) if isinstance(one, Damage)] == [
        "a packet without a time",
        "a packet of interface 7, which is not described",
        "a packet longer than its block",
        "a packet with an impossible time",
    ]


@pytest.mark.parametrize("tags", [b"", b"\x81\0\0\5", b"\x88\xa8\0\5\x81\0\0\7"])
def test_packets_of_any_interface_may_have_vlan_tags(tags: bytes) -> None:
    """These are the layouts of `tcpdump -i any`, in both of its formats."""
    whole = packet(700, b"data")
    told = tags + whole[12:]  # the type, and what follows
    first, second = bytes(14), bytes(18)
    assert (
        segment_of(1, whole[:12] + told)
        == segment_of(113, first + told)
        == segment_of(276, told[:2] + second + told[2:])
        == segment_of(1, whole)
        is not None
    )


@pytest.mark.parametrize(
    ("link", "before"),
    [(0, b"\2\0\0\0"), (0, b"\0\0\0\2"), (108, b"\0\0\0\2"), (12, b""), (101, b""), (228, b"")],
)
def test_packets_of_loopbacks_and_tunnels_have_no_ethernet_head(link: int, before: bytes) -> None:
    whole = packet(700, b"data")
    assert segment_of(link, before + whole[14:]) == segment_of(1, whole) is not None


class Traffic(NamedTuple):
    """The contents of a capture; each number is drawn."""

    seed: int
    connections: int
    exchanges: int
    losses: int
    repeats: int
    swaps: int
    opened: bool
    resets: bool


def busy(traffic: Traffic) -> list[tuple[int, bytes]]:
    """Return connections at the same time, some begun earlier, with loss, repetition and disorder."""
    order = random.Random(traffic.seed)
    packets: list[bytes] = []
    waiting: list[list[bytes]] = []
    for number in range(traffic.connections):
        client = (b"\x7f\0\0\2", 40_000 + number)
        mine: list[bytes] = []
        at = [order.choice([100, (1 << 32) - 90]), 500]
        if traffic.opened or number % 2:
            mine.append(packet(at[0] - 1, b"", flags=SYN, client=client))
            answer = packet(
                at[1] - 1,
                b"",
                from_client=False,
                acknowledged=at[0],
                flags=SYN | ACK,
                client=client,
            )
            mine.append(answer)
        for opaque in range(traffic.exchanges):
            body = order.randbytes(order.choice([0, 5, 300]))
            parts = (encode_command(34, opaque, body=body), encode_response(opaque, 0, body=body))
            for side, data in enumerate(parts):
                cut = order.randint(1, len(data))
                for piece in (data[:cut], data[cut:]):
                    if piece:
                        from_client = side == 0
                        mine.append(packet(at[side], piece, from_client=from_client, client=client))
                        at[side] += len(piece)
        if traffic.resets and number % 2:
            mine.append(packet(at[0], b"", flags=RST, client=client))
            mine.append(packet(699, b"", flags=SYN, client=client))
            mine.append(packet(700, exchange(3)[0], client=client))
        waiting.append(mine)
    while any(waiting):
        packets.append(order.choice([one for one in waiting if one]).pop(0))
    for _ in range(traffic.swaps):
        at_, other = order.randrange(len(packets)), order.randrange(len(packets))
        packets[at_], packets[other] = packets[other], packets[at_]
    packets += order.choices(packets, k=traffic.repeats)
    for _ in range(min(traffic.losses, len(packets) - 1)):
        packets.pop(order.randrange(len(packets)))
    times = timed(packets)
    if traffic.seed % 3 == 0:
        times[-1] = (NOW_NS - 1_000_000, times[-1][1])  # the clock was set
    return times


TRAFFIC = st.builds(
    Traffic,
    seed=st.integers(0, 1 << 20),
    connections=st.integers(1, 4),
    exchanges=st.integers(1, 4),
    losses=st.integers(0, 3),
    repeats=st.integers(0, 3),
    swaps=st.integers(0, 2),
    opened=st.booleans(),
    resets=st.booleans(),
)


@given(
    traffic=TRAFFIC,
    is_blocks=st.booleans(),
    cuts=st.lists(st.floats(0, 1), max_size=6),
    damaged=st.none() | st.tuples(st.floats(0.01, 1), st.integers(1, 40)),
    ends=st.floats(0.5, 1),
)
@ONE_FILE
def test_a_file_in_ranges_is_as_at_once(
    tmp_path: Path,
    traffic: Traffic,
    is_blocks: bool,
    cuts: list[float],
    damaged: tuple[float, int] | None,
    ends: float,
) -> None:
    packets = busy(traffic)
    data = bytearray(pcapng_bytes(packets) if is_blocks else pcap_bytes(packets))
    if damaged is not None:
        at = 24 + int(damaged[0] * (len(data) - 24))
        data[at : at + damaged[1]] = bytes(len(data[at : at + damaged[1]]))
        del data[int(ends * len(data)) :]
    file = tmp_path / "a.pcap"
    file.write_bytes(data)
    whole = at_once(file)
    found = in_ranges(file, [int(cut * len(data)) for cut in cuts])
    assert found == whole
    assert found.frames == found.counts["frames"]
    if damaged is None:
        assert found.counts["packets"] == len(packets)


def test_packets_inside_of_packets_mislead_nobody(tmp_path: Path) -> None:
    inner = pcap_bytes(timed(packets_of(40)))
    head = packets_of(0)
    body = encode_command(10, 1, body=inner)
    packets = [packet(100 + at, body[at : at + 1400]) for at in range(0, len(body), 1400)]
    file = tmp_path / "a.pcap"
    file.write_bytes(pcap_bytes(timed([*head, *packets])))
    whole = at_once(file)
    assert whole.counts["frames"] == 1
    assert in_ranges(file, list(range(0, file.stat().st_size, 500))) == whole


def test_a_large_file_spreads_over_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic = Traffic(
        7, connections=6, exchanges=20, losses=2, repeats=2, swaps=1, opened=True, resets=True
    )
    file = tmp_path / "large.pcap"
    file.write_bytes(pcap_bytes(busy(traffic)))
    whole = ingest(spark, [file], tmp_path / "once", levels=DEFAULT_LEVELS)
    for module in ("ingest", "packet_ranges"):
        monkeypatch.setattr(f"spark_jobs.{module}.ranges", lambda size: ranges(size, 20_000))
    split = ingest(spark, [file], tmp_path / "split", levels=DEFAULT_LEVELS)
    assert len(list((tmp_path / "split").rglob("rows/kind=pair/part-*.parquet"))) > 1
    assert split.counts == whole.counts
    expected, found = (
        read_table(spark, tmp_path / name, "pair").toArrow().sort_by("position").to_pylist()
        for name in ("once", "split")
    )
    assert found == expected


def files_of(folder: Path, names: Sequence[str], packets: list[tuple[int, bytes]]) -> None:
    """Write the packets to files that follow one another."""
    folder.mkdir()
    each = -(-len(packets) // len(names))
    for number, name in enumerate(names):
        (folder / name).write_bytes(pcap_bytes(packets[number * each : (number + 1) * each]))


@pytest.mark.parametrize(
    "names",
    [
        ["rotated.pcap", *(f"rotated.pcap{number}" for number in range(1, 12))],
        [f"at-{hour:02}:59:59.pcap" for hour in range(12)],
        [f"ring{(number + 7) % 12:02}" for number in range(12)],
    ],
    ids=["size", "time", "ring"],
)
def test_files_of_a_rotated_recording_are_read_as_one(
    spark: SparkSession, tmp_path: Path, names: list[str]
) -> None:
    traffic = Traffic(
        7, connections=6, exchanges=20, losses=2, repeats=2, swaps=0, opened=True, resets=True
    )
    packets = busy(traffic)
    files_of(tmp_path / "one", [min(names)], packets)
    files_of(tmp_path / "rotated", names, packets)
    one = ingest(spark, [tmp_path / "one"], tmp_path / "out-one", levels=DEFAULT_LEVELS)
    rotated = ingest(spark, [tmp_path / "rotated"], tmp_path / "out", levels=DEFAULT_LEVELS)
    assert (rotated.files, rotated.counts) == (len(names), one.counts)
    expected, found = (
        sorted(
            (row["asked_ns"] or row["answered_ns"], row["connection"].split("#", 1)[1])
            for row in read_table(spark, folder, "pair").collect()
        )
        for folder in (tmp_path / "out-one", tmp_path / "out")
    )
    assert found == expected
    files: dict[str, list[int]] = {}
    for row in read_table(spark, tmp_path / "out", "pair").collect():
        name = Path(row["file"]).name
        assert 24 <= row["position"] < Path(row["file"]).stat().st_size
        files.setdefault(name, []).append(row["asked_ns"] or row["answered_ns"])
    order = [files[name] for name in names if name in files]
    assert len(order) > len(names) // 2
    assert all(max(before) <= min(after) for before, after in pairwise(order))


def test_what_overlaps_or_comes_after_a_break_is_a_recording_of_its_own() -> None:
    second = 10**9

    def of(*times: tuple[float, float] | None) -> list[list[str]]:
        found = [one and Times(int(one[0] * second), int(one[1] * second)) for one in times]
        return in_recordings([f"{number}" for number in range(len(times))], found)

    assert of((10, 20), (0, 10), (20, 30)) == [["1", "0", "2"]]
    assert of((0, 10), (1, 9)) == [["0"], ["1"]]
    assert of((0, 10), (1, 9), (10.1, 20), (9.1, 19)) == [["0", "2"], ["1", "3"]]
    assert of((0, 10), (131, 140)) == [["0"], ["1"]], "no connection outlives that silence"
    assert of(None, (0, 10), (9.9, 20)) == [["0"], ["1", "2"]]
