"""Reads the metrics of a gateway in memory."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gateway.monitoring.metrics import Metrics
from tests.gateway.memory import MemoryGateway


def metrics_of(gateway: MemoryGateway) -> Metrics:
    """Return the metrics that a gateway's HTTP port serves."""
    service = gateway.service
    connections = service.factory.connections
    return Metrics(
        service.broker, lambda: len(connections), lambda: service.recorded, service.not_ready
    )


class Scrape:
    """The samples of one scrape of a gateway."""

    def __init__(self, gateway: MemoryGateway) -> None:
        text = b"".join(metrics_of(gateway).pieces()).decode()
        self.samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def __getitem__(self, name: str) -> float:
        """Return the one sample with this name."""
        (value,) = [sample.value for sample in self.samples if sample.name == name]
        return value

    def by(self, name: str, *labels: str) -> dict[str, float]:
        """Return the samples with this name, by some of their labels."""
        return {
            "@".join(sample.labels[label] for label in labels): sample.value
            for sample in self.samples
            if sample.name == name
        }
