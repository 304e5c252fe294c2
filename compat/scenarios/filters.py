"""Messages filtered by their properties with SQL92."""

from __future__ import annotations

from compat.scenarios.later import arrived
from compat.scenarios.raw import heartbeat
from compat.scenarios.stage import ABLE, RAW, Stage, scenario
from gateway.wire.codes import RequestCode

PROPERTIES = (
    "a\x011\x02",
    "a\x015\x02b\x01x\x02",
    "a\x0110\x02b\x01y\x02",
    "a\x015.5\x02",
    "a\x01text\x02b\x01x'y\x02",
    "b\x01true\x02TAGS\x01red\x02",
    "",
)
EXPRESSIONS = (
    "a > 5",
    "a >= 5 AND b = 'x'",
    "a BETWEEN 5 AND 6",
    "a NOT BETWEEN 5 AND 6",
    "b IN ('x', 'y')",
    "b NOT IN ('x')",
    "a IS NULL",
    "a IS NOT NULL AND NOT (a = 5)",
    "b = TRUE",
    "b <> 'x'",
    "b = 'x''y'",
    "a = 5 OR b = 'y'",
    "TAGS = 'red'",
    "a = '5'",
    "b CONTAINS 'x'",
    "b STARTSWITH 'x' OR b ENDSWITH 'y'",
    "a",
    "TRUE",
    "1 = 1",
    "a LIKE 'x%'",
    "a > 'x'",
    "a ==",
    "",
)


@scenario(*ABLE)
def of_a_push_consumer(stage: Stage) -> None:
    """A consumer gets the messages whose properties match its expression."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.able()
    consumer = client.consume(
        topic, stage.topic("g"), expression="size BETWEEN 2 AND 3 AND TAGS = 'red'", sql=True
    )
    for size in range(5):
        client.send(topic, b"%d" % size, tags="red", properties={"size": str(size)})
    client.send(topic, b"blue", tags="blue", properties={"size": "2"})
    client.send(topic, b"last", tags="red", properties={"size": "2"})
    # With the last one, the pulls of all that come before it have been answered.
    messages = consumer.wait_until(
        lambda all_: len(all_) >= 3 and b"last" in {one.body for one in all_}
    )
    stage.see("arrived", arrived(messages))


@scenario(*RAW)
def what_each_expression_finds(stage: Stage) -> None:
    """Operators, types and missing properties mean the same as in RocketMQ."""
    topic = stage.topic()
    raw = stage.raw()
    for number, properties in enumerate(PROPERTIES):
        raw.send(topic, b"%d" % number, properties=properties)
    raw.wait_for(topic, len(PROPERTIES))
    for number, expression in enumerate(EXPRESSIONS):
        group = stage.topic(f"g{number}")
        beat = heartbeat(
            group, group, topic, expression, expressionType="SQL92", subVersion=number + 1
        )
        raw.ask(RequestCode.HEART_BEAT, body=beat)
        fields = raw.pull_fields(
            topic,
            consumerGroup=group,
            subscription=expression,
            expressionType="SQL92",
            subVersion=str(number + 1),
        )
        stage.ask(f"{number} {expression}", raw, RequestCode.PULL_MESSAGE, fields)
