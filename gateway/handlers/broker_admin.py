"""The broker as a whole: its settings (25, 26), its state (28, 45, 60, 907, 2003), its rates (315), and clean-up (306,
316, 329)."""

from __future__ import annotations

import shutil
import struct
from functools import partial
from typing import Any

from twisted.logger import Logger, LogLevel

from gateway.broker import Broker
from gateway.router import Call, RequestError, check_number
from gateway.settings.config import Config
from gateway.settings.loading import ConfigError
from gateway.settings.upstream import after, shown
from gateway.versions import TableVersion
from gateway.wire.admin_bodies import (
    DataVersion,
    encode_changes,
    encode_cold_data_info,
    encode_ha_status,
    encode_rates,
    encode_table,
    encode_version,
    parse_changes,
)
from gateway.wire.codes import ResponseCode
from gateway.wire.commands import VERSION
from gateway.wire.headers import ViewBrokerStats
from gateway.wire.messages import decode_message
from gateway.wire.progress_bodies import encode_delay_offsets

VERSION_SHOWN = "V5_5_0"
"""The RocketMQ release whose requests the gateway answers, as MQVersion names it; tools print it."""

CLEANED_AT_ONCE = 500
"""Messages that expire while a tool waits, some 3 ms of work; the periodic clean-up does the rest."""

MAX_CHANGES = 64 * 1024
"""Bytes of the settings in one request; all existing settings together take less than a tenth."""

_CHECKPOINT = struct.Struct(">7q")


class BrokerAdmin:
    """Answers requests about the broker as a whole."""

    log = Logger()

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._version = TableVersion(broker)

    def settings(self, call: Call) -> None:
        """Answer with all settings in force, under upstream's names (26)."""
        broker = self._broker
        version = encode_version(self._version.at(broker.clock.now_ms()))
        values = shown(broker.config, broker.advertised, broker.workers)
        call.answer({"version": version}, encode_changes(values))

    def change_settings(self, call: Call) -> None:
        """Change settings until the next start (25). If one of them cannot be changed, refuse them all."""
        broker = self._broker
        check_number("bytes of settings to change", len(call.command.body), MAX_CHANGES)
        changes = parse_changes(call.command.body)
        try:
            config = after(broker.config, changes, broker.advertised, broker.workers)
        except ConfigError as error:
            raise RequestError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if config != broker.config:
            tell = partial(
                self.log.info,
                "settings were changed by {peer} until the next start: {changes}",
                peer=call.peer.address,
                changes=", ".join(f"{name}={value}" for name, value in changes.items()),
            )
            # Who makes the log show less is shown in it too.
            tells_less = _level_of(config) > _level_of(broker.config)
            if tells_less:
                tell()
            broker.reconfigure(config)
            if not tells_less:
                tell()
        call.answer()

    def state(self, call: Call) -> None:
        """Answer with the running broker's figures by name, as text (28)."""
        call.answer(body=encode_table(self._figures()))

    def _figures(self) -> dict[str, str]:
        broker, stats, store = self._broker, self._broker.stats, self._broker.store
        now_ms = broker.clock.now_ms()
        disk = shutil.disk_usage(broker.store.environment.folder)
        disk_ratio = f"{disk.used / (disk.used + disk.free):.2f}"
        record = store.oldest_record()
        oldest = decode_message(record) if record is not None else None
        # The store has no separate log and index, and no thread pool delays requests.
        idle = {
            f"{pool}ThreadPoolQueue{figure}": "0"
            for pool in ("send", "pull", "litePull", "ack", "query")
            for figure in ("Size", "HeadWaitTimeMills")
        }
        transferred = _rates(stats.total_rates("got"))
        return idle | {
            "brokerVersionDesc": VERSION_SHOWN,
            "brokerVersion": str(VERSION),
            "brokerActive": "true",
            "bootTimestamp": str(stats.started_ms),
            "runtime": _runtime(now_ms - stats.started_ms),
            "putTps": _rates(stats.total_rates("put")),
            "getTransferredTps": transferred,
            "getTransferedTps": transferred,  # for mqadmin up to 4.9, which fails without it
            "getFoundTps": _rates(stats.total_rates("found")),
            "getMissTps": _rates(stats.total_rates("missed")),
            "getTotalTps": _rates(stats.total_rates("pulls")),
            "msgPutTotalTodayNow": str(stats.put),
            "msgPutTotalTodayMorning": str(stats.this_morning.put),
            "msgPutTotalYesterdayMorning": str(stats.yesterday_morning.put),
            "msgGetTotalTodayNow": str(stats.got),
            "msgGetTotalTodayMorning": str(stats.this_morning.got),
            "msgGetTotalYesterdayMorning": str(stats.yesterday_morning.got),
            "putMessageTimesTotal": str(stats.put),
            "earliestMessageTimeStamp": str(oldest.store_ms if oldest else -1),
            "commitLogMinOffset": str(oldest.physical_offset if oldest else store.next_sequence),
            "commitLogMaxOffset": str(store.next_sequence),
            "commitLogDiskRatio": disk_ratio,
            "consumeQueueDiskRatio": disk_ratio,
            "commitLogDirCapacity": (
                f"Total : {disk.total / 1024**3:.1f} GiB, Free : {disk.free / 1024**3:.1f} GiB."
            ),
            "pageCacheLockTimeMills": "0",
            "dispatchBehindBytes": "0",
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": str(store.pending_count()),
            "timerDequeueTps": f"{stats.total_rates('fired')[0]:.1f}",
        }

    def rates(self, call: Call) -> None:
        """Answer with the counts and rates of a statistic for the last minute, hour and day (315)."""
        fields: ViewBrokerStats = call.fields
        found = self._broker.stats.rates(fields.stats_name, fields.stats_key)
        if found is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{fields.stats_name}> <{fields.stats_key}> not exist",
            )
        spans = {"statsMinute": found.minute, "statsHour": found.hour, "statsDay": found.day}
        call.answer(body=encode_rates(spans))

    def delay_offsets(self, call: Call) -> None:
        """Answer with the offsets of the delay levels (45), of which there are none: here levels are due times."""
        call.answer(body=encode_delay_offsets(DataVersion(0, self._broker.stats.started_ms)))

    def timer_checkpoint(self, call: Call) -> None:
        """Answer with the progress of the timers (60, TimerCheckpoint): an accepted message is scheduled at once."""
        now_ms = self._broker.clock.now_ms()
        end = self._broker.store.next_sequence
        call.answer(body=_CHECKPOINT.pack(now_ms, 0, end, end, 0, now_ms, 0))

    def ha_status(self, call: Call) -> None:
        """Answer with the replicas (907), of which there are none."""
        call.answer(body=encode_ha_status(self._broker.store.next_sequence))

    def cold_data(self, call: Call) -> None:
        """Answer with the groups that are slowed down for reading old messages (2003), of which there are none."""
        call.answer(body=encode_cold_data_info())

    def clean_up(self, call: Call) -> None:
        """Remove messages past their retention and messages of deleted topics now (306, 316, 329)."""
        self._broker.clean_ups += 1
        self._broker.expire_messages(CLEANED_AT_ONCE)
        self._broker.committer.answer(call, call.encode())


def _level_of(config: Config) -> Any:
    return LogLevel.lookupByName(config.log_level)


def _rates(rates: tuple[float, float, float]) -> str:
    return " ".join(f"{rate:.2f}" for rate in rates)


def _runtime(ms: int) -> str:
    """Return a duration as DefaultMessageStore.getRuntimeInfo writes it."""
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
