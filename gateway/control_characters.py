"""How lines of the log and of the command line show control characters."""

from __future__ import annotations

from typing import Final

SHOWN: Final = {
    code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}
"""A table for `str.translate`, in a form that JSON has too. A client's ids and names may have any of these characters,
and a terminal would obey them."""
