# SPDX-License-Identifier: Apache-2.0
"""The document at `/status` as lines for people.

Any key may be missing or foreign: the daemon may be of another version, and files may be anybody's. It asks
nobody and reads no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from spotwatch.cli._words import ago, size, span, until
from spotwatch.masking import escape
from spotwatch.model import from_rfc3339

_SIGNAL_WIDTH = 22
_STATE_WIDTH = 12


def describe(document: Mapping[str, Any], now: datetime) -> Iterator[str]:
    """Yield the lines that a person reads."""
    head = [f"spotwatch {_text(document, 'spotwatch')}".strip()]
    if _text(document, "instance"):
        head.append(f"on {_text(document, 'instance')}")
    if document.get("dry_run") is True:
        head.append("(dry run: nothing is carried out)")
    yield " ".join(head)
    if document.get("draining") is True:
        yield "A stop has been ordered on this machine (draining)."
    # Files do not tell what is watched, and that is not nothing.
    nothing = "unknown, as no daemon told" if document.get("source") == "files" else "nothing"
    yield from _block("Watched", nothing, (_provider(row, now) for row in _rows(document, "providers")))
    yield from _block("Notices in force", "none", (_case(row, now) for row in _rows(document, "cases")))
    yield from _plan(document.get("plan"), now)
    yield from _block("Orders", "none", (_order(row, now) for row in _rows(document, "orders")))
    targets = document.get("targets")
    if isinstance(targets, list):
        yield f"Told at a stop: {', '.join(escape(str(t)) for t in targets) or 'nobody, flag and order only'}"
    yield from _block("Trainers", "none seen", (_trainer(row, now) for row in _rows(document, "trainers")))
    at_risk, estimate = _number(document, "work_at_risk_seconds"), _number(document, "estimate_seconds")
    if at_risk is not None:
        yield f"Work at risk: {span(at_risk)}"
    if estimate is not None:
        yield f"A save is expected to take {span(estimate)}"
    refused = document.get("refused")
    for line in refused if isinstance(refused, list) else ():
        yield f"Refused: {escape(str(line))}"


def _block(title: str, nothing: str, rows: Iterator[list[str]]) -> Iterator[str]:
    lines = [line for row in rows for line in row]
    yield f"{title}: {nothing}" if not lines else f"{title}:"
    yield from (f"  {line}" for line in lines)


def _provider(row: Mapping[str, Any], now: datetime) -> list[str]:
    every = _number(row, "interval_seconds")
    answers = [_text(signal, "state") == "ok" for signal in _rows(row, "signals")]
    state = "up" if row.get("up") is True else "up in part" if any(answers) else "not answering"
    lines = [f"{_text(row, 'name') or '?'}: {state}" + (f", asked every {span(every)}" if every else "")]
    for signal in _rows(row, "signals"):
        answered = _moment(signal, "answered_at")
        told = "never answered" if answered is None else f"answered {ago(answered, now)}"
        line = f"  {_text(signal, 'name'):<{_SIGNAL_WIDTH}} {_text(signal, 'state'):<{_STATE_WIDTH}} {told}"
        lines.append(line + _tail(_text(signal, "error")))
        if mend := _text(signal, "mend"):
            lines.append(f"  {'':<{_SIGNAL_WIDTH}} to mend it: {mend}")
    return lines


def _case(row: Mapping[str, Any], now: datetime) -> list[str]:
    deadline, seen = _moment(row, "deadline"), _moment(row, "first_seen_at")
    words = [_text(row, "provider"), _text(row, "signal"), _text(row, "kind")]
    line = " ".join(w for w in words if w) or _text(row, "id") or "?"
    if deadline is None:
        line += ", no deadline"
    else:
        certainty = _text(row, "certainty")
        line += f", deadline {until(deadline, now)}" + (f" ({certainty})" if certainty else "")
    if seen is not None:
        line += f", first seen {ago(seen, now)}"
    if _text(row, "evidence") == "weak":
        line += ", weak evidence"
    if phase := _text(row, "phase"):
        line += f", {phase}"
    return [line + _tail(_text(row, "detail"))]


def _plan(plan: Any, now: datetime) -> Iterator[str]:
    if not isinstance(plan, Mapping):
        return
    for do in ("flush", "stop"):
        step = plan.get(do)
        if isinstance(step, Mapping):
            at = _moment(step, "at")
            when = "" if at is None else f" {until(at, now)}" if at > now else " now"
            yield f"Next {do}:{when}{_tail(_text(step, 'why'))}"


def _order(row: Mapping[str, Any], now: datetime) -> list[str]:
    at = _moment(row, "at")
    words = [f"{_text(row, 'seq')} {_text(row, 'do')}".strip()]
    if at is not None:
        words.append(ago(at, now))
    if "answer" in row:
        words.append(_text(row, "answer") or "not answered yet")
    return [", ".join(words) + _tail(_text(row, "why"))]


def _trainer(row: Mapping[str, Any], now: datetime) -> list[str]:
    name = _text(row, "run_id") or "?"
    pid, speed = _text(row, "pid"), _number(row, "steps_per_second")
    line = name + (f" (pid {pid})" if pid else "") + f": {_text(row, 'phase') or 'phase unknown'}"
    line += f", step {_text(row, 'step')}" if _text(row, "step") else ""
    line += f", {speed:.3g} steps/s" if speed and row.get("fresh") is not False else ""
    line += _standing(row, now)
    lines = [line + _tail(_text(row, "error"))]
    saved = row.get("saved")
    saved_at = _moment(saved, "at") if isinstance(saved, Mapping) else None
    if isinstance(saved, Mapping) and saved_at is not None:
        lines.append(f"  last save: {', '.join(_saved(saved, saved_at, now))}")
    else:
        lines.append("  no durable save yet")
    return lines


def _standing(row: Mapping[str, Any], now: datetime) -> str:
    """Return how a trainer that does not report any more has ended, as far as it has said so."""
    heard = _moment(row, "at")
    when = "" if heard is None else f" {ago(heard, now)}"
    code = _text(row, "exit_code")
    if code:
        return f", left{when} with {code}"
    if row.get("fresh") is not False:
        return ""
    if _text(row, "phase") == "finished":
        return f", last heard{when}" if when else ""
    return ", silent for over 15 s: gone or hanging" + (f", last heard{when}" if when else "")


def _saved(saved: Mapping[str, Any], at: datetime, now: datetime) -> Iterator[str]:
    yield f"step {_text(saved, 'step')}"
    yield ago(at, now)
    if count := _number(saved, "size_bytes"):
        yield size(count)
    for key, word in (("save_seconds", "took"), ("stall_seconds", "training stalled")):
        if (seconds := _number(saved, key)) is not None:
            yield f"{word} {span(seconds)}"
    if url := _text(saved, "url"):
        yield url


def _tail(text: str) -> str:
    return f" - {text}" if text else ""


def _rows(row: Mapping[str, Any], key: str) -> Iterator[Mapping[str, Any]]:
    value = row.get(key)
    return iter([v for v in value if isinstance(v, Mapping)] if isinstance(value, list) else [])


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return "" if value is None or isinstance(value, bool | list | dict) else escape(str(value))


def _number(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18  # noqa: PLR2004 - NaN and what no clock or disk holds
    return float(value) if is_number and value is not None else None


def _moment(row: Mapping[str, Any], key: str) -> datetime | None:
    value = row.get(key)
    try:
        return from_rfc3339(value) if isinstance(value, str) else None
    except ValueError:
        return None
