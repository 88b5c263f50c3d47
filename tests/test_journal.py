# SPDX-License-Identifier: Apache-2.0
"""The journal on real files: whole, torn, rotated, on a disk that is full, slow or read only."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spotwatch.handshake import MAX_HEARD_SEQ, MAX_SEQ
from spotwatch.journal import FILE, PREVIOUS, ROTATE_BYTES, FileJournal, MemoryJournal, read_journal
from spotwatch.ledger import Ledger
from spotwatch.model import Answer, Do, Event, Kind, Notice, Step
from spotwatch.state import State
from spotwatch.testing import EPOCH, FakeClock, run_virtual


def row(name: str, **data: object) -> Event:
    """Return an event of this name."""
    return Event(at=EPOCH, name=name, data=data)


class Disk:
    """A journal in a folder, and what it complained of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.errors: list[str] = []
        self.snapshots = 0
        self.journal = FileJournal(folder, snapshot=self.snapshot, on_error=self.errors.append)

    def snapshot(self) -> Event:
        """Count the snapshots asked for."""
        self.snapshots += 1
        return row("snapshot", number=self.snapshots)

    async def flushed(self, seconds: float = 5.0) -> bool:
        """Wait for the disk."""
        return await self.journal.flushed(seconds)

    def names(self) -> list[str]:
        """Return the names that a restart would read."""
        return [event.name for event in read_journal(self.folder)[0]]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A journal that is closed in the end."""
    made = Disk(tmp_path)
    yield made
    made.journal.close()


class FullDisk:
    """os.write for a disk that is full until told otherwise; half a row still fits."""

    def __init__(self) -> None:
        self.is_full = False
        self._real = os.write

    def __call__(self, fd: int, data: bytes) -> int:
        """Write, or half of it and then no more."""
        if not self.is_full:
            return self._real(fd, data)
        if len(data) > 20:
            return self._real(fd, bytes(data)[:10])
        raise OSError(28, "No space left on device")


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    """The operating system's edge: writing."""
    made = FullDisk()
    monkeypatch.setattr(os, "write", made)
    return made


class TestRows:
    """What is written can be read."""

    async def test_whole(self, disk: Disk) -> None:
        """Snapshot first, then the rows in their order."""
        for name in ("a", "b"):
            disk.journal.append(row(name))
        assert await disk.flushed()
        assert disk.names() == ["snapshot", "a", "b"]
        assert disk.errors == []

    async def test_mode(self, disk: Disk) -> None:
        """Nobody else may read or write it."""
        assert await disk.flushed()
        assert (disk.folder / FILE).stat().st_mode & 0o777 == 0o640 & ~_umask()

    @pytest.mark.parametrize(
        "tail", [b'{"at":"2026-', b"\xff\xfe\n", b"[" * 5000 + b"\n", b"[1]\n", b'{"event":"x"}\n']
    )
    async def test_a_torn_or_foreign_line(self, disk: Disk, tail: bytes) -> None:
        """It is counted, and the rest is read."""
        disk.journal.append(row("a"))
        assert await disk.flushed()
        with (disk.folder / FILE).open("ab") as file:
            file.write(tail)
        events, bad = read_journal(disk.folder)
        assert ([event.name for event in events], bad) == (["snapshot", "a"], 1)

    def test_none(self, tmp_path: Path) -> None:
        """No journal gives no rows."""
        assert read_journal(tmp_path) == ([], 0)

    async def test_the_next_life_keeps_the_last_one(self, disk: Disk) -> None:
        """A file without a snapshot, as after a lost first write, gives way to the one before it."""
        disk.journal.append(row("a"))
        assert await disk.flushed()
        second = Disk(disk.folder)
        assert await second.flushed()
        second.journal.close()
        (disk.folder / FILE).write_text("garbage\n")
        events, bad = read_journal(disk.folder)
        assert ([event.name for event in events], bad) == (["snapshot", "a"], 1)


class TestRotation:
    """No file grows for ever."""

    async def test_by_size(self, disk: Disk) -> None:
        """A new file opens with a snapshot that contains all before it; the old one is kept."""
        disk.journal.append(row("big", text="x" * ROTATE_BYTES))
        disk.journal.append(row("after"))
        assert await disk.flushed()
        assert disk.names() == ["snapshot", "after"]
        assert disk.snapshots == 2
        assert b'"big"' in (disk.folder / PREVIOUS).read_bytes()

    def test_while_a_stop_is_in_force(self, tmp_path: Path) -> None:
        """The stop, who was told, and the process that was signalled are all in the new file."""

        async def story() -> tuple[Ledger, Ledger]:
            clock = FakeClock()
            ledger = Ledger(clock)
            journal = FileJournal(tmp_path, snapshot=ledger.snapshot, on_error=lambda _: None)
            ledger.subscribe(journal.append)
            notice = Notice(id="i", provider="aws", signal="s", kind=Kind.RECLAIM, seen_at=EPOCH)
            ledger.record(
                "noticed", case="i", notice=notice.to_json(), deadline=None, deadline_boot=None, boot=1
            )
            proc = {"pid": 7, "start_ticks": 7, "uid": 0, "gid": 0, "command": "t"}
            ledger.order(Step(at=EPOCH, do=Do.STOP, why="w", case_ids=("i",)), 3, procs={"child": [proc]})
            ledger.record("told", seq=3, receiver="handshake")
            ledger.record("padding", text="x" * ROTATE_BYTES)
            ledger.record("told", seq=3, receiver="child")
            journal.close()
            events, bad = read_journal(tmp_path)
            assert bad == 0
            assert [event.name for event in events] == ["snapshot", "told"]
            after = Ledger(clock)
            assert after.replay(events) == 0
            return ledger, after

        ledger, after = run_virtual(story())
        assert after.state.snapshot() == ledger.state.snapshot()
        assert after.is_stop_in_force()
        assert after.state.orders[0].told == ["handshake", "child"]


