"""A real RocketMQ 5.5.0 name server and broker on loopback, to compare the gateway with."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal, Self

from compat import children
from compat.ports import TAKEN, PortTakenError, free_port, start_on_free_ports
from compat.toolchain.jars import SERVER, classpath
from compat.toolchain.java import java, light_java
from gateway.client import ClientError, RemotingClient
from gateway.wire.addresses import VIP_CHANNEL_DISTANCE
from gateway.wire.codes import RequestCode, ResponseCode

Flush = Literal["async", "sync"]

_FLUSH_TYPES: Final = {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"}
PATIENT: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *(
                "waitTimeMillsInSendQueue",
                "waitTimeMillsInPullQueue",
                "waitTimeMillsInLitePullQueue",
            ),
            *("waitTimeMillsInHeartbeatQueue", "waitTimeMillsInTransactionQueue"),
            *("waitTimeMillsInAckQueue", "waitTimeMillsInAdminBrokerQueue"),
            *("osPageCacheBusyTimeOutMills", "putMessageTimeout", "syncFlushTimeout"),
        ),
        "120000",
    ),
    "transactionMetricFlushInterval": "500",
    "transactionOpBatchInterval": "1000000000",
    "transactionOpMsgMaxSize": "1",
    "timerFlushIntervalMs": "60000",
}
"""Settings, times in milliseconds, with which the broker does not refuse requests on a busy machine, and does not keep
it busy. By default it answers a request that has waited too long with "system busy" (BrokerFastFailure). Three of its
threads take much CPU while nothing is asked of it:

- Until its first interval of 10 s is over, TransactionMetricsFlushService does nothing but look at the clock.
- TransactionalOpBatchService writes what was decided about transactions when 3 s have passed, or 4 KiB are together.
  Once the last write is 3 s old, it never waits again. With these values each decision is written at once, and only
  the next one wakes it.
