# SPDX-License-Identifier: Apache-2.0
"""`spotwatch checkpoints verify`: is every byte of a checkpoint what its manifest says?

Bytes are checked by `spotwatch.train.registry.inventory` and kept nowhere. Nothing in the store is changed,
unless bad checkpoints are to be marked.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from spotwatch.cli._words import size, span
from spotwatch.cli.checkpoints.run import answering, find_one, pick, pointer_of, run_options
from spotwatch.clock import SystemClock
from spotwatch.errors import CheckpointCorrupt, ConfigError, StoreError
from spotwatch.masking import escape
from spotwatch.train.registry import inventory, quarantine
from spotwatch.train.registry.listing import Candidate, Found
from spotwatch.train.registry.manifest import Latest
from spotwatch.train.registry.registry import Registry

VERIFIED = "verified"
BAD = "bad"
UNFINISHED = "unfinished"
LATER = "later"
REMOVED = "removed"
_MB = 1e6
_PATIENCE_SECONDS = 10.0

_EPILOG = """\b
Examples:
  spotwatch checkpoints verify s3://bucket/checkpoints/sweep-01          LATEST and its parent
  spotwatch checkpoints verify s3://bucket/checkpoints/sweep-01 --all --quarantine
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one checkpoint."""

    dir: str
    status: str
    """`verified`, `bad`, `unfinished` (it has no manifest), `later` (of a later version of spotwatch), or
    `removed` (by a pruner, meanwhile).
    """
    size_bytes: int = 0
    """That were read and right."""
    seconds: float = 0.0
    problem: str = ""
    is_marked: bool = False
    """It has been put into quarantine now."""


@dataclass(slots=True)
class _Check:
    """One call of `verify`."""

    registry: Registry
    latest: Latest | None
    found: Sequence[Found]
    is_marking: bool
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self, directory: str) -> Outcome:
        """Check one checkpoint.

        Raises:
            StoreError: the store refuses.
        """
        monotonic = SystemClock().monotonic
        begun_at = monotonic()
        arrived = 0
        status, problem = VERIFIED, ""
        try:
            crc = self.latest.manifest_crc if self.latest and self.latest.dir == directory else None
            manifest = self.registry.manifest(directory, crc)
            with _bar(directory, manifest.size_bytes) as advance:

                def progress(so_far: int) -> None:
                    nonlocal arrived
                    advance(so_far - arrived)
                    arrived = so_far

                inventory.verify(self.registry, directory, progress, patience_seconds=_PATIENCE_SECONDS)
        except CheckpointCorrupt as error:
            status, problem = self._judged(directory), str(error)
        except ConfigError as error:
            status, problem = LATER, str(error)
        outcome = Outcome(
            dir=directory,
            status=status,
            size_bytes=arrived,
            seconds=monotonic() - begun_at,
            problem=problem if problem.startswith(directory) or not problem else f"{directory}: {problem}",
            is_marked=status == BAD and self.is_marking and self._mark(directory, problem),
        )
        self.outcomes.append(outcome)
        return outcome

    def goes_on_from(self) -> str | None:
        """Return the directory that a resume would try first, of those not found bad.

        None: there is none, or it is of a later version, and a resume goes behind none such.

        Raises:
            StoreError: the store refuses.
        """
        known = {one.dir: one.status for one in self.outcomes}
        for one in self.registry.candidates(self.latest, self.found):
            status = known.get(one.dir) or self._glance(one)
            if status in (VERIFIED, LATER):
                return one.dir if status == VERIFIED else None
        return None

    def _glance(self, candidate: Candidate) -> str:
        try:
            self.registry.manifest(candidate.dir, candidate.manifest_crc)
        except CheckpointCorrupt:
            return BAD
        except ConfigError:
            return LATER
        return VERIFIED

    def _judged(self, directory: str) -> str:
        before = next((one for one in self.found if one.dir == directory), None)
        if before is None:
            return BAD
        if not before.is_complete:
            return BAD if self.latest is not None and self.latest.dir == directory else UNFINISHED
        # Its trainer may have pruned it under our hands.
        return BAD if any(one.dir == directory for one in self.registry.checkpoints()) else REMOVED

    def _mark(self, directory: str, problem: str) -> bool:
        if not any(one.dir == directory for one in self.found):
            return False  # LATEST names what is not there, and marking must not make it
        self.registry.quarantine(directory, problem)
        if not quarantine.reason(self.registry.store, directory):
            raise StoreError(f"{self.registry.store.url}/{directory} could not be put into quarantine")
        return True


@click.command(name="verify", short_help="Is every byte what it should be?", epilog=_EPILOG)
@run_options
@click.argument("which", nargs=-1, metavar="[DIR|STEP|LATEST]...")
@click.option("--all", "is_all", is_flag=True, help="Every complete checkpoint of the run.")
@click.option(
    "--quarantine", "is_marking", is_flag=True, help="Mark bad ones, so that a resume tries them last."
)
@click.pass_context
def command(
    context: click.Context,
    *,
    url: str,
    which: tuple[str, ...],
    run_id: str | None,
    as_json: bool,
    is_all: bool,
    is_marking: bool,
) -> None:
    """Download checkpoints and check every byte; by default the one that LATEST names, and its parent.

    It needs the memory of a few parts, whatever the size. Exits 1 when something does not verify, and says
    from which checkpoint a resume would go on.
    """
    if which and is_all:
        raise click.UsageError("name checkpoints, or give --all")
    with answering():
        registry = find_one(url, run_id)
        latest, problem = pointer_of(registry)
        check = _Check(registry, latest, registry.checkpoints(), is_marking)
        if problem and not as_json:
            click.echo(f"LATEST: {escape(problem)}")
        for directory in _chosen(check, which, is_all=is_all):
            outcome = check.run(directory)
            if not as_json:
                click.echo(_line(outcome))
        document = _document(check, problem)
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        for line in _summary(document):
            click.echo(line)
    if not document["ok"]:
        context.exit(1)


def _chosen(check: _Check, which: tuple[str, ...], *, is_all: bool) -> list[str]:
    latest, found = check.latest, check.found
    if which:
        return list(dict.fromkeys(pick(word, latest, found) for word in which))
    if is_all:
        names = [one.dir for one in found if one.is_complete]
        # What LATEST names and nobody has is looked for all the same, and found missing.
        if latest is not None and latest.dir not in names:
            names.insert(0, latest.dir)
    elif latest is not None:
        names = [latest.dir, *_parent(check, latest)]
    else:
        names = [one.dir for one in check.registry.candidates(None, found)[:1]]
    if not names:
        raise StoreError(f"{check.registry.store.url} holds no complete checkpoint yet")
    return names


def _parent(check: _Check, latest: Latest) -> list[str]:
    try:
        parent = check.registry.manifest(latest.dir, latest.manifest_crc).parent
    except (CheckpointCorrupt, ConfigError):
        return []  # said when LATEST's own turn comes
    return [parent] if parent is not None and any(one.dir == parent for one in check.found) else []


@contextlib.contextmanager
def _bar(label: str, length: int) -> Iterator[Callable[[int], None]]:
    """Show progress on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        yield bar.update


