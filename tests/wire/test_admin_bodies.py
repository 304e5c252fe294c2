"""Bodies of tools: read in any dialect, and written as Java reads them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.admin_bodies import (
    DataVersion,
    encode_changes,
    encode_subscription,
    encode_version,
    parse_changes,
    parse_group_settings,
    parse_group_settings_list,
    parse_topic_settings_list,
    subscription_data,
)
from gateway.wire.bodies import BodyError, MessageQueue, Subscription
from gateway.wire.progress_bodies import (
    Progress,
    QueueEnds,
    TimeSpan,
    encode_all_offsets,
    encode_broker_consume_stats,
    encode_consume_stats,
    encode_offsets_by_queue,
    encode_progress,
    encode_stats_of_group,
    encode_time_spans,
    encode_topic_stats,
)

QUEUE = MessageQueue("T", "broker-a", 1)
KEY = b'{"topic":"T","brokerName":"broker-a","queueId":1}'
names = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1).filter(
    lambda text: "=" not in text and not text.startswith("#")
)


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have times written in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_maps_keyed_by_queues_are_as_java_writes_them() -> None:
    assert encode_offsets_by_queue([(QUEUE, 12)]) == b'{"offsetTable":{' + KEY + b":12}}"
    assert encode_topic_stats([QueueEnds(QUEUE, 2, 5, 99)], 0.5) == (
        b'{"offsetTable":{'
        + KEY
        + b':{"lastUpdateTimestamp":99,"maxOffset":5,"minOffset":2}},"topicPutTps":0.5}'
    )
    part = encode_progress([Progress(QUEUE, 9, 4, 6, 77)])
    row = KEY + b':{"brokerOffset":9,"consumerOffset":4,"lastTimestamp":77,"pullOffset":6}'
    assert encode_consume_stats([part, b"", part], 1.0) == (
        b'{"consumeTps":1.0,"offsetTable":{' + row + b"," + row + b"}}"
    )
    assert encode_consume_stats([], 0.0) == b'{"consumeTps":0.0,"offsetTable":{}}'


def test_progress_of_all_groups() -> None:
    parts = [encode_progress([Progress(QUEUE, 9, 4, 6, 0)])]
    groups = [encode_stats_of_group("G", [(parts, 1.0)]), encode_stats_of_group("H", [])]
    body = encode_broker_consume_stats("a:1", groups, 5, 2)
    assert body.startswith(b'{"brokerAddr":"a:1","consumeStatsList":[{"G":[{"consumeTps":1.0,')
    assert body.endswith(b'{"H":[]}],"totalDiff":5,"totalInflightDiff":2}')


def test_offsets_of_all_groups() -> None:
    body = encode_all_offsets(DataVersion(0, 5), {"G": ["T"]}, {"T@G": {0: 3, 1: 4}})
    assert json.loads(body)["offsetTable"] == {"T@G": {"0": 3, "1": 4}}


def test_times_are_written_for_people_too(utc: None) -> None:
    [span] = json.loads(encode_time_spans([TimeSpan(QUEUE, 0, 1_795_262_912_398, 5, 7)]))[
        "consumeTimeSpanSet"
    ]
    assert span["maxTimeStampStr"] == "2026-11-21#12:08:32:398"
    assert span["minTimeStampStr"] == "1970-01-01#00:00:00:000"
    assert span["messageQueue"] == {"topic": "T", "brokerName": "broker-a", "queueId": 1}


@pytest.mark.parametrize(
    ("sub_string", "kind", "tags"),
    [
        ("*", "TAG", []),
        (" * ", "TAG", ["*"]),
        ("", "TAG", []),
        (" A || B||", "TAG", ["A", "B"]),
        ("\u3000A ||\xa0", "TAG", ["\u3000A", "\xa0"]),
        ("a > 1 || b", "SQL92", []),
    ],
)
def test_tags_of_a_subscription(sub_string: str, kind: str, tags: list[str]) -> None:
    data = subscription_data(Subscription("T", sub_string, 3, kind))
    assert data["tagsSet"] == tags
    assert len(data["codeSet"]) == len(tags)
    assert (data["subString"], data["subVersion"]) == (sub_string, 3)


def test_a_group_that_is_offline_has_no_subscription() -> None:
    assert encode_subscription("G", "T", None) == b'{"group":"G","topic":"T"}'


def test_versions() -> None:
    assert json.loads(encode_version(DataVersion(2, 30))) == {
        "counter": 2,
        "stateVersion": 0,
        "timestamp": 30,
    }


class TestChanges:
    def test_lines(self) -> None:
        text = b"a=1\r\n\n# said\n b = x=y \n  #c=3\nd=\n"
        assert parse_changes(text) == {"a": "1", "b": "x=y", "d": ""}

    @pytest.mark.parametrize("text", [b"hello", b"a=1\nhello", b"=1"])
    def test_what_is_no_change(self, text: bytes) -> None:
        with pytest.raises(BodyError, match="lines of name=value"):
            parse_changes(text)

    @given(st.dictionaries(names, names))
    def test_what_is_written_can_be_read(self, values: dict[str, str]) -> None:
        assert parse_changes(encode_changes(values)) == values

    @given(st.binary())
    def test_any_bytes_are_read_or_refused(self, body: bytes) -> None:
        try:
            changes = parse_changes(body)
        except BodyError:
            return
        assert all(name and name == name.strip() for name in changes)


class TestLists:
    def test_topics_in_fastjsons_dialect(self) -> None:
        body = (
            b'{"topicConfigList":[{topicName:"T","readQueueNums":"3",writeQueueNums:4,"perm":6,'
            b'"attributes":null,"unknown":{1:2}}]}'
        )
        [settings] = parse_topic_settings_list(body)
        assert (settings.topic_name, settings.read_queue_nums) == ("T", 3)
        assert settings.attributes == {}

    def test_groups(self) -> None:
        [settings] = parse_group_settings_list(b'{"groupConfigList":[{"groupName":"G"}]}')
        assert (settings.group_name, settings.retry_max_times) == ("G", 16)

    @pytest.mark.parametrize(
        ("parse", "body"),
        [
            (parse_topic_settings_list, b'{"topicConfigList":[%b]}'),
            (parse_group_settings_list, b'{"groupConfigList":[%b]}'),
            (parse_group_settings, b'{"groupName":"G","unknown":[%b]}'),
        ],
    )
    @pytest.mark.parametrize("part", [b"{}", b"[]"])
    def test_what_is_too_much_to_read_is_refused_unread(
        self, parse: Callable[[bytes], object], body: bytes, part: bytes
    ) -> None:
        with pytest.raises(BodyError, match=r"100002 objects and lists; 100000 are possible$"):
            parse(body % b",".join([part] * 100_000))

    @given(st.binary() | st.text('{}[]":,topicConfgLis1', max_size=60).map(str.encode))
    def test_any_bytes_are_read_or_refused(self, body: bytes) -> None:
        with suppress(BodyError):
            assert isinstance(parse_topic_settings_list(body), list)
