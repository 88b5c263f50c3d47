# SPDX-License-Identifier: Apache-2.0
"""Which checkpoints go: all but the newest good ones, a few that are unhealthy, and what died on the way.

What LATEST or its parent names stays whatever its rank. Rank is (generation, step): a life that began at an
older step does not lose its checkpoints to the higher steps of the life before. It publishes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from spotwatch.train.registry.listing import Found
from spotwatch.train.registry.manifest import MANIFEST
from spotwatch.train.store import Store

LEAST_KEPT = 2
"""The newest may turn out to be damaged."""
_UNHEALTHY_KEPT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is known beside the listing.

    Args:
        keep: how many good checkpoints stay; fewer than two are two.
        named: directories that stay: those of LATEST, its parent, and the save under way; None is nothing.
        bad: directories that did not verify, beside those marked as such.
        most_generation: that of this life; nothing of a later one is touched.
        dead_below: a directory without a manifest, of a generation below this one, died on the way.
    """

    keep: int
    named: Collection[str | None] = ()
    bad: Collection[str] = ()
    most_generation: float = math.inf
    dead_below: int = 0


def condemned(found: Sequence[Found], rules: Rules) -> list[Found]:
    """Return what goes, of directories in the order of `listing.found_in`."""
    keep = max(rules.keep, LEAST_KEPT)
    bad = {one.dir for one in found if one.is_quarantined or one.dir in rules.bad}
    whole = [one for one in found if one.is_complete and one.dir not in bad]
    good = [one for one in whole if one.is_healthy]
    unhealthy = [one.dir for one in whole if not one.is_healthy]
    # Of one (generation, step) there may be two attempts, and nothing tells which is the later one.
    floor = good[keep - 1].order if len(good) >= keep else None

    def goes(one: Found) -> bool:
        if one.dir in bad:
            return sum(other.order > one.order for other in good) >= keep
        if not one.is_complete:
            return one.order[0] < rules.dead_below
        if not one.is_healthy:
            return one.dir not in unhealthy[:_UNHEALTHY_KEPT]
        return floor is not None and one.order < floor

    mine = (one for one in found if one.dir not in rules.named and one.order[0] <= rules.most_generation)
    return [one for one in mine if goes(one)]


def remove(store: Store, condemned: Sequence[Found]) -> Iterator[str]:
    """Remove directories, and yield each one that is gone.

    Raises:
        StoreError: the store refuses.
    """
    for one in condemned:
        # Without its manifest first, what is left of it can never be taken for a checkpoint.
        for name in sorted(one.sizes, key=lambda name: name != MANIFEST):
            store.delete(f"{one.dir}/{name}")
        yield one.dir
