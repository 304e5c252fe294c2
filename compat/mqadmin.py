"""RocketMQ's own `mqadmin` 5.5.0, with many commands in one JVM: starting one for each would take most of the time."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from compat import children
from compat.toolchain import SERVER, classpath, compile_java, java

COMMAND_LIMIT_S: Final = 60

_SOURCE: Final = Path(__file__).with_name("clients") / "java" / "mqadmin" / "Mqadmin.java"
_END: Final = "\x04"

# Without it the tool logs its own logging's set-up to standard output.
_QUIET_LOG: Final = """<configuration>
<statusListener class="org.apache.rocketmq.logging.ch.qos.logback.core.status.NopStatusListener"/>
</configuration>"""


class MqadminError(Exception):
    """The tool ended, as it does on arguments that it does not know. The text has what it printed."""


class Mqadmin:
    """A JVM that runs commands of `mqadmin`; `with` starts and ends it.

    :param namesrv: `ip:port` of the name server that the commands ask.
    :param credentials: access key and secret key of the user that it asks as.
    """

    def __init__(self, namesrv: str, credentials: tuple[str, str] | None = None) -> None:
        self._namesrv = namesrv
        self._credentials = credentials
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-mqadmin-"))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        libraries = classpath(SERVER)
        classes = compile_java([_SOURCE], libraries, "mqadmin")
        (self._folder / "rmq.logback-test.xml").write_text(_QUIET_LOG)
        if self._credentials is not None:
            (self._folder / "conf").mkdir()
            name, key = self._credentials
            tools = f"accessKey: {name}\nsecretKey: {key}\n"
            (self._folder / "conf" / "tools.yml").write_text(tools)
        paths = [str(self._folder), str(classes), *(str(path) for path in libraries)]
        self._process = children.start(
            [
                *(java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *(f"-Duser.home={self._folder}", f"-Drocketmq.home.dir={self._folder}"),
                *("-cp", os.pathsep.join(paths), "Mqadmin"),
            ],
            folder=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        assert process is not None
        process.kill()
        process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, command: str, *arguments: str) -> str:
        """What a command such as `topicStatus` prints, errors included.

        Raises MqadminError when the tool ends, or does not come to an end in a minute.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        line = "\t".join((command, "-n", self._namesrv, *arguments))
        printed: list[str] = []
        watchdog = threading.Timer(COMMAND_LIMIT_S, process.kill)
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
        raise MqadminError(f"mqadmin {command} ended: " + "\n".join(printed)[-2000:])
