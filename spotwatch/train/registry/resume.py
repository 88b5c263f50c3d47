# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint all ranks go on from: what LATEST names, else the newest other that verifies, else none.

Trouble with the store is never taken for an empty one. It neither fetches nor restores: its caller does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from spotwatch.errors import CheckpointCorrupt, ConfigError, StoreError
from spotwatch.model import JSON
from spotwatch.train.consensus import Consensus
from spotwatch.train.registry import download
from spotwatch.train.registry.listing import Candidate, Found
from spotwatch.train.registry.manifest import LATEST, Latest, Manifest
from spotwatch.train.registry.patience import patiently, waiting_with
from spotwatch.train.registry.registry import Registry
from spotwatch.train.world import World

log = logging.getLogger("spotwatch.train")
T = TypeVar("T")


class Resume:
    """Finds the checkpoint to go on from, the same on all ranks.

    Only the first rank lists, reads LATEST and marks what is bad; the others hear of it.

    Args:
        registry: of the run; learns generation, writer, parent, and which checkpoints are bad.
        world: the ranks of the run.
        patience_seconds: for how long a store that refuses is asked again.
        between: called often; what it raises ends the search on all ranks (a stop was ordered).
        raise_to: takes the highest generation that the store shows and returns ours, which is higher
            (`Lease.raise_to`); None: one more, or what the registry has.
    """

    def __init__(
        self,
        registry: Registry,
        world: World,
        patience_seconds: float,
        between: Callable[[], None],
        raise_to: Callable[[int], int] | None = None,
    ) -> None:
        self._registry = registry
        self._world = world
        self._patience_seconds = patience_seconds
        self._between = between
        self._consensus = Consensus(world, between)
        self._raise_to = raise_to
        self._found: dict[str, Found] = {}
        self._left: list[Candidate] = []
        self._offered: Manifest | None = None
        self._claimed: str | None = None
        self._unmarked: dict[str, str] = {}
        self.problems: list[str] = []
        """Why checkpoints were passed over."""
        self.has_latest = False
        """LATEST was there when it was last read, and nothing is known against what it names."""

    def load(self, fetch: Callable[[Manifest], None], *, allow_fresh: bool) -> Manifest | None:
        """Return the best checkpoint that all ranks have verified and restored; None on a fresh run.

        At return LATEST is ours (`Registry.claim`).

        Args:
            fetch: downloads, verifies and restores this rank's part; raises `CheckpointCorrupt` to have the
                next one tried, and calls `between` often. It is called on all ranks or on none.
            allow_fresh: begin at nothing although checkpoints exist of which none verifies; the first rank's
                counts.

        Raises:
            StoreError: the store cannot be read, or holds checkpoints of which none verifies, here or on
                another rank.
            ConfigError: a checkpoint was written by a later spotwatch.
            RunTaken: another process has gone on with the run.
            StoppedElsewhere: what `between` raised, it raised on another rank.
        """
        told = self._consensus.tell(self._begin)
        self._registry.generation, self._registry.writer = told["generation"], told["writer"]
        while True:
            offer = self._consensus.tell(lambda: self._next(allow_fresh=allow_fresh))
            if offer is None:
                return None
            self.problems = list(offer["problems"])
            try:
                manifest = self._consensus.reach(partial(self._take, offer))
                self._consensus.reach(partial(fetch, manifest))
            except CheckpointCorrupt as error:
                self._pass_over(offer["dir"], error)
                continue
            self._registry.parent = manifest.dir
            if self._world.is_first and self._is_quarantined(manifest.dir):
                self._registry.release(manifest.dir)
            return manifest

    def newest_manifest(self) -> Manifest | None:
        """Return the manifest that LATEST names, when both are sound; the store is asked once, if at all."""
        if self._offered is not None and self._offered.dir == self._claimed:
            # LATEST is ours: whoever moves it from now on has the run, and work that is durable.
            return self._offered
        try:
            latest = self._registry.latest()
            self.has_latest = latest is not None
            if latest is None:
                return None
            return self._registry.manifest(latest.dir, latest.manifest_crc)
        except (StoreError, ConfigError) as error:
            if isinstance(error, (CheckpointCorrupt, ConfigError)):
                self.has_latest = False
            log.warning("cannot tell what is durable: %s", error)
            return None

    def _begin(self) -> dict[str, JSON]:
        """Learn what there is, on the first rank, and make LATEST ours."""
        registry = self._registry
        while True:
            latest, found = self._patient(self._survey)
            seen = [one.order[0] for one in found]
            if latest is not None and latest.writer != registry.writer:
                seen.append(latest.generation)
            registry.generation = self._above(max(seen, default=0))
            claimed = self._patient(registry.claim)
            # An earlier life that is still alive may have saved since we looked; now it can no more.
            if (claimed and claimed.dir) == (latest and latest.dir):
                break
        self._claimed = None if claimed is None else claimed.dir
        self.has_latest = claimed is not None
        self._found = {one.dir: one for one in found}
        self._left = registry.candidates(latest, found)
        return {"generation": registry.generation, "writer": registry.writer}

    def _above(self, seen: int) -> int:
        if self._raise_to is not None:
            return self._raise_to(seen)
        return max(self._registry.generation, seen + 1)

    def _survey(self) -> tuple[Latest | None, list[Found]]:
        latest = None
        problems: list[str] = []
        try:
            latest = self._registry.latest()
        except CheckpointCorrupt as error:
            problems.append(f"{LATEST}: {error}")
            log.error("passed over: %s", problems[0])  # noqa: TRY400 - a trace adds nothing to the message
        found = self._registry.checkpoints()
        self.problems = problems
        return latest, found

    def _next(self, *, allow_fresh: bool) -> dict[str, JSON] | None:
        """Return the next checkpoint whose manifest is sound, on the first rank; None: begin at nothing."""
        self._mark_bad()
        while self._left:
            candidate = self._left.pop(0)
            try:
                self._offered, crc = self._read_twice(candidate.dir, candidate.manifest_crc)
            except CheckpointCorrupt as error:
                self._pass_over(candidate.dir, error)
                self._mark_bad()
                continue
            if self._offered.healthy:
                return {"dir": candidate.dir, "crc": crc, "problems": list(self.problems)}
            self._note(f"{candidate.dir} was saved as unhealthy")
        exists = self.problems or any(one.is_complete for one in self._found.values())
        if exists and not allow_fresh:
            reasons = "; ".join(self.problems) or "all were saved as unhealthy"
            raise StoreError(
                f"{self._registry.store.url} holds checkpoints, but none can be used, and starting at step 0 "
                f"would lose them: {reasons}. Mend or move them, use another run_id, or insist on a new "
                f"start with allow_fresh=True or SPOTWATCH_ALLOW_FRESH=1"
            )
        return None

    def _take(self, offer: dict[str, Any]) -> Manifest:
        if self._offered is not None and self._offered.dir == offer["dir"]:
            return self._offered
        return self._read_twice(offer["dir"], offer["crc"])[0]

    def _read_twice(self, directory: str, crc: str | None) -> tuple[Manifest, str]:
        try:
            return self._patient(lambda: self._read(directory, crc))
        except CheckpointCorrupt as error:
            # A bit may have turned over on the way here; reading again is cheaper than going back.
            log.warning("%s does not verify, reading it once more: %s", directory, error)
            return self._patient(lambda: self._read(directory, crc))

    def _read(self, directory: str, crc: str | None) -> tuple[Manifest, str]:
        manifest, crc = self._registry.manifest_and_crc(directory, crc)
        if self._world.is_first:
            self._expect_sizes(manifest)
        return manifest, crc

    def _expect_sizes(self, manifest: Manifest) -> None:
        # Before anybody reserves memory for what a manifest only claims.
        found = self._found.get(manifest.dir)
        for file in manifest.files:
            if found is None:
                download.expect_size(
                    self._registry.store,
                    f"{manifest.dir}/{file.name}",
                    file,
                    self._between,
                    patience_seconds=0,
                )
            elif (there := found.sizes.get(file.name)) != file.size_bytes:
                size = "is missing" if there is None else f"has {there} bytes"
                raise CheckpointCorrupt(
                    f"{manifest.dir}/{file.name} {size}, its manifest says {file.size_bytes}"
                )

    def _is_quarantined(self, directory: str) -> bool:
        return directory in self._found and self._found[directory].is_quarantined

    def _pass_over(self, directory: str, error: CheckpointCorrupt) -> None:
        self._note(str(error) if directory in str(error) else f"{directory}: {error}")
        self._registry.bad.add(directory)
        self._offered = None
        self._unmarked[directory] = str(error)

    def _mark_bad(self) -> None:
        """Put what did not verify into quarantine, on the first rank."""
        if not self._unmarked:
            return
        # It may be gone because another process has the run by now, and has pruned.
        self._patient(self._registry.assert_ours)
        for directory, reason in self._unmarked.items():
            # A directory that LATEST names and no listing shows is not made by marking it.
            if directory in self._found:
                self._registry.quarantine(directory, reason)
        self._unmarked.clear()

    def _note(self, problem: str) -> None:
        self.problems.append(problem)
        log.error("passed over: %s", problem)

    def _patient(self, call: Callable[[], T]) -> T:
        self._between()
        return patiently(call, self._patience_seconds, waiting_with(self._between))
