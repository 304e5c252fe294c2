"""THE TABLE of deliberate differences between RocketMQ 5.5.0 and the gateway. Any other one fails."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from compat.comparison import Finding


class Difference(NamedTuple):
    """What is different on purpose, and why."""

    what: str
    reason: str
    places: tuple[str, ...]
    """Patterns of `Finding.place`, where `*` is any text."""
    scenarios: tuple[str, ...] = ("*",)
    """Patterns of the scenarios in which it is seen."""
    upstream: str = "*"
    """Pattern of what RocketMQ has there."""

    def covers(self, scenario: str, finding: Finding) -> bool:
        """Whether a finding is this difference."""
        return (
            any(fnmatchcase(scenario, pattern) for pattern in self.scenarios)
            and any(fnmatchcase(finding.place, pattern) for pattern in self.places)
            and fnmatchcase(finding.left, self.upstream)
        )


DIFFERENCES: Final[Sequence[Difference]] = (
    Difference(
        "What went wrong with a request is said in words.",
        "RocketMQ shows the class and the source line of a Java exception. Clients go by the code, "
        "which is the same; people are better served by the name of the field and its value.",
        ("*/remark",),
        upstream="*Exception*",
    ),
    Difference(
        "The words of some other refusals: a queue that is none, a wrong time or filter, a batch in one "
        "record, a recall that is switched off.",
        "They name the setting, the property or the column in question. The code is the same.",
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
        "It is the sender's fault, and 1 makes clients try again; RocketMQ runs into an exception.",
        ("seen/cut off/*",),
        ("sending.wrong-batches*",),
    ),
    Difference(
        "A route asked for without a topic is answered as a missing field (1).",
        "RocketMQ looks for the topic `null`. No client does this.",
        ("seen/no fields/code",),
        ("admin.of-the-name-server*",),
    ),
    Difference(
        "`IS_SUPPORT_HEART_BEAT_V2` is false.",
        "Clients that save on heartbeats send whole ones then, which they do by default anyway.",
        ("*/ext.IS_SUPPORT_HEART_BEAT_V2",),
    ),
    Difference(
        "Every item of a batch has a `UNIQ_KEY`.",
        "An item that came without an id could neither be found nor, when it is for later, taken "
        "back. The Java clients set one themselves, the Go client does not.",
        ("*.properties.UNIQ_KEY",),
        ("sending.a-batch*", "sending.several-as-one*"),
        upstream="(absent)",
    ),
    Difference(
        "The answer to a send for later has another `queueOffset`.",
        "It is the place where the message waits; each has its own way of storing those, and no "
        "client can do anything with it. The same goes for halves of transactions.",
        ("*10/0/ext.queueOffset", "seen/*/ext.queueOffset"),
        ("later.*", "recall.*", "traces.*", "transactions.*"),
    ),
    Difference(
        "A message with a delay level has a recall handle.",
        "Here it can be taken back; RocketMQ can do that for arbitrary times only.",
        ("*10/0/ext.recallHandle", "seen/*/ext.recallHandle"),
        upstream="(absent)",
    ),
    Difference(
        "Recall tells the truth.",
        "RocketMQ says success for whatever has a good handle, without looking. Here success means "
        "that the message was pending; else the answer is 604 with what became of it.",
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
        "They tell when RocketMQ's timer threads took the record up and put it down. Here it is "
        "written once.",
        ("*TIMER_ENQUEUE_MS", "*TIMER_DEQUEUE_MS"),
    ),
    Difference(
        "A dead letter has no `REAL_TOPIC` and `REAL_QID`.",
        "They are left over from the retry's waiting and name the retry topic, which tells nobody "
        "anything. `RETRY_TOPIC` tells the origin on both.",
        ("*.properties.REAL_TOPIC", "*.properties.REAL_QID"),
        ("consuming.refused-for-good*",),
        upstream="*",
    ),
    Difference(
        "A commit of the offset -1 changes nothing.",
        "The Go client commits it when it ends before a queue's first message has come. RocketMQ forgets how far "
        "the group was, so it would begin anew.",
        ("seen/group: still/*",),
        ("consuming.offsets*",),
    ),
    Difference(
        "A pull with a filter that cannot be read is refused (23).",
        "RocketMQ ignores the filter and delivers everything unless the group has a good one.",
        ("seen/unknown kind of filter/code", "seen/wrong SQL/code", "seen/2[01] a */code"),
        ("consuming.pulls*", "filters.*"),
        upstream="0",
    ),
    Difference(
        "Tags and their codes in a subscription are read from its expression.",
        "C++ and Go send wrong ones. RocketMQ shows what it was sent.",
        ("*.codeSet*", "*.tagsSet*"),
        ("clients.*",),
    ),
    Difference(
        "A check of a transaction shows the message's own `WAIT`.",
        "RocketMQ stores the half anew for every check, and changes it on the way.",
        ("39/*/body.each.properties.WAIT",),
    ),
    Difference(
        "A reply is pushed as its sender made it.",
        "RocketMQ adds `MSG_REGION` and `TRACE_ON` to its properties, which no client reads there.",
        ("326/*/ext.properties.MSG_REGION", "326/*/ext.properties.TRACE_ON"),
    ),
    Difference(
        "There is no `timerEnqueueTps` among the broker's figures.",
        "RocketMQ takes messages for later into its timers in a second step. Here there is none.",
        ("seen/state/timerEnqueueTps", "seen/figures/timerEnqueueTps"),
        upstream="True",
    ),
    Difference(
        "The keys of users are shown to super users only.",
        "With one of them everybody could sign as that user. RocketMQ shows them to whoever may look at users, "
        "and while nobody is asked for a name that is everybody.",
        ("seen/getUser/password", "seen/listUser/*.password"),
        ("dashboard.of-users*",),
    ),
    Difference(
        "A topic that is deleted and made again goes on counting offsets where the old one ended.",
        "No offset names two messages, so a client that was away meanwhile neither takes a new one for one that it has "
        "had nor skips any. One that begins before the first is told where that is (21), as after any clean-up.",
        ("seen/sent again/ext.queueOffset", "seen/pulled again/*", "seen/ends again/*"),
        ("admin.a-topic-made-again*",),
    ),
    Difference(
        "There is no limit for reading old data.",
        "Nothing here is slower to read for being old, so the thresholds are 0.",
        ("*.cgColdReadThreshold", "*.globalColdReadThreshold"),
    ),
    Difference(
        "`consumerProgress` also shows a group's empty retry queue.",
        "It is made with the group, not with the first retry.",
        (
            *("seen/consumerProgress/*", "208/0/body.offsetTable.*%RETRY%*", "351/0/body.*"),
            "seen/*offsetTable.*%RETRY%*",
        ),
        ("admin.commands*", "dashboard.*"),
    ),
    Difference(
        "A group's retry topic can be found from its first heartbeat on.",
        "RocketMQ's name server learns of it a little later, which may be too late for the Go client: it "
        "looks when it starts, and then only after half a minute.",
        ("41/0*/body.lockOKMQSet.each.topic",),
        ("ordered.*",),
    ),
    Difference(
        "The `reviveQid` of a popped message is always 0.",
        "It names one of the queues in which RocketMQ keeps its own account of popped messages. Here "
        "that is no queue. Clients give it back unread.",
        ("*.reviveQid",),
        ("popping.*",),
    ),
)


def number_of(scenario: str, finding: Finding) -> int | None:
    """The number, from 1, of the difference that a finding is; None when it is not deliberate."""
    for number, difference in enumerate(DIFFERENCES, 1):
        if difference.covers(scenario, finding):
            return number
    return None
