"""The traffic of the demonstration: real Java and Python clients that use each feature a little."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from compat.clients.cpp import CppClient
from compat.clients.driver import ClientFailure, Outgoing, until
from compat.clients.java import JavaClient
from compat.java_tools import Mqadmin
from compat.toolchain.cpp import has_cpp_client

ORDERS: Final = "demo-orders"
SHIPMENTS: Final = "demo-shipments"
PAYMENTS: Final = "demo-payments"
PARCELS: Final = "demo-parcels"

_DELAYED: Final = 120
_LONGEST_MS: Final = 6_000
_BRIEFLY: Final = 30
_BRIEFLY_MS: Final = 2_000

Tell = Callable[[str], None]


def talk(namesrv: str, tell: Tell, *, briefly: bool = False) -> int:
    """Run all clients, wait until everything was delivered, and return how many messages were sent.

    `briefly` leaves out slow parts, and uses fewer delayed messages with shorter delays.
    """
    delayed, longest_ms = (_BRIEFLY, _BRIEFLY_MS) if briefly else (_DELAYED, _LONGEST_MS)
    with ExitStack() as stack:
        java = stack.enter_context(JavaClient(namesrv, "5.5.0"))
        for topic in (ORDERS, SHIPMENTS, PAYMENTS, PARCELS):
            java.create_topic(topic, queues=2)
        orders = java.consume(ORDERS, "demo-billing")
        shipments = java.consume(SHIPMENTS, "demo-red", expression="red || blue")
        in_order = java.consume(PARCELS, "demo-in-order", orderly=True)
        large = java.consume(SHIPMENTS, "demo-large", expression="size > 5", sql=True)
        tell("Java 5.5.0: plain, asynchronous, batches, tags, SQL92, in order")
        sent = _plain(java)
        tell("Java 5.5.0: delay levels, arbitrary times, recall")
        sent += _later(java, delayed, longest_ms)
        tell("Java 5.5.0: transactions, look-up")
        sent += _transactions(java)
        _look_up(java)
        in_orders = delayed + 3
        if has_cpp_client():
            tell("Python 2.0.0 (rocketmq-client-python): sends, delays, a consumer")
            sent += _python(namesrv)
            in_orders += 3
        if not briefly:
            tell("mqadmin: topicRoute, topicStatus")
            with Mqadmin(namesrv) as tool:
                for command in ("topicRoute", "topicStatus"):
                    tool.run(command, "-t", ORDERS)
        tell("waiting until all delayed messages were delivered")
        orders.wait_for(in_orders)
        shipments.wait_for(20)
        in_order.wait_for(10)
        large.wait_for(14)
    return sent + 1


def _plain(java: JavaClient) -> int:
    for number in range(20):
        tags = ("red", "green", "blue")[number % 3]
        java.send(
            SHIPMENTS, b"shipment %d" % number, tags=tags, properties={"size": str(number % 20)}
        )
    java.send_all([Outgoing(topic=SHIPMENTS, body=b"async", tags="red") for _ in range(6)], "async")
    java.send_oneway(Outgoing(topic=SHIPMENTS, body=b"oneway", tags="green"))
    java.send_batch([Outgoing(topic=PARCELS, body=b"parcel %d" % n) for n in range(10)])
    return 37


def _later(java: JavaClient, delayed: int, longest_ms: int) -> int:
    for level in (1, 1, 2):
        java.send(ORDERS, b"by level", level=level)
    step = longest_ms // delayed
    messages = []
    for number in range(delayed):
        after_ms = 500 + number * step
        message = Outgoing(topic=ORDERS, body=b"order %d" % number, keys=f"order-{number}")
        if number % 3 == 0:
            message.delay_time_ms = after_ms
        elif number % 3 == 1:
            message.deliver_time_ms = time.time_ns() // 1_000_000 + after_ms
        else:
            message.delay_time_sec = 1 + after_ms // 1000
        messages.append(message)
    java.send_all(messages)
    handles = [java.send(ORDERS, b"taken back", delay_time_sec=30).recall_handle for _ in range(4)]
    for handle in handles:
        assert handle is not None
        java.recall(ORDERS, handle)
    return 3 + delayed + 4


def _transactions(java: JavaClient) -> int:
    transactor = java.transactor("demo-transactions")
    consumer = java.consume(PAYMENTS, "demo-payments-book")
    for decision in ("commit", "rollback", "commit"):
        transactor.send(PAYMENTS, b"payment", decision)
    transactor.send(PAYMENTS, b"payment", "unknown", "commit")
    transactor.checks(1)
    consumer.wait_for(3)
    consumer.close()
    transactor.close()
    return 4


def _look_up(java: JavaClient) -> None:
    sent = java.send(SHIPMENTS, b"find me", keys="findable", tags="red")

    def is_found() -> bool:
        try:
            java.view(SHIPMENTS, sent.msg_id)
        except ClientFailure:
            return False  # a broker indexes a message a little after it has answered the send
        return True

    until(is_found, "the message to be found by its id")
    puller = java.puller("demo-look-up")
    end = puller.offset(SHIPMENTS, 0, "max")
    puller.offset(SHIPMENTS, 0, "min")
    puller.pull(SHIPMENTS, 0, 0, expression="red", limit=2)
    puller.commit(SHIPMENTS, 0, end)


def _python(namesrv: str) -> int:
    with CppClient(namesrv) as python:
        consumer = python.consume(SHIPMENTS, "demo-python", expression="blue")
        for number in range(6):
            python.send(SHIPMENTS, b"from Python %d" % number, tags="blue")
        for level in (1, 2):
            python.send(ORDERS, b"by level", level=level)
        python.send(ORDERS, b"by delay", delay_time_ms=1_500)
        consumer.wait_for(6)
    return 9
