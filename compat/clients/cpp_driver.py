"""Runs commands from standard input with rocketmq-client-python; see driver.py.

This is a program of its own because the package is in an environment of its own. It imports nothing
else that must be installed. The package cannot pull, recall or look up messages.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from rocketmq.client import (
    ConsumeStatus,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
    TransactionMQProducer,
    TransactionStatus,
)
from rocketmq.ffi import MessageModel, dll

LONGEST_BODY_TOLD: Final = 16 * 1024
"""The longest body that is reported. Of a longer one only the length and the SHA-256 are."""

# The client returns properties only by name.
_PROPERTIES_TOLD: Final = (
    "DELAY",
    "KEYS",
    "MAX_OFFSET",
    "MIN_OFFSET",
    "ORIGIN_MESSAGE_ID",
    "REAL_QID",
    "REAL_TOPIC",
    "RECONSUME_TIME",
    "RETRY_TOPIC",
    "TAGS",
    "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC",
    "TIMER_DELIVER_MS",
    "TIMER_OUT_MS",
    "TRANSACTION_CHECK_TIMES",
    "UNIQ_KEY",
    "WAIT",
    "colour",
)

_WORKERS: Final = 32


class Driver:
    """The clients that were started, by name."""

    def __init__(self, out: int) -> None:
        self._out = os.fdopen(out, "w", encoding="utf-8")
        self._lock = threading.Lock()
        self._producers: dict[str, Producer] = {}
        self._consumers: dict[str, PushConsumer] = {}

    def tell(self, line: dict[str, Any]) -> None:
        with self._lock:
            self._out.write(json.dumps(line) + "\n")
            self._out.flush()

    def answer(self, request: dict[str, Any]) -> None:
        answer = {"id": request["id"]}
        try:
            answer["done"] = getattr(self, "do_" + request["do"])(request)
        except Exception as failure:  # noqa: BLE001  any failure is the answer
            answer["error"] = _error(failure)
        self.tell(answer)

    def do_producer(self, request: dict[str, Any]) -> bool:
        self._start_producer(Producer(request["group"]), request)
        return True

    def do_send(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        producer = self._producers[request["name"]]
        results: list[dict[str, Any]] = []
        for wanted in request["messages"]:
            message = _message(wanted)
            if request["mode"] == "oneway":
                producer.send_oneway(message)
                continue
            try:
                result = producer.send_sync(message)
            except Exception as failure:  # noqa: BLE001  any failure is this message's result
                results.append({"error": _error(failure)})
                continue
            results.append(_sent(result))
        return results

    def do_transactor(self, request: dict[str, Any]) -> bool:
        name = request["name"]

        def check(message: ReceivedMessage) -> int:
            self.tell({"consumer": name, "message": _received(message)})
            return _decision(message, int(message.get_property("TRANSACTION_CHECK_TIMES")))

        self._start_producer(TransactionMQProducer(request["group"], check), request)
        return True

    def do_transact(self, request: dict[str, Any]) -> dict[str, Any]:
        producer = self._producers[request["name"]]
        result = producer.send_message_in_transaction(
            _message(request), lambda message, _: _decision(message, 0)
        )
        return _sent(result)

    def do_consume(self, request: dict[str, Any]) -> bool:
        name = request["name"]
        fail_first = request["failFirst"]

        def receive(message: ReceivedMessage) -> ConsumeStatus:
            now = time.time_ns() // 1_000_000
            self.tell({"consumer": name, "message": {**_received(message), "receivedMs": now}})
            if message.reconsume_times < fail_first:
                return ConsumeStatus.RECONSUME_LATER
            return ConsumeStatus.CONSUME_SUCCESS

        model = MessageModel.BROADCASTING if request["broadcast"] else MessageModel.CLUSTERING
        consumer = PushConsumer(request["group"], orderly=request["orderly"], message_model=model)
        consumer.set_name_server_address(request["namesrv"])
        consumer.set_instance_name(request["instance"])
        for topic, expression in request["subscriptions"].items():
            consumer.subscribe(topic, receive, expression)
        _sign(consumer, request)
        consumer.start()
        self._consumers[name] = consumer
        return True

    def _start_producer(self, producer: Producer, request: dict[str, Any]) -> None:
        producer.set_name_server_address(request["namesrv"])
        producer.set_timeout(request["timeoutMs"])
        producer.set_max_message_size(request["maxMessageSize"])
        # Clients of one instance name share connections, even to different servers.
        dll.SetProducerInstanceName(producer._handle, request["instance"].encode())  # noqa: SLF001
        _sign(producer, request)
        producer.start()
        self._producers[request["name"]] = producer

    def do_close(self, request: dict[str, Any]) -> bool:
        if producer := self._producers.pop(request["name"], None):
            producer.shutdown()
        if consumer := self._consumers.pop(request["name"], None):
            consumer.shutdown()
        return True


def _sign(client: Producer | PushConsumer, request: dict[str, Any]) -> None:
    """Make a client sign its requests if the request has an "accessKey" with its "secretKey"."""
    if "accessKey" in request:
        client.set_session_credentials(request["accessKey"], request["secretKey"], "")


def _message(wanted: dict[str, Any]) -> Message:
    message = Message(wanted["topic"])
    if "body" in wanted:
        message.set_body(base64.b64decode(wanted["body"]))
    else:
        # The library takes a body as a C string: no byte of it may be zero.
        message.set_body((bytes(range(1, 256)) * (wanted["size"] // 255 + 1))[: wanted["size"]])
    if "tags" in wanted:
        message.set_tags(wanted["tags"])
    if "keys" in wanted:
        message.set_keys(wanted["keys"])
    if "level" in wanted:
        message.set_delay_time_level(wanted["level"])
    for field, name in (
        ("deliverTimeMs", "TIMER_DELIVER_MS"),
        ("delayTimeMs", "TIMER_DELAY_MS"),
        ("delayTimeSec", "TIMER_DELAY_SEC"),
    ):
        if field in wanted:
            message.set_property(name, str(wanted[field]))
    for name, value in wanted.get("properties", {}).items():
        message.set_property(name, value)
    return message


def _decision(message: ReceivedMessage, check: int) -> int:
    """Return the decision for a check, from the message's property "decisions".

    Number 0 is the decision right after the send.
    """
    decisions = message.get_property("decisions").decode().split(",")
    status: int = TransactionStatus[decisions[min(check, len(decisions) - 1)].upper()]
    return status


def _sent(result: Any) -> dict[str, Any]:
    status = SendStatus(result.status).name
    return {"status": status, "msgId": result.msg_id, "queueOffset": result.offset}


def _received(message: ReceivedMessage) -> dict[str, Any]:
    body = message.body or b""
    values = {name: message.get_property(name) for name in _PROPERTIES_TOLD}
    told = {
        "msgId": message.id,
        "topic": message.topic,
        "queue": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "tags": (message.tags or b"").decode() or None,
        "keys": (message.keys or b"").decode() or None,
        "reconsumeTimes": message.reconsume_times,
        "bornMs": message.born_timestamp,
        "storedMs": message.store_timestamp,
        "storeSize": message.store_size,
        "bodyLength": len(body),
        "bodySha256": hashlib.sha256(body).hexdigest(),
        "properties": {name: value.decode() for name, value in values.items() if value},
    }
    if len(body) <= LONGEST_BODY_TOLD:
        told["body"] = base64.b64encode(body).decode()
    return told


def _error(failure: Exception) -> dict[str, Any]:
    return {"class": type(failure).__name__, "message": str(failure)}


def main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # keeps what the library prints apart from the answers
    driver = Driver(out)
    workers = ThreadPoolExecutor(_WORKERS)
    driver.tell({"ready": True})
    for line in sys.stdin:
        workers.submit(driver.answer, json.loads(line))
    # An orderly exit would wait for the library's threads for ever.
    os._exit(0)


if __name__ == "__main__":
    main()
