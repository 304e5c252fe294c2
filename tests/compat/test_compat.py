"""`tidegate compat`: its parts, and a whole run against a real broker."""

from __future__ import annotations

import ast
import base64
import inspect
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from compat import normal, runner
from compat.command import compat
from compat.comparison import Finding, compare, spoken
from compat.differences import DIFFERENCES, number_of
from compat.exchanges import TAG, Exchange, exchanges, tag
from compat.peers import Peer, built_in_pair
from compat.report import difference_lines, summary, write
from compat.report_docs import CLIENTS, DIFFERENCES_FILE, TABLES_FILE, tables
from compat.runner import Judged, Outcome
from compat.scenarios import FILES, SCENARIOS, Scenario, Stage
from compat.toolchain.go import installed_go
from gateway.wire.codes import CommandFlag, RequestCode
from gateway.wire.commands import Command, decode_command, encode_command, encode_response
from gateway.wire.frames import FrameBuffer
from recording.format import Kind

PROJECT = Path(__file__).parent.parent.parent


def command(frame: bytes) -> Command:
    """Decode the command in a frame."""
    (parts,) = FrameBuffer().feed(frame)
    return decode_command(parts)


def answered(request: int, answer: bytes, **ext: str) -> Exchange:
    """Return a client's request with its response."""
    return Exchange("cmp001x", False, command(encode_command(request, 7, ext=ext)), command(answer))


def findings(left: Exchange, right: Exchange) -> list[str]:
    """Return the places where two exchanges differ."""
    found = compare(spoken({}, {}, [left]), spoken({}, {}, [right]))
    return [finding.place for finding in found]


class TestNormal:
    def test_what_differs_from_run_to_run_becomes_a_word(self) -> None:
        value = {
            "msgId": "7F" * 16,
            "store_ms": 1_700_000_000_000,
            "storeTimestamp": "2000000000000",
            "minTimeStampStr": "2026-11-28#21:33:29:100",
            "remark": "from 127.0.0.1:5678 at 1900000000000",
            "n": 5,
        }
        assert normal.normal(value) == {
            "msgId": "<id>",
            "store_ms": "<time>",
            "storeTimestamp": "<time>",
            "minTimeStampStr": "<time>",
            "remark": "from <address> at <time>",
            "n": 5,
        }

    def test_what_a_scenario_chose_is_compared(self) -> None:
        """A server that keeps another time, or another group's name, is not like the other one."""
        value = {"TIMER_DELIVER_MS": "1000", "popTime": 5, "PGROUP": "cmp001xp", "clientId": "one"}
        assert normal.normal(value) == value

    def test_members_of_a_group_are_compared_in_any_order(self) -> None:
        assert normal.normal({"consumerIdList": ["two", "one"]}) == {
            "consumerIdList": ["one", "two"]
        }

    def test_an_id_of_another_form_is_a_difference(self) -> None:
        ids = ["7F" * 16, "C0000202185B000000008a3dd4e00037", "7F" * 28]
        assert normal.normal(ids, "msgId") == ["<id>"] * 3
        for value in ("7F" * 15, "7f" * 16, "id"):
            assert normal.normal(value, "msgId") == value

    def test_handles_by_their_fields(self) -> None:
        handle = base64.urlsafe_b64encode(b"v1 orders broker-a 1700000000000 " + b"7F" * 16)
        assert normal.normal(handle.decode(), "recallHandle") == "v1 orders broker-a <time> <id>"
        assert normal.normal("no handle", "recallHandle") == "no handle"

    def test_what_is_missing_stays_missing(self) -> None:
        for value in ({"recall_handle": None, "timestamp": -1}, {"timestamp": 0, "bootTime": "0"}):
            assert normal.normal(value) == value

    def test_no_time_at_all_is_a_duration_too(self) -> None:
        assert normal.normal({"spentTimeMills": 0}) == {"spentTimeMills": "<duration>"}

    def test_fields_of_keys_are_put_in_order(self) -> None:
        assert normal.normal({'{"b":1,"a":2}': 3}) == {'{"a":2,"b":1}': 3}

    def test_lists_in_order_and_without(self) -> None:
        value = {"a": [{"b": 1}, {"b": 2}]}
        assert list(normal.flat(value)) == [("a.0.b", 1), ("a.1.b", 2)]
        assert list(normal.facts(value)) == [("a.each.b", 1), ("a.each.b", 2)]


