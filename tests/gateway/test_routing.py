"""The name server's routes (105, 106, 206, 224), which tell clients where to connect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.settings.values import HostPort
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.dialect import to_json
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import MemoryClient, MemoryGateway


def route(client: MemoryClient, topic: str, version: int = 513) -> dict[str, Any]:
    """Return a topic's route."""
    answer = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, version=version)
    assert answer.code == ResponseCode.SUCCESS
    found: dict[str, Any] = json.loads(to_json(answer.body))
    return found


def topics(client: MemoryClient, code: int, ext: dict[str, str] | None = None) -> list[str]:
    """Return a list of topics."""
    names: list[str] = json.loads(client.ask(code, ext).body)["topicList"]
    return names


class TestRoute:
    @pytest.mark.parametrize("version", [317, 333, 399, 513])
    def test_of_a_topic(self, client: MemoryClient, version: int) -> None:
        client.send_message("orders", fields={"topic_queues": 3})
        assert route(client, "orders", version) == {
            "brokerDatas": [
                {
                    "brokerAddrs": {"0": "127.0.0.1:9876"},
                    "brokerName": "broker-a",
                    "cluster": "DefaultCluster",
                    "enableActingMaster": False,
                }
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": "broker-a",
                    "perm": 6,
                    "readQueueNums": 3,
                    "topicSysFlag": 0,
                    "writeQueueNums": 3,
                }
            ],
        }

    def test_of_the_template_for_new_topics(self, client: MemoryClient) -> None:
        [data] = route(client, "TBW102")["queueDatas"]
        assert (data["perm"], data["writeQueueNums"]) == (7, 8)

    @pytest.mark.parametrize("name", ["DefaultCluster", "broker-a"])
    def test_of_cluster_and_broker(self, client: MemoryClient, name: str) -> None:
        """Tools use them to look for messages."""
        assert len(route(client, name)["brokerDatas"]) == 1

    def test_of_a_retry_topic(self, client: MemoryClient) -> None:
        client.heartbeat("c1", "workers")
        [data] = route(client, "%RETRY%workers")["queueDatas"]
        assert (data["perm"], data["readQueueNums"]) == (6, 1)

    @pytest.mark.parametrize("topic", ["none", "", "a b", "x" * 5_000])
    def test_unknown(self, client: MemoryClient, topic: str) -> None:
        answer = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert answer.remark == (
            f"No topic route info in name server for the topic: {topic}\n"
            "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
        )

    def test_with_names_and_address_of_ones_own(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(
            broker_name="b1", cluster_name="c1", advertise=HostPort("192.0.2.7", 1234)
        )
        client = gateway.connect()
        client.send_message()
        [broker] = route(client, "orders")["brokerDatas"]
        assert broker["brokerAddrs"] == {"0": "192.0.2.7:1234"}
        assert (broker["brokerName"], broker["cluster"]) == ("b1", "c1")
        [message] = client.pull()
        assert message.store_host == bytes([192, 0, 2, 7, 0, 0, 4, 210])


def test_cluster_info(client: MemoryClient) -> None:
    info = json.loads(client.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
    assert info["clusterAddrTable"] == {"DefaultCluster": ["broker-a"]}
    assert info["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": "127.0.0.1:9876"}


@pytest.mark.parametrize("version", [0, 1, 400, 401, 513])
def test_addresses_as_the_client_knows_them(client: MemoryClient, version: int) -> None:
    """Some clients from before 4.9.4 find no broker under a key in quotes."""
    client.send_message("orders")
    key = b"0" if version < 401 else b'"0"'
    for code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO):
        body = client.ask(code, {"topic": "orders"}, version=version).body
        assert b'"brokerAddrs":{%b:"127.0.0.1:9876"}' % key in body
        strict = {"topic": "orders", "acceptStandardJsonOnly": "true"}
        assert json.loads(client.ask(code, strict, version=version).body)


def test_topic_lists(gateway: MemoryGateway, client: MemoryClient) -> None:
    client.send_message("orders")
    client.heartbeat("c1", "workers")
    names = topics(client, RequestCode.GET_ALL_TOPIC_LIST)
    assert set(names) >= {"orders", "%RETRY%workers", "TBW102", "DefaultCluster", "broker-a"}
    assert len(names) == len(set(names))
    code = RequestCode.GET_TOPICS_BY_CLUSTER
    assert topics(client, code, {"cluster": "DefaultCluster"}) == names
    assert topics(client, code, {"cluster": "other"}) == []
    gateway.restart()
    assert set(topics(gateway.connect(), RequestCode.GET_ALL_TOPIC_LIST)) == set(names)
