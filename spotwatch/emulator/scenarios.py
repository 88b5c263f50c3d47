# SPDX-License-Identifier: Apache-2.0
"""Stories: announcements, withdrawals and faults over time, each by name.

A story only uses what `Emulator` offers to everybody; it knows no page and no daemon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from spotwatch.emulator._emulator import Emulator
from spotwatch.errors import ConfigError

_ALL = ("aws", "gcp", "azure", "digitalocean")
_ASKED = ("aws", "gcp", "azure")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """The emulator and the two lengths that every story is told in."""

    cloud: Emulator
    lead_seconds: float
    """From the start to the main notice."""
    window_seconds: float

    async def lead(self, share: float = 1.0) -> None:
        await asyncio.sleep(self.lead_seconds * share)

    async def window(self, share: float = 1.0) -> None:
        await asyncio.sleep(self.window_seconds * share)

    def reclaim(self, **details: Any) -> None:
        self.cloud.announce(self.window_seconds, **details)


async def _plain(stage: _Stage) -> None:
    """One reclaim notice with its whole window."""
    await stage.lead()
    stage.reclaim()
    await stage.window()


async def _rebalance_then_interrupt(stage: _Stage) -> None:
    """A rebalance recommendation first, the interruption later."""
    advice = {"aws": "rebalance", "azure": "SpotRebalanceRecommendation"}[stage.cloud.name]
    await stage.lead(0.5)
    stage.cloud.announce(stage.window_seconds + stage.lead_seconds / 2, advice)
    await stage.lead(0.5)
    stage.reclaim()
    await stage.window()


async def _withdrawn(stage: _Stage) -> None:
    """A reclaim notice that is taken back after half of its window."""
    await stage.lead()
    stage.reclaim()
    await stage.window(0.5)
    stage.cloud.withdraw()
    await stage.window(0.5)


async def _sliding_time(stage: _Stage) -> None:
    """A reclaim notice whose time moves on with every answer, or with four messages."""
    stage.cloud.fault("sliding-time")
    await stage.lead()
    if stage.cloud.name != "digitalocean":
        stage.reclaim()
        await stage.window()
        return
    for _ in range(4):
        stage.reclaim()
        await stage.window(0.25)


async def _past_time(stage: _Stage) -> None:
    """A reclaim notice whose time is an hour ago."""
    stage.cloud.fault("past-time")
    await _plain(stage)


async def _outage_then_notice(stage: _Stage) -> None:
    """The service fails in four ways, one after the other, and is back with the notice in force."""
    for name in ("hang", "refuse", "503", "reset"):
        stage.cloud.fault(name)
        await stage.lead(0.25)
        stage.cloud.heal(name)
    stage.reclaim()
    await stage.window()


async def _stop_becomes_terminate(stage: _Stage) -> None:
    """A stop that turns into a terminate after a quarter of the window, for the same time."""
    await stage.lead()
    stage.reclaim(action="stop")
    await stage.window(0.25)
    stage.cloud.announce(stage.window_seconds * 0.75, action="terminate")
    await stage.window(0.75)


async def _never_comes(stage: _Stage) -> None:
    """A reclaim notice whose time passes, and the machine lives on: AWS leaves the notice, others drop it."""
    await stage.lead()
    stage.reclaim()
    await stage.window()
    if stage.cloud.name == "gcp":
        stage.cloud.withdraw()
    await stage.window(0.5)


async def _neighbour(stage: _Stage) -> None:
    """A notice for another machine first, then our own."""
    await stage.lead(0.5)
    about: dict[str, Any] = (
        {"resources": ["spot-vmss_7"]} if stage.cloud.name == "azure" else {"droplet_id": 599999999}
    )
    stage.reclaim(**about)
    await stage.lead(0.5)
    stage.reclaim()
    await stage.window()


async def _flicker(stage: _Stage) -> None:
    """A reclaim notice that is missing from every other answer, eight answers long."""
    await stage.lead()
    stage.cloud.fault("flicker", stage.cloud.cloud.signals[0], times=8)
    stage.reclaim()
    await stage.window()


async def _token_expiry(stage: _Stage) -> None:
    """Every token expires shortly before the notice, and once more within the window."""
    await stage.lead(0.9)
    stage.cloud.fault("401", times=1)
    await stage.lead(0.1)
    stage.reclaim()
    await stage.window(0.25)
    stage.cloud.fault("401", times=1)
    await stage.window(0.75)


async def _hibernate(stage: _Stage) -> None:
    """The machine is frozen at once, its memory kept; after the window it goes on."""
    await stage.lead()
    stage.reclaim(action="hibernate")
    await stage.window()
    stage.cloud.withdraw()


async def _scheduled_maintenance(stage: _Stage) -> None:
    """Maintenance that ends the machine, announced with its time."""
    await stage.lead()
    match stage.cloud.name:
        case "aws":
            stage.cloud.announce(stage.window_seconds, "scheduled-events", code="instance-retirement")
        case "gcp":
            stage.cloud.announce(stage.window_seconds, "upcoming-maintenance")
            await stage.window(0.25)
            stage.cloud.announce(stage.window_seconds * 0.75, "maintenance-event")
        case _:
            stage.cloud.announce(stage.window_seconds, "Redeploy")
    await stage.window()


async def _live_migration(stage: _Stage) -> None:
    """Maintenance that keeps the machine's memory, over after the window."""
    await stage.lead()
    match stage.cloud.name:
        case "aws":
            stage.cloud.announce(stage.window_seconds, "scheduled-events", code="system-maintenance")
        case "gcp":
            stage.cloud.announce(
                stage.window_seconds, "maintenance-event", value="MIGRATE_ON_HOST_MAINTENANCE"
            )
        case _:
            stage.cloud.announce(stage.window_seconds, "Freeze")
    await stage.window()
    stage.cloud.withdraw()