class TestComparison:
    def test_ids_and_times_may_differ(self) -> None:
        left = answered(310, encode_response(7, 0, ext={"msgId": "A" * 32, "queueOffset": "1"}))
        right = answered(310, encode_response(7, 0, ext={"msgId": "B" * 32, "queueOffset": "1"}))
        assert findings(left, right) == []

    def test_a_field_that_is_missing_or_different(self) -> None:
        left = answered(310, encode_response(7, 0, ext={"a": "1", "b": "1"}))
        right = answered(310, encode_response(7, 0, ext={"a": "2"}))
        assert findings(left, right) == ["310/0/ext.a", "310/0/ext.b"]

    def test_another_header(self) -> None:
        """Java clients go by the version that a broker names: older ones know no SQL92."""
        left, right = (
            answered(34, encode_command(0, 7, flag=CommandFlag.RESPONSE, version=version), a="t")
            for version in (513, 200)
        )
        assert findings(left, right) == ["34/0/version"]

    def test_another_code(self) -> None:
        left, right = (answered(310, encode_response(7, code)) for code in (0, 1))
        assert findings(left, right) == ["310/codes"]

    def test_a_race_may_decide_the_code_but_not_the_fields(self) -> None:
        left = answered(11, encode_response(7, 19, ext={"x": "1"}), topic="t")
        right = answered(11, encode_response(7, 0), topic="t")
        assert findings(left, right) == []
        right = answered(11, encode_response(7, 19, ext={"x": "2"}), topic="t")
        assert findings(left, right) == ["11/19 t/ext.x"]

    def test_no_race_explains_a_refusal_by_one_server_alone(self) -> None:
        left = answered(11, encode_response(7, 0), topic="t")
        right = answered(11, encode_response(7, 1), topic="t")
        assert findings(left, right) == ["11/codes"]

    def test_a_group_may_have_no_members_yet(self) -> None:
        left = answered(38, encode_response(7, 0), consumerGroup="g")
        right = answered(38, encode_response(7, 1), consumerGroup="g")
        assert findings(left, right) == []

    def test_a_remark_beside_success_is_nobodys_business(self) -> None:
        left, right = (
            answered(310, encode_response(7, 0, remark=remark)) for remark in ("a", None)
        )
        assert findings(left, right) == []
        left, right = (answered(310, encode_response(7, 1, remark=remark)) for remark in ("a", "b"))
        assert findings(left, right) == ["310/1/remark"]

    def test_bodies_by_their_fields(self) -> None:
        left = answered(202, encode_response(7, 0, body=b'{"t":{{"q":0}:{"max":1}}}'))
        right = answered(202, encode_response(7, 0, body=b'{"t":{{"q":0}:{"max":2}}}'))
        assert findings(left, right) == ['202/0/body.t.{"q":0}.max']

    def test_of_answers_with_different_codes_only_the_code_is_told(self) -> None:
        seen = [
            {"step": {"code": 0, "ext": {"a": "1"}}},
            {"step": {"code": 1, "ext": {}, "remark": "no"}},
        ]
        left, right = (spoken(each, {"step": 310}, []) for each in seen)
        assert compare(left, right) == [Finding(310, "seen/step/code", "0", "1 no")]


class TestExchanges:
    @pytest.mark.parametrize("number", [1, 999, 1_000])
    def test_each_scenario_has_a_tag_that_is_found(self, number: int) -> None:
        found = TAG.search(f"%RETRY%{tag(number)}g".encode())
        assert found is not None
        assert found[0].decode() == tag(number)

    def test_answers_are_paired_by_connection_and_number(self, tmp_path: Path) -> None:
        """Also one to a request that must not be answered."""
        file = tmp_path / "capture"
        name = tag(3)
        frames = [
            (1, Kind.FROM_CLIENT, encode_command(30, 1, ext={"topic": name})),
            (2, Kind.FROM_CLIENT, encode_command(31, 1, ext={"topic": name})),
            (2, Kind.FROM_SERVER, encode_response(1, 17)),
            (1, Kind.FROM_SERVER, encode_command(40, 9, flag=2, ext={"consumerGroup": name})),
            (1, Kind.FROM_SERVER, encode_response(1, 0)),
            (2, Kind.FROM_CLIENT, encode_command(33, 2, flag=CommandFlag.ONEWAY)),
            (2, Kind.FROM_CLIENT, encode_command(34, 3, flag=CommandFlag.ONEWAY)),
            (2, Kind.FROM_SERVER, encode_response(3, 0)),
            (3, Kind.FROM_CLIENT, encode_command(32, 1, ext={"topic": "nobody's"})),
            (1, Kind.FROM_CLIENT, struct.pack(">II", 5, 1) + b"{"),
        ]
        records = b"".join(
            struct.pack(">QIBI", time, connection, kind, len(data)) + data
            for time, (connection, kind, data) in enumerate(frames)
        )
        file.write_bytes(b"tidegate capture 1\n" + records)
        found = [
            (one.tag, one.is_from_server, one.request.code, one.answer and one.answer.code)
            for one in exchanges(file)
        ]
        assert found == [
            (name, True, 40, None),
            (name, False, 30, 0),
            (name, False, 31, 17),
            (name, False, 34, 0),
            (name, False, 33, None),
        ]


