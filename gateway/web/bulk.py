"""Changes to many messages: first previewed, then confirmed, then made in pieces.

A preview counts the messages that would be changed and returns a token. The token stands for exactly this selection and
change. Confirming it changes the messages that were there at the time of the preview, and no later ones.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from hashlib import sha256
from http import HTTPStatus
from itertools import count
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from gateway.access import policies
from gateway.access.policies import PUB, READ
from gateway.broker import Broker
from gateway.intake import terms_of
from gateway.pending.bulk import BulkChanges
from gateway.pending.messages import PendingMessages, Wanted
from gateway.pending.rescheduling import NewTime
from gateway.web.endpoints import ApiError, Asker, Fields, Shown
from gateway.web.fields import NewTimeFields, TopicName, read_bound
from gateway.web.timeline import count as count_columns
from gateway.web.turns import Turns
from gateway.wire.codes import ResponseCode, SysFlag
from gateway.wire.group_topics import is_of_group
from gateway.wire.messages import decode_message
from gateway.wire.pending_bodies import HeldMessage
from storage import HELD_SPAN_MS, Columns, Found, with_whole

TOKEN_MINUTES = 10
"""How long a preview can be confirmed."""

SAMPLE = 10
"""Messages shown in a preview."""

PIECE = 100
"""Messages looked up in one turn of the reactor, some 5 ms of work, and changed in another one, some 10 ms."""

MAX_COUNTED = 100_000
"""Most messages that a preview by key or tag counts; if there are more, the count is a lower bound."""

MAX_JOBS = 20
"""Jobs that are kept, including running ones."""

MAX_RUNNING = 4

_LAST_MS = (1 << 63) - 1

Action = Literal["abort", "reschedule"]


class Selection(Fields, omit_defaults=True):
    """Pending messages that match all given fields. At least one field must be given, and no name may be empty, as from
    an unset variable of a script: it would not narrow the selection."""

    topic: Annotated[TopicName, Meta(min_length=1)] = ""
    key: Annotated[str, Meta(min_length=1)] = ""
    tag: Annotated[str, Meta(min_length=1)] = ""
    begin: Annotated[int | str | None, Meta(description="Due at this time or later.")] = None
    end: Annotated[int | str | None, Meta(description="Due before this time.")] = None


class PreviewBody(Fields):
    """A change to many messages to preview."""

    action: Action
    selection: Selection
    to: Annotated[NewTimeFields | None, Meta(description="For `reschedule`: the new time.")] = None


class Preview(Shown):
    """The messages that a change would affect. If `isExact` is false, there are at least `count` messages.

    `token` confirms the change until `expiresMs`. `sample` has the messages that are due first.
    """

    count: int
    is_exact: bool
    sample: list[HeldMessage]
    token: str
    expires_ms: int


class ConfirmBody(Fields):
    """Confirms a preview."""

    token: str


class Job(msgspec.Struct, rename="camel", kw_only=True):
    """The job that makes a change: `done` messages were changed of about `expected`. `missed` messages had fired or
    were aborted meanwhile. `error` says why the job failed.
    """

    id: int
    action: Action
    selection: dict[str, str | int]
    state: Literal["running", "done", "cancelled", "failed"]
    expected: int
    is_exact: bool
    done: int
    missed: int
    started_ms: int
    ended_ms: int | None
    user: str | None
    error: str | None = None


class JobList(Shown):
    """Jobs, the newest first."""

    jobs: list[Job]


class JobQuery(Fields):
    """Identifies a job."""

    id: Annotated[int, Meta(description="Number of the job.", ge=1)]


class _Order(msgspec.Struct, frozen=True):
    """The content of a token: a numbered preview. It covers only messages that came before it: those with sequences
    before `bound`, and of these, messages of transactions only if they were committed at `stored_ms` or before."""

    number: int
    action: Action
    wanted: Wanted
    to: NewTime | None
    bound: int
    stored_ms: int
    count: int
    is_exact: bool
    expires_ms: int


class Bulk:
    """Previews and makes changes to many messages."""

    log = Logger()

    def __init__(
        self, broker: Broker, pending: PendingMessages, changes: BulkChanges, turns: Turns
    ) -> None:
        self._broker = broker
        self._pending = pending
        self._changes = changes
        self._turns = turns
        self._secret = secrets.token_bytes(32)
        self._jobs: dict[int, Job] = {}
        self._confirmed: dict[_Order, Job] = {}
        # No number is reused after a restart, so that an old number never returns another job.
        self._numbers = count(broker.clock.now_ms())
        self._previews = count(1)
        broker.committer.once_stopped(self._stop)

    async def preview_bulk(self, asker: Asker, body: PreviewBody) -> Preview:
        """Count the messages that a change would affect, and return a token that confirms it. Nothing is changed.

        A new time that is too far ahead for the messages that are due first is refused.
        """
        self._pending.check_enabled()
        to = self._new_time(body)
        wanted = self._wanted(asker, body.selection)

        def may(_: frozenset[policies.Action], topic: str) -> bool:
            return _may_change(asker, wanted, topic)

        if to is not None:
            await self._turns.next()
            first = self._changes.select(wanted, SAMPLE, None).found
            self._changes.check(_changeable(asker, wanted, first), to)
        bound, stored_ms = self._broker.store.next_sequence, self._broker.clock.end_stored_ms()
        sample = await self._turns.take(self._pending.look_up(wanted, may, limit=SAMPLE))
        number, is_exact = await self._count(asker, wanted)
        expires_ms = self._broker.clock.now_ms() + TOKEN_MINUTES * 60_000
        order = _Order(
            number=next(self._previews),
            action=body.action,
            wanted=wanted,
            to=to,
            bound=bound,
            stored_ms=stored_ms,
            count=number,
            is_exact=is_exact,
            expires_ms=expires_ms,
        )
        return Preview(
            count=number,
            is_exact=is_exact,
            sample=sample.messages,
            token=self._seal(order),
            expires_ms=expires_ms,
        )

    def start_bulk(self, asker: Asker, body: ConfirmBody) -> Job:
        """Start the change that a preview's token stands for. It runs on its own: look at the job.

        A token that is sent again, for example after a lost answer, returns the existing job.
        """
        order = self._open(body.token)
        confirmed = self._confirmed.get(order)
        if confirmed is not None:
            return self._known(asker, confirmed)
        running = [job for job in self._jobs.values() if job.state == "running"]
        if len(running) >= MAX_RUNNING:
            raise too_many_run()
        job = Job(
            id=next(self._numbers),
            action=order.action,
            selection=_shown(order.wanted),
            state="running",
            expected=order.count,
            is_exact=order.is_exact,
            done=0,
            missed=0,
            started_ms=self._broker.clock.now_ms(),
            ended_ms=None,
            user=asker.name or None,
        )
        self._remember(job)
        self._confirmed = {
            one: its_job
            for one, its_job in self._confirmed.items()
            if one.expires_ms >= job.started_ms
        } | {order: job}
        self._broker.audit.note_at_once(f"bulk {job.action}", job=job.id, **job.selection)
        working = ensureDeferred(self._work(asker, order, job))
        working.addErrback(self._failed, job)
        return job

    def list_jobs(self, asker: Asker) -> JobList:
        """List the last changes to many messages."""
        return JobList(
            jobs=[job for job in reversed(self._jobs.values()) if _concerns(asker, job, READ)]
        )

    def show_job(self, asker: Asker, query: JobQuery) -> Job:
        """Return the progress of a change to many messages."""
        return self._job(asker, query.id)

    def cancel_job(self, asker: Asker, query: JobQuery) -> Job:
        """Stop a change to many messages. Messages that were changed stay changed."""
        job = self._job(asker, query.id)
        if not _concerns(asker, job, PUB):
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                f"you have no permission to end job {job.id}: it is another user's",
                ResponseCode.NO_PERMISSION,
            )
        if job.state == "running":
            self._end(job, "cancelled")
        return job

    def _end(self, job: Job, state: Literal["done", "cancelled", "failed"]) -> None:
        job.state = state
        job.ended_ms = self._broker.clock.now_ms()

    def _stop(self) -> None:
        for job in self._jobs.values():
            self._goes_on(job)

    def _job(self, asker: Asker, number: int) -> Job:
        job = self._jobs.get(number)
        if job is None:
            raise ApiError(HTTPStatus.NOT_FOUND, f"there is no job {number}")
        return self._known(asker, job)

    @staticmethod
    def _known(asker: Asker, job: Job) -> Job:
        """Return a job if the asker may see it.

        :raises ApiError: else, as if there were no such job.
        """
        if not _concerns(asker, job, READ):
            raise ApiError(HTTPStatus.NOT_FOUND, f"there is no job {job.id}")
        return job

    def _wanted(self, asker: Asker, selection: Selection) -> Wanted:
        clock = self._broker.clock
        if selection == Selection():
            raise ApiError(
                HTTPStatus.BAD_REQUEST, "name a topic, a key, a tag, a beginning or an end"
            )
        if selection.topic:
            asker.check_topic(PUB, selection.topic)
        return Wanted(
            key=selection.key,
            topic=selection.topic,
            tag=selection.tag,
            begin_ms=read_bound(selection.begin, clock) or 0,
            end_ms=read_bound(selection.end, clock),
        )

    def _new_time(self, body: PreviewBody) -> NewTime | None:
        if body.action == "reschedule" and body.to is None:
            raise ApiError(HTTPStatus.BAD_REQUEST, "name the new time in to, by either at or shift")
        if body.action != "reschedule" and body.to is not None:
            raise ApiError(HTTPStatus.BAD_REQUEST, "a new time, to, belongs to reschedule alone")
        return body.to.read(self._broker.clock) if body.to is not None else None

    async def _count(self, asker: Asker, wanted: Wanted) -> tuple[int, bool]:
        """Return how many messages are selected, and whether the number is exact."""
        if wanted.key or wanted.tag or not asker.may_everything:
            return await self._count_one_by_one(asker, wanted)
        total, is_exact = 0, True
        end_ms = _LAST_MS if wanted.end_ms is None else wanted.end_ms
        # The store has counts of whole spans.
        for begin, end in with_whole(HELD_SPAN_MS, wanted.begin_ms, end_ms):
            columns = Columns(begin, end - begin, 1)
            counted = await count_columns(self._broker, self._turns, columns, wanted.topic)
            total += sum(
                sum(held.values())
                for topic, held in counted.by_topic.items()
                if _is_meant(wanted, topic)
            )
            is_exact = is_exact and counted.is_whole
        return total, is_exact

    async def _count_one_by_one(self, asker: Asker, wanted: Wanted) -> tuple[int, bool]:
        total, behind = 0, None
        while total < MAX_COUNTED:
            await self._turns.next()
            page = self._changes.select(wanted, PIECE, behind)
            total += len(_changeable(asker, wanted, page.found))
            behind = page.cursor
            if behind is None:
                return total, True
        return total, False

    async def _work(self, asker: Asker, order: _Order, job: Job) -> None:
        begun_ms = self._changes.begin() if order.to is not None else None
        behind: bytes | None = None
        while await self._has_its_turn(job):
            page = self._changes.select(order.wanted, PIECE, behind, begun_ms)
            meant = [one for one in page.found if _came_before(order, one)]
            if meant and await self._has_its_turn(job):
                await self._change(asker, order, job, meant)
            behind = page.cursor
            if behind is None:
                break
        if job.state == "running":
            self._end(job, "done")

    async def _has_its_turn(self, job: Job) -> bool:
        """Wait for a job's turn. Return whether it goes on."""
        await self._turns.next()
        return self._goes_on(job)

    def _goes_on(self, job: Job) -> bool:
        if self._broker.committer.stopped and job.state == "running":
            self._end(job, "cancelled")
            self.log.warn(
                "the gateway stops, and with it job {id} ({action}): {done:,} messages are changed, of about "
                "{expected:,}; preview the change of the others again",
                id=job.id,
                action=job.action,
                done=job.done,
                expected=job.expected,
            )
        return job.state == "running"

    async def _change(self, asker: Asker, order: _Order, job: Job, found: list[Found]) -> None:
        """Change a piece of the messages, and count them once that is on disk."""
        mine = _changeable(asker, order.wanted, found)
        with self._broker.audit.acting(asker):
            changed = self._changes.change(mine, order.to)
        if changed:
            await self._turns.stored()
        job.done += changed
        job.missed += len(mine) - changed

    def _failed(self, failure: Failure, job: Job) -> None:
        self._end(job, "failed")
        job.error = str(failure.value)
        self.log.error("job {id} failed: {error}", id=job.id, error=job.error)

    def _remember(self, job: Job) -> None:
        ended = [number for number, one in self._jobs.items() if one.state != "running"]
        for number in ended[: max(0, len(self._jobs) + 1 - MAX_JOBS)]:
            del self._jobs[number]
        self._jobs[job.id] = job

    def _seal(self, order: _Order) -> str:
        data = msgspec.json.encode(order)
        return base64.urlsafe_b64encode(self._sign(data) + data).decode()

    def _open(self, token: str) -> _Order:
        try:
            sealed = base64.urlsafe_b64decode(token)
        except (binascii.Error, ValueError):
            sealed = b""
        signature, data = sealed[: sha256().digest_size], sealed[sha256().digest_size :]
        if not hmac.compare_digest(signature, self._sign(data)):
            raise ApiError(
                HTTPStatus.BAD_REQUEST, "the token is not one of this gateway's previews"
            )
        order = msgspec.json.decode(data, type=_Order)
        if order.expires_ms < self._broker.clock.now_ms():
            raise ApiError(HTTPStatus.CONFLICT, "the preview is too old: make a new one")
        return order

    def _sign(self, data: bytes) -> bytes:
        return hmac.digest(self._secret, data, "sha256")


