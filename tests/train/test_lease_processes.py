# SPDX-License-Identifier: Apache-2.0
"""Real processes and real stores: a holder killed, stopped and woken; many who want a run at once."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from spotwatch.testing import MemoryStore
from spotwatch.train.lease.lease import Lease, read
from spotwatch.train.store import Store, open_store

from .conftest import S3
from .lease_world import claim, nothing, stranger

SCRIPT = """
    import logging, os, sys
    from spotwatch.errors import RunTaken
    from spotwatch.train.lease.lease import Lease
    from spotwatch.train.lease.owner import Owner
    from spotwatch.train.store import open_store

    def say(*words):
        # In one write: two threads speak.
        os.write(1, (" ".join(map(str, words)) + "\\n").encode())

    url, run_id, ttl = sys.argv[1:]
    store = open_store(url, run_id, os.environ)
    lease = Lease(store, Owner.here(), ttl_seconds=float(ttl), renew_seconds=0.5)
    lease.on_lost = lambda taken: say("told")
    say("taken", lease.take(lambda: None, lambda text: say("waiting", text)))
    lease.start()
    for line in sys.stdin:
        if line == "assert\\n":
            try:
                lease.assert_held()
                say("held")
            except RunTaken as error:
                say("lost", error)
        else:
            lease.release(line.strip())
            say("released")
"""

_RACERS = 100
_numbers = itertools.count()
# Two starts of Python each, on a machine that may be busy.
pytestmark = pytest.mark.timeout(90)


class Holder:
    """A process that takes a lease, says so, and answers."""

    def __init__(self, url: str, run_id: str, environ: dict[str, str], ttl_seconds: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SCRIPT), url, run_id, str(ttl_seconds)],
            env=os.environ | environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _pipe(self, pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def line(self) -> str:
        """Return the next thing that it says."""
        return self._pipe(self.process.stdout).readline().rstrip("\n")

    def ask(self, what: str) -> str:
        """Return its answer, whatever it says of its own accord before."""
        self._pipe(self.process.stdin).write(f"{what}\n")
        self._pipe(self.process.stdin).flush()
        while (said := self.line()) == "told":
            pass
        return said

    def end(self) -> None:
        """Leave nothing behind."""
        self.process.kill()
        self.process.communicate()


class Place:
    """Where a run's lease lies, and who wants it."""

    def __init__(self, url: str, environ: dict[str, str]) -> None:
        self.url, self.environ = url, environ
        self.run_id = f"lease-{next(_numbers)}"
        self.holders: list[Holder] = []

    def holder(self, ttl_seconds: float) -> Holder:
        """Start a process that wants it."""
        self.holders.append(Holder(self.url, self.run_id, self.environ, ttl_seconds))
        return self.holders[-1]

    def store(self) -> Store:
        """Open the store here."""
        return open_store(self.url, self.run_id, self.environ)


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Return a place on a file system and one on an S3 server."""
    if request.param == "directory":
        place = Place(str(tmp_path), {})
    else:
        s3: S3 = request.getfixturevalue("s3")
        place = Place(s3.url, dict(s3.environ))
    yield place
    for holder in place.holders:
        holder.end()


def test_killed_on_this_machine(place: Place) -> None:
    """A process of this machine that was killed is not waited for, though its TTL is ten minutes."""
    first = place.holder(600)
    assert first.line() == "taken 1"
    first.process.kill()
    first.process.wait()
    second = place.holder(600)
    assert second.line() == "taken 2"
    assert second.ask("assert") == "held"
    now = read(place.store())
    assert now is not None
    assert [life.ended for life in now.history.lives] == ["lost"]


def test_stopped_and_woken(place: Place) -> None:
    """A process that stands still is taken over after its TTL, and learns it before it writes again."""
    first = place.holder(2)
    assert first.line() == "taken 1"
    assert first.ask("assert") == "held"
    first.process.send_signal(signal.SIGSTOP)
    second = place.holder(600)
    assert second.line().startswith("waiting the run is held by host ")
    while (said := second.line()).startswith("waiting"):
        pass
    assert said == "taken 2"
    first.process.send_signal(signal.SIGCONT)
    answer = first.ask("assert")
    assert answer.startswith("lost ")
    assert f"pid {second.process.pid}" in answer
    assert second.ask("assert") == "held"
    assert first.ask("stopped") == "released"
    assert second.ask("assert") == "held"
    now = read(place.store())
    assert now is not None
    assert (now.generation, now.owner.pid, now.released) == (2, second.process.pid, "")


def test_released_to_one_who_waits(place: Place) -> None:
    """The one who waits goes on when the holder says that it is done."""
    first = place.holder(24)
    assert first.line() == "taken 1"
    second = place.holder(600)
    assert second.line().startswith("waiting")
    assert first.ask("finished") == "released"
    while (said := second.line()).startswith("waiting"):
        pass
    assert said == "taken 2"


class Impatient:
    """Time of one thread: it passes by sleeping, a hundred times as fast, and not while the thread works."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        """Return the present."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Pass."""
        time.sleep(seconds / 100)
        self._now += seconds


# Not against moto: it compares and swaps in two moments, and answers 200 to two of eight who write at once.
@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_racing_takers(tmp_path: Path, kind: str) -> None:
    """All want a run whose holder is silent: each gets it once, alone, in a generation of its own."""
    store: Store = MemoryStore() if kind == "memory" else open_store(str(tmp_path), "race", {})
    store.put("LEASE", claim(generation=10, ttl_seconds=0.5).to_bytes())
    inside = threading.Lock()
    gate = threading.Barrier(_RACERS)
    holders: dict[int, list[str]] = {}
    failures: list[BaseException] = []

    def race(number: int) -> None:
        try:
            clock = Impatient()
            owner = stranger(f"host-{number}")
            lease = Lease(
                store,
                owner,
                ttl_seconds=3600,
                monotonic=clock.monotonic,
                sleep=clock.sleep,
            )
            gate.wait(30)
            generation = lease.take(nothing, nothing)
            assert inside.acquire(blocking=False), "two at once"
            holders.setdefault(generation, []).append(owner.writer)
            lease.assert_held()
            now = read(store)
            assert now is not None
            assert now.owner == owner
            inside.release()
            lease.release("stopped")
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=race, args=(number,)) for number in range(_RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not failures
    assert sorted(holders) == list(range(11, 11 + _RACERS))
    assert all(len(writers) == 1 for writers in holders.values())