- TimerFlushService compares all 39 MB of the timers' wheel with its file each second.
"""

_FIRST_TOPIC: Final = "TBW102"
"""The topic that a broker registers as the template of topics that the first send creates."""

_HA_DISTANCE: Final = 1
_NAMESRV_DISTANCE: Final = 2

_START_LIMIT_S: Final = 300
_STARTED: Final = "The Name Server boot success"
"""What the name server prints last at its start (NamesrvStartup.java)."""
_STOP_LIMIT_S: Final = 120

# Internals of Java 17 that the broker needs for its direct buffers.
_OPENED: Final = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)


class RealBrokerError(Exception):
    """The broker or the name server did not start. The text has the end of what it printed."""


class _PortTakenError(RealBrokerError, PortTakenError):
    """One of them found its port taken."""


class RealBroker:
    """A name server and a broker with their data in one folder; `with` starts and stops them.

    With `flush` "async" a send is answered before it is on disk, with "sync" after. `heap` is a JVM
    size. A `light` JVM starts fast. One that is not takes its whole heap at the start and compiles
    with optimizations, as that of a measured broker should. A `folder` that is given is kept, and
    the broker continues from the data in it; without one, a scratch folder is made and removed. The
    ports are free ones. They change at the start if another process has taken one. The broker also
    uses the port one above its own, on every interface, and the port two below.

    `advertised_host` is the address that clients are given. The servers listen on 127.0.0.1. With
    another loopback address, a recorder that listens there on the same ports is between them and the
    clients. `settings` are more lines for the broker's file.
    """

    def __init__(
        self,
        *,
        flush: Flush = "async",
        heap: str = "512m",
        light: bool = True,
        folder: Path | None = None,
        advertised_host: str = "127.0.0.1",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.port = self._free_port()
        self.advertised_host = advertised_host
        self._flush = flush
        self._heap = heap
        self._is_light = light
        self._settings = dict(settings or {})
        self._is_scratch = folder is None
        self._folder = folder or Path(tempfile.mkdtemp(prefix="tidegate-broker-"))
        self._namesrv: subprocess.Popen[bytes] | None = None
        self._broker: subprocess.Popen[bytes] | None = None

    @property
    def namesrv_port(self) -> int:
        """The name server's port."""
        return self.port + _NAMESRV_DISTANCE

    @property
    def address(self) -> str:
        """The broker's address as clients are given it."""
        return f"{self.advertised_host}:{self.port}"

    @property
    def namesrv_address(self) -> str:
        """The name server's address as clients are configured with it."""
        return f"{self.advertised_host}:{self.namesrv_port}"

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the running processes: the broker's first, then the name server's."""
        return tuple(process.pid for process in (self._broker, self._namesrv) if process)

    @property
    def folder(self) -> Path:
        """The folder with the data, settings and logs of both."""
        return self._folder

    @property
    def output(self) -> Path:
        """The file with what the broker prints."""
        return self._output("broker")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @staticmethod
    def _free_port() -> int:
        return free_port(-VIP_CHANNEL_DISTANCE, _HA_DISTANCE, _NAMESRV_DISTANCE)

    def start(self) -> None:
        """Start both and return when clients can find the broker. Raises RealBrokerError."""
        try:
            start_on_free_ports(self._start, self._move)
        except BaseException:
            self.stop()
            raise

    def _move(self) -> None:
        self._end()
        self.port = self._free_port()

    def _start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._namesrv = self._launch(
            "namesrv",
            "org.apache.rocketmq.namesrv.NamesrvStartup",
            {"listenPort": str(self.namesrv_port), "bindAddress": "127.0.0.1"},
            heap="128m",
        )
        # A broker that finds no name server tries again only after ten seconds.
        self._wait_until(self._namesrv_has_started)
        self._broker = self._launch(
            "broker",
            "org.apache.rocketmq.broker.BrokerStartup",
            {
                "brokerClusterName": "DefaultCluster",
                "brokerName": "broker-a",
                "brokerId": "0",
                "brokerIP1": self.advertised_host,
                "bindAddress": "127.0.0.1",
                "listenPort": str(self.port),
                "haListenPort": str(self.port + _HA_DISTANCE),
                "namesrvAddr": f"127.0.0.1:{self.namesrv_port}",
                "storePathRootDir": str(self._folder / "store"),
                "flushDiskType": _FLUSH_TYPES[self._flush],
                "autoCreateTopicEnable": "true",
                "timerWheelEnable": "true",
                "recallMessageEnable": "true",
                "enablePropertyFilter": "true",
                **self._settings,
            },
            heap=self._heap,
        )
        self._wait_until(self._broker_is_found)

    def stop(self) -> None:
        """Stop both if they run, and remove a scratch folder."""
        self._end()
        if self._is_scratch:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self) -> None:
        for process in (self._broker, self._namesrv):
            if process and self._is_scratch:
                process.kill()  # an orderly end would store data that nobody wants
                process.wait()
            elif process:
                children.stop(process, _STOP_LIMIT_S)
        self._broker = self._namesrv = None

    def _launch(
        self, name: str, main_class: str, settings: Mapping[str, str], heap: str
    ) -> subprocess.Popen[bytes]:
        file = self._folder / f"{name}.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        paths = os.pathsep.join(str(path) for path in classpath(SERVER))
        begin = (
            light_java(self._folder, heap)
            if self._is_light
            else [str(java()), f"-Xms{heap}", f"-Xmx{heap}", f"-Duser.home={self._folder}"]
        )
        with self._output(name).open("wb") as output:
            return children.start(
                [*begin, *_OPENED, "-cp", paths, main_class, "-c", file],
                folder=self._folder,
                environment={"ROCKETMQ_HOME": str(self._folder)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def _output(self, name: str) -> Path:
        return self._folder / f"{name}.out"

    def _wait_until(self, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        while not is_ready():
            for name, process in (("namesrv", self._namesrv), ("broker", self._broker)):
                if process and (process.poll() is not None or time.monotonic() > deadline):
                    raise self._failure(name)
            time.sleep(0.1)

    def _failure(self, name: str) -> RealBrokerError:
        said = self._output(name).read_text(errors="replace")
        kind = _PortTakenError if TAKEN in said else RealBrokerError
        return kind(f"the real {name} did not start: {said[-2000:]}")

    def _namesrv_has_started(self) -> bool:
        """Whether the name server says that it serves. An answer on its port may be that of another process."""
        return _STARTED in self._output("namesrv").read_text(errors="replace")

    def _broker_is_found(self) -> bool:
        client = RemotingClient("127.0.0.1", self.namesrv_port, timeout=5)
        try:
            route = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": _FIRST_TOPIC})
        except ClientError:
            return False
        finally:
            client.close()
        return route.code == ResponseCode.SUCCESS