def too_many_run() -> ApiError:
    """Return the refusal of a job while `MAX_RUNNING` jobs run."""
    return ApiError(
        HTTPStatus.CONFLICT, f"{MAX_RUNNING} jobs are running; wait for one, or cancel one"
    )


def _is_meant(wanted: Wanted, topic: str) -> bool:
    """Return whether a selection includes a topic: redeliveries to consumers only if it names their topic."""
    return bool(wanted.topic) or not is_of_group(topic)


def _may_change(asker: Asker, wanted: Wanted, topic: str) -> bool:
    """Return whether a selection includes a topic's messages and the asker may see and change them."""
    return _is_meant(wanted, topic) and asker.may(READ, topic) and asker.may(PUB, topic)


def _changeable(asker: Asker, wanted: Wanted, found: list[Found]) -> list[Found]:
    """Return those of the messages that `_may_change` lets the asker change."""
    return [one for one in found if _may_change(asker, wanted, terms_of(one.record).topic.decode())]


def _came_before(order: _Order, found: Found) -> bool:
    """Whether a message was pending when a change was previewed. A message of a transaction keeps the sequence of its
    half message, which may be much older than the commit."""
    if found.sequence >= order.bound:
        return False
    message = decode_message(found.record)
    is_of_transaction = message.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT
    return not is_of_transaction or message.store_ms <= order.stored_ms


def _concerns(asker: Asker, job: Job, actions: frozenset[policies.Action]) -> bool:
    """Return whether a job is the asker's, or of a topic that the asker may do one of these actions to."""
    if asker.caller is None or job.user == asker.caller.name:
        return True
    topic = job.selection.get("topic")
    return asker.caller.is_super or (isinstance(topic, str) and asker.may(actions, topic))


def _shown(wanted: Wanted) -> dict[str, str | int]:
    """Return a selection as jobs show it."""
    named: dict[str, str | int | None] = {
        "topic": wanted.topic,
        "key": wanted.key,
        "tag": wanted.tag,
        "begin": wanted.begin_ms,
        "end": wanted.end_ms,
    }
    return {name: value for name, value in named.items() if value}
