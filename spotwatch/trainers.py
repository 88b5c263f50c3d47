# SPDX-License-Identifier: Apache-2.0
"""What the trainers on this machine say of themselves, and whether they have answered an order.

It reads `status/` and believes no more than it must: numbers are clamped, strangers' files do not count, and
nothing read here is ever signalled, opened or connected to. It writes nothing to the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from spotwatch import handshake
from spotwatch.clock import Clock
from spotwatch.handshake import Status
from spotwatch.ledger import Ledger
from spotwatch.model import Do
from spotwatch.records import Order
from spotwatch.status_files import StatusFiles

MAX_STEP_SECONDS = 600.0
_SAVE_PHASES = frozenset({"staged", "uploading", "failed"})
"""In which an error is a save's; in others it tells of checkpoints passed over, or of who has the run."""
_Save = tuple[int, float]
"""Step and seconds: two saves of one run never have both alike."""
NOTHING_KNOWN: Mapping[str, Any] = MappingProxyType(
    {
        "is_trainer_up": 0,
        "phase": "",
        "step": None,
        "steps_per_second": None,
        "saved_step": None,
        "saved_at": None,
        "stall_seconds": None,
        "save_seconds": None,
        "size_bytes": None,
        "work_at_risk_seconds": None,
    }
)
"""What `Trainers.facts` returns when no trainer has ever reported."""


