"""RocketMQ's own Proxy 5.5.0 on loopback, which gives clients of the gRPC protocol access to a cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from compat import children
from compat.clients.driver import until
from compat.ports import TAKEN, PortTakenError, free_port, start_on_free_ports
from compat.toolchain.jars import PROXY, classpath
from compat.toolchain.java import light_java

_REMOTING_DISTANCE: Final = 1
_START_LIMIT_S: Final = 300
_STARTED: Final = "rocketmq-proxy startup successfully"
"""What it prints last at its start (ProxyStartup.java)."""


class RealProxyError(Exception):
    """The Proxy did not start. The text has the end of what it printed."""


class _PortTakenError(RealProxyError, PortTakenError):
    """It found one of its ports taken."""


class RealProxy:
    """A Proxy in cluster mode, with its settings and logs in a scratch folder; `with` starts and ends it.

    Its ports are free ones, and others if another process takes one before the Proxy does.

    :param namesrv: `ip:port` of the name server of its cluster, which must serve when the Proxy starts.
    :param settings: more settings for `rmq-proxy.json`.
    """

    def __init__(self, namesrv: str, settings: Mapping[str, object] | None = None) -> None:
        self._port = free_port(_REMOTING_DISTANCE)
        self._settings: dict[str, object] = {
            "proxyMode": "CLUSTER",
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": namesrv,
            "localServeAddr": "127.0.0.1",
            **(settings or {}),
        }
        self._folder = Path(tempfile.mkdtemp(prefix="tidegate-proxy-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The address for clients of the gRPC protocol."""
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        try:
            start_on_free_ports(self._start, self._move)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _move(self) -> None:
        self._port = free_port(_REMOTING_DISTANCE)

    def _start(self) -> None:
        file = self._folder / "rmq-proxy.json"
        ports = {
            "grpcServerPort": self._port,
            "remotingListenPort": self._port + _REMOTING_DISTANCE,
        }
        file.write_text(json.dumps({**self._settings, **ports}))
        paths = os.pathsep.join(str(path) for path in classpath(PROXY))
        with self._output.open("wb") as output:
            self._process = children.start(
                [
                    *(*light_java(self._folder), "-cp", paths),
                    *("org.apache.rocketmq.proxy.ProxyStartup", "-pc", file),
                ],
                folder=self._folder,
                environment={"RMQ_PROXY_HOME": str(self._folder)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        until(self._has_started, "the start of the Proxy", _START_LIMIT_S)

    @property
    def _output(self) -> Path:
        return self._folder / "proxy.out"

    def _has_started(self) -> bool:
        """Whether the Proxy says that it serves. An answer on its port may be that of another process."""
        assert self._process is not None
        has_ended = self._process.poll() is not None
        said = self._output.read_text(errors="replace")
        if has_ended:
            kind = _PortTakenError if TAKEN in said else RealProxyError
            raise kind(f"the real Proxy did not start: {said[-2000:]}")
        return _STARTED in said

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()  # it has no data to save
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
