"""What is written down: traffic, events, changes."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from gateway.setting_values import Count, Kind, OptionalFile, Size, Switch
from gateway.settings.fields import SettingsGroup, setting

_CAPTURE: Final = "Recorded traffic"
_LOGS: Final = "Logs"


class RecordSettings(SettingsGroup):
    """What is written down: traffic, events, changes."""

    capture: OptionalFile = setting(
        None,
        _CAPTURE,
        "Folder that everything clients and the gateway say to each other is recorded in, for "
        "tidegate ingest. When left out: nothing is. Passwords in requests of mqadmin are recorded too. "
        "While the disk has less than twice disk_reserve free, or is too slow, frames are left out.",
    )
    capture_active: Switch = setting(
        True,
        _CAPTURE,
        "Whether traffic is recorded now, where capture names a folder.",
        live=True,
    )
    capture_file_size: Size = setting(
        256 * 1024**2,
        _CAPTURE,
        "Size past which the next capture file begins; it also does after an hour.",
        unit="bytes",
        live=True,
        least=1024,
        most=64 * 1024**4,
    )
    capture_keep: Count = setting(
        0,
        _CAPTURE,
        "Capture files that are kept; the oldest are removed. 0 keeps all.",
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
        "The least important events that are logged. With debug each request is a line. "
        "'tidegate log-level' changes it.",
        live=True,
    )
    log_format: Annotated[
        Literal["text", "logfmt", "json"],
        Kind("text, logfmt or json", metavar="text|logfmt|json"),
    ] = setting(
        "text",
        _LOGS,
        "How events are written: text for people, logfmt or json for programs, where each is one line with "
        "the request that it came of.",
    )
    log_file: OptionalFile = setting(
        None, _LOGS, "File that the log is appended to. When left out: standard error."
    )
    audit: Switch = setting(
        True,
        _LOGS,
        "Whether aborts, reschedules and changes by administrators are noted in audit.jsonl in the "
        "data folder; 'tidegate audit' shows them.",
    )
    audit_file_size: Size = setting(
        64 * 1024**2,
        _LOGS,
        "When that file is this large it is put aside as audit.jsonl.1, and a new one begun.",
        unit="bytes",
        least=1024,
        most=64 * 1024**3,
    )
    audit_files: Count = setting(
        8,
        _LOGS,
        "Such files that are kept; the oldest one goes.",
        unit="files",
        least=2,
        most=10_000,
    )
