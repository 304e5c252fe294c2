"""docs/http.md: its commands do what it says, and its table has every request."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.gateway.memory import MemoryGateway
from tests.web.http import HttpClient, api_endpoints

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text()


def commands() -> Iterator[tuple[str, str | None]]:
    """Yield path and body of each request that the page makes with curl."""
    for block in re.findall(r"^```\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            assert words[0] == "curl", line
            (address,) = (word for word in words if word.startswith("http://127.0.0.1:9877/"))
            parts = urlsplit(address)
            path = f"{parts.path}?{parts.query}" if parts.query else parts.path
            yield path, words[words.index("-d") + 1] if "-d" in words else None


def test_its_commands_do_what_they_say(gateway: MemoryGateway, http: HttpClient) -> None:
    http.post("/messages", {"topic": "close-order", "body": "x", "at": "+1m", "tags": "test"})
    token = ""
    made = 0
    outcomes = []
    for path, body in commands():
        if body is None:
            answer = http.ask("GET", path)
        else:
            answer = http.ask("POST", path, json.loads(body.replace('"..."', f'"{token}"')))
        assert answer.status == 200, (path, answer)
        token = answer.json.get("token", token)
        outcomes += [one["outcome"] for one in answer.json.get("results", ())]
        made += 1
    assert (made, outcomes) == (7, ["rescheduled", "aborted"])
    gateway.settle()
    (job,) = http.get("/bulk")["jobs"]
    assert (job["state"], job["done"]) == ("done", 1)


def test_its_table_has_every_request(gateway: MemoryGateway) -> None:
    table = PAGE[PAGE.index("| request | what |") : PAGE.index("Times are epoch")]
    for endpoint in api_endpoints(gateway):
        if endpoint.path == "/openapi.json":
            assert endpoint.path in PAGE
            continue
        start, _, last = endpoint.path.rpartition("/")
        shown = endpoint.path in table or (start in table and f".../{last}" in table)
        order = endpoint.path.endswith("/{order}") and "`.../resume`" in table
        assert shown or order, endpoint.path
