"""Bytes between real clients and a real RocketMQ 5.5.0: all of them can be read, and are written the same way.

`recorded/` holds the captures, made by `compat.recorder`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gateway.wire.bodies import (
    GroupSettings,
    Heartbeat,
    LockRequest,
    TopicSettings,
    encode_cluster_info,
    encode_consumer_list,
    encode_group_settings,
    encode_locked,
    encode_route,
    encode_topic_list,
    encode_topic_settings,
    read_body,
)
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import (
    Command,
    decode_command,
    encode_command,
    encode_response,
    pull_response,
    send_response,
)
from gateway.wire.dialect import to_json
from gateway.wire.fields import to_ext
from gateway.wire.frames import JSON, Frame, FrameBuffer, join_frame
from gateway.wire.headers import FIELDS_OF_REQUESTS
from gateway.wire.messages import (
    decode_messages,
    encode_again,
    encode_batch,
    offset_msg_id,
    parse_offset_msg_id,
    split_batch,
    stamp,
)
from gateway.wire.recall import RecallHandle
from recording.format import Kind, read_capture

CAPTURES = sorted((Path(__file__).parent / "recorded").glob("*.capture"))
SENDS = {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
PULLS = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}
FOUND = PULLS | {RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID}
"""Requests whose responses have records."""


class Seen(NamedTuple):
    """One frame of a capture. `request` is the code of the request that the frame is or answers."""

    data: bytes
    frame: Frame
    command: Command
    request: RequestCode

    @property
    def is_success(self) -> bool:
        return self.command.is_response and self.command.code == ResponseCode.SUCCESS


def seen_in(capture: Path) -> Iterator[Seen]:
    """Yield all frames of a capture whose request is in it."""
    asked: dict[tuple[int, Kind, int], RequestCode] = {}
    for record in read_capture(capture):
        if record.kind not in (Kind.FROM_CLIENT, Kind.FROM_SERVER):
            continue
        [frame] = FrameBuffer().feed(record.data)
        command = decode_command(frame)
        asker = Kind.FROM_CLIENT
        if (record.kind is Kind.FROM_CLIENT) == command.is_response:
            asker = Kind.FROM_SERVER
        place = (record.connection, asker, command.opaque)
        if not command.is_response:
            asked[place] = RequestCode(command.code)
        if place in asked:
            yield Seen(record.data, frame, command, asked[place])


SEEN = [one for capture in CAPTURES for one in seen_in(capture)]


def header_of(data: bytes) -> Any:
    """Return a frame's JSON header, read by Python's own reader, with empty fields if it has none."""
    size = int.from_bytes(data[5:8], "big")
    return {"extFields": {}} | json.loads(data[8 : 8 + size])


def plain(body: bytes) -> Any:
    """Return the content of a body in any dialect."""
    return json.loads(to_json(body))


def test_there_is_what_the_others_look_at() -> None:
    answered = {one.request for one in SEEN if one.is_success}
    assert answered >= {
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.HEART_BEAT,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.RECALL_MESSAGE,
        RequestCode.GET_TOPIC_STATS_INFO,
    }
    assert {one.command.language for one in SEEN} >= {"JAVA", "CPP"}
    assert any("recallHandle" in one.command.ext() for one in SEEN if one.request in SENDS)


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: capture.stem)
@pytest.mark.parametrize("size", [1, 7, 1000, 65_536])
def test_streams_are_cut_into_the_frames_that_were_sent(capture: Path, size: int) -> None:
    streams: dict[tuple[int, Kind], list[bytes]] = {}
    for record in read_capture(capture):
        if record.kind in (Kind.FROM_CLIENT, Kind.FROM_SERVER):
            streams.setdefault((record.connection, record.kind), []).append(record.data)
    for sent in streams.values():
        stream = b"".join(sent)
        buffer = FrameBuffer()
        frames: list[Frame] = []
        for at in range(0, len(stream), size):
            frames += buffer.feed(stream[at : at + size])
        assert [join_frame(*frame) for frame in frames] == sent
        assert buffer.pending == 0


def test_headers_are_written_as_they_were() -> None:
    for data, (kind, header, _), command, _ in SEEN:
        assert kind == JSON
        ext = command.ext()
        written = encode_command(
            command.code,
            command.opaque,
            flag=command.flag,
            ext=ext if "extFields" in json.loads(header) else None,
            body=command.body,
            remark=command.remark,
            language=command.language,
            version=command.version,
        )
        if command.language == "JAVA":
            assert written == data
        else:
            recorded = {"serializeTypeCurrentRPC": "JSON"} | header_of(data)
            recorded["extFields"] = {k: str(v) for k, v in recorded["extFields"].items()}
            assert header_of(written) == recorded


def test_fields_are_read_and_written_as_they_were() -> None:
    for one in SEEN:
        kind = FIELDS_OF_REQUESTS.get(one.request)
        if kind is None or one.command.is_response:
            continue
        ext = one.command.ext()
        written = to_ext(one.command.fields(kind))
        for name in ext.keys() & written.keys():
            # The C++ client writes booleans as numbers.
            assert written[name] in (ext[name], {"0": "false", "1": "true"}.get(ext[name]))
        assert not {name for name in ext if name in kind.__struct_encode_fields__} - set(written)


def test_answers_are_written_as_they_were() -> None:
    for one in SEEN:
        command, ext = one.command, one.command.ext()
        if not command.is_response:
            continue
        written = encode_response(
            command.opaque, command.code, ext=ext, remark=command.remark, body=command.body
        )
        if command.language == "JAVA" and command.version == 513:
            assert header_of(written) == header_of(one.data)
        if one.is_success and one.request in SENDS:
            written = send_response(
                command.opaque,
                ext["msgId"],
                int(ext["queueId"]),
                int(ext["queueOffset"]),
                ext.get("transactionId"),
                ext.get("recallHandle"),
            )
            assert header_of(written) == header_of(one.data)
        if one.request in PULLS and "nextBeginOffset" in ext:
            written = pull_response(
                command.opaque,
                command.code,
                command.remark or "",
                int(ext["nextBeginOffset"]),
                int(ext["minOffset"]),
                int(ext["maxOffset"]),
                command.body,
            )
            assert header_of(written) == header_of(one.data)
            assert written.endswith(command.body)


def test_records_are_written_as_they_were() -> None:
    bodies = [one.command.body for one in SEEN if one.is_success and one.request in FOUND]
    assert bodies
    for body in bodies:
        messages = decode_messages(body)
        records = [encode_again(message) for message in messages]
        assert b"".join(records) == body
        for message, record in zip(messages, records, strict=True):
            assert stamp(record, message.queue_offset, message.store_ms) == record


def test_batches_are_written_as_they_were() -> None:
    batches = [
        one.command.body
        for one in SEEN
        if one.request is RequestCode.SEND_BATCH_MESSAGE and not one.command.is_response
    ]
    assert batches
    for body in batches:
        assert encode_batch(split_batch(body)) == body


def test_ids_and_handles_are_written_as_they_were() -> None:
    for one in SEEN:
        if one.is_success and one.request in SENDS:
            ext = one.command.ext()
            for message_id in ext["msgId"].split(","):
                assert offset_msg_id(*parse_offset_msg_id(message_id)) == message_id
            if "recallHandle" in ext:
                assert RecallHandle.parse(ext["recallHandle"]).encode() == ext["recallHandle"]


def test_bodies_of_clients_are_read() -> None:
    for one in SEEN:
        if one.command.is_response:
            continue
        body = one.command.body
        if one.request is RequestCode.HEART_BEAT:
            said = plain(body)
            heartbeat = read_body(body, Heartbeat)
            assert heartbeat.client_id == said["clientID"]
            assert {data.group_name for data in heartbeat.consumer_data_set} == {
                data["groupName"] for data in said.get("consumerDataSet") or []
            }
        elif one.request in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            assert len(read_body(body, LockRequest).mq_set) == len(plain(body)["mqSet"])
        elif one.request is RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
            assert read_body(body, GroupSettings).group_name == plain(body)["groupName"]


def test_bodies_of_servers_are_written_as_they_were() -> None:
    for one in SEEN:
        body = one.command.body
        if not one.is_success or body[:1] != b"{":
            continue
        said = plain(body)
        written = written_again(one.request, body, said)
        if written is not None:
            assert json.loads(written) == said


def written_again(request: RequestCode, body: bytes, said: Any) -> bytes | None:
    """Return the body of a response as the gateway writes it, or None for a body it does not write."""
    if request is RequestCode.GET_ROUTEINFO_BY_TOPIC:
        [broker], [queues] = said["brokerDatas"], said["queueDatas"]
        settings = TopicSettings(
            "T",
            queues["readQueueNums"],
            queues["writeQueueNums"],
            queues["perm"],
            topic_sys_flag=queues["topicSysFlag"],
        )
        return encode_route(
            broker["cluster"], broker["brokerName"], broker["brokerAddrs"]["0"], settings
        )
    if request is RequestCode.GET_BROKER_CLUSTER_INFO:
        [broker] = said["brokerAddrTable"].values()
        return encode_cluster_info(
            broker["cluster"], broker["brokerName"], broker["brokerAddrs"]["0"]
        )
    if request is RequestCode.GET_ALL_TOPIC_LIST:
        return encode_topic_list(said["topicList"])
    if request is RequestCode.GET_CONSUMER_LIST_BY_GROUP:
        return encode_consumer_list(said["consumerIdList"])
    if request is RequestCode.GET_TOPIC_CONFIG:
        return encode_topic_settings(read_body(body, TopicSettings))
    if request is RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG:
        return encode_group_settings(read_body(body, GroupSettings))
    if request is RequestCode.LOCK_BATCH_MQ:
        asked = {"clientId": "", "consumerGroup": "", "mqSet": said["lockOKMQSet"]}
        return encode_locked(read_body(json.dumps(asked).encode(), LockRequest).mq_set)
    return None
