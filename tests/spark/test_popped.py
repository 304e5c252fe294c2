"""Pops in a replay: the replay acknowledges the messages that the recorded consumer acknowledged."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

import pytest

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.messages import decode_messages
from gateway.wire.pops import Handle, parse_handle
from gateway.wire.properties import find
from spark_jobs.popped import ids_needed, ids_told
from spark_jobs.rewriting import Learned, Rewriter, Rewritten, Rules
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import MemoryClient, MemoryGateway
from tests.gateway.popping import handle_fields, handles, pop_fields
from tests.spark.recorded import RecordedClient, replay

POP, ACK = RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE
CHANGE, BATCH_ACK = RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.BATCH_ACK_MESSAGE
KEYS = [f"{number:032X}" for number in range(6)]


def send(client: MemoryClient, key: str, topic: str = "orders") -> None:
    client.send_message(topic, key, UNIQ_KEY=key)


def batch_ack(
    client: MemoryClient, *texts: str, group: str = "consumers", topic: str = "orders"
) -> None:
    """Acknowledge as the Java client does for several messages of one queue that it popped together."""
    parts = [parse_handle(text) for text in texts]
    first = parts[0]
    bits = sum(1 << (one.offset - first.start_offset) for one in parts)
    ack = {"c": group, "t": topic, "r": first.retried, "so": first.start_offset}
    ack |= {"q": first.queue, "rq": first.revive_queue, "pt": first.pop_time}
    ack |= {"it": first.invisible_time, "b": base64.b64encode(bits.to_bytes(4, "little")).decode()}
    body = json.dumps({"brokerName": "broker-a", "acks": [ack]}).encode()
    assert client.ask(BATCH_ACK, None, body).code == ResponseCode.SUCCESS


def consume(gateway: MemoryGateway) -> RecordedClient:
    """Record a consumer that acknowledges in each way; the last message comes back to it first."""
    client = RecordedClient(gateway)
    for key in KEYS:
        send(client, key)
    popped = handles(client.ask(POP, pop_fields(gateway)))
    assert len(popped) == len(KEYS)
    gateway.advance(1_000)
    assert client.ask(ACK, handle_fields(popped[0])).code == ResponseCode.SUCCESS
    fields = handle_fields(popped[1]) | {"invisibleTime": "30000"}
    put_off = client.ask(CHANGE, fields).ext()
    batch_ack(client, popped[2], popped[4])
    handle = parse_handle(popped[1])
    later = handle._replace(
        pop_time=int(put_off["popTime"]), invisible_time=int(put_off["invisibleTime"])
    )
    gateway.advance(1_000)
    assert client.ask(ACK, handle_fields(later.encode())).code == ResponseCode.SUCCESS
    gateway.advance(20_000)
    again = client.ask(POP, pop_fields(gateway))
    back = [own_handle(one.properties) for one in decode_messages(again.body)]
    assert [one.retried for one in back] == ["1", "1"]
    for one in back:
        assert client.ask(ACK, handle_fields(one.encode())).code == ResponseCode.SUCCESS
    return client


def own_handle(properties: str) -> Handle:
    return parse_handle(find(properties, "POP_CK") or "")


def left(gateway: MemoryGateway, topic: str, group: str) -> set[str]:
    """Return the ids of the messages that come back to a group in the end."""
    gateway.advance(60_000)
    client = gateway.connect()
    found: set[str] = set()
    while True:
        answer = client.ask(POP, pop_fields(gateway, topic=topic, consumerGroup=group))
        if answer.code != ResponseCode.SUCCESS:
            return found
        found |= {find(one.properties, "UNIQ_KEY") or "" for one in decode_messages(answer.body)}


@pytest.mark.parametrize("renamed", [False, True])
def test_the_same_messages_are_acknowledged(make_gateway: MakeGateway, renamed: bool) -> None:
    recorded = consume(make_gateway())
    target = make_gateway()
    topic, group = ("copy", "others") if renamed else ("orders", "consumers")
    # Other messages were sent before, so offsets differ, and the pops of the run return those messages too.
    strangers = [f"stranger{number}" for number in range(3)]
    for key in strangers:
        send(target.connect(), key, topic)
    names = ({"orders": "copy"}, {"consumers": "others"}) if renamed else ({}, {})
    rules = Rules("run", topics=names[0], groups=names[1])
    target.advance(5_000)
    client, unmapped = replay(recorded.pairs, Rewriter(rules), target)
    assert set(unmapped) == {()}
    acknowledged = [pair for pair in client.pairs if pair["code"] in (ACK, CHANGE, BATCH_ACK)]
    assert {pair["answer_code"] for pair in acknowledged} == {ResponseCode.SUCCESS}
    assert left(target, topic, group) == set(strangers)


class Spread(Rewriter):
    """As of a Proxy: pops are on one connection, and all else is on another."""

    def __init__(self, rules: Rules) -> None:
        learned = Learned(rules)
        super().__init__(rules, learned)
        self._of_pops = Rewriter(rules, learned)

    def request(self, code: int, *rest: Any, **more: Any) -> Rewritten:
        if code == POP:
            return self._of_pops.request(code, *rest, **more)
        return super().request(code, *rest, **more)

    def answer(self, code: int, *rest: Any) -> None:
        if code == POP:
            self._of_pops.answer(code, *rest)
        else:
            super().answer(code, *rest)


def test_messages_are_acknowledged_on_another_connection(make_gateway: MakeGateway) -> None:
    recorded = consume(make_gateway())
    target = make_gateway()
    target.advance(5_000)
    _, unmapped = replay(recorded.pairs, Spread(Rules("run")), target)
    assert set(unmapped) == {()}
    assert left(target, "orders", "consumers") == set()


@pytest.mark.parametrize("batched", [False, True])
def test_each_group_acknowledges_what_it_has_popped(
    make_gateway: MakeGateway, batched: bool
) -> None:
    """Both pop at the same time, from two topics whose messages have the same queue and offset."""
    source, target = make_gateway(), make_gateway()
    recorded = RecordedClient(source)
    send(recorded, KEYS[0], "orders")
    send(recorded, KEYS[1], "bills")
    popped = []
    for group, topic in itertools.product(("one", "two"), ("orders", "bills")):
        fields = pop_fields(source, topic=topic, consumerGroup=group)
        [text] = handles(recorded.ask(POP, fields))
        popped.append((group, topic, text))
    for group, topic, text in popped:
        if batched:
            batch_ack(recorded, text, group=group, topic=topic)
        else:
            recorded.ask(ACK, handle_fields(text, group, topic))
    _, unmapped = replay(recorded.pairs, Rewriter(Rules("run", groups={"two": "second"})), target)
    assert set(unmapped) == {()}
    for group in ("one", "second"):
        assert left(target, "orders", group) | left(target, "bills", group) == set()


@pytest.mark.parametrize("batched", [False, True])
def test_the_same_place_at_two_brokers_has_two_messages(
    make_gateway: MakeGateway, batched: bool
) -> None:
    """The queues of brokers have the same numbers, and a group may pop from both in the same millisecond."""
    target = make_gateway()
    learned = Learned(Rules("run"))
    popped = []
    for key, server in zip(KEYS, ("one", "other"), strict=False):
        source = make_gateway()
        recorded = RecordedClient(source)
        send(recorded, key)
        [text] = handles(recorded.ask(POP, pop_fields(source)))
        rewriter = Rewriter(Rules("run"), learned, server)
        replay(recorded.pairs, rewriter, target)
        popped.append((recorded, rewriter, text))
    [_] = {text for _, _, text in popped}
    for recorded, rewriter, text in popped:
        if batched:
            batch_ack(recorded, text)
        else:
            recorded.ask(ACK, handle_fields(text))
        _, unmapped = replay(recorded.pairs[-1:], rewriter, target)
        assert unmapped == [()]
    assert left(target, "orders", "consumers") == set()


def test_what_the_run_did_not_pop_is_told(make_gateway: MakeGateway) -> None:
    recorded = consume(make_gateway())
    target = make_gateway()
    without_sends = [pair for pair in recorded.pairs if pair["code"] != 310]
    target.connect().send_message("orders", "another")
    _, unmapped = replay(without_sends, Rewriter(Rules("run")), target)
    told = {"extraInfo": 5, "acks": 1}
    assert {name: unmapped.count((name,)) for name in told} == told


def test_without_new_handles_it_would_all_come_back(make_gateway: MakeGateway) -> None:
    """This is why handles are mapped: the recorded handles name nothing in another run."""
    recorded = consume(make_gateway())
    target = make_gateway()
    target.advance(5_000)
    client = RecordedClient(target)
    for pair in recorded.pairs:
        client.ask(pair["code"], dict(pair["ext"]), pair["body"])
    assert left(target, "orders", "consumers") == set(KEYS)


def test_an_acknowledgement_waits_for_a_change_of_the_invisible_time() -> None:
    changed = handle_fields("5 77 1000 0 0 broker-a 3 6")
    [later] = ids_told("one", CHANGE, changed, {"popTime": "99"})
    acknowledged = handle_fields("5 99 1000 0 0 broker-a 3 6")
    assert ids_needed("one", ACK, acknowledged, b"") == (later,)
    assert ids_needed("other", ACK, acknowledged, b"") != (later,)
    for other in ({"group": "others"}, {"topic": "bills"}):
        fields = acknowledged | handle_fields("5 99 1000 0 0 broker-a 3 6", **other)
        assert ids_needed("one", ACK, fields, b"") != (later,)
    assert ids_told("one", CHANGE, acknowledged, {"popTime": "soon"}) == ()
    assert ids_needed("one", ACK, {"extraInfo": "broken"}, b"") == ()
    assert ids_needed("one", BATCH_ACK, {}, b"broken") == ()


def test_what_was_popped_again_is_missing_until_it_is_in_this_run(
    make_gateway: MakeGateway,
) -> None:
    """With the handle of its first pop it would not be acknowledged any more when it has come back."""
    source, target = make_gateway(), make_gateway()
    recorded = RecordedClient(source)
    send(recorded, KEYS[0])
    [first] = handles(recorded.ask(POP, pop_fields(source)))
    source.advance(60_000)
    [second] = handles(recorded.ask(POP, pop_fields(source)))
    assert (parse_handle(first).retried, parse_handle(second).retried) == ("0", "1")
    learned = Learned(Rules("run"))
    rewriter, popped = Rewriter(Rules("run"), learned), learned.popped
    replay(recorded.pairs[:2], rewriter, target)
    again = recorded.pairs[2]
    popped.expect(None, POP, dict(again["ext"]), (dict(again["answer_ext"]), again["answer_body"]))
    assert popped.missing(None, ACK, handle_fields(first), b"") == []
    [message] = popped.missing(None, ACK, handle_fields(second), b"")
    told: list[str] = []
    popped.call_when_popped(message, lambda: told.append("popped"))
    target.advance(60_000)
    replay([again], rewriter, target)
    assert popped.missing(None, ACK, handle_fields(second), b"") == []
    assert told == ["popped"]


def test_a_long_poll_begins_when_it_is_sent() -> None:
    ext = {"bornTime": "1000", "pollTime": "15000"}
    assert Rewriter(Rules("run")).request(POP, ext, b"", 1_000, 9_000).ext["bornTime"] == "9000"


@pytest.mark.parametrize("body", [b"", b"broken", b'{"acks": [], "brokerName": "\xff"}'])
def test_a_batch_that_no_server_reads_is_sent_as_it_was(body: bytes) -> None:
    sent = Rewriter(Rules("run")).request(BATCH_ACK, {}, body, 1_000, 9_000)
    assert sent == ({}, body, ())
