"""`tidegate abort`, `reschedule`, `pause` and `resume`: their requests, output and exit status."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

import pytest

from gateway.cli import change_commands
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command, encode_response
from gateway.wire.pending_bodies import MAX_CHANGED_BY_KEY
from tests.cli.fake import FakeGateway, Reply, success
from tests.command import Tidegate

DUE_MS = 1_896_078_600_000
CAPTURE = ("capture", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--out", "/proc/none")


def moved(*outcomes: str) -> Reply:
    """Return a gateway's response with these outcomes."""
    rows = [
        {"msgId": f"ID{i}", "topic": "orders", "dueMs": DUE_MS, "outcome": outcome}
        for i, outcome in enumerate(outcomes)
    ]
    return lambda command: success(command, {"results": rows})


def step(messages: int, cursor: str | None = None) -> Reply:
    """Return a gateway's response to a step of a bulk change."""
    return lambda command: success(command, {"messages": messages, "cursor": cursor})


def refuse(command: Command) -> bytes:
    """Return a gateway's refusal of a request."""
    remark = "too far (setting max_delay)"
    return encode_response(command.opaque, ResponseCode.MESSAGE_ILLEGAL, remark=remark)


def asked(gateway: FakeGateway) -> list[tuple[int, dict[str, str]]]:
    """Return the requests received: codes and fields."""
    return [(command.code, command.ext()) for command in gateway.asked]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Set the user's input to the command's prompt."""

    def type_(text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))

    return type_


class TestReschedule:
    @pytest.mark.parametrize(
        ("flags", "fields"),
        [
            (
                ["--id", "A", "--at", "2030-01-31T09:30:00Z"],
                {"id": "A", "due": "1896082200000"},
            ),
            (
                ["--id", "A", "--topic", "T", "--at", "+30m"],
                {"id": "A", "topic": "T", "delay": "1800000"},
            ),
            (["--handle", "djE", "--at", "now"], {"handle": "djE", "delay": "0"}),
            (
                ["--key", "K", "--topic", "T", "--by", "+1h30m"],
                {"key": "K", "topic": "T", "shift": "5400000"},
            ),
            (["--id", "A", "--by", "-500ms"], {"id": "A", "shift": "-500"}),
        ],
    )
    def test_asks_what_the_flags_say(
        self, tidegate: Tidegate, flags: list[str], fields: dict[str, str]
    ) -> None:
        with FakeGateway(moved("rescheduled")) as gateway:
            run = tidegate("reschedule", "--server", gateway.server, *flags)
        assert asked(gateway) == [(RequestCode.RESCHEDULE_TIMERS, fields)]
        assert run.status == 0
        assert "rescheduled" in run.out

    @pytest.mark.parametrize(
        ("outcomes", "status"),
        [
            (["rescheduled", "rescheduled"], 0),
            (["rescheduled", "already fired"], 3),
            (["already aborted"], 3),
            (["unknown"], 3),
            ([], 3),
        ],
    )
    @pytest.mark.parametrize("form", [[], ["--json"]])
    def test_the_status_tells_whether_all_were_moved(
        self, tidegate: Tidegate, outcomes: list[str], status: int, form: list[str]
    ) -> None:
        with FakeGateway(moved(*outcomes)) as gateway:
            run = tidegate(
                *("reschedule", "--server", gateway.server, "--id", "A", "--at", "now", *form)
            )
        assert run.status == status
        for outcome in outcomes:
            assert outcome in run.out

    def test_the_table_tells_when_each_is_due(
        self, tidegate: Tidegate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(change_commands, "now_ms", lambda: DUE_MS - 180_000)
        with FakeGateway(moved("rescheduled")) as gateway:
            run = tidegate("reschedule", "--server", gateway.server, "--id", "A", "--at", "+3m")
        row = " ".join(run.out.splitlines()[-1].split())
        assert row.startswith("rescheduled ")
        assert row.endswith(" in 3 min orders ID0")

    @pytest.mark.parametrize("form", [[], ["--json"]])
    def test_as_many_as_a_key_alone_changes_may_not_be_all(
        self, tidegate: Tidegate, form: list[str]
    ) -> None:
        with FakeGateway(moved(*["rescheduled"] * MAX_CHANGED_BY_KEY)) as gateway:
            flags = ("--key", "K", "--topic", "T", "--at", "+1h", *form)
            run = tidegate("reschedule", "--server", gateway.server, *flags)
        assert run.status == 3
        assert run.out.count("rescheduled") == MAX_CHANGED_BY_KEY
        assert run.err.startswith("there may be more: a key alone changes at most 1,000 messages")

    def test_a_refusal_is_one_line(self, tidegate: Tidegate) -> None:
        with FakeGateway(refuse) as gateway:
            run = tidegate("reschedule", "--server", gateway.server, "--id", "A", "--at", "+9999d")
        assert run.status == 1
        assert run.err == "tidegate: the server refused (code 13): too far (setting max_delay)\n"


class Terminal:
    """Standard input at a terminal, where somebody presses a key in place of an answer."""

    def __init__(self, key: str) -> None:
        self._key = key

    def isatty(self) -> bool:
        """It is a terminal."""
        return True

    def readline(self) -> str:
        """Return what the key makes of a line: nothing, or an interrupt."""
        if self._key == "Ctrl-C":
            raise KeyboardInterrupt
        return ""


SELECTION = ("--topic", "T", "--tag", "G", "--from", "1896078600000", "--key", "K")
FIELDS = {"topic": "T", "tag": "G", "begin": "1896078600000", "key": "K"}


class TestBulk:
    def test_says_how_many_asks_and_goes_on_to_the_end(
        self, tidegate: Tidegate, answer: Callable[[str], None]
    ) -> None:
        answer("y\n")
        steps = (step(2_000, "C1"), step(7), step(500, "C2"), step(0, "C3"), step(1_507))
        with FakeGateway(*steps) as gateway:
            run = tidegate("abort", "--server", gateway.server, *SELECTION)
        code = RequestCode.BULK_CHANGE_TIMERS
        count, abort = ({**FIELDS, "action": action} for action in ("count", "abort"))
        assert asked(gateway) == [
            (code, count),
            (code, count | {"cursor": "C1"}),
            (code, abort),
            (code, abort | {"cursor": "C2"}),
            (code, abort | {"cursor": "C3"}),
        ]
        assert run.status == 0
        assert "Abort 2,007 messages of topic T?" in run.err
        assert run.out == "2,007 messages aborted\n"

    def test_says_how_far_it_came_where_it_cannot_go_on(self, tidegate: Tidegate) -> None:
        with FakeGateway(step(2_000), step(500, "C1"), step(499, "C2")) as gateway:
            run = tidegate("abort", "--server", gateway.server, *SELECTION, "--yes")
        assert (run.status, run.out) == (1, "")
        assert run.err.startswith(
            "999 messages aborted, and perhaps more: the last step was not answered\n"
        )

    def test_a_refused_step_changes_nothing_more(self, tidegate: Tidegate) -> None:
        with FakeGateway(step(2_000), step(999, "C1"), refuse) as gateway:
            run = tidegate(
                *("reschedule", "--server", gateway.server, *SELECTION, "--by", "+1h", "--yes"),
            )
        assert (run.status, run.out) == (1, "")
        assert run.err == (
            "999 messages rescheduled before a step was refused\n"
            "tidegate: the server refused (code 13): too far (setting max_delay)\n"
        )

    @pytest.mark.parametrize("is_read", [True, False], ids=["workers", "another version"])
    def test_a_refused_step_of_which_workers_may_have_made_their_part_may_have_changed_more(
        self, tidegate: Tidegate, *, is_read: bool
    ) -> None:
        def refuse_in_part(command: Command) -> bytes:
            if not is_read:
                return success(command, [])
            return encode_response(
                command.opaque,
                ResponseCode.SERVICE_NOT_AVAILABLE,
                remark="1 of 2 workers do not answer",
                ext={"mayHaveChanged": "true"},
            )

        with FakeGateway(step(2_000), step(999, "C1"), refuse_in_part) as gateway:
            run = tidegate(
                *("reschedule", "--server", gateway.server, *SELECTION, "--by", "+1h", "--yes"),
            )
        assert (run.status, run.out) == (1, "")
        assert run.err.startswith(
            "999 messages rescheduled, and perhaps more: the last step may have been made, at least in part\n"
            "tidegate: the server"
        )

    @pytest.mark.parametrize("word", ["n\n", "\n"])
    def test_no_is_no(self, tidegate: Tidegate, answer: Callable[[str], None], word: str) -> None:
        answer(word)
        with FakeGateway(step(7)) as gateway:
            run = tidegate("abort", "--server", gateway.server, *SELECTION)
        assert (run.status, len(gateway.asked)) == (1, 1)
        assert "nothing was changed" in run.err

    def test_nobody_can_be_asked(self, tidegate: Tidegate, answer: Callable[[str], None]) -> None:
        answer("")
        with FakeGateway(step(7)) as gateway:
            run = tidegate("abort", "--server", gateway.server, *SELECTION)
        assert (run.status, len(gateway.asked)) == (2, 1)
        assert "--yes is needed" in run.err

    @pytest.mark.parametrize("key", ["Ctrl-C", "Ctrl-D"])
    def test_who_leaves_the_question_at_a_terminal_has_said_no(
        self, tidegate: Tidegate, monkeypatch: pytest.MonkeyPatch, key: str
    ) -> None:
        monkeypatch.setattr("sys.stdin", Terminal(key))
        with FakeGateway(step(7)) as gateway:
            run = tidegate("abort", "--server", gateway.server, *SELECTION)
        assert (run.status, len(gateway.asked)) == (1, 1)
        assert run.err.endswith("\nnothing was changed\n")

    def test_yes_and_json(self, tidegate: Tidegate) -> None:
        with FakeGateway(step(1), step(1)) as gateway:
            run = tidegate(
                *("reschedule", "--server", gateway.server, "--topic", "T", "--all"),
                *("--by", "+1h", "--yes", "--json"),
            )
        assert [fields for _, fields in asked(gateway)] == [
            {"topic": "T", "action": "count"},
            {"topic": "T", "action": "reschedule", "shift": "3600000"},
        ]
        assert (run.status, json.loads(run.out)) == (0, {"messages": 1})

    @pytest.mark.parametrize("narrowed", [["--key", "K"], ["--to", "now"], ["--all"]])
    def test_a_dry_run_changes_nothing(self, tidegate: Tidegate, narrowed: list[str]) -> None:
        with FakeGateway(step(7)) as gateway:
            run = tidegate(
                *("abort", "--server", gateway.server, "--topic", "T", *narrowed, "--dry-run")
            )
        assert len(gateway.asked) == 1
        assert (run.status, run.out) == (0, "7 messages match\n")

    @pytest.mark.parametrize(
        "named", [["--id", "A"], ["--id", "A", "--topic", "T"], ["--handle", "djE"]]
    )
    @pytest.mark.parametrize("command", [["abort"], ["reschedule", "--at", "+1h"]])
    def test_a_dry_run_of_a_message_by_name_is_refused_and_changes_nothing(
        self, tidegate: Tidegate, command: list[str], named: list[str]
    ) -> None:
        with FakeGateway(moved("aborted")) as gateway:
            run = tidegate(*command, "--server", gateway.server, *named, "--dry-run")
        assert gateway.asked == []
        assert run.status == 2
        assert "--dry-run counts messages of a --topic" in run.err

    def test_of_one_message_it_says_so(self, tidegate: Tidegate) -> None:
        with FakeGateway(step(1)) as gateway:
            run = tidegate("abort", "--server", gateway.server, *SELECTION, "--dry-run")
        assert run.out == "1 message matches\n"

    def test_nobody_can_be_asked_where_standard_input_is_closed(
        self, tidegate: Tidegate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin", None)
        with FakeGateway(step(7)) as gateway:
            run = tidegate("abort", "--server", gateway.server, *SELECTION)
        assert run.status == 2
        assert "--yes is needed where nobody can be asked" in run.err
        assert len(gateway.asked) == 1

    def test_nothing_matches(self, tidegate: Tidegate) -> None:
        with FakeGateway(step(0)) as gateway:
            run = tidegate("abort", "--server", gateway.server, *SELECTION, "--yes")
        assert (run.status, run.out, run.err) == (3, "", "no message matches\n")
        assert len(gateway.asked) == 1


class TestPause:
    @pytest.mark.parametrize(
        ("command", "code", "changed", "said"),
        [
            ("pause", RequestCode.PAUSE_TOPIC, True, "T: paused\n"),
            ("pause", RequestCode.PAUSE_TOPIC, False, "T: was paused before\n"),
            ("resume", RequestCode.RESUME_TOPIC, True, "T: resumed\n"),
            ("resume", RequestCode.RESUME_TOPIC, False, "T: was not paused\n"),
        ],
    )
    def test_says_what_is(
        self, tidegate: Tidegate, command: str, code: int, changed: bool, said: str
    ) -> None:
        with FakeGateway(lambda asked: success(asked, {"changed": changed})) as gateway:
            run = tidegate(command, "T", "--server", gateway.server)
        assert asked(gateway) == [(code, {"topic": "T"})]
        assert (run.status, run.out) == (0, said)

    def test_lists(self, tidegate: Tidegate) -> None:
        topics = [{"topic": "T", "sinceMs": DUE_MS, "waiting": 1_234, "resumed": False}]
        with FakeGateway(lambda asked: success(asked, {"topics": topics})) as gateway:
            run = tidegate("pause", "--server", gateway.server)
        assert asked(gateway) == [(RequestCode.LIST_PAUSED_TOPICS, {})]
        assert run.out.startswith("T: paused since 2030-01-31 ")
        assert run.out.endswith("1,234 due and waiting\n")
        with FakeGateway(lambda asked: success(asked, {"topics": topics})) as gateway:
            run = tidegate("pause", "--server", gateway.server, "--json")
        assert list(map(json.loads, run.out.splitlines())) == topics

    def test_lists_nothing(self, tidegate: Tidegate) -> None:
        with FakeGateway(lambda asked: success(asked, {"topics": []})) as gateway:
            run = tidegate("pause", "--server", gateway.server)
        assert (run.out, run.err) == ("", "no topic is paused\n")

    def test_a_listing_of_messages_says_so(self, tidegate: Tidegate) -> None:
        paused = {"topic": "T", "sinceMs": DUE_MS, "waiting": 2, "resumed": True}
        page = {"messages": [], "cursor": None, "paused": [paused]}
        with FakeGateway(
            lambda asked: success(asked, page), lambda asked: success(asked, {"topics": [paused]})
        ) as gateway:
            run = tidegate("pending", "--server", gateway.server)
        assert "T: paused since" in run.err
        assert "2 resumed, on their way" in run.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["abort", "--id", "A", "--all"], "by only one of --id, --key and --handle"),
        (["abort", "--id", "A", "--key", "K", "--topic", "T"], "by only one of"),
        (
            ["abort", "--tag", "G"],
            "many with --topic and at least one of --tag, --from, --to and --all",
        ),
        (["abort", "--topic", "T", "--yes"], "many with --topic and at least one of"),
        (
            ["reschedule", "--at", "now"],
            "name what to reschedule by one of --id, --key and --handle",
        ),
        (["reschedule", "--id", "A"], "name the new time by one of --at TIME and --by +DURATION"),
        (["reschedule", "--id", "A", "--at", "now", "--by", "+1h"], "name the new time by one of"),
        (["reschedule", "--id", "A", "--at", "soon"], "'soon' is not a time"),
        (["reschedule", "--id", "A", "--at", "+soon"], "'+soon' is not a distance in time"),
        (["reschedule", "--id", "A", "--by", "late"], "'late' is not a distance in time"),
        (["reschedule", "--id", "A", "--by", "+-10m"], "'+-10m' is not a distance in time"),
        (["reschedule", "--id", "A", "--by", "--10"], "'--10' is not a distance in time"),
        (["reschedule", "--id", "A", "--at=+-10"], "'+-10' is not a distance in time"),
        (["pending", "--from", "+-10"], "'+-10' is not a time"),
        (["resume"], "Missing argument 'TOPIC'"),
        (["pending", "--id", ""], "--id is empty"),
        (["pending", "--topic", "T", "--key", ""], "--key is empty"),
        (["abort", "--topic", "T", "--tag", "", "--yes"], "--tag is empty"),
        (["abort", "--topic", "", "--all"], "--topic is empty"),
        (["abort", "--topic", "T", "--key", "", "--from", "now", "--yes"], "--key is empty"),
        (["reschedule", "--topic", "T", "--all", "--tag", "", "--by", "+1h"], "--tag is empty"),
        (["pause", ""], "it is empty: name a topic"),
        (["resume", ""], "it is empty: name a topic"),
        (["audit", "--data", ".", "--who", ""], "--who is empty"),
        (["audit", "--data", ".", "--action", ""], "--action is empty"),
        (["fsck", "--data", ""], "it is empty: name a folder"),
        (["backup", "--data", ".", "--to", ""], "it is empty: name a folder"),
        (["export", "--data", ".", "--to", ""], "it is empty: name a file"),
        (["man", "--to", ""], "it is empty: name a folder"),
        ([*CAPTURE, "--out", ""], "it is empty: name a folder"),
        ([*CAPTURE, "--advertise", "192.0.2.7:9876"], "without a port"),
        ([*CAPTURE, "--advertise", "[2001:db8::7]:9876"], "without a port"),
        ([*CAPTURE, "--advertise", "0.0.0.0"], "not a host that clients can connect to"),
        ([*CAPTURE, "--advertise", ""], "not a host that clients can connect to"),
        (["pause", "--timeout", "nan"], "nan is not a number of seconds"),
    ],
)
def test_misuse_is_one_line_and_status_2(
    tidegate: Tidegate, arguments: list[str], words: str
) -> None:
    run = tidegate(*arguments)
    assert (run.status, run.out, run.err.count("\n")) == (2, "", 1)
    assert words in run.err


@pytest.mark.parametrize("command", ["abort", "reschedule", "pause", "resume"])
def test_each_command_teaches_by_example(tidegate: Tidegate, command: str) -> None:
    run = tidegate(command, "--help")
    assert run.status == 0
    assert f"  tidegate {command} " in run.out
