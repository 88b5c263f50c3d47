# SPDX-License-Identifier: Apache-2.0
"""What trainers say of themselves, and whether a save of theirs fits the notice of the cloud.

Only files in `status/` that the daemon would believe are believed here; nothing is sent to a trainer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime

from spotwatch.checks.clouds import Clouds
from spotwatch.checks.finding import Finding, fail, ok, skip, warn
from spotwatch.checks.limits import in_thread
from spotwatch.checks.machine import Machine, Saves
from spotwatch.checks.places import SUDO, hidden
from spotwatch.handshake import STATUS_DIR, Status
from spotwatch.policy import Policy
from spotwatch.save_fit import Fit, fit

NAME = "trainer"
_SHOWN_OVER = 3


async def ask_trainers(machine: Machine) -> list[Finding]:
    """Return a line for each trainer that reports, and for each report that does not count."""
    statuses, refused = await machine.statuses()
    now = machine.clock.now()
    findings = judge_statuses(statuses, now)
    mend = "remove the file, or set target.user or flag.owner to the trainer's user"
    if os.geteuid() != 0:
        # The daemon may be another user, who may read more and believes other owners.
        mend = f"{SUDO}; if the line stays, {mend}"
    findings += [warn("trainer.refused", line, mend) for line in refused]
    if statuses or refused:
        return findings
    folder = machine.settings.runtime_dir / STATUS_DIR
    if is_hidden := await in_thread(hidden, folder):
        return [skip(NAME, f"{is_hidden}: what trainers report cannot be read", SUDO)]
    return [
        skip(
            NAME,
            "none reports: without the library only the flag and the signal are known",
            "nothing to mend if yours reads the flag; else set SPOTWATCH_RUNTIME_DIR for it, to "
            f"{machine.settings.runtime_dir}",
        )
    ]


def judge_statuses(statuses: Sequence[Status], now: datetime) -> list[Finding]:
    """Return a line for each run, the newest first; of many that are over, one for all but the newest."""
    newest = sorted(statuses, key=lambda status: status.at, reverse=True)
    over = [status for status in newest if _is_over(status, now)]
    folded = over[_SHOWN_OVER:] if len(over) > _SHOWN_OVER + 1 else []
    findings = [judge_status(status, now) for status in newest if status not in folded]
    if folded:
        ended = sum(map(_has_ended, folded))
        said = f"{len(folded)} earlier runs are over: {ended} ended, {len(folded) - ended} fell silent"
        findings.append(ok(NAME, said))
    return findings


def _is_over(status: Status, now: datetime) -> bool:
    return _has_ended(status) or not status.is_fresh(now)


def _has_ended(status: Status) -> bool:
    return status.phase == "finished" or status.exit_code is not None


def judge_status(status: Status, now: datetime) -> Finding:
    """Return what one report amounts to."""
    who = f"{status.run_id} (pid {status.pid}): {status.phase}, step {status.step}"
    age = (now - status.at).total_seconds()
    saved = status.saved
    if status.phase == "finished" or status.exit_code is not None:
        return _judge_end(status, who)
    if not status.is_fresh(now):
        when = f"{age:.0f} s ago" if age >= 0 else "in the future"
        mend = "see whether it still runs; if it has ended, remove its file in status/"
        return fail(NAME, f"{who}, reported {when}: it is gone or hangs", mend)
    if status.error or status.phase == "failed":
        mend = "see the trainer's log: credentials, space and address of the checkpoint store"
        return fail(NAME, f"{who}; its last save failed: {status.error or 'no reason given'}", mend)
    if saved.at is None:
        mend = "wait for the first save, or ask for one: spotwatch trigger flush, then clear"
        return warn(NAME, f"{who}; nothing saved yet", mend)
    seconds = (now - saved.at).total_seconds()
    return ok(NAME, f"{who}; step {saved.step} saved {seconds:.0f} s ago in {saved.save_seconds:.3g} s")


def _judge_end(status: Status, who: str) -> Finding:
    said = who if status.exit_code is None else f"{who}; it has left with {status.exit_code}"
    if status.phase != "failed":
        return ok(NAME, said)
    mend = "see its log and start it again; or remove its file in status/ if another run has taken its place"
    return warn(NAME, f"{said}: {status.error or 'no reason given'}", mend)


async def ask_saves(machine: Machine, clouds: Clouds) -> list[Finding]:
    """Return, for each cloud watched, what its notice is long enough for."""
    saves = await machine.saves()
    policy = machine.settings.policy
    return [*judge_windows(clouds.windows, saves, policy), *_judge_journal(saves)]


def judge_windows(windows: dict[str, float], saves: Saves, policy: Policy) -> Iterator[Finding]:
    """Yield what fits into the shortest notice of each cloud."""
    for cloud, window in windows.items():
        name = f"window.{cloud}"
        said = f"{window:g} s at least; a save may take {saves.seconds:.3g} s ({saves.source})"
        match fit(window, saves.seconds, policy):
            case Fit.NONE:
                mend = "save often, and faster if you can: what was saved before the notice is what stays"
                yield warn(name, f"{said}: only periodic saves count here", mend)
            case Fit.TIGHT:
                mend = "save faster, or accept that a slow save may come too late"
                yield warn(name, f"{said}: one save, with less than the safety asked for", mend)
            case what:
                yield ok(name, f"{said}: {what.value}")


def _judge_journal(saves: Saves) -> Iterator[Finding]:
    if saves.unreadable:
        yield warn(
            "journal",
            f"{saves.unreadable} line{'s' if saves.unreadable > 1 else ''} cannot be read and left out",
            "nothing, after a crash; else see whether the disk is sound",
        )
