"""Changes to many messages of all workers: a preview of each, confirmed together, and a job at each.

A token is the workers' own, put together. The jobs that belong together are remembered here; what they are doing, the
workers tell.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from itertools import count

import msgspec

from gateway.clock import Clock
from gateway.moments import write_moment
from gateway.web.bulk import (
    MAX_JOBS,
    SAMPLE,
    ConfirmBody,
    Job,
    JobList,
    JobQuery,
    Preview,
    PreviewBody,
    Selection,
)
from gateway.web.endpoints import ApiError, Asker
from gateway.web.fields import NewTimeFields, read_moment
from gateway.web.relay import Relay, Reply, below, refusal


class SharedBulk:
    """Previews changes to many messages, and has the workers make them."""

    def __init__(self, relay: Relay, clock: Clock) -> None:
        self._relay = relay
        self._clock = clock
        self._jobs: dict[int, dict[str, Job]] = {}
        self._tokens: dict[int, str] = {}
        self._numbers = count(clock.now_ms())

    async def preview_bulk(self, asker: Asker, body: PreviewBody) -> Preview:
        """How many messages a change would be made to, and a token that confirms it. Nothing is changed."""
        meant = msgspec.structs.replace(
            body, selection=self._settled(body.selection), to=self._settled_time(body.to)
        )
        parts = await self._relay.all(
            *(asker, "POST", "/bulk/preview", Preview),
            body=msgspec.json.encode(meant),
            changes=False,
        )
        tokens = {name: part.token for name, part in parts}
        sample = sorted(
            (one for _, part in parts for one in part.sample), key=lambda one: one.due_ms
        )
        return Preview(
            count=sum(part.count for _, part in parts),
            is_exact=all(part.is_exact for _, part in parts),
            sample=sample[:SAMPLE],
            token=base64.urlsafe_b64encode(msgspec.json.encode(tokens)).decode(),
            expires_ms=min(part.expires_ms for _, part in parts),
        )

    def _settled(self, selection: Selection) -> Selection:
        """With the times that `now` and its like stand for, which are to be the same for all."""
        return msgspec.structs.replace(
            selection, begin=self._moment(selection.begin), end=self._moment(selection.end)
        )

    def _settled_time(self, to: NewTimeFields | None) -> NewTimeFields | None:
        return msgspec.structs.replace(to, at=self._moment(to.at)) if to is not None else None

    def _moment(self, text: int | str | None) -> str | None:
        return write_moment(max(0, read_moment(text, self._clock))) if text is not None else None

    async def start_bulk(self, asker: Asker, body: ConfirmBody) -> Job:
        """Make the change that a preview's token stands for. It goes on by itself: look at the job.

        A token that is brought once more, as by who lost the answer, is answered with the job that there is.
        """
        bodies = {
            name: msgspec.json.encode(ConfirmBody(token=token))
            for name, token in self._open(body.token).items()
        }
        if body.token not in self._tokens.values():
            self._relay.need(bodies)
        values: dict[str, dict[str, object]] = {name: {} for name in bodies}
        replies = await self._relay.replies(asker, "POST", "/bulk", values, bodies)
        begun = {
            name: msgspec.json.decode(reply.body, type=Job)
            for name, reply in replies.items()
            if reply is not None and reply.status == HTTPStatus.OK
        }
        for number, parts in self._jobs.items():
            if any(parts[name].id == job.id for name, job in begun.items()):
                # It was confirmed before, and goes on also where a worker does not answer just now.
                return await self._shown(asker, "GET", number)
        for name, reply in replies.items():
            if name not in begun:
                # One that was started again does not know its preview. The others end where they are.
                await self._ask(asker, "DELETE", begun)
                failure = _silent(name) if reply is None else refusal(reply)
                raise _ended(failure, begun) if begun else failure
        number = next(self._numbers)
        self._jobs[number] = begun
        self._tokens[number] = body.token
        for old, parts in list(self._jobs.items())[:-MAX_JOBS]:
            job = await self._look(asker, "GET", old, parts)
            if job is None or job.state != "running":
                self._jobs.pop(old, None)
                self._tokens.pop(old, None)
        return _one_job(number, begun)

    def _open(self, token: str) -> Mapping[str, str]:
        """The workers' own tokens."""
        try:
            tokens = msgspec.json.decode(base64.urlsafe_b64decode(token), type=dict[str, str])
        except (binascii.Error, ValueError, msgspec.DecodeError):
            tokens = {}
        if list(tokens) != self._relay.names:
            raise ApiError(
                HTTPStatus.BAD_REQUEST, "the token is not one of this gateway's previews"
            )
        return tokens

    async def list_jobs(self, asker: Asker) -> JobList:
        """The last changes to many messages."""
        # Others may begin meanwhile.
        known = reversed(list(self._jobs.items()))
        jobs = [await self._look(asker, "GET", number, parts) for number, parts in known]
        return JobList(jobs=[job for job in jobs if job is not None])

    async def show_job(self, asker: Asker, query: JobQuery) -> Job:
        """How far a change to many messages is."""
        return await self._shown(asker, "GET", query.id)

    async def cancel_job(self, asker: Asker, query: JobQuery) -> Job:
        """End a change to many messages where it is. What was changed stays so."""
        return await self._shown(asker, "DELETE", query.id)

    async def _shown(self, asker: Asker, method: str, number: int) -> Job:
        parts = self._jobs.get(number)
        job = await self._look(asker, method, number, parts) if parts is not None else None
        if job is None:
            raise ApiError(HTTPStatus.NOT_FOUND, f"there is no job {number}")
        return job

    async def _look(
        self, asker: Asker, method: str, number: int, parts: dict[str, Job]
    ) -> Job | None:
        """A job as it is now; None where it is nothing to the asker.

        A worker that was started again knows nothing of it: what it had done stays done, and the rest is not, unless it
        told that it had ended. Of one that does not answer just now it is shown as it was told last.
        """
        replies = await self._ask(asker, method, parts)
        told: dict[str, Job] = {}
        for name, reply in replies.items():
            if reply is not None and reply.status == HTTPStatus.OK:
                told[name] = parts[name] = msgspec.json.decode(reply.body, type=Job)
            elif reply is None:
                told[name] = parts[name]
            elif reply.status != HTTPStatus.NOT_FOUND:
                raise refusal(reply)
        if not told:
            return None
        for name, part in parts.items():
            if name not in told and part.state == "running":
                error = f"{name} was started again: what it changed stays so, and of that {part.done:,} are counted"
                told[name] = msgspec.structs.replace(part, state="failed", error=error)
            elif name not in told:
                told[name] = part
        return _one_job(number, told)

    async def _ask(
        self, asker: Asker, method: str, parts: Mapping[str, Job]
    ) -> dict[str, Reply | None]:
        """What each worker answers to a request about its own job."""
        replies: dict[str, Reply | None] = {}
        for name, part in parts.items():
            replies |= await self._relay.replies(asker, method, below("bulk", part.id), {name: {}})
        return replies


