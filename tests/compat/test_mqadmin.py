"""RocketMQ's own `mqadmin` 5.5.0 with a real gateway process, while real clients work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from compat.clients.driver import Driver, Sent, until
from compat.clients.java import JavaClient, Version
from compat.java_tools import Mqadmin
from gateway.wire.codes import RequestCode, ResponseCode
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live

CLUSTER = "DefaultCluster"
LIMITS = "+max.held.messages=100000,+max.held.bytes=1GiB,+max.send.rate=500,+max.delay=30d,+retention=24h"
PRODUCERS = RequestCode.GET_PRODUCER_CONNECTION_LIST


@dataclass(frozen=True)
class Scene:
    """The scene: a producer, a push consumer of the group `readers` that has consumed `sent`, and a pending message."""

    address: str
    sent: Sent
    waiting: Sent


@pytest.fixture(scope="module")
def scene(
    tmp_path_factory: pytest.TempPathFactory, drivers: dict[Version, Driver]
) -> Iterator[Scene]:
    """Run the gateway and its clients."""
    driver = drivers["5.5.0"]
    driver.start()
    folder = tmp_path_factory.mktemp("gateway")
    with (
        GatewayProcess(folder / "data") as gateway,
        JavaClient(gateway.address, driver=driver, heartbeat_ms=1_000) as client,
    ):
        client.create_topic("orders", 2)
        sent = client.send("orders", b"hello", tags="red", keys="key-1", queue=1)
        waiting = client.send("orders", b"later", keys="key-2", delay_time_sec=3600, queue=1)
        client.consume("orders", "readers").wait_for(1)
        asked = {"consumerGroup": "readers", "topic": "orders", "queueId": "1"}
        with gateway.client() as tool:
            until(
                lambda: tool.ask(RequestCode.QUERY_CONSUMER_OFFSET, asked).ext()["offset"] == "1",
                "the report of the consumer's progress",
            )
            # A producer that knows no broker at its start registers later.
            until(
                lambda: (
                    tool.ask(PRODUCERS, {"producerGroup": "senders"}).code == ResponseCode.SUCCESS
                ),
                "the producer's heartbeat",
            )
        yield Scene(gateway.address, sent, waiting)


def lines_of(scene: Scene) -> list[list[str]]:
    """Return the commands in the order in which they are run, in lists that do not depend on each other.

    `sendMessage`, `consumeMessage` and `queryMsgByUniqueKey` work only once in a JVM: each closes its client but keeps
    it for the next run.
    """
    broker = scene.address
    seen = [
        "clusterList",
        "topicList",
        "topicList -c",
        "topicStatus -t orders",
        "topicRoute -t orders",
        "topicClusterList -t orders",
        f"brokerStatus -b {broker}",
        "statsAll -t orders",
        f"getBrokerConfig -b {broker}",
        f"brokerConsumeStats -b {broker}",
        f"haStatus -b {broker}",
        f"queryCq -t orders -q 1 -i 0 -c 5 -b {broker} -g readers",
        "getConsumerConfig -g readers",
        "allocateMQ -t orders -i 192.0.2.1,192.0.2.2",
        f"queryMsgByUniqueKey -t orders -i {scene.waiting.msg_id}",
    ]
    found = [
        "consumerProgress",
        "consumerConnection -g readers",
        "consumerStatus -g readers",
        "producerConnection -g senders -t orders",
        f"producer -b {broker}",
        "queryMsgByKey -t orders -k key-1",
        f"queryMsgByUniqueKey -t orders -i {scene.sent.msg_id}",
        f"queryMsgById -t orders -i {scene.sent.offset_msg_id}",
        "queryMsgByOffset -t orders -b broker-a -i 1 -o 0",
        "printMsg -t orders",
        "consumerProgress -g readers",
    ]
    changed = [
        f"updateTopic -c {CLUSTER} -t made -r 3 -w 3 -a +message.type=DELAY",
        f"updateTopic -b {broker} -t ordered -r 1 -w 1 -o true",
        f"updateTopic -b {broker} -t limited -a {LIMITS}",
        f"updateTopic -b {broker} -t limited -a -max.send.rate",
        f"updateTopicPerm -b {broker} -t made -p 4",
        f"updateTopicPerm -c {CLUSTER} -t made -p 6",
        "sendMessage -t made -p text -k k -c tag",
        "consumeMessage -t made",
        f"updateSubGroup -c {CLUSTER} -g late -r 4",
        "resetOffsetByTime -g late -t orders -s 0",
        "skipAccumulatedMessage -g late -t orders",
        "cloneGroupOffset -s readers -d late -t orders",
        f"updateBrokerConfig -b {broker} -k maxMessageSize -v 2048",
        f"updateBrokerConfig -b {broker} -k brokerName -v other",
        f"updateBrokerConfig -c {CLUSTER} -k nosuch -v 1",
        "wipeWritePerm -b broker-a",
        "addWritePerm -b broker-a",
        f"cleanUnusedTopic -b {broker}",
        f"queryMsgByUniqueKey -c {CLUSTER} -t rmq_sys_wheel_timer -i {scene.waiting.msg_id}",
        f"exportMetadata -c {CLUSTER} -f FOLDER",
        f"deleteSubGroup -c {CLUSTER} -g late -r true",
        f"deleteTopic -c {CLUSTER} -t made",
    ]
    return [seen, found, changed]


@pytest.fixture(scope="module")
def printed(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The output of every command, by command, with blanks for what differs from run to run."""
    folder = str(tmp_path_factory.mktemp("export"))

    def run(tool: Mqadmin, lines: list[str]) -> dict[str, str]:
        return {line: tool.run(*line.replace("FOLDER", folder).split()) for line in lines}

    lists = lines_of(scene)
    with ExitStack() as stack, ThreadPoolExecutor(len(lists)) as pool:
        tools = [stack.enter_context(Mqadmin(scene.address)) for _ in lists]
        results: dict[str, str] = {}
        for part in pool.map(run, tools, lists):
            results |= part
    results["metadata.json"] = Path(folder, "metadata.json").read_text()
    return {
        line.replace(scene.address, "ADDRESS")
        .replace(scene.sent.msg_id, "SENT")
        .replace(scene.waiting.msg_id, "WAITING")
        .replace(scene.sent.offset_msg_id or "-", "OFFSET"): text
        for line, text in results.items()
    }


