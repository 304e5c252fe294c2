"""How much is too much."""

from __future__ import annotations

from typing import Final

from gateway.setting_values import Count, Size
from gateway.settings.fields import SettingsGroup, setting

_LIMITS: Final = "Limits"

FRAME_ALLOWANCE: Final = 256 * 1024
"""Beside its body a message has a header and up to 32,767 bytes of properties, escaped as JSON text."""


class LimitSettings(SettingsGroup):
    """How much is too much."""

    max_held_messages: Count = setting(
        0,
        _LIMITS,
        "Most messages of one topic that wait for their time; further ones are refused. 0 is no limit. "
        "A topic's attribute max.held.messages counts instead.",
        unit="messages",
        live=True,
        least=0,
        most=10**15,
    )
    max_held_bytes: Size = setting(
        0,
        _LIMITS,
        "Most bytes of one topic's messages that wait for their time; further ones are refused. 0 is no "
        "limit. A topic's attribute max.held.bytes counts instead.",
        unit="bytes",
        live=True,
        least=0,
        most=1024**5,
    )
    max_send_rate: Count = setting(
        0,
        _LIMITS,
        "Most messages that one topic takes in a second; further ones are refused. 0 is no limit. "
        "A topic's attribute max.send.rate counts instead.",
        unit="messages a second",
        live=True,
        least=0,
        most=10**9,
    )
    max_message_size: Size = setting(
        4 * 1024**2,
        _LIMITS,
        "Largest body of a message; larger ones are refused.",
        unit="bytes",
        upstream="maxMessageSize",
        live=True,
        least=1024,
        most=1024**3,
    )
    max_frame_size: Size = setting(
        16 * 1024**2,
        _LIMITS,
        "Largest request as a whole; a connection that announces a larger one is closed. Of it the header "
        "may have 1 MiB, whatever is set here.",
        unit="bytes",
        least=1024 + FRAME_ALLOWANCE,
        most=2 * 1024**3 - 1,
    )
    max_unfinished_bytes: Size = setting(
        256 * 1024**2,
        _LIMITS,
        "Bytes of requests that have not arrived whole, over all connections; past it the "
        "connections with the largest ones are closed.",
        unit="bytes",
        least=1024**2,
        most=64 * 1024**3,
    )
    max_unsent_bytes: Size = setting(
        64 * 1024**2,
        _LIMITS,
        "Bytes that wait for one client to read them; past it the connection is closed. While any wait, "
        "nothing more is read from it.",
        unit="bytes",
        live=True,
        least=1024**2,
        most=64 * 1024**3,
    )
    max_waiting_requests: Count = setting(
        100_000,
        _LIMITS,
        "Pulls and pops that wait for a message at a time, a pop once for each queue; further ones are "
        "refused and come back later.",
        unit="requests",
        upstream="maxPopPollingSize",
        live=True,
        least=1,
        most=100_000_000,
    )
    max_asked_clients: Count = setting(
        65_535,
        _LIMITS,
        "Requests that clients have been asked for others and have not answered, such as for a reply or "
        "for what a tool wants to know; further ones are refused.",
        unit="requests",
        upstream="clientAsyncSemaphoreValue",
        live=True,
        least=1,
        most=10_000_000,
    )
    max_pull_messages: Count = setting(
        32,
        _LIMITS,
        "Most messages in the answer to one pull.",
        unit="messages",
        upstream="maxTransferCountOnMessageInMemory",
        live=True,
        least=1,
        most=10_000,
    )
    max_pull_bytes: Size = setting(
        256 * 1024,
        _LIMITS,
        "Most bytes in the answer to one pull; one message is sent whatever its size.",
        unit="bytes",
        upstream="maxTransferBytesOnMessageInMemory",
        live=True,
        least=1024,
        most=1024**3,
    )
