# SPDX-License-Identifier: Apache-2.0
"""Two lives of a run on one store, deed by deed in any order, and a life that dies at any of its deeds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwatch.errors import CheckpointCorrupt, RunTaken, StoreMissing
from spotwatch.train.registry.manifest import Manifest
from spotwatch.train.registry.registry import RANK_FILE, Registry
from spotwatch.train.registry.resume import Resume
from spotwatch.train.world import Alone

from .faulty import BODY, FaultyStore, publish, registry

_SECONDS = 15.0


def _resume(life: Registry, store: FaultyStore) -> int:
    """Go on from what is best, and return its step; its bytes are looked at without a deed."""

    def fetch(manifest: Manifest) -> None:
        if store.objects.get(f"{manifest.dir}/{RANK_FILE.format(0)}") != b"0 %d " % manifest.step + BODY:
            raise CheckpointCorrupt(f"{manifest.dir} is gone")

    manifest = Resume(life, Alone(), 0.0, lambda: None).load(fetch, allow_fresh=False)
    assert manifest is not None
    return manifest.step


class _DiedError(BaseException):
    """The machine is gone; nothing catches it."""


def _live(store: FaultyStore, durable: list[int]) -> None:
    """Resume, save three times and prune after each."""
    life = registry(store)
    durable.append(_resume(life, store))
    for step in (20, 30, 40):
        current = publish(life, step)
        durable.append(step)
        life.prune(2, current)


@pytest.mark.parametrize("is_conditional", [True, False])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_life_that_dies_at_any_deed_loses_nothing_durable(moment: str, is_conditional: bool) -> None:
    """Before any deed or after any write: the next life goes on from the last durable save, or later."""
    deaths = 0
    for number in range(1000):
        store = FaultyStore(is_conditional=is_conditional)
        publish(registry(store), 10)
        store.deeds.clear()

        def die(deed: str, number: int = number, store: FaultyStore = store) -> None:
            if len(store.deeds) == number + 1:
                raise _DiedError

        setattr(store, moment, die)
        durable: list[int] = [10]
        try:
            _live(store, durable)
        except _DiedError:
            deaths += 1
        else:
            if len(store.deeds) <= number:
                break
        setattr(store, moment, lambda deed: None)
        assert _resume(registry(store), store) >= durable[-1]
    assert deaths >= 10


@dataclass
class _Actor:
    """A life in a thread of its own, which waits for its turn before each deed."""

    act: Callable[[], None]
    ready: threading.Event = field(default_factory=threading.Event)
    """It waits for its turn, or has ended."""
    turn: threading.Event = field(default_factory=threading.Event)
    ended: bool = False
    error: BaseException | None = None

    def run(self) -> None:
        """Act to the end."""
        try:
            self.act()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error
        self.ended = True
        self.ready.set()

    def wait(self) -> None:
        """Wait for the turn."""
        self.ready.set()
        assert self.turn.wait(_SECONDS)
        self.turn.clear()


def _interleave(store: FaultyStore, acts: list[Callable[[], None]], choices: Iterator[int]) -> list[_Actor]:
    """Let the lives do one deed after the other, as chosen."""
    actors = [_Actor(act) for act in acts]
    threads = {threading.Thread(target=actor.run, daemon=True): actor for actor in actors}

    def before(deed: str) -> None:
        actor = threads.get(threading.current_thread())
        if actor is not None:
            actor.wait()

    store.before = before
    for thread in threads:
        thread.start()
    while True:
        for actor in actors:
            assert actor.ready.wait(_SECONDS)
        left = [actor for actor in actors if not actor.ended]
        if not left:
            break
        actor = left[next(choices, 0) % len(left)]
        actor.ready.clear()
        actor.turn.set()
    for thread in threads:
        thread.join(_SECONDS)
    store.before = lambda deed: None
    return actors


@settings(max_examples=60, deadline=None)
@given(choices=st.lists(st.integers(0, 1), max_size=120))
def test_a_newcomer_loses_nothing_that_the_holder_before_made_durable(choices: list[int]) -> None:
    """The old one goes on saving and pruning while the new one takes over, in any order of their deeds.

    What the old one was told is durable, the new one goes on from, or from later; once it has claimed the run
    the old one is told nothing more; and what LATEST names is whole at the end, and the new one's.
    """
    store = FaultyStore()
    old, new = registry(store, 1), Registry(store, "run")
    publish(old, 10)
    durable, begun = [10], []

    def save() -> None:
        for step in (20, 30, 40):
            current = publish(old, step)
            durable.append(step)
            old.prune(1, current)

    def take_over() -> None:
        begun.append(_resume(new, store))
        for step in (begun[0] + 1, begun[0] + 2):
            new.prune(1, publish(new, step))

    first, second = _interleave(store, [save, take_over], iter(choices))
    assert second.error is None
    assert first.error is None or isinstance(first.error, RunTaken)
    assert begun[0] >= durable[-1]
    latest = new.latest()
    assert latest is not None
    assert (latest.step, latest.writer) == (begun[0] + 2, new.writer)
    assert _resume(registry(store), store) == latest.step


@settings(max_examples=40, deadline=None)
@given(choices=st.lists(st.integers(0, 2), max_size=120))
def test_of_newcomers_of_one_generation_one_goes_on(choices: list[int]) -> None:
    """Without a lease between them, in any order: one has the run at the end, and each other is told."""
    store = FaultyStore()
    publish(registry(store), 10)
    lives = [registry(store, 2) for _ in range(3)]

    def take_over(life: Registry) -> None:
        step = _resume(life, store)
        for further in (1, 2):
            life.prune(1, publish(life, step + further))

    actors = _interleave(store, [lambda life=life: take_over(life) for life in lives], iter(choices))  # type: ignore[misc]
    fine = [life.writer for life, actor in zip(lives, actors, strict=True) if actor.error is None]
    # Overtaken after its last look, one finds its upload pruned; at its next save it is told why.
    told = {type(None), RunTaken, StoreMissing}
    assert {type(actor.error) for actor in actors} <= told, [actor.error for actor in actors]
    latest = lives[0].latest()
    assert latest is not None
    assert latest.writer in fine
    assert _resume(registry(store), store) == latest.step
