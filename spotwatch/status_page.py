# SPDX-License-Identifier: Apache-2.0
"""The document behind /status and `spotwatch status`: what is watched, in force, ordered and saved.

It reads; it changes nothing, and knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spotwatch import __version__
from spotwatch.clock import Clock
from spotwatch.handshake import Status
from spotwatch.model import JSON, Step, to_rfc3339
from spotwatch.parts import Parts
from spotwatch.runner import Runner
from spotwatch.watcher import Watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusPage:
    """Makes the document.

    Args (as fields):
        parts: the ledger and the trainers.
        runner: knows the plan.
        watchers: asked anew each time, since `auto` may find a cloud later.
        clock: for `at`.
        is_dry_run: nothing is acted upon.
        settings: a digest of each section that is in force, as `digest_settings` makes them.
    """

    parts: Parts
    runner: Runner
    watchers: list[Watcher]
    clock: Clock
    is_dry_run: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, JSON]:
        """Return the document as JSON types."""
        state = self.parts.ledger.state
        at_risk = self.parts.trainers.facts()["work_at_risk_seconds"]
        return {
            "version": 1,
            "spotwatch": __version__,
            "at": to_rfc3339(self.clock.now()),
            "boot_id": self.clock.boot_id,
            "instance": state.instance,
            "runtime_dir": str(self.parts.handshake.runtime_dir),
            "dry_run": self.is_dry_run,
            "settings": dict(self.settings),
            "draining": self.parts.ledger.is_stop_in_force(),
            "providers": [_provider(watcher) for watcher in self.watchers],
            "cases": list(self._cases()),
            "plan": {"flush": _step(self.runner.plan.flush), "stop": _step(self.runner.plan.stop)},
            "orders": [
                {
                    "seq": order.seq,
                    "do": order.do.value,
                    "at": to_rfc3339(order.at),
                    "why": order.why,
                    "answer": order.answer or None,
                }
                for order in state.orders
            ],
            "targets": [target.label for target in self.parts.targets],
            "trainers": [self._trainer(status) for status in self.parts.trainers.statuses],
            "estimate_seconds": round(self.runner.estimate_seconds(), 3),
            "work_at_risk_seconds": at_risk,
        }

    def _cases(self) -> Iterable[JSON]:
        for case, view in zip(self.parts.ledger.open_cases(), self.parts.ledger.views(), strict=True):
            notice = case.notice
            yield {
                "id": notice.id,
                "provider": notice.provider,
                "signal": notice.signal,
                "kind": notice.kind.value,
                "certainty": notice.certainty.value,
                "evidence": notice.evidence.value,
                "deadline": None if view.deadline is None else to_rfc3339(view.deadline),
                "first_seen_at": to_rfc3339(case.first_seen_at),
                "phase": case.phase.value,
                "detail": notice.detail,
            }

    def _trainer(self, status: Status) -> JSON:
        saved = status.saved
        return {
            "run_id": status.run_id,
            "pid": status.pid,
            "at": to_rfc3339(status.at),
            "fresh": status.is_fresh(self.clock.now()),
            "phase": status.phase,
            "exit_code": status.exit_code,
            "step": status.step,
            "steps_per_second": status.steps_per_second,
            "saved": {
                "seq": saved.seq,
                "step": saved.step,
                "at": None if saved.at is None else to_rfc3339(saved.at),
                "url": saved.url,
                "size_bytes": saved.size_bytes,
                "stall_seconds": saved.stall_seconds,
                "save_seconds": saved.save_seconds,
            },
            "error": status.error,
        }


def _provider(watcher: Watcher) -> JSON:
    signals: list[Any] = [
        {
            "name": name,
            "state": signal.state,
            "answered_at": None if signal.answered_at is None else to_rfc3339(signal.answered_at),
            "error": signal.error,
            "mend": signal.mend,
        }
        for name, signal in watcher.signals.items()
    ]
    return {
        "name": watcher.provider.name,
        "up": all(signal["state"] in ("ok", "waiting") for signal in signals),
        "interval_seconds": watcher.provider.interval_seconds,
        "signals": signals,
    }


def _step(step: Step | None) -> JSON:
    return None if step is None else {"at": to_rfc3339(step.at), "why": step.why}
