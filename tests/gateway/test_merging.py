"""Responses of several gateways merged into one, as at the address that workers share."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.pending import bulk
from gateway.settings.values import HostPort
from gateway.web.fields import Cursor
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command, decode_command, encode_command, encode_response
from gateway.wire.cursors import join_cursors, own_cursor
from gateway.wire.frames import FrameBuffer
from gateway.wire.messages import offset_msg_id
from gateway.wire.pending_bodies import HeldMessage, HeldPage, PausedTopic
from gateway.wire.recurring_bodies import RecurringList, RecurringMessage
from gateway.workers.merged_pages import add_up, held_page, recurring_page
from gateway.workers.merging import MERGES, ONE_WORKER, Whole
from gateway.workers.siblings import SharedAddress
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import commits_fail
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway
from tests.gateway.tools import create_topic, ok

WORKERS = ("broker-a-0", "broker-a-1", "broker-a-2")


class Shared:
    """Sends requests to all workers, as the shared address does. A worker in `out` does not answer."""

    def __init__(self, make_gateway: MakeGateway) -> None:
        self.gateways: list[MemoryGateway] = [
            make_gateway(
                broker_name=name,
                advertise=f"10.0.0.5:{9886 + 10 * number}",
                shared=SharedAddress(HostPort("10.0.0.5", 9876), "k", len(WORKERS)),
            )
            for number, name in enumerate(WORKERS)
        ]
        self.clients: list[MemoryClient] = [gateway.connect() for gateway in self.gateways]
        self.out: set[int] = set()

    def try_ask(self, code: int, **fields: object) -> Whole:
        """Return the merged response, whatever its code."""
        return self.tell(code, b"", **fields)

    def tell(self, code: int, body: bytes, **fields: object) -> Whole:
        """Send a request with a body, and return the merged response. `version` is the client's."""
        version = int(str(fields.pop("version", 513)))
        ext = {name: str(value) for name, value in fields.items()}
        answers: dict[str, Command | None] = {
            name: None if number in self.out else client.ask(code, ext, body, version=version)
            for number, (name, client) in enumerate(zip(WORKERS, self.clients, strict=True))
        }
        (frame,) = FrameBuffer().feed(encode_command(code, 1, ext=ext, body=body, version=version))
        return MERGES[code].decide(answers, decode_command(frame))

    def ask(self, code: int, **fields: object) -> Any:
        """Check for success, and return the decoded body."""
        whole = self.try_ask(code, **fields)
        assert whole.code == ResponseCode.SUCCESS, whole.remark
        return json.loads(whole.body)

    def advance(self, milliseconds: int) -> None:
        for gateway in self.gateways:
            gateway.advance(milliseconds)

    def pages(self, code: int, name: str, **fields: object) -> list[list[Any]]:
        """Return all pages of a list."""
        found, cursor = [], str(fields.pop("cursor", ""))
        while cursor is not None:
            page = self.ask(code, cursor=cursor, **fields)
            found.append(page[name])
            cursor = page["cursor"]
            assert len(found) < 100, "the pages come to no end"
        return found

    def look_up(self, **fields: object) -> list[str]:
        """Return the ids of all messages found, page by page."""
        pages = self.pages(RequestCode.LOOK_UP_TIMERS, "messages", **fields)
        if "limit" in fields:
            assert max(map(len, pages)) <= int(str(fields["limit"]))
        return [one["msgId"] for page in pages for one in page]


@pytest.fixture
def shared(make_gateway: MakeGateway) -> Shared:
    return Shared(make_gateway)


