# SPDX-License-Identifier: Apache-2.0
"""Clouds on loopback, faults included: for tests, for drills, and for people who want to see one.

    async with Emulator("aws") as cloud:
        cloud.announce(window_seconds=120)

It knows nothing of the daemon that asks; `Emulator.environment` points one here.
"""

from spotwatch.emulator._desk import Request
from spotwatch.emulator._emulator import Emulator, clouds
from spotwatch.emulator.faults import FAULTS
from spotwatch.emulator.scenarios import SCENARIOS, check_scenario, play, scenarios_of

__all__ = ["FAULTS", "SCENARIOS", "Emulator", "Request", "check_scenario", "clouds", "play", "scenarios_of"]
