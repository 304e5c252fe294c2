"""The commands as users call them, and a replay to a real gateway process."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from stat import S_IMODE
from types import SimpleNamespace
from typing import Any

import msgspec
import py4j.java_gateway
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

from gateway.wire.codes import RequestCode
from recording.format import Kind
from spark_jobs import messages
from spark_jobs.command import main
from spark_jobs.comparing import compare
from spark_jobs.errors import JobError
from spark_jobs.firing import Verdict, recorded_twice
from spark_jobs.ingest import find_sources, read_table
from spark_jobs.locks import alone_in
from spark_jobs.messages import DEFAULT_LEVELS
from spark_jobs.replay import (
    JOURNAL,
    Gate,
    Outcome,
    choose,
    find_target,
    outcome,
    read_results,
    replay,
    run_name,
    unfinished,
)
from spark_jobs.replaying import DDL, RESULTS, Journal, Target
from spark_jobs.result_files import check, write_text
from spark_jobs.rewriting import DESTRUCTIVE, Rules
from spark_jobs.session import interrupted_later
from spark_jobs.tasks import explained, in_tasks
from spark_jobs.watching import WATCHED
from tests.live.process import GatewayProcess
from tests.spark.conftest import RECORDED
from tests.spark.making import capture_bytes, exchange, log_bytes, packet, pcap_bytes

SENDS = [310, 320]
NOTHING_DELAYED: dict[str, object] = {
    **dict.fromkeys(Verdict.__struct_fields__, 0),
    "groups": [],
    "samples": [],
    "notes": [],
}


def status_of(*arguments: str) -> int:
    """Return the exit status of a command; a normal return is 0."""
    try:
        main(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_findings_become_a_report(
    spark: SparkSession, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verify, profile = str(tmp_path / "verify.json"), str(tmp_path / "profile.json")
    assert status_of("verify", str(tables), "--json", verify) == 0
    assert status_of("profile", str(tables), "--json", profile) == 0
    assert json.loads(Path(verify).read_text())["lost"] == 0
    made = ("report", "--verify", verify, "--profile", profile, "--out", str(tmp_path / "report"))
    assert status_of(*made) == 0
    assert "Firing of delayed messages" in (tmp_path / "report" / "report.html").read_text()
    assert "SEND_MESSAGE_V2" in (tmp_path / "report" / "report.md").read_text()
    assert "14 delayed messages" in capsys.readouterr().out


def test_files_of_the_same_name_can_be_told_apart_in_a_report(tmp_path: Path) -> None:
    """Such as those of two targets, each in its folder."""
    found = msgspec.json.encode(NOTHING_DELAYED)
    files = [tmp_path / "broker" / "verify.json", tmp_path / "gateway" / "verify.json"]
    for file in files:
        file.parent.mkdir()
        file.write_bytes(found)
    (tmp_path / "recorded.json").write_bytes(found)
    flags = [f"--verify={file}" for file in (*files, tmp_path / "recorded.json")]
    assert status_of("report", *flags, "--out", str(tmp_path)) == 0
    text = (tmp_path / "report.md").read_text()
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles == [f"## Firing of delayed messages: {name}" for name in (*files, "recorded")]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("profile", "{empty}"), 1, "run 'tidegate ingest'"),
        (("ingest", "{empty}/nothing", "--out", "{empty}/t"), 1, "does not exist"),
        (("ingest", "{empty}", "--out", "{empty}/t", "--levels", "soon"), 2, "no list of delay"),
        (("replay", "{empty}", "--to", "here", "--out", "{empty}/r"), 2, "is not HOST:PORT"),
        (("replay", "{empty}", "--to", "a:1", "--out", "r", "--rate", "nan"), 2, "nan is not a"),
        (
            ("replay", "{empty}", "--to", "a:1", "--out", "r", "--speed", "0", "--delays", "scale"),
            2,
            "--speed 0 leaves open",
        ),
        (("verify", "{empty}", "--grace", "1e16"), 2, "1e16 is not a number up to 1,000,000,000"),
        (("verify", "{empty}", "--levels", "1s"), 2, "--levels is for replays"),
        (("compare", "{empty}"), 2, "--recorded and --baseline"),
        (("compare", "{empty}", "--baseline", "{empty}/"), 2, "name each replay once"),
        (
            ("compare", "{empty}", "--recorded", "{empty}", "--noise", "{empty}"),
            2,
            "name each replay once",
        ),
        (("report", "--out", "{empty}/r"), 2, "name what to report"),
        (("report", "--verify", "{empty}/none.json", "--out", "{empty}/r"), 1, "cannot read"),
        (("report", "--replay", "{empty}/no.text", "--out", "{empty}/r"), 1, "no.text: 'utf-8'"),
        (
            ("report", "--compare", "{empty}/v", "--out", "{empty}/r"),
            1,
            "v is not from 'tidegate compare --json'",
        ),
        (("report", "--verify", "{empty}/v", "--out", "{empty}/no.text/r"), 1, "cannot write"),
        (("report", "--verify", "{empty}/v", "--out", "{empty}/full"), 1, "report.html: No space"),
        (("profile", "{empty}", "--json", "{empty}/v/new"), 1, "cannot write"),
        (("ingest", str(RECORDED), "--out", "{empty}/no.text/t"), 1, "cannot"),
        (
            ("ingest", "s3a://bucket/captures", "--out", "{empty}/t"),
            2,
            "use a path on this machine",
        ),
        (("ingest", "", "--out", "{empty}/t"), 2, "it is empty"),
        (("ingest", "{empty}/v", "--out", ""), 2, "it is empty"),
        (("ingest", "{empty}/v", "--out", "{empty}/t", "--port", "0"), 2, "0 is not in the range"),
        (("ingest", "{empty}/nothing.pcap", "--out", "{empty}/t"), 1, "nothing.pcap is empty"),
        (("ingest", "{empty}", "--out", "s3a://bucket/tables"), 2, "use a path on this machine"),
        (("jobs", "{empty}/open.quote"), 1, "open.quote, line 2: No closing quotation"),
        (("jobs", "/dev/null"), 1, "/dev/null has no command"),
        (("jobs", "{empty}/no.text"), 1, "no.text: 'utf-8' codec can't decode"),
        (("jobs", "{empty}"), 2, "Is a directory"),
        (("jobs", "{empty}/mistyped"), 2, "mistyped, line 2: No such command 'veryfy'"),
        (("jobs", "{empty}/nested"), 2, "nested, line 2: a file of commands cannot run another"),
        (("profile", "{empty}", "--memory", "2 GB"), 2, "'2 GB' is not like 2g or 900m"),
        (("jobs", "{empty}/v", "--master", "local[0]"), 2, "'local[0]' is not like local[*]"),
        (("replay", "{empty}"), 2, "tidegate replay: Missing option '--to'"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    status: int,
    said: str,
) -> None:
    (tmp_path / "no.text").write_bytes(b'{"outcomes":{"\xff":1}}')
    (tmp_path / "v").write_bytes(msgspec.json.encode(NOTHING_DELAYED))
    (tmp_path / "nothing.pcap").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "report.html").symlink_to("/dev/full")
    (tmp_path / "open.quote").write_text("# jobs\nprofile 'tables\n")
    (tmp_path / "nested").write_text(f"--help\njobs {tmp_path}/nested\n")
    (tmp_path / "mistyped").write_text("report --verify v --out r\nveryfy tables\n")
    assert status_of(*(part.format(empty=tmp_path) for part in arguments)) == status
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("ingest {}/nothing --out {}/new", "nothing does not exist"),
        ("ingest {}/finished {}/read --out {}/new", "no commit log is in"),
        ("ingest {}/notes.txt --out {}/new", "notes.txt is no capture"),
        ("ingest {}/cpp.capture --out {}/notes.txt/new", "notes.txt/new: Not a directory"),
        ("ingest {}/cpp.capture --out {}/read", "cpp.capture has changed since it was read"),
        ("ingest {}/trace.pcap --out {}/read --port 1", "pcap was read with another --port: use"),
        ("ingest {}/cpp.capture --out {}/interrupted", "interrupted has a replay, for which"),
        ("ingest {}/cpp.capture --out {}/locked", "another 'tidegate ingest' reads into"),
        ("profile {}/new", "new has no tables"),
        ("verify {}/new", "new has no tables"),
        ("verify {}/interrupted", "interrupted has no finished replay: run"),
        ("verify {}/finished", "replay again with --watch"),
        ("compare {}/read --recorded {}/read", "read has no finished replay"),
        ("compare {}/finished --recorded {}/finished", "finished has no tables"),
        ("compare {}/finished --baseline {}/interrupted", "interrupted has no finished replay"),
        ("compare {}/finished --baseline {}/done --noise {}/new", "new has no finished replay"),
        ("replay {}/new --to 127.0.0.1:1 --out {}/out", "new has no tables"),
        ("replay {}/new --to 127.0.0.1:1 --out {}/out --dry-run", "new has no tables"),
        ("replay {}/read --to 127.0.0.1:1 --out {}/finished", "finished has a finished replay"),
        ("replay {}/read --to 127.0.0.1:1 --out {}/read", "read has tables"),
        ("replay {}/read --to 127.0.0.1:1 --out {}/locked", "another 'tidegate replay' writes"),
        ("replay {}/read --to 127.0.0.1:1 --out {}/notes.txt/new", "new: Not a directory"),
        ("replay {}/read --to 127.0.0.1:1 --out {}/out", "127.0.0.1:1 cannot be asked"),
    ],
)
def test_what_the_command_line_tells_is_told_before_spark_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    said: str,
) -> None:
    """Spark takes ten seconds to start."""

    refuse_to_start(monkeypatch)
    capture = Path(shutil.copy(RECORDED / "cpp.capture", tmp_path))
    (tmp_path / "notes.txt").write_text("no recording")
    (tmp_path / "read" / "batch=00001").mkdir(parents=True)
    (tmp_path / "trace.pcap").write_bytes(pcap_bytes([]))
    files = [[str(capture), "capture", 1, 1], list(find_sources([tmp_path / "trace.pcap"])[0])]
    entry = {"files": files, "counts": {}, "ports": [2], "levels": DEFAULT_LEVELS}
    (tmp_path / "read" / "batch=00001" / "sources.json").write_text(json.dumps(entry))
    (tmp_path / "interrupted" / "results").mkdir(parents=True)
    for finished in ("finished", "done"):
        (tmp_path / finished / "results").mkdir(parents=True)
        (tmp_path / finished / "results" / "_SUCCESS").touch()
    with alone_in(tmp_path / "locked", "") if "locked" in arguments else nullcontext():
        assert status_of(*arguments.replace("{}", str(tmp_path)).split()) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert said in line


def refuse_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Spark not be started."""

    def start(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("spark_jobs.session.open_session", start)


def test_where_nothing_is_new_spark_is_not_started(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ("ingest", str(RECORDED / "mqadmin.capture"), "--out", str(tmp_path / "tables"))
    assert status_of(*command) == 0
    assert "1 files read, 0 known before\n" in capsys.readouterr().out
    refuse_to_start(monkeypatch)
    found = tmp_path / "found.json"
    assert status_of(*command, "--json", str(found)) == 0
    assert capsys.readouterr().out == "0 files read, 1 known before\n"
    nothing = dict.fromkeys(("files", "being_written", "others"), 0)
    assert json.loads(found.read_text()) == {**nothing, "known": 1, "counts": {}}


def test_a_result_that_does_not_fit_on_the_disk_leaves_the_one_before(tmp_path: Path) -> None:
    file, link = tmp_path / "compare.json", tmp_path / "latest.json"
    link.symlink_to(file)
    write_text(link, "before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(JobError, match=r"cannot write .*compare\.json: File too large"):
            write_text(file, "x" * 8192)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert link.read_text() == "before"
    assert sorted(tmp_path.iterdir()) == [file, link]


@pytest.mark.parametrize("mode", [0o600, 0o440, 0o664])
def test_a_result_has_the_mode_of_the_one_that_it_replaces(tmp_path: Path, mode: int) -> None:
    file, link = tmp_path / "verify.json", tmp_path / "latest.json"
    link.symlink_to(file)
    (tmp_path / ".verify.json.unfinished").touch(mode=0o444)  # what a killed run left
    before = os.umask(0o022)
    try:
        write_text(link, "before")
        assert S_IMODE(file.stat().st_mode) == 0o644
        file.chmod(mode)
        check(link)
        write_text(link, "after")
    finally:
        os.umask(before)
    assert (file.read_text(), S_IMODE(file.stat().st_mode)) == ("after", mode)
    assert sorted(tmp_path.iterdir()) == [link, file]


@pytest.mark.parametrize("name", ["monday 12:30", "für {a,b} [1]* a\\b?:^ 5%/c:d"])
def test_a_folder_may_have_any_name(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """To Spark, one with a colon may be an address, and one with brackets a pattern."""
    monkeypatch.chdir(tmp_path)
    log = tmp_path / f"{0:020}"
    log.write_bytes(log_bytes([("orders", b"x", "UNIQ_KEY\x01A\x02")]))
    capture = RECORDED / "mqadmin.capture"
    assert status_of("ingest", str(capture), str(log), "--out", name) == 0
    assert status_of("profile", name) == 0
    spark.createDataFrame([], DDL).write.parquet(str(tmp_path / name / "results"))
    assert read_results(spark, tmp_path / name).count() == 0


def test_a_ctrl_c_waits_for_the_start_of_spark_and_a_second_one_does_not() -> None:
    done: list[int] = []

    def start(interrupts: int) -> None:
        with interrupted_later():
            for _ in range(interrupts):
                signal.raise_signal(signal.SIGINT)
            done.append(interrupts)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        start(0)
        with pytest.raises(KeyboardInterrupt):
            start(1)
        with pytest.raises(KeyboardInterrupt):
            start(2)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [0, 1]


def test_the_java_of_spark_is_not_wrapped_in_itself(spark: SparkSession) -> None:
    """A process with a session passes its JAVA_HOME to its children, in which a session may be opened too."""
    home = Path(os.environ["JAVA_HOME"])
    before = (home / "bin" / "java").read_text()
    code = "from spark_jobs.session import _java_home; print(_java_home())"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert Path(child.stdout.strip()) == home
    assert (home / "bin" / "java").read_text() == before


def test_after_a_ctrl_c_spark_says_no_more(
    spark: SparkSession, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    levels: list[str] = []
    monkeypatch.setattr("spark_jobs.ingest.read_table", interrupt)
    monkeypatch.setattr(spark.sparkContext, "setLogLevel", levels.append)
    assert status_of("profile", str(tables)) == 130
    assert levels == ["OFF"]


def test_spark_logs_no_warnings_and_not_what_a_task_failed_of(spark: SparkSession) -> None:
    loggers = spark.sparkContext._jvm.org.apache.logging.log4j.LogManager  # type: ignore[union-attr]
    assert str(loggers.getRootLogger().getLevel()) == "ERROR"
    for name in ("executor.Executor", "scheduler.TaskSetManager"):
        assert str(loggers.getLogger(f"org.apache.spark.{name}").getLevel()) == "OFF"


def test_py4j_logs_nothing(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    source = compile("logging.error('broken pipe')", py4j.java_gateway.__file__, "exec")
    exec(source, {"logging": logging})
    exec(source, {"logging": logging.getLogger("py4j.clientserver")})
    logging.getLogger().error("seen")
    assert caplog.messages == ["seen"]


def test_a_spark_that_does_not_start_and_one_that_was_killed_are_told(
    spark: SparkSession, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    much = "99999999999t"
    command = [sys.executable, "-m", "spark_jobs", "profile", str(tables), "--memory", much]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert said.returncode == 1
    assert f"Invalid maximum heap size: -Xmx{much}" in said.stderr
    assert "Spark does not start; the lines above say why" in said.stderr.splitlines()[-1]
    (tmp_path / "jobs").write_text(f"profile {tables}\n")
    command[3:5] = ["jobs", str(tmp_path / "jobs")]
    command[-1] = "100m"  # Java takes it, and Spark does not
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert "Traceback" not in said.stderr
    assert "Spark does not start; the lines above say why" in said.stderr.splitlines()[-1]
    monkeypatch.setattr("spark_jobs.tasks._ENDING_S", 0.1)
    with pytest.raises(ConnectionRefusedError), explained():
        raise ConnectionRefusedError
    with subprocess.Popen(["true"]) as ended:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=ended))
        monkeypatch.setattr("spark_jobs.tasks._ENDING_S", 100)
        for error in (ConnectionRefusedError(), Py4JNetworkError()):
            with pytest.raises(JobError, match="lower --memory"), explained():
                raise error


def test_findings_are_written_into_a_new_folder(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "recordings").mkdir()
    (tmp_path / "recordings" / "x-00001.open").touch()
    found = tmp_path / "found" / "ingest.json"
    recordings, tables = str(tmp_path / "recordings"), str(tmp_path / "tables")
    assert status_of("ingest", recordings, "--out", tables, "--json", str(found)) == 0
    nothing = dict.fromkeys(("files", "known", "others"), 0)
    assert json.loads(found.read_text()) == {**nothing, "being_written": 1, "counts": {}}


def test_what_was_sent_before_or_never_left_is_not_judged(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answered = {"file": "a", "code": 34, "feature": "clients", "answer_code": 0}
    row = answered | {"outcome": "answered", "asked_ns": 1, "sent_ns": 2}
    lost = row | {"outcome": "sent before", "answer_code": None, "sent_ns": None}
    refused = lost | {"outcome": "not connected"}
    runs = {"whole": [row] * 3, "gone-on-with": [lost, row, row], "away": [refused, refused, row]}
    for name, rows in runs.items():
        placed = [one | {"position": at} for at, one in enumerate(rows)]
        table = pa.Table.from_pylist(placed, schema=RESULTS)
        spark.createDataFrame(table, DDL).write.parquet(str(tmp_path / name / "results"))
        shutil.copytree(tmp_path / name, tmp_path / f"{name}-again")
    whole, gone_on = str(tmp_path / "whole"), str(tmp_path / "gone-on-with")
    assert status_of("compare", gone_on, "--baseline", whole, "--noise", f"{whole}-again") == 0
    said = capsys.readouterr().out
    assert "1 requests of the candidate were sent before it was interrupted" in said
    assert "2 answers compared: the same" in said
    assert "--noise" not in said
    watched = spark.createDataFrame([], messages.DDL)
    for name in ("gone-on-with", "away"):
        watched.write.parquet(str(tmp_path / name / WATCHED))
    assert status_of("verify", gone_on) == 0
    said = capsys.readouterr().out
    assert "1 requests were sent before the replay was interrupted" in said
    assert "never left" not in said
    away, verified, compared = (str(tmp_path / name) for name in ("away", "v.json", "c.json"))
    assert status_of("verify", away, "--json", verified) == 3
    assert "2 requests never left, as the target was not there" in capsys.readouterr().out
    assert status_of("compare", away, "--baseline", f"{away}-again", "--json", compared) == 0
    said = capsys.readouterr().out
    assert "2 requests of the baseline never left, as the target was not there" in said
    assert "1 answers compared: the same; 0 only in the baseline, 2 only in the candidate" in said
    assert status_of("compare", whole, "--baseline", f"{whole}-again", "--noise", away) == 0
    assert "2 requests of the second run never left" in capsys.readouterr().out
    ignored = ("--ignore", "34:code", "--ignore", "34:Code")
    assert status_of("compare", away, "--baseline", whole, *ignored) == 3
    said = capsys.readouterr().out
    assert "--ignore 34:Code: no answer differs in a field of this name" in said
    assert "--ignore 34:code" not in said
    assert "2 requests of the candidate never left, as the target was not there" in said
    assert "what differs between any two runs, such as ids, is among the differences" in said
    report = ("report", "--verify", verified, "--compare", compared, "--out", str(tmp_path))
    assert status_of(*report) == 0
    for name in ("report.html", "report.md"):
        for note in ("2 requests never left", "2 requests of the baseline never left"):
            assert note in (tmp_path / name).read_text()


def test_a_difference_is_one_line_however_long_the_answers_are(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {"file": "a", "position": 1, "code": 34, "feature": "clients", "answer_code": 0}
    row |= {"outcome": "answered", "asked_ns": 1, "sent_ns": 2, "answer_remark": None}
    bodies = {"before": b'{"table": "%b"}' % (b"x" * 5_000), "after": b"{}"}
    for name, body in bodies.items():
        table = pa.Table.from_pylist([row | {"answer_body": body}], schema=RESULTS)
        spark.createDataFrame(table, DDL).write.parquet(str(tmp_path / name / "results"))
    runs = (str(tmp_path / "after"), "--baseline", str(tmp_path / "before"))
    assert status_of("compare", *runs) == 3
    [line] = [one for one in capsys.readouterr().out.splitlines() if "34 body.table" in one]
    assert len(line) < 300
    assert line.endswith("... and now None (a at 1)")


def test_two_replays_do_not_write_into_one_folder(
    spark: SparkSession, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither at a time, nor one behind another: what it watched would count for the first."""
    out = tmp_path / "out"
    again = ("replay", str(tables), "--to", "127.0.0.1:1", "--out", str(out), "--watch", "1")
    with unfinished(out):
        assert status_of(*again) == 1
        assert "another 'tidegate replay' writes into" in capsys.readouterr().err
    (out / "results").mkdir()
    (out / "results" / "_SUCCESS").touch()
    assert status_of(*again) == 1
    assert "has a finished replay: use another folder" in capsys.readouterr().err
    assert not (out / WATCHED).exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--to", "127.0.0.1:2"), "with --to 127.0.0.1:1: continue it so, or use another folder"),
        (("--speed", "2"), "with --speed 1:"),
        (("--code", "310"), "with no --code:"),
        (("--without", "12"), "with --without 11 34:"),
        (("--delays", "scale"), "with --delays keep:"),
        (("--topic", "a=c"), "with --topic a=b:"),
        (("--group", "a=b"), "with no --group:"),
        (("--watch", "0"), "with --watch SECONDS:"),
        (("--from-log",), "with no --from-log:"),
    ],
)
def test_an_interrupted_replay_is_not_continued_as_another_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    said: str,
) -> None:
    """Its results would be those of two targets, or of two ways to send, and nothing would tell which are of which."""

    def no_target(address: tuple[str, int]) -> None:
        raise JobError(f"{address} was asked")

    monkeypatch.setattr("spark_jobs.replay.find_target", no_target)
    (tmp_path / "read" / "batch=00001").mkdir(parents=True)
    begun = ("--without", "34", "--without", "11", "--topic", "a=b", "--watch", "5")
    command = (*replay_of(tmp_path / "read", tmp_path), *begun)

    def tell(*flags: str) -> str:
        assert status_of(*command, *flags) == 1
        [line] = capsys.readouterr().err.splitlines()
        return line

    for nothing_sent_yet in (("--speed", "7"), ()):
        assert "was asked" in tell(*nothing_sent_yet)
    with Journal(tmp_path / "out" / JOURNAL, "part-0") as journal:
        journal.note("a.capture", 1)
    assert "was asked" in tell("--without", "11", "--watch", "6", "--rate", "9")
    assert said in tell(*flags)


def test_a_run_has_a_name_also_where_a_full_disk_left_none(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    name = run_name(tmp_path)
    assert len(name) == 16
    assert run_name(tmp_path) == name


@pytest.mark.live
@pytest.mark.parametrize(
    ("package", "words"), [("pyspark", ("ingest", ".")), ("numpy", ("report", "--profile", "p"))]
)
def test_without_the_extra_the_fix_is_told(
    tmp_path: Path, package: str, words: tuple[str, ...]
) -> None:
    """The extra `parquet` has some of its packages."""
    program = (
        f"import sys; sys.modules['{package}'] = None; from gateway.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words, "--out", str(tmp_path / "t")],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"tidegate: {package} is missing: run pip install '.[spark]' in the folder of Tidegate's source\n"
    )


def test_destructive_requests_are_sent_only_when_they_are_named(
    spark: SparkSession, tables: Path
) -> None:
    pairs = read_table(spark, tables, "pair")
    doomed = int(min(DESTRUCTIVE))
    pairs = pairs.replace(38, doomed, ["code"])
    _, plan = choose(pairs, None, without=[34])
    assert set(plan.left_out) == {doomed, 34}
    assert plan.requests + sum(plan.left_out.values()) + plan.from_servers == 381
    _, named = choose(pairs, [doomed])
    assert set(named.by_code) == {doomed}


def test_tables_of_another_version_are_told(
    spark: SparkSession, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a column missing, `verify` would judge by what is not there."""
    old = tmp_path / "old"
    shutil.copytree(tables, old)
    for file in old.glob("batch=*/messages/*.parquet"):
        pq.write_table(pq.read_table(file).drop_columns("server"), file)
    assert status_of("verify", str(old)) == 1
    assert "was written by another version of Tidegate" in capsys.readouterr().err


def replay_of(tables: Path, tmp_path: Path) -> tuple[str, ...]:
    """Return the command that sends tables again to a target that is not there."""
    return ("replay", str(tables), "--to", "127.0.0.1:1", "--out", str(tmp_path / "out"))


@pytest.mark.parametrize(("others", "told"), [(0, False), (1, True)])
# What the proxy calls a broker, and the gateway that it was started for.
@pytest.mark.parametrize("word", ["broker ", ""])
def test_it_is_told_that_several_brokers_become_one(
    spark: SparkSession,
    tables: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    others: int,
    word: str,
    *,
    told: bool,
) -> None:
    pairs = read_table(spark, tables, "pair").withColumn("server", lit(f"{word}10.0.0.1:10911"))
    # A name server is not counted as a broker.
    asked = pairs.where("code = 105").withColumn("server", lit("10.0.0.1:9876"))
    other = pairs.where("code = 310").limit(others).withColumn("server", lit("10.0.0.2:10911"))
    # Nor is the port on which old clients reach a broker.
    vip = pairs.where("code = 310").limit(1).withColumn("server", lit("broker 10.0.0.1:10909"))
    recorded = pairs.where("code != 105").union(asked).union(other).union(vip)
    changed = {"pair": recorded, "messages": read_table(spark, tables, "messages")}
    monkeypatch.setattr("spark_jobs.ingest.read_table", lambda *asked: changed[asked[-1]])
    command = replay_of(tables, tmp_path)
    assert status_of(*command, "--dry-run") == 0
    said = capsys.readouterr().out
    assert ("sent to 2 brokers, and all go to one" in said) is told
    chosen, _ = choose(recorded, None)
    assert chosen.where("server like '%:10909'").isEmpty()
    of_servers = recorded.where("not from_client and asked_ns is not null").count()
    assert of_servers > 0
    assert f"  not counted: {of_servers} requests of servers; the target sends its own" in said


def name_a_target(monkeypatch: pytest.MonkeyPatch, brokers: int = 1) -> None:
    """Let `replay` find a target without asking for it."""
    target = Target(("127.0.0.1", 1), ("127.0.0.1", 2), brokers)
    monkeypatch.setattr("spark_jobs.replay.find_target", lambda *_: target)


def send_nothing(monkeypatch: pytest.MonkeyPatch, found: Outcome, brokers: int = 1) -> None:
    """Let `replay` have this result without sending anything."""
    name_a_target(monkeypatch, brokers)
    monkeypatch.setattr("spark_jobs.replay.replay", lambda *_, **__: found)


@pytest.mark.parametrize("brokers", [1, 4])
def test_it_is_told_that_only_one_of_several_brokers_is_tested(
    spark: SparkSession,
    tables: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    brokers: int,
) -> None:
    send_nothing(monkeypatch, nothing_sent(), brokers)
    file = tmp_path / "replay.json"
    command = replay_of(tables, tmp_path)
    assert status_of(*command, "--json", str(file)) == 0
    said = "the target has 4 brokers, or workers: all requests go to the first, 127.0.0.1:2"
    assert (said in capsys.readouterr().out) is (brokers > 1)
    assert any(said in note for note in json.loads(file.read_text())["notes"]) is (brokers > 1)


def test_names_to_replace_that_no_request_has_are_told(
    spark: SparkSession, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a mistyped one, messages would go to the recorded topic."""
    delivered = read_table(spark, tables, "messages").where("event = 'delivered'").first()
    assert delivered is not None
    topic, group = delivered["topic"], delivered["group"]
    names = [f"--topic={topic}=a", "--topic=oders=b", f"--group={group}=c", "--group=biling=d"]
    command = replay_of(tables, tmp_path)
    assert status_of(*command, *names, "--dry-run") == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "of this name" in line]
    assert said == [
        "  --topic oders=...: no request has a topic of this name",
        "  --group biling=...: no request has a group of this name",
    ]


def test_codes_that_no_request_has_are_told_and_why_nothing_is_sent(
    spark: SparkSession,
    tables: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a mistyped --without, requests would be sent that must not be."""
    name_a_target(monkeypatch)
    command = replay_of(tables, tmp_path)
    assert status_of(*command, "--without", "301", "--without", "310", "--dry-run") == 0
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if "has this code" in line] == [
        "  --without 301: no request of a client has this code"
    ]
    assert [line.rpartition(" of ")[2] for line in said if "left out: " in line] == [
        "code 310 (SEND_MESSAGE_V2)"
    ]
    for flag, why in ((("--code", "301"), "all are left out"), (("--from-log",), "no commit log")):
        assert status_of(*command, *flag) == 1
        assert why in capsys.readouterr().err
    (tmp_path / f"{0:020}").write_bytes(log_bytes([("orders", b"x", "UNIQ_KEY\x01A\x02")]))
    (tmp_path / "silent.capture").write_bytes(capture_bytes([]))
    for file, why in ((f"{0:020}", "add --from-log"), ("silent.capture", "none of a client")):
        read = str(tmp_path / f"tables-{file}")
        status_of("ingest", str(tmp_path / file), "--out", read)
        assert status_of("replay", read, *command[2:]) == 1
        assert why in capsys.readouterr().err


def test_a_replay_whose_watching_is_interrupted_has_its_results(
    spark: SparkSession,
    tables: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All is sent, and for long delays the watching takes hours."""

    def interrupt(seconds: float) -> None:
        assert seconds == 7200
        raise KeyboardInterrupt

    send_nothing(monkeypatch, nothing_sent())
    monkeypatch.setattr("spark_jobs.watching.Watcher", lambda *_: nullcontext())
    monkeypatch.setattr("spark_jobs.command.time", SimpleNamespace(sleep=interrupt))
    monkeypatch.setattr(spark.sparkContext, "setLogLevel", lambda _: None)
    file = tmp_path / "replay.json"
    command = replay_of(tables, tmp_path)
    assert status_of(*command, "--watch", "7200", "--json", str(file)) == 130
    assert json.loads(file.read_text())["outcomes"] == {}
    said = capsys.readouterr().out.splitlines()
    assert said[-2].startswith("Replay: 0 requests")
    assert said[-1].startswith("watching for 7200 s more")


def test_a_replay_of_which_requests_never_left_has_found_something_wrong(
    spark: SparkSession,
    tables: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a script would go on as if all had been tested."""
    row = {"file": "a", "position": 1, "asked_ns": 1}
    rows = [
        row | {"outcome": "answered", "due_ns": 1, "sent_ns": 2},
        row | {"outcome": "not connected", "due_ns": 1},
        row | {"outcome": "sent before"},
    ]
    found = outcome(spark.createDataFrame(pa.Table.from_pylist(rows, schema=RESULTS), DDL))
    assert found.never_left == 1
    send_nothing(monkeypatch, found)
    file, report = tmp_path / "replay.json", tmp_path / "report"
    command = replay_of(tables, tmp_path)
    assert status_of(*command, "--json", str(file)) == 3
    assert "; 1 never left, as the target was not there" in capsys.readouterr().out
    assert status_of("report", "--replay", str(file), "--out", str(report)) == 0
    assert "NOT OK: 3 requests" in (report / "report.md").read_text()


def nothing_sent() -> Outcome:
    return Outcome(outcomes={}, unmapped={}, pacing_p50_ms=None, pacing_p99_ms=None, rate=0.0)


def test_verify_tells_that_a_recording_is_not_whole(
    spark: SparkSession, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recall may be among the missing requests, and a filter in the heartbeat here, which has no fields."""
    status_of("verify", str(tables))
    assert "has gaps" not in capsys.readouterr().out
    file, found = tmp_path / "a.capture", str(tmp_path / "tables")
    file.write_bytes(
        capture_bytes(
            [
                (1, 1, Kind.OPENED, b"b"),
                (2, 1, Kind.FROM_CLIENT, exchange(1)[0]),
                (3, 1, Kind.LOST, bytes(7) + b"\3"),
            ]
        )
    )
    assert status_of("ingest", str(file), "--out", found) == 0
    assert status_of("verify", found) == 0
    gaps = "3 records that the recorder lost, 1 messages unreadable"
    assert f"has gaps ({gaps})" in capsys.readouterr().out


def test_a_recording_without_any_traffic_is_told(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a mistyped port, `verify` would find nothing wrong."""
    file, tables = tmp_path / "trace.pcap", str(tmp_path / "tables")
    file.write_bytes(pcap_bytes([(10**18, packet(1, exchange(1)[0]))]))
    for _ in range(2):
        assert status_of("ingest", str(file), "--out", tables, "--port", "10991") == 1
        said = capsys.readouterr()
        assert "tables has no request, answer or message" in said.err
    assert status_of("ingest", str(file), "--out", str(tmp_path / "more"), "--port", "10911") == 0


def test_the_same_traffic_in_two_recordings_is_told(
    spark: SparkSession, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Examples are a proxy and the tap, or a file and its copy. Real clients never send the same request twice."""
    assert recorded_twice(read_table(spark, tables, "messages")) == 0
    one = RECORDED / "cpp.capture"
    copy, both, found = (tmp_path / name for name in ("copy.capture", "both", "found.json"))
    shutil.copy(one, copy)
    assert status_of("ingest", str(one), str(copy), "--out", str(both)) == 0
    accepted = "event = 'sent' and message_id is not null and answer_code = 0"
    sent = read_table(spark, tables, "messages").where(accepted)
    sends = sent.where(f"endswith(file, '{one.name}')").count()
    assert sends > 0
    status_of("verify", str(both), "--json", str(found))
    assert json.loads(found.read_text())["recorded_twice"] == sends
    assert "which messages were doubled" in capsys.readouterr().out
    sent_again = ("replay", str(both), "--to", "127.0.0.1:1", "--out", str(tmp_path / "none"))
    assert status_of(*sent_again, "--dry-run") == 0
    assert f"{sends} sends are in two recordings" in capsys.readouterr().out


def test_tasks_without_a_connection_take_nothing_of_the_rate(
    spark: SparkSession, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def note(**pacing: Any) -> None:
        given.update(pacing)
        raise InterruptedError

    pairs = read_table(spark, tables, "pair").where("from_client and asked_ns is not null")
    [one] = pairs.select("connection").limit(1).collect()
    chosen = pairs.where(pairs["connection"] == one["connection"])
    monkeypatch.setattr("spark_jobs.replay.Pacing", note)
    monkeypatch.setattr(type(spark.sparkContext), "defaultParallelism", 8)
    target = Target(("127.0.0.1", 1), ("127.0.0.1", 1))
    with pytest.raises(InterruptedError):
        replay(spark, chosen, target, tmp_path, rules=Rules("run"), rate=100.0)
    assert given["rate"] == 100.0


def test_tasks_begin_together(tmp_path: Path) -> None:
    alone = Gate(str(tmp_path / "late"), tasks=2, patience_s=0.1)
    first = alone.wait("one")
    assert alone.wait("two") == first, "who comes late begins when the others did"


@pytest.mark.live
def test_a_replay_against_a_gateway(spark: SparkSession, tables: Path, tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "data") as gateway:
        target = find_target(("127.0.0.1", gateway.port))
        chosen, plan = choose(read_table(spark, tables, "pair"), SENDS)
        runs = []
        for name in ("one", "two"):
            folder = tmp_path / name
            found = replay(
                spark, chosen, target, folder, rules=Rules(run_name(folder)), speed=0.0, lead_s=5.0
            )
            assert found.outcomes.get("answered", 0) + found.outcomes["oneway"] == plan.requests
            assert found.pacing_p99_ms is None, "as fast as possible, none is late"
            runs.append(read_results(spark, folder))
    same = compare(runs[0], runs[1], runs[1])
    assert same.is_same
    assert same.compared + same.oneway == plan.requests
    assert {"ext.msgId", "ext.transactionId"} <= {one.field for one in same.differences}


def test_what_takes_something_from_others_is_not_sent() -> None:
    taking = re.compile(
        r"DELETE|REMOVE|CLEAN|WIPE|RESET|ABORT|BULK|PAUSE_|RESUME|FORBIDDEN|\bSET_|SWITCH|"
        r"UPDATE_(USER|\w+_CONFIG)|(CREATE|UPDATE)_ACL"
    )
    found = {code for code in RequestCode if taking.search(code.name)}
    from_servers = {RequestCode.RESET_CONSUMER_CLIENT_OFFSET}
    assert found - from_servers <= DESTRUCTIVE


def test_what_a_task_fails_of_is_one_line(
    spark: SparkSession, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as a full disk: of Python, and of Java."""

    def fill(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(JobError) as failure:
        in_tasks(spark, fill, [1])
    assert str(failure.value) == "a task failed: OSError: [Errno 28] No space left on device"
    assert "in fill\n" in capsys.readouterr().err
    shutil.copytree(tables, tmp_path / "tables")
    for file in (tmp_path / "tables").glob("batch=*/messages/*.parquet"):
        file.write_bytes(b"PAR1" * 20)
    assert status_of("verify", str(tmp_path / "tables")) == 1
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tidegate:")]
    assert len(said) == 1
    assert "a task failed: " in said[0]
