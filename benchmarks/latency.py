# SPDX-License-Identifier: Apache-2.0
"""How long a cloud's notice takes to become an order: p50 and p99 in seconds, for each cloud.

The daemon is a process of its own and the cloud the emulator; a notice is announced at a random moment, timed
until `order.json` holds its order, and withdrawn again. No trainer takes part, so nothing of it is measured.

    python benchmarks/latency.py                 200 notices a cloud, a quarter of an hour
    python benchmarks/latency.py --notices 20
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spotwatch import handshake
from spotwatch.drill import interval_seconds
from spotwatch.drill.cloud import emulated
from spotwatch.drill.machine import Machine
from spotwatch.emulator import Emulator, clouds
from spotwatch.model import Do

_LOOK_SECONDS = 0.002
_LIMIT_SECONDS = 120.0
_WINDOW_SECONDS = 120.0
_DAEMONS = 2
"""For each cloud, each with an emulator of its own; they wait most of the time."""


async def wait(condition: Callable[[], bool], what: str) -> float:
    """Return the moment (monotonic) at which `condition` was found to hold."""
    give_up_at = time.monotonic() + _LIMIT_SECONDS
    while not condition():
        if time.monotonic() > give_up_at:
            raise SystemExit(f"not within {_LIMIT_SECONDS:g} s: {what}")
        await asyncio.sleep(_LOOK_SECONDS)
    return time.monotonic()


def is_settled(cloud: Emulator) -> bool:
    """Tell whether the daemon has found its pace again after the last withdrawal.

    On Google Cloud it asks every second after a change, before it leaves a request hanging.
    """
    if cloud.name != "gcp":
        return True
    return any(r.page == "preempted" and "wait_for_change" in r.path and not r.status for r in cloud.requests)


async def measure(name: str, lane: int, notices: int, folder: Path) -> list[float]:
    """Return how long each notice took on one daemon, in seconds."""
    machine = Machine(folder / f"{name}-{lane}", folder, f"{name}-{lane}", {})
    chance = random.Random(f"{name}-{lane}")
    seconds: list[float] = []

    def does(*wanted: Do) -> bool:
        order = handshake.read_order(machine.runtime_dir)
        return (Do.NONE if order is None else order.do) in wanted

    try:
        async with emulated(name, machine.folder / "whsec") as (cloud, environment):
            await machine.start_daemon(name, environment)
            await wait(lambda: bool(cloud.requests), f"{name} is asked")
            for _ in range(notices):
                await wait(lambda: is_settled(cloud), f"{name} is watched as it is for hours")
                await asyncio.sleep(1 + chance.random())
                announced_at = time.monotonic()
                cloud.announce(_WINDOW_SECONDS)
                seconds.append(
                    await wait(lambda: does(Do.FLUSH, Do.STOP), f"an order on {name}") - announced_at
                )
                cloud.withdraw()
                await wait(lambda: does(Do.NONE), f"{name}'s notice is lifted")
    finally:
        await machine.destroy()
    return seconds


def figures(name: str, seconds: list[float]) -> Mapping[str, Any]:
    """Return what is worth knowing of one cloud."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {
        "interval_seconds": interval_seconds(name),
        "notices": len(seconds),
        "p50_seconds": round(cuts[49], 4),
        "p99_seconds": round(cuts[98], 4),
        "max_seconds": round(max(seconds), 4),
    }


async def main() -> None:
    """Measure all clouds side by side, each with a daemon of its own, and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--notices", type=int, default=200)
    parser.add_argument("--cloud", action="append", choices=clouds())
    args = parser.parse_args()
    names = args.cloud or clouds()
    with tempfile.TemporaryDirectory(prefix="spotwatch-bench-") as folder:
        async with asyncio.TaskGroup() as tasks:
            running = {
                name: [
                    tasks.create_task(measure(name, lane, args.notices // _DAEMONS, Path(folder)))
                    for lane in range(_DAEMONS)
                ]
                for name in names
            }
    found = {name: figures(name, [s for t in lanes for s in t.result()]) for name, lanes in running.items()}
    about = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "resolution_seconds": _LOOK_SECONDS,
    }
    print(json.dumps({"notice_to_order": found, **about}, indent=2))


if __name__ == "__main__":
    asyncio.run(main())
