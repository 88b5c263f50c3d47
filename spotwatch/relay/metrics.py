# SPDX-License-Identifier: Apache-2.0
"""The relay's metrics, in a registry of their own: what came, what was written, what waits, who is known.

All series exist from the start; no label holds an id, a name, an address or a path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.exposition import choose_encoder

from spotwatch import __version__
from spotwatch.errors import ProviderError
from spotwatch.mail.mailbox import Letter, LetterEvent
from spotwatch.metrics import NAN, WEBHOOK_RESULTS
from spotwatch.model import Evidence

NOTICES = "json"
"""The label of signed notices, which no service of mail brings."""
NOBODY = "none"
"""The label of requests that no service was shown."""
_FAILURES = ("unavailable", "denied", "malformed")


class RelayMetrics:
    """The metrics of one relay.

    Args:
        services: names of those that are configured.
    """

    def __init__(self, services: Sequence[str]) -> None:
        self.registry = _WithoutCreated()
        self._services = frozenset((*services, NOTICES))
        made = Gauge(
            "spotwatch_build_info", "The version that runs; always 1.", ["version"], registry=self.registry
        )
        made.labels(__version__).set(1)
        self._requests = self._counter(
            "requests", "Requests to the webhook listener, by service and result.", "service", "result"
        )
        self._letters = self._counter("letters", "Letters that reached the mailbox.", "event", "evidence")
        self._failures = self._counter(
            "mailbox_errors", "Writes that the mailbox refused, by reason.", "reason"
        )
        self.outbox = self._gauge("outbox_letters", "Letters that are not in the mailbox yet.")
        self.heartbeat_at = self._gauge(
            "heartbeat_timestamp_seconds", "When the last sign of life reached the mailbox."
        )
        self.droplets = self._gauge("droplets", "Droplets that a mail may be about.")
        self.fleet_at = self._gauge("fleet_timestamp_seconds", "When the API last gave the list of Droplets.")
        self.asks_api = self._gauge(
            "asks_api", "Whether the list of Droplets comes from the API: 1 with a token, 0 without."
        )
        self.clock_synced = self._gauge(
            "clock_synced", "Whether the relay's clock is set right; NaN where nobody says."
        )
        for service in (*self._services, NOBODY):
            for result in WEBHOOK_RESULTS:
                self._requests.labels(service, result)
        for event in get_args(LetterEvent):
            for evidence in Evidence:
                self._letters.labels(event, evidence)
        for reason in _FAILURES:
            self._failures.labels(reason)
        self.outbox.set(0)
        self.droplets.set(0)
        self.asks_api.set(0)
        for gauge in (self.heartbeat_at, self.fleet_at, self.clock_synced):
            gauge.set(NAN)

    def count_request(self, service: str, result: str) -> None:
        """Count one request; what is not foreseen counts as none and other."""
        known = service if service in self._services else NOBODY
        self._requests.labels(known, result if result in WEBHOOK_RESULTS else "other").inc()

    def count_letter(self, letter: Letter) -> None:
        """Count one letter that has reached the mailbox."""
        self._letters.labels(letter.event, letter.evidence).inc()

    def count_failure(self, error: ProviderError) -> None:
        """Count one write that failed."""
        self._failures.labels(error.result if error.result in _FAILURES else "unavailable").inc()

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the exposition in the format that an Accept header asks for, and its content type."""
        encoder, content_type = choose_encoder(accept)
        return encoder(self.registry), content_type

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"spotwatch_relay_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"spotwatch_relay_{name}", text, registry=self.registry)


class _WithoutCreated(CollectorRegistry):
    """A registry without `_created` series: they double the size and tell nothing here."""

    def collect(self) -> Iterable[Metric]:
        """Return the families, each without the moment of its creation."""
        for family in super().collect():
            family.samples = [one for one in family.samples if not one.name.endswith("_created")]
            yield family
