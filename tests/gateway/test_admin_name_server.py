"""Tools' requests to the name server: 100-102, 219, 304, 311-313, 205, 327, 318, 319."""

from __future__ import annotations

import pytest

from gateway import kv_config
from gateway.wire.codes import ResponseCode
from tests.gateway.faults import commits_fail
from tests.gateway.memory import MemoryClient, MemoryGateway
from tests.gateway.tools import create_topic, ok, read


def put(client: MemoryClient, namespace: str, key: str, value: str) -> int:
    return client.ask(100, {"namespace": namespace, "key": key, "value": value}).code


class TestValues:
    def test_kept_over_a_restart(self, gateway: MemoryGateway) -> None:
        client = gateway.connect()
        assert put(client, "N", "K", "V=1;ä") == 0
        assert put(client, "N", "L", "W") == 0
        gateway.crash()
        client = gateway.connect()
        assert ok(client.ask(101, {"namespace": "N", "key": "K"})).ext() == {"value": "V=1;ä"}
        assert read(client.ask(219, {"namespace": "N"})) == {"table": {"K": "V=1;ä", "L": "W"}}

    def test_changed_and_deleted(self, client: MemoryClient) -> None:
        put(client, "N", "K", "1")
        put(client, "N", "K", "2")
        assert client.ask(101, {"namespace": "N", "key": "K"}).ext()["value"] == "2"
        ok(client.ask(102, {"namespace": "N", "key": "K"}))
        ok(client.ask(102, {"namespace": "N", "key": "K"}))
        answer = client.ask(101, {"namespace": "N", "key": "K"})
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert answer.remark == "No config item, Namespace: N Key: K"
        assert read(client.ask(219, {"namespace": "N"})) == {"table": {}}

    def test_what_could_not_be_stored_is_not_there(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        put(client, "N", "K", "1")
        with commits_fail(gateway):
            assert put(client, "N", "K", "2") == ResponseCode.SERVICE_NOT_AVAILABLE
            assert client.ask(102, {"namespace": "N", "key": "K"}).code != 0
        assert client.ask(101, {"namespace": "N", "key": "K"}).ext() == {"value": "1"}

    def test_too_many(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are kept in memory, and an answer with all of a namespace has room for 16 MiB."""
        monkeypatch.setattr(kv_config, "MAX_SIZE", 3_000)
        assert put(client, "N", "K", "v" * 1_500) == 0
        for _ in range(2):
            assert put(client, "M", "K", "v" * 1_500) == ResponseCode.INVALID_PARAMETER
            assert client.ask(101, {"namespace": "M", "key": "K"}).code != 0
            assert put(client, "N", "K", "w" * 2_900) == 0
            assert put(client, "N", "K", "w" * 3_000) == ResponseCode.INVALID_PARAMETER
            assert put(client, "N", "K", "v" * 1_500) == 0
            with commits_fail(gateway):
                assert client.ask(102, {"namespace": "N", "key": "K"}).code != 0
            gateway.crash()
            client = gateway.connect()
        ok(client.ask(102, {"namespace": "N", "key": "K"}))
        assert put(client, "M", "K", "ä" * 1_400) == 0

    def test_an_unknown_namespace(self, client: MemoryClient) -> None:
        answer = client.ask(219, {"namespace": "NN"})
        assert (answer.code, answer.remark) == (22, "No config item, Namespace: NN")

    @pytest.mark.parametrize(("namespace", "key"), [("N", "k" * 500), ("a\0b", "k"), ("N", "\0")])
    def test_names_that_cannot_be_stored(
        self, client: MemoryClient, namespace: str, key: str
    ) -> None:
        assert put(client, namespace, key, "v") == ResponseCode.INVALID_PARAMETER
        assert client.ask(219, {"namespace": namespace}).code == ResponseCode.QUERY_NOT_FOUND


def test_names_of_broker_and_cluster(client: MemoryClient) -> None:
    assert read(client.ask(304)) == {
        "brokerAddr": "127.0.0.1:9876",
        "topicList": ["broker-a", "DefaultCluster"],
    }


@pytest.mark.parametrize(
    ("code", "listed"), [(311, ["U1", "U3"]), (312, ["U2", "U3"]), (313, ["U2"])]
)
def test_topics_by_unit(client: MemoryClient, code: int, listed: list[str]) -> None:
    for flag in range(5):
        create_topic(client, f"U{flag}", topicSysFlag=str(flag))
    assert read(client.ask(code)) == {"topicList": listed}


class TestWritePermission:
    def perm(self, client: MemoryClient) -> int:
        [data] = read(client.ask(105, {"topic": "T"}))["queueDatas"]
        perm: int = data["perm"]
        return perm

    def test_wiped_and_given_back(self, client: MemoryClient) -> None:
        create_topic(client, "T")
        topics = len(read(client.ask(206))["topicList"])
        wiped = ok(client.ask(205, {"brokerName": "broker-a"})).ext()
        assert wiped == {"wipeTopicCount": str(topics)}
        assert self.perm(client) == 4
        assert read(client.ask(351, {"topic": "T"}))["perm"] == 6
        added = ok(client.ask(327, {"brokerName": "broker-a"})).ext()
        assert added == {"addTopicCount": str(topics)}
        assert self.perm(client) == 6

    def test_of_another_broker(self, client: MemoryClient) -> None:
        create_topic(client, "T")
        assert client.ask(205, {"brokerName": "other"}).ext() == {"wipeTopicCount": "0"}
        assert self.perm(client) == 6


def test_settings(client: MemoryClient) -> None:
    body = ok(client.ask(319)).body.decode()
    assert "listenPort=9876\n" in body
    answer = client.ask(318, None, b"listenPort=1\n")
    assert answer.code == ResponseCode.NO_PERMISSION
