# SPDX-License-Identifier: Apache-2.0
"""Ask one provider for ever, and hand each answer to the ledger.

A failure is counted, told once per change of state, and says nothing about the world. The loop never ends by
itself, whatever the provider does. It does not know what notices lead to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from spotwatch.clock import Clock
from spotwatch.errors import Malformed, ProviderError
from spotwatch.kept_bodies import KeptBodies
from spotwatch.ledger import Ledger
from spotwatch.model import Answer, Notice
from spotwatch.providers import Measuring, Provider

POLL_LIMIT_SECONDS = 30.0
"""A provider has time limits of its own; this one only ends a poll that ignores them."""
READY_INTERVALS = 3
READY_SLACK_SECONDS = 10.0
FAILURES_NOT_READY = 3


@dataclass(slots=True)
class SignalState:
    """What is known of one signal's health."""

    state: str = "waiting"
    """`waiting` before the first answer, else a value of the metric label `result`."""
    answered_at: datetime | None = None
    answered_monotonic: float | None = None
    failures: int = 0
    """In a row, since the last good answer."""
    error: str = ""
    mend: str = ""


class Watcher:
    """The loop around one provider.

    Args:
        provider: entered already.
        ledger: compares answers and tells everybody.
        clock: for durations.
        wake: called when something new is known, so that the runner looks at once.
        kept_bodies: where malformed answers go.
    """

    def __init__(
        self,
        provider: Provider,
        ledger: Ledger,
        clock: Clock,
        *,
        wake: Callable[[], None],
        kept_bodies: KeptBodies,
    ) -> None:
        self.provider = provider
        self._ledger = ledger
        self._clock = clock
        self._wake = wake
        self._kept_bodies = kept_bodies
        self._polling = asyncio.Lock()
        self.signals: dict[str, SignalState] = {name: SignalState() for name in provider.signals}

    async def run(self) -> None:
        """Poll and wait until cancelled."""
        while True:
            await self.poll_once()
            try:
                async with asyncio.timeout(self._limit_seconds()):
                    await self.provider.wait()
            except TimeoutError:
                # It has forgotten us; nothing is lost by asking.
                continue
            except Exception as error:  # noqa: BLE001 - the watch goes on, whatever a provider does
                self._tell_unexpected(error)
                await self._clock.sleep(self.provider.interval_seconds)
            except asyncio.CancelledError as error:
                if _are_we_cancelled():
                    raise
                self._tell_unexpected(error)
                await self._clock.sleep(self.provider.interval_seconds)

    async def poll_once(self) -> None:
        """Ask once; never raises. A call during another one waits for it, then asks again."""
        async with self._polling:
            began = self._clock.monotonic()
            try:
                async with asyncio.timeout(POLL_LIMIT_SECONDS):
                    answer = await self.provider.notices()
                self._take(_checked(answer), self._clock.monotonic() - began)
            except Exception as error:  # noqa: BLE001 - the watch goes on, whatever a provider does
                self._tell_unexpected(error)
            except asyncio.CancelledError as error:
                if _are_we_cancelled():
                    raise
                self._tell_unexpected(error)

    def not_ready(self) -> list[str]:
        """Return a reason for each signal that has been failing for too long; none means ready."""
        limit = self._limit_seconds()
        now = self._clock.monotonic()
        newest = max(
            (s.answered_monotonic for s in self.signals.values() if s.answered_monotonic is not None),
            default=None,
        )
        reasons = [
            f"{self.provider.name} {name}: {signal.error}"
            for name, signal in self.signals.items()
            if signal.failures >= FAILURES_NOT_READY
            or (signal.failures > 0 and signal.answered_monotonic is None)
        ]
        if newest is None or now - newest > limit:
            since = "yet" if newest is None else f"for {now - newest:.0f} s"
            reasons.insert(0, f"{self.provider.name}: no answer {since}")
        return reasons

    def _limit_seconds(self) -> float:
        """Return how long a provider that is well may take from one answer to the next."""
        interval = self.provider.interval_seconds
        return max(READY_INTERVALS * interval, interval + READY_SLACK_SECONDS)

    def _take(self, answer: Answer, seconds: float) -> None:
        results = ["ok"] * len(answer.answered)
        for name in answer.answered:
            signal = self.signals.setdefault(name, SignalState())
            signal.answered_at = self._clock.now()
            signal.answered_monotonic = self._clock.monotonic()
            signal.failures = 0
            self._change(name, signal, "ok", "", "")
        for name, error in answer.failed.items():
            results.append(error.result)
            self._fail(name, error)
        is_up = all(signal.state in ("ok", "waiting") for signal in self.signals.values())
        self._ledger.record(
            "polled", provider=self.provider.name, results=results, seconds=seconds, is_up=int(is_up)
        )
        has_changed = self._ledger.observe(
            self.provider.name, answer, absence_withdraws=self.provider.absence_withdraws
        )
        if has_changed:
            self._wake()
        # Last: a provider whose measuring breaks has been heard all the same.
        if isinstance(self.provider, Measuring):
            self._ledger.record(
                "measured", provider=self.provider.name, measures=dict(self.provider.measures)
            )

    def _fail(self, name: str, error: ProviderError) -> None:
        signal = self.signals.setdefault(name, SignalState())
        signal.failures += 1
        is_new = signal.state != error.result
        self._change(name, signal, error.result, str(error), error.mend)
        if is_new and isinstance(error, Malformed):
            kept = self._kept_bodies.keep(self.provider.name, name, error.body)
            if kept:
                self._ledger.record("body_kept", provider=self.provider.name, signal=name, file=kept)

    def _change(self, name: str, signal: SignalState, state: str, error: str, mend: str) -> None:
        """Take over a signal's state, and tell it once per change."""
        has_changed = signal.state != state
        signal.state, signal.error, signal.mend = state, error, mend
        if has_changed:
            self._ledger.record(
                "signal_changed",
                provider=self.provider.name,
                signal=name,
                state=state,
                error=error,
                mend=mend,
            )

    def _tell_unexpected(self, error: BaseException) -> None:
        text = f"{type(error).__name__}: {error}"
        is_new = any(signal.error != text for signal in self.signals.values()) or not self.signals
        for name, signal in self.signals.items():
            signal.failures += 1
            self._change(name, signal, "unexpected", text, "")
        self._ledger.record(
            "polled", provider=self.provider.name, results=["unexpected"], seconds=0.0, is_up=0
        )
        if is_new:
            self._ledger.record("unexpected", provider=self.provider.name, error=text, exception=error)


def _checked(answer: Answer) -> Answer:
    """Return `answer` if it is one; providers of others may hand over anything.

    Raises:
        TypeError, ValueError: it is no answer, or a moment in it is naive.
    """
    if not isinstance(answer, Answer):
        raise TypeError(f"notices() gave {type(answer).__name__}, not Answer")
    for notice in answer.notices:
        if not isinstance(notice, Notice):
            raise TypeError(f"notices() gave {type(notice).__name__} as a notice")
        for moment in (notice.deadline, notice.issued_at, notice.seen_at):
            if moment is not None and moment.tzinfo is None:
                raise ValueError(f"notice {notice.id!r} has a naive time {moment}")
    if not all(isinstance(error, ProviderError) for error in answer.failed.values()):
        raise TypeError("Answer.failed holds something that is no ProviderError")
    return answer


def _are_we_cancelled() -> bool:
    """Tell whether our own task is to end; a provider's inner task may have been cancelled as well."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
