# SPDX-License-Identifier: Apache-2.0
"""What is seen of a machine from outside, and what of it is noted: on files as both sides write them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spotwatch.drill.notes import note_notice, note_own_steps, note_steps, outcome_code, shell_code
from spotwatch.drill.timeline import Timeline
from spotwatch.drill.verdict import Outcome
from spotwatch.drill.watch import Watch, read_orders, watching
from spotwatch.errors import SpotwatchError
from spotwatch.handshake import FLAG, ORDER, STATUS_DIR, Order, Saved, Status, write_status
from spotwatch.journal import FileJournal
from spotwatch.model import Do, Event

NOW = datetime.now(UTC)
URL = "file:///store/drill-1-aws"


class Files:
    """Both sides of a machine, by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / STATUS_DIR).mkdir()

    def order(self, seq: int, do: Do) -> None:
        """Give an order."""
        (self.folder / "new").write_bytes(Order(boot_id="b", seq=seq, do=do, why="test").to_bytes())
        (self.folder / "new").rename(self.folder / ORDER)

    def status(self, phase: str, step: int = 0, *, saved: Saved | None = None) -> None:
        """Report as a trainer."""
        write_status(
            self.folder,
            Status(
                run_id="drill-1-aws",
                pid=os.getpid(),
                at=NOW,
                phase=phase,
                step=step,
                saved=saved or Saved(),
            ),
        )


def saved(step: int, seq: int = 0, url: str = f"{URL}/step-1") -> Saved:
    """Return a durable save."""
    return Saved(seq=seq, step=step, at=NOW, url=url)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Return the files of a machine."""
    return Files(tmp_path)


@pytest.fixture
def watch(files: Files) -> Watch:
    """Return a watch over them."""
    return Watch(files.folder, URL, "aws", Timeline(None), lambda: None)


def test_orders_and_the_saves_that_contain_them(files: Files, watch: Watch) -> None:
    """A save counts for every order up to the one it contains, from the moment it was seen."""
    files.order(1, Do.FLUSH)
    files.status("training", 5, saved=saved(5, seq=0))
    watch.look()
    assert (set(watch.ordered_at), watch.saved_at) == ({1}, {})
    files.order(2, Do.STOP)
    watch.look()
    files.status("durable", 9, saved=saved(9, seq=2))
    watch.look()
    assert set(watch.saved_at) == {1, 2}
    assert watch.saved_at[1] > watch.ordered_at[2] > watch.ordered_at[1]
    files.order(3, Do.NONE)
    watch.look()
    assert set(watch.ordered_at) == {1, 2}


def test_half_written_and_missing_files_are_no_news(files: Files, watch: Watch) -> None:
    """What a crash leaves behind is not taken for an order or a word."""
    watch.look()
    (files.folder / ORDER).write_text('{"version": 1, "bo')
    (files.folder / STATUS_DIR / "x.json").write_text("{")
    (files.folder / FLAG).touch()
    watch.look()
    assert (watch.status, watch.ordered_at) == (None, {})


def test_a_trainer_trains_once_it_has_resumed(files: Files, watch: Watch) -> None:
    """Before `resuming` a word may slip out; what it resumed from is its first save, not a later one."""
    files.status("training")
    watch.look()
    files.status("resuming")
    watch.look()
    before = watch.trains_since
    files.status("training", 7, saved=saved(7))
    watch.look()
    assert (before is None, watch.trains_since is None) == (True, False)
    files.status("training", 20, saved=saved(20))
    watch.look()
    assert watch.resumed_step == 7


@pytest.mark.parametrize("url", ["s3://real/runs/sweep/step-1", f"{URL}0/step-1", "file:///store/step-1"])
async def test_a_save_elsewhere_is_an_alarm(files: Files, watch: Watch, url: str) -> None:
    """A save outside the drill's run, also one whose name only begins alike, ends the watch at once."""
    files.status("training", 7, saved=saved(7))
    async with watching(watch) as looking:
        files.status("training", 8, saved=saved(8, url=url))
        await asyncio.wait([looking], timeout=15)
        with pytest.raises(SpotwatchError, match="outside the drill's store"):
            looking.result()


