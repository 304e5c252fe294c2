"""Shows on one machine how recorded traffic is replayed: `make demo-replay`, or `python -m compat.demo`."""
