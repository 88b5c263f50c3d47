# SPDX-License-Identifier: Apache-2.0
"""Files in `status/` that nobody removes: many of them, old ones, and one that is alive among them."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spotwatch import handshake
from spotwatch.state import KEPT_RUNS
from spotwatch.testing import EPOCH
from tests.trainers_bench import SAVED, STATUS, Bench, on


def test_a_sweep_of_many_runs_is_recorded_once(tmp_path: Path) -> None:
    """More runs than are kept, one after the other, none of them removed: each save is news once in its life.

    Neither ticks nor a restart of the daemon record them again, and the last run keeps its own saves.
    """
    runs = KEPT_RUNS + 6

    async def story(bench: Bench) -> None:
        for number in range(runs):
            for step in range(3):
                saved = replace(SAVED, step=step, at=bench.clock.now())
                bench.look(replace(STATUS, run_id=f"run-{number}", at=bench.clock.now(), saved=saved))
                await bench.clock.sleep(6)
        assert len(bench.named("saved")) == 3 * runs
        for _ in range(2):
            for _ in range(20):
                bench.look()
                await bench.clock.sleep(1)
            bench.restart()
        assert len(bench.named("saved")) == 3 * runs
        assert len(bench.ledger.measured_saves(f"run-{runs - 1}")) == 3

    on(tmp_path, story)


def test_as_many_as_report_at_once_are_each_recorded_once(tmp_path: Path) -> None:
    """Sixty-four trainers on one machine, all alive: none makes the save of another look new, in any life."""

    async def story(bench: Bench) -> None:
        statuses = [replace(STATUS, run_id=f"run-{number}") for number in range(handshake.MAX_STATUS_FILES)]
        bench.look(*statuses)
        for _ in range(3):
            bench.restart()
            bench.look()
        assert len(bench.named("saved")) == handshake.MAX_STATUS_FILES

    on(tmp_path, story)


def test_the_newest_files_are_read(tmp_path: Path) -> None:
    """Behind hundreds of old ones, by whatever name, the trainer that lives is heard."""

    async def story(bench: Bench) -> None:
        for number in range(200):
            old = replace(STATUS, run_id=f"a-{number:03}", at=EPOCH - timedelta(hours=1))
            handshake.write_status(tmp_path, old)
            path = tmp_path / handshake.STATUS_DIR / f"a-{number:03}.json"
            os.utime(path, (1e9 + number, 1e9 + number))
        trainers = bench.look(replace(STATUS, run_id="z"))
        assert [status.run_id for status in trainers.fresh()] == ["z"]
        assert len(trainers.statuses) == handshake.MAX_STATUS_FILES
        assert bench.named("status_refused") == []

    on(tmp_path, story)


def test_more_trainers_than_can_be_heard_are_told(tmp_path: Path) -> None:
    """One too many that are all alive: somebody may go unheard, and that is said once."""

    async def story(bench: Bench) -> None:
        for _ in range(3):
            bench.look(*(replace(STATUS, run_id=f"run-{n}") for n in range(handshake.MAX_STATUS_FILES + 1)))

    (told,) = on(tmp_path, story).named("status_refused")
    assert told.data["files"] == ["64 trainers report at once: what more of them say is not read"]


def test_what_does_not_change_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old and refused files cost a look at their times; one that is spoken again is heard at once."""
    opened: list[str] = []
    really_open = os.open

    def note(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        opened.append(Path(path).name)
        return really_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", note)

    async def story(bench: Bench) -> None:
        old = replace(STATUS, at=EPOCH - timedelta(hours=1))
        (tmp_path / handshake.STATUS_DIR / "bad.json").write_text("{", encoding="utf-8")
        for _ in range(5):
            bench.look()
        bench.look(replace(old, run_id="a"))
        for _ in range(5):
            bench.look()
        assert sorted(name for name in opened if name.endswith(".json")) == ["a.json", "bad.json"]
        bench.owners = set()
        assert bench.look().statuses == []
        bench.owners = {os.geteuid()}
        assert len(bench.look(replace(STATUS, run_id="a")).fresh()) == 1

    on(tmp_path, story)