_STORIES: Mapping[str, tuple[Callable[[_Stage], Awaitable[None]], tuple[str, ...]]] = MappingProxyType(
    {
        "plain": (_plain, _ALL),
        "rebalance-then-interrupt": (_rebalance_then_interrupt, ("aws", "azure")),
        "withdrawn": (_withdrawn, _ALL),
        "sliding-time": (_sliding_time, _ALL),
        "past-time": (_past_time, _ALL),
        "outage-then-notice": (_outage_then_notice, _ALL),
        "stop-becomes-terminate": (_stop_becomes_terminate, ("aws",)),
        "never-comes": (_never_comes, _ALL),
        "neighbour": (_neighbour, ("azure", "digitalocean")),
        "flicker": (_flicker, _ASKED),
        "token-expiry": (_token_expiry, ("aws",)),
        "hibernate": (_hibernate, ("aws",)),
        "scheduled-maintenance": (_scheduled_maintenance, _ASKED),
        "live-migration": (_live_migration, _ASKED),
    }
)

SCENARIOS: Mapping[str, str] = MappingProxyType(
    {name: (story.__doc__ or "").strip() for name, (story, _) in _STORIES.items()}
)
"""Name -> what happens, in one line."""


def scenarios_of(cloud: str) -> tuple[str, ...]:
    """Return the names of the scenarios that `cloud` can play."""
    return tuple(name for name, (_, where) in _STORIES.items() if cloud in where)


def check_scenario(scenario: str, cloud: str) -> None:
    """Refuse what `play` could not play.

    Raises:
        ConfigError: no scenario of that name, or not on this cloud.
    """
    if scenario not in _STORIES:
        raise ConfigError(f"unknown scenario {scenario!r}; have {', '.join(_STORIES)}")
    where = _STORIES[scenario][1]
    if cloud not in where:
        have = ", ".join(scenarios_of(cloud))
        raise ConfigError(f"scenario {scenario!r} is for {', '.join(where)}; {cloud} has {have}")


async def play(
    cloud: Emulator, scenario: str, *, notice_after_seconds: float = 30.0, window_seconds: float = 120.0
) -> None:
    """Play `scenario` to its end; what it announced stays in force unless the story takes it back.

    Raises:
        ConfigError: no scenario of that name, or not on this cloud.
    """
    check_scenario(scenario, cloud.name)
    story, _ = _STORIES[scenario]
    await story(_Stage(cloud=cloud, lead_seconds=notice_after_seconds, window_seconds=window_seconds))
