# SPDX-License-Identifier: Apache-2.0
"""A daemon that dies anywhere, a machine that reboots or is cloned: nothing lost, nothing told twice."""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from spotwatch.actions.handshake import HandshakeAction
from spotwatch.model import Certainty, Do
from spotwatch.policy import Policy
from spotwatch.testing import run_virtual
from tests.world import GONE, Killed, World


def dies_in(world: World, method: str, *, after: bool, do: Do) -> None:
    """Let the daemon die before or after `method` of its handshake works for an order of this kind."""
    real: Callable[..., Any] = getattr(world.files, method)

    def deadly(*args: Any, **options: Any) -> Any:
        order = args[0]
        if getattr(order, "do", None) is not do:
            return real(*args, **options)
        if after:
            real(*args, **options)
        raise Killed

    setattr(world.files, method, deadly)


async def until_death(what: Awaitable[None]) -> None:
    """Run until the daemon dies."""
    with pytest.raises(Killed):
        await what


class TestKilledBetween:
    """SIGKILL at the moments that matter."""

    @pytest.mark.parametrize("method", ["raise_flag", "_write_order"])
    @pytest.mark.parametrize("after", [False, True])
    @pytest.mark.parametrize("does_script_answer", [False, True])
    def test_in_a_flush(self, tmp_path: Path, method: str, after: bool, does_script_answer: bool) -> None:
        """Exactly when the flag and when order.json appears: the flush is not lost, its number stays."""

        async def story() -> World:
            world = World(tmp_path)
            world.announce()
            dies_in(world, method, after=after, do=Do.FLUSH)
            await until_death(world.live(3))
            if does_script_answer:
                world.remove_flag()
            world.boot()
            await world.live(5)
            world.remove_flag()
            await world.live(2)
            return world

        world = run_virtual(story())
        assert {event.data["seq"] for event in world.events("answered")} == {1}
        assert world.orders() == ["flush"]
        assert not world.flag().exists()

    @pytest.mark.parametrize("after", [False, True])
    def test_at_the_signal(self, tmp_path: Path, after: bool) -> None:
        """Between signal and record: one or two signals, never none; one order."""

        async def story() -> World:
            world = World(tmp_path)
            world.announce(seconds=None)
            real = world.target.stop

            async def deadly(procs: Any) -> str:
                if after:
                    await real(procs)
                raise Killed

            world.target.stop = deadly  # type: ignore[method-assign]
            await until_death(world.live(3))
            world.target.stop = real  # type: ignore[method-assign]
            world.boot()
            await world.live(5)
            return world

        world = run_virtual(story())
        assert world.orders() == ["stop"]
        assert len(world.target.signals) == (2 if after else 1)

    @pytest.mark.parametrize("evidence", ["gone", "seen"])
    def test_evidence_spares_the_second_signal(self, tmp_path: Path, evidence: str) -> None:
        """The process has gone, or says that it has seen the order: it is not signalled again."""

        async def story() -> World:
            world = World(tmp_path)
            if evidence == "gone":
                world.target.proc = GONE
            world.announce(seconds=None)
            real = world.target.stop

            async def deadly(procs: Any) -> str:
                await real(procs)
                raise Killed

            world.target.stop = deadly  # type: ignore[method-assign]
            await until_death(world.live(3))
            world.target.stop = real  # type: ignore[method-assign]
            if evidence == "seen":
                world.report(phase="seen", seq=1)
            world.boot()
            await world.live(5, trainer=lambda: world.report(phase="uploading", seq=1))
            return world

        assert len(run_virtual(story()).target.signals) == 1

    @pytest.mark.parametrize("moment", range(20))
    def test_at_any_second(self, tmp_path: Path, moment: int) -> None:
        """Twenty moments between notice and stop: one flush answered, one stop order, one signal."""

        async def story() -> World:
            world = World(tmp_path)
            world.announce()
            await world.live(moment * 5.5 + 0.2, trainer=world.obedient_trainer)
            world.boot()
            await world.live(118 - moment * 5.5, trainer=world.obedient_trainer)
            return world

        world = run_virtual(story())
        assert world.orders() == ["flush", "stop"]
        assert len(world.target.signals) == 1
        assert [event.data["answer"] for event in world.events("answered")] == ["durable", "durable"]

    def test_dead_over_the_deadline_of_the_stop(self, tmp_path: Path) -> None:
        """An overdue stop goes out before the first poll."""

        async def story() -> World:
            world = World(tmp_path)
            world.announce()
            await world.live(5, trainer=world.obedient_trainer)
            await world.clock.sleep(100)
            world.boot()
            await world.runner.give_overdue_stop()
            return world

        world = run_virtual(story())
        assert world.orders() == ["flush", "stop"]
        assert len(world.target.signals) == 1