@pytest.fixture
def filled(shared: Shared) -> Shared:
    """Twelve messages at the first two workers, two at a time with the same due time; eight of them have a key."""
    for number in range(12):
        properties = {
            "UNIQ_KEY": f"m{number:02}",
            "TIMER_DELAY_MS": str(1_000 * (number // 2) + 1_000),
        }
        if number % 3:
            properties["KEYS"] = "k"
        client = shared.clients[number % 5 % 2]
        fields = {"queue": number % 3}
        ok(client.send_message("orders", "x", properties, fields=fields))
    return shared


ALL = [f"m{number:02}" for number in range(12)]


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
class TestPages:
    def test_pending(self, filled: Shared, limit: int) -> None:
        found = filled.look_up(topic="orders", limit=limit)
        assert sorted(found) == ALL
        assert [name[:-1] for name in found] == sorted(name[:-1] for name in found)
        assert found == filled.look_up(limit=100)

    def test_by_key(self, filled: Shared, limit: int) -> None:
        for state in ("any", "pending"):
            found = filled.look_up(topic="orders", key="k", state=state, limit=limit)
            assert sorted(found) == [name for number, name in enumerate(ALL) if number % 3]

    def test_what_fired_and_was_aborted_comes_last_first(self, filled: Shared, limit: int) -> None:
        """Many have the same time, are at all workers, and are in queues with the same number."""
        filled.advance(3_000)
        for name in ("m10", "m06", "m08"):
            filled.ask(RequestCode.ABORT_TIMERS, id=name)
            filled.advance(1)
        filled.ask(RequestCode.ABORT_TIMERS, topic="orders", key="k")
        fired = filled.look_up(topic="orders", state="fired", limit=limit)
        assert sorted(fired) == ALL[:6]
        assert [int(name[1:]) // 2 for name in fired] == [2, 2, 1, 1, 0, 0]
        aborted = filled.look_up(state="aborted", limit=limit)
        assert aborted[2:] == ["m08", "m06", "m10"]
        assert sorted(aborted[:2]) == ["m07", "m11"]

    def test_recurring(self, shared: Shared, limit: int) -> None:
        names = ["a", "b", "c", "d", "e"]
        for number, name in enumerate([*names, "a"]):
            order = {"TIDEGATE_NAME": name, "TIDEGATE_EVERY": "2m"}
            ok(shared.clients[number % 3].send_message("orders", name, order))
        pages = shared.pages(RequestCode.LIST_RECURRING, "recurring", limit=limit, full="true")
        assert max(map(len, pages)) <= limit
        found = [(one["name"], one["bodySize"]) for page in pages for one in page]
        # The message with this name is at two workers.
        assert found == [(name, 1) for name in ["a", "a", "b", "c", "d", "e"]]


def test_pages_with_large_bodies_fit_into_frames(shared: Shared) -> None:
    body = "x" * 3_000_000
    for number in range(9):
        order = {"TIDEGATE_NAME": f"n{number}", "TIDEGATE_EVERY": "2m"}
        ok(shared.clients[number % 3].send_message("orders", body, order))
    alone = json.loads(shared.clients[0].ask(RequestCode.LIST_RECURRING, {"full": "true"}).body)
    assert [len(one["body"]) for one in alone["recurring"]] == [4_000_000]
    pages = shared.pages(RequestCode.LIST_RECURRING, "recurring", full="true")
    assert [one["name"] for page in pages for one in page] == [f"n{one}" for one in range(9)]
    assert max(map(len, pages)) == 2


def test_a_page_without_a_limit_has_no_more_than_a_worker_gives(shared: Shared) -> None:
    for number in range(101):
        properties = {"UNIQ_KEY": f"m{number:03}", "TIMER_DELAY_MS": "60000"}
        ok(shared.clients[number % 2].send_message("orders", "x", properties))
    pages = shared.pages(RequestCode.LOOK_UP_TIMERS, "messages")
    assert [len(page) for page in pages] == [100, 1]


def test_ids_of_any_length_lose_and_repeat_nothing(shared: Shared) -> None:
    """Indexes have only the beginning of a long id."""
    names = [f"{letter * 400}{number}" for letter in "Az~" for number in range(2)]
    for number, name in enumerate(names):
        properties = {"UNIQ_KEY": name, "TIMER_DELAY_MS": "60000"}
        ok(shared.clients[number % 2].send_message("orders", "x", properties))
    assert sorted(shared.look_up(limit=1)) == sorted(names)


class TestManyAtOnce:
    @pytest.fixture(autouse=True)
    def steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bulk, "STEP", 2)
        monkeypatch.setattr(bulk, "COUNTED", 2)

    def change(self, shared: Shared, action: str, **fields: object) -> int:
        """Make all steps, and return how many messages they changed."""
        changed, cursor = 0, ""
        while cursor is not None:
            asked = {"topic": "orders", "action": action, "cursor": cursor} | fields
            step = shared.ask(RequestCode.BULK_CHANGE_TIMERS, **asked)
            changed += step["messages"]
            cursor = step["cursor"]
        return changed

    @pytest.mark.parametrize("selection", [{}, {"key": "k"}, {"end": START_MS + 4_500}])
    def test_what_is_counted_is_aborted(self, filled: Shared, selection: dict[str, Any]) -> None:
        meant = filled.look_up(topic="orders", **selection)
        assert self.change(filled, "count", **selection) == len(meant) > 0
        assert self.change(filled, "abort", **selection) == len(meant)
        assert sorted(filled.look_up(topic="orders")) == sorted(set(ALL) - set(meant))

    def test_each_is_moved_once(self, filled: Shared) -> None:
        assert self.change(filled, "reschedule", shift=2_500) == 12
        filled.advance(3_499)
        assert len(filled.look_up()) == 12
        filled.advance(1)
        assert sorted(filled.look_up()) == ALL[2:]


class TestChanges:
    def test_a_topic_is_paused_wherever_it_is(self, shared: Shared) -> None:
        for number in (0, 2):
            ok(create_topic(shared.clients[number], "orders"))
            ok(shared.clients[number].send_message("orders", TIMER_DELAY_MS="1000"))
        assert shared.ask(RequestCode.PAUSE_TOPIC, topic="orders") == {"changed": True}
        assert shared.ask(RequestCode.PAUSE_TOPIC, topic="orders") == {"changed": False}
        shared.advance(2_000)
        (paused,) = shared.ask(RequestCode.LIST_PAUSED_TOPICS)["topics"]
        assert (paused["topic"], paused["waiting"]) == ("orders", 2)
        for code in (RequestCode.PAUSE_TOPIC, RequestCode.RESUME_TOPIC):
            unknown = shared.try_ask(code, topic="nothing")
            assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
        assert shared.ask(RequestCode.RESUME_TOPIC, topic="orders") == {"changed": True}
        shared.advance(1)
        assert [len(client.pull("orders")) for client in shared.clients] == [1, 0, 1]

    def test_one_that_recurs_is_changed_where_it_is(self, shared: Shared) -> None:
        order = {"TIDEGATE_NAME": "pulse", "TIDEGATE_EVERY": "2m"}
        ok(shared.clients[1].send_message("orders", "tick", order))
        place = {"topic": "orders", "name": "pulse"}
        times = shared.ask(RequestCode.NEXT_RECURRING, **place, times=2)["times"]
        assert times == [START_MS + 120_000, START_MS + 240_000]
        for change, outcome in (
            ("pause", "paused"),
            ("pause", "already paused"),
            ("resume", "resumed"),
            ("delete", "deleted"),
        ):
            done = shared.ask(RequestCode.CHANGE_RECURRING, **place, change=change)
            assert (done["outcome"], done["recurring"]["name"]) == (outcome, "pulse")
        gone = shared.try_ask(RequestCode.CHANGE_RECURRING, **place, change="pause")
        assert gone.code == ResponseCode.MESSAGE_ILLEGAL
        assert "has no recurring message" in (gone.remark or "")
        # A rule's times are one worker's, whatever the clocks of the others say.
        shared.gateways[2].advance(1)
        whole = [START_MS + 3_600_000 * number for number in (1, 2, 3)]
        assert shared.ask(RequestCode.NEXT_RECURRING, every="1h", times=3)["times"] == whole

    def test_of_a_name_at_two_workers_all_are_changed(self, shared: Shared) -> None:
        for client, every in zip(shared.clients[:2], ("2m", "3m"), strict=True):
            ok(client.send_message("orders", TIDEGATE_NAME="pulse", TIDEGATE_EVERY=every))
        place = {"topic": "orders", "name": "pulse"}
        minutes = [
            (time - START_MS) // 60_000
            for time in shared.ask(RequestCode.NEXT_RECURRING, **place, times=4)["times"]
        ]
        assert minutes == [2, 3, 4, 6]
        assert len(shared.ask(RequestCode.NEXT_RECURRING, **place, times=1)["times"]) == 1
        ok(shared.clients[0].ask(RequestCode.CHANGE_RECURRING, {**place, "change": "pause"}))
        done = shared.ask(RequestCode.CHANGE_RECURRING, **place, change="pause")
        assert done["outcome"] == "paused"
        states = [one["state"] for one in shared.ask(RequestCode.LIST_RECURRING)["recurring"]]
        assert states == ["paused", "paused"]

    def test_of_a_name_at_two_workers_no_time_is_left_out(self, shared: Shared) -> None:
        """Each worker returns at most 1,000 times. The rarer times after the last of the others are not next."""
        for client, every in zip(shared.clients[:2], ("1m", "7m"), strict=True):
            ok(client.send_message("orders", TIDEGATE_NAME="pulse", TIDEGATE_EVERY=every))
        place = {"topic": "orders", "name": "pulse"}
        times = shared.ask(RequestCode.NEXT_RECURRING, **place, times=2_000)["times"]
        assert times == [START_MS + 60_000 * number for number in range(1, 1_001)]

    def test_an_abort_that_one_worker_refuses_is_refused(self, shared: Shared) -> None:
        """A result that is true for some workers only is not returned."""
        ok(shared.clients[0].send_message("orders", UNIQ_KEY="M", TIMER_DELAY_MS="1000"))
        ok(
            shared.clients[1].ask(
                RequestCode.UPDATE_BROKER_CONFIG, {}, b"recallMessageEnable=false"
            )
        )
        assert shared.try_ask(RequestCode.ABORT_TIMERS, id="M").code == ResponseCode.NO_PERMISSION

    def test_what_no_worker_knows_is_told_once(self, shared: Shared) -> None:
        for code, fields in (
            (RequestCode.ABORT_TIMERS, {}),
            (RequestCode.RESCHEDULE_TIMERS, {"delay": 1}),
        ):
            (done,) = shared.ask(code, id="M", **fields)["results"]
            assert done["outcome"] == "unknown"

    def test_the_refusal_of_the_one_that_has_it_counts(self, shared: Shared) -> None:
        """The other workers only answer that the handle is not theirs."""
        sent = shared.clients[1].send_message("orders", TIMER_DELAY_MS="1000").ext()
        asked = {"handle": sent["recallHandle"]}
        ok(
            shared.clients[1].ask(
                RequestCode.UPDATE_BROKER_CONFIG, {}, b"recallMessageEnable=false"
            )
        )
        assert shared.try_ask(RequestCode.ABORT_TIMERS, **asked).code == ResponseCode.NO_PERMISSION

    def test_a_handle_is_one_workers(self, shared: Shared) -> None:
        sent = shared.clients[1].send_message("orders", TIMER_DELAY_MS="1000").ext()
        (done,) = shared.ask(RequestCode.ABORT_TIMERS, handle=sent["recallHandle"])["results"]
        assert done["outcome"] == "aborted"

    def test_an_offset_id_is_one_workers(self, shared: Shared) -> None:
        """Each worker has a message with the same number."""
        sent = [client.send_message("orders", TIMER_DELAY_MS="1000") for client in shared.clients]
        offset_id = sent[1].ext()["msgId"]
        assert shared.look_up(id=offset_id) == [sent[1].ext()["transactionId"]]
        (done,) = shared.ask(RequestCode.ABORT_TIMERS, id=offset_id)["results"]
        assert done["outcome"] == "aborted"
        assert len(shared.look_up(topic="orders")) == len(WORKERS) - 1


def test_the_clock_is_the_machines_and_the_next_message_that_of_any_worker(
    shared: Shared,
) -> None:
    assert shared.ask(RequestCode.CLOCK) == {
        "clock": "real",
        "nowMs": START_MS,
        "nextDueMs": None,
        "fired": 0,
    }
    for number, delay_ms in ((1, 2_000), (2, 1_000)):
        ok(shared.clients[number].send_message(TIMER_DELAY_MS=str(delay_ms)))
    assert shared.ask(RequestCode.CLOCK)["nextDueMs"] == START_MS + 1_000
    refused = shared.try_ask(RequestCode.CLOCK, advance=1)
    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    assert "clock = manual can be moved" in (refused.remark or "")


class TestSettings:
    def test_they_are_changed_at_all(self, shared: Shared) -> None:
        body = b"log_level=debug\nmaxMessageSize=2048"
        changed = shared.tell(RequestCode.UPDATE_BROKER_CONFIG, body)
        assert changed.code == ResponseCode.SUCCESS
        assert {one.service.broker.config.log_level for one in shared.gateways} == {"debug"}
        assert {one.service.broker.config.max_message_size for one in shared.gateways} == {2048}
        refused = shared.tell(RequestCode.UPDATE_BROKER_CONFIG, b"brokerName=x")
        assert refused.code == ResponseCode.INVALID_PARAMETER

    def test_the_number_of_workers_is_the_one_that_was_set(self, shared: Shared) -> None:
        """Though each of them runs with `workers = 1`."""
        seen = [client.ask(RequestCode.GET_BROKER_CONFIG).body for client in shared.clients]
        seen.append(shared.try_ask(RequestCode.GET_BROKER_CONFIG).body)
        assert all("workers=3" in body.decode().splitlines() for body in seen)
        same = shared.tell(RequestCode.UPDATE_BROKER_CONFIG, b"workers=3\nmaxMessageSize=2048")
        assert same.code == ResponseCode.SUCCESS, same.remark
        assert {one.service.broker.config.max_message_size for one in shared.gateways} == {2048}
        for other in (b"workers=1", b"workers=2"):
            refused = shared.tell(RequestCode.UPDATE_BROKER_CONFIG, other)
            assert refused.code == ResponseCode.INVALID_PARAMETER
            assert "workers cannot be changed while the gateway serves" in (refused.remark or "")

    def test_where_they_differ_all_are_told(self, shared: Shared) -> None:
        ok(shared.clients[1].ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"log_level=error"))
        lines = shared.try_ask(RequestCode.GET_BROKER_CONFIG).body.decode().splitlines()
        assert "log_level=info,error" in lines
        assert "brokerName=broker-a-0,broker-a-1,broker-a-2" in lines
        assert "brokerClusterName=DefaultCluster" in lines
        assert "workers=3" in lines
        lines = shared.try_ask(RequestCode.GET_NAMESRV_CONFIG).body.decode().splitlines()
        assert "listenPort=9886,9896,9906" in lines
        assert not any(line.startswith("workers=") for line in lines)


class TestNameServer:
    def test_values_are_kept_by_all(self, shared: Shared) -> None:
        place = {"namespace": "n", "key": "k"}
        missing = shared.try_ask(RequestCode.GET_KV_CONFIG, **place)
        assert missing.code == ResponseCode.QUERY_NOT_FOUND
        assert shared.try_ask(RequestCode.PUT_KV_CONFIG, **place, value="v").code == 0
        # The first worker does not have it, like a worker that was added later.
        ok(shared.clients[0].ask(RequestCode.DELETE_KV_CONFIG, place))
        assert shared.try_ask(RequestCode.GET_KV_CONFIG, **place).ext == {"value": "v"}
        assert shared.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="n") == {
            "table": {"k": "v"}
        }

    def test_a_worker_is_taken_out_of_the_routes(self, shared: Shared) -> None:
        for client in shared.clients:
            ok(create_topic(client, "orders"))
        done = shared.try_ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName=WORKERS[1])
        assert int((done.ext or {})["wipeTopicCount"]) > 0
        route = shared.ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders", acceptStandardJsonOnly="true"
        )
        perms = {one["brokerName"]: one["perm"] for one in route["queueDatas"]}
        assert perms == {"broker-a-0": 6, "broker-a-1": 4, "broker-a-2": 6}
        assert shared.try_ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="orders").code == 0

    @pytest.mark.parametrize("version", [317, 513])
    def test_addresses_as_the_client_knows_them(self, shared: Shared, version: int) -> None:
        for client in shared.clients:
            ok(create_topic(client, "orders"))
        for code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO):
            body = shared.tell(code, b"", version=version, topic="orders").body
            assert body.count(b'"brokerAddrs":{0:') == (3 if version == 317 else 0)
            assert body.count(b'"brokerAddrs":{"0":') == (0 if version == 317 else 3)

    def test_system_topics(self, shared: Shared) -> None:
        names = shared.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)["topicList"]
        assert sorted(names) == sorted([*WORKERS, "DefaultCluster"])


