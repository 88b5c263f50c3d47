# SPDX-License-Identifier: Apache-2.0
"""Which checkpoint to go on from: the one LATEST names, else the newest other that verifies, else none.

Trouble with the store is never taken for an empty one. It restores nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from spotwatch.errors import CheckpointCorrupt, ConfigError, StoreError, StoreMissing
from spotwatch.train.manifest import LATEST, Latest, Manifest
from spotwatch.train.registry import Found, Registry
from spotwatch.train.schedule import pause_seconds

log = logging.getLogger("spotwatch.train")
T = TypeVar("T")

_TICK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint whose every byte has been verified."""

    manifest: Manifest
    body: bytearray


class Resume:
    """Finds the checkpoint to go on from.

    Args:
        registry: of the run; learns the generation, and which checkpoints are bad.
        patience_seconds: for how long a store that refuses is asked again.
        between: called often; what it raises ends the search (a stop was ordered).
    """

    def __init__(self, registry: Registry, patience_seconds: float, between: Callable[[], None]) -> None:
        self._registry = registry
        self._patience_seconds = patience_seconds
        self._between = between
        self.problems: list[str] = []
        """Why checkpoints were passed over."""

    def load(self, name: str, accept: Callable[[Loaded], None], *, allow_fresh: bool) -> Loaded | None:
        """Return the best checkpoint that verifies and that `accept` takes; None on a fresh run.

        Args:
            name: the file of this rank.
            accept: restores it; raises `CheckpointCorrupt` to have the next one tried.
            allow_fresh: begin at nothing although checkpoints exist of which none verifies.

        Raises:
            StoreError: the store cannot be read, or holds checkpoints of which none verifies.
        """
        latest, found = self._patient(self._survey)
        seen = [checkpoint.order[0] for checkpoint in found]
        self._registry.generation = 1 + max([*seen, latest.generation if latest else 0])
        for directory, crc in self._registry.candidates(latest, found):
            try:
                loaded = self._read_twice(directory, crc, name)
                accept(loaded)
            except CheckpointCorrupt as error:
                self._pass_over(directory, error)
                continue
            self._registry.parent = directory
            return loaded
        exists = self.problems or any(checkpoint.is_complete for checkpoint in found)
        if exists and not allow_fresh:
            raise StoreError(
                f"{self._registry.store.url} holds checkpoints, but none can be used, and starting at step 0 "
                f"would lose them: {'; '.join(self.problems)}. Mend or move them, use another run_id, or "
                f"insist on a new start with allow_fresh=True or SPOTWATCH_ALLOW_FRESH=1"
            )
        return None

    def newest_manifest(self) -> Manifest | None:
        """Return the manifest that LATEST names, when both are sound; the store is asked once only."""
        try:
            latest = self._registry.latest()
            if latest is None:
                return None
            return self._registry.manifest(latest.dir, latest.manifest_crc)
        except StoreError as error:
            log.warning("cannot tell what is durable: %s", error)
            return None

    def _survey(self) -> tuple[Latest | None, list[Found]]:
        latest = None
        try:
            latest = self._registry.latest()
        except CheckpointCorrupt as error:
            self._pass_over(LATEST, error)
        return latest, self._registry.checkpoints()

    def _read_twice(self, directory: str, crc: str | None, name: str) -> Loaded:
        try:
            return self._patient(lambda: self._read(directory, crc, name))
        except CheckpointCorrupt as error:
            # A bit may have turned over on the way here; reading again is cheaper than going back.
            log.warning("%s does not verify, reading it once more: %s", directory, error)
            return self._patient(lambda: self._read(directory, crc, name))

    def _read(self, directory: str, crc: str | None, name: str) -> Loaded:
        manifest = self._registry.manifest(directory, crc)
        if manifest.world_size != 1 or name not in manifest.state:
            raise ConfigError(
                f"{directory} was written by {manifest.world_size} ranks; this version reads one"
            )
        body = self._registry.download(manifest, name, self._between)
        return Loaded(manifest, body)

    def _pass_over(self, what: str, error: CheckpointCorrupt) -> None:
        self._registry.bad.add(what)
        self.problems.append(str(error) if what in str(error) else f"{what}: {error}")
        log.error("passed over: %s", self.problems[-1])

    def _patient(self, call: Callable[[], T]) -> T:
        give_up_at = time.monotonic() + self._patience_seconds
        failures = 0
        while True:
            self._between()
            try:
                return call()
            except (StoreMissing, CheckpointCorrupt):
                raise
            except StoreError as error:
                failures += 1
                pause = pause_seconds(failures)
                if time.monotonic() + pause > give_up_at:
                    raise StoreError(f"{error} ({failures} tries in {self._patience_seconds:g} s)") from error
                log.warning("asking again in %.1f s: %s", pause, error)
                self._wait(pause)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._between()
            time.sleep(min(left, _TICK_SECONDS))
