"""Messages that have not fired, for any caller: found, aborted, rescheduled, paused, one or many."""
