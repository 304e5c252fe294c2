"""Transactions, and requests with replies."""

from __future__ import annotations

from compat.clients.driver import until
from compat.scenarios.later import arrived
from compat.scenarios.stage import ABLE, JAVA5, OFFICIAL, RAW, Stage, scenario
from gateway.wire.codes import RequestCode
from gateway.wire.messages import decode_messages


@scenario(*OFFICIAL)
def decided_at_once(stage: Stage) -> None:
    """Committed messages arrive, rolled back ones do not."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.official()
    sender = client.transactor(stage.topic("p"))
    sender.send(topic, b"rolled back", "rollback")
    sender.send(topic, b"committed", "commit", tags="red", keys="k")
    messages = client.consume(topic, stage.topic("g")).wait_for(1)
    stage.see("arrived", arrived(messages))
    raw = stage.raw()
    pulled = raw.ask(RequestCode.PULL_MESSAGE, raw.pull_fields(topic))
    stage.see("stored", sorted({message.body for message in decode_messages(pulled.body)}))


@scenario(*ABLE)
def decided_when_asked(stage: Stage) -> None:
    """The server checks undecided transactions, and acts on the answer."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.able()
    sender = client.transactor(stage.topic("p"))
    sender.send(topic, b"asked", "unknown", "commit")
    stage.see("checked", sender.checks(1)[0].body)
    messages = client.consume(topic, stage.topic("g")).wait_for(1)
    # RocketMQ may check twice before the first answer arrives, and then delivers the message twice.
    first = arrived(messages[:1])[0]
    stage.see("arrived", {name: first[name] for name in ("body", "tags", "sys flag")})


@scenario(*JAVA5)
def with_a_delay(stage: Stage) -> None:
    """The newer client refuses to send a delayed transactional message."""
    topic = stage.topic()
    client = stage.java()
    client.create_topic(topic, 1)
    sender = client.transactor(stage.topic("p"))
    stage.attempt("sent", lambda: sender.send(topic, b"x", "commit", level=1))


@scenario(*ABLE)
def request_and_reply(stage: Stage) -> None:
    """A request is answered by the consumer that gets it."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    group = stage.topic("p")
    client = stage.able(group=group)
    client.send(stage.topic("first"))  # Go sends no heartbeat before it has found a broker
    client.consume(topic, stage.topic("g"), reply=b"the answer")
    raw, asked = stage.raw(), {"producerGroup": group}
    until(
        lambda: raw.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, asked).code == 0,
        "the heartbeat by which the reply finds its way",
    )
    reply = client.request(topic, b"the question")
    stage.see("reply", reply.body)


@scenario(*RAW)
def replies_to_nobody(stage: Stage) -> None:
    """If a reply cannot be delivered to the requester, the sender of the reply gets an error."""
    raw = stage.raw()
    raw.send(stage.topic())
    name = "DefaultCluster_REPLY_TOPIC"
    for step, properties in (
        ("asker unknown", "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01x\x02"),
        ("asker missing", "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c\x02"),
    ):
        code = RequestCode.SEND_REPLY_MESSAGE_V2
        stage.send(step, raw, name, code=code, properties=properties)
