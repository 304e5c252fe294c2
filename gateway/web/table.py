"""THE TABLE of the HTTP API: method, path and handler of every request. The OpenAPI document is made from it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

from gateway.broker import Broker
from gateway.bulk import BulkChanges
from gateway.pauses import Pauses
from gateway.pending import PendingMessages
from gateway.reactor import Reactor
from gateway.rescheduling import Rescheduling
from gateway.router import Call
from gateway.web.bulk import Bulk
from gateway.web.endpoints import Asker, Endpoint
from gateway.web.messages import Messages
from gateway.web.openapi import describe
from gateway.web.overview import Overview
from gateway.web.recurring import RecurringEndpoints
from gateway.web.sending import Sender
from gateway.web.site import BASE
from gateway.web.timeline import Timelines
from gateway.web.topics import Listings
from gateway.web.turns import Turns


class WebHandlers(NamedTuple):
    """What answers the requests of the API."""

    overview: Overview
    timelines: Timelines
    listings: Listings
    messages: Messages
    sender: Sender
    bulk: Bulk
    recurring: RecurringEndpoints


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
    """The handlers of a gateway.

    :param send: handles a send as if it came from a client.
    :param not_ready: why no traffic should come; empty when it should.
    :param connections: how many connections are open.
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
    """Every request of the API."""
    rows = [
        Endpoint("GET", "/status", web.overview.show_status, "Gateway"),
        Endpoint("GET", "/rates", web.overview.show_rates, "Gateway"),
        Endpoint("GET", "/timeline", web.timelines.timeline, "Messages"),
        Endpoint("GET", "/messages", web.messages.search_messages, "Messages"),
        Endpoint("POST", "/messages", web.sender.send_message, "Messages"),
        Endpoint("GET", "/messages/{id}", web.messages.show_message, "Messages"),
        Endpoint("POST", "/messages/{id}/abort", web.messages.abort_message, "Messages"),
        Endpoint("POST", "/messages/{id}/reschedule", web.messages.reschedule_message, "Messages"),
        Endpoint("POST", "/bulk/preview", web.bulk.preview_bulk, "Many messages"),
        Endpoint("POST", "/bulk", web.bulk.start_bulk, "Many messages"),
        Endpoint("GET", "/bulk", web.bulk.list_jobs, "Many messages"),
        Endpoint("GET", "/bulk/{id}", web.bulk.show_job, "Many messages"),
        Endpoint("DELETE", "/bulk/{id}", web.bulk.cancel_job, "Many messages"),
        Endpoint("GET", "/recurring", web.recurring.list_recurring, "Recurring messages"),
        Endpoint("GET", "/recurring-times", web.recurring.preview_recurring, "Recurring messages"),
        Endpoint(
            "GET", "/recurring/{topic}/{name}", web.recurring.show_recurring, "Recurring messages"
        ),
        Endpoint(
            "PUT", "/recurring/{topic}/{name}", web.recurring.put_recurring, "Recurring messages"
        ),
        Endpoint(
            "DELETE",
            "/recurring/{topic}/{name}",
            web.recurring.delete_recurring,
            "Recurring messages",
        ),
        Endpoint(
            "POST",
            "/recurring/{topic}/{name}/{order}",
            web.recurring.order_recurring,
            "Recurring messages",
        ),
        Endpoint("GET", "/topics", web.listings.list_topics, "Topics and groups"),
        Endpoint("POST", "/topics/{topic}/pause", web.listings.pause_topic, "Topics and groups"),
        Endpoint("POST", "/topics/{topic}/resume", web.listings.resume_topic, "Topics and groups"),
        Endpoint("GET", "/groups", web.listings.list_groups, "Topics and groups"),
    ]
    document = describe(rows, BASE, version("tidegate"))

    def show_openapi(asker: Asker) -> dict[str, Any]:
        """This document."""
        return document

    return [*rows, Endpoint("GET", "/openapi.json", show_openapi, "Gateway")]
