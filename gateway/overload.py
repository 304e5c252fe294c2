"""What a request is told that there is no room for: clients slow down and try again."""

from __future__ import annotations

from gateway.router import RequestError
from gateway.wire.codes import ResponseCode


def overloaded(setting: str, limit: int) -> RequestError:
    """The error for what would pass a limit, as upstream words it where a queue of requests is full
    (NettyRemotingAbstract).

    :param setting: the limit's name.
    """
    return RequestError(
        ResponseCode.SYSTEM_BUSY,
        f"[OVERLOAD]system busy, start flow control for a while: {setting} = {limit} is reached",
    )
