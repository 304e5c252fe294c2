"""Queue locks of orderly consumers (41, 42)."""

from __future__ import annotations

import json

import pytest

from gateway import queue_locks
from gateway.wire.codes import RequestCode, ResponseCode
from tests.gateway.consuming import lock, lock_request, unlock
from tests.gateway.faults import commits_fail
from tests.gateway.memory import MemoryClient, MemoryGateway, bodies


def test_are_exclusive(client: MemoryClient) -> None:
    assert lock(client, "c1", 0, 1) == [0, 1]
    assert lock(client, "c2", 0, 1, 2) == [2]
    assert lock(client, "c1", 0, 1, 2) == [0, 1]


def test_are_given_back(client: MemoryClient) -> None:
    lock(client, "c1", 0, 1)
    unlock(client, "c1", 1)
    assert lock(client, "c2", 0, 1) == [1]


def test_cannot_be_given_back_by_others(client: MemoryClient) -> None:
    lock(client, "c1", 0)
    unlock(client, "c2", 0)
    assert lock(client, "c2", 0) == []


def test_groups_do_not_meet(client: MemoryClient) -> None:
    assert lock(client, "c1", 0) == [0]
    assert lock(client, "c2", 0, group="others") == [0]


def test_end_after_a_minute(gateway: MemoryGateway, client: MemoryClient) -> None:
    lock(client, "c1", 0)
    gateway.advance(59_999)
    assert lock(client, "c2", 0) == []
    gateway.advance(1)
    assert lock(client, "c2", 0) == [0]
    assert lock(client, "c1", 0) == []


def test_last_while_they_are_asked_for(gateway: MemoryGateway, client: MemoryClient) -> None:
    for _ in range(10):
        assert lock(client, "c1", 0) == [0]
        gateway.advance(20_000)
    assert lock(client, "c2", 0) == []


@pytest.mark.parametrize("is_crash", [True, False], ids=["crash", "restart"])
def test_outlast_a_restart(gateway: MemoryGateway, client: MemoryClient, is_crash: bool) -> None:
    """Without this, the first member to return would be alone in the group, and would ask for all queues."""
    lock(client, "c1", 0, 1)
    lock(client, "c2", 2)
    unlock(client, "c1", 1)
    if is_crash:
        gateway.crash()
    else:
        gateway.restart()
    client = gateway.connect()
    assert lock(client, "c2", 0, 1, 2) == [1, 2]
    gateway.advance(30_000)
    assert lock(client, "c1", 0) == [0]
    gateway.advance(59_999)
    assert lock(client, "c2", 0) == []


def test_end_a_minute_after_a_restart(gateway: MemoryGateway, client: MemoryClient) -> None:
    lock(client, "c1", 0)
    gateway.restart()
    client = gateway.connect()
    gateway.advance(59_999)
    assert lock(client, "c2", 0) == []
    gateway.advance(1)
    assert lock(client, "c2", 0) == [0]
    gateway.restart()
    assert lock(gateway.connect(), "c1", 0) == []


def test_what_cannot_be_stored_is_not_locked(gateway: MemoryGateway, client: MemoryClient) -> None:
    with commits_fail(gateway):
        refused = client.ask(RequestCode.LOCK_BATCH_MQ, None, lock_request("c1", (0,)))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert lock(client, "c2", 0) == [0]
    with commits_fail(gateway):
        refused = client.ask(RequestCode.UNLOCK_BATCH_MQ, None, lock_request("c2", (0,)))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert lock(client, "c1", 0) == []


def test_names_may_be_longer_than_keys(client: MemoryClient) -> None:
    assert lock(client, "c1", 0, group="g" * 1_000) == [0]
    assert lock(client, "c2", 0, group="g" * 1_000) == []


@pytest.mark.parametrize(("client_id", "group"), [("c" * 1_000, "g"), ("c", "g" * 1_000)])
def test_long_names_are_not_stored_with_very_many_queues(
    gateway: MemoryGateway, client: MemoryClient, client_id: str, group: str
) -> None:
    queues = [{"topic": "orders", "brokerName": "broker-a", "queueId": n} for n in range(10_000)]
    body = json.dumps({"consumerGroup": group, "clientId": client_id, "mqSet": queues}).encode()
    refused = client.ask(RequestCode.LOCK_BATCH_MQ, None, body)
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert not gateway.store.notes(b"lock\0")


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_do_not_go_by_the_wall_clock(
    gateway: MemoryGateway, client: MemoryClient, step_ms: int
) -> None:
    lock(client, "c1", 0)
    gateway.set_clock(step_ms)
    gateway.advance(50_000)
    assert lock(client, "c2", 0) == []
    gateway.advance(10_000)
    assert lock(client, "c2", 0) == [0]


