# SPDX-License-Identifier: Apache-2.0
"""One rank that plays scenes of agreement with the others; run by `launch.py`.

`ranks_run.py OUT SCENE...`: each rank writes what it saw in each scene to OUT.RANK as JSON. Where a scene
ends the process, its file says what came before.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from spotwatch.errors import SpotwatchError
from spotwatch.train.ranks import agreement, ranks
from spotwatch.train.ranks.ranks import Ranks, open_world
from spotwatch.train.world import Wish

WHO = ("stop", "flush", "due", "busy", "fatal")


def told(wish: Wish) -> list[str]:
    """Return what is wished, in words."""
    return [name for name in WHO if getattr(wish, name)]


def loop(
    world: Ranks, steps: int, wish: Callable[[int], Wish], after: Callable[[int], Wish] | None = None
) -> list[Any]:
    """Take steps of 30 ms, so that each has its round; return [step, what was agreed] for some."""
    seen: list[Any] = []
    for step in range(1, steps + 1):
        time.sleep(0.03)
        result = world.decide(step, wish(step))
        if told(result):
            seen.append([step, told(result)])
        if result.stop:
            return seen
        world.propose(step, (after or wish)(step))
    return seen


def any_rank(world: Ranks) -> Any:
    """The last rank wants something from step 4 on; the first rank's clock is due at step 8."""
    is_last = world.rank == world.size - 1

    def wish(step: int) -> Wish:
        return Wish(flush=is_last and step == 4, due=step == 8 if world.is_first else step == 6)

    return loop(world, 12, wish)


def stop(world: Ranks) -> Any:
    """The last rank is told to stop at step 3 and goes on saying so; nobody settles afterwards."""
    is_last = world.rank == world.size - 1
    seen = loop(world, 10, lambda step: Wish(stop=is_last and step >= 3))
    return [seen, told(world.settle(9, Wish(flush=True)))]


def fresh(world: Ranks) -> Any:
    """A flush is answered and a save is under way before the next round begins: no second flush, and busy."""
    flush, busy = {4}, False
    saves: list[Any] = []
    for step in range(1, 9):
        time.sleep(0.03)
        want = bool(flush) and min(flush) <= step and world.rank == 1
        result = world.decide(step, Wish(flush=want, busy=busy))
        if result.flush and not result.busy:
            saves.append(step)
            flush.clear()
            busy = world.rank == 1
        elif told(result):
            saves.append([step, told(result)])
        world.propose(step, Wish(flush=bool(flush) and min(flush) <= step and world.rank == 1, busy=busy))
    return saves


def stride(world: Ranks) -> Any:
    """The ranks measure different steps, and still begin their rounds at the same ones."""
    rounds = []
    for step in range(1, 200):
        time.sleep(0.0005 * (1 + world.rank))
        if world.decide(step, Wish()).agreed:
            rounds.append(step)
        world.propose(step, Wish())
    return rounds


def jumps(world: Ranks) -> Any:
    """A program counts its steps by tens."""
    seen = []
    for step in range(10, 100, 10):
        time.sleep(0.03)
        result = world.decide(step, Wish(flush=step == 40 and world.rank == 1))
        if result.flush:
            seen.append(step)
        world.propose(step, Wish(flush=step == 40 and world.rank == 1))
    return seen


def slow(world: Ranks) -> Any:
    """Steps are long: what a rank learns during a step is decided at the end of that step."""
    seen = []
    for step in range(1, 8):
        time.sleep(0.1)
        result = world.decide(step, Wish(flush=step == 5 and world.rank == 1))
        if told(result):
            seen.append([step, told(result)])
        world.propose(step, Wish())
    return seen


def now(world: Ranks) -> Any:
    """All ranks know a save to be due at step 5; one is still busy with another at step 10."""
    seen = []
    for step in range(1, 12):
        busy = step == 10 and world.rank == 1
        result = world.decide(step, Wish(due=step % 5 == 0, busy=busy), now=step % 5 == 0)
        if told(result):
            seen.append([step, told(result)])
        world.propose(step, Wish(busy=busy))
    return seen


def uneven(world: Ranks) -> Any:
    """Rank 1 ends at step 4, the others at step 9; they save at step 7, and rank 1 takes part."""
    last = 4 if world.rank == 1 else 9
    seen = loop(world, last, lambda step: Wish(flush=step == 6 and world.rank == 0))
    while True:
        wish = world.settle(last, Wish())
        seen.append(["settled", told(wish)])
        if not (wish.flush or wish.due):
            return seen


