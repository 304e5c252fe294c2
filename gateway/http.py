"""The HTTP port for those who run the gateway: metrics, health and readiness. It changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from twisted.web.http import OK, SERVICE_UNAVAILABLE
from twisted.web.resource import Resource
from twisted.web.server import Request, Site


class Page(NamedTuple):
    """An answer to a GET."""

    status: int
    content_type: str
    body: bytes


def report(*reasons: str) -> Page:
    """Health or readiness as JSON: whether all is well, or why not."""
    body = msgspec.json.encode({"ready": not reasons, "reasons": reasons})
    return Page(SERVICE_UNAVAILABLE if reasons else OK, "application/json", body)


class _Leaf(Resource):
    """A page that is made anew for each request. HEAD is answered as GET, without a body."""

    def __init__(self, make: Callable[[], Page]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._make = make

    def render_GET(self, request: Request) -> bytes:
        page = self._make()
        request.setResponseCode(page.status)
        request.responseHeaders.setRawHeaders("Content-Type", [page.content_type])
        request.responseHeaders.setRawHeaders("Cache-Control", ["no-store"])
        return page.body


def make_site(metrics: Callable[[], bytes], not_ready: Callable[[], list[str]]) -> Site:
    """The pages.

    :param metrics: makes the text for Prometheus.
    :param not_ready: why no traffic should come; empty when it should.
    """
    root: Any = Resource()  # type: ignore[no-untyped-call]
    pages: dict[bytes, Callable[[], Page]] = {
        b"metrics": lambda: Page(OK, CONTENT_TYPE_LATEST, metrics()),
        b"health": report,
        b"ready": lambda: report(*not_ready()),
    }
    for name, make in pages.items():
        root.putChild(name, _Leaf(make))
    site = Site(root)  # type: ignore[no-untyped-call]
    site.noisy = False
    return site
