"""The command `tidegate`, from its arguments to its output and exit status."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import msgspec
import pytest
from rich.console import Console

from gateway.cli import display
from gateway.cli import main as cli
from gateway.cli.manual import pages
from gateway.cli.recurring_client import Done
from gateway.settings.config import Config, descriptions
from gateway.settings.values import HostPort
from gateway.wire.commands import Command, encode_response
from gateway.wire.pending_bodies import HeldMessage
from tests.cli.fake import MESSAGE, FakeGateway, success
from tests.command import Run, Tidegate

UNREADABLE = "/proc/self/mem"
"""A file that can be opened, and then not be read."""

INTERRUPTED = """
import os, signal, sys
from gateway.__main__ import main

class Finder:
    def find_spec(self, name, *_):
        if name == "gateway.cli.asking":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
main()
"""

INTERRUPTED_AT_EXIT = """
import atexit, os, signal, sys
from gateway.__main__ import main

atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.argv = ["tidegate", "version"]
main()
"""


def one_line(run: Run) -> str:
    assert run.out == ""
    assert run.err.count("\n") == 1
    return run.err.rstrip("\n")


def test_a_ctrl_c_at_the_very_beginning_ends_it_without_a_word() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_a_ctrl_c_at_the_very_end_has_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT_EXIT], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert done.stdout.startswith("tidegate ")


@pytest.mark.parametrize(("move", "goes_on"), [((), False), (("advance", "30d"), True)])
def test_a_clock_that_is_under_way_for_long_is_told_from_a_gateway_that_is_not_there(
    tidegate: Tidegate, move: tuple[str, ...], *, goes_on: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = "{}:{}".format(*silent.getsockname())
        run = tidegate("clock", *move, "--timeout", "0.2", server=server)
    assert run.status == 1
    assert "did not answer in 0.2 s" in one_line(run)
    assert (
        "'tidegate clock advance 0s' with a longer --timeout waits for it" in run.err
    ) is goes_on


def test_a_file_that_cannot_be_used_is_one_line(
    tidegate: Tidegate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(_: Path) -> None:
        raise PermissionError(13, "Permission denied", "a file")

    (tmp_path / "audit.jsonl").touch()
    monkeypatch.setattr("gateway.monitoring.audit.read_lines", fail)
    run = tidegate("audit", "--data", str(tmp_path))
    said = (
        "tidegate: cannot use a file: Permission denied; "
        "run this as its owner, or make it this user's (chown)"
    )
    assert (run.status, one_line(run)) == (1, said)


@pytest.mark.parametrize(
    ("command", "argument", "said"),
    [
        ("bench", "--scenario=nothing", "tidegate bench: no scenario 'nothing'"),
        ("compat", "nothing.at-all", "tidegate compat: no scenario 'nothing.at-all'"),
    ],
)
def test_commands_beside_a_real_broker_complain_in_one_line(
    tidegate: Tidegate, command: str, argument: str, said: str
) -> None:
    run = tidegate(command, argument)
    assert run.status == 2
    assert one_line(run).startswith(said)


class TestHelp:
    @pytest.mark.parametrize("command", ["serve", "config", "pending", "abort"])
    def test_each_command_teaches_by_example(self, tidegate: Tidegate, command: str) -> None:
        run = tidegate(command, "--help")
        assert run.status == 0
        assert "Examples:" in run.out
        assert f"  tidegate {command} " in run.out

    @pytest.mark.parametrize("command", ["pending", "replay", "compat", "bench"])
    def test_paragraphs_stand_apart(self, tidegate: Tidegate, command: str) -> None:
        lines = [line.strip() for line in tidegate(command, "--help").out.splitlines()]
        assert lines[lines.index("Examples:") - 1] == ""

    def test_examples_can_be_copied_from_a_narrow_terminal(self) -> None:
        """The help would break longer lines in two."""
        examples = [
            line.replace("\\-", "-").replace("\\e", "\\")
            for _, page in pages(cli.cli, "tidegate")
            for line in page.splitlines()
            if line.startswith("  tidegate ")
        ]
        assert len(examples) > 50
        assert [line for line in examples if len(line) > 77] == []

    def test_the_first_page_lists_the_commands(self, tidegate: Tidegate) -> None:
        run = tidegate("--help")
        for command in ("serve", "config", "version", "pending", "abort"):
            assert f" {command} " in run.out
        assert tidegate("-h") == run

    def test_no_arguments_show_the_first_page(self, tidegate: Tidegate) -> None:
        run = tidegate()
        assert "tidegate serve --data ./data" in run.out + run.err
        assert run.status == 2

    @pytest.mark.parametrize("command", ["serve", "config"])
    def test_every_setting_is_a_flag_with_default_and_meaning(
        self, tidegate: Tidegate, command: str
    ) -> None:
        words = " ".join(tidegate(command, "--help").out.replace("│", " ").split())
        for entry in descriptions().values():
            assert entry.flag in words
            assert entry.meaning.split(". ")[0] in words
            if not isinstance(entry.default, Path) and entry.show(entry.default):
                assert f"Default: {entry.show(entry.default)}." in words

    def test_needs_no_heavy_import(self) -> None:
        script = (
            "import sys; sys.argv = ['tidegate', '--help']\n"
            "import gateway.cli.main\n"
            "try: gateway.cli.main.main()\n"
            "except SystemExit: pass\n"
            "print([name for name in ('pydantic', 'twisted', 'lmdb', 'msgspec') "
            "if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        assert done.stdout.decode().splitlines()[-1] == "[]"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("arguments", [["version"], ["config", "--json"], ["--help"]])
def test_a_full_disk_behind_standard_output_is_one_line_and_status_1(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gateway", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    told = b"tidegate: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


def test_a_terminal_that_is_gone_is_one_line_and_status_1() -> None:
    """As for a command in the background, when the window is closed."""
    terminal, stdout = os.openpty()
    os.close(terminal)
    done = paused(stdout)
    os.close(stdout)
    told = b"tidegate: cannot write to standard output: Input/output error\n"
    assert (done.returncode, done.stderr) == (1, told)


def paused(stdout: IO[bytes] | int) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose output is so short that it stays in the buffer to the end."""
    command = [sys.executable, "-m", "gateway", "pause", "T", "--server"]
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}
    with FakeGateway(lambda command: success(command, {"changed": True})) as gateway:
        return subprocess.run(
            [*command, gateway.server],
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=buffered,
            check=False,
        )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_short_output_on_a_full_disk_is_one_line_and_status_1() -> None:
    with Path("/dev/full").open("wb") as full:
        done = paused(full)
    told = b"tidegate: cannot write to standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


