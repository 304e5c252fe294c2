"""Settings under upstream's names, read (26) and changed at run time (25)."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.settings.config import Config, descriptions
from gateway.settings.upstream import after, shown
from gateway.settings.values import HostPort
from gateway.wire.codes import ResponseCode
from gateway.wire.commands import Command
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway
from tests.gateway.tools import create_topic, ok
from tests.gateway.transactions import begin, checks, produce

ADVERTISED = HostPort("127.0.0.1", 9876)


def change(client: MemoryClient, *lines: str) -> Command:
    """Change settings as `updateBrokerConfig` does."""
    return client.ask(25, None, "\n".join(lines).encode())


def settings_of(client: MemoryClient) -> dict[str, str]:
    body = ok(client.ask(26)).body.decode()
    return dict(line.split("=", 1) for line in body.splitlines())


class TestSeen:
    def test_upstreams_names_and_units(self, make_gateway: MakeGateway) -> None:
        client = make_gateway(flush="async", max_delay="40d", transaction_timeout="2s").connect()
        settings = settings_of(client)
        assert settings["flushDiskType"] == "ASYNC_FLUSH"
        assert settings["brokerRole"] == "ASYNC_MASTER"
        assert settings["timerMaxDelaySec"] == str(40 * 86_400)
        assert settings["transactionTimeOut"] == "2000"
        assert settings["fileReservedTime"] == "72"
        assert settings["maxMessageSize"] == "4194304"
        assert settings["autoCreateTopicEnable"] == "true"
        assert settings["serverChannelMaxIdleTimeSeconds"] == "120"
        assert settings["brokerName"] == "broker-a"
        assert settings["brokerId"] == "0"
        assert (settings["brokerIP1"], settings["listenPort"]) == ("127.0.0.1", "9876")
        assert settings["messageDelayLevel"].startswith("1s 5s 10s")
        assert settings["disk_reserve"] == "512MiB"

    def test_no_setting_is_missing_but_those_left_out(self, tmp_path: Path) -> None:
        config = Config(data=tmp_path)
        values = shown(config, HostPort("127.0.0.1", 1), 1)
        for entry in descriptions().values():
            name = entry.about.upstream or entry.name
            assert (name in values) == (
                getattr(config, entry.name) is not None or name == "brokerIP1"
            )

    def test_version_counts_changes(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        first = json.loads(client.ask(26).ext()["version"])
        assert first == {"counter": 0, "timestamp": START_MS, "stateVersion": 0}
        gateway.advance(70)
        ok(change(client, "maxMessageSize=4194304"))
        assert json.loads(client.ask(26).ext()["version"]) == first
        ok(change(client, "maxMessageSize=2048"))
        assert json.loads(client.ask(26).ext()["version"])["counter"] == 1


class TestChanged:
    def test_largest_message(self, client: MemoryClient) -> None:
        ok(change(client, "maxMessageSize=2048"))
        assert settings_of(client)["maxMessageSize"] == "2048"
        assert client.send_message(body=b"x" * 2048).code == ResponseCode.SUCCESS
        answer = client.send_message(body=b"x" * 2049)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert answer.remark is not None
        assert "2048B" in answer.remark
        batch = client.send_batch([("y" * 1500, {}), ("z" * 1500, {})])
        assert batch.code == ResponseCode.MESSAGE_ILLEGAL

    def test_delays(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        ok(change(client, "messageDelayLevel=2s 7s", "timerMaxDelaySec=10"))
        assert client.send_message(TIMER_DELAY_SEC="11").code == ResponseCode.MESSAGE_ILLEGAL
        assert client.send_message(TIMER_DELAY_SEC="10").code == ResponseCode.SUCCESS
        client.send_message("levels", DELAY="9")
        [found] = client.look_up(topic="levels")
        assert found["dueMs"] == START_MS + 7_000

    def test_recall(self, client: MemoryClient) -> None:
        sent = client.send_message(TIMER_DELAY_SEC="10")
        ok(change(client, "recallMessageEnable=false"))
        handle = sent.ext()["recallHandle"]
        assert client.recall("orders", handle).code == ResponseCode.NO_PERMISSION
        ok(change(client, "recallMessageEnable=true"))
        assert client.recall("orders", handle).code == ResponseCode.SUCCESS

    def test_creation_by_use(self, client: MemoryClient) -> None:
        create_topic(client, "T")
        ok(change(client, "autoCreateTopicEnable=false", "autoCreateSubscriptionGroup=false"))
        assert client.send_message("new").code == ResponseCode.TOPIC_NOT_EXIST
        answer = client.ask_pull("T", group="new")
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    def test_questions_about_transactions(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        ok(
            change(
                client,
                "transactionTimeOut=1000",
                "transactionCheckInterval=2000",
                "transactionCheckMax=2",
            )
        )
        produce(client)
        begin(client)
        asked: list[int] = []
        for second in range(1, 12):
            gateway.advance(1_000)
            asked += [second] * len(checks(client))
        assert asked == [1, 3]

    def test_pulls(self, client: MemoryClient) -> None:
        for _ in range(5):
            client.send_message(body=b"x" * 600)
        ok(change(client, "maxTransferCountOnMessageInMemory=2"))
        assert len(client.pull()) == 2
        ok(
            change(
                client,
                "maxTransferCountOnMessageInMemory=32",
                "maxTransferBytesOnMessageInMemory=2000",
            )
        )
        assert len(client.pull()) == 2

    def test_property_filter(self, client: MemoryClient) -> None:
        create_topic(client, "T")
        ok(change(client, "enablePropertyFilter=false"))
        request = client.pull_request("T", tags="a = 1") | {"expressionType": "SQL92"}
        answer = client.ask(11, request)
        assert answer.code == ResponseCode.SYSTEM_ERROR

    def test_retention(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message()
        gateway.jump(3_600_000)
        ok(change(gateway.connect(), "fileReservedTime=0.5"))
        gateway.advance(15_000)
        assert gateway.store.queue(b"orders", 0).first == 1

    def test_connections(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        ok(change(client, "max_connections=2", "serverChannelMaxIdleTimeSeconds=5"))
        second = gateway.connect()
        assert not second.refused
        assert gateway.connect().refused
        gateway.advance(20_000)
        assert second.closed

    def test_our_own_names_and_forms(self, client: MemoryClient) -> None:
        ok(change(client, "disk_reserve=1GiB", "max_delay=5d"))
        settings = settings_of(client)
        assert (settings["disk_reserve"], settings["timerMaxDelaySec"]) == ("1GiB", "432000")

    def test_too_many(self, client: MemoryClient) -> None:
        refused = change(client, "max_connections=" + "0" * 65_536)
        assert (refused.code, refused.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "65552 bytes of settings to change; 65536 are possible",
        )

    def test_until_the_next_start(self, gateway: MemoryGateway) -> None:
        ok(change(gateway.connect(), "maxMessageSize=2048"))
        gateway.restart()
        assert settings_of(gateway.connect())["maxMessageSize"] == "4194304"

    def test_nothing_to_change(self, client: MemoryClient) -> None:
        before = settings_of(client)
        ok(change(client))
        ok(change(client, "# a comment", "", "brokerName=broker-a", "brokerRole=SYNC_MASTER"))
        assert settings_of(client) == before

    @pytest.mark.parametrize(
        "advertise", [None, HostPort("192.0.2.7", 0), HostPort("192.0.2.7", 5432)]
    )
    def test_what_is_shown_is_no_change(
        self, make_gateway: MakeGateway, advertise: HostPort | None
    ) -> None:
        client = make_gateway(advertise=advertise).connect()
        before = settings_of(client)
        for name, value in before.items():
            ok(change(client, f"{name}={value}"))
        assert settings_of(client) == before


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["nosuch=1"], "there is no setting nosuch"),
        (["brokerName=other"], "brokerName cannot be changed while the gateway serves"),
        (["listenPort=9877"], "listenPort cannot be changed while the gateway serves"),
        (["brokerIP1=192.0.2.7"], "brokerIP1 cannot be changed while the gateway serves"),
        (["namesrvAddr=127.0.0.1:9877"], "namesrvAddr is shown for tools only"),
        (["brokerRole=SLAVE"], "brokerRole is shown for tools only, and cannot be changed"),
        (["brokerPermission=4"], "brokerPermission is shown for tools only"),
        (["maxMessageSize=abc"], "max_message_size = abc (asked for) is wrong"),
        (["maxMessageSize=1"], "the least is 1KiB"),
        (["maxMessageSize=" + "9" * 400], "it is too large"),
        (["maxMessageSize=33554432"], "max_frame_size"),
        (["messageDelayLevel=1s 5x"], "level 2 is '5x'"),
        (["hello"], "lines of name=value"),
        (["=1"], "lines of name=value"),
    ],
)
def test_refused(client: MemoryClient, lines: list[str], says: str) -> None:
    before = settings_of(client)
    answer = change(client, "maxTransferCountOnMessageInMemory=2", *lines)
    assert answer.code != ResponseCode.SUCCESS
    assert answer.remark is not None
    assert says in answer.remark
    assert settings_of(client) == before


def test_durations_in_upstreams_units(tmp_path: Path) -> None:
    config = Config(data=tmp_path)
    changed = after(config, {"transactionTimeOut": "1500", "timerMaxDelaySec": "60"}, ADVERTISED, 1)
    assert changed.transaction_timeout == timedelta(seconds=1.5)
    assert changed.max_delay == timedelta(seconds=60)
    assert shown(changed, HostPort("127.0.0.1", 1), 1)["transactionTimeOut"] == "1500"


def test_durations_under_our_own_names_are_in_seconds(tmp_path: Path) -> None:
    config = Config(data=tmp_path)
    changed = after(
        config, {"transaction_timeout": "6000", "transaction_check_interval": "45"}, ADVERTISED, 1
    )
    assert changed.transaction_timeout == timedelta(seconds=6_000)
    assert changed.transaction_check_interval == timedelta(seconds=45)


def test_a_value_that_stays_is_no_change_in_either_form(tmp_path: Path) -> None:
    config = Config(data=tmp_path)
    assert after(config, {"flush": "sync", "flushDiskType": "SYNC_FLUSH"}, ADVERTISED, 1) is config


def test_the_documentation_lists_them_all() -> None:
    text = (Path(__file__).parents[2] / "docs" / "admin.md").read_text()
    listed = re.findall(r"^\| `([\w.]+)` \| `(\w+)` \| (yes|no) \|$", text, re.MULTILINE)
    assert listed == [
        (entry.about.upstream or entry.name, entry.name, "yes" if entry.about.live else "no")
        for entry in descriptions().values()
        if entry.about.upstream or entry.about.live
    ]
