"""Changes to many messages of all workers: a preview of each worker, confirmed together, and a job at each worker.

A token combines the workers' own tokens, each with the number of the process that gave it. This process keeps which
jobs belong together; the workers report their progress.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from itertools import count
from typing import NamedTuple

import msgspec

from gateway.clock import Clock
from gateway.moments import write_moment
from gateway.web.bulk import (
    MAX_JOBS,
    MAX_RUNNING,
    SAMPLE,
    ConfirmBody,
    Job,
    JobList,
    JobQuery,
    Preview,
    PreviewBody,
    Selection,
    too_many_run,
)
from gateway.web.endpoints import ApiError, Asker
from gateway.web.fields import NewTimeFields, read_moment
from gateway.web.relay import Relay, Reply, below, refusal
from gateway.workers.merging import unanswered


class _SharedJob(NamedTuple):
    """A job of all workers: the token that it was begun with, and each worker's own job as last reported."""

    token: str
    parts: dict[str, Job]


class _Token(NamedTuple):
    """A worker's own token, and which of its processes gave it (`Relay.starts`)."""

    start: int
    token: str


class SharedBulk:
    """Previews changes to many messages, and lets the workers make them."""

    def __init__(self, relay: Relay, clock: Clock) -> None:
        self._relay = relay
        self._clock = clock
        self._jobs: dict[int, _SharedJob] = {}
        self._numbers = count(clock.now_ms())

    async def preview_bulk(self, asker: Asker, body: PreviewBody) -> Preview:
        """Count the messages that a change would affect, and return a token that confirms it. Nothing is changed.

        A new time that is too far ahead for the messages that are due first is refused.
        """
        meant = msgspec.structs.replace(
            body, selection=self._settled(body.selection), to=self._settled_time(body.to)
        )
        starts = self._relay.starts
        parts = await self._relay.all(
            *(asker, "POST", "/bulk/preview", Preview),
            body=msgspec.json.encode(meant),
            changes=False,
        )
        tokens = {name: _Token(starts[name], part.token) for name, part in parts}
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
        """Return a selection with `now` and other relative times resolved, so that they are the same for all
        workers."""
        return msgspec.structs.replace(
            selection, begin=self._moment(selection.begin), end=self._moment(selection.end)
        )

    def _settled_time(self, to: NewTimeFields | None) -> NewTimeFields | None:
        return msgspec.structs.replace(to, at=self._moment(to.at)) if to is not None else None

    def _moment(self, text: int | str | None) -> str | None:
        return write_moment(max(0, read_moment(text, self._clock))) if text is not None else None

    async def start_bulk(self, asker: Asker, body: ConfirmBody) -> Job:
        """Start the change that a preview's token stands for. It runs on its own: look at the job.

        A token that is sent again, for example after a lost answer, returns the existing job.
        """
        tokens = await self._open(asker, body.token)
        bodies = {
            name: msgspec.json.encode(ConfirmBody(token=own.token)) for name, own in tokens.items()
        }
        if all(job.token != body.token for job in self._jobs.values()):
            self._relay.need(bodies)
            self._check_starts(tokens)
            await self._check_room(asker)
        values: dict[str, dict[str, object]] = {name: {} for name in bodies}
        replies = await self._relay.replies(asker, "POST", "/bulk", values, bodies)
        begun = {
            name: msgspec.json.decode(reply.body, type=Job)
            for name, reply in replies.items()
            if reply is not None and reply.status == HTTPStatus.OK
        }
        for number, known in self._jobs.items():
            if any(known.parts[name].id == job.id for name, job in begun.items()):
                # The token was confirmed before. Its job goes on even if a worker does not answer now.
                return await self._shown(asker, "GET", number)
        for name, reply in replies.items():
            if name not in begun:
                # A restarted worker does not know its preview. Stop the other workers' jobs.
                await self._ask(asker, "DELETE", begun)
                failure = _silent(name) if reply is None else refusal(reply)
                raise _ended(failure, begun) if begun else failure
        number = next(self._numbers)
        self._jobs[number] = _SharedJob(body.token, begun)
        for old, known in list(self._jobs.items())[:-MAX_JOBS]:
            job = await self._look(asker, "GET", old, known.parts)
            if job is None or job.state != "running":
                self._jobs.pop(old, None)
        return _one_job(number, begun)

    def _check_starts(self, tokens: Mapping[str, _Token]) -> None:
        """Refuse a token when a worker was restarted since the preview: it would refuse its own token, after others
        have begun.

        :raises ApiError: in this case.
        """
        starts = self._relay.starts
        restarted = [name for name, own in tokens.items() if own.start != starts[name]]
        if restarted:
            raise ApiError(
                HTTPStatus.CONFLICT,
                f"restarted since the preview: {', '.join(restarted)}; nothing was changed, make a new preview",
            )

    async def _check_room(self, asker: Asker) -> None:
        """Refuse a job while as many run as a worker lets run: workers that have done their parts of these would begin
        it, though others refuse.

        :raises ApiError: in this case.
        """
        jobs = [
            await self._look(asker, "GET", number, job.parts)
            for number, job in list(self._jobs.items())
            if any(part.state == "running" for part in job.parts.values())
        ]
        if sum(job is not None and job.state == "running" for job in jobs) >= MAX_RUNNING:
            raise too_many_run()

    async def _open(self, asker: Asker, token: str) -> Mapping[str, _Token]:
        """Return the workers' own tokens."""
        try:
            tokens = msgspec.json.decode(base64.urlsafe_b64decode(token), type=dict[str, _Token])
        except (binascii.Error, ValueError, msgspec.DecodeError):
            tokens = {}
        if list(tokens) != self._relay.names:
            await self._relay.check(asker)
            raise ApiError(
                HTTPStatus.BAD_REQUEST, "the token is not one of this gateway's previews"
            )
        return tokens

    async def list_jobs(self, asker: Asker) -> JobList:
        """List the last changes to many messages."""
        # Copy the jobs: others may begin meanwhile.
        known = list(reversed(self._jobs.items()))
        if not known:
            await self._relay.check(asker)
        jobs = [await self._look(asker, "GET", number, job.parts) for number, job in known]
        return JobList(jobs=[job for job in jobs if job is not None])

    async def show_job(self, asker: Asker, query: JobQuery) -> Job:
        """Return the progress of a change to many messages."""
        return await self._shown(asker, "GET", query.id)

    async def cancel_job(self, asker: Asker, query: JobQuery) -> Job:
        """Stop a change to many messages. Messages that were changed stay changed."""
        return await self._shown(asker, "DELETE", query.id)

    async def _shown(self, asker: Asker, method: str, number: int) -> Job:
        known = self._jobs.get(number)
        if known is None:
            await self._relay.check(asker)
        job = await self._look(asker, method, number, known.parts) if known is not None else None
        if job is None:
            raise ApiError(HTTPStatus.NOT_FOUND, f"there is no job {number}")
        return job

    async def _look(
        self, asker: Asker, method: str, number: int, parts: dict[str, Job]
    ) -> Job | None:
        """Return the current state of a job, or None if the asker may not see it.

        A restarted worker does not know its part any more. What that part has changed stays changed, and the rest is
        not made, unless the worker had reported its end. If a worker does not answer now, its last report counts,
        but only beside the answer of another one: it is the workers that check who asks.

        :raises ApiError: when a worker refuses; when none shows its part, and some do not answer.
        """
        replies = await self._ask(asker, method, parts)
        told: dict[str, Job] = {}
        silent: list[str] = []
        for name, reply in replies.items():
            if reply is None:
                silent.append(name)
            elif reply.status == HTTPStatus.OK:
                told[name] = parts[name] = msgspec.json.decode(reply.body, type=Job)
            elif reply.status != HTTPStatus.NOT_FOUND:
                raise refusal(reply)
        if not told and silent:
            detail = unanswered(silent, len(replies))
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, detail)
        if not told:
            return None
        for name, part in parts.items():
            if name not in told:
                told[name] = part if name in silent else _unknown(name, part)
        return _one_job(number, told)

    async def _ask(
        self, asker: Asker, method: str, parts: Mapping[str, Job]
    ) -> dict[str, Reply | None]:
        """Return each worker's answer to a request about its own job."""
        replies: dict[str, Reply | None] = {}
        for name, part in parts.items():
            replies |= await self._relay.replies(asker, method, below("bulk", part.id), {name: {}})
        return replies


def _unknown(worker: str, part: Job) -> Job:
    """Return the last report of a part that its worker does not know any more, as it was restarted."""
    if part.state != "running":
        return part
    changed = f"{part.done:,} messages or more"
    error = f"{worker} was restarted before it was done: what it changed stays so ({changed})"
    return msgspec.structs.replace(part, state="failed", error=error)


def _silent(name: str) -> ApiError:
    return ApiError(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"{name} does not answer: it may still make its part of the change",
    )


def _ended(failure: ApiError, begun: Iterable[str]) -> ApiError:
    """Return the same error, with a note that other workers had begun the change."""
    problem = failure.problem
    return ApiError(
        HTTPStatus(problem.status),
        f"{problem.detail}. The change was begun and stopped at {', '.join(begun)}: "
        "what is changed there stays so; make a new preview",
        problem.code,
    )


def _one_job(number: int, parts: Mapping[str, Job]) -> Job:
    """Merge the workers' jobs into one: running while one of them is, failed if one has failed."""
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