def test_orders_by_the_journal(tmp_path: Path) -> None:
    """Each order stands with its answer; a later answer answers what was before it."""

    def event(name: str, **data: Any) -> Event:
        return Event(at=NOW, name=name, data=data)

    journal = FileJournal(tmp_path, snapshot=lambda: event("snapshot"), on_error=pytest.fail)
    for row in (
        event("ordered", seq=1, do="flush"),
        event("ordered", seq=2, do="flush"),
        event("answered", seq=2, do="flush", answer="durable"),
        event("ordered", seq=3, do="stop"),
        event("ordered", seq=4, do="none"),
    ):
        journal.append(row)
    journal.close()
    assert read_orders(tmp_path) == [("flush", "durable"), ("flush", "durable"), ("stop", "")]
    assert read_orders(tmp_path / "missing") == []


@pytest.fixture
def outcome() -> Outcome:
    """Return an outcome in which nothing is noted yet."""
    return Outcome(cloud="aws", order_limit_seconds=2.0, is_own=True)


@pytest.mark.parametrize(
    ("code", "wanted"),
    [(0, "had finished before it was told"), (1, "no order came"), (None, "no order came")],
)
def test_a_notice_without_an_order(outcome: Outcome, watch: Watch, code: int | None, wanted: str) -> None:
    """It is trouble in any case; a trainer that was simply too short is told so."""
    note_notice(outcome, watch, code, 0.0)
    assert [wanted in trouble for trouble in outcome.troubles] == [True]
    assert outcome.notice_to_order_seconds is None


def test_times_are_from_the_announcement(outcome: Outcome, files: Files, watch: Watch) -> None:
    """The first order and the first save that contains one are what counts."""
    watch.ordered_at = {4: 12.5, 5: 20.0}
    watch.saved_at = {4: 13.0, 5: 21.0}
    note_notice(outcome, watch, 75, 12.0)
    assert (outcome.notice_to_order_seconds, outcome.notice_to_saved_seconds) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("change", "code", "wanted"),
    [
        (lambda files: files.status("durable", 9, saved=saved(9, seq=2)), 1, 75),
        (lambda files: files.status("durable", 9, saved=saved(9, seq=1)), 1, 1),
        (lambda files: files.status("failed", 9, saved=saved(9, seq=2)), 76, 76),
        (lambda files: None, 1, 1),
        (lambda files: None, -15, 143),
    ],
    ids=["hidden by a launcher", "an older order", "not durable", "no status", "signalled"],
)
def test_the_code_that_counts(
    files: Files, watch: Watch, change: Callable[[Files], None], code: int, wanted: int
) -> None:
    """A durable save of the last order is 75, whatever a launcher makes of it; nothing else is."""
    files.order(2, Do.STOP)
    change(files)
    watch.look()
    assert outcome_code(watch, code) == wanted


def test_steps_by_a_trainers_own_word(outcome: Outcome, files: Files, watch: Watch) -> None:
    """After an orderly end its word is exact; after a kill it is only the least."""
    files.status("training", 40, saved=saved(40))
    watch.look()
    outcome.has_status = True
    outcome.first_exit_code = 75
    note_own_steps(outcome, 42, watch)
    assert outcome.steps_lost == 2
    killed = Outcome(cloud="aws", order_limit_seconds=2.0, has_status=True, first_exit_code=137)
    note_own_steps(killed, 42, watch)
    assert killed.steps_lost is None
    assert killed.unknown["steps_lost"].endswith("2 at the least")


def test_steps_by_trace(outcome: Outcome) -> None:
    """Counts go into the outcome as they are; without a trace the reason does."""
    note_steps(outcome, (1, 2, 3), (3, 4), 4)
    assert (outcome.steps_lost, outcome.steps_twice, outcome.steps_skipped) == (1, 1, 0)
    nothing = Outcome(cloud="aws", order_limit_seconds=2.0)
    note_steps(nothing, (1, 2), (), 4)
    assert nothing.steps_lost is None
    assert "no step was executed" in nothing.unknown["steps_lost"]


def test_codes_as_a_shell_tells_them() -> None:
    """A signal's number is told as 128 + n."""
    assert [shell_code(code) for code in (0, 75, -9)] == [0, 75, 137]
