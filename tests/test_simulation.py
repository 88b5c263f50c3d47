# SPDX-License-Identifier: Apache-2.0
"""The core under everything at once: some stories in each run of the suite, and those that once failed.

Thousands more: `python -m spotwatch.simulation --seeds 20000`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwatch.model import Do, Event, Kind, Step
from spotwatch.policy import Policy
from spotwatch.simulation import Story, draw, simulate
from spotwatch.simulation._checks import Checks
from spotwatch.simulation._machine import Machine
from spotwatch.simulation._story import Announced
from spotwatch.testing import EPOCH, run_virtual

ONCE_FAILED = {
    26: "a clock set forward made the same deadline an earlier one, and the machine a survivor",
    10161: "a clock an hour behind waited for the whole documented window instead of the twenty seconds left",
    10910: "a flush after a lifted stop made the daemon forget to start the trainer again",
    20073: "a clock ahead at first sight ended a case ten minutes after it was seen, whatever its deadline",
    327: "withdrawn while the trainer saved before leaving: it was started too early, then nobody trained",
}


def reclaim(**changes: object) -> Announced:
    """Return a reclaim of two minutes that is shown from the fifth second on."""
    fields: dict[str, object] = {"id": "n0", "at": 5.0, "seconds": 120.0, "kind": Kind.RECLAIM}
    return Announced(**(fields | changes))  # type: ignore[arg-type]


def story(*notices: Announced, ends_at: float = 125.0, **changes: object) -> Story:
    """Return a story with an obedient trainer in which nothing else goes wrong."""
    fields: dict[str, object] = {
        "seed": 0,
        "policy": Policy(save_seconds=10),
        "manner": "library",
        "save_seconds": 3.0,
        "notices": list(notices),
        "ends_at": ends_at,
    }
    return Story(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(12))
def test_some_stories(seed: int) -> None:
    """Whatever happens: no missed notice, no false stop, no lost step."""
    assert simulate(seed).problems == ()


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_stories_that_once_failed(seed: int) -> None:
    """Each found a fault in the core."""
    assert simulate(seed).problems == ()


def test_a_seed_is_a_story() -> None:
    """The same seed gives the same story and the same outcome, so that a failure can be looked into."""
    assert draw(7) == draw(7)
    assert simulate(7) == simulate(7)


def test_an_ordinary_reclaim() -> None:
    """Flush, stop, one signal, two saves."""
    outcome = simulate(0, story=story(reclaim()))
    assert outcome.problems == ()
    assert [order.do for order in outcome.orders] == [Do.FLUSH, Do.STOP]
    assert (outcome.signals, outcome.saves) == (1, 2)


@pytest.mark.parametrize("steps", range(0, 60, 4))
def test_killed_after_so_many_steps(steps: int) -> None:
    """Wherever the daemon dies on the way of a stop, the order is one, and the save in time."""
    outcome = simulate(0, story=story(reclaim(seconds=None), ends_at=40.0, deaths=[steps]))
    assert outcome.problems == ()
    assert [order.do for order in outcome.orders] == [Do.STOP]
    assert outcome.saves == 1


class TestTheChecksCanFail:
    """A simulation that finds nothing must be able to find something."""

    def test_a_trainer_that_secretly_does_not_obey(self) -> None:
        """The unanswered flush, the missing save and the trainer that did not leave are all found."""
        found = " ".join(simulate(0, story=story(reclaim(), secretly="deaf", ends_at=130.0)).problems)
        for problem in ("nothing saved by", "still training at", "flush unanswered"):
            assert problem in found

    @pytest.mark.parametrize(
        ("orders", "problem"),
        [
            ([(1, "stop", [])], "a stop without a notice"),
            ([(1, "flush", ["n0"])], "a flush without a notice"),
            ([(1, "stop", []), (2, "stop", [])], "a second stop"),
            ([(2, "none", []), (2, "none", [])], "order 2 after order 2"),
        ],
    )
    def test_false_orders(
        self, tmp_path: Path, orders: list[tuple[int, str, list[str]]], problem: str
    ) -> None:
        """Orders that nothing asked for, and numbers that do not grow."""

        def feed(checks: Checks, machine: Machine) -> None:
            for seq, do, cases in orders:
                data = {"seq": seq, "do": do, "cases": cases}
                checks.on_event(machine, Event(at=EPOCH, name="ordered", data=data))

        assert any(problem in line for line in judge(tmp_path, feed))

    def test_signals_and_starts(self, tmp_path: Path) -> None:
        """A signal without a stop, and a start without a lift."""

        def feed(_: Checks, machine: Machine) -> None:
            machine.trainer.signals.append(1.0)
            machine.trainer.starts.append(2.0)

        found = " ".join(judge(tmp_path, feed))
        assert "signals without a stop" in found
        assert "1 starts after 0 stops lifted" in found

    def test_draining(self, tmp_path: Path) -> None:
        """There without an order."""
        (tmp_path / "draining").touch()
        found = judge(tmp_path, lambda checks, machine: checks.on_second(machine))
        assert any("no stop is in force" in line for line in found)

    def test_a_journal_that_forgets(self, tmp_path: Path) -> None:
        """What lives is not what the rows give."""

        def feed(_: Checks, machine: Machine) -> None:
            machine.ledger.order(Step(at=EPOCH, do=Do.NONE, why=""), 1, procs={})

        assert any("another state" in line for line in judge(tmp_path, feed))


def judge(folder: Path, feed: Callable[[Checks, Machine], None]) -> list[str]:
    """Return what the checks find on a machine on which only `feed` has happened."""
    checks = Checks()

    async def main() -> None:
        machine = Machine(story(reclaim()), folder, on_event=checks.on_event, on_second=checks.on_second)
        feed(checks, machine)
        checks.at_end(machine)

    run_virtual(main())
    return checks.problems


def test_the_command() -> None:
    """It plays, counts, and exits 0 when all is well."""
    done = subprocess.run(
        [sys.executable, "-m", "spotwatch.simulation", "--seeds", "2"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("stories=2 failed=0")
