"""Handlers of the requests, grouped by what the client is doing."""
