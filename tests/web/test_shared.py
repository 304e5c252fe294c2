"""The HTTP port that several workers share: their responses merged into one, as if from one gateway."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from gateway.connections.outgoing import OnAnswer
from gateway.settings.config import Config
from gateway.settings.values import HostPort, parse_host_port
from gateway.web import adding_up, bulk, shared_bulk, timeline
from gateway.web.port import make_site
from gateway.web.relay import OpenDoor, Relay, Reply
from gateway.web.site import Api
from gateway.web.table import shared_endpoints
from gateway.web.turns import Turns
from gateway.wire.messages import parse_offset_msg_id
from gateway.workers.front import Front
from gateway.workers.siblings import SharedAddress
from storage import find_recurring, put_recurring
from tests.gateway.access.signed import ROOT, ROOT_KEY, SignedClient, create_user, put_acl
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import commits_fail
from tests.gateway.memory import START_MS, MemoryGateway
from tests.gateway.tools import commit_offset, create_topic, ok
from tests.web.http import API, HTTP_PORT, HttpClient, api_endpoints, basic

NAMES = ("broker-a-0", "broker-a-1")
KEY = "k"
FAR = "+1h"


class Shared(HttpClient):
    """Two workers, and a client of the port that they share. A worker in `out` does not answer, and one in `gone` is
    known not to serve. A planned event happens when a worker is asked."""

    def __init__(self, make_gateway: MakeGateway, **settings: Any) -> None:
        http = parse_host_port(HTTP_PORT)
        self.workers: list[MemoryGateway] = [
            make_gateway(
                broker_name=name,
                http=http,
                advertise=HostPort("127.0.0.1", 9_886 + number),
                shared=SharedAddress(HostPort("127.0.0.1", 9_876), KEY, len(NAMES)),
                **settings,
            )
            for number, name in enumerate(NAMES)
        ]
        self.clients = [worker.connect() for worker in self.workers]
        self.out: set[int] = set()
        self.gone: set[str] = set()
        self.meanwhile: list[Callable[[], object]] = []
        leader = make_gateway()
        self.owners = {
            worker.service.broker.host: name
            for worker, name in zip(self.workers, NAMES, strict=True)
        }
        ways = {name: partial(self._ask, number) for number, name in enumerate(NAMES)}
        self.starts = dict.fromkeys(NAMES, 1)
        relay = Relay(ways, lambda name: name not in self.gone, self.starts.__getitem__)
        clock = self.workers[0].service.broker.clock
        front = Front(leader.reactor, Config(), NAMES, lambda _: None, KEY)
        for number, name in enumerate(NAMES):
            address = HostPort("127.0.0.1", 9_886 + number)
            front.joined(name, address, address)
            link: Any = front._links[name]
            link.ask = partial(self._ask_by_remoting, number)
        endpoints = shared_endpoints(
            *(relay, clock, self.owners.get, front.worker_for, lambda: "127.0.0.1:9876")
        )
        door = OpenDoor(KEY.encode(), by_keys=False)
        api = Api(endpoints, door, clock, lambda: False, lambda _: nullcontext(), lambda: None)
        leader.reactor.listenTCP(
            9_877, make_site(leader.service.config, list, list, api, leader.reactor)
        )
        super().__init__(leader)

    def _ask(
        self, number: int, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Deferred[Reply | None]:
        if self.meanwhile:
            self.meanwhile.pop()()
        if number in self.out:
            return succeed(None)
        named = {name.title(): text for name, text in headers.items()}
        answer = HttpClient(self.workers[number]).ask(method, path, headers=named, data=body)
        return succeed(Reply(answer.status, answer.body))

    def _ask_by_remoting(
        self,
        number: int,
        code: int,
        ext: Mapping[str, str],
        body: bytes,
        _: float,
        on_answer: OnAnswer,
    ) -> None:
        lacks = number in self.out or NAMES[number] in self.gone
        on_answer(None if lacks else self.workers[number].connect().ask(code, ext, body))

    def restart(self, number: int) -> None:
        """Restart a worker, as the leader notices."""
        self.workers[number].restart()
        self.starts[NAMES[number]] += 1

    def hold(self, number: int, name: str, *, topic: str = "orders", **properties: str) -> str:
        """Send a message to one worker, due in an hour, and return its offset id."""
        due = {"TIMER_DELIVER_MS": str(START_MS + 3_600_000)}
        given = {"UNIQ_KEY": name, "KEYS": "k", **due, **properties}
        sent = ok(self.clients[number].send_message(topic, "x", given)).ext()
        return sent["msgId"]

    def search(self, **query: object) -> list[str]:
        """Return the ids of all messages found, page by page."""
        found: list[str] = []
        cursor = ""
        while True:
            page = self.get("/messages", cursor=cursor, **query)
            found += [one["msgId"] for one in page["messages"]]
            cursor = page["cursor"]
            if cursor is None:
                return found


@pytest.fixture
def shared(make_gateway: MakeGateway) -> Shared:
    return Shared(make_gateway)


@pytest.fixture
def guarded(make_gateway: MakeGateway, tmp_path: Path) -> Shared:
    """Workers with two users: root, who may do everything, and ann, who may do nothing yet."""
    file = tmp_path / "initial-user.json"
    file.write_text(json.dumps({"username": ROOT, "password": ROOT_KEY}))
    shared = Shared(make_gateway, authentication=True, authorization=True, initial_user_file=file)
    for worker in shared.workers:
        ok(create_user(SignedClient(worker, ROOT, ROOT_KEY), "ann", password="hers"))
    return shared


def test_it_is_the_same_api(shared: Shared, make_gateway: MakeGateway) -> None:
    own = api_endpoints(make_gateway(http=parse_host_port(HTTP_PORT)))
    at_shared = api_endpoints(shared._gateway)
    for endpoint, same in zip(own, at_shared, strict=True):
        for what in ("method", "path", "group", "query", "body", "name", "summary", "description"):
            assert getattr(endpoint, what) == getattr(same, what), (endpoint.path, what)
        assert str(endpoint.answer) == str(same.answer), endpoint.path
    assert shared.get("/openapi.json")["openapi"].startswith("3.1")


class TestMessages:
    @pytest.mark.parametrize("limit", [1, 2, 100])
    def test_they_are_found_at_all(self, shared: Shared, limit: int) -> None:
        for number in range(6):
            due = str(START_MS + 60_000 * (number // 2 + 1))
            shared.hold(number % 2, f"m{number}", TIMER_DELIVER_MS=due)
        names = [f"m{number}" for number in range(6)]
        found = shared.search(limit=limit)
        assert sorted(found) == names
        assert [int(name[1:]) // 2 for name in found] == [0, 0, 1, 1, 2, 2]
        assert len(shared.search(limit=limit, topic="orders", key="k", state="any")) == 6
        assert sorted(shared.search(limit=limit, begin="+90s", end="+150s")) == ["m2", "m3"]
        assert sorted(shared.search(limit=limit, end="+150s")) == ["m0", "m1", "m2", "m3"]
        assert shared.search(limit=limit, id="m3", state="any") == ["m3"]
        for worker in shared.workers:
            worker.advance(120_000)
        fired = shared.search(limit=limit, topic="orders", state="fired")
        assert [int(name[1:]) // 2 for name in fired] == [1, 1, 0, 0]

    def test_one_is_shown_and_changed_where_it_is(self, shared: Shared) -> None:
        """The other worker has a message with the same number."""
        ids = [shared.hold(number, f"m{number}") for number in range(2)]
        for number, one in enumerate(ids):
            assert shared.get(f"/messages/{one}")["message"]["msgId"] == f"m{number}"
        assert shared.post(f"/messages/{ids[0]}/abort")["results"][0]["outcome"] == "aborted"
        moved = shared.post(f"/messages/{ids[1]}/reschedule", {"at": "+2h"})["results"][0]
        assert (moved["outcome"], moved["dueMs"]) == ("rescheduled", START_MS + 7_200_000)
        assert shared.search() == ["m1"]
        nobody = "0A000001" + ids[0][8:]
        assert shared.refusal("GET", f"/messages/{nobody}")["status"] == 404

    def test_those_with_a_key_are_changed_wherever_they_are(self, shared: Shared) -> None:
        for number, key in enumerate(("k", "k", "mine")):
            shared.hold(number % 2, f"m{number}", KEYS=key)
        moved = shared.post("/topics/orders/keys/k/reschedule", {"at": "+2h"})["results"]
        assert [(one["msgId"], one["dueMs"]) for one in moved] == [
            ("m0", START_MS + 7_200_000),
            ("m1", START_MS + 7_200_000),
        ]
        for key, messages in (("k", ["m0", "m1"]), ("mine", ["m2"])):
            results = shared.post(f"/topics/orders/keys/{key}/abort")["results"]
            assert [(one["msgId"], one["outcome"]) for one in results] == [
                (message, "aborted") for message in messages
            ]
        assert shared.refusal("POST", "/topics/orders/keys/none/abort")["status"] == 404

    def test_one_keeps_the_id_that_its_worker_gave_it_at_another_address(
        self, shared: Shared
    ) -> None:
        """One gateway that has become the first of several workers has another port."""
        told = [shared.hold(number, f"m{number}") for number in range(2)][1]
        worker = shared.workers[1]
        worker.settings["advertise"] = HostPort("192.0.2.8", 9_887)
        worker.restart()
        del shared.owners[parse_offset_msg_id(told)[0]]
        shared.owners[worker.service.broker.host] = NAMES[1]
        assert shared.get(f"/messages/{told}")["message"]["msgId"] == "m1"
        moved = shared.post(f"/messages/{told}/reschedule", {"at": "+2h"})["results"][0]
        assert (moved["outcome"], moved["msgId"]) == ("rescheduled", "m1")
        assert shared.post(f"/messages/{told}/abort")["results"][0]["outcome"] == "aborted"
        assert shared.search() == ["m0"]

    def test_one_is_sent(self, shared: Shared) -> None:
        sent = shared.post("/messages", {"topic": "orders", "body": "x", "at": FAR})
        assert shared.get(f"/messages/{sent['offsetMsgId']}")["body"]["text"] == "x"
        assert (
            shared.refusal("POST", "/messages", {"topic": "a b", "body": "x"})["code"] is not None
        )

    def test_over_time(self, shared: Shared) -> None:
        for number in range(3):
            shared.hold(number % 2, f"m{number}")
        shared.hold(1, "bill", topic="bills", TIMER_DELIVER_MS=str(START_MS + 60_000))
        told = shared.get("/timeline", begin="now", end="+2h", columns=4)
        assert (told["total"], told["widthMs"]) == (4, 1_800_000)
        counts = {one["topic"]: one["counts"] for one in told["topics"]}
        assert list(counts) == ["orders", "bills"]
        assert sum(counts["orders"]) == 3
        assert (told["firstDueMs"], told["lastDueMs"]) == (START_MS + 60_000, START_MS + 3_600_000)
        assert shared.get("/timeline", begin="1970-01-01", end="2100-01-01")["total"] == 4
        assert shared.get("/timeline")["total"] == 1

    def test_topics_beyond_the_first_are_summed_up(
        self, shared: Shared, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """These are topics that a worker itself sums up, and topics beyond the limit in the sum of all workers."""
        for module in (timeline, adding_up):
            monkeypatch.setattr(module, "MAX_TOPICS", 2)
        for number, topics in enumerate((["a", "b", "b", "c"], ["b", "d", "d", "d", "d"])):
            for count, topic in enumerate(topics):
                shared.hold(number, f"{topic}{count}", topic=topic)
        told = shared.get("/timeline", begin="now", end="+2h", columns=4)
        assert [(one["topic"], one["total"]) for one in told["topics"]] == [("d", 4), ("b", 3)]
        assert (told["total"], sum(told["others"])) == (9, 2)


class TestManyAtOnce:
    def run(self, shared: Shared, token: str) -> Any:
        """Run the job of a token, and return the finished job."""
        job = shared.post("/bulk", {"token": token})
        for worker in shared.workers:
            worker.settle()
        return shared.get(f"/bulk/{job['id']}")

    def test_what_is_shown_is_done(self, shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bulk, "PIECE", 2)
        for number in range(7):
            shared.hold(number % 2, f"m{number}")
        shared.hold(0, "other", topic="bills")
        asked = {"action": "reschedule", "selection": {"topic": "orders"}, "to": {"at": "+2h"}}
        preview = shared.post("/bulk/preview", asked)
        assert (preview["count"], preview["isExact"], len(preview["sample"])) == (7, True, 7)
        shared.hold(1, "late")
        job = self.run(shared, preview["token"])
        assert (job["state"], job["done"], job["expected"], job["missed"]) == ("done", 7, 7, 0)
        assert job["error"] is None
        assert len(shared.search(begin="+2h", end="+3h")) == 7
        assert self.run(shared, preview["token"]) == job  # the token again changes nothing
        assert shared.get("/bulk")["jobs"] == [job]
        again = shared.post("/bulk/preview", {"action": "abort", "selection": {"key": "k"}})
        assert self.run(shared, again["token"])["done"] == 9
        assert shared.search() == []
        assert [one["action"] for one in shared.get("/bulk")["jobs"]] == ["abort", "reschedule"]

    def test_times_are_told_from_one_moment(self, shared: Shared) -> None:
        """Each worker gets its part some ms after the one before it."""
        shared.workers[1].advance(60_000)
        for number in range(2):
            shared.hold(number, f"m{number}")
        shared.hold(1, "later", TIMER_DELIVER_MS=str(START_MS + 3_690_000))
        asked = {
            "action": "reschedule",
            "selection": {"begin": "+1h", "end": "+61m"},
            "to": {"at": "+2h"},
        }
        self.run(shared, shared.post("/bulk/preview", asked)["token"])
        found = shared.get("/messages")["messages"]
        due = {one["msgId"]: one["dueMs"] - START_MS for one in found}
        assert due == {"m0": 7_200_000, "m1": 7_200_000, "later": 3_690_000}

    @pytest.mark.parametrize(
        "begin", ["1970-01-01T05:00Z", "1969-12-31T19:00Z", "1972-02-29", -(10**15)]
    )
    def test_since_long_ago(self, shared: Shared, begin: str | int) -> None:
        """A user who means all messages may begin with a day before 1973."""
        shared.hold(1, "m1")
        asked = {"action": "abort", "selection": {"topic": "orders", "begin": begin}}
        assert self.run(shared, shared.post("/bulk/preview", asked)["token"])["done"] == 1

    def test_one_that_is_ended(self, shared: Shared) -> None:
        for number in range(4):
            shared.hold(number % 2, f"m{number}")
        asked = {"action": "abort", "selection": {"topic": "orders"}}
        job = self.run(shared, shared.post("/bulk/preview", asked)["token"])
        ended = shared.ask("DELETE", f"/api/v1/bulk/{job['id']}")
        assert (ended.status, ended.json) == (200, job)
        assert shared.refusal("GET", "/bulk/77")["status"] == 404

    def test_a_job_of_a_worker_that_was_started_again_has_failed(
        self, shared: Shared, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(4):
            shared.hold(number % 2, f"m{number}")
        preview = shared.post("/bulk/preview", {"action": "abort", "selection": {"key": "k"}})
        monkeypatch.setattr(bulk, "PIECE", 1)
        worker, goes_on = shared.workers[1].reactor, Turns.next
        turns = iter(range(2 * 2))

        def stands_still(own: Turns) -> Any:
            is_over = own._reactor is worker and next(turns, None) is None
            return Deferred() if is_over else goes_on(own)

        with monkeypatch.context() as context:
            context.setattr(Turns, "next", stands_still)
            path = f"/bulk/{shared.post('/bulk', {'token': preview['token']})['id']}"
            for worker in shared.workers:
                worker.settle()
        runs = shared.get(path)
        assert (runs["state"], runs["done"]) == ("running", 4)
        shared.workers[1].restart()
        after = shared.get(path)
        assert (after["state"], after["done"]) == ("failed", 4)
        assert after["error"] == (
            "broker-a-1 was restarted before it was done: what it changed stays so (2 messages or more)"
        )
        shared.workers[0].restart()
        assert shared.refusal("GET", path)["status"] == 404

    def test_a_job_that_was_told_to_have_ended_has(self, shared: Shared) -> None:
        """This also holds while a worker is starting again, and once it has forgotten the job."""
        for number in range(2):
            shared.hold(number, f"m{number}")
        preview = shared.post("/bulk/preview", {"action": "abort", "selection": {"key": "k"}})
        job = self.run(shared, preview["token"])
        assert (job["state"], job["done"]) == ("done", 2)
        shared.out = {1}
        assert shared.get(f"/bulk/{job['id']}") == job
        shared.out = set()
        shared.workers[1].restart()
        assert shared.get(f"/bulk/{job['id']}") == job

    def test_one_begins_while_they_are_listed(
        self, shared: Shared, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shared_bulk, "MAX_JOBS", 2)
        asked = {"action": "abort", "selection": {"key": "k"}}
        jobs = [self.run(shared, shared.post("/bulk/preview", asked)["token"]) for _ in range(2)]
        for _ in range(2):
            shared.meanwhile.append(
                lambda: jobs.append(self.run(shared, shared.post("/bulk/preview", asked)["token"]))
            )
            listed = shared.get("/bulk")["jobs"]
            assert [one["id"] for one in listed] == [one["id"] for one in jobs[-2:-4:-1]]

    def test_one_that_runs_is_not_forgotten_for_later_ones(
        self, shared: Shared, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (bulk, shared_bulk):
            monkeypatch.setattr(module, "MAX_JOBS", 2)
        asked = {"action": "abort", "selection": {"key": "k"}}
        token = shared.post("/bulk/preview", asked)["token"]
        with monkeypatch.context() as context:
            context.setattr(Turns, "next", lambda _: Deferred())
            runs = shared.post("/bulk", {"token": token})["id"]
        for _ in range(3):
            last = self.run(shared, shared.post("/bulk/preview", asked)["token"])["id"]
        assert [one["id"] for one in shared.get("/bulk")["jobs"]] == [last, runs]
        ended = shared.ask("DELETE", f"/api/v1/bulk/{runs}")
        assert ended.json["state"] == "cancelled"

    def test_none_begins_where_a_worker_is_out(self, shared: Shared) -> None:
        for number in range(2):
            shared.hold(number, f"m{number}")
        preview = shared.post("/bulk/preview", {"action": "abort", "selection": {"key": "k"}})
        shared.out.add(0)
        refused = shared.refusal("POST", "/bulk", {"token": preview["token"]})
        assert (refused["status"], "make a new preview" in refused["detail"]) == (503, True)
        shared.out.clear()
        for worker in shared.workers:
            worker.settle()
        assert shared.get("/bulk")["jobs"] == []
        assert "m0" in shared.search()

    def test_one_that_runs_goes_on_where_its_token_is_brought_again_and_a_worker_is_out(
        self, shared: Shared, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(4):
            shared.hold(number % 2, f"m{number}")
        asked = {"action": "abort", "selection": {"key": "k"}}
        token = {"token": shared.post("/bulk/preview", asked)["token"]}
        with monkeypatch.context() as context:
            context.setattr(Turns, "next", lambda _: Deferred())
            runs = shared.post("/bulk", token)
        shared.out.add(1)
        assert shared.post("/bulk", token)["id"] == runs["id"]
        shared.out.clear()
        assert shared.get(f"/bulk/{runs['id']}")["state"] == "running"
        shared.workers[1].restart()
        again = shared.post("/bulk", token)
        assert again["id"] == runs["id"]
        assert again["error"].startswith("broker-a-1 was restarted before it was done: ")

    def test_a_job_is_not_taken_for_one_of_before_a_restart(self, shared: Shared) -> None:
        for key in ("first", "second"):
            shared.hold(0, key, KEYS=key)
            asked = {"action": "abort", "selection": {"key": key}}
            self.run(shared, shared.post("/bulk/preview", asked)["token"])
            shared.workers[1].advance(1_000)
            if key == "first":
                shared.workers[1].restart()
        second, first = shared.get("/bulk")["jobs"]
        assert [one["selection"]["key"] for one in (second, first)] == ["second", "first"]
        assert [(one["state"], one["done"]) for one in (second, first)] == [("done", 1)] * 2

    @pytest.mark.parametrize("token", ["", "x", "e30=", "bnVsbA=="])
    def test_tokens_that_are_none(self, shared: Shared, token: str) -> None:
        assert shared.refusal("POST", "/bulk", {"token": token})["status"] == 400

    def test_none_is_begun_where_one_was_restarted_since_the_preview(self, shared: Shared) -> None:
        for number in range(2):
            shared.hold(number, f"m{number}")
        asked = {"action": "abort", "selection": {"key": "k"}}
        preview = shared.post("/bulk/preview", asked)
        shared.restart(1)
        refused = shared.refusal("POST", "/bulk", {"token": preview["token"]})
        assert (refused["status"], refused["detail"]) == (
            409,
            "restarted since the preview: broker-a-1; nothing was changed, make a new preview",
        )
        for worker in shared.workers:
            worker.settle()
        assert shared.search() == ["m0", "m1"]
        preview = shared.post("/bulk/preview", asked)
        assert self.run(shared, preview["token"])["done"] == 2
        shared.restart(1)
        assert shared.post("/bulk", {"token": preview["token"]})["done"] == 2

    def test_none_is_begun_where_as_many_run_at_a_worker_as_may(
        self, shared: Shared, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(2):
            shared.hold(number, f"m{number}")
        tokens = [
            shared.post("/bulk/preview", {"action": "abort", "selection": {"key": key}})["token"]
            for key in (*["none"] * bulk.MAX_RUNNING, "k")
        ]
        stands_still, goes_on = shared.workers[0].reactor, Turns.next
        with monkeypatch.context() as context:
            context.setattr(
                *(Turns, "next"),
                lambda own: Deferred() if own._reactor is stands_still else goes_on(own),
            )
            running = [self.run(shared, token)["id"] for token in tokens[:-1]]
            refused = shared.refusal("POST", "/bulk", {"token": tokens[-1]})
            assert (refused["status"], refused["detail"]) == (
                409,
                "4 jobs are running; wait for one, or cancel one",
            )
            shared.workers[1].settle()
        assert shared.search() == ["m0", "m1"]
        shared.ask("DELETE", f"/api/v1/bulk/{running[0]}")
        job = self.run(shared, tokens[-1])
        assert (job["state"], job["done"]) == ("done", 2)

    def test_one_is_stopped_where_a_worker_is_restarted_just_then(self, shared: Shared) -> None:
        for number in range(2):
            shared.hold(number, f"m{number}")
        preview = shared.post("/bulk/preview", {"action": "abort", "selection": {"key": "k"}})
        shared.meanwhile.append(lambda: shared.restart(1))
        refused = shared.refusal("POST", "/bulk", {"token": preview["token"]})
        assert "not one of this gateway's previews" in refused["detail"]
        assert (
            "The change was begun and stopped at broker-a-0: what is changed" in refused["detail"]
        )
        assert shared.get("/bulk")["jobs"] == []
        assert "m1" in shared.search()
        # Now the workers have numbered different jobs.
        again = shared.post("/bulk/preview", {"action": "abort", "selection": {"key": "k"}})
        assert self.run(shared, again["token"])["state"] == "done"

    def test_none_is_begun_where_one_does_not_serve(self, shared: Shared) -> None:
        shared.hold(0, "m0")
        preview = shared.post("/bulk/preview", {"action": "abort", "selection": {"key": "k"}})
        shared.out, shared.gone = {1}, {"broker-a-1"}
        refused = shared.refusal("POST", "/bulk", {"token": preview["token"]})
        assert refused["detail"].startswith("1 of 2 workers do not serve (broker-a-1): none was")
        shared.out, shared.gone = set(), set()
        shared.workers[0].settle()
        assert shared.search() == ["m0"]
        job = self.run(shared, preview["token"])
        assert (job["state"], job["done"]) == ("done", 1)
        shared.out, shared.gone = {1}, {"broker-a-1"}
        assert shared.post("/bulk", {"token": preview["token"]}) == job

    def test_what_it_selects_is_not_told_unless_a_worker_lets_the_asker_see_it(
        self, shared: Shared
    ) -> None:
        """Who asks is known to the workers only."""
        shared.hold(0, "m0", KEYS="secret")
        asked = {"action": "abort", "selection": {"key": "secret"}}
        job = self.run(shared, shared.post("/bulk/preview", asked)["token"])
        shared.out = {0, 1}
        for method, path in (("GET", "/bulk"), ("GET", f"/bulk/{job['id']}")):
            refused = shared.refusal(method, path)
            assert refused["status"] == 503
            assert refused["detail"].startswith("2 of 2 workers do not answer")
        # One that was restarted does not know whose job it was.
        shared.workers[1].restart()
        shared.out = {0}
        assert shared.refusal("GET", "/bulk")["status"] == 503
        shared.out = {1}
        assert shared.get("/bulk")["jobs"] == [job]

    def test_one_that_is_silent_may_make_its_part_yet(self, shared: Shared) -> None:
        preview = shared.post("/bulk/preview", {"action": "abort", "selection": {"key": "k"}})
        shared.out = {1}
        refused = shared.refusal("POST", "/bulk", {"token": preview["token"]})
        assert refused["status"] == 503
        assert refused["detail"] == (
            "broker-a-1 does not answer: it may still make its part of the change. The change was begun and stopped at "
            "broker-a-0: what is changed there stays so; make a new preview"
        )
        shared.out = {0, 1}
        refused = shared.refusal("POST", "/bulk", {"token": preview["token"]})
        assert refused["detail"].endswith("it may still make its part of the change")


class TestRecurring:
    def test_they_are_set_listed_and_changed(self, shared: Shared) -> None:
        """An existing one with the name is replaced where it is. A new one is set at the first worker."""
        rule = {"TIDEGATE_NAME": "theirs", "TIDEGATE_EVERY": "2m"}
        ok(shared.clients[1].send_message("orders", "x", rule))
        for name, outcome in (("theirs", "replaced"), ("mine", "set")):
            path = f"/api/v1/recurring/orders/{name}"
            done = shared.ask("PUT", path, {"body": "tick", "every": "3m"})
            assert (done.status, done.json["outcome"]) == (200, outcome)
        listed = shared.get("/recurring", limit=1)
        assert [one["name"] for one in listed["recurring"]] == ["mine"]
        rest = shared.get("/recurring", limit=1, cursor=listed["cursor"])
        assert [one["name"] for one in rest["recurring"]] == ["theirs"]
        assert rest["cursor"] is None
        at_each = [
            [one["name"] for one in HttpClient(worker).get("/recurring")["recurring"]]
            for worker in shared.workers
        ]
        assert at_each == [["mine"], ["theirs"]]
        assert shared.get("/recurring/orders/theirs")["recurring"]["every"] == "3m"
        for order, outcome in (("pause", "paused"), ("resume", "resumed")):
            assert shared.post(f"/recurring/orders/theirs/{order}")["outcome"] == outcome
        assert shared.ask("DELETE", "/api/v1/recurring/orders/mine").json["outcome"] == "deleted"
        assert "no recurring message" in shared.refusal("GET", "/recurring/orders/mine")["detail"]
        assert len(shared.get("/recurring-times", every="1h")["times"]) == 10
        assert shared.refusal("GET", "/recurring-times", cron="at noon")["status"] == 400

    def test_none_is_set_beside_one_that_its_worker_cannot_read(self, shared: Shared) -> None:
        rule = {"TIDEGATE_NAME": "nightly", "TIDEGATE_EVERY": "2m"}
        ok(shared.clients[1].send_message("orders", "x", rule))
        store = shared.workers[1].store
        one = find_recurring(store, b"orders", b"nightly")
        assert one is not None
        put_recurring(store, one._replace(definition=b"of a later version"))
        store.commit()
        place, new = "/recurring/orders/nightly", {"body": "tick", "every": "3m"}
        refused = shared.refusal("PUT", place, new)
        assert (refused["status"], refused["detail"][-26:]) == (409, "set it again at broker-a-1")
        assert shared.get("/recurring")["recurring"] == []
        own = HttpClient(shared.workers[1])
        assert own.ask("PUT", f"/api/v1{place}", new).json["outcome"] == "replaced"
        assert shared.ask("DELETE", f"/api/v1{place}").json["outcome"] == "deleted"

    def test_none_is_set_while_a_worker_may_have_one_of_the_name(self, shared: Shared) -> None:
        shared.out.add(1)
        refused = shared.ask(
            "PUT", "/api/v1/recurring/orders/nightly", {"body": "tick", "every": "3m"}
        )
        assert refused.status == 503
        shared.out.clear()
        assert shared.get("/recurring")["recurring"] == []

    def test_who_sets_one_need_not_be_permitted_to_read_it(self, guarded: Shared) -> None:
        """As at a single gateway."""
        for worker in guarded.workers:
            root = SignedClient(worker, ROOT, ROOT_KEY)
            ok(put_acl(root, "ann", "Topic:orders", ["Pub"]))
            ok(create_topic(root, "orders"))
            ok(create_topic(root, "others"))
        rule = {"TIDEGATE_NAME": "theirs", "TIDEGATE_EVERY": "2m"}
        ok(SignedClient(guarded.workers[1], ROOT, ROOT_KEY).send_message("orders", "x", rule))
        ann = {"Authorization": basic("ann", "hers")}
        body = {"body": "tick", "every": "3m"}
        for place, outcome in (("orders/theirs", "replaced"), ("orders/hers", "set")):
            done = guarded.ask("PUT", f"{API}/recurring/{place}", body, headers=ann)
            assert (done.status, done.json.get("outcome")) == (200, outcome), done
        refused = guarded.ask("PUT", f"{API}/recurring/others/hers", body, headers=ann)
        assert refused.status == 403
        # Who is not let in learns nothing of a worker's recurring messages, such as that one cannot be read.
        guarded.out = {1}
        nobody = guarded.ask("PUT", f"{API}/recurring/orders/theirs", body)
        assert nobody.status == 401


class TestLists:
    def test_topics(self, shared: Shared) -> None:
        for number, topic in enumerate(("a", "b", "b", "c", "d")):
            client = shared.clients[number % 2]
            ok(create_topic(client, topic))
            ok(client.send_message(topic))
        rows = shared.get("/topics", contains="b")["topics"]
        mine = {row["name"]: row for row in rows}
        assert (mine["b"]["stored"], mine["b"]["entered"], mine["b"]["queues"]) == (2, 2, 4)
        names: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = shared.get("/topics", limit=2, cursor=cursor)
            names += [row["name"] for row in page["topics"]]
            cursor = page["cursor"]
        assert names == sorted(set(names))
        assert {"a", "b", "c", "d"} < set(names)

    @pytest.mark.parametrize("changed", [0, 1])
    def test_a_topic_that_one_worker_still_takes_sends_for_is_shown_as_such(
        self, shared: Shared, changed: int
    ) -> None:
        for client in shared.clients:
            ok(create_topic(client, "orders"))
        ok(create_topic(shared.clients[changed], "orders", perm="4"))
        (row,) = shared.get("/topics", contains="orders")["topics"]
        assert row["perm"] == 6

    def test_a_topic_is_paused_where_it_is(self, shared: Shared) -> None:
        ok(create_topic(shared.clients[1], "orders"))
        assert shared.post("/topics/orders/pause") == {"changed": True}
        assert shared.post("/topics/orders/pause") == {"changed": False}
        (row,) = shared.get("/topics", contains="orders")["topics"]
        assert row["pause"]["topic"] == "orders"
        assert shared.post("/topics/orders/resume") == {"changed": True}
        assert shared.refusal("POST", "/topics/nothing/pause")["status"] == 404

    def test_groups(self, shared: Shared) -> None:
        for number, client in enumerate(shared.clients):
            ok(create_topic(client, "orders", 1))
            for _ in range(number + 2):
                ok(client.send_message("orders"))
            ok(client.heartbeat(f"C{number}", "workers"))
            ok(commit_offset(client, "orders", 0, 1, "workers"))
        (row,) = shared.get("/groups", contains="workers")["groups"]
        assert (row["lag"], row["members"]) == (3, ["C0", "C1"])
        (topic,) = row["topics"]
        found = [(queue["broker"], queue["queue"], queue["lag"]) for queue in topic["queues"]]
        assert found == [(NAMES[0], 0, 1), (NAMES[1], 0, 2)]

    def test_rates_and_status(self, shared: Shared) -> None:
        for number in range(3):
            shared.hold(number % 2, f"m{number}")
        rates = shared.get("/rates")
        assert (rates["held"], rates["accepted"]["total"], rates["connections"]) == (3, 3, 2)
        assert sum(rates["commit"]["counts"]) >= 2
        status = shared.get("/status")
        assert (status["broker"], status["reasons"]) == ("broker-a-0, broker-a-1", [])
        assert status["address"] == "127.0.0.1:9876"

    def test_one_that_stores_nothing(self, shared: Shared) -> None:
        for client in shared.clients:
            ok(create_topic(client, "orders"))
        with commits_fail(shared.workers[1]):
            refused = shared.refusal("POST", "/topics/orders/pause", {})
            assert refused["status"] in (500, 503)
            reasons = shared.get("/status")["reasons"]
            assert reasons == ["broker-a-1: the last batch could not be stored"]
        assert shared.post("/topics/orders/pause") == {"changed": True}

    def test_one_does_not_answer(self, shared: Shared) -> None:
        shared.out = {1}
        assert shared.get("/status")["reasons"] == ["broker-a-1 does not answer"]
        refused = shared.refusal("GET", "/messages")
        assert (refused["status"], refused["detail"]) == (
            503,
            "1 of 2 workers do not answer (broker-a-1); ask again",
        )
        preview = {"action": "abort", "selection": {"key": "k"}}
        assert shared.refusal("POST", "/bulk/preview", preview)["detail"].endswith("; ask again")
        shared.out = {0, 1}
        assert shared.refusal("GET", "/status")["status"] == 503

    def test_a_change_that_one_lacks_tells_who_has_made_it(self, shared: Shared) -> None:
        for client in shared.clients:
            ok(create_topic(client, "orders"))
        shared.out = {1}
        refused = shared.refusal("POST", "/topics/orders/pause", {})
        assert refused["status"] == 503
        assert refused["detail"] == (
            "1 of 2 workers do not answer (broker-a-1) and may still make the change; done by broker-a-0: check "
            "what has changed before you ask again"
        )
        shared.out = set()
        with commits_fail(shared.workers[1]):
            refused = shared.refusal("POST", "/topics/orders/pause", {})
        assert refused["detail"].startswith("broker-a-1 refused: ")
        assert refused["detail"].endswith("; done by broker-a-0")

    def test_nothing_is_changed_where_one_does_not_serve(self, shared: Shared) -> None:
        for client in shared.clients:
            ok(create_topic(client, "orders"))
        shared.gone = {"broker-a-1"}
        refused = shared.refusal("POST", "/topics/orders/pause", {})
        assert (refused["status"], refused["detail"]) == (
            503,
            "1 of 2 workers do not serve (broker-a-1): none was asked; ask again",
        )
        shared.gone = set()
        assert shared.post("/topics/orders/resume") == {"changed": False}


class TestWhoMay:
    """The workers themselves decide, by the credentials of a request."""

    def test_a_token(self, make_gateway: MakeGateway, tmp_path: Path) -> None:
        file = tmp_path / "token"
        file.write_text("a-token-of-some-letters")
        shared = Shared(make_gateway, http_token_file=file)
        refused = shared.ask("GET", "/api/v1/rates")
        assert (refused.status, refused.headers["www-authenticate"][:6]) == (401, "Bearer")
        known = {"Authorization": "Bearer a-token-of-some-letters"}
        assert shared.ask("GET", "/api/v1/rates", headers=known).status == 200
        assert shared.ask("GET", "/api/v1/status").status == 401

    @pytest.mark.parametrize(
        ("method", "path", "body", "status"),
        [
            ("GET", "/bulk", None, 200),
            ("GET", "/bulk/7", None, 404),
            ("DELETE", "/bulk/7", None, 404),
            ("POST", "/bulk", {"token": "none"}, 400),
        ],
    )
    def test_where_no_worker_has_anything_to_say_one_is_asked_all_the_same(
        self,
        make_gateway: MakeGateway,
        tmp_path: Path,
        method: str,
        path: str,
        body: object,
        status: int,
    ) -> None:
        file = tmp_path / "token"
        file.write_text("a-token-of-some-letters")
        shared = Shared(make_gateway, http_token_file=file)
        known = {"Authorization": "Bearer a-token-of-some-letters"}
        foreign = {**known, "Origin": "http://elsewhere.example"}
        for out, headers, expected in (
            (set(), {}, 401),
            (set(), foreign, 403),
            (set(), known, status),
            ({0}, {}, 401),
            ({0}, known, status),
            ({0, 1}, known, 503),
        ):
            shared.out = out
            answer = shared.ask(method, f"/api/v1{path}", body, headers=headers)
            assert answer.status == expected, (out, headers)

    @pytest.mark.parametrize("state", ["pending", "fired", "aborted", "any"])
    def test_of_a_topic_that_the_asker_may_not_read_there_are_no_messages(
        self, guarded: Shared, state: str
    ) -> None:
        hers = {"Authorization": basic("ann", "hers")}
        for known in (guarded, HttpClient(guarded.workers[0])):
            path = f"/api/v1/messages?topic=orders&state={state}"
            answer = known.ask("GET", path, headers=hers)
            assert (answer.status, answer.json["messages"]) == (200, []), answer

    @pytest.mark.parametrize("place", [0, 1])
    @pytest.mark.parametrize("path", ["/status", "/topics"])
    def test_the_worker_that_does_not_know_a_user_is_named(
        self, guarded: Shared, place: int, path: str
    ) -> None:
        ok(
            create_user(
                SignedClient(guarded.workers[1 - place], ROOT, ROOT_KEY), "bob", password="his"
            )
        )
        refused = guarded.ask("GET", API + path, headers={"Authorization": basic("bob", "his")})
        assert refused.status == 401
        assert refused.json["detail"].startswith(f"{NAMES[place]} refused: access key and secret")
        nobody = guarded.ask("GET", API + path, headers={"Authorization": basic("eve", "hers")})
        assert nobody.json["detail"].startswith("access key and secret"), "no worker knows her"

    def test_a_job_of_somebody_else_is_not_there(self, guarded: Shared) -> None:
        for worker in guarded.workers:
            root = SignedClient(worker, ROOT, ROOT_KEY)
            ok(put_acl(root, "ann", "Topic:hers", ["Pub", "Sub"]))
            for topic in ("orders", "hers"):
                ok(root.send_message(topic, "x", {"TIMER_DELAY_SEC": "60"}))
        known = {"Authorization": basic(ROOT, ROOT_KEY)}
        ann = {"Authorization": basic("ann", "hers")}

        def begin(topic: str, headers: dict[str, str]) -> Any:
            asked = {"action": "abort", "selection": {"topic": topic}}
            preview = guarded.ask("POST", f"{API}/bulk/preview", asked, headers=headers).json
            token = {"token": preview["token"]}
            return guarded.ask("POST", f"{API}/bulk", token, headers=headers)

        path = f"{API}/bulk/{begin('orders', known).json['id']}"
        assert begin("hers", ann).status == 200
        wrong = {"Authorization": basic("ann", "his")}
        asked = [guarded.ask("GET", path, headers=one).status for one in (known, ann, wrong)]
        assert asked == [200, 404, 401]

    @pytest.mark.parametrize(
        "headers",
        [
            {"Sec-Fetch-Site": "cross-site"},
            {"Origin": "http://elsewhere.example"},
            {"Host": "elsewhere.example"},
        ],
    )
    def test_pages_of_others_are_not_served(self, shared: Shared, headers: dict[str, str]) -> None:
        assert shared.ask("GET", "/api/v1/rates", headers=headers).status == 403


def test_a_path_has_any_letters(shared: Shared) -> None:
    refusal = shared.refusal("POST", "/topics/a%2F..%2Fb%3Fx/pause")
    assert refusal["detail"] == "there is no topic a/../b?x: check its name"
    assert shared.refusal("GET", f"/messages/{'0' * 32}%0A")["status"] == 404
    assert shared.refusal("GET", "/messages", cursor="other:00")["status"] == 400