class TestWhoAnswers:
    def test_routes_need_one(self, shared: Shared) -> None:
        ok(create_topic(shared.clients[2], "orders"))
        shared.out = {0}
        route = shared.ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders", acceptStandardJsonOnly="true"
        )
        assert [one["brokerName"] for one in route["brokerDatas"]] == [WORKERS[2]]

    @pytest.mark.parametrize(
        "code",
        [RequestCode.LOOK_UP_TIMERS, RequestCode.LIST_RECURRING, RequestCode.GET_BROKER_CONFIG],
    )
    def test_what_all_hold_needs_all(self, shared: Shared, code: int) -> None:
        shared.out = {1}
        refused = shared.try_ask(code)
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert refused.remark == "1 of 3 workers do not answer (broker-a-1); ask again"

    def test_a_change_that_one_lacks_tells_who_has_made_it(self, shared: Shared) -> None:
        for client in shared.clients:
            ok(create_topic(client, "orders"))
        shared.out = {1}
        refused = shared.try_ask(RequestCode.PAUSE_TOPIC, topic="orders")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert refused.remark == (
            "1 of 3 workers do not answer (broker-a-1) and may still make the change; done by broker-a-0, broker-a-2: "
            "check what has changed before you ask again"
        )
        assert refused.ext == {"mayHaveChanged": "true"}
        shared.out = set()
        with commits_fail(shared.gateways[1]):
            refused = shared.try_ask(RequestCode.PAUSE_TOPIC, topic="orders")
        assert (refused.remark or "").startswith("broker-a-1 refused: ")
        assert (refused.remark or "").endswith("; done by broker-a-0, broker-a-2")
        assert refused.ext == {"mayHaveChanged": "true"}

    def test_a_step_of_many_changes_that_one_lacks_tells_who_has_made_it(
        self, filled: Shared
    ) -> None:
        filled.out = {1}
        refused = filled.try_ask(RequestCode.BULK_CHANGE_TIMERS, topic="orders", action="abort")
        assert "may still make the change; done by broker-a-0, broker-a-2: " in (
            refused.remark or ""
        )
        assert refused.ext == {"mayHaveChanged": "true"}

    def test_a_change_that_all_refuse_has_changed_nothing(self, shared: Shared) -> None:
        asked = {"topic": "orders", "action": "reschedule"}
        refused = shared.try_ask(RequestCode.BULK_CHANGE_TIMERS, **asked)
        assert (refused.remark or "").startswith("name the new time by one of ")
        assert not refused.ext

    def test_a_count_that_one_lacks_has_changed_nothing(self, shared: Shared) -> None:
        shared.out = {1}
        refused = shared.try_ask(RequestCode.BULK_CHANGE_TIMERS, topic="orders", action="count")
        assert refused.remark == "1 of 3 workers do not answer (broker-a-1); ask again"
        assert not refused.ext

    def test_the_worker_is_named_that_refuses_what_others_answer(self) -> None:
        """An example is a user that one of the workers does not have."""
        refused = encode_response(1, ResponseCode.NO_PERMISSION, remark="User:bob is not found.")
        frames = {"broker-a-0": encode_response(1, 0, body=b"{}"), "broker-a-1": refused}
        answers = {
            name: decode_command(*FrameBuffer().feed(frame)) for name, frame in frames.items()
        }
        (frame,) = FrameBuffer().feed(encode_command(RequestCode.LIST_PAUSED_TOPICS, 1))
        merge = MERGES[RequestCode.LIST_PAUSED_TOPICS]
        whole = merge.decide(answers, decode_command(frame))
        assert whole.code == ResponseCode.NO_PERMISSION
        assert whole.remark == "broker-a-1 refused: User:bob is not found."
        whole = merge.decide({"broker-a-1": answers["broker-a-1"]}, decode_command(frame))
        assert whole.remark == "User:bob is not found."

    def test_nobody_is_there(self) -> None:
        (frame,) = FrameBuffer().feed(encode_command(RequestCode.SEND_MESSAGE_V2, 1))
        whole = ONE_WORKER.decide({}, decode_command(frame))
        assert whole.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_cursors_of_several_brokers() -> None:
    text = join_cursors({"a-0": "00ff", "a-1": "", "a-12": "00ff"})
    assert text == "0.12:00ff,1:"
    found = [own_cursor(text, broker) for broker in ("a-0", "a-1", "a-2", "a-12")]
    assert found == ["00ff", "", None, "00ff"]
    assert own_cursor("00ff", "a-0") == "00ff"
    assert own_cursor("", "a-0") == ""