def rows(text: str) -> list[list[str]]:
    """Return the cells of a printed table, without its heading."""
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def test_no_command_fails(printed: dict[str, str]) -> None:
    expected = {
        "updateBrokerConfig -b ADDRESS -k brokerName -v other",
        f"updateBrokerConfig -c {CLUSTER} -k nosuch -v 1",
        # Upstream prints an exception here as well, and continues.
        "updateTopic -b ADDRESS -t ordered -r 1 -w 1 -o true",
    }
    failed = {line for line, text in printed.items() if "\n\tat " in text}
    assert failed == expected, "\n".join(printed[line] for line in failed - expected)


class TestBroker:
    def test_cluster_list(self, printed: dict[str, str], scene: Scene) -> None:
        [row] = rows(printed["clusterList"])
        assert row[:5] == [CLUSTER, "broker-a", "0", scene.address, "V5_5_0"]
        assert row[-1] == "true"

    def test_status(self, printed: dict[str, str]) -> None:
        figures = dict(
            re.split(r"\s*: ", line, maxsplit=1)
            for line in printed["brokerStatus -b ADDRESS"].splitlines()
        )
        assert figures["brokerVersionDesc"] == "V5_5_0"
        assert int(figures["msgPutTotalTodayNow"]) >= 2
        assert figures["timerCongestNum"] == "1"

    def test_settings(self, printed: dict[str, str]) -> None:
        text = printed["getBrokerConfig -b ADDRESS"]
        assert re.search(r"maxMessageSize +=  (4194304|2048)\n", text)
        assert re.search(r"timerMaxDelaySec +=  63072000\n", text)
        assert "success" in printed["updateBrokerConfig -b ADDRESS -k maxMessageSize -v 2048"]
        refused = printed["updateBrokerConfig -b ADDRESS -k brokerName -v other"]
        assert "brokerName cannot be changed while the gateway serves" in refused
        assert (
            "there is no setting nosuch"
            in printed[f"updateBrokerConfig -c {CLUSTER} -k nosuch -v 1"]
        )

    def test_replicas(self, printed: dict[str, str]) -> None:
        assert re.search(r"#SlaveNum\s+0", printed["haStatus -b ADDRESS"])

    def test_write_permission(self, printed: dict[str, str]) -> None:
        assert " OK, " in printed["wipeWritePerm -b broker-a"]
        assert " OK, " in printed["addWritePerm -b broker-a"]

    def test_clean_up(self, printed: dict[str, str]) -> None:
        assert printed["cleanUnusedTopic -b ADDRESS"] == "success"


class TestTopics:
    def test_lists(self, printed: dict[str, str]) -> None:
        names = set(printed["topicList"].split())
        assert {"orders", "%RETRY%readers", "TBW102", CLUSTER, "broker-a"} <= names
        assert [CLUSTER, "orders", "readers"] in rows(printed["topicList -c"])
        assert printed["topicClusterList -t orders"] == CLUSTER

    def test_status(self, printed: dict[str, str]) -> None:
        table = {row[1]: row[2:4] for row in rows(printed["topicStatus -t orders"])[:2]}
        assert table == {"0": ["0", "0"], "1": ["0", "1"]}

    def test_route(self, printed: dict[str, str], scene: Scene) -> None:
        text = printed["topicRoute -t orders"]
        assert f'0:"{scene.address}"' in text
        assert '"writeQueueNums":2' in text

    def test_entries_of_a_queue(self, printed: dict[str, str]) -> None:
        text = printed["queryCq -t orders -q 1 -i 0 -c 5 -b ADDRESS -g readers"]
        assert "max: 1, min: 0" in text
        assert f"tagsCode={112785}" in text  # "red".hashCode()
        assert '"subString":"*"' in text

    def test_create_change_delete(self, printed: dict[str, str]) -> None:
        created = printed[f"updateTopic -c {CLUSTER} -t made -r 3 -w 3 -a +message.type=DELAY"]
        assert "create topic to" in created
        assert "readQueueNums=3" in created
        assert "from 6 to 4" in printed["updateTopicPerm -b ADDRESS -t made -p 4"]
        assert "from 4 to 6" in printed[f"updateTopicPerm -c {CLUSTER} -t made -p 6"]
        assert "SEND_OK" in printed["sendMessage -t made -p text -k k -c tag"]
        assert "body=text" in printed["consumeMessage -t made"].replace(
            "[116, 101, 120, 116]", "text"
        )
        limited = printed[f"updateTopic -b ADDRESS -t limited -a {LIMITS}"]
        assert "create topic to" in limited
        assert "+max.held.bytes=1GiB" in limited
        assert "create topic to" in printed["updateTopic -b ADDRESS -t limited -a -max.send.rate"]
        deleted = printed[f"deleteTopic -c {CLUSTER} -t made"]
        assert deleted.count("success") == 2
        assert (
            "orderConf=[broker-a:1]"
            in printed["updateTopic -b ADDRESS -t ordered -r 1 -w 1 -o true"]
        )