class TestBadDisks:
    """A journal is never in the way, and makes up for what it lost."""

    async def test_full(self, disk: Disk, full_disk: FullDisk) -> None:
        """Each lost row is told; with the first row after it, a new snapshot stands for all that was lost."""
        assert await disk.flushed()
        full_disk.is_full = True
        disk.journal.append(row("lost"))
        assert not await disk.flushed()
        full_disk.is_full = False
        disk.journal.append(row("found"))
        assert await disk.flushed()
        assert disk.snapshots == 2
        assert disk.names()[0] == "snapshot"
        assert json.loads((disk.folder / FILE).read_bytes().splitlines()[0])["number"] == 2
        assert disk.errors == ["journal journal.jsonl: No space left on device"]

    async def test_full_at_the_start(self, tmp_path: Path, full_disk: FullDisk) -> None:
        """The first snapshot is lost, and written later."""
        full_disk.is_full = True
        disk = Disk(tmp_path)
        assert not await disk.flushed()
        full_disk.is_full = False
        disk.journal.append(row("a"))
        assert await disk.flushed()
        disk.journal.close()
        assert disk.names()[0] == "snapshot"

    async def test_slow(self, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who needs a row waits as long as said, goes on, and it is told."""
        assert await disk.flushed()
        hold = threading.Event()
        real: Callable[[int], None] = os.fsync

        def slow(fd: int) -> None:
            hold.wait(10)
            real(fd)

        monkeypatch.setattr(os, "fsync", slow)
        began = asyncio.get_running_loop().time()
        disk.journal.append(row("a"))
        assert not await disk.flushed(0.2)
        assert asyncio.get_running_loop().time() - began < 8
        hold.set()
        assert await disk.flushed()
        assert disk.names() == ["snapshot", "a"]
        assert disk.errors == ["journal not written within 0.2 s; going on without"]

    async def test_no_hard_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file system without them keeps no second file, but a journal."""

        def refuse(*_: object) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(os, "link", refuse)
        for _ in range(2):
            disk = Disk(tmp_path)
            assert await disk.flushed()
            disk.journal.close()
            assert disk.errors == []
        assert disk.names() == ["snapshot"]

    async def test_a_link_in_its_place(self, tmp_path: Path) -> None:
        """It is replaced, never followed."""
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_text("untouched")
        state = tmp_path / "state"
        state.mkdir()
        (state / "journal.new").symlink_to(elsewhere)
        disk = Disk(state)
        await disk.flushed()
        disk.journal.close()
        assert elsewhere.read_text() == "untouched"
        assert disk.errors


async def test_memory_holds_the_last_rows() -> None:
    """Where no place is writable rows are held, not without bound."""
    journal = MemoryJournal(keep=3)
    for number in range(5):
        journal.append(row(str(number)))
    assert [event.name for event in journal.events] == ["2", "3", "4"]
    assert await journal.flushed(0.1)


def test_a_snapshot_is_a_whole_state() -> None:
    """An empty one too."""
    state = State(boot_id="b")
    other = State(boot_id="")
    other.apply(Event.from_json(Event(at=EPOCH, name="snapshot", data=state.snapshot()).to_json()))
    assert other == state


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_numbers_beyond_belief_are_healed(tmp_path: Path) -> None:
    """An earlier version gave 2**53 + 1 and so on, which readers round: they get others."""

    async def story() -> None:
        ledger = Ledger(FakeClock())
        events = [ledger.snapshot()]
        ledger.subscribe(events.append)
        notice = Notice(id="i", provider="aws", signal="a", kind=Kind.RECLAIM, seen_at=EPOCH)
        ledger.observe("aws", Answer(notices=(notice,), answered=frozenset("a")), absence_withdraws=True)
        step = Step(at=EPOCH, do=Do.FLUSH, why="w", case_ids=("i",))
        ledger.order(step, 2**53 + 1, procs={})
        ledger.record("answered", seq=2**53 + 1, do=Do.FLUSH, answer="durable")
        ledger.order(replace(step, do=Do.STOP), 2**53 + 2, procs={})
        ledger.record("told", seq=2**53 + 2, receiver="handshake")
        for shape in ([*events], [ledger.snapshot()]):
            lines = [json.dumps(event.to_json()) for event in shape]
            (tmp_path / FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")
            rows, unreadable = read_journal(tmp_path)
            healed = Ledger(FakeClock())
            assert (healed.replay(rows), unreadable) == (0, 0)
            state = healed.state
            assert [order.seq for order in state.orders] == [MAX_HEARD_SEQ + 1, MAX_HEARD_SEQ + 2]
            assert [order.answer for order in state.orders] == ["durable", ""]
            assert state.orders[1].told == ["handshake"]
            assert state.highest_seq == state.cases["i"].last_seq == MAX_HEARD_SEQ + 2 < MAX_SEQ

    run_virtual(story())
