"""A gateway that cannot start prints one clear line, and nothing that arrives by the network harms another client."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.wire.codes import RequestCode, ResponseCode
from tests.live.process import LIMIT_S, GatewayProcess, killed
from tests.storage.folder import change_table

pytestmark = pytest.mark.live


AT_A_LIMIT = """
import errno, os, sys
from twisted.internet import epollreactor

class Epoll:
    left = {left}

    def __init__(self, _):
        pass

    def register(self, *_):
        if not Epoll.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        Epoll.left -= 1

epollreactor.epoll = Epoll
from gateway.cli.main import main
main()
"""
"""A gateway on a machine that lets it watch only so many files."""


def refused(*flags: str, program: tuple[str, str] = ("-m", "gateway"), **environment: str) -> str:
    """Return the one line that `tidegate serve` prints when it does not start."""
    done = subprocess.run(
        [sys.executable, *program, "serve", *flags],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode not in (0, None)
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_a_port_in_use(own_gateway: GatewayProcess, tmp_path: Path) -> None:
    line = refused("--data", str(tmp_path / "other"), "--listen", own_gateway.address)
    assert "cannot listen" in line
    assert own_gateway.address in line


def test_a_data_folder_in_use(own_gateway: GatewayProcess) -> None:
    line = refused("--data", str(own_gateway.data), "--listen", "127.0.0.1:0")
    assert f"in use by process {own_gateway.pid}" in line


def test_a_folder_that_cannot_be_written() -> None:
    line = refused("--data", "/proc/self/data", "--listen", "127.0.0.1:0")  # not even by root
    assert "cannot write to the data folder /proc/self/data" in line


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("no folder")
    line = refused("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    assert str(tmp_path / "data") in line


def test_a_data_folder_of_another_version(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with GatewayProcess(data) as gateway:
        gateway.terminate()
    change_table(data, "meta", lambda txn, meta: txn.put(b"format", b"999", db=meta))
    assert "format 999" in refused("--data", str(data), "--listen", "127.0.0.1:0")


def test_a_wrong_setting(tmp_path: Path) -> None:
    line = refused("--data", str(tmp_path), TIDEGATE_FLUSH="sometimes")
    assert "flush" in line
    assert "sometimes" in line


@pytest.mark.parametrize("setting", ["tls_certificate", "initial_user_file", "http_token_file"])
def test_files_that_no_worker_could_start_with(tmp_path: Path, setting: str) -> None:
    flags = ("--data", str(tmp_path), "--listen", "127.0.0.1:0", "--workers", "2")
    line = refused(*flags, "--" + setting.replace("_", "-"), str(tmp_path / "missing"))
    assert f"cannot read {setting}" in line
    assert "No such file" in line


def test_several_workers_and_no_user(tmp_path: Path) -> None:
    flags = ("--data", str(tmp_path), "--listen", "127.0.0.1:0", "--workers", "2")
    assert "there is no user in" in refused(*flags, "--authentication")


def start_with_hangups(tmp_path: Path, handled: signal.Handlers) -> GatewayProcess:
    """Start a gateway by a process that handles SIGHUP like this: the tests themselves may run under nohup."""
    before = signal.signal(signal.SIGHUP, handled)
    gateway = GatewayProcess(tmp_path / "data")
    try:
        gateway.start()
    finally:
        signal.signal(signal.SIGHUP, before)
    return gateway


def test_a_terminal_that_is_closed_stops_it_in_good_order(tmp_path: Path) -> None:
    gateway = start_with_hangups(tmp_path, signal.SIG_DFL)
    os.kill(gateway.pid, signal.SIGHUP)
    assert gateway.ended() == 0


def test_one_started_by_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    gateway = start_with_hangups(tmp_path, signal.SIG_IGN)
    os.kill(gateway.pid, signal.SIGHUP)
    with gateway.client() as client:
        assert client.ask(RequestCode.GET_ALL_TOPIC_LIST).code == ResponseCode.SUCCESS
    assert gateway.terminate() == 0


def test_garbage_closes_its_own_connection_only(own_gateway: GatewayProcess) -> None:
    with own_gateway.client() as client:
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0\0\0\x08\0\0\0\x04nope"):
            with socket.create_connection(("127.0.0.1", own_gateway.port), LIMIT_S) as connection:
                connection.sendall(garbage)
                assert connection.recv(100) == b""
        assert client.ask(RequestCode.GET_ALL_TOPIC_LIST).code == ResponseCode.SUCCESS
        unknown = client.ask(9_999)
        assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert unknown.remark == " request type 9999 not supported"


def test_huge_frames_that_never_end_do_not_fill_memory(tmp_path: Path) -> None:
    flags = ("--max-unfinished-bytes", "32MiB")
    with GatewayProcess(tmp_path / "data", *flags) as gateway, gateway.client() as client:
        connections = [
            socket.create_connection(("127.0.0.1", gateway.port), LIMIT_S) for _ in range(8)
        ]
        try:
            for connection in connections:
                try:
                    connection.sendall(b"\x00\xff\xff\xf0" + bytes(12 << 20))
                except OSError:
                    continue
            assert client.ask(RequestCode.GET_ALL_TOPIC_LIST).code == ResponseCode.SUCCESS
            assert resident_bytes(gateway.pid) < 250 << 20
        finally:
            for connection in connections:
                connection.close()


def resident_bytes(pid: int) -> int:
    """Return the anonymous memory of a process: what it holds beside the page cache."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("kind", ["-S", "-H"])
