# SPDX-License-Identifier: Apache-2.0
"""The watch goes on whatever a provider does, and says so once per change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from spotwatch.errors import Denied, Malformed, Unavailable
from spotwatch.kept_bodies import KeptBodies
from spotwatch.ledger import Ledger
from spotwatch.model import Answer, Event, Kind, Notice
from spotwatch.testing import EPOCH, FakeClock, run_virtual
from spotwatch.watcher import Watcher

GOOD = Answer(answered=frozenset({"a", "b"}))
NAIVE = EPOCH.replace(tzinfo=None)
NOTICE = Notice(id="i", provider="cloud", signal="a", kind=Kind.RECLAIM, seen_at=EPOCH)


class Provider:
    """Answers what it is given, one after the other, the last for ever."""

    name: ClassVar[str] = "cloud"
    absence_withdraws: ClassVar[bool] = True
    signals = ("a", "b")

    def __init__(self, clock: FakeClock, *answers: Any, interval_seconds: float = 1.0) -> None:
        self.interval_seconds = interval_seconds
        self.clock = clock
        self.answers = list(answers)
        self.polls = 0
        self.on_wait: Callable[[], Awaitable[None]] | None = None

    async def notices(self) -> Any:
        """Return, raise or hang."""
        self.polls += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == "hang":
            await asyncio.sleep(10**6)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def wait(self) -> None:
        """Wait an interval, or what the test wants."""
        if self.on_wait is not None:
            await self.on_wait()
        else:
            await self.clock.sleep(self.interval_seconds)


class Bench:
    """A watcher and all its events."""

    def __init__(self, *answers: Any, folder: Path | None = None, interval_seconds: float = 1.0) -> None:
        self.clock = FakeClock()
        self.seen: list[Event] = []
        self.wakes = 0
        self.ledger = Ledger(self.clock)
        self.ledger.subscribe(self.seen.append)
        self.provider = Provider(self.clock, *answers, interval_seconds=interval_seconds)
        self.watcher = Watcher(
            self.provider,  # type: ignore[arg-type]
            self.ledger,
            self.clock,
            wake=self.wake,
            kept_bodies=KeptBodies(folder),
        )

    def wake(self) -> None:
        """Count."""
        self.wakes += 1

    def named(self, name: str) -> list[Event]:
        """Return the events of one name."""
        return [event for event in self.seen if event.name == name]

    async def run(self, seconds: float) -> None:
        """Let the watch run for so long; it must not end by itself."""
        task = asyncio.create_task(self.watcher.run())
        await asyncio.sleep(seconds)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def play(bench: Callable[[], Bench], seconds: float) -> Bench:
    """Run a bench for so long."""

    async def main() -> Bench:
        made = bench()
        await made.run(seconds)
        return made

    return run_virtual(main())


@pytest.mark.parametrize(
    "bad",
    [
        RuntimeError("bug"),
        asyncio.CancelledError(),
        None,
        {"notices": []},
        Answer(notices=("x",)),  # type: ignore[arg-type]
        Answer(notices=(Notice(id="n", provider="c", signal="a", kind=Kind.RECLAIM, seen_at=NAIVE),)),
        Answer(failed={"a": "not an error"}),  # type: ignore[dict-item]
    ],
    ids=["raises", "cancelled inside", "none", "a dict", "no notice", "naive", "no error"],
)
def test_a_bad_answer_ends_nothing(bad: object) -> None:
    """Sixty of them: counted each time, told once, and the notice after them is seen at the first poll."""
    good = Answer(notices=(NOTICE,), answered=frozenset({"a", "b"}))
    bench = play(lambda: Bench(*[bad] * 60, good), 65)
    results = [r for e in bench.named("polled") for r in e.data["results"]]
    assert results[:60] == ["unexpected"] * 60
    assert len(bench.named("unexpected")) == 1
    assert len(bench.named("noticed")) == 1
    assert (bench.named("noticed")[0].at - EPOCH).total_seconds() == pytest.approx(60, abs=0.5)
    assert [e.data["state"] for e in bench.named("signal_changed")] == ["unexpected"] * 2 + ["ok"] * 2


def test_a_poll_that_hangs_is_ended() -> None:
    """Thirty seconds at most; then the next poll comes."""
    bench = play(lambda: Bench("hang", GOOD), 40)
    assert bench.provider.polls > 5
    assert bench.named("polled")[0].data["results"] == ["unexpected"]


@pytest.mark.parametrize("how", ["hangs", "raises", "is cancelled inside"])
def test_a_wait_that_goes_wrong(how: str) -> None:
    """The next poll comes all the same."""

    async def wrong() -> None:
        if how == "raises":
            raise RuntimeError("bug")
        if how == "hangs":
            await asyncio.sleep(10**6)
        raise asyncio.CancelledError

    def make() -> Bench:
        bench = Bench(GOOD)
        bench.provider.on_wait = wrong
        return bench

    assert play(make, 60).provider.polls >= 5


def test_one_signal_fails() -> None:
    """It is counted by reason and told once; the other one's notices are seen; the provider is not up."""
    half = Answer(notices=(), answered=frozenset({"b"}), failed={"a": Unavailable("no", mend="look")})
    bench = play(lambda: Bench(half), 5)
    assert {tuple(sorted(e.data["results"])) for e in bench.named("polled")} == {("ok", "unavailable")}
    assert {e.data["is_up"] for e in bench.named("polled")} == {0}
    told = [(e.data["signal"], e.data["state"], e.data["mend"]) for e in bench.named("signal_changed")]
    assert told == [("b", "ok", ""), ("a", "unavailable", "look")]