class TestGroups:
    def test_progress(self, printed: dict[str, str]) -> None:
        table = rows(printed["consumerProgress -g readers"])
        [place] = [row for row in table if row[:3] == ["orders", "broker-a", "1"]]
        assert place[3:7] == ["1", "1", "0", "0"]
        assert {"readers"} <= {row[0] for row in rows(printed["consumerProgress"])}
        consumed = rows(printed["brokerConsumeStats -b ADDRESS"])
        assert ["orders", "readers", "broker-a"] in [row[:3] for row in consumed]

    def test_clients(self, printed: dict[str, str]) -> None:
        connected = printed["consumerConnection -g readers"]
        assert "JAVA" in connected
        assert "MessageModel: CLUSTERING" in connected
        assert re.search(r"^orders +\*$", connected, re.MULTILINE)
        assert "V5_5_0" in printed["consumerStatus -g readers"]
        assert "JAVA" in printed["producerConnection -g senders -t orders"]
        assert "producer group (senders)" in printed["producer -b ADDRESS"]

    def test_settings(self, printed: dict[str, str]) -> None:
        assert re.search(r"retryMaxTimes +=  16", printed["getConsumerConfig -g readers"])
        assert "groupName=late" in printed[f"updateSubGroup -c {CLUSTER} -g late -r 4"]
        assert (
            "delete subscription group [late]"
            in printed[f"deleteSubGroup -c {CLUSTER} -g late -r true"]
        )

    def test_offsets(self, printed: dict[str, str]) -> None:
        begin = rows(printed["resetOffsetByTime -g late -t orders -s 0"])
        assert [row for row in begin if row[0] == "broker-a"]
        assert all(row[2] == "0" for row in begin if row[0] == "broker-a")
        end = {row[1]: row[2] for row in rows(printed["skipAccumulatedMessage -g late -t orders"])}
        assert end == {"0": "0", "1": "1"}
        assert (
            "clone group offset success" in printed["cloneGroupOffset -s readers -d late -t orders"]
        )

    def test_rates(self, printed: dict[str, str]) -> None:
        table = rows(printed["statsAll -t orders"])
        [row] = [row for row in table if row[:2] == ["orders", "readers"]]
        assert row[-2:] == ["1", "1"]


class TestMessages:
    def test_by_key(self, printed: dict[str, str], scene: Scene) -> None:
        [row] = rows(printed["queryMsgByKey -t orders -k key-1"])
        assert row[:3] == [scene.sent.msg_id, "1", "0"]

    @pytest.mark.parametrize(
        "command",
        [
            "queryMsgByUniqueKey -t orders -i SENT",
            "queryMsgById -t orders -i OFFSET",
            "queryMsgByOffset -t orders -b broker-a -i 1 -o 0",
        ],
    )
    def test_by_id(self, printed: dict[str, str], command: str) -> None:
        text = printed[command]
        assert re.search(r"Topic: +orders\n", text)
        assert re.search(r"Queue Offset: +0\n", text)
        assert "red" in text
        assert "readers" in text
        assert "CONSUMED" in text

    @pytest.mark.parametrize("where", ["-t orders", f"-c {CLUSTER} -t rmq_sys_wheel_timer"])
    def test_what_has_not_fired(self, printed: dict[str, str], where: str) -> None:
        text = printed[f"queryMsgByUniqueKey {where} -i WAITING"]
        assert "key-2" in text
        assert "TIMER_OUT_MS" in text
        assert "consumerGroup=readers, trackType=NOT_CONSUME_YET" in text

    def test_printed(self, printed: dict[str, str], scene: Scene) -> None:
        text = printed["printMsg -t orders"]
        assert f"MSGID: {scene.sent.msg_id}" in text
        assert scene.waiting.msg_id not in text

    def test_exported(self, printed: dict[str, str]) -> None:
        assert '"orders"' in printed["metadata.json"]
        assert '"readers"' in printed["metadata.json"]
