# SPDX-License-Identifier: Apache-2.0
"""`spotwatch checkpoints prune`: remove by hand what a trainer would remove after a save, and say why.

Which go is decided by `spotwatch.train.registry.pruning`. What LATEST or its parent names never goes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from spotwatch.cli._words import size
from spotwatch.cli.checkpoints import lease
from spotwatch.cli.checkpoints.run import answering, find_one, pointer_of, run_options
from spotwatch.errors import CheckpointCorrupt, RunTaken, StoreError
from spotwatch.train.registry import pruning
from spotwatch.train.registry.listing import Found
from spotwatch.train.registry.manifest import LATEST, Latest
from spotwatch.train.registry.pruning import LEAST_KEPT, Rules
from spotwatch.train.registry.registry import Registry

_KEPT = 3
"""As `Checkpointer` keeps them."""

_EPILOG = """\b
Examples:
  spotwatch checkpoints prune s3://bucket/checkpoints/sweep-01 --dry-run
  spotwatch checkpoints prune s3://bucket/checkpoints/sweep-01 --keep 2 --quarantined --yes
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What goes, why, and what LATEST said when that was decided."""

    latest: Latest | None
    goes: tuple[tuple[Found, str], ...]
    stays: tuple[str, ...]


@click.command(name="prune", short_help="Remove what is old or broken.", epilog=_EPILOG)
@run_options
@click.option(
    "--keep",
    type=click.IntRange(min=LEAST_KEPT),
    default=_KEPT,
    show_default=True,
    help="So many good ones stay.",
)
@click.option("--quarantined", is_flag=True, help="Also those in quarantine that are as new.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Although a trainer holds the run's lease.")
def command(
    *,
    url: str,
    run_id: str | None,
    as_json: bool,
    keep: int,
    quarantined: bool,
    dry_run: bool,
    yes: bool,
    force: bool,
) -> None:
    """Remove old checkpoints, old unhealthy ones, and what saves that died have left behind.

    What LATEST and its parent name stays. A trainer prunes by itself after each save, so this is for runs
    that are over: it refuses while one holds the lease. A lease that was not given back is watched for as
    long as it lasts, a minute.
    """
    with answering():
        registry = find_one(url, run_id)
        # Before the listing: what a trainer that begins from here on makes is of a later generation.
        dead_below = _dead_below(registry, is_looking=dry_run or force)
        plan = make_plan(registry, keep, dead_below, quarantined=quarantined)
        if not as_json or not (dry_run or yes):
            for line in _describe(plan, registry.store.url):
                click.echo(line, err=as_json)
        removed: list[str] = []
        if plan.goes and not dry_run:
            _ask(len(plan.goes), is_agreed=yes)
            for directory in _remove(registry, plan):
                removed.append(directory)
                click.echo(f"Removed {directory}", err=as_json)
    if as_json:
        click.echo(json.dumps(_document(registry, plan, removed, dry_run=dry_run), indent=2))


def make_plan(registry: Registry, keep: int, dead_below: int, *, quarantined: bool) -> Plan:
    """Return what would go.

    Args:
        registry: of the run.
        keep: how many good ones stay.
        dead_below: a save of a lower generation without a manifest is certainly under way no more.
        quarantined: those in quarantine go, however new, as long as a good one stays.

    Raises:
        StoreError: the store refuses; or what LATEST names, and hence its parent, cannot be told.
        ConfigError: what LATEST names is of a later version.
    """
    latest, named = _named(registry)
    if latest is not None:
        dead_below = max(dead_below, latest.generation)
    found = registry.checkpoints()
    goes = pruning.condemned(found, Rules(keep=keep, named=named, dead_below=dead_below))
    has_good = any(one.is_complete and one.is_healthy and not one.is_quarantined for one in found)
    if quarantined and has_good:
        # A good one stays by the rules; without any, one of these may be all that is left of the run.
        goes = [one for one in found if one in goes or (one.is_quarantined and one.dir not in named)]
    names = {one.dir for one in goes}
    return Plan(
        latest,
        tuple((one, _why(one, keep)) for one in goes),
        tuple(one.dir for one in found if one.dir not in names),
    )


def _named(registry: Registry) -> tuple[Latest | None, set[str | None]]:
    latest, problem = pointer_of(registry)
    if latest is None and not problem:
        return None, set()
    try:
        if latest is not None:
            return latest, {latest.dir, registry.manifest(latest.dir, latest.manifest_crc).parent}
    except CheckpointCorrupt as error:
        problem = f"it names a damaged checkpoint: {error}"
    raise StoreError(
        f"{registry.store.url}/{LATEST}: {problem}. Which checkpoints must stay cannot be told, so none "
        f"goes: resume the run first, whose next save writes {LATEST} anew; `spotwatch checkpoints verify` "
        f"says from which checkpoint it would go on"
    )


def _why(one: Found, keep: int) -> str:
    if one.is_quarantined:
        return "it did not verify"
    if not one.is_complete:
        return "its save died on the way"
    if not one.is_healthy:
        return "unhealthy, and newer ones of that kind are kept"
    return f"older than the newest {keep}"


def _dead_below(registry: Registry, *, is_looking: bool) -> int:
    """Return the generation that the next trainer has at least; 0 when there may be one at work.

    Args:
        registry: of the run.
        is_looking: whether a trainer is at work or not, it is all right.

    Raises:
        RunTaken: a trainer is at work.
        StoreError: the store refuses.
    """
    claim, problem = lease.read(registry.store)
    state = lease.state_of(claim, problem)
    if state in ("held", "unreadable"):
        shown = lease.line(lease.document(claim, problem))
        if is_looking:
            click.echo(shown, err=True)
            return 0
        click.echo(f"{shown}; watching whether it is renewed ...", err=True)
        if lease.is_alive(registry.store):
            raise RunTaken(
                f"{shown}: it is in use; its trainer prunes by itself, and --force does it all the same"
            )
    return 0 if claim is None else claim.generation + 1


def _ask(count: int, *, is_agreed: bool) -> None:
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nobody is here to ask; give --yes, or look first with --dry-run")
    click.confirm(f"Remove {count}?", abort=True, err=True)


def _remove(registry: Registry, plan: Plan) -> Iterator[str]:
    for one, _ in plan.goes:
        # A trainer that has begun meanwhile may have gone back to any of them.
        if pointer_of(registry) != (plan.latest, ""):
            raise StoreError(
                f"{registry.store.url}: LATEST has moved since the list was made; nothing more goes"
            )
        yield from pruning.remove(registry.store, [one])


def _describe(plan: Plan, url: str) -> Iterator[str]:
    if not plan.goes:
        yield f"{url}: nothing to remove, {len(plan.stays)} stay"
        return
    total = size(sum(one.size_bytes for one, _ in plan.goes))
    yield f"{url}: {len(plan.goes)} to remove, {total}; {len(plan.stays)} stay"
    for one, why in plan.goes:
        yield f"  {one.dir}  {size(one.size_bytes):>10}  {why}"


def _document(registry: Registry, plan: Plan, removed: list[str], *, dry_run: bool) -> Mapping[str, Any]:
    return {
        "version": 1,
        "url": registry.store.url,
        "run_id": registry.run_id,
        "dry_run": dry_run,
        "condemned": [{"dir": one.dir, "size_bytes": one.size_bytes, "why": why} for one, why in plan.goes],
        "removed": removed,
        "stays": list(plan.stays),
    }
