"""Settings of recorded traffic, logs and the audit log."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from gateway.settings.fields import SettingsGroup, setting
from gateway.settings.values import Count, Kind, OptionalFile, Size, Switch

_CAPTURE: Final = "Recorded traffic"
_LOGS: Final = "Logs"


class RecordSettings(SettingsGroup):
    """Settings of recorded traffic, logs and the audit log."""

    capture: OptionalFile = setting(
        None,
        _CAPTURE,
        "Folder in which all traffic between clients and the gateway is recorded, for tidegate ingest. If not "
        "set, nothing is recorded. Passwords in requests of mqadmin are recorded too. Frames are left out "
        "while the disk is too slow, or has less than twice disk_reserve free.",
    )
    capture_active: Switch = setting(
        True,
        _CAPTURE,
        "Whether traffic is being recorded, if capture names a folder.",
        live=True,
    )
    capture_file_size: Size = setting(
        256 * 1024**2,
        _CAPTURE,
        "Size at which the next capture file begins. A new one also begins every hour.",
        unit="bytes",
        live=True,
        least=1024,
        most=64 * 1024**4,
    )
    capture_keep: Count = setting(
        0,
        _CAPTURE,
        "Number of capture files to keep; the oldest are removed. 0 keeps all.",
        unit="files",
        live=True,
        least=0,
        most=1_000_000,
    )
    log_level: Annotated[
        Literal["debug", "info", "warn", "error"],
        Kind("debug, info, warn or error", metavar="debug|info|warn|error"),
    ] = setting(
        "info",
        _LOGS,
        "Lowest level of events that are logged. With debug, each request is a line. 'tidegate log-level' "
        "changes it in a running gateway.",
        live=True,
    )
    log_format: Annotated[
        Literal["text", "logfmt", "json"],
        Kind("text, logfmt or json", metavar="text|logfmt|json"),
    ] = setting(
        "text",
        _LOGS,
        "Format of the log: text for people, logfmt or json for programs. In these two each event is one "
        "line, with the request that caused it.",
    )
    log_file: OptionalFile = setting(
        None, _LOGS, "File that the log is appended to. If not set, it goes to standard error."
    )
    audit: Switch = setting(
        True,
        _LOGS,
        "Whether aborts, reschedules and administrative changes are recorded in audit.jsonl in the data "
        "folder; 'tidegate audit' shows them.",
    )
    audit_file_size: Size = setting(
        64 * 1024**2,
        _LOGS,
        "Size at which audit.jsonl is renamed to audit.jsonl.1 and a new one begins.",
        unit="bytes",
        least=1024,
        most=64 * 1024**3,
    )
    audit_files: Count = setting(
        8,
        _LOGS,
        "Number of audit files to keep, including the current one; the oldest is removed.",
        unit="files",
        least=2,
        most=10_000,
    )