class TestDifferences:
    def test_nothing_is_excused_by_chance(self) -> None:
        for place in ("310/0/ext.msgId", "11/0 t/body.each.body", "seen/sent/code"):
            assert number_of("sending.one-message [cpp]", Finding(310, place, "a", "b")) is None

    @pytest.mark.parametrize(
        ("place", "number"),
        [
            ("seen/consumerProgress/%RETRY%cmp001xg broker-a 0 0 0 0 0 N/A", 22),
            ("seen/consumerProgress/cmp001x broker-a 0 9 0 9 0 N/A", None),
            ("351/0/body.topicName", 22),
            ("351/0/body.perm", None),
        ],
    )
    def test_of_a_group_s_progress_only_its_retry_queue_is_excused(
        self, place: str, number: int | None
    ) -> None:
        finding = Finding(None, place, "(absent)", "1")
        assert number_of("admin.commands [mqadmin]", finding) == number

    def test_each_has_a_reason_and_places(self) -> None:
        for one in DIFFERENCES:
            assert one.what.endswith((".", ")."))
            assert one.reason.endswith(".")
            assert one.places
        assert len({one.what for one in DIFFERENCES}) == len(DIFFERENCES)


class TestPlan:
    def test_by_scenario_and_by_group(self) -> None:
        assert {run.scenario.name for run in runner.plan(["sending.sizes"])} == {"sending.sizes"}
        names = {run.scenario.name for run in runner.plan(["recall", "sending.sizes"])}
        assert names == {"sending.sizes", *(name for name in SCENARIOS if name[:7] == "recall.")}

    def test_an_unknown_name(self) -> None:
        with pytest.raises(KeyError, match="nonsense"):
            runner.plan(["nonsense"])

    def test_every_client_is_there(self) -> None:
        if skipped := runner.left_out():
            pytest.skip("; ".join(skipped))
        assert {run.client for run in runner.plan()} == set(CLIENTS)

    def test_a_client_that_cannot_run_is_told_of(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("shutil.which", lambda name: None)
        installed_go.cache_clear()
        try:
            (line,) = [line for line in runner.left_out(["sending"]) if "client go" in line]
            assert line.startswith("skipped: 6 scenarios with the client go: no Go")
            assert "go" not in {run.client for run in runner.plan(["sending"])}
        finally:
            installed_go.cache_clear()

    @pytest.mark.parametrize("file", FILES, ids=lambda file: file.__name__)
    def test_no_scenario_waits_for_ever(self, file: ModuleType) -> None:
        """Each waits by `until`, or for an answer, which have limits, and none in a loop of its own."""
        nodes = ast.walk(ast.parse(inspect.getsource(file)))
        assert [node.lineno for node in nodes if isinstance(node, ast.While)] == []

    def test_every_scenario_says_what_it_promises(self) -> None:
        assert all(one.promise.endswith(".") and one.clients for one in SCENARIOS.values())


class TestSecondTry:
    """A scenario that ends early on one server runs once more on both, with new names."""

    PEER = Peer("nobody", ("127.0.0.1", 1), ("127.0.0.1", 1), ("127.0.0.1", 1))

    def run(self, act: Callable[[Stage], None]) -> Outcome:
        scenario = Scenario("made.up", "It waits.", ("raw",), act, False)
        peers = (self.PEER, self.PEER)
        performed = runner.perform(
            [runner.Run(scenario, "raw", tag(1))], peers, {}, lambda run, is_done: None
        )
        (outcome,) = runner.judge(performed, peers)
        return outcome

    def test_it_counts(self) -> None:
        def act(stage: Stage) -> None:
            if stage.side == 0 and stage.tag == tag(1):
                raise TimeoutError("not in time")
            stage.see("done", True)

        outcome = self.run(act)
        assert outcome.passed
        assert outcome.before == ["nobody: TimeoutError: not in time"]
        assert outcome.run.tag == tag(2)
        assert "1 ended early and were tried again" in summary([outcome])

    def test_there_is_no_third(self) -> None:
        tags = []

        def act(stage: Stage) -> None:
            tags.append(stage.tag)
            raise TimeoutError("not in time")

        outcome = self.run(act)
        assert not outcome.passed
        assert sorted(tags) == [tag(1), tag(1), tag(2), tag(2)]

    def test_bytes_that_nobody_can_read_are_a_failure_too(self) -> None:
        def act(stage: Stage) -> None:
            FrameBuffer().feed(b"\xff" * 8)

        (finding,) = self.run(act).findings
        assert finding.finding.left.startswith("FrameError: ")

    def test_a_difference_is_one_at_once(self) -> None:
        outcome = self.run(lambda stage: stage.see("side", stage.side))
        assert (outcome.passed, outcome.before) == (False, ())


class TestCommand:
    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway", "compat", *arguments]
        return subprocess.run(
            command, cwd=PROJECT, capture_output=True, text=True, timeout=180, check=False
        )

    def test_lists_the_scenarios(self) -> None:
        done = self.run("--list")
        assert done.returncode == 0, done.stderr
        assert "sending.one-message" in done.stdout

    def test_an_unknown_scenario_is_one_line(self) -> None:
        done = self.run("nonsense")
        assert (done.returncode, done.stdout) == (2, "")
        assert "no scenario 'nonsense'" in done.stderr

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
    @pytest.mark.usefixtures("own_signals")
    def test_what_was_started_is_also_stopped_on_other_signals(
        self, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
    ) -> None:
        stopped = []

        def compare(*_: object) -> None:
            try:
                signal.raise_signal(number)
            finally:
                stopped.append(True)

        monkeypatch.setattr("compat.command._compare", compare)
        assert CliRunner().invoke(compat, ["recall"]).exit_code == 1
        assert stopped == [True]

    @pytest.mark.usefixtures("own_signals")
    def test_a_report_that_cannot_be_written_is_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "report.md").mkdir()
        monkeypatch.setattr("compat.command._compare", lambda *_: ([], ("one", "other")))
        done = CliRunner().invoke(compat, ["recall", "--report", str(tmp_path)])
        assert isinstance(done.exception, SystemExit)
        assert done.stderr.startswith("tidegate compat: [Errno 21] Is a directory: ")

    @pytest.mark.parametrize("names", [[], ["recall"]])
    @pytest.mark.usefixtures("own_signals")
    def test_a_run_of_everything_tells_which_difference_it_did_not_show(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
    ) -> None:
        """It may be gone. A run of some scenarios shows only theirs."""
        scenario = Scenario("made.up", "It differs.", ("raw",), lambda stage: None, False)
        findings = [Judged(Finding(None, "seen/a/remark", "an Exception", "a word"), 1)]
        outcome = Outcome(runner.Run(scenario, "raw", tag(1)), findings, {})
        monkeypatch.setattr("compat.command._compare", lambda *_: ([outcome], ("one", "other")))
        monkeypatch.setattr(runner, "left_out", lambda _: [])
        done = CliRunner().invoke(compat, [*names, "--report", str(tmp_path)])
        pages = [(tmp_path / name).read_text() for name in ("report.md", "report.html")]
        for said in (done.stdout, *pages):
            assert said.count("not seen: deliberate difference") == (
                0 if names else len(DIFFERENCES) - 1
            )
            assert "not seen: deliberate difference 1:" not in said

    @pytest.mark.parametrize(("address", "status"), [("nonsense", 2), ("127.0.0.1:1", 1)])
    def test_a_wrong_address_is_told_of_before_any_client_is_started(
        self, address: str, status: int
    ) -> None:
        done = self.run("sending.one-message", "--against", address, address)
        assert (done.returncode, done.stdout) == (status, "")
        assert address in done.stderr
        assert "clients" not in done.stderr


