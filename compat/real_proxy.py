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
from compat.ports import free_port
from compat.toolchain.jars import PROXY, classpath
from compat.toolchain.java import light_java
from gateway.client import ClientError, RemotingClient
from gateway.wire.codes import RequestCode

_REMOTING_DISTANCE: Final = 1
_START_LIMIT_S: Final = 300


class RealProxyError(Exception):
    """The Proxy did not start. The text has the end of what it printed."""


class RealProxy:
    """A Proxy in cluster mode, with its settings and logs in a scratch folder; `with` starts and ends it.

    :param namesrv: `ip:port` of the name server of its cluster, which must serve when the Proxy starts.
    :param settings: more settings for `rmq-proxy.json`.
    """

    def __init__(self, namesrv: str, settings: Mapping[str, object] | None = None) -> None:
        self._port = free_port(_REMOTING_DISTANCE)
        self._settings = {
            "proxyMode": "CLUSTER",
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": namesrv,
            "grpcServerPort": self._port,
            "remotingListenPort": self._port + _REMOTING_DISTANCE,
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
            self._process = self._start()
            until(self._answers, "an answer of the Proxy", _START_LIMIT_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        file = self._folder / "rmq-proxy.json"
        file.write_text(json.dumps(self._settings))
        paths = os.pathsep.join(str(path) for path in classpath(PROXY))
        with self._output.open("wb") as output:
            return children.start(
                [
                    *(*light_java(self._folder), "-cp", paths),
                    *("org.apache.rocketmq.proxy.ProxyStartup", "-pc", file),
                ],
                folder=self._folder,
                environment={"RMQ_PROXY_HOME": str(self._folder)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def _output(self) -> Path:
        return self._folder / "proxy.out"

    def _answers(self) -> bool:
        """Whether the Proxy serves: its remoting port, which is asked here, opens after its gRPC port."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise RealProxyError(
                f"the real Proxy did not start: {self._output.read_text(errors='replace')[-2000:]}"
            )
        port = self._port + _REMOTING_DISTANCE
        try:
            with RemotingClient("127.0.0.1", port, timeout=5) as client:
                client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        except ClientError:
            return False
        return True

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()  # it has no data to save
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