def test_a_short_output_whose_reader_is_gone_is_status_1_without_a_word() -> None:
    read, write = os.pipe()
    os.close(read)
    done = paused(write)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    ("arguments", "closed", "told"),
    [
        ("import --to 127.0.0.1:1", "<&-", "standard input is closed: name a file"),
        ("import - --to 127.0.0.1:1", "<&-", "standard input is closed: name a file"),
        (
            "recurring add --topic T --name n --every 1h --body-file -",
            "<&-",
            "standard input is closed: name a file",
        ),
        ("export --data .", ">&-", "standard output is closed: name a file with --to"),
    ],
)
def test_closed_standard_input_or_output_is_one_line(
    arguments: str, closed: str, told: str
) -> None:
    command = f'exec "$0" -m gateway {arguments} {closed}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable], stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode in (1, 2)
    assert done.stderr.count("\n") == 1
    assert told in done.stderr


class TestMisuse:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["pendng"], "Did you mean 'pending'?"),
            (["pending", "--topics", "x"], "No such option '--topics'"),
            (["pending", "--server", "9876"], "'9876' is not HOST:PORT"),
            (
                ["capture", "--listen", "127.0.0.1:9", "--to", "127.0.0.1:9", "--out", "x"],
                "--to and --listen are the same address",
            ),
            (
                ["capture", "--listen", "[::]:9", "--to", "h:9", "--out", "x", "--file-size", "0"],
                "'0' is less than 1KiB",
            ),
            (["pending", "--server", "host:0"], "'host:0' is not HOST:PORT"),
            (["pending", "--server", "host:" + "9" * 5_000], "is not HOST:PORT"),
            (["pending", "--from", "soon"], "'soon' is not a time; write a time such as"),
            (["pending", "--state", "held"], "'held' is not one of"),
            (
                ["clock", "set", "+30m"],
                "'+30m' is a distance, not a time; for that use 'tidegate clock advance 30m'",
            ),
            (["pending", "--limit", "0"], "0 is not in the range"),
            (["abort"], "name what to abort by one of --id, --key and --handle"),
            (["abort", "--id", "A", "--handle", "B"], "one of --id, --key and --handle"),
            (["abort", "--key", "K"], "--key needs --topic"),
            (["abort", "--topic", "T"], "one of --id, --key and --handle"),
            (["serve", "--flush", "never"], "flush = never (--flush) is wrong"),
            (["config", "--listen", "0.0.0.0:1"], "set advertise"),
            (["serve", "--config", "none.toml"], "cannot read the settings file none.toml"),
        ],
    )
    def test_is_one_line_and_status_2(
        self, tidegate: Tidegate, arguments: list[str], words: str
    ) -> None:
        run = tidegate(*arguments)
        line = one_line(run)
        assert line.startswith("tidegate")
        assert words in line
        assert run.status == 2


