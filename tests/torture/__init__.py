"""Everything goes wrong at once, under load, for minutes; a ledger tells what became of each message."""
