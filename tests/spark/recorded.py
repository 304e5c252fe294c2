"""Records the requests and answers of a gateway without sockets as pairs, and replays them against another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.wire.commands import Command
from spark_jobs.rewriting import Rewriter
from tests.gateway.memory import MemoryClient, MemoryGateway


class RecordedClient(MemoryClient):
    """Keeps each request with its answer, as rows of `exchanges.ROWS`."""

    def __init__(self, gateway: MemoryGateway) -> None:
        super().__init__(gateway)
        self._of = gateway
        self.pairs: list[dict[str, Any]] = []

    def ask(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", **options: Any
    ) -> Command:
        asked_ns = self._of.now_ms * 1_000_000
        answer = super().ask(code, ext, body, **options)
        self.pairs.append(
            {
                "file": "recorded",
                "position": len(self.pairs),
                "connection": "recorded#1",
                "asked_ns": asked_ns,
                "answered_ns": self._of.now_ms * 1_000_000,
                "code": int(code),
                "ext": list((ext or {}).items()),
                "body": body,
                "answer_code": answer.code,
                "answer_ext": list(answer.ext().items()),
                "answer_body": answer.body,
            }
        )
        return answer


def replay(
    pairs: Sequence[Mapping[str, Any]], rewriter: Rewriter, gateway: MemoryGateway
) -> tuple[RecordedClient, list[tuple[str, ...]]]:
    """Send all requests again, at the same intervals. Return the client, and for each request what was not mapped."""
    client = RecordedClient(gateway)
    unmapped = []
    began_ms = gateway.now_ms - pairs[0]["asked_ns"] // 1_000_000
    for pair in pairs:
        recorded_ms = pair["asked_ns"] // 1_000_000
        if (wait_ms := began_ms + recorded_ms - gateway.now_ms) > 0:
            gateway.advance(wait_ms)
        ext = dict(pair["ext"])
        changed = rewriter.request(pair["code"], ext, pair["body"], recorded_ms, gateway.now_ms)
        unmapped.append(changed.unmapped)
        recorded = (dict(pair["answer_ext"]), pair["answer_body"])
        rewriter._learned.popped.expect(rewriter._server, pair["code"], ext, recorded)
        answer = client.ask(pair["code"], changed.ext, changed.body)
        rewriter.answer(pair["code"], ext, recorded, (answer.ext(), answer.body))
    return client, unmapped