def recurring(topic: str, name: str) -> RecurringMessage:
    """Return a recurring message as it is listed."""
    return RecurringMessage(
        topic=topic,
        name=name,
        state="active",
        next_ms=0,
        fired=0,
        every="1m",
        zone="UTC",
        misfire="FIRE_ONCE_NOW",
        set_ms=0,
        queue_id=-1,
        tags="",
        keys="",
        body_size=0,
    )


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_the_cursor_of_many_workers_fits_into_a_url(limit: int) -> None:
    """Some have a recurring message of the same name, and all names are as long as they can be."""
    topic = "t" * 255
    own = {
        f"broker-a-{number}": sorted(f"{name:0127}" for name in {*range(number, 200, 64), 150, 151})
        for number in range(64)
    }
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        pages = []
        for broker, names in own.items():
            part = own_cursor(cursor, broker)
            if part is not None:
                behind = bytes.fromhex(part).decode().partition("\0")[2]
                rest = [name for name in names if name > behind]
                last = f"{topic}\0{rest[limit - 1]}".encode().hex() if len(rest) > limit else None
                page = RecurringList([recurring(topic, name) for name in rest[:limit]], last)
                pages.append((broker, page))
        whole = recurring_page(pages, limit=limit, given=cursor)
        assert len(whole.recurring) <= limit
        found += [one.name for one in whole.recurring]
        cursor = whole.cursor
        msgspec.convert(cursor, Cursor | None)
    assert found == sorted(name for names in own.values() for name in names)


