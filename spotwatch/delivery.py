# SPDX-License-Identifier: Apache-2.0
"""Bring an order to the trainer and its answer back.

Intent, journal, files, signals: every deed is recorded before it is tried and after it worked, so that a
daemon that dies anywhere goes on where it was. It decides neither what is ordered nor when.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from types import MappingProxyType
from typing import Any

from spotwatch import handshake
from spotwatch.absence import Absence
from spotwatch.actions.handshake import FlagState
from spotwatch.cases import Case, Phase
from spotwatch.errors import ActionError, HandshakeError
from spotwatch.model import Do, Kind, Notice, Step
from spotwatch.parts import Parts
from spotwatch.policy import respond
from spotwatch.records import Order
from spotwatch.stopping import NobodyThereError, Stopper, find_all, procs_of

__all__ = ["Delivery", "Parts"]

JOURNAL_SECONDS = 0.2
"""How long an order waits at most for its journal row."""

HANDSHAKE = "handshake"
FLAG = "flag"
_NOBODY: Mapping[str, Any] = MappingProxyType({})


class Delivery:
    """The way of an order.

    Args:
        parts: made by the daemon.
    """

    def __init__(self, parts: Parts) -> None:
        self._p = parts
        self._absence = Absence(parts)
        self.stopper = Stopper(parts, self.act, self._absence)
        self.replayed_seq = self.stopper.replayed_seq
        self._errors: dict[str, str] = {}
        self._announced = {case.notice.id for case in parts.ledger.open_cases() if case.last_seq}

    async def give(self, step: Step, *, starts: Mapping[str, Any] = _NOBODY) -> None:
        """Make `step` the order in force, and tell it.

        Args:
            step: what is due.
            starts: by label the processes whose end is waited for before their target is started again, when
                `step` lifts a stop.
        """
        p = self._p
        in_force = p.handshake.order_in_force()
        seen = handshake.believable(in_force.seq) if in_force else 0
        seq = 1 + max(p.ledger.state.highest_seq, seen, p.trainers.highest_seq())
        if in_force is not None and self._is_forgotten(in_force, step):
            # The very stop that an earlier life gave, whose row was lost: it keeps its number.
            seq = self.stopper.replayed_seq = in_force.seq
        await p.before_order()
        procs = await find_all(p.targets) if step.do is Do.STOP else starts
        order = p.ledger.order(step, seq, procs=procs)
        await p.journal.flushed(JOURNAL_SECONDS)
        await self.tell(order)

    def _is_forgotten(self, in_force: handshake.Order, step: Step) -> bool:
        """Tell whether the files hold `step` already, though the journal does not."""
        is_same = step.do is Do.STOP is in_force.do and in_force.id in step.case_ids
        is_of_this_boot = in_force.boot_id == self._p.clock.boot_id
        is_unknown = handshake.believable(in_force.seq) > self._p.ledger.state.highest_seq
        return is_same and is_of_this_boot and is_unknown

    async def tell(self, order: Order) -> None:
        """Tell whoever has not been told of `order`; harmless when everybody has."""
        notice = self.notice_of(order)
        step = Step(
            at=order.at,
            do=order.do,
            why=order.why,
            deadline=order.deadline,
            case_ids=order.case_ids,
            seq=order.seq,
        )
        if HANDSHAKE not in order.told:
            await self._write_files(order, step, notice)
        if order.do is Do.FLUSH:
            self._raise_flag(order)
        elif order.do is Do.STOP:
            if not self._p.targets or not await self.stopper.stop_all(order, step, notice):
                self._raise_flag(order)
        else:
            await self._start_all(order)
        if order.do is not Do.NONE:
            self._announce(order)

    async def go_on(self) -> None:
        """Tell the last order to whoever has not been told, as long as that is of use."""
        order = self._p.ledger.last_order()
        if order is None:
            return
        lift = self._p.ledger.last_lift()
        if lift is not None and lift is not order:
            await self._start_all(lift)
        is_owed = order.do is Do.STOP and self._p.ledger.is_stop_in_force()
        if not order.answer or (is_owed and not self.stopper.is_done(order)):
            await self.tell(order)

    async def _start_all(self, lift: Order) -> None:
        """Start what a stop has stopped; while `draining` stands systemd would pass over it, as if done."""
        if not self._p.handshake.is_draining():
            await self.stopper.start_all(lift)

    async def recover(self) -> None:
        """Write again what the directory has lost: some service managers empty it at each restart."""
        order = self._p.ledger.last_order()
        if order is None or HANDSHAKE not in order.told:
            return
        in_force = self._p.handshake.order_in_force()
        is_stop = order.do is Do.STOP and self._p.ledger.is_stop_in_force()
        is_flush = order.do is Do.FLUSH and not order.answer
        if (is_stop or is_flush) and (in_force is None or in_force.seq < order.seq):
            self._p.ledger.record("files_lost", seq=order.seq, receivers=[HANDSHAKE, FLAG])
            await self.tell(order)

    async def collect(self) -> None:
        """Record the answer to the last order, if there is one now."""
        p = self._p
        order = p.ledger.last_order()
        if order is None or order.do is Do.NONE or order.answer or HANDSHAKE not in order.told:
            return
        in_force = p.handshake.order_in_force()
        is_asked = in_force is not None and in_force.seq >= order.seq
        is_flag_gone = FLAG in order.told and is_asked and p.handshake.flag_state() is FlagState.ABSENT
        is_stop = order.do is Do.STOP
        procs = [proc for label in order.procs for proc in procs_of(order.procs, label)] if is_stop else []
        are_gone = not any(p.is_alive(proc) for proc in procs)
        answer = p.trainers.answer_to(
            order,
            is_flag_gone=is_flag_gone and are_gone,
            are_processes_gone=bool(procs) and are_gone,
        )
        if answer:
            self._record_answer(order, answer)
        elif await self._absence.covers(order):
            self._record_answer(order, p.trainers.last_words(), is_nobody_here=True)

    async def act(
        self, action: str, deed: Awaitable[str], order: Order, *, key: str = "", notice: Notice | None = None
    ) -> bool:
        """Await one deed, measure and record it; a failure is told once per change of its text.

        Args:
            action: the metric label.
            deed: raises ActionError when it was not done.
            order: that it belongs to.
            key: whose failure it is; empty: the action's.
            notice: that it is about; None: the order's.
        """
        p = self._p
        notice = notice or self.notice_of(order)
        began = p.clock.monotonic()
        try:
            detail = await deed
        except NobodyThereError:
            return False
        except ActionError as error:
            self._tell_failure(key or action, str(error), action, p.clock.monotonic() - began)
            return False
        self._errors.pop(key or action, None)
        is_order = action == HANDSHAKE and order.do is not Do.NONE
        p.ledger.record(
            "acted",
            case=notice.id,
            provider=notice.provider,
            action=action,
            result="ok",
            seconds=p.clock.monotonic() - began,
            detail=detail,
            seq=order.seq,
            do=order.do,
            notice_to_order_seconds=self._first_waits(order) if is_order else [],
        )
        return True

    def cases_of(self, order: Order) -> list[Case]:
        """Return the cases of `order` that are still in force."""
        cases = self._p.ledger.state.cases
        return [c for i in order.case_ids if (c := cases.get(i)) is not None and c.phase is not Phase.CLOSED]

    def notice_of(self, order: Order) -> Notice:
        """Return the notice that caused `order`; a made-up one when its case is gone or never was."""
        for case_id in order.case_ids:
            if case_id in self._p.ledger.state.cases:
                return self._p.ledger.state.cases[case_id].notice
        made_up = "lifted" if order.do is Do.NONE else "shutdown"
        return Notice(
            id=order.case_ids[0] if order.case_ids else made_up,
            provider="spotwatch",
            signal=made_up,
            kind=Kind.RECLAIM,
            seen_at=order.at,
        )

    def facts(self, order: Order) -> dict[str, Any]:
        """Return what tellers hear beside the notice."""
        known = self._p.trainers.facts()
        return {
            "do": order.do.value,
            "seq": order.seq,
            "why": order.why,
            "deadline": order.deadline,
            "step": known["step"],
            "saved_step": known["saved_step"],
            "save_seconds": known["save_seconds"],
        }

    # -- files ---------------------------------------------------------------------------------------------

    async def _write_files(self, order: Order, step: Step, notice: Notice) -> None:
        p = self._p
        if not await self.act(HANDSHAKE, p.handshake.fire(step, notice), order):
            return
        p.ledger.record("told", seq=order.seq, receiver=HANDSHAKE)
        if order.do is Do.FLUSH and not p.handshake.is_flag_owed:
            p.ledger.record("told", seq=order.seq, receiver=FLAG)

    def _raise_flag(self, order: Order) -> None:
        """Raise the flag where `fire` did not.

        For a flush, one that waited for an earlier flag, or that a crash kept from being raised; for a stop,
        one that no signal carries, so that a script that knows only the flag saves.
        """
        p = self._p
        in_force = p.handshake.order_in_force()
        is_for_us = order.do is Do.STOP or HANDSHAKE in order.told
        if FLAG in order.told or not is_for_us or in_force is None or in_force.seq != order.seq:
            return
        try:
            if p.handshake.raise_flag(in_force):
                p.handshake.forget_owed_flag()
                p.ledger.record("told", seq=order.seq, receiver=FLAG)
        except HandshakeError as error:
            self._tell_failure(FLAG, str(error), HANDSHAKE, 0.0)

    # -- records -------------------------------------------------------------------------------------------

    def _record_answer(self, order: Order, answer: str, *, is_nobody_here: bool = False) -> None:
        p = self._p
        p.handshake.forget_owed_flag()
        boot = p.clock.boot()
        if answer == "acknowledged" and order.do is Do.FLUSH and not is_nobody_here:
            p.ledger.record("saved", seconds=boot - order.boot, is_durable=False, boot=boot)
        final = [case for case in self.cases_of(order) if self._is_last_step(case, order)]
        p.ledger.record(
            "answered",
            seq=order.seq,
            do=order.do,
            answer=answer,
            waited_seconds=boot - order.boot,
            notice_to_saved_seconds=[boot - case.first_seen_boot for case in final],
            **({"why": "nobody is here who could save"} if is_nobody_here else {}),
        )
        if is_nobody_here and answer != "durable":
            # Nothing was saved that anybody could be told of.
            return
        for case in final:
            p.tellers.tell("saved", case.notice, self.facts(order) | {"answer": answer})

    def _is_last_step(self, case: Case, order: Order) -> bool:
        is_only_flush = respond(case.notice, self._p.policy) == "flush" and case.flushes == 1
        return order.do is Do.STOP or is_only_flush

    def _first_waits(self, order: Order) -> list[float]:
        """Return how long each case waited for the first order that it got."""
        boot = self._p.clock.boot()
        firsts = [c for c in self.cases_of(order) if c.flushes + (order.do is Do.STOP) == 1]
        return [boot - case.first_seen_boot for case in firsts]

    def _announce(self, order: Order) -> None:
        for case in self.cases_of(order):
            if case.notice.id not in self._announced:
                self._announced.add(case.notice.id)
                self._p.tellers.tell("notice", case.notice, self.facts(order))
        self._announced.intersection_update(self._p.ledger.state.cases)

    def _tell_failure(self, key: str, text: str, action: str, seconds: float) -> None:
        if self._errors.get(key) != text:
            self._errors[key] = text
            self._p.ledger.record("acted", action=action, result="failed", seconds=seconds, detail=text)
