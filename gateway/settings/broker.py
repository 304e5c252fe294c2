"""Settings of the broker, of transactions and of replies."""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import Final

from gateway.settings.fields import SettingsGroup, setting
from gateway.settings.values import LONGEST, Count, Duration, Name, Switch

_BROKER: Final = "Broker"
_TRANSACTIONS: Final = "Transactions and replies"


class BrokerSettings(SettingsGroup):
    """Settings of the broker, of transactions and of replies."""

    broker_name: Name = setting(
        "broker-a", _BROKER, "Name of the broker in topic routes.", upstream="brokerName"
    )
    cluster_name: Name = setting(
        "DefaultCluster",
        _BROKER,
        "Name of the cluster in topic routes.",
        upstream="brokerClusterName",
    )
    auto_create_topic: Switch = setting(
        True,
        _BROKER,
        "Whether the first send to an unknown topic creates it.",
        upstream="autoCreateTopicEnable",
        live=True,
    )
    default_topic_queues: Count = setting(
        8,
        _BROKER,
        "Maximum number of queues of a topic that is created by its first send. If the client asks for fewer, "
        "it gets fewer.",
        unit="queues",
        upstream="defaultTopicQueueNums",
        least=1,
        most=1024,
    )
    auto_create_group: Switch = setting(
        True,
        _BROKER,
        "Whether the first use of an unknown consumer group creates it.",
        upstream="autoCreateSubscriptionGroup",
        live=True,
    )
    property_filter: Switch = setting(
        True,
        _BROKER,
        "Whether consumers may filter messages by their properties with SQL92 expressions.",
        upstream="enablePropertyFilter",
        live=True,
    )
    transaction_timeout: Duration = setting(
        timedelta(seconds=6),
        _TRANSACTIONS,
        "How long a transaction may be undecided before its producer is first checked, that is, asked for the "
        "outcome. A message can set a longer time (CHECK_IMMUNITY_TIME_IN_SECONDS).",
        unit="seconds",
        upstream="transactionTimeOut",
        live=True,
        least=timedelta(milliseconds=1),
        most=LONGEST,
    )
    transaction_check_interval: Duration = setting(
        timedelta(seconds=30),
        _TRANSACTIONS,
        "Time between two checks of an undecided transaction.",
        unit="seconds",
        upstream="transactionCheckInterval",
        live=True,
        least=timedelta(milliseconds=100),
        most=LONGEST,
    )
    transaction_check_max: Count = setting(
        15,
        _TRANSACTIONS,
        "Number of checks after which an undecided transaction is given up: its message goes to the topic "
        "TRANS_CHECK_MAX_TIME_TOPIC.",
        unit="checks",
        upstream="transactionCheckMax",
        live=True,
        least=0,
        most=1_000_000,
    )
    reject_transactions: Switch = setting(
        False,
        _TRANSACTIONS,
        "Whether transactional messages are refused.",
        upstream="rejectTransactionMessage",
        live=True,
    )
    store_replies: Switch = setting(
        True,
        _TRANSACTIONS,
        "Whether replies to requests are also stored in the topic that they were sent to, besides being "
        "delivered to the requester.",
        upstream="storeReplyMessageEnable",
        live=True,
    )

    @cached_property
    def transaction_timeout_ms(self) -> int:
        """`transaction_timeout` in ms."""
        return self.transaction_timeout // timedelta(milliseconds=1)

    @cached_property
    def transaction_check_interval_ms(self) -> int:
        """`transaction_check_interval` in ms."""
        return self.transaction_check_interval // timedelta(milliseconds=1)