def test_a_worker_that_was_further_than_another_is_not_sent_back() -> None:
    """The other one has found nothing on its page, and says how far it has come."""
    places = [f"t\0{name}".encode().hex() for name in ("a", "aa", "b")]
    given = join_cursors({"x-0": places[2], "x-1": places[0]})
    pages = [
        ("x-0", RecurringList([recurring("t", "c")], None)),
        ("x-1", RecurringList([], places[1])),
    ]
    cursor = recurring_page(pages, limit=9, given=given).cursor
    assert cursor is not None
    assert [own_cursor(cursor, broker) for broker in ("x-0", "x-1")] == [places[2], places[1]]


def aborted(moved_ms: int) -> HeldMessage:
    """Return a message as it is listed, with its time for its number."""
    return HeldMessage(
        msg_id="",
        offset_msg_id=offset_msg_id(bytes(8), moved_ms),
        topic="t",
        queue_id=0,
        due_ms=0,
        state="aborted",
        store_ms=0,
        born_ms=0,
        body_size=0,
        moved_ms=moved_ms,
    )


def test_a_list_from_the_last_on_ends_where_a_worker_has_come() -> None:
    """It may have more behind that, before what another one has listed already."""
    far, farther = (number.to_bytes(8).hex() * 2 for number in (8, 3))
    pages = [
        ("x-0", HeldPage([aborted(9)], far)),
        ("x-1", HeldPage([aborted(10), aborted(7)], farther)),
    ]
    whole = held_page(pages, named=False, state="aborted", limit=9, given="")
    assert [one.moved_ms for one in whole.messages] == [10, 9]
    assert whole.cursor is not None
    assert {own_cursor(whole.cursor, name) for name, _ in pages} == {far}