def test_malformed_bodies_are_kept_once_a_change(tmp_path: Path) -> None:
    """Not one a poll."""
    bad = Answer(failed={"a": Malformed("what is this", body=b"<html>")})
    bench = play(lambda: Bench(bad, folder=tmp_path), 10)
    assert len(bench.named("body_kept")) == 1
    assert [path.read_bytes() for path in (tmp_path / "malformed").iterdir()] == [b"<html>"]


def test_a_change_wakes_the_runner() -> None:
    """Once for the notice, not once a poll."""
    bench = play(lambda: Bench(Answer(notices=(NOTICE,), answered=frozenset({"a", "b"}))), 10)
    assert bench.wakes == 1


@pytest.mark.parametrize(("interval", "limit"), [(1.0, 11.0), (10.0, 30.0)])
def test_ready(interval: float, limit: float) -> None:
    """Ready while an answer is younger than max(3 intervals, interval + 10 s)."""

    async def main() -> None:
        bench = Bench(GOOD, interval_seconds=interval)
        assert bench.watcher.not_ready() == ["cloud: no answer yet"]
        await bench.watcher.poll_once()
        await asyncio.sleep(limit - 0.1)
        assert bench.watcher.not_ready() == []
        await asyncio.sleep(0.2)
        assert bench.watcher.not_ready() == [f"cloud: no answer for {limit:.0f} s"]

    run_virtual(main())


def test_not_ready_names_the_signal() -> None:
    """A signal that never answered, or failed three times in a row, says why."""

    async def main() -> None:
        bench = Bench(GOOD, Answer(answered=frozenset({"b"}), failed={"a": Denied("hop limit")}))
        await bench.watcher.poll_once()
        for failures in range(1, 4):
            await bench.watcher.poll_once()
            assert bool(bench.watcher.not_ready()) is (failures == 3)
        assert bench.watcher.not_ready() == ["cloud a: hop limit"]

    run_virtual(main())


def test_two_polls_at_once_take_turns() -> None:
    """The forced poll of the end waits for the one under way, then asks again."""

    async def main() -> None:
        bench = Bench(GOOD)
        await asyncio.gather(bench.watcher.poll_once(), bench.watcher.poll_once())
        assert bench.provider.polls == 2
        ages = [bench.clock.now() - timedelta(seconds=1) < e.at for e in bench.named("polled")]
        assert ages == [True, True]

    run_virtual(main())


class Measured(Provider):
    """Measures something, or breaks over it."""

    @property
    def measures(self) -> dict[str, float]:
        """Return one value, unless it is the third poll."""
        if self.polls == 3:
            raise RuntimeError("no such gauge")
        return {"clock_synced": 1.0}


def test_what_is_measured_is_told_and_breaks_no_poll() -> None:
    """The answer of the poll in which it breaks has been heard before."""
    found = Answer(notices=(NOTICE,), answered=frozenset({"a", "b"}))

    async def main() -> Bench:
        bench = Bench(GOOD)
        bench.watcher.provider = Measured(bench.clock, GOOD, GOOD, found)  # type: ignore[assignment]
        await bench.run(2.5)
        return bench

    bench = run_virtual(main())
    assert [event.data["measures"] for event in bench.named("measured")] == [{"clock_synced": 1.0}] * 2
    assert len(bench.named("noticed")) == 1
    assert "no such gauge" in bench.named("unexpected")[0].data["error"]
