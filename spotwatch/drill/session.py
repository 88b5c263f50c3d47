# SPDX-License-Identifier: Apache-2.0
"""One drill: the clouds in turn, the uninterrupted run beside them, and nothing left of it afterwards.

How a single reclaim goes is in `reclaim`, what counts as a pass in `verdict`.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spotwatch.drill.machine import Machine, wait_until
from spotwatch.drill.plan import Plan
from spotwatch.drill.reclaim import rehearse
from spotwatch.drill.scene import Scene
from spotwatch.drill.timeline import Timeline
from spotwatch.drill.verdict import Outcome, problems
from spotwatch.errors import SpotwatchError

CONTROL = "control"
_AT_A_TIME = 2
"""More would keep each other waiting for a core just when an order is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """What is to be rehearsed."""

    clouds: Sequence[str]
    plan: Plan
    store_url: str = ""
    """Where checkpoints go, each run below a name of its own; empty: a scratch directory."""
    command: tuple[str, ...] = ()
    """The user's trainer; empty: ours."""
    notice_after_seconds: float = 10.0
    limit_seconds: float = 600.0
    by_mail: bool = False
    """Where the cloud announces by mail, its mail arrives whole and signed, and is proven and read."""


async def run_drill(drill: Drill, timeline: Timeline) -> tuple[list[Outcome], Path | None]:
    """Rehearse every cloud and return what was seen, and where the logs are kept if something went wrong.

    Whatever ends it, all processes that it started are killed and all that it made is removed, but the logs.

    Raises:
        ConfigError: the store's URL means no store; nothing was started.
    """
    folder = Path(tempfile.mkdtemp(prefix="spotwatch-drill-"))
    scene = Scene(
        folder=folder,
        tag=uuid.uuid4().hex[:8],
        store_url=drill.store_url or str(folder / "store"),
        plan=drill.plan,
        timeline=timeline,
        command=drill.command,
        notice_after_seconds=drill.notice_after_seconds,
        limit_seconds=drill.limit_seconds,
        by_mail=drill.by_mail,
    )
    keeps_logs = False
    try:
        scene.logs.mkdir()
        names = [*drill.clouds, *(() if scene.is_own else (CONTROL,))]
        for name in names:
            scene.store(name)
        try:
            outcomes = await _play(drill, scene)
        finally:
            for name in names:
                if left := scene.remove_checkpoints(name):
                    timeline.line(left)
        keeps_logs = any(problems(outcome) for outcome in outcomes)
    finally:
        _tidy(folder, keeps_logs=keeps_logs)
    return outcomes, scene.logs if keeps_logs else None


async def _play(drill: Drill, scene: Scene) -> list[Outcome]:
    turn = asyncio.Semaphore(_AT_A_TIME)

    async def in_turn(cloud: str) -> Outcome:
        async with turn:
            return await rehearse(cloud, scene)

    async with asyncio.TaskGroup() as tasks:
        control = None if scene.is_own else tasks.create_task(_run_control(scene))
        clouds = [tasks.create_task(in_turn(cloud)) for cloud in drill.clouds]
    outcomes = [task.result() for task in clouds]
    if control is not None:
        _compare(outcomes, scene, control.result())
    return outcomes


async def _run_control(scene: Scene) -> str:
    """Run the trainer once without interruption, and return what went wrong, if anything did."""
    scene.timeline.begin(CONTROL)
    scene.timeline.event(CONTROL, "the same trainer, uninterrupted")
    environment = scene.trainer_environment(CONTROL)
    machine = Machine(scene.folder / CONTROL, scene.logs, CONTROL, environment)
    try:
        trainer = await machine.start_trainer(scene.trainer_command(CONTROL), {}, machine.folder)
        await wait_until(lambda: trainer.returncode is not None, scene.limit_seconds, "the run to finish")
    except SpotwatchError as error:
        return f"the uninterrupted run: {error}"
    finally:
        await machine.destroy()
    scene.timeline.event(CONTROL, f"finished with {trainer.returncode}")
    return f"the uninterrupted run ended with {trainer.returncode}" if trainer.returncode else ""


def _compare(outcomes: Sequence[Outcome], scene: Scene, trouble: str) -> None:
    """Compare the final tensors of each cloud's run with those of the uninterrupted one."""
    wanted = scene.digest(CONTROL)
    for outcome in outcomes:
        if trouble:
            outcome.troubles.append(trouble)
        found = scene.digest(outcome.cloud)
        if found is None or wanted is None:
            which = "the uninterrupted run" if wanted is None else "the replacement"
            outcome.unknown.setdefault("bit_identical", f"{which} did not get to its final tensors")
        else:
            outcome.bit_identical = found == wanted


def _tidy(folder: Path, *, keeps_logs: bool) -> None:
    if not keeps_logs:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.iterdir():
        if path.name != "logs":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
