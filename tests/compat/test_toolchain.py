"""What the toolchain uses, and what it does when something is wrong."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from compat.toolchain.__main__ import main
from compat.toolchain.cpp import without_crash
from compat.toolchain.folder import ToolchainError, install, make_folder
from compat.toolchain.go import go_client, has_go_client, installed_go
from compat.toolchain.jars import ROOTS, Jar, locked_jars
from compat.toolchain.java import installed_java, java, java_version, light_java


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the project's tools."""
    folder = tmp_path / "tools"
    monkeypatch.setattr("compat.toolchain.folder.TOOLS", folder)
    return folder


def fake_java(folder: Path, version: str) -> Path:
    """Make a Java home whose `bin/java` reports this version, and return that file."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020' >&2\n")
    executable.chmod(0o755)
    return executable


@pytest.mark.parametrize(
    ("told", "version"), [("1.8.0_402", 8), ("11.0.2", 11), ("17", 17), ("25-ea", 25)]
)
def test_reads_a_java_version(tmp_path: Path, told: str, version: int) -> None:
    assert java_version(fake_java(tmp_path, told)) == version


def test_a_java_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path / "nothing") is None


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, path = fake_java(tmp_path / "home", "17.0.1"), fake_java(tmp_path / "path", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{path.parent}:/bin")
    assert installed_java() == home


@pytest.mark.parametrize("version", ["1.8.0_402", "25.0.1"])
def test_an_unsuitable_java_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    home, path = fake_java(tmp_path / "home", version), fake_java(tmp_path / "path", "11.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home.parent.parent))
    monkeypatch.setenv("PATH", f"{path.parent}:/bin")
    assert installed_java() == path


def test_a_java_that_is_too_old_for_spark_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, path = fake_java(tmp_path / "home", "11.0.1"), fake_java(tmp_path / "path", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home.parent.parent))
    monkeypatch.setenv("PATH", f"{path.parent}:/bin")
    assert java.__wrapped__(17) == path


def test_the_runtime_itself_says_nothing_on_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There it would be among the answers of a program."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xlog:os=info")
    done = subprocess.run([*light_java(tmp_path), "-version"], capture_output=True, check=True)
    assert done.stdout == b""


@pytest.mark.parametrize("name", ROOTS)
def test_the_lock_names_each_jar_of_a_class_path_once(name: str) -> None:
    jars = locked_jars(name)
    assert jars
    assert len({jar.file_name for jar in jars}) == len(jars)
    assert all(len(bytes.fromhex(jar.sha256)) == hashlib.sha256().digest_size for jar in jars)


def test_one_file_name_has_one_checksum_in_the_whole_lock() -> None:
    jars = {jar for name in ROOTS for jar in locked_jars(name)}
    assert len({jar.file_name for jar in jars}) == len(jars)


def test_a_name_that_is_not_in_the_lock() -> None:
    with pytest.raises(KeyError):
        locked_jars("client-1.0")


def test_a_jar_is_named_as_in_a_repository() -> None:
    jar = Jar("io.netty", "netty-transport-native-epoll", "4.1.65.Final", "linux-x86_64", "")
    assert jar.file_name == "netty-transport-native-epoll-4.1.65.Final-linux-x86_64.jar"
    assert str(jar) == "io.netty:netty-transport-native-epoll:4.1.65.Final:linux-x86_64"


@pytest.mark.parametrize(
    ("version", "is_here"),
    [("go1.26.8", True), ("go1.22", True), ("go1.21.13", False), ("devel", False), ("", False)],
)
def test_takes_a_go_that_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_here: bool
) -> None:
    executable = tmp_path / "go"
    executable.write_text(f"#!/bin/sh\necho '{version}'\n")
    executable.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    installed_go.cache_clear()
    try:
        assert has_go_client() == is_here
        if not is_here:
            with pytest.raises(ToolchainError, match=r"^there is no Go of version 1\.22"):
                go_client()
    finally:
        installed_go.cache_clear()


def test_a_folder_is_made_once_for_each_stamp(tools: Path) -> None:
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "content").write_text(f"{len(made)}")

    for stamp in ("a", "a", "b"):
        folder = make_folder("thing", stamp, make)
    assert len(made) == 2
    assert folder == tools / "thing"
    assert (folder / "content").read_text() == "2"


def test_an_interrupted_folder_is_not_taken_for_whole(tools: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_folder("thing", "a", fail)
    assert not (tools / "thing").exists()
    folder = make_folder("thing", "a", lambda folder: (folder / "whole").touch())
    assert sorted(path.name for path in folder.iterdir()) == [".stamp", "whole"]


def test_a_python_program_can_be_the_first_that_is_run(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr("compat.toolchain.__main__.TOOLS", tools)
    monkeypatch.setattr("compat.toolchain.__main__.cpp_client", lambda: tmp_path / "client")
    monkeypatch.setattr(os, "execve", lambda _file, command, _environment: started.append(command))
    assert main(["run-python", "order.py", "-v"]) == 0
    assert started == [[sys.executable, "order.py", "-v"]]
    assert (tools / "home").is_dir()


def test_what_cannot_be_read_or_written_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("compat.toolchain.__main__.classpath", lambda _name: [])
    assert main(["run-java", str(tmp_path / "Order.java")]) == 1
    said = f"toolchain: [Errno 2] No such file or directory: '{tmp_path / 'Order.java'}'\n"
    assert capsys.readouterr().err == said


def test_a_package_that_cannot_be_had_is_one_line(tools: Path, tmp_path: Path) -> None:
    assert not tools.exists()
    with pytest.raises(ToolchainError, match=r"^pip cannot install [^\n]+$"):
        install(f"{tmp_path}/no-such-package.whl", tmp_path / "target", ["0" * 64])


def test_a_package_that_is_not_the_known_one_is_refused(tmp_path: Path) -> None:
    wheel, target = tmp_path / "thing-1.0-py3-none-any.whl", tmp_path / "target"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("thing.py", "")
        file.writestr(
            "thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n"
        )
        file.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr("thing-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(ToolchainError, match="as it was published: Got *" + digest):
        install(str(wheel), target, ["0" * 64])
    assert not (target / "thing.py").exists()
    install(str(wheel), target, ["0" * 64, digest])
    assert (target / "thing.py").exists()


def test_a_library_that_is_not_the_known_one_is_refused() -> None:
    with pytest.raises(ToolchainError, match="not the expected one"):
        without_crash(b"\x7fELF" + bytes(2_000_000))
