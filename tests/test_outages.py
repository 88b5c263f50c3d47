# SPDX-License-Identifier: Apache-2.0
"""Sixty polls of each fault of each cloud, then a notice: alive, counted, told once, and the order at once.

The providers, watcher, ledger, runner and metrics are the daemon's own; the cloud is the emulator.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spotwatch import handshake
from spotwatch.actions.handshake import HandshakeAction
from spotwatch.delivery import Parts
from spotwatch.emulator import Emulator
from spotwatch.journal import MemoryJournal
from spotwatch.kept_bodies import KeptBodies
from spotwatch.ledger import Ledger
from spotwatch.metrics import Metrics
from spotwatch.model import Event
from spotwatch.policy import Policy
from spotwatch.providers import Context, Provider, load
from spotwatch.runner import Runner
from spotwatch.telling import Tellers
from spotwatch.testing import FakeClock
from spotwatch.trainers import Trainers
from spotwatch.watcher import Watcher
from tests.quiet import in_quiet_time

POLLS = 60
MAIN = {"aws": "instance-action", "gcp": "preempted", "azure": "scheduled-events"}
SILENT = frozenset({"hang", "slow-body"})
"""Faults that only a time limit ends: a short one, so that AWS's older path is not due again meanwhile. It
shows the notice too."""
# What sixty polls of a fault are counted as; a 404 is an answer, except where it hides the signal.
RESULTS = {
    "hang": "unavailable", "refuse": "unavailable", "reset": "unavailable", "403": "denied",
    "429": "unavailable", "500": "unavailable", "503": "unavailable", "slow-body": "unavailable",
    "truncated": "unavailable", "empty": "malformed", "html": "malformed", "10-mb": "malformed",
    "wrong-type": "malformed", "redirect": "malformed",
}  # fmt: skip
# AWS says "none" by 404, whose body nobody reads: these need a notice to be a fault at all.
NEEDS_A_BODY = {("aws", "slow-body"), ("aws", "truncated")}


@dataclass(slots=True)
class Rig:
    """The parts of a daemon around one cloud."""

    cloud: Emulator
    watcher: Watcher
    file: Watcher
    runner: Runner
    metrics: Metrics
    events: list[Event]
    folder: Path

    def count(self, result: str) -> float:
        """Return what `spotwatch_provider_polls_total` says for the cloud."""
        labels = {"provider": self.cloud.name, "result": result}
        value = self.metrics.registry.get_sample_value("spotwatch_provider_polls_total", labels)
        assert value is not None
        return value

    def told(self, signal: str, state: str) -> int:
        """Return how often a change of this signal to this state was told."""
        return sum(
            event.name == "signal_changed" and event.data["signal"] == signal and event.data["state"] == state
            for event in self.events
        )


@asynccontextmanager
async def rig(name: str, folder: Path, timeout_seconds: float = 1.0) -> AsyncIterator[Rig]:
    """Put the parts together."""
    limits = {"timeout_seconds": timeout_seconds}
    if name == "azure":
        limits["first_timeout_seconds"] = timeout_seconds
    clock = FakeClock()
    ledger = Ledger(clock)
    events: list[Event] = []
    ledger.subscribe(events.append)
    metrics = Metrics([name, "file"])
    ledger.subscribe(metrics.on_event)
    for part in (handshake.STATUS_DIR, handshake.NOTICES_DIR):
        (folder / part).mkdir()
    async with AsyncExitStack() as stack:
        cloud = await stack.enter_async_context(Emulator(name, clock=clock))
        context = Context(clock=clock, runtime_dir=folder)
        runner = Runner(
            Parts(
                ledger=ledger,
                policy=Policy(),
                clock=clock,
                journal=MemoryJournal(),
                handshake=HandshakeAction(folder, handshake.FLAG, boot_id=clock.boot_id, owner=lambda: None),
                trainers=Trainers(folder, owners=lambda: {os.geteuid()}, ledger=ledger, clock=clock),
                tellers=Tellers([], ledger=ledger, clock=clock),
            )
        )

        async def watch(provider_name: str, **settings: Any) -> Watcher:
            kind = load(provider_name)
            provider: Provider = kind(kind.config_class(**settings), context)
            await stack.enter_async_context(provider)
            return Watcher(provider, ledger, clock, wake=runner.wake, kept_bodies=KeptBodies(folder))

        watcher = await watch(name, endpoint=cloud.base_url, **limits)
        file = await watch("file")
        yield Rig(cloud, watcher, file, runner, metrics, events, folder)


async def settle(rigged: Rig, is_settled: Callable[[], bool]) -> None:
    """Poll until the provider knows who and where it is."""
    for _ in range(100):
        await rigged.watcher.poll_once()
        if is_settled():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the provider never gave a good answer")


@pytest.mark.parametrize("fault", RESULTS)
@pytest.mark.parametrize("name", MAIN)
@in_quiet_time
async def test_an_outage_and_then_a_notice(tmp_path: Path, name: str, fault: str) -> None:
    """Counted under its reason, one line for each change, the rest goes on, the order at the first poll."""
    async with rig(name, tmp_path, 0.05 if fault in SILENT else 1.0) as rigged:
        signal = MAIN[name]
        await settle(rigged, lambda: rigged.told(signal, "ok") > 0)
        rigged.cloud.fault(fault, signal=None if fault == "refuse" else signal)
        if (name, fault) in NEEDS_A_BODY:
            rigged.cloud.announce(window_seconds=120)
        before = rigged.count(RESULTS[fault])
        for _ in range(POLLS):
            await rigged.watcher.poll_once()
        assert rigged.count(RESULTS[fault]) - before >= POLLS
        assert rigged.told(signal, RESULTS[fault]) == 1
        assert rigged.told(signal, "ok") == 1
        assert rigged.watcher.not_ready()
        kept = [event for event in rigged.events if event.name == "body_kept"]
        assert len(kept) <= 1
        await rigged.file.poll_once()
        assert rigged.file.signals["notices"].state == "ok"
        await rigged.runner.tick()
        assert not (tmp_path / handshake.ORDER).exists(), "an outage is no notice"
        rigged.cloud.announce(window_seconds=120)
        await rigged.watcher.poll_once()
        await rigged.runner.tick()
        assert not (tmp_path / handshake.ORDER).exists(), "nothing is seen through an outage"
        rigged.cloud.heal()
        await rigged.watcher.poll_once()
        await rigged.runner.tick()
        order = handshake.read_order(tmp_path)
        assert order is not None
        assert order.provider == name
        assert rigged.told(signal, "ok") == 2


@pytest.mark.parametrize("fault", ["sliding-time", "flicker", "duplicate", "clock-skew"])
@pytest.mark.parametrize("name", MAIN)
@in_quiet_time
async def test_a_strange_notice_is_one_case(tmp_path: Path, name: str, fault: str) -> None:
    """A sliding time, a flicker, a doubled event, a wrong clock: one case, one order for it."""
    async with rig(name, tmp_path) as rigged:
        signal = MAIN[name]
        await settle(rigged, lambda: rigged.told(signal, "ok") > 0)
        rigged.cloud.fault(fault)
        rigged.cloud.announce(window_seconds=120)
        for _ in range(POLLS):
            await rigged.watcher.poll_once()
            await rigged.runner.tick()
        assert sum(event.name == "noticed" for event in rigged.events) == 1
        ordered = [str(event.data["do"]) for event in rigged.events if event.name == "ordered"]
        assert ordered in (["flush"], ["stop"], ["flush", "stop"])


@in_quiet_time
async def test_a_neighbours_event_is_not_ours(tmp_path: Path) -> None:
    """Azure tells everybody of everybody."""
    async with rig("azure", tmp_path) as rigged:
        await settle(rigged, lambda: rigged.told("scheduled-events", "ok") > 0)
        rigged.cloud.fault("neighbour")
        rigged.cloud.announce(window_seconds=120)
        for _ in range(POLLS):
            await rigged.watcher.poll_once()
            await rigged.runner.tick()
        assert not any(event.name == "noticed" for event in rigged.events)


@in_quiet_time
async def test_tokens_that_expire(tmp_path: Path) -> None:
    """AWS: each token dies after a use; not one poll is lost."""
    async with rig("aws", tmp_path) as rigged:
        await settle(rigged, lambda: rigged.told("instance-action", "ok") > 0)
        for _ in range(POLLS):
            rigged.cloud.fault("401", signal="instance-action", times=1)
            await rigged.watcher.poll_once()
        assert rigged.count("denied") == 0
        assert rigged.told("instance-action", "ok") == 1
