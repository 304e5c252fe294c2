"""Records are smaller when stored and come back unchanged, and no damaged one is taken for a record."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire.messages import encode_message
from storage import Store, Terms, find_by_sequence, find_faults
from storage.records import CONTENT, MOST_PACKED, pack, unpack
from tests.storage.folder import Folder, change_table
from tests.storage.sample import Sample, clean_up, hold_all, ids_in, pending_ids, send, terms_of

records = st.binary(max_size=2 * MOST_PACKED).filter(
    lambda record: not record.startswith(zstandard.FRAME_HEADER)
)


def timed_record(body: bytes) -> bytes:
    """Return a record as the gateway makes it of a message of the Java client."""
    message_id = "C0A8010700002A139A7B51A5F0010003"
    properties = (
        f"KEYS\x01close-81632\x02UNIQ_KEY\x01{message_id}\x02WAIT\x01true\x02TIMER_DELIVER_MS\x011795361181282\x02"
        "TAGS\x01unpaid\x02REAL_TOPIC\x01order-timeouts\x02REAL_QID\x013\x02TIMER_OUT_MS\x011795361181282\x02"
        "MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01production\x02"
    )
    return encode_message(
        topic=b"order-timeouts",
        queue_id=3,
        flag=0,
        sys_flag=0,
        born_ms=1_795_361_000_000,
        born_host=bytes((192, 168, 1, 7, 0, 0, 0xC3, 0x50)),
        store_ms=1_795_361_000_003,
        store_host=bytes((192, 168, 1, 9, 0, 0, 0x2A, 0x9F)),
        reconsume_times=0,
        prepared_offset=0,
        physical_offset=8_163_200,
        queue_offset=0,
        body=body,
        properties=properties.encode(),
    )


FRAME_OF_FORMAT_7 = bytes.fromhex(
    "28b52ffd646300950500e40700000163daa320a702b9fbf800000003007c8f800001a203daca40c0a801070000c35043c0a8"
    "010900107b22223a2038313633327d0e2d74696d656f75747300ea2d43304138303130373030303032413133394137423531"
    "41354630333935333631313831323832756e70616964514944013370726f64756374696f6e02130040044f70406d21ed19c2"
    "f132e85abcc0e05c2b98352b1069ed2ada046f0288d679998640482023d46b3353819644c012f0fdf64a"
)
FRAME_OF_FORMAT_8 = bytes.fromhex(
    "28b52ffd646300750400c3c6169c94d789dab879e087b72efb52e3edd7766b37d61ed72ad298d51e8e796cb1cbb1faa1909"
    "0a1387a1fd589940036176fdb3bd79c350c2003c061e3c6c7240d525ec161e38608e00088299490021c98600a29a5274201"
    "068ec6216517fce03c6998d5f6b7ed390e6797edaf459a70f104401804a97f1183579c6897881c24df8f986ba448a4c5230"
    "c3d5704f0fdf64a"
)
"""What the first versions with these formats made of `timed_record(b'{"order": 81632}')`."""


@pytest.mark.parametrize("frame", [FRAME_OF_FORMAT_7, FRAME_OF_FORMAT_8])
def test_what_was_packed_before_is_unpacked(frame: bytes) -> None:
    """The dictionary is part of the format: with another one no stored record can be read."""
    assert unpack(frame) == timed_record(b'{"order": 81632}')


def packed_without_tables(record: bytes) -> bytes:
    """Return a record as format 7 packs it."""
    dictionary = zstandard.ZstdCompressionDict(CONTENT, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    compressor = zstandard.ZstdCompressor(
        level=-1, dict_data=dictionary, write_dict_id=False, write_checksum=True
    )
    return compressor.compress(record)


@given(st.binary(max_size=1_000))
@example(b"")
def test_frames_of_format_7_need_no_dictionary_of_their_own(body: bytes) -> None:
    record = timed_record(body)
    assert unpack(packed_without_tables(record)) == record


def test_text_takes_less_room_than_in_format_7() -> None:
    record = timed_record(
        b'{"orderId":"ORD-2210481","userId":771204,"status":"UNPAID","amount":129.90,"currency":"EUR",'
        b'"items":[{"sku":"A-10442","quantity":2}],"createdAt":"2026-11-25T08:14:07Z"}'
    )
    assert len(pack(record)) < 0.85 * len(packed_without_tables(record))


@given(records)
@example(b"")
@example(bytes(MOST_PACKED))
@example(bytes(MOST_PACKED + 1))
def test_a_record_comes_out_as_it_went_in(record: bytes) -> None:
    assert unpack(pack(record)) == record
    assert len(pack(record)) <= len(record)


def test_what_records_have_in_common_takes_hardly_any_room() -> None:
    body = random.Random(1).randbytes(256)
    record = timed_record(body)
    assert len(record) - len(body) > 330
    assert len(pack(record)) - len(body) < 200


def test_large_records_stay_as_they_are() -> None:
    record = timed_record(bytes(MOST_PACKED))
    assert pack(record) is record


@given(st.integers(min_value=0), st.binary(max_size=300))
def test_a_changed_bit_does_not_go_unnoticed(bit: int, body: bytes) -> None:
    record = timed_record(body)
    stored = bytearray(pack(record))
    bit %= 8 * len(stored)
    stored[bit // 8] ^= 1 << bit % 8
    # A meaningless bit of the header may change.
    assert unpack(bytes(stored)) in (bytes(stored), record, None)


def test_a_frame_that_claims_to_be_huge_is_damaged() -> None:
    # RFC 8878: magic number, descriptor (one segment, size of 8 bytes), size.
    stored = zstandard.FRAME_HEADER + b"\xe0" + struct.pack("<Q", 1 << 62) + bytes(8)
    assert unpack(stored) is None


def damage_second(folder: Folder) -> None:
    """Cut the record of the second message short."""
    folder.close()
    change_table(
        folder.path,
        "messages",
        lambda txn, table: txn.put(
            key := (2).to_bytes(8), (txn.get(key, db=table) or b"")[:-1], db=table
        ),
    )


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Store]:
    """A queue of three messages, of which the second is damaged."""
    folder = Folder(tmp_path / "damaged")
    store = folder.open()
    for message_id in (b"first", b"second", b"third"):
        send(store, Sample(message_id, body=b"of some length " * 5))
    store.commit()
    damage_second(folder)
    yield folder.open()
    folder.close()


def test_a_damaged_record_is_passed_over_and_noted_by_those_who_read_its_queue(
    damaged: Store,
) -> None:
    assert damaged.damaged == set()
    assert ids_in(damaged) == [b"first", b"third"]
    assert damaged.damaged == {(2).to_bytes(8)}


def test_a_start_that_looks_for_timers_passes_a_damaged_record_over_and_notes_it(
    tmp_path: Path,
) -> None:
    folder = Folder(tmp_path / "damaged")
    hold_all(folder.open(), [b"first", b"second", b"third"], 1_000)
    damage_second(folder)
    store = folder.open()
    assert pending_ids(store) == [b"first", b"third"]
    assert store.damaged == {(2).to_bytes(8)}
    folder.close()


def test_retention_leaves_a_damaged_record_and_goes_on(damaged: Store) -> None:
    assert clean_up(damaged, 1_000, 10, lambda _: False).messages == 3
    damaged.commit()
    assert ids_in(damaged) == []
    left = damaged.reader().cursor(db=damaged.tables.messages)
    assert [int.from_bytes(key) for key, _ in left] == [2]
    assert damaged.damaged == {(2).to_bytes(8)}


def test_a_record_of_which_nothing_can_be_read_is_passed_over_too(damaged: Store) -> None:
    """A record stored before the packing of records has no checksum."""
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(damaged, "terms_of", refuse_third)
        assert find_by_sequence(damaged, 1) is not None
        assert find_by_sequence(damaged, 3) is None
        assert clean_up(damaged, 1_000, 10, lambda _: False).messages == 3
    assert damaged.damaged == {(2).to_bytes(8), (3).to_bytes(8)}


def test_so_it_is_by_a_list_of_what_is_pending(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "held")
    store = folder.open()
    hold_all(store, [b"first", b"second", b"third"], 1_000)
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(store, "terms_of", refuse_third)
        assert pending_ids(store) == [b"first", b"second"]
    assert store.damaged == {(3).to_bytes(8)}
    folder.close()


def refuse_third(record: bytes) -> Terms:
    terms = terms_of(record)
    if terms.message_id == b"third":
        raise ValueError("not a record")
    return terms


def test_the_check_names_a_damaged_record_once(damaged: Store) -> None:
    assert find_faults(damaged) == ["message 2: its record cannot be read"]
