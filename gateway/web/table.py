"""THE TABLE of the HTTP API: method, path and handler of every request. The OpenAPI document is generated from it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

from gateway.broker import Broker
from gateway.clock import Clock
from gateway.pending.bulk import BulkChanges
from gateway.pending.messages import PendingMessages
from gateway.pending.pauses import Pauses
from gateway.pending.rescheduling import Rescheduling
from gateway.reactor import Reactor
from gateway.router import Call
from gateway.web.bulk import Bulk
from gateway.web.endpoints import Asker, Endpoint, Handler
from gateway.web.messages import Messages
from gateway.web.openapi import describe
from gateway.web.overview import Overview
from gateway.web.recurring import RecurringEndpoints
from gateway.web.relay import Relay
from gateway.web.sending import Sender
from gateway.web.shared import SharedLists, SharedMessages, SharedRecurring, WorkerFor
from gateway.web.shared_bulk import SharedBulk
from gateway.web.site import BASE
from gateway.web.timeline import Timelines
from gateway.web.topics import Listings
from gateway.web.turns import Turns


class WebHandlers(NamedTuple):
    """The handlers of the API's requests, for one gateway or for all workers."""

    overview: Overview | SharedLists
    timelines: Timelines | SharedMessages
    listings: Listings | SharedLists
    messages: Messages | SharedMessages
    sender: Sender | SharedMessages
    bulk: Bulk | SharedBulk
    recurring: RecurringEndpoints | SharedRecurring


def compose(
    broker: Broker,
    pending: PendingMessages,
    rescheduling: Rescheduling,
    bulk: BulkChanges,
    pauses: Pauses,
    reactor: Reactor,
    send: Callable[[Call], None],
    not_ready: Callable[[], list[str]],
    connections: Callable[[], int],
) -> WebHandlers:
    """Return the handlers of a gateway.

    :param send: handles a send as if it came from a client.
    :param not_ready: returns why the gateway should get no traffic; empty when it should get it.
    :param connections: returns the number of open connections.
    """
    turns = Turns(reactor, broker.committer)
    sender = Sender(broker, send)
    return WebHandlers(
        overview=Overview(broker, not_ready, connections),
        timelines=Timelines(broker, turns),
        listings=Listings(broker, pending, pauses, turns),
        messages=Messages(broker, pending, rescheduling, turns),
        sender=sender,
        bulk=Bulk(broker, pending, bulk, turns),
        recurring=RecurringEndpoints(broker, sender, turns),
    )


def endpoints(web: WebHandlers) -> list[Endpoint]:
    """Return every endpoint of the API of a gateway."""
    rows = _rows(web)
    document = describe(rows, BASE, version("tidegate"))

    def show_openapi(asker: Asker) -> dict[str, Any]:
        """Return this document."""
        return document

    return [*rows, _openapi(show_openapi)]


def shared_endpoints(
    relay: Relay,
    clock: Clock,
    worker_at: Callable[[bytes], str | None],
    worker_for: WorkerFor,
    address: Callable[[], str],
) -> list[Endpoint]:
    """Return every endpoint of the API at the port that several workers share. `SharedMessages`, `SharedRecurring` and
    `SharedLists` explain the parameters."""
    messages, lists = SharedMessages(relay, clock, worker_at), SharedLists(relay, address)
    web = WebHandlers(
        overview=lists,
        timelines=messages,
        listings=lists,
        messages=messages,
        sender=messages,
        bulk=SharedBulk(relay, clock),
        recurring=SharedRecurring(relay, worker_for),
    )
    return [*_rows(web), _openapi(lists.show_openapi)]


def _rows(web: WebHandlers) -> list[Endpoint]:
    one, many = "Messages", "Many messages"
    again, rest = "Recurring messages", "Topics and groups"
    return [
        Endpoint("GET", "/status", web.overview.show_status, "Gateway"),
        Endpoint("GET", "/rates", web.overview.show_rates, "Gateway"),
        Endpoint("GET", "/timeline", web.timelines.timeline, one),
        Endpoint("GET", "/messages", web.messages.search_messages, one),
        Endpoint("POST", "/messages", web.sender.send_message, one),
        Endpoint("GET", "/messages/{id}", web.messages.show_message, one),
        Endpoint("POST", "/messages/{id}/abort", web.messages.abort_message, one),
        Endpoint("POST", "/messages/{id}/reschedule", web.messages.reschedule_message, one),
        Endpoint("POST", "/topics/{topic}/keys/{key}/abort", web.messages.abort_by_key, one),
        Endpoint(
            "POST", "/topics/{topic}/keys/{key}/reschedule", web.messages.reschedule_by_key, one
        ),
        Endpoint("POST", "/bulk/preview", web.bulk.preview_bulk, many),
        Endpoint("POST", "/bulk", web.bulk.start_bulk, many),
        Endpoint("GET", "/bulk", web.bulk.list_jobs, many),
        Endpoint("GET", "/bulk/{id}", web.bulk.show_job, many),
        Endpoint("DELETE", "/bulk/{id}", web.bulk.cancel_job, many),
        Endpoint("GET", "/recurring", web.recurring.list_recurring, again),
        Endpoint("GET", "/recurring-times", web.recurring.preview_recurring, again),
        Endpoint("GET", "/recurring/{topic}/{name}", web.recurring.show_recurring, again),
        Endpoint("PUT", "/recurring/{topic}/{name}", web.recurring.put_recurring, again),
        Endpoint("DELETE", "/recurring/{topic}/{name}", web.recurring.delete_recurring, again),
        Endpoint("POST", "/recurring/{topic}/{name}/{order}", web.recurring.order_recurring, again),
        Endpoint("GET", "/topics", web.listings.list_topics, rest),
        Endpoint("POST", "/topics/{topic}/pause", web.listings.pause_topic, rest),
        Endpoint("POST", "/topics/{topic}/resume", web.listings.resume_topic, rest),
        Endpoint("GET", "/groups", web.listings.list_groups, rest),
    ]


def _openapi(handler: Handler) -> Endpoint:
    return Endpoint("GET", "/openapi.json", handler, "Gateway")