@pytest.mark.live
@pytest.mark.oracle
@pytest.mark.timeout(1800)
def test_the_gateway_does_what_rocketmq_does(tmp_path: Path) -> None:
    runs = runner.plan()
    data = tmp_path / "data"
    data.mkdir()
    with runner.drivers(runs) as processes:
        with built_in_pair(tmp_path, data) as peers:
            performed = runner.perform(runs, peers, processes, lambda run, is_done: None)
        outcomes = runner.judge(performed, peers)
    write(tmp_path, outcomes, ("RocketMQ", "Tidegate"))
    report = (tmp_path / "report.md").read_text()
    undeclared = [
        f"{outcome.run.name}: {finding}"
        for outcome in outcomes
        for finding, number in outcome.findings
        if number is None
    ]
    assert undeclared == []
    assert "DIFFERENT" not in tables(outcomes)
    assert f"{RequestCode.SEND_MESSAGE_V2}" in tables(outcomes)
    assert "Deliberate differences" in report


def test_the_pages_have_every_difference_and_every_scenario() -> None:
    """What `tidegate compat --write-docs` would write, as far as it is known without a run."""
    assert "\n".join(difference_lines()) in DIFFERENCES_FILE.read_text()
    page = TABLES_FILE.read_text()
    for scenario in SCENARIOS.values():
        assert f"| {scenario.name} | {', '.join(scenario.clients)} | {scenario.promise} |" in page
