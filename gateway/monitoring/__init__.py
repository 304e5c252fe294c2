"""What operators see of a running gateway: metrics, counts, log, audit log, and systemd's view (docs/monitoring.md)."""
