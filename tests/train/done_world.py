# SPDX-License-Identifier: Apache-2.0
"""Workers of one done-list in a world of chance: their requests interleave, fail and get lost, time jumps.

Each worker is a thread, but one runs at a time, and which one is drawn at each request and each wait. The
store is a dictionary, the clock a number. One seed is one history.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from spotwatch.errors import RunTaken, StoreError
from spotwatch.testing import MemoryStore
from spotwatch.train.done.keeper import Bounds
from spotwatch.train.done.log import Stored
from spotwatch.train.done.reading import _outputs
from spotwatch.train.done.terms import Terms
from spotwatch.train.done.work import Work
from spotwatch.train.orders import Mark
from spotwatch.train.store import Entry

from .lease_world import nothing, stranger

_SECONDS = 20.0


class Killed(BaseException):
    """The machine is gone: nothing of it runs any more."""


class Deaf:
    """Hears no order."""

    is_stopping = False
    is_asked = False

    def mark(self) -> Mark:
        """Return that nothing is asked for."""
        return Mark(0, ())

    def saved(self, mark: Mark, stored: Stored, items: int, seconds: float) -> None:
        """Hear of a save."""

    def answer(self, mark: Mark) -> None:
        """Hear of an answer."""

    def failed(self, error: Exception, pause_seconds: float) -> None:
        """Hear of a failure."""


@dataclass
class Worker:
    """One life of a worker."""

    name: str
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    wake_at: float = 0.0
    is_killed: bool = False
    is_over: bool = False
    error: BaseException | None = None
    thread: threading.Thread | None = None


@dataclass(frozen=True, kw_only=True)
class Odds:
    """How hard the world is."""

    items: int = 40
    every_items: int = 4
    shares: int = 2
    workers: int = 3
    kills: int = 8
    kill: float = 0.01
    freeze: float = 0.005
    fault: float = 0.02
    output_fault: float = 0.02
    """Of a request that stores outputs."""
    lease_seconds: float = 60.0
    item_seconds: float = 20.0
    is_conditional: bool = True


class World(MemoryStore):
    """A store, a clock, and the workers that use them.

    Args:
        seed: of everything that is drawn.
        odds: how hard it is.
    """

    def __init__(self, seed: int, odds: Odds) -> None:
        super().__init__(is_conditional=odds.is_conditional)
        self.chance = random.Random(seed)
        self.odds = odds
        self.now = 1000.0
        self.kills = 0
        self.is_calm = False
        self.executed: list[tuple[str, int]] = []
        """The tenure, that is worker, share and generation, and the item."""
        self.lives = 0
        self._here = threading.Semaphore(0)
        self._by_thread: dict[int, Worker] = {}
        self.workers: list[Worker] = []

    # The store.

    def put(self, key: str, body: bytes) -> None:
        """Keep, at some moment, or not."""
        self._ask(lambda: super(World, self).put(key, body))

    def put_if(self, key: str, body: bytes, version: str | None) -> str:
        """Keep, at some moment, or not."""
        fault = self.odds.output_fault if b'"key":' in body else self.odds.fault
        return self._ask(lambda: super(World, self).put_if(key, body, version), fault)  # type: ignore[no-any-return]

    def read(self, key: str, *, most_bytes: int) -> tuple[bytes, str]:
        """Return, at some moment, or not."""
        return self._ask(lambda: super(World, self).read(key, most_bytes=most_bytes))  # type: ignore[no-any-return]

    def list(self) -> Iterator[Entry]:
        """Return what is there, but perhaps not the newest of it, in any order."""
        entries: list[Entry] = self._ask(lambda: list(super(World, self).list()))
        if not self.is_calm and self.odds.is_conditional and self.chance.random() < 0.3:
            entries = entries[: len(entries) - self.chance.randint(0, 3)]
        self.chance.shuffle(entries)
        return iter(entries)

    def _ask(self, call: Callable[[], Any], fault: float | None = None) -> Any:
        worker = self._by_thread.get(threading.get_ident())
        if worker is None:
            return call()  # a thread of the worker whose turn it is, who waits for it; or the test
        self._yield(worker)
        if not self.is_calm and self.chance.random() < (self.odds.fault if fault is None else fault):
            if self.chance.random() < 0.5:
                call()
                raise StoreError("the answer got lost")
            raise StoreError("503 SlowDown")
        value = call()
        self._yield(worker)
        return value

    # Time.

    def monotonic(self) -> float:
        """Return the seconds that all have in common."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let others have their turn until then."""
        worker = self._by_thread[threading.get_ident()]
        worker.wake_at = self.now + seconds
        self._yield(worker)

    def _yield(self, worker: Worker) -> None:
        self._here.release()
        assert worker.go.acquire(timeout=_SECONDS)
        if worker.is_killed:
            raise Killed

    # Workers.

    def start(self) -> None:
        """Begin the life of another worker."""
        self.lives += 1
        worker = Worker(f"w{self.lives}", wake_at=self.now)
        worker.thread = threading.Thread(target=self._live, args=(worker,), daemon=True)
        self.workers.append(worker)
        worker.thread.start()
        assert self._here.acquire(timeout=_SECONDS)

    def turn(self) -> None:
        """Let one worker run to its next request or wait; or lose one."""
        alive = [worker for worker in self.workers if not worker.is_over]
        ready = [worker for worker in alive if worker.wake_at <= self.now]
        if not ready:
            self.now = min(worker.wake_at for worker in alive)
            ready = [worker for worker in alive if worker.wake_at <= self.now]
        worker = self.chance.choice(ready)
        if not self.is_calm and self.chance.random() < self.odds.freeze:
            worker.wake_at = self.now + self.chance.uniform(0, 4 * self.odds.lease_seconds)
            return
        # Who only waits is killed seldom: little would come of it.
        works = any(tenure.startswith(f"{worker.name}/") for tenure, _ in self.executed[-3:])
        kill = self.odds.kill * (4 if works else 1)
        if not self.is_calm and self.kills < self.odds.kills and self.chance.random() < kill:
            self.kills += 1
            worker.is_killed = True
        worker.go.release()
        assert self._here.acquire(timeout=_SECONDS)

    def run(self, after_kill: Callable[[], None] = nothing) -> None:
        """Play until all is done: first with all trouble, and in the end without any."""
        kills = 0
        while True:
            alive = [worker for worker in self.workers if not worker.is_over]
            if not self.is_calm and any(worker.is_over and not worker.error for worker in self.workers):
                self.is_calm = True  # one has come to its end: all must be done
                self.check_all()
            if self.is_calm and not alive:
                break
            if len(alive) < (1 if self.is_calm else self.odds.workers):
                self.start()
            elif alive:
                self.turn()
            if self.kills > kills:
                kills = self.kills
                after_kill()
        self.check_all()

    def outputs(self) -> dict[Any, Any]:
        """Return what a reader finds; no key comes twice."""
        rows = list(_outputs(self))
        assert len(rows) == len(dict(rows))
        return dict(rows)

    def check_all(self) -> None:
        """Check that each item has its output."""
        outputs = self.outputs()
        assert sorted(outputs) == list(range(self.odds.items))
        assert all(output["item"] == key for key, output in outputs.items())

    def in_vain(self) -> Counter[str]:
        """Return for each tenure how many of its items were begun for nothing: another's output counts."""
        counts = {output["at"] for output in self.outputs().values()}
        return Counter(tenure for at, (tenure, _) in enumerate(self.executed) if at not in counts)

    def work(self, name: str, **changes: Any) -> Work:
        """Return a worker's part."""
        terms = Terms(
            bounds=Bounds(self.odds.every_items, 60.0, 5),
            shares=self.odds.shares,
            patience_seconds=0.0,
            lease_seconds=self.odds.lease_seconds,
            verify=bool(changes.get("verify")),
            monotonic=self.monotonic,
            sleep=self.sleep,
        )
        return Work(
            *(self, stranger(name), terms, Deaf(), set()),
            attended=lambda: nullcontext(nothing),
            leaving=nullcontext,
            waiting=nothing,
        )

    def _live(self, worker: Worker) -> None:
        self._by_thread[threading.get_ident()] = worker
        work = self.work(worker.name)
        try:
            self._yield(worker)
            self._loop(worker, work)
        except (Killed, StoreError) as error:
            worker.error = error
            if not worker.is_killed:
                self._try_to_close(work)
        except BaseException as error:
            worker.error = error
            raise
        finally:
            # What belongs to no machine any more ends too: the thread that would renew the lease.
            if work._shares is not None and work._shares._lease is not None:
                work._shares._lease.stop()
            worker.is_over = True
            del self._by_thread[threading.get_ident()]
            self._here.release()

    def _loop(self, worker: Worker, work: Work) -> None:
        work.open()
        for (item,) in work.offer(range(self.odds.items), None, 1):
            assert work._shares is not None
            assert work._shares._lease is not None
            tenure = f"{worker.name}/{work._share}/{work._shares._lease.generation}"
            at = len(self.executed)
            self.executed.append((tenure, item))
            self.sleep(self.chance.uniform(0, self.odds.item_seconds))
            work.add(item, {"item": item, "by": worker.name, "at": at})
        if work.taken:
            raise RunTaken("and there is no other share")
        assert work.offered.is_all_done
        assert work.finish(30.0)
        work.close("finished")

    def _try_to_close(self, work: Work) -> None:
        try:
            work.finish(30.0)
            work.close("failed")
        except (Killed, StoreError) as error:
            assert error  # noqa: PT017 - whatever it was, the life is over