def _silent(name: str) -> ApiError:
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"{name} does not answer: it may make its part of the change yet",
    )


def _ended(failure: ApiError, begun: Iterable[str]) -> ApiError:
    """The same, of a change that other workers had begun."""
    problem = failure.problem
    return ApiError(
        HTTPStatus(problem.status),
        f"{problem.detail}. Begun, and ended where it was, at {', '.join(begun)}: "
        "what is changed there stays so; preview the change anew",
        problem.code,
    )


def _one_job(number: int, parts: Mapping[str, Job]) -> Job:
    """What the workers' jobs are together: running while one is, and failed if one has."""
    jobs = list(parts.values())
    states = {job.state for job in jobs}
    ends = [job.ended_ms for job in jobs if job.ended_ms is not None]
    errors = [job.error for job in jobs if job.error is not None]
    first = jobs[0]
    return msgspec.structs.replace(
        first,
        id=number,
        state=next(
            state for state in ("running", "failed", "cancelled", "done") if state in states
        ),
        expected=sum(job.expected for job in jobs),
        is_exact=all(job.is_exact for job in jobs),
        done=sum(job.done for job in jobs),
        missed=sum(job.missed for job in jobs),
        started_ms=min(job.started_ms for job in jobs),
        ended_ms=max(ends) if len(ends) == len(jobs) else None,
        error="; ".join(errors) or None,
    )
