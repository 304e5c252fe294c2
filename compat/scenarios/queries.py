"""Queries of messages by key and by id."""

from __future__ import annotations

import time
from functools import partial

from compat.clients.driver import ClientFailure, until
from compat.clients.java import JavaClient
from compat.scenarios.stage import JAVA, OLD_JAVA, RAW, Stage, scenario
from gateway.wire.codes import RequestCode


def is_found(client: JavaClient, topic: str, key: str) -> bool:
    """Whether a key is indexed already: a broker indexes a message a little after it is stored."""
    try:
        return bool(client.query(topic, key))
    except ClientFailure:
        return False


@scenario(*JAVA, *OLD_JAVA)
def by_key_and_id(stage: Stage) -> None:
    """A message is found by each of its keys and by both of its ids."""
    topic = stage.topic()
    client = stage.java()
    client.create_topic(topic, 1)
    sent = client.send(topic, b"find me", keys=f"{topic}k1 {topic}k2", tags="red")
    until(partial(is_found, client, topic, f"{topic}k1"), "the index")
    stage.see("by one key", client.query(topic, f"{topic}k1"))
    stage.see("by the other", client.query(topic, f"{topic}k2"))
    stage.attempt("by no key", lambda: client.query(topic, f"{topic}none"))
    stage.see("by offset id", client.view(topic, sent.offset_msg_id or ""))
    stage.see("by unique id", client.view(topic, sent.msg_id))


@scenario(*RAW)
def requests(stage: Stage) -> None:
    """The answers to queries that find something, and that find nothing."""
    topic = stage.topic()
    raw = stage.raw()
    keys = f"{topic}k {topic}a\tb"
    sent = raw.send(topic, properties=f"KEYS\x01{keys}\x02UNIQ_KEY\x01{topic}u\x02TAGS\x01t\x02")

    def fields(key: str, **ext: str) -> dict[str, str]:
        window = {"beginTimestamp": "0", "endTimestamp": str(2**62)}
        return {"topic": topic, "key": key, "maxNum": "10", **window, **ext}

    def is_indexed() -> bool:
        return raw.ask(RequestCode.QUERY_MESSAGE, fields(f"{topic}k")).code == 0

    until(is_indexed, "the index")
    stage.ask("key", raw, RequestCode.QUERY_MESSAGE, fields(f"{topic}k"))
    stage.ask("key with a tab", raw, RequestCode.QUERY_MESSAGE, fields(f"{topic}a\tb"))
    stage.ask("key up to the tab", raw, RequestCode.QUERY_MESSAGE, fields(f"{topic}a"))
    unique = {"_UNIQUE_KEY_QUERY": "true"}
    stage.ask("unique key", raw, RequestCode.QUERY_MESSAGE, fields(f"{topic}u", **unique))
    typed = fields(f"{topic}u", indexType="U", **unique)
    stage.ask("unique key by type", raw, RequestCode.QUERY_MESSAGE, typed)
    stage.ask("unique key as a key", raw, RequestCode.QUERY_MESSAGE, fields(f"{topic}u"))
    stage.ask("nothing", raw, RequestCode.QUERY_MESSAGE, fields(f"{topic}none"))
    late = fields(f"{topic}k", beginTimestamp=str(time.time_ns() // 1_000_000 + 60_000))
    stage.ask("not at that time", raw, RequestCode.QUERY_MESSAGE, late)
    stage.ask("no fields", raw, RequestCode.QUERY_MESSAGE)
    offset = str(int(sent.ext()["msgId"][16:], 16))
    stage.ask("view", raw, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset, "topic": topic})
    stage.ask("view nothing", raw, RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "99999999999"})