class TestOtherLives:
    """What an old state directory may and may not cause."""

    def test_reboot(self, tmp_path: Path) -> None:
        """Cases, orders, draining and flag of an earlier boot are void; how long saves take is kept."""

        async def story() -> World:
            world = World(tmp_path)
            world.announce()
            await world.live(115, trainer=world.obedient_trainer)
            assert world.is_draining()
            world.in_force.clear()
            world.clock.boot_id = "boot-2"
            world.clock.boot_offset_seconds = -100
            world.boot()
            assert not world.is_draining()
            await world.live(5)
            assert world.runner.estimate_seconds() < 10
            return world

        world = run_virtual(story())
        assert world.ledger.open_cases() == []
        assert world.orders() == ["flush", "stop"]

    def test_reboot_while_the_notice_stands(self, tmp_path: Path) -> None:
        """The cloud still says so after the reboot: that is acted upon."""

        async def story() -> World:
            world = World(tmp_path)
            world.announce(seconds=118)
            await world.live(5, trainer=world.obedient_trainer)
            world.clock.boot_id = "boot-2"
            world.boot()
            await world.live(110, trainer=world.obedient_trainer)
            return world

        assert run_virtual(story()).orders() == ["flush", "flush", "stop"]

    def test_a_cloned_machine(self, tmp_path: Path) -> None:
        """Resumed elsewhere with the same memory and state: another instance acts on nothing of the first."""

        async def story() -> World:
            world = World(tmp_path)
            world.ledger.settle_identity("aws:i-1")
            world.announce()
            await world.live(115, trainer=world.obedient_trainer)
            world.in_force.clear()
            world.boot()
            world.ledger.settle_identity("aws:i-2")
            await world.live(2)
            assert not world.is_draining()
            return world

        world = run_virtual(story())
        assert world.ledger.open_cases() == []
        assert world.orders() == ["flush", "stop", "none"]

    def test_restarts_in_a_two_hour_window(self, tmp_path: Path) -> None:
        """Restarted every ten minutes: the same flushes as without, one stop, one signal."""

        async def story() -> World:
            world = World(tmp_path, Policy(save_seconds=10))
            world.announce(seconds=7200, certainty=Certainty.TARGET, window_seconds=7200.0)
            for _ in range(11):
                await world.live(590, trainer=world.obedient_trainer, step=5)
                world.boot()
            return world

        world = run_virtual(story())
        assert world.orders() == ["flush"] * 11 + ["stop"]
        assert len(world.target.signals) == 1

    def test_a_stop_that_no_journal_explains(self, tmp_path: Path) -> None:
        """The state was lost: a stop that no notice explains is lifted after a while of watching."""

        async def story() -> World:
            world = World(tmp_path)
            world.announce(seconds=None)
            await world.live(3)
            world.in_force.clear()
            world.kept.clear()
            world.boot()
            await world.live(10)
            assert world.is_draining()
            await world.live(10)
            return world

        assert not run_virtual(story()).is_draining()

    def test_the_number_of_the_next_order(self, tmp_path: Path) -> None:
        """One above everything that any file mentions, though the journal was lost."""

        async def story() -> World:
            world = World(tmp_path)
            world.report(saved_seq=41)
            world.announce()
            await world.live(1)
            return world

        order = run_virtual(story()).order()
        assert order is not None
        assert order.seq == 42


class TestHandshakeFiles:
    """What may lie in the way."""

    @pytest.mark.parametrize("obstacle", ["directory", "dangling link", "pipe"])
    def test_no_flag_can_be_raised(self, tmp_path: Path, obstacle: str) -> None:
        """order.json is written all the same, the failure is told once, and the flag follows when it can."""

        async def story() -> World:
            world = World(tmp_path)
            flag = world.flag()
            if obstacle == "directory":
                flag.mkdir()
            elif obstacle == "pipe":
                os.mkfifo(flag)
            else:
                flag.symlink_to(tmp_path / "nowhere")
            world.announce()
            await world.live(3)
            order = world.order()
            assert order is not None
            assert order.do is Do.FLUSH
            if obstacle == "directory":
                flag.rmdir()
            else:
                flag.unlink()
            await world.live(2)
            assert flag.is_file()
            return world

        failed = [e for e in run_virtual(story()).events("acted") if e.data["result"] == "failed"]
        assert len(failed) == 1

    def test_a_flag_that_somebody_touched(self, tmp_path: Path) -> None:
        """It asks for a save like ours, and is never overwritten."""

        async def story() -> World:
            world = World(tmp_path)
            world.flag().touch()
            world.announce()
            await world.live(2)
            assert world.flag().read_bytes() == b""
            world.remove_flag()
            await world.live(1)
            assert json.loads(world.flag().read_bytes())["seq"] == 1
            return world

        run_virtual(story())

    def test_a_hostile_order_file(self, tmp_path: Path) -> None:
        """Nonsense under our own name is overwritten, not believed."""
        (tmp_path / "order.json").write_bytes(b"[" * 20000)

        async def story() -> World:
            world = World(tmp_path)
            world.announce()
            await world.live(1)
            return world

        order = run_virtual(story()).order()
        assert order is not None
        assert order.do is Do.FLUSH

    def test_draining_of_another_boot(self, tmp_path: Path) -> None:
        """It is void, readable or not."""
        (tmp_path / "draining").write_bytes(b"\xff\xfe")
        files = HandshakeAction(tmp_path, "checkpoint-now", boot_id="boot-2", owner=lambda: None)
        files.clear_other_boots()
        assert not (tmp_path / "draining").exists()
