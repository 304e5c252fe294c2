"""Starts the command `tidegate`. A Ctrl-C ends it without a traceback, also while its modules are being imported or the
interpreter shuts down."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command."""
    # If the signal is ignored at the start, as in the background of a script, it stays ignored.
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gateway.cli.main import main as run

    if heeds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    finally:
        # A gateway has its own handler, and keeps it.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
