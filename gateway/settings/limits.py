"""Limits of messages, requests, connections, topics and groups."""

from __future__ import annotations

from typing import Final

from gateway.settings.fields import SettingsGroup, setting
from gateway.settings.values import Count, Size

_LIMITS: Final = "Limits"

FRAME_ALLOWANCE: Final = 256 * 1024
"""Bytes of a frame besides the message's body: the header, and up to 32,767 bytes of properties as escaped JSON."""


class LimitSettings(SettingsGroup):
    """Limits of messages, requests, connections, topics and groups."""

    max_held_messages: Count = setting(
        0,
        _LIMITS,
        "Maximum number of pending messages in one topic; more are refused. 0 means no limit. The topic "
        "attribute max.held.messages overrides it.",
        unit="messages",
        live=True,
        least=0,
        most=10**15,
    )
    max_held_bytes: Size = setting(
        0,
        _LIMITS,
        "Maximum size of all pending messages in one topic; more are refused. 0 means no limit. The topic "
        "attribute max.held.bytes overrides it.",
        unit="bytes",
        live=True,
        least=0,
        most=1024**5,
    )
    max_send_rate: Count = setting(
        0,
        _LIMITS,
        "Maximum number of messages per second that one topic accepts; more are refused. 0 means no limit. "
        "The topic attribute max.send.rate overrides it.",
        unit="messages a second",
        live=True,
        least=0,
        most=10**9,
    )
    max_message_size: Size = setting(
        4 * 1024**2,
        _LIMITS,
        "Maximum size of a message's body; larger ones are refused.",
        unit="bytes",
        upstream="maxMessageSize",
        live=True,
        least=1024,
        most=1024**3,
    )
    max_frame_size: Size = setting(
        16 * 1024**2,
        _LIMITS,
        "Maximum size of a whole request; a connection that announces a larger one is closed. The header may "
        "take at most 1 MiB of it, whatever is set here.",
        unit="bytes",
        least=1024 + FRAME_ALLOWANCE,
        most=2 * 1024**3 - 1,
    )
    max_unfinished_bytes: Size = setting(
        256 * 1024**2,
        _LIMITS,
        "Maximum size of all requests that have only partly arrived, over all connections. Above it, the "
        "connections with the largest ones are closed.",
        unit="bytes",
        least=1024**2,
        most=64 * 1024**3,
    )
    max_unsent_bytes: Size = setting(
        64 * 1024**2,
        _LIMITS,
        "Maximum number of bytes that wait for one client to read them, beyond the first 64 to 128 KiB; above it, "
        "the connection is closed. While any wait, nothing more is read from that client. Above eight times as "
        "many for all clients together, the connections of those for whom most wait are closed.",
        unit="bytes",
        live=True,
        least=1024**2,
        most=64 * 1024**3,
    )
    max_topics: Count = setting(
        300_000,
        _LIMITS,
        "Maximum number of topics, also those of the system and of groups (%RETRY%..., %DLQ%...); a new one beyond it "
        "is refused. Those that exist stay, and a message that an existing group has not consumed always gets its "
        "retry or dead-letter topic. A topic takes 1 to 2 KB of memory.",
        unit="topics",
        live=True,
        least=1,
        most=100_000_000,
    )
    max_groups: Count = setting(
        100_000,
        _LIMITS,
        "Maximum number of consumer groups; a new one beyond it is refused. Those that exist stay. A group takes 1 to "
        "4 KB of memory, and its retry topic counts as a topic.",
        unit="groups",
        live=True,
        least=1,
        most=100_000_000,
    )
    max_waiting_requests: Count = setting(
        100_000,
        _LIMITS,
        "Maximum number of long polls, that is, pulls and pops that wait for a message. A pop counts once for "
        "each queue; a pop, and a pull with other tags than its group subscribes to, count once more for each 100 "
        "characters of tags or expression. More are refused, and clients retry later. One connection may have four "
        "fifths of them.",
        unit="requests",
        upstream="maxPopPollingSize",
        live=True,
        least=1,
        most=100_000_000,
    )
    max_asked_clients: Count = setting(
        65_535,
        _LIMITS,
        "Maximum number of unanswered requests that were forwarded to clients, such as for a reply or for "
        "what a tool wants to know, and at the address that workers share, to the workers; more are refused.",
        unit="requests",
        upstream="clientAsyncSemaphoreValue",
        live=True,
        least=1,
        most=10_000_000,
    )
    max_pull_messages: Count = setting(
        32,
        _LIMITS,
        "Maximum number of messages in the answer to one pull.",
        unit="messages",
        upstream="maxTransferCountOnMessageInMemory",
        live=True,
        least=1,
        most=10_000,
    )
    max_pull_bytes: Size = setting(
        256 * 1024,
        _LIMITS,
        "Maximum size of the answer to one pull. A single message is sent whatever its size, and a pop that "
        "takes from several queues may have one message more. Official clients accept no answer above 16 MiB.",
        unit="bytes",
        upstream="maxTransferBytesOnMessageInMemory",
        live=True,
        least=1024,
        most=1024**3,
    )
