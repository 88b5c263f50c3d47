# SPDX-License-Identifier: Apache-2.0
"""What is known of cases, orders and saves, and how each kind of event changes it.

The only code that changes state: live events and those of a journal take the same way, so that a replay gives
the same state. It reads no clock and does not decide which events happen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spotwatch.cases import Case, Phase
from spotwatch.handshake import MAX_STATUS_FILES
from spotwatch.model import Do, Event, to_rfc3339
from spotwatch.records import Order, SaveRecord, as_moment

KEPT_ORDERS = 20
KEPT_SAVES = 5
"""Of each run: two trainers of one machine may save at very different paces."""
KEPT_RUNS = MAX_STATUS_FILES
"""As many as may report at once: none of them pushes out another, nor what is known of a run that goes on."""


@dataclass(slots=True)
class State:
    """The state, without behaviour beyond applying events."""

    boot_id: str
    instance: str = ""
    highest_seq: int = 0
    cases: dict[str, Case] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)
    saves: list[SaveRecord] = field(default_factory=list)
    last_weak_flush_boot: float | None = None
    """Outlives its case: whoever forges notices can end them as well."""

    def apply(self, event: Event) -> None:
        """Change the state as `event` says; one that is only told (not kept) changes nothing.

        Raises:
            KeyError, ValueError, TypeError, IllegalMoveError: the event does not fit this state.
        """
        handler = _HANDLERS.get(event.name)
        if handler is not None:
            handler(self, event)

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state as the data of a `snapshot` event."""
        return {
            "boot_id": self.boot_id,
            "instance": self.instance,
            "highest_seq": self.highest_seq,
            "cases": [case.to_json() for case in self.cases.values()],
            "orders": [order.to_json() for order in self.orders],
            "saves": [save.to_json() for save in self.saves],
            "last_weak_flush_boot": self.last_weak_flush_boot,
        }


def _snapshot(state: State, event: Event) -> None:
    data = event.data
    state.boot_id = str(data["boot_id"])
    state.instance = str(data.get("instance", ""))
    state.highest_seq = int(data["highest_seq"])
    state.cases = {case.notice.id: case for case in map(Case.from_json, data["cases"])}
    state.orders = [Order.from_json(row) for row in data["orders"]]
    state.saves = [SaveRecord.from_json(row) for row in data["saves"]]
    # Journals of before it have none.
    weak = [c.last_flush_boot for c in state.cases.values() if c.is_weak and c.last_flush_boot is not None]
    kept = data.get("last_weak_flush_boot")
    state.last_weak_flush_boot = max(weak, default=None) if kept is None else float(kept)


def _noticed(state: State, event: Event) -> None:
    state.cases[event.case_id] = Case.opened(event)


def _stale(state: State, event: Event) -> None:
    case = Case.opened(event)
    case.move(Phase.CLOSED)
    case.outcome = "stale"
    state.cases[event.case_id] = case


def _changed(state: State, event: Event) -> None:
    state.cases[event.case_id].change(event)


def _time_given(state: State, event: Event) -> None:
    case = state.cases[event.case_id]
    case.slides += 1
    case.newest_deadline = as_moment(event.data["deadline"])


def _decided(state: State, event: Event) -> None:
    state.cases[event.case_id].flush_first = bool(event.data["flush_first"])


def _ordered(state: State, event: Event) -> None:
    data = event.data
    order = Order(
        seq=int(data["seq"]),
        do=Do(data["do"]),
        why=str(data["why"]),
        at=event.at,
        boot=float(data["boot"]),
        deadline=as_moment(data.get("deadline")),
        case_ids=tuple(data["cases"]),
        procs=dict(data.get("procs", {})),
    )
    state.orders = [*state.orders, order][-KEPT_ORDERS:]
    state.highest_seq = max(state.highest_seq, order.seq)
    for case_id in order.case_ids:
        case = state.cases.get(case_id)
        if case is None or case.phase is Phase.CLOSED:
            continue
        if order.do is Do.FLUSH:
            case.move(Phase.FLUSHING)
            case.flushes += 1
            case.last_flush_boot = order.boot
            if case.is_weak:
                state.last_weak_flush_boot = order.boot
        elif order.do is Do.STOP:
            case.move(Phase.STOPPING)
        case.last_seq = order.seq


