"""RocketMQ's own tools 5.5.0, with many calls in one JVM: a JVM for each call would take most of the time."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from compat import children
from compat.clients.driver import PATIENCE_S
from compat.toolchain.jars import SERVER, classpath
from compat.toolchain.java import compile_java, light_java
from gateway.wire.dialect import to_json

_SOURCES: Final = Path(__file__).with_name("clients") / "java"
_END: Final = "\x04"

# Without it the tool prints how its logging is set up to standard output.
_QUIET_LOG: Final = """<configuration>
<statusListener class="org.apache.rocketmq.logging.ch.qos.logback.core.status.NopStatusListener"/>
</configuration>"""


class ToolError(Exception):
    """A tool ended, as mqadmin does on unknown arguments. The text has what the tool printed."""


class JavaTool:
    """A JVM with one of the programs in `clients/java`, which answers each line of input with lines.

    `with` starts and ends it.
    """

    def __init__(self, source: Path, arguments: Sequence[str] = ()) -> None:
        self._source = source
        self._arguments = arguments
        self.folder = Path(tempfile.mkdtemp(prefix=f"tidegate-{source.stem.lower()}-"))
        """The folder where the tool reads its settings and writes its files."""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self

    def _start(self) -> None:
        libraries = classpath(SERVER)
        classes = compile_java([self._source], libraries, self._source.stem.lower())
        (self.folder / "rmq.logback-test.xml").write_text(_QUIET_LOG)
        paths = [str(self.folder), str(classes), *(str(path) for path in libraries)]
        with (self.folder / "tool.log").open("wb") as log:
            self._process = children.start(
                [
                    *light_java(self.folder),
                    f"-Drocketmq.home.dir={self.folder}",
                    *("-cp", os.pathsep.join(paths), self._source.stem, *self._arguments),
                ],
                folder=self.folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process is not None
        process.kill()
        process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ask(self, line: str) -> str:
        """Send a line and return the tool's answer.

        Raises ToolError if the tool ends, or does not finish its answer in time.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        printed: list[str] = []
        watchdog = threading.Timer(PATIENCE_S, process.kill)
        watchdog.start()
        try:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            for raw in process.stdout:
                text = raw.decode(errors="replace").rstrip("\r\n")
                if text == _END:
                    return "\n".join(printed).strip()
                printed.append(text)
        finally:
            watchdog.cancel()
        said = "\n".join((*printed, (self.folder / "tool.log").read_text(errors="replace")))
        raise ToolError(f"{self._source.stem} ended at {line!r}: " + said[-2000:])


class Mqadmin(JavaTool):
    """RocketMQ's own `mqadmin`.

    :param namesrv: `ip:port` of the name server that the commands ask.
    :param credentials: access key and secret key of the user in whose name it asks.
    """

    def __init__(self, namesrv: str, credentials: tuple[str, str] | None = None) -> None:
        super().__init__(_SOURCES / "mqadmin" / "Mqadmin.java")
        self._namesrv = namesrv
        if credentials is not None:
            (self.folder / "conf").mkdir()
            tools = f"accessKey: {credentials[0]}\nsecretKey: {credentials[1]}\n"
            (self.folder / "conf" / "tools.yml").write_text(tools)

    def run(self, command: str, *arguments: str) -> str:
        """Run a command such as `topicStatus` and return what it prints, errors included. Raises ToolError."""
        return self._ask("\t".join((command, "-n", self._namesrv, *arguments)))


class Dashboard(JavaTool):
    """The admin client, as RocketMQ's dashboard uses it.

    :param namesrv: `ip:port` of the name server that it is configured with.
    """

    def __init__(self, namesrv: str) -> None:
        super().__init__(_SOURCES / "dashboard" / "Dashboard.java", [namesrv])

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method of `MQAdminExt` and return its result as JSON types.

        If the method throws, the result is `{"refused": ...}` with the response code or the class of
        the exception. Raises ToolError, also if there is no such method: both servers would be alike.
        """
        answer = self._ask(msgspec.json.encode([method, *arguments]).decode())
        result: dict[str, Any] = msgspec.json.decode(to_json(answer.encode()))
        if "refused" in result:
            return {"refused": result["refused"]}
        if "said" in result:
            raise ToolError(result["said"])
        return result.get("done")