class Trainers:
    """The trainers that report.

    Args:
        runtime_dir: the daemon's.
        owners: asked at each look for the user ids whose files count.
        ledger: learns of saves and failures.
        clock: tells how fresh a status is.
    """

    def __init__(
        self, runtime_dir: Path, *, owners: Callable[[], Collection[int]], ledger: Ledger, clock: Clock
    ) -> None:
        self._owners = owners
        self._ledger = ledger
        self._clock = clock
        self._since = clock.now()
        self._files = StatusFiles(runtime_dir)
        self._refused: list[str] = []
        self._failed_with = ""
        self._errors: dict[str, str] = {}
        self._noted: dict[str, _Save] = {}
        self.statuses: list[Status] = []

    def look(self) -> None:
        """Read the statuses, and record the saves and failures that are new.

        A look that fails is told, once per change of its error, and what was known stays: whatever lies in
        `status/`, a stop must go out.
        """
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - see above
            text = f"{type(error).__name__}: {error}"
            if text != self._failed_with:
                self._failed_with = text
                self._ledger.record("unexpected", error=f"trainers' statuses: {text}", exception=error)
        else:
            self._failed_with = ""

    def _look(self) -> None:
        now = self._clock.now()
        self.statuses, refused = self._files.read(self._owners(), now)
        if refused != self._refused:
            self._refused = refused
            if refused:
                self._ledger.record("status_refused", files=refused)
        for status in self.statuses:
            # Files stay when their trainers have gone: what they say was recorded while it was news, by us or
            # by an earlier life.
            if status.is_fresh(now):
                self._note_save(status)
                self._note_failure(status)
        self._errors = {status.run_id: status.error for status in self.statuses}
        self._noted = {s.run_id: self._noted[s.run_id] for s in self.statuses if s.run_id in self._noted}

    def fresh(self) -> list[Status]:
        """Return the trainers that reported within the last 15 s and have not said their last word."""
        now = self._clock.now()
        return [status for status in self.statuses if status.is_fresh(now) and not _has_left(status)]

    def newest(self) -> Status | None:
        """Return what was said last; None: nothing ever was. What is dated in the future goes last."""
        latest = self._clock.now() + timedelta(seconds=handshake.FRESH_SECONDS)
        return max(self.statuses, key=lambda s: (s.at <= latest, s.at), default=None)

    def have_finished(self) -> bool:
        """Tell whether trainers have spoken since we began, and all of them ended their run by themselves."""
        spoken = [status for status in self.statuses if status.at >= self._since]
        return bool(spoken) and all(map(_has_finished, spoken))

    def left_with(self) -> frozenset[int | None]:
        """Return what the trainers that have spoken since we began leave with; None: one has not said."""
        return frozenset(status.exit_code for status in self.statuses if status.at >= self._since)

    def highest_seq(self) -> int:
        """Return the highest order number that any trainer has mentioned and that can be believed."""
        seqs = (seq for s in self.statuses for seq in (s.seq, s.saved.seq))
        return max(map(handshake.believable, seqs), default=0)

    def have_seen(self, seq: int) -> bool:
        """Tell whether there are trainers and every fresh one says that it works on order `seq`."""
        fresh = self.fresh()
        return bool(fresh) and all(max(s.seq, s.saved.seq) >= seq for s in fresh)

    def answer_to(self, order: Order, *, is_flag_gone: bool, are_processes_gone: bool) -> str:
        """Return `durable`, `acknowledged`, or nothing while the order is unanswered.

        Args:
            order: that the trainers were told.
            is_flag_gone: the flag was raised for this order and somebody has removed it.
            are_processes_gone: those that were signalled have exited.
        """
        fresh = self.fresh()
        if any(status.saved.seq < order.seq for status in fresh):
            return ""
        told_since = order.at - timedelta(seconds=handshake.FRESH_SECONDS)
        # A flush is answered when all who are left have saved; a stop only when nobody was lost either.
        asked = [s for s in self.statuses if s.at >= told_since]
        has_saved = [s.saved.seq >= order.seq or _has_left_nothing(s) for s in asked]
        if asked and (all(has_saved) or (order.do is Do.FLUSH and fresh)):
            return "durable"
        if any(status.saved.seq >= order.seq for status in self.statuses) and not asked:
            return "durable"
        if asked:
            return ""
        is_answered = is_flag_gone or (order.do is Do.STOP and are_processes_gone)
        return "acknowledged" if is_answered else ""

    def have_heard(self, order: Order) -> bool:
        """Tell whether somebody spoke when `order` was given, or after it, who had not left before it."""
        told_since = order.at - timedelta(seconds=handshake.FRESH_SECONDS)
        return any(s.at >= told_since and not (_has_left(s) and s.at < order.at) for s in self.statuses)

    def have_left(self) -> bool:
        """Tell whether nobody reports any more, and the last who did has said how it ended."""
        newest = self.newest()
        return newest is not None and not self.fresh() and _has_left(newest)

    def last_words(self) -> str:
        """Return `durable` when all who ever spoke here left with their work saved, else `acknowledged`."""
        are_saved = bool(self.statuses) and all(map(_has_left_nothing, self.statuses))
        return "durable" if are_saved else "acknowledged"

    def facts(self) -> dict[str, Any]:
        """Return what the metrics show; None where unknown.

        Of several trainers the one with most work at risk; where none reports any more, the one that spoke
        last: what others left behind before it is over.
        """
        fresh = self.fresh()
        newest = self.newest()
        if newest is None:
            return dict(NOTHING_KNOWN)
        status = max(fresh, key=lambda s: self.work_at_risk_seconds(s) or 0.0, default=newest)
        saved = status.saved
        has_saved = saved.at is not None
        return {
            "is_trainer_up": int(bool(fresh)),
            "phase": status.phase,
            "step": status.step,
            "steps_per_second": status.steps_per_second,
            "saved_step": saved.step if has_saved else None,
            "saved_at": saved.at.timestamp() if saved.at is not None else None,
            "stall_seconds": saved.stall_seconds if has_saved else None,
            "save_seconds": saved.save_seconds if has_saved else None,
            "size_bytes": saved.size_bytes if has_saved else None,
            "work_at_risk_seconds": self.work_at_risk_seconds(status) if fresh else None,
        }

    def work_at_risk_seconds(self, status: Status) -> float | None:
        """Return the training time since the step last saved, in seconds; None when it cannot be known."""
        steps = max(0, status.step - (status.saved.step if status.saved.at is not None else 0))
        if steps == 0:
            return 0.0
        return steps / status.steps_per_second if status.steps_per_second > 0 else None

    def step_seconds(self, status: Status) -> float:
        """Return how long one step takes, at most ten minutes."""
        return min(1 / status.steps_per_second, MAX_STEP_SECONDS) if status.steps_per_second > 0 else 0.0

    def _note_save(self, status: Status) -> None:
        saved = status.saved
        if saved.at is None or saved.save_seconds <= 0:
            # A checkpoint that was restored is reported too; nothing was measured on it.
            return
        made = (saved.step, saved.save_seconds)
        if made == self._noted.get(status.run_id) or any(
            save.run_id == status.run_id and (save.step, save.seconds) == made
            for save in self._ledger.state.saves
        ):
            return
        self._noted[status.run_id] = made
        age = max(0.0, (self._clock.now() - saved.at).total_seconds())
        self._ledger.record(
            "saved",
            run_id=status.run_id,
            step=saved.step,
            seconds=saved.save_seconds,
            stall_seconds=saved.stall_seconds,
            step_seconds=self.step_seconds(status),
            is_durable=True,
            boot=self._clock.boot() - age,
            size_bytes=saved.size_bytes,
            url=saved.url,
        )

    def _note_failure(self, status: Status) -> None:
        """Record a save that failed; an error that ended the run, or that it waits for, is none."""
        if not status.error or status.error == self._errors.get(status.run_id):
            return
        if status.phase in _SAVE_PHASES and status.exit_code is None:
            reason = status.error.split(":", 1)[0]
            self._ledger.record("save_failed", run_id=status.run_id, reason=reason, error=status.error[:200])


def _has_left(status: Status) -> bool:
    """Tell whether this trainer has said its last word, whatever it was."""
    return status.phase == "finished" or status.exit_code is not None


def _has_finished(status: Status) -> bool:
    """Tell whether this trainer ended its run by itself; leaving it saves the last step."""
    return status.phase == "finished" and status.saved.at is not None


def _has_left_nothing(status: Status) -> bool:
    """Tell whether this trainer is gone and nothing of its work with it, whatever made it leave."""
    has_stopped = status.exit_code == handshake.EXIT_DURABLE and status.saved.at is not None
    return has_stopped or _has_finished(status)
