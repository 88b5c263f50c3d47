# SPDX-License-Identifier: Apache-2.0
"""Whole reclaims in virtual time: what counts as an answer, and when a machine is let go."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from spotwatch.config import Release
from spotwatch.errors import Unavailable
from spotwatch.model import Certainty, Kind
from tests.world import World, play


class TestAnswers:
    """What counts as an answer."""

    def test_durable(self, tmp_path: Path) -> None:
        """Only `saved.seq` of a fresh library trainer counts, not its removed flag."""

        async def story(world: World) -> None:
            world.announce()
            world.report()
            await world.live(2, trainer=world.report)
            world.remove_flag()
            await world.live(2, trainer=world.report)
            assert world.events("answered") == []
            await world.live(1, trainer=world.obedient_trainer)

        world = play(tmp_path, story)
        assert [e.data["answer"] for e in world.events("answered")] == ["durable"]

    def test_a_restored_checkpoint_measures_nothing(self, tmp_path: Path) -> None:
        """A resumed trainer reports what it restored with 0 s: the estimate stays the setting."""

        async def story(world: World) -> None:
            restored = functools.partial(world.report, saved_seq=0, step=7, save_seconds=0.0)
            await world.live(3, trainer=restored)
            assert world.runner.estimate_seconds() == 10

        assert play(tmp_path, story).events("saved") == []

    def test_acknowledged(self, tmp_path: Path) -> None:
        """A script that only removes the flag acknowledges."""

        async def story(world: World) -> None:
            world.announce()
            await world.live(7)
            world.remove_flag()
            await world.live(2)

        world = play(tmp_path, story)
        assert [e.data["answer"] for e in world.events("answered")] == ["acknowledged"]

    def test_a_flush_while_one_is_pending(self, tmp_path: Path) -> None:
        """The new order is in order.json at once, its flag follows when the pending one is removed."""

        async def story(world: World) -> None:
            world.announce("r", kind=Kind.AT_RISK, seconds=None, ends_machine=False, signal="risk")
            await world.live(1)
            first = world.flag().read_bytes()
            world.announce()
            await world.live(1)
            order = world.order()
            assert order is not None
            assert order.seq == 2
            assert world.flag().read_bytes() == first
            world.remove_flag()
            await world.live(1)
            assert b'"seq": 2' in world.flag().read_bytes()
            world.remove_flag()
            await world.live(1)

        world = play(tmp_path, story)
        assert [e.data["seq"] for e in world.events("answered")] == [2]

    def test_a_deadline_missed(self, tmp_path: Path) -> None:
        """Nobody answers: missed, once, and told."""

        async def story(world: World) -> None:
            world.announce()
            await world.live(130)

        world = play(tmp_path, story)
        assert len(world.events("missed")) == 1
        assert ("missed", "i") in world.listener.heard

    def test_a_late_notice_is_not_missed_at_once(self, tmp_path: Path) -> None:
        """Its deadline is past when it is first seen: the trainer still gets its chance, and takes it."""

        async def story(world: World) -> None:
            await world.live(3, trainer=world.obedient_trainer)
            world.announce(seconds=-5)
            await world.live(40, trainer=world.obedient_trainer)

        world = play(tmp_path, story)
        assert world.events("missed") == []
        assert [e.data["answer"] for e in world.events("answered")] == ["durable"]

    def test_a_late_notice_that_nobody_answers(self, tmp_path: Path) -> None:
        """Half a minute later it is missed after all."""

        async def story(world: World) -> None:
            await world.live(3)
            world.announce(seconds=-5)
            await world.live(28)
            assert world.events("missed") == []
            await world.live(4)

        assert len(play(tmp_path, story).events("missed")) == 1

    def test_tellers_hear_once(self, tmp_path: Path) -> None:
        """The notice and the save are each told once a case."""

        async def story(world: World) -> None:
            world.announce()
            await world.live(119, trainer=world.obedient_trainer)

        assert play(tmp_path, story).listener.heard == [("notice", "i"), ("saved", "i")]

    def test_a_stop_is_seen_before_it_is_signalled(self, tmp_path: Path) -> None:
        """A fresh library trainer gets a moment to say `seen`; the signal comes all the same."""

        async def story(world: World) -> None:
            world.report()
            world.announce(seconds=None)
            await world.poll()
            await world.runner.tick()
            assert len(world.target.signals) == 1

        world = play(tmp_path, story)
        waited = (world.target.signals[0] - world.clock.start).total_seconds()
        assert waited == pytest.approx(2.0, abs=0.1)


class TestRelease:
    """Letting the machine go early."""

    @pytest.mark.parametrize(
        ("changes", "is_released"),
        [
            ({"sole_resource": True}, True),
            ({"sole_resource": False}, False),
            ({"sole_resource": True, "drill": True}, False),
            ({"sole_resource": True, "certainty": Certainty.ESTIMATE}, False),
        ],
    )
    def test_the_rule(self, tmp_path: Path, changes: dict[str, Any], is_released: bool) -> None:
        """Only a timed event of this machine alone, no drill, and only after a durable save."""

        async def story(world: World) -> None:
            world.release = Release(azure_approve=True)
            world.boot()
            world.announce(seconds=100, **changes)
            await world.live(50, trainer=world.report)
            assert world.confirmer.confirmed == []
            await world.live(45, trainer=world.obedient_trainer)

        assert play(tmp_path, story).confirmer.confirmed == (["i"] if is_released else [])

    def test_a_refused_approval_is_tried_again(self, tmp_path: Path) -> None:
        """And told once."""

        async def story(world: World) -> None:
            world.release = Release(azure_approve=True)
            world.boot()
            world.confirmer.error = Unavailable("POST: HTTP 500")
            world.announce(seconds=100, sole_resource=True)
            await world.live(92, trainer=world.obedient_trainer)
            world.confirmer.error = None
            await world.live(3, trainer=world.obedient_trainer)

        world = play(tmp_path, story)
        assert world.confirmer.confirmed == ["i"]
        failed = [e for e in world.events("acted") if e.data["result"] == "failed"]
        assert len(failed) == 1
