"""Bytes to and from clients: connections, their limits, TLS, and recordings of the traffic."""