def test_what_a_group_with_locks_sends_to_be_retried_is_dead(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """Orderly consumers send back only messages that they have given up (RebalanceLockManager.isLockAllExpired)."""

    def send(body: str) -> None:
        fields = {"reconsume": 2, "max_reconsume": 2}
        answer = client.send_message("%RETRY%workers", body, DELAY="5", fields=fields)
        assert answer.code == ResponseCode.SUCCESS

    lock(client, "c1", 0, group="others")
    send("in any order")
    lock(client, "c1", 0, 1)
    send("given up")
    gateway.advance(59_999)
    send("as well")
    gateway.advance(1)
    send("the lock has expired")
    lock(client, "c1", 0)
    unlock(client, "c1", 0)
    send("it was given back")
    gateway.advance(60_000)
    assert bodies(client.pull("%DLQ%workers")) == ["given up", "as well"]
    assert len(client.pull("%RETRY%workers")) == 3


def test_any_lock_that_is_left_is_enough(gateway: MemoryGateway, client: MemoryClient) -> None:
    lock(client, "c1", 0, 1)
    gateway.advance(50_000)
    lock(client, "c1", 0)
    gateway.advance(20_000)
    client.send_message("%RETRY%workers", "the other one has ended")
    lock(client, "c1", 2)
    unlock(client, "c1", 2)
    client.send_message("%RETRY%workers", "the other one was given back")
    dead = ["the other one has ended", "the other one was given back"]
    assert bodies(client.pull("%DLQ%workers")) == dead
    assert len(gateway.store.notes(b"lock\0")) == 1


def test_those_that_end_together_are_removed_a_few_at_a_time(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20,000 of them took 165 ms, in which nothing else went on."""
    monkeypatch.setattr(queue_locks, "MAX_EXPIRED", 2)
    lock(client, "c1", 0, 1, 2, 3, 4)
    gateway.advance(50_000)
    lock(client, "c1", 5)
    commits = gateway.store.commits
    gateway.advance(10_000)
    assert gateway.store.commits == commits + 3
    assert len(gateway.store.notes(b"lock\0")) == 1


def test_those_that_have_ended_count_no_more_even_if_they_are_not_removed_yet(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    gateway.advance(5_000)  # they are removed every ten seconds
    lock(client, "c1", 0, 1, 2)
    gateway.advance(30_000)
    lock(client, "c1", 3)
    gateway.advance(30_000)
    assert lock(client, "c2", 0, 3) == [0]
    unlock(client, "c1", 0)
    assert lock(client, "c1", 0, 1) == [1]
    client.send_message("%RETRY%workers", "given up")
    unlock(client, "c1", 1, 3)
    unlock(client, "c2", 0)
    client.send_message("%RETRY%workers", "nobody has a lock")
    assert bodies(client.pull("%DLQ%workers")) == ["given up"]
    assert bodies(client.pull("%RETRY%workers")) == ["nobody has a lock"]
    assert len(gateway.store.notes(b"lock\0")) == 1, "only one is left, and it has ended"


def test_what_ended_long_ago_does_not_begin_again_with_a_restart(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """The group's members were killed, and it no longer consumes in order. Nobody else locks queues either."""
    lock(client, "c1", 0)
    gateway.advance(80_000)
    gateway.restart()
    client = gateway.connect()
    client.send_message("%RETRY%workers", "to be retried")
    assert bodies(client.pull("%RETRY%workers")) == ["to be retried"]


def test_nothing_asked_for(client: MemoryClient) -> None:
    assert lock(client, "c1") == []


def test_unlock_oneway(client: MemoryClient) -> None:
    lock(client, "c1", 0)
    client.send(RequestCode.UNLOCK_BATCH_MQ, None, lock_request("c1", (0,)), oneway=True)
    assert client.take() == []
    assert lock(client, "c2", 0) == [0]


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"consumerGroup":"g","mqSet":5}'])
def test_rubbish(client: MemoryClient, code: int, body: bytes) -> None:
    assert client.ask(code, None, body).code == ResponseCode.SYSTEM_ERROR


def test_nobody_fills_the_memory_with_them(gateway: MemoryGateway, client: MemoryClient) -> None:
    for number in range(100):
        lock(client, "c1", 0, 1, 2, group=f"group{number}")
        gateway.advance(10_000)
    assert len(gateway.store.notes(b"lock\0")) <= 3 * 7


def test_beyond_the_most_of_all_there_are_none_until_some_have_ended(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_locks, "MAX_LOCKS", 3)
    assert lock(client, "c1", 0, 1) == [0, 1]
    assert lock(client, "c2", 0, 1, 2, group="others") == [0]
    assert lock(client, "c1", 0, 1, 2) == [0, 1]
    unlock(client, "c1", 1)
    assert lock(client, "c2", 0, 1, 2, group="others") == [0, 1]
    gateway.advance(70_000)
    assert lock(client, "c3", 0, 1, 2, 3) == [0, 1, 2]


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
def test_too_many_at_once(client: MemoryClient, code: RequestCode) -> None:
    """Those of a whole topic are possible."""
    assert client.ask(code, None, lock_request("c1", range(10_000))).code == ResponseCode.SUCCESS
    refused = client.ask(code, None, lock_request("c1", range(10_001)))
    assert (refused.code, refused.remark) == (
        ResponseCode.INVALID_PARAMETER,
        "10001 queues in one request; 10000 are possible",
    )


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
@pytest.mark.parametrize("name", ["c1", "workers", "orders", "broker-a"])
def test_a_long_name_is_refused(client: MemoryClient, code: int, name: str) -> None:
    """Each of 300,000 locks could have kept 16 MB, in memory and on disk."""
    body = lock_request("c1", (0, 1))
    refused = client.ask(code, None, body.replace(name.encode(), b"n" * 1_001, 1))
    assert (refused.code, refused.remark) == (
        ResponseCode.INVALID_PARAMETER,
        "1001 characters of a name; 1000 are possible",
    )
    assert client.ask(code, None, body.replace(name.encode(), b"n" * 1_000, 1)).code == 0