def _document(check: _Check, problem: str) -> dict[str, Any]:
    outcomes = check.outcomes
    total, seconds = sum(one.size_bytes for one in outcomes), sum(one.seconds for one in outcomes)
    goes_on_from = check.goes_on_from()
    is_checked = any(one.dir == goes_on_from and one.status == VERIFIED for one in outcomes)
    return {
        "version": 1,
        "url": check.registry.store.url,
        "run_id": check.registry.run_id,
        "ok": not problem and all(one.status in (VERIFIED, REMOVED) for one in outcomes),
        "latest_problem": problem,
        "checkpoints": [
            {
                "dir": one.dir,
                "status": one.status,
                "size_bytes": one.size_bytes,
                "seconds": round(one.seconds, 3),
                "problem": one.problem,
                "quarantined_now": one.is_marked,
            }
            for one in outcomes
        ],
        "size_bytes": total,
        "seconds": round(seconds, 3),
        "megabytes_per_second": round(total / _MB / seconds, 1) if seconds else 0.0,
        "resume": None if goes_on_from is None else {"dir": goes_on_from, "verified": is_checked},
    }


def _line(outcome: Outcome) -> str:
    if outcome.status == VERIFIED:
        return f"{outcome.dir}: verified, {size(outcome.size_bytes)}"
    marked = "; it is in quarantine now" if outcome.is_marked else ""
    return f"{outcome.dir}: {outcome.status.upper()} - {escape(outcome.problem, limit=1_000)}{marked}"


def _summary(document: Mapping[str, Any]) -> Iterator[str]:
    rate = document["megabytes_per_second"]
    yield f"Read {size(document['size_bytes'])} in {span(document['seconds'])}: {rate:.0f} MB/s"
    resume = document["resume"]
    if document["ok"]:
        return
    if resume is None:
        yield "A resume would refuse to start: none of these can be used, and no other is left"
    else:
        how = "verified just now" if resume["verified"] else "not checked here; it checks before it goes on"
        yield f"A resume would go on from {resume['dir']} ({how})"
