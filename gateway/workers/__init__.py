"""Several gateways on one machine behind one address: `workers = N` (docs/workers.md)."""