def _joined(state: State, event: Event) -> None:
    case = state.cases[event.case_id]
    case.move(Phase.STOPPING)
    case.last_seq = int(event.data["seq"])
    order = _find_order(state, case.last_seq)
    if order is not None and order.answer:
        case.move(Phase.STOPPED)


def _told(state: State, event: Event) -> None:
    order = _find_order(state, int(event.data["seq"]))
    if order is None:
        return
    receiver = str(event.data["receiver"])
    if receiver not in order.told:
        order.told.append(receiver)
    if event.data.get("procs") and not order.procs.get(receiver):
        # It was not there yet when the order was given.
        order.procs[receiver] = list(event.data["procs"])


def _files_lost(state: State, event: Event) -> None:
    order = _find_order(state, int(event.data["seq"]))
    if order is not None:
        order.told = [receiver for receiver in order.told if receiver not in event.data["receivers"]]


def _answered(state: State, event: Event) -> None:
    """An answer to an order answers all earlier ones: what was saved later contains them."""
    seq = int(event.data["seq"])
    for order in state.orders:
        if order.seq <= seq and not order.answer:
            order.answer = str(event.data["answer"])
            order.answered_at = event.at
    for case in state.cases.values():
        if 0 < case.last_seq <= seq:
            if case.phase is Phase.FLUSHING:
                case.move(Phase.FLUSHED)
            elif case.phase is Phase.STOPPING:
                case.move(Phase.STOPPED)


def _saved(state: State, event: Event) -> None:
    save = SaveRecord.from_json({**event.data, "at": to_rfc3339(event.at)})
    kept: list[SaveRecord] = []
    of_run: Counter[str] = Counter()
    for one in reversed([*state.saves, save]):
        is_of_a_kept_run = one.run_id in of_run or len(of_run) < KEPT_RUNS
        if is_of_a_kept_run and of_run[one.run_id] < KEPT_SAVES:
            of_run[one.run_id] += 1
            kept.append(one)
    state.saves = kept[::-1]


def _missed(state: State, event: Event) -> None:
    state.cases[event.case_id].has_missed = True


def _released(state: State, event: Event) -> None:
    state.cases[event.case_id].is_released = True


def _gone(state: State, event: Event) -> None:
    """The notice is gone from the cloud: its id is free for another one."""
    state.cases.pop(event.case_id).move(Phase.CLOSED)


def _survived(state: State, event: Event) -> None:
    """The notice may linger in the metadata; the closed case stays, so that it is not taken for a new one."""
    case = state.cases[event.case_id]
    case.move(Phase.CLOSED)
    case.outcome = event.name


def _forgotten(state: State, event: Event) -> None:
    state.cases.pop(event.case_id, None)


def _other_machine(state: State, event: Event) -> None:
    """Nothing of another boot or machine is acted upon; how long saves take is still worth knowing."""
    state.cases.clear()
    state.orders.clear()
    state.last_weak_flush_boot = None
    state.boot_id = str(event.data["boot_id"])
    state.instance = str(event.data.get("instance", ""))
    for save in state.saves:
        save.boot = None


def _identified(state: State, event: Event) -> None:
    state.instance = str(event.data["instance"])


def _find_order(state: State, seq: int) -> Order | None:
    return next((order for order in state.orders if order.seq == seq), None)


_HANDLERS: Mapping[str, Callable[[State, Event], None]] = {
    "snapshot": _snapshot,
    "noticed": _noticed,
    "notice_stale": _stale,
    "notice_changed": _changed,
    "time_given": _time_given,
    "decided": _decided,
    "ordered": _ordered,
    "joined": _joined,
    "told": _told,
    "files_lost": _files_lost,
    "answered": _answered,
    "saved": _saved,
    "missed": _missed,
    "released": _released,
    "withdrawn": _gone,
    "passed": _gone,
    "survived": _survived,
    "forgotten": _forgotten,
    "other_machine": _other_machine,
    "identified": _identified,
}
