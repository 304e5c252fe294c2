"""The outcome and the remark with which an abort is answered."""

from __future__ import annotations

from collections.abc import Sequence

from storage import Aborted, AbortResult

_REMARKS = {
    Aborted.ALREADY_FIRED: "recall failed, the message has already fired: {}",
    Aborted.ALREADY_ABORTED: "recall failed, the message was already aborted: {}",
    Aborted.UNKNOWN: "recall failed, no such message: {}",
}

_BEST_FIRST = (
    Aborted.ABORTED,
    Aborted.ALREADY_ABORTED,
    Aborted.ALREADY_FIRED,
    Aborted.UNKNOWN,
)


def best_outcome(results: Sequence[AbortResult]) -> Aborted:
    """Return one outcome for all messages with an id, of which a client's repeated send can leave several."""
    return min((result.outcome for result in results), key=_BEST_FIRST.index)


def abort_remark(outcome: Aborted, message_id: str) -> str:
    """Return why nothing was aborted."""
    return _REMARKS[outcome].format(message_id)