def uneven_now(world: Ranks) -> Any:
    """Rank 1 ends at step 4; the others save at step 5 because each of them knows to."""
    last = 4 if world.rank == 1 else 7
    seen = []
    for step in range(1, last + 1):
        result = world.decide(step, Wish(due=step % 5 == 0), now=step % 5 == 0)
        if told(result):
            seen.append([step, told(result)])
        world.propose(step, Wish())
    while True:
        wish = world.settle(last, Wish())
        seen.append(["settled", told(wish)])
        if not (wish.flush or wish.due):
            return seen


def told_late(world: Ranks) -> Any:
    """Rank 1 is told to stop after it has left its loop, and the others hear of it."""
    if world.rank == 1:
        loop(world, 2, lambda _: Wish())
        asked = 0

        def again() -> Wish:
            nonlocal asked
            asked += 1
            return Wish(stop=asked >= 3)

        return told(world.settle(2, Wish(), again=again))
    return loop(world, 1000, lambda _: Wish())[-1][1]


def long_step(world: Ranks) -> Any:
    """Rank 0 evaluates while the others wait for it; nothing is lost or decided twice."""

    def wish(step: int) -> Wish:
        if step == 3 and world.rank == 0:
            time.sleep(1.0)
        return Wish(flush=step == 3 and world.rank == 1)

    return loop(world, 8, wish)


def values(world: Ranks) -> Any:
    """Everyone's values, short, long, none, and not of ASCII, from two threads at once."""
    mine = {"rank": world.rank, "text": "ä" * (10 if world.rank == 0 else 40_000), "none": None}
    behind: list[Any] = []
    thread = threading.Thread(target=lambda: behind.extend(world.everyone_behind([world.rank] * 5000)))
    thread.start()
    front: list[Any] = world.everyone(mine)
    thread.join()
    return [
        [row["rank"] for row in front],
        [len(row["text"]) for row in front],
        [len(row) for row in behind],
        world.everyone(None),
        [world.speaks, world.is_first, world.size],
    ]


def different_steps(world: Ranks) -> Any:
    """Rank 1 counts from 1, rank 0 from 0."""
    for step in range(5):
        world.decide(step + world.rank, Wish())
        world.propose(step + world.rank, Wish())
    return "nobody noticed"


def raises(world: Ranks) -> Any:
    """Rank 1 leaves with an error, and dies; the others are told so at once."""
    began = time.monotonic()
    try:
        for step in range(1, 100):
            world.decide(step, Wish())
            if world.rank == 1 and step == 3:
                os._exit(0)
            world.propose(step, Wish())
    except SpotwatchError as error:
        return [f"{type(error).__name__}: {error}", time.monotonic() - began]
    return "nobody noticed"


def closes(world: Ranks) -> Any:
    """Rank 1 never answers a round; the others do not wait for it for ever when they leave."""
    if world.rank == 1:
        world.everyone("the other one has left")
        return "here"
    world.decide(1, Wish())
    world.propose(1, Wish())
    ranks._CLOSING_SECONDS = 0.2
    began = time.monotonic()
    world.close()
    return time.monotonic() - began


def again(world: Ranks) -> Any:
    """A world that was closed is opened again, as a second `resume` does."""
    world.close()
    other = open_world(os.environ)
    seen = other.everyone(other.rank)
    other.close()
    return seen


def main() -> None:
    """Play the scenes."""
    out, *scenes = sys.argv[1:]
    dist.init_process_group("gloo")
    result: dict[str, Any] = {}
    file = Path(f"{out}.{dist.get_rank()}")
    for scene in scenes:
        agreement.SLOW_STEP_SECONDS = 0.05 if scene == "slow" else 5.0
        world = open_world(os.environ)
        if not isinstance(world, Ranks):
            raise TypeError("torch.distributed connects several ranks")
        try:
            result[scene] = globals()[scene](world)
        except SpotwatchError as error:
            result[scene] = f"{type(error).__name__}: {error}"
        file.write_text(json.dumps(result), encoding="utf-8")
        if scene not in ("again", "raises", "closes"):
            world.close()
    os._exit(0)  # what a scene has left behind is not tidied up


if __name__ == "__main__":
    main()