class TestServe:
    @pytest.fixture
    def served(self, monkeypatch: pytest.MonkeyPatch) -> list[Config]:
        """Stands in for the service: records the settings it is run with, and ends with status 7."""
        configs: list[Config] = []
        service = ModuleType("gateway.service")

        def run(config: Config) -> int:
            configs.append(config)
            return 7

        vars(service)["run"] = run
        monkeypatch.setitem(sys.modules, "gateway.service", service)
        return configs

    def test_runs_with_flags_over_environment_over_file(
        self,
        tidegate: Tidegate,
        served: list[Config],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        file = tmp_path / "settings.toml"
        file.write_text('listen = "127.0.0.1:1"\nflush = "async"\nbroker_name = "file"\n')
        monkeypatch.setenv("TIDEGATE_LISTEN", "127.0.0.1:2")
        monkeypatch.setenv("TIDEGATE_FLUSH", "sync")

        run = tidegate(
            "serve", "--config", str(file), "--listen", "127.0.0.1:0", "--no-vip-channel"
        )

        assert run == Run(7, "", "")
        [config] = served
        assert config.listen == HostPort("127.0.0.1", 0)
        assert config.flush == "sync"
        assert config.broker_name == "file"
        assert config.vip_channel is False
        assert config.recall_enabled is True

    def test_does_not_run_with_wrong_settings(
        self, tidegate: Tidegate, served: list[Config]
    ) -> None:
        assert tidegate("serve", "--max-pull-messages", "0").status == 2
        assert served == []


class TestConfig:
    def test_the_table_has_every_setting_and_where_it_comes_from(
        self, tidegate: Tidegate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TIDEGATE_BROKER_NAME", "broker-z")
        run = tidegate("config", "--max-delay", "48h")
        rows = {line.split()[0]: line for line in run.out.splitlines() if line.strip()}
        assert set(descriptions()) <= set(rows)
        assert rows["broker_name"].split()[1:4] == ["broker-z", "TIDEGATE_BROKER_NAME", "broker-a"]
        assert rows["max_delay"].split()[1:4] == ["2d", "--max-delay", "730d"]
        assert rows["flush"].split()[1:3] == ["sync", "default"]

    def test_json(self, tidegate: Tidegate) -> None:
        settings = json.loads(tidegate("config", "--json", "--max-delay", "48h").out)
        assert list(settings) == list(descriptions())
        assert settings["max_delay"]["value"] == 172_800
        assert settings["max_delay"]["from"] == "--max-delay"
        assert settings["max_delay"]["default"] == 63_072_000
        assert settings["max_delay"]["unit"] == "seconds"
        assert settings["map_size_initial"]["value"] == 1 << 30
        assert settings["vip_channel"]["value"] is True
        assert settings["advertise"]["value"] is None
        assert settings["delay_levels"]["upstream"] == "messageDelayLevel"

    def test_toml_holds_what_was_chosen_and_reads_back(
        self, tidegate: Tidegate, tmp_path: Path
    ) -> None:
        printed = tidegate("config", "--toml", "--flush", "async", "--max-delay", "48h").out
        assert tomllib.loads(printed) == {"flush": "async", "max_delay": "2d"}
        (tmp_path / "again.toml").write_text(printed)
        again = json.loads(tidegate("config", "--json", "--config", "again.toml").out)
        assert again["max_delay"]["value"] == 172_800
        assert again["max_delay"]["from"].startswith("again.toml, line ")


def page(*messages: dict[str, Any], cursor: str | None = None) -> Callable[[Command], bytes]:
    return lambda command: success(command, {"messages": list(messages), "cursor": cursor})


def results(*outcomes: str) -> Callable[[Command], bytes]:
    rows = [
        {"msgId": f"ID{i}", "topic": "orders", "dueMs": 1_896_078_600_000, "outcome": outcome}
        for i, outcome in enumerate(outcomes)
    ]
    return lambda command: success(command, {"results": rows})


class TestPending:
    def test_asks_what_the_flags_say(self, tidegate: Tidegate) -> None:
        with FakeGateway(page()) as gateway:
            run = tidegate(
                *("pending", "--server", gateway.server, "--id", "A", "--key", "K"),
                *("--topic", "T", "--tag", "G", "--from", "2030-01-31T09:30:00Z"),
                *("--to", "1896082200001", "--state", "any", "--limit", "7", "--cursor", "C"),
            )
        assert run == Run(0, "", "no message matches\n")
        assert gateway.asked[0].ext() == {
            "id": "A",
            "key": "K",
            "topic": "T",
            "tag": "G",
            "begin": "1896082200000",
            "end": "1896082200001",
            "state": "any",
            "limit": "7",
            "cursor": "C",
        }

    def test_asks_for_what_has_not_fired_by_default(
        self, tidegate: Tidegate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with FakeGateway(page()) as gateway:
            monkeypatch.setenv("TIDEGATE_SERVER", gateway.server)
            tidegate("pending", "--from", "-1h")
        asked = gateway.asked[0].ext()
        assert asked.pop("begin").isdigit()
        assert asked == {"state": "pending", "limit": "50"}

    def test_the_table_for_people(
        self, tidegate: Tidegate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cli, "now_ms", lambda: 1_896_078_600_000 - 180_000)
        strange = MESSAGE | {"tags": None, "keys": "[red]a[/red] \x1b[2J b", "state": "fired"}
        with FakeGateway(page(MESSAGE, strange, cursor="C1")) as gateway:
            run = tidegate("pending", "--server", gateway.server)

        head, rule, first, second = (" ".join(line.split()) for line in run.out.splitlines())
        assert head == "Due (local time) State Topic Queue Tag Keys Size From Message id"
        assert set(rule) == {"─"}
        assert first.endswith(
            " in 3 min pending orders 3 close order-1001 2KiB 7F0000010A2B18B4AAC2000000000001"
        )
        assert second.endswith(
            r" in 3 min fired orders 3 [red]a[/red] \x1b[2J b 2KiB 7F0000010A2B18B4AAC2000000000001"
        )
        assert run.err == "2 messages; more follow: --all, or --cursor C1\n"

    def test_json_lines_for_programs(self, tidegate: Tidegate) -> None:
        strange = MESSAGE | {"keys": "\x1b[2J \x7f \x9b2J"}
        with FakeGateway(page(MESSAGE, strange, cursor="C1")) as gateway:
            run = tidegate("pending", "--server", gateway.server, "--json")
        first, second, rest = map(json.loads, run.out.splitlines())
        missing = {"bornHost": None, "movedMs": None, "queueOffset": None}
        never = {"rescheduledMs": 0, "dueBeforeMs": 0}
        assert (first, second) == (MESSAGE | missing | never, strange | missing | never)
        assert run.out.replace("\n", "").isprintable()
        assert rest == {"cursor": "C1"}
        assert run.err == ""

    def test_all_tells_of_every_topic_that_is_paused(self, tidegate: Tidegate) -> None:
        """How much waits is what the list of paused topics says: a page may have only some workers' part of it."""

        def paused(topic: str, waiting: int) -> dict[str, Any]:
            since = {"sinceMs": 1_896_078_600_000, "resumed": False}
            return {"topic": topic, "waiting": waiting} | since

        def page_of(topic: str, cursor: str | None) -> Callable[[Command], bytes]:
            messages = [MESSAGE | {"topic": topic}]
            body = {"messages": messages, "cursor": cursor, "paused": [paused(topic, 1)]}
            return lambda command: success(command, body)

        listed = {"topics": [paused("first", 8), paused("other", 1), paused("second", 9)]}
        with FakeGateway(
            *(page_of("first", "C1"), page_of("second", None)),
            lambda command: success(command, listed),
        ) as gateway:
            run = tidegate("pending", "--server", gateway.server, "--all")
        lines = [line for line in run.err.splitlines() if "paused since" in line]
        told = [(line.partition(":")[0], line.split()[-4]) for line in lines]
        assert told == [("first", "8"), ("second", "9")]

    @pytest.mark.parametrize("form", [[], ["--json"]])
    def test_all_follows_the_cursor(self, tidegate: Tidegate, form: list[str]) -> None:
        with FakeGateway(
            page(MESSAGE | {"msgId": "ID1"}, cursor="C1"),
            page(cursor="C2"),
            page(MESSAGE | {"msgId": "ID2"}),
        ) as gateway:
            run = tidegate("pending", "--server", gateway.server, "--all", *form)
        assert [asked.ext().get("cursor") for asked in gateway.asked] == [None, "C1", "C2"]
        assert run.out.index("ID1") < run.out.index("ID2")
        assert "C1" not in run.out + run.err
        assert run.status == 0

    @pytest.mark.parametrize("named", [("--id", "A"), ("--key", "K")])
    def test_of_a_message_that_is_not_pending_it_says_how_to_find_it(
        self, tidegate: Tidegate, named: tuple[str, str]
    ) -> None:
        with FakeGateway(page(), page()) as gateway:
            run = tidegate("pending", "--server", gateway.server, *named)
            again = tidegate("pending", "--server", gateway.server, *named, "--state", "fired")
        assert run.err.startswith("no pending message matches; --state any shows also those")
        assert again.err == "no message matches\n"

    def test_a_server_that_is_not_there_is_one_line_and_status_1(self, tidegate: Tidegate) -> None:
        with FakeGateway() as gateway:
            server = gateway.server
        run = tidegate("pending", "--server", server)
        assert one_line(run) == (
            f"tidegate: nothing listens on {server}; start the gateway with 'tidegate serve', "
            "or give its address with --server HOST:PORT"
        )
        assert run.status == 1

    @pytest.mark.parametrize(
        "arguments",
        [
            ["pending", "--key", "\udcff"],
            ["abort", "--id", "\udcff"],
            [
                "recurring",
                "add",
                "--topic",
                "T",
                "--name",
                "N",
                "--every",
                "2m",
                "--body",
                "\udcff",
            ],
        ],
    )
    def test_an_argument_that_is_no_utf_8_is_one_line_and_status_2(
        self, tidegate: Tidegate, arguments: list[str]
    ) -> None:
        with FakeGateway() as gateway:
            run = tidegate(*arguments, server=gateway.server)
        assert one_line(run) == r"tidegate: '\udcff' in the arguments is not UTF-8"
        assert run.status == 2

    @pytest.mark.parametrize("form", [[], ["--json"]])
    def test_letters_that_standard_output_cannot_have_are_one_line_and_status_1(
        self, form: list[str]
    ) -> None:
        with FakeGateway(page(MESSAGE | {"keys": "größe"})) as gateway:
            done = subprocess.run(
                [sys.executable, "-m", "gateway", "pending", "--server", gateway.server, *form],
                capture_output=True,
                check=False,
                env=os.environ | {"PYTHONIOENCODING": "ascii"},
            )
        assert done.returncode == 1
        assert (
            done.stderr
            == b"tidegate: standard output is ascii, which has no '\\xf6\\xdf': set PYTHONIOENCODING=utf-8\n"
        )

    def test_a_refusal_is_one_line_and_status_1(self, tidegate: Tidegate) -> None:
        with FakeGateway(
            lambda command: encode_response(command.opaque, 1, remark="no")
        ) as gateway:
            run = tidegate("pending", "--server", gateway.server)
        assert one_line(run) == "tidegate: the server refused (code 1): no"
        assert run.status == 1


class TestAbort:
    @pytest.mark.parametrize(
        ("named", "asked"),
        [
            (["--id", "A"], {"id": "A"}),
            (["--id", "A", "--topic", "T"], {"id": "A", "topic": "T"}),
            (["--key", "K", "--topic", "T"], {"key": "K", "topic": "T"}),
            (["--handle", "djE"], {"handle": "djE"}),
        ],
    )
    def test_asks_what_the_flags_say(
        self, tidegate: Tidegate, named: list[str], asked: dict[str, str]
    ) -> None:
        with FakeGateway(results("aborted")) as gateway:
            run = tidegate("abort", "--server", gateway.server, *named)
        assert gateway.asked[0].ext() == asked
        assert run.status == 0
        assert "aborted" in run.out

    @pytest.mark.parametrize(
        ("outcomes", "status"),
        [
            (["aborted", "aborted"], 0),
            (["aborted", "already fired"], 3),
            (["already aborted"], 3),
            (["unknown"], 3),
            ([], 3),
        ],
    )
    @pytest.mark.parametrize("form", [[], ["--json"]])
    def test_the_status_tells_whether_all_were_aborted(
        self, tidegate: Tidegate, outcomes: list[str], status: int, form: list[str]
    ) -> None:
        with FakeGateway(results(*outcomes)) as gateway:
            run = tidegate("abort", "--server", gateway.server, "--id", "A", *form)
        assert run.status == status
        for outcome in outcomes:
            assert outcome in run.out

    def test_json_lines_for_programs(self, tidegate: Tidegate) -> None:
        with FakeGateway(results("aborted", "already fired")) as gateway:
            run = tidegate("abort", "--server", gateway.server, "--id", "A", "--json")
        assert list(map(json.loads, run.out.splitlines())) == [
            {"msgId": "ID0", "topic": "orders", "dueMs": 1_896_078_600_000, "outcome": "aborted"},
            {
                "msgId": "ID1",
                "topic": "orders",
                "dueMs": 1_896_078_600_000,
                "outcome": "already fired",
            },
        ]


@pytest.mark.parametrize(
    "rule", [("--cron", "0 5 * * *"), ("--zone", "Europe/Berlin"), ("--start", "+1h")]
)
def test_the_next_times_are_of_a_recurring_message_or_of_a_rule(
    tidegate: Tidegate, rule: tuple[str, str]
) -> None:
    with FakeGateway() as gateway:
        named = ("--topic", "reports", "--name", "nightly")
        run = tidegate("recurring", "next", "--server", gateway.server, *named, *rule)
    assert run.status == 2
    assert "or about a rule, and not both" in run.err
    assert gateway.asked == []


def test_a_list_of_what_recurs_is_not_of_all_topics_where_the_topic_is_empty(
    tidegate: Tidegate,
) -> None:
    with FakeGateway() as gateway:
        run = tidegate("recurring", "list", "--server", gateway.server, "--topic", "")
    assert run.status == 2
    assert "it is empty: give one, or leave the flag out" in run.err
    assert gateway.asked == []


@pytest.mark.parametrize("flag", ["--tag", "--keys"])
def test_an_empty_tag_or_key_of_what_is_to_recur_is_refused(tidegate: Tidegate, flag: str) -> None:
    """As from an unset variable of a script: the messages would miss what their consumers look for."""
    told = ("--topic", "reports", "--name", "nightly", "--every", "1m", "--body", "go")
    with FakeGateway() as gateway:
        run = tidegate("recurring", "add", "--server", gateway.server, *told, flag, "")
    assert run.status == 2
    assert "it is empty: give one, or leave the flag out" in run.err
    assert gateway.asked == []


def test_recurring_messages_that_are_no_text_are_told_by_their_lines(
    tidegate: Tidegate, tmp_path: Path
) -> None:
    file = tmp_path / "recurring.jsonl"
    file.write_bytes(b'\n{"topic": "\xff"}\n{"topic": "t"}\n')
    with FakeGateway() as gateway:
        run = tidegate("recurring", "import", str(file), "--server", gateway.server)
    assert run.status == 4
    assert [line[:7] for line in run.err.splitlines()] == ["line 2:", "line 3:", "2 could"]


@pytest.mark.parametrize("command", [("import",), ("recurring", "import")])
def test_why_a_file_cannot_be_opened_is_told(
    tidegate: Tidegate, command: tuple[str, ...], tmp_path: Path
) -> None:
    """It is not always missing: it may be in a folder that is closed to this user."""
    (tmp_path / "file").touch()
    run = tidegate(*command, str(tmp_path / "file" / "below"))
    assert (run.status, run.out) == (2, "")
    assert run.err.endswith("below': Not a directory\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("import", UNREADABLE, "--to"),
        ("recurring", "import", UNREADABLE, "--server"),
        (
            *("recurring", "add", "--topic", "t", "--name", "n", "--every", "1m"),
            *("--body-file", UNREADABLE, "--server"),
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(
    tidegate: Tidegate, arguments: tuple[str, ...]
) -> None:
    with FakeGateway() as gateway:
        run = tidegate(*arguments, gateway.server)
    assert run.status == 1
    assert run.err.splitlines()[-1].endswith(
        f": cannot read {UNREADABLE}: Input/output error; check the path, and the disk that it is on"
    )
    assert "Traceback" not in run.err
    assert gateway.asked == []


def test_many_messages_are_shown_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    message = msgspec.convert(MESSAGE, HeldMessage)
    table = display.MessageTable(MESSAGE["dueMs"])
    table.add([message] * table.MOST_ROWS)
    first = capsys.readouterr().out
    assert (first.count(message.msg_id), first.count("Message id")) == (table.MOST_ROWS, 1)
    table.add([message])
    assert capsys.readouterr().out == ""
    table.end(None)
    shown = capsys.readouterr()
    assert (shown.out.count(message.msg_id), shown.out.count("Message id")) == (1, 1)
    assert shown.err == f"{table.MOST_ROWS + 1} messages\n"


@pytest.mark.parametrize(
    ("fields", "time", "says"),
    [
        ({"state": "fired", "movedMs": 1_000}, "1970-01-01 00:00:01.000", "9 s ago   fired "),
        (
            {"state": "fired", "movedMs": 8_000},
            "1970-01-01 00:00:01.000",
            "9 s ago   fired, 2 s ago ",
        ),
        (
            {"state": "aborted", "movedMs": 7_000, "dueMs": 70_000, "rescheduledMs": 1},
            "1970-01-01 00:01:10.000",
            "in 60 s   aborted, 3 s ago, rescheduled ",
        ),
        (
            {"state": "untimed", "movedMs": 5_000, "dueMs": 0},
            "1970-01-01 00:00:05.000",
            "5 s ago   untimed ",
        ),
    ],
)
def test_when_a_message_fired_or_was_aborted_is_shown(
    fields: dict[str, Any], time: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that recurs fires without a delay: without a time all of its messages look the same."""
    table = display.MessageTable(10_000)
    table.add([msgspec.convert(MESSAGE | {"dueMs": 1_000} | fields, HeldMessage)])
    table.end(None)
    assert f"{time}   {says}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("state", "next_ms", "says"),
    [
        ("active", 20_000, "active; the next is 1970-01-01 00:00:20.000, in 10 s"),
        (
            "active",
            5_000,
            "active; its misfire policy decides about 1970-01-01 00:00:05.000, 5 s ago",
        ),
        ("paused", 5_000, "paused; the next would be 1970-01-01 00:00:05.000, 5 s ago"),
    ],
)
def test_a_next_time_that_has_passed_is_not_to_come(
    state: str, next_ms: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Done("changed", "orders", "nightly", state, next_ms)
    display.recurring_change(done, 10_000, as_json=False)
    assert capsys.readouterr().out == f"orders nightly: changed, {says}\n"


def test_on_a_narrow_terminal_ids_stay_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(display, "_console", lambda: Console(width=60, highlight=False))
    message = msgspec.convert(MESSAGE | {"bornHost": "192.0.2.7:51234"}, HeldMessage)
    table = display.MessageTable(MESSAGE["dueMs"] + 5_000)
    table.add([message])
    table.end(None)

    due, facts, message_id = capsys.readouterr().out.splitlines()
    assert due.split()[2:] == ["5", "s", "ago", "pending"]
    assert facts == (
        "  orders, queue 3, tag close, keys order-1001, size 2KiB, from 192.0.2.7:51234"
    )
    assert message_id == "  7F0000010A2B18B4AAC2000000000001"


def test_on_a_narrow_terminal_outcomes_and_names_stay_whole(
    tidegate: Tidegate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """80 columns are usual, and ids have 32 letters."""
    monkeypatch.setattr(display, "_console", lambda: Console(width=80, highlight=False))
    message_id = MESSAGE["msgId"]
    row = {"msgId": message_id, "topic": "orders", "dueMs": 1, "outcome": "already aborted"}
    with FakeGateway(lambda command: success(command, {"results": [row]})) as gateway:
        outcome, topic, whole = tidegate(
            "abort", "--server", gateway.server, "--id", "A"
        ).out.splitlines()
    assert outcome.startswith("already aborted  1970-01-01 ")
    assert (topic, whole) == ("  orders", f"  {message_id}")

    one = {
        "topic": "reports",
        "name": "nightly-report-of-all-orders",
        "state": "active",
        "cron": "0 5 * * MON-FRI",
        "zone": "Europe/Berlin",
        "misfire": "SMART",
        "fired": 2,
        "nextMs": 1,
        "setMs": 0,
        "queueId": 0,
        "tags": "",
        "keys": "",
        "bodySize": 1,
    }
    with FakeGateway(lambda command: success(command, {"recurring": [one]})) as gateway:
        shown = tidegate("recurring", "list", "--server", gateway.server)
    name, rule, times = shown.out.splitlines()
    assert name == "reports  nightly-report-of-all-orders  active"
    assert rule == "  0 5 * * MON-FRI (Europe/Berlin), misfire SMART"
    assert times.startswith("  next 1970-01-01 ")
    assert times.endswith(" d ago; fired 2")
