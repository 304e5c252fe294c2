"""THE TABLE of deliberate differences between RocketMQ 5.5.0 and the gateway. Any other difference fails."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from compat.comparison import Finding


class Difference(NamedTuple):
    """A deliberate difference: what it is, why, and where it shows."""

    what: str
    reason: str
    places: tuple[str, ...]
    """Patterns of `Finding.place`, where `*` is any text."""
    scenarios: tuple[str, ...] = ("*",)
    """Patterns of the names of the scenarios that show the difference."""
    upstream: str = "*"
    """Pattern of RocketMQ's value in that place."""

    def covers(self, scenario: str, finding: Finding) -> bool:
        """Whether this difference explains a finding."""
        return (
            any(fnmatchcase(scenario, pattern) for pattern in self.scenarios)
            and any(fnmatchcase(finding.place, pattern) for pattern in self.places)
            and fnmatchcase(finding.left, self.upstream)
        )


DIFFERENCES: Final[Sequence[Difference]] = (
    Difference(
        "A refused request is answered with a sentence.",
        "RocketMQ shows the class and the source line of a Java exception. Clients go by the code, which is "
        "the same; the name and value of the wrong field help people more.",
        ("*/remark",),
        upstream="*Exception*",
    ),
    Difference(
        "Some other refusals have another text: an unknown queue, a wrong time or filter, a batch in one "
        "record, a recall while it is switched off.",
        "The text names the setting, the property or the column. The code is the same.",
        (
            *("seen/no queues/remark", "seen/queue too high/remark"),
            *("seen/TIMER_*/remark", "seen/other kind/remark", "seen/22 /remark"),
            *("seen/INNER_NUM/remark", "seen/batch flag*/remark", "seen/unwrap flag and*/remark"),
            "seen/no recall/remark",
        ),
        (
            *("sending.refusals*", "sending.names-of*", "later.*", "clients.checks*", "filters.*"),
            "admin.settings*",
        ),
    ),
    Difference(
        "A batch that cannot be read is an illegal message (13).",
        "It is the sender's fault, and code 1 makes clients retry; RocketMQ runs into an exception.",
        ("seen/cut off/*",),
        ("sending.wrong-batches*",),
    ),
    Difference(
        "A route request without a topic is answered as a missing field (1).",
        "RocketMQ looks for the topic `null`. No client does this.",
        ("seen/no fields/code",),
        ("admin.of-the-name-server*",),
    ),
    Difference(
        "`IS_SUPPORT_HEART_BEAT_V2` is false.",
        "Clients that could send short heartbeats then send full ones, which they do by default anyway.",
        ("*/ext.IS_SUPPORT_HEART_BEAT_V2",),
    ),
    Difference(
        "Every message of a batch has a `UNIQ_KEY`.",
        "Without an id a message could not be found and, if delayed, not be recalled. The Java clients set "
        "one themselves, the Go client does not.",
        ("*.properties.UNIQ_KEY",),
        ("sending.a-batch*", "sending.several-as-one*"),
        upstream="(absent)",
    ),
    Difference(
        "The answer to a delayed send has another `queueOffset`.",
        "It is the place where the message waits. Each server stores these differently, and no client can use "
        "it. The same goes for half messages of transactions.",
        ("*10/0/ext.queueOffset", "seen/*/ext.queueOffset"),
        ("later.*", "recall.*", "traces.*", "transactions.*"),
    ),
    Difference(
        "A message with a delay level has a recall handle.",
        "Here it can be recalled; RocketMQ can recall only messages with arbitrary times.",
        ("*10/0/ext.recallHandle", "seen/*/ext.recallHandle"),
        upstream="(absent)",
    ),
    Difference(
        "Recall says what really happened.",
        "RocketMQ answers success for every valid handle, without looking. Here success means that the "
        "message was pending; otherwise the answer is 604 and says what became of it.",
        (
            "370/codes",
            "370/0/ext.outcome",
            "seen/again/*",
            "seen/never sent/code",
            "seen/the past/*",
        ),
        ("recall.*", "traces.*"),
    ),
    Difference(
        "The longest delay is 2 years.",
        "RocketMQ refuses more than 3 days. The setting is `max_delay`.",
        ("*10/13/remark",),
        ("later.too-far*",),
    ),
    Difference(
        "`TIMER_ENQUEUE_MS` and `TIMER_DEQUEUE_MS` are not added.",
        "They are the times when RocketMQ's timer threads wrote the record and read it again. Here it is "
        "written once.",
        ("*TIMER_ENQUEUE_MS", "*TIMER_DEQUEUE_MS"),
        upstream="<time>",
    ),
    Difference(
        "A dead letter has no `REAL_TOPIC` and `REAL_QID`, and none of the properties that asked for a delay, "
        "such as `TIMER_DELIVER_MS`.",
        "The first two name where a delayed message went, the retry topic after a retry, which is of no use: "
        "`RETRY_TOPIC` names the origin on both servers. The others asked for a delay that is over; RocketMQ too drops "
        "them with the first retry.",
        ("*.properties.REAL_TOPIC", "*.properties.REAL_QID"),
        ("consuming.refused-for-good*",),
        upstream="*",
    ),
    Difference(
        "A commit of the offset -1 changes nothing.",
        "The Go client commits it when it stops before a queue's first message has arrived. RocketMQ then "
        "forgets the group's offset, so the group would start anew.",
        ("seen/group: still/*",),
        ("consuming.offsets*",),
    ),
    Difference(
        "A pull with an invalid filter is refused (23).",
        "RocketMQ ignores the filter and delivers everything, unless the group has a valid one.",
        ("seen/unknown kind of filter/code", "seen/wrong SQL/code", "seen/2[01] a */code"),
        ("consuming.pulls*", "filters.*"),
        upstream="0",
    ),
    Difference(
        "The tags and tag codes of a subscription are taken from its expression.",
        "C++ and Go send wrong ones. RocketMQ shows what they sent.",
        ("*.codeSet*", "*.tagsSet*"),
        ("clients.*",),
    ),
    Difference(
        "A check of a transaction shows the message's own `WAIT`.",
        "RocketMQ stores the half message anew for every check, and changes `WAIT` then.",
        ("39/*/body.each.properties.WAIT",),
    ),
    Difference(
        "A reply is pushed as its sender made it.",
        "RocketMQ adds `MSG_REGION` and `TRACE_ON` to its properties, which no client reads there.",
        ("326/*/ext.properties.MSG_REGION", "326/*/ext.properties.TRACE_ON"),
    ),
    Difference(
        "The broker's figures have no `timerEnqueueTps`.",
        "RocketMQ moves delayed messages into its timers in a second step. Here there is none.",
        ("seen/state/timerEnqueueTps", "seen/figures/timerEnqueueTps"),
        upstream="True",
    ),
    Difference(
        "The keys of users are shown to super users only.",
        "Whoever has a user's key can sign as that user. RocketMQ shows the keys to everybody who may list "
        "users; with authentication off, that is everybody.",
        ("seen/getUser/password", "seen/listUser/*.password"),
        ("dashboard.of-users*",),
    ),
    Difference(
        "A topic that is deleted and created again continues the offsets of the old one.",
        "No offset names two messages, so a client that was away neither takes a new message for an old one "
        "nor skips any. One that begins before the first message is told its offset (21), as after any "
        "clean-up.",
        ("seen/sent again/ext.queueOffset", "seen/pulled again/*", "seen/ends again/*"),
        ("admin.a-topic-made-again*",),
    ),
    Difference(
        "There is no limit for reading old data.",
        "Old data is not slower to read here, so the thresholds are 0.",
        ("*.cgColdReadThreshold", "*.globalColdReadThreshold"),
    ),
    Difference(
        "`consumerProgress` also shows a group's empty retry queue.",
        "It is created with the group, not with the first retry.",
        (
            *("seen/consumerProgress/%RETRY%*", "208/0/body.offsetTable.*%RETRY%*"),
            # The command then also asks for that topic's settings.
            *("351/0/body.topicName", "351/0/body.*QueueNums", "seen/*offsetTable.*%RETRY%*"),
        ),
        ("admin.commands*", "dashboard.*"),
    ),
    Difference(
        "A group's retry topic can be found from its first heartbeat on.",
        "RocketMQ's name server learns of it a little later. That can be too late for the Go client, which "
        "looks when it starts, and then only after half a minute.",
        ("41/0*/body.lockOKMQSet.each.topic",),
        ("ordered.*",),
    ),
    Difference(
        "The `reviveQid` of a popped message is always 0.",
        "It names one of the queues in which RocketMQ tracks popped messages. Here there are no such queues. "
        "Clients return it unread.",
        ("*.reviveQid",),
        ("popping.*",),
    ),
    Difference(
        "The answer to a query by key says 0 for when and where the index was last written.",
        "RocketMQ indexes a message a little after it has answered the sender, and shows how far it is. Here a "
        "message is found as soon as its send is answered. Clients only hand these figures on.",
        ("12/0/ext.indexLastUpdate*", "seen/*indexLastUpdate*"),
    ),
    Difference(
        "A pull gets no more bytes than it asks for, but at least one message.",
        "RocketMQ does not read that field (`maxMsgBytes`), which Java's push consumers send "
        "(`setPullBatchSizeInBytes`).",
        ("seen/a byte wanted/*",),
        ("consuming.pulls*",),
    ),
    Difference(
        "A new group's progress in an empty queue is the queue's end.",
        "RocketMQ answers that it has none (22). Clients then ask for the end, whatever their settings say, and skip "
        "the messages that come in between.",
        ("seen/empty/2",),
        ("consuming.figures-of-a-queue*",),
    ),
)


def number_of(scenario: str, finding: Finding) -> int | None:
    """Return the number, from 1, of the difference that covers a finding; None if none does."""
    for number, difference in enumerate(DIFFERENCES, 1):
        if difference.covers(scenario, finding):
            return number
    return None