def test_few_open_files(tmp_path: Path, kind: str) -> None:
    """The gateway raises its own limit as far as it may. If that is too little, it asks the operator for more."""
    command = [sys.executable, "-m", "gateway", "serve", "--listen", "127.0.0.1:0"]
    limited = f'ulimit -S -n 16 && ulimit {kind} -n 16 && exec "$@"'
    started = subprocess.Popen(
        ["sh", "-c", limited, "sh", *command, "--data", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with killed(started) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if kind == "-S":
            assert process.stdout.readline().startswith(b"listening on")
            process.terminate()
            assert process.wait(LIMIT_S) == 0
        else:
            told = process.stderr.read()
            assert told.startswith(b"tidegate: this process may have 16 open files")
            assert told.count(b"\n") == 1
            assert process.wait(LIMIT_S) == 1


@pytest.mark.parametrize(("left", "what"), [(0, "watch connections"), (1, "listen on 127.0.0.1:0")])
def test_few_watched_files(tmp_path: Path, left: int, what: str) -> None:
    flags = ("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    line = refused(*flags, program=("-c", AT_A_LIMIT.replace("{left}", str(left))))
    assert line.startswith(f"tidegate: cannot {what}: No space left on device; let this user watch")
    with GatewayProcess(tmp_path / "data"):
        """Nothing of that start keeps the next one from serving."""


def test_the_line_at_start_names_the_data_folder(tmp_path: Path) -> None:
    """Also to someone who reads it in the log later, and elsewhere than where the gateway was started."""
    command = [sys.executable, "-m", "gateway", "serve", "--listen", "127.0.0.1:0", "--data"]
    started = subprocess.Popen([*command, "data"], cwd=tmp_path, stdout=subprocess.PIPE)
    with killed(started) as process:
        assert process.stdout is not None
        assert process.stdout.readline().decode().endswith(f", data in {tmp_path / 'data'}\n")


def test_it_may_have_more_files_open_than_shells_let_it(tmp_path: Path) -> None:
    """Each connection is an open file."""
    gateway = GatewayProcess(tmp_path / "data")
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most // 2, most))
    try:
        with gateway:
            assert resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))


def test_it_serves_where_standard_output_is_on_a_full_disk(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gateway", "serve", "--listen", "127.0.0.1:0"]
    with Path("/dev/full").open("wb") as full:
        process = subprocess.Popen(
            [*command, "--data", str(tmp_path / "data")], stdout=full, stderr=subprocess.PIPE
        )
    with killed(process):
        assert process.stderr is not None
        line = process.stderr.readline()
        assert b"cannot write 'listening on 127.0.0.1:" in line, line
        process.terminate()
        assert process.wait(LIMIT_S) == 0


def test_a_named_pipe_as_log_file_that_nobody_reads(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    flags = ("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    line = refused(*flags, "--log-file", str(tmp_path / "log"))
    assert f"cannot write log_file = {tmp_path}/log: it is a pipe that nobody reads" in line


@pytest.mark.parametrize("name", ["redo.log", "copy/data.mdb", "link/audit.jsonl"])
def test_the_log_is_not_written_into_the_stores_files(tmp_path: Path, name: str) -> None:
    file = tmp_path / "data" / name
    if name.startswith("link/"):
        (tmp_path / "data").mkdir()
        file.parent.symlink_to(tmp_path / "data")
    else:
        file.parent.mkdir(parents=True)
        file.write_bytes(b"stored")
    flags = ("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    line = refused(*flags, "--log-file", str(file))
    assert f"log_file = {file} is a file of the data folder itself: set it to another" in line
    assert not file.exists() or file.read_bytes() == b"stored"


def test_nothing_takes_the_place_of_a_standard_error_that_is_closed(tmp_path: Path) -> None:
    """Its descriptor must not be reused: what is written to standard error would go to a file of the data, or to the
    reactor's own pipe."""
    command = [sys.executable, "-m", "gateway", "serve", "--listen", "127.0.0.1:0"]
    started = subprocess.Popen(
        ["sh", "-c", 'exec "$@" 2>&-', "sh", *command, "--data", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
    )
    with killed(started) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"listening on")
        assert Path(f"/proc/{process.pid}/fd/2").readlink() == Path(os.devnull)
        process.terminate()
        assert process.wait(LIMIT_S) == 0
