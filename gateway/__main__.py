"""Begins the command `tidegate`: a Ctrl-C ends it without a word also while its source is still read in."""

from __future__ import annotations

import signal


def main() -> None:
    """Runs the command."""
    # One that was started with the signal ignored, such as in the background of a script, leaves it so.
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gateway.cli import main as run

    if heeds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