def test_a_topic_is_resumed_once_it_is_everywhere() -> None:
    at_one = PausedTopic(topic="t", since_ms=5, waiting=1, resumed=True)
    at_another = PausedTopic(topic="t", since_ms=3, waiting=2)
    whole = PausedTopic(topic="t", since_ms=3, waiting=3)
    assert add_up([at_one, at_another]) == add_up([at_another, at_one]) == [whole]


def test_a_cursor_that_is_none_is_refused(filled: Shared) -> None:
    for cursor in ("0:zz,1:", "broker-a-0:00ff,broker-a-1:", "0:,:00:11,,"):
        answer = filled.try_ask(RequestCode.LOOK_UP_TIMERS, topic="orders", cursor=cursor)
        assert answer.code == ResponseCode.INVALID_PARAMETER, cursor
    of_one = filled.look_up(cursor="0:")
    assert of_one == [one["msgId"] for one in filled.clients[0].look_up()]


def test_numbers_are_read_as_the_workers_read_them(filled: Shared) -> None:
    assert len(filled.ask(RequestCode.LOOK_UP_TIMERS, limit="5.0")["messages"]) == 5
    for client in filled.clients:
        ok(client.send_message("orders", TIDEGATE_NAME="pulse", TIDEGATE_EVERY="1h"))
    assert len(filled.ask(RequestCode.LIST_RECURRING, limit="2.0")["recurring"]) == 2
    place = {"topic": "orders", "name": "pulse"}
    assert len(filled.ask(RequestCode.NEXT_RECURRING, **place, times="3.0")["times"]) == 3
