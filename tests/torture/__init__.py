"""All faults at once, under load, for minutes; a ledger shows what became of each message."""
