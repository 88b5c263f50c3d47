# SPDX-License-Identifier: Apache-2.0
"""Every metric in one place, in a registry of its own, fed by events only.

All series exist from the start; no label holds an id, a path, a host or an address; a gauge without a value
is NaN. It decides nothing and serves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, ProcessCollector
from prometheus_client.exposition import choose_encoder

from spotwatch import __version__
from spotwatch.cases import Phase
from spotwatch.handshake import PHASES
from spotwatch.model import Do, Event, Kind

NAN = float("nan")
RESULTS = ("ok", "unavailable", "denied", "malformed", "not_here", "unexpected")
OUTCOMES = ("durable", "acknowledged", "missed", "withdrawn", "survived")
ACTIONS = ("handshake", "signal", "hook", "announce", "release", "start")
OPEN_PHASES = tuple(phase for phase in Phase if phase is not Phase.CLOSED)
FAILURES = ("stage", "upload", "verify", "store", "other")
WEBHOOK_RESULTS = (
    "accepted", "duplicate", "not_mine", "unsigned", "malformed", "replayed", "full", "bad_method", "slow",
    "too_large", "encoded", "limited", "aborted", "failed", "pending", "refused", "ignored", "unproven",
    "other",
)  # fmt: skip
QUICK = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30)
SLOW = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 7200)


class Metrics:
    """The metrics of one daemon.

    Args:
        providers: names of the providers watched; the values of the label `provider`.
        receivers: names of those that take webhooks.
    """

    def __init__(self, providers: Sequence[str], receivers: Sequence[str] = ()) -> None:
        self.registry = CollectorRegistry()
        self._providers: tuple[str, ...] = ()
        self.renders = 0
        """How often somebody has looked."""
        self._make_provider_metrics()
        self._make_order_metrics()
        self._make_trainer_metrics()
        self._create_series(providers, receivers)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the exposition in the format that an Accept header asks for, and its content type."""
        encoder, content_type = choose_encoder(accept)
        self.renders += 1
        return encoder(_WithoutCreated(self.registry)), content_type

    def on_event(self, event: Event) -> None:
        """Count one event."""
        handler = self._handlers.get(event.name)
        if handler is not None:
            handler(event, event.data)

    def _make_provider_metrics(self) -> None:
        make = _Maker(self.registry)
        make.gauge("build_info", "The version that runs; always 1.", ["version"]).labels(__version__).set(1)
        self.up = make.gauge(
            "provider_up", "Whether every signal of the provider answered when last asked.", _P
        )
        self.polls = make.counter(
            "provider_polls", "Questions asked of a signal, by result.", [*_P, "result"]
        )
        self.poll_seconds = make.histogram(
            "provider_poll_duration_seconds", "Time that one poll of a provider took.", QUICK, _P
        )
        self.last_success = make.gauge(
            "provider_last_success_timestamp_seconds", "When the provider last gave a good answer.", _P
        )
        self.webhooks = make.counter(
            "webhook_requests", "Requests to the webhook listener, by result.", [*_P, "result"]
        )
        self.heartbeat_age = make.gauge(
            "mailbox_heartbeat_age_seconds", "Age of the relay's last sign of life in the mailbox."
        )
        self.clock_synced = make.gauge(
            "clock_synced", "Whether the machine's clock is set right, as far as signed notices are taken."
        )

    def _make_order_metrics(self) -> None:
        make = _Maker(self.registry)
        self.notices = make.counter("notices", "Notices seen for the first time.", [*_P, "kind"])
        self.active = make.gauge("notice_active", "Notices in force.", [*_P, "kind"])
        self.open_cases = make.gauge(
            "open_cases", "Cases in force, by how far they are: stopped means answered.", ["phase"]
        )
        self.deadline = make.gauge(
            "notice_deadline_timestamp_seconds", "The earliest deadline of the notices in force."
        )
        self.orders = make.counter("orders", "Orders given to the trainer.", ["do"])
        self.actions = make.counter("actions", "Actions carried out, by result.", ["action", "result"])
        self.action_seconds = make.histogram(
            "action_duration_seconds", "Time that an action took.", QUICK, ["action"]
        )
        self.to_order = make.histogram(
            "notice_to_order_seconds", "From first sight of a notice to its first order.", QUICK
        )
        self.to_saved = make.histogram(
            "notice_to_saved_seconds", "From first sight of a notice to the answer to its last step.", SLOW
        )
        self.cases = make.counter("cases", "How cases came out; one may come out twice.", ["outcome"])
        self.journal_errors = make.counter(
            "journal_errors", "Journal rows that could not be written in time."
        )

    def _make_trainer_metrics(self) -> None:
        make = _Maker(self.registry)
        self.trainer_up = make.gauge("trainer_up", "Whether a trainer reports, at most 15 s ago.")
        self.phase = make.gauge(
            "trainer_phase", "1 for what the trainer last said that it does, 0 for all else.", ["phase"]
        )
        self.step = make.gauge("trainer_step", "The step that the trainer is at.")
        self.rate = make.gauge("trainer_steps_per_second", "The trainer's speed.")
        self.saved_step = make.gauge("checkpoint_step", "The step of the last durable checkpoint.")
        self.saved_at = make.gauge(
            "checkpoint_last_saved_timestamp_seconds", "When the last checkpoint became durable."
        )
        self.stall = make.gauge("checkpoint_stall_seconds", "How long the last save held up training.")
        self.save_seconds = make.gauge(
            "checkpoint_save_seconds", "How long the last save took until durable."
        )
        self.estimate = make.gauge(
            "save_estimate_seconds", "How long the next save is expected to take, as the plan counts it."
        )
        self.size = make.gauge("checkpoint_size_bytes", "Size of the last checkpoint.")
        self.failures = make.counter("checkpoint_failures", "Saves that failed, by reason.", ["reason"])
        self.at_risk = make.gauge(
            "work_at_risk_seconds", "Training time that would be lost if the machine vanished now."
        )
        for gauge in (
            self.heartbeat_age, self.clock_synced, self.deadline, self.step, self.rate, self.saved_step,
            self.saved_at, self.stall, self.save_seconds, self.estimate, self.size, self.at_risk,
        ):  # fmt: skip
            gauge.set(NAN)
        self.trainer_up.set(0)

    def add_process(self) -> None:
        """Show also what this process takes of its machine: the usual `process_*` series."""
        ProcessCollector(registry=self.registry)

    def add_provider(self, provider: str) -> None:
        """Create the series of a provider that is watched from now on."""
        self._providers = (*self._providers, provider)
        self.up.labels(provider).set(NAN)
        self.last_success.labels(provider).set(NAN)
        self.poll_seconds.labels(provider)
        for result in RESULTS:
            self.polls.labels(provider, result)
        for kind in Kind:
            self.notices.labels(provider, kind)
            self.active.labels(provider, kind).set(0)

    def _create_series(self, providers: Sequence[str], receivers: Sequence[str]) -> None:
        for provider in providers:
            self.add_provider(provider)
        for receiver in receivers:
            for result in WEBHOOK_RESULTS:
                self.webhooks.labels(receiver, result)
        self._create_fixed_series()
        self._handlers: Mapping[str, Callable[[Event, Mapping[str, Any]], None]] = {
            "polled": self._on_polled,
            "measured": self._on_measured,
            "noticed": lambda e, d: self.notices.labels(e.provider, d["kind"]).inc(),
            "notice_stale": lambda e, d: self.notices.labels(e.provider, d["kind"]).inc(),
            "ordered": self._on_ordered,
            "acted": self._on_acted,
            "answered": self._on_answered,
            "missed": lambda _e, _d: self.cases.labels("missed").inc(),
            "withdrawn": lambda _e, _d: self.cases.labels("withdrawn").inc(),
            "survived": lambda _e, _d: self.cases.labels("survived").inc(),
            "watched": self._on_watched,
            "save_failed": self._on_save_failed,
            "webhook": self._on_webhook,
            "journal_error": lambda _e, _d: self.journal_errors.inc(),
        }

    def _create_fixed_series(self) -> None:
        for do in Do:
            self.orders.labels(do)
        for action in ACTIONS:
            self.action_seconds.labels(action)
            for result in ("ok", "failed"):
                self.actions.labels(action, result)
        for step in OPEN_PHASES:
            self.open_cases.labels(step).set(0)
        for phase in sorted(PHASES):
            self.phase.labels(phase).set(0)
        for outcome in OUTCOMES:
            self.cases.labels(outcome)
        for reason in FAILURES:
            self.failures.labels(reason)

    def _on_polled(self, event: Event, data: Mapping[str, Any]) -> None:
        for result in data["results"]:
            self.polls.labels(event.provider, result if result in RESULTS else "unexpected").inc()
        self.poll_seconds.labels(event.provider).observe(data["seconds"])
        if data["results"]:
            self.up.labels(event.provider).set(data["is_up"])
        if "ok" in data["results"]:
            self.last_success.labels(event.provider).set(event.at.timestamp())

    def _on_measured(self, event: Event, data: Mapping[str, Any]) -> None:
        del event
        for gauge, name in (
            (self.heartbeat_age, "mailbox_heartbeat_age_seconds"),
            (self.clock_synced, "clock_synced"),
        ):
            if name in data["measures"]:
                gauge.set(data["measures"][name])

    def _on_ordered(self, event: Event, data: Mapping[str, Any]) -> None:
        del event
        self.orders.labels(data["do"]).inc()

    def _on_acted(self, event: Event, data: Mapping[str, Any]) -> None:
        del event
        self.actions.labels(data["action"], data["result"]).inc()
        self.action_seconds.labels(data["action"]).observe(data["seconds"])
        for seconds in data.get("notice_to_order_seconds", ()):
            self.to_order.observe(seconds)

    def _on_answered(self, event: Event, data: Mapping[str, Any]) -> None:
        del event
        for seconds in data["notice_to_saved_seconds"]:
            self.to_saved.observe(seconds)
            self.cases.labels(data["answer"]).inc()

    def _on_save_failed(self, event: Event, data: Mapping[str, Any]) -> None:
        del event
        reason = data["reason"]
        self.failures.labels(reason if reason in FAILURES else "other").inc()

    def _on_webhook(self, event: Event, data: Mapping[str, Any]) -> None:
        result = data["result"]
        self.webhooks.labels(event.provider, result if result in WEBHOOK_RESULTS else "other").inc()

    def _on_watched(self, event: Event, data: Mapping[str, Any]) -> None:
        """Take over what is true at the end of one tick of the runner."""
        del event
        active: Mapping[tuple[str, str], int] = data["active"]
        for provider in self._providers:
            for kind in Kind:
                self.active.labels(provider, kind).set(active.get((provider, kind), 0))
        for step in OPEN_PHASES:
            self.open_cases.labels(step).set(data["phases"].get(step, 0))
        for phase in PHASES:
            self.phase.labels(phase).set(phase == data["phase"])
        for gauge, name in (
            (self.deadline, "deadline"),
            (self.step, "step"),
            (self.rate, "steps_per_second"),
            (self.saved_step, "saved_step"),
            (self.saved_at, "saved_at"),
            (self.stall, "stall_seconds"),
            (self.save_seconds, "save_seconds"),
            (self.estimate, "estimate_seconds"),
            (self.size, "size_bytes"),
            (self.at_risk, "work_at_risk_seconds"),
        ):
            value = data[name]
            gauge.set(NAN if value is None else value)
        self.trainer_up.set(data["is_trainer_up"])


_P = ["provider"]


class _WithoutCreated(CollectorRegistry):
    """A registry as seen without its `_created` series: they double the size and tell nothing here."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._inner = registry

    def collect(self) -> Iterable[Metric]:
        """Return the families, each without the moment of its creation."""
        for family in self._inner.collect():
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            yield family


class _Maker:
    """Makes metrics under our prefix in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(f"spotwatch_{name}", text, labels, registry=self._registry)

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"spotwatch_{name}", text, labels, registry=self._registry)

    def histogram(
        self, name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = ()
    ) -> Histogram:
        return Histogram(f"spotwatch_{name}", text, labels, buckets=buckets, registry=self._registry)
