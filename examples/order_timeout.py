"""Close an order that is not paid within 3 seconds; a payment takes the close message back.

Run it with `make example-python`.
"""

import sys
from threading import Event

from rocketmq.client import ConsumeStatus, Message, Producer, PushConsumer

from gateway.client import RemotingClient, successful
from gateway.wire.codes import RequestCode

gateway = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
closed = Event()


def close_order(order: str) -> Message:
    message = Message("close-order")
    message.set_tags("unpaid")
    message.set_keys(order)
    message.set_property("TIMER_DELAY_MS", "3000")
    message.set_body(order)
    return message


def on_message(message) -> ConsumeStatus:
    print("closing", message.keys.decode(), flush=True)
    if message.id == unpaid.msg_id:  # and not a message of an earlier run
        closed.set()
    return ConsumeStatus.CONSUME_SUCCESS


producer = Producer("orders")
producer.set_name_server_address(gateway)
producer.start()
try:
    unpaid = producer.send_sync(close_order("order-1"))
    producer.send_sync(close_order("order-2"))

    # This client cannot recall, so abort by topic and key, as `tidegate abort` does.
    host, port = gateway.split(":")
    with RemotingClient(host, int(port)) as tidegate:
        paid = {"topic": "close-order", "key": "order-2"}
        successful(tidegate.ask(RequestCode.ABORT_TIMERS, paid))
    print("order-2 is paid: its close is taken back", flush=True)

    consumer = PushConsumer("order-closer")
    consumer.set_name_server_address(gateway)
    consumer.subscribe("close-order", on_message)
    consumer.start()
    closed.wait(60)
    consumer.shutdown()
finally:
    producer.shutdown()  # its threads keep Python running, even after an error
