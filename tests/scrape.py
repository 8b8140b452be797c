"""Reads metrics as Prometheus would."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from proxy.metrics import PREFIX, Metrics


def samples(text: bytes) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text.decode()):
        yield from family.samples


class Scraped:
    """One look at the metrics of a proxy."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._values = {(s.name, frozenset(s.labels.items())): s.value for s in samples(text)}

    @classmethod
    def of(cls, metrics: Metrics) -> Scraped:
        return cls(metrics.text())

    def value(self, name: str, **labels: str) -> float:
        """`name` without our prefix. A row that is not there is an error."""
        return self._values[PREFIX + name, frozenset(labels.items())]

    def changed_since(self, before: Scraped) -> set[str]:
        """The rows whose value is another, as `name{label="value"}` without our prefix, buckets left out."""
        return {
            _row(name, labels)
            for (name, labels), value in self._values.items()
            if name.startswith(PREFIX)
            and not name.endswith("_bucket")
            and value != before._values.get((name, labels))
        }


def _row(name: str, labels: frozenset[tuple[str, str]]) -> str:
    shown = ",".join(f'{key}="{value}"' for key, value in sorted(labels))
    return name.removeprefix(PREFIX) + (f"{{{shown}}}" if shown else "")
