"""Transactions: no consumer sees a half message. A committed one counts as sent at its commit, and a rolled-back one is
deleted. One that its producer forgets goes to the topic for half messages that were checked often enough."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from gateway.wire.codes import RequestCode, ResponseCode
from tests.gateway.memory import property_string
from tests.gateway.model.machine import Machine, delays, ids, keys, picks, queues, topics
from tests.gateway.tools import ok

COMMIT, ROLL_BACK, UNKNOWN = 8, 12, 0


class Transactions(Machine):
    """The requests of producers in transactions."""

    @rule(
        topic=topics,
        queue=queues,
        message_id=ids,
        keys=st.sets(keys, max_size=1),
        kind=st.sampled_from(["level", "delay"]),
        delay_ms=delays,
        debounces=st.booleans(),
    )
    def prepare(
        self,
        topic: str,
        queue: int,
        message_id: str,
        keys: set[str],
        kind: str,
        delay_ms: int | None,
        debounces: bool,
    ) -> None:
        self._ensure(topic)
        one, properties = self._message(topic, queue, message_id, "", keys)
        timing, one.delay_ms = self._timing(kind, delay_ms)
        properties |= {"TRAN_MSG": "true", "PGROUP": "payers"}
        properties |= timing | self._debouncing(one, debounces)
        fields = {"queue": queue, "sys_flag": 4, "properties": property_string(properties)}
        answer = ok(self.client.send_message(topic, one.body, fields=fields))
        one.sequence = self._told(answer.ext()["msgId"])
        assert answer.ext()["queueOffset"] == str(one.sequence)
        one.from_ms = self.now_ms
        self.world.halves[one.sequence] = one

    @precondition(lambda self: self.world.halves or self.world.messages)
    @rule(
        pick=picks,
        decision=st.sampled_from([COMMIT, COMMIT, ROLL_BACK, UNKNOWN]),
        wrong=st.integers(0, 9),
    )
    def decide(self, pick: int, decision: int, wrong: int) -> None:
        world = self.world
        found = sorted(world.halves)
        if wrong > 7 or not found:
            found = sorted({*found, *world.messages})
        sequence = self._pick(found, pick)
        fields = {
            "producerGroup": "others" if wrong == 7 else "payers",
            "tranStateTableOffset": str(sequence),
            "commitLogOffset": str(sequence),
            "commitOrRollback": str(decision),
            "fromTransactionCheck": "false",
            "msgId": "",
            "transactionId": "",
        }
        answer = self.client.ask(RequestCode.END_TRANSACTION, fields)
        if decision == UNKNOWN:
            ok(answer)
        elif sequence not in world.halves or wrong == 7:
            assert answer.code == ResponseCode.SYSTEM_ERROR
        else:
            ok(answer)
            one = world.halves.pop(sequence)
            if decision == COMMIT:
                if one.debounce:
                    world.debounce(one.topic, one.debounce, self.now_ms)
                self._accepted(one, one.delay_ms)
