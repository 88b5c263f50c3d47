# SPDX-License-Identifier: Apache-2.0
"""One life of a run, from taking the lease to its release: its ranks, and what it goes on from.

It neither decides when to save nor speaks to the daemon.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial

from spotwatch.errors import ConfigError, RunTaken, StoreError
from spotwatch.interval import RECLAIM_EVERY_SECONDS
from spotwatch.train.attended import AttendedStore
from spotwatch.train.bounded import is_over_within
from spotwatch.train.consensus import Consensus
from spotwatch.train.lease.lease import Lease
from spotwatch.train.lease.owner import Owner
from spotwatch.train.ranks.ranks import open_world
from spotwatch.train.ranks.sharded import Sharded
from spotwatch.train.registry.download import fetch
from spotwatch.train.registry.manifest import Manifest
from spotwatch.train.registry.registry import RANK_FILE, Registry
from spotwatch.train.registry.resume import Resume
from spotwatch.train.state.staging import Staging
from spotwatch.train.state.state import Snapshot, State
from spotwatch.train.state.tensors import is_sharded
from spotwatch.train.store import Store
from spotwatch.train.world import Alone, World

log = logging.getLogger("spotwatch.train")

_RENEWALS_PER_TTL = 4
_RELEASE_SECONDS = 10.0
_CLOSE_SECONDS = 3.0


class Life:
    """What one process, or one rank of several, holds of its run while it trains.

    Args:
        store: opened at the root of the run.
        run_id: of the run.
        state: what is saved and restored.
        staging: the buffer that both go through.
        environ: says how many ranks there are.
        world_size: 1: a run of one process, whatever launched it.
        owns_store: close the store at the end of each life; its next use opens it again.
        allow_resize: give ranks the state of others where their number has changed.
        patience_seconds: how long a store that refuses is asked again, and one that is silent waited for.
        lease_seconds: without a sign of life for so long, others may go on with the run.
        on_lost: called, by any thread, when another process has the run.
    """

    def __init__(  # noqa: PLR0913 - made once, by name
        self,
        store: Store,
        run_id: str,
        state: State,
        staging: Staging,
        environ: Mapping[str, str],
        *,
        world_size: int | None,
        owns_store: bool,
        allow_resize: bool,
        patience_seconds: float,
        lease_seconds: float,
        on_lost: Callable[[RunTaken], None],
    ) -> None:
        self._store = AttendedStore(store)
        self.registry = Registry(self._store, run_id)
        self.world: World = Alone()
        self._state = state
        self._staging = staging
        self._environ = environ
        self._world_size = world_size
        self._owns_store = owns_store
        self._allow_resize = allow_resize
        self._patience_seconds = patience_seconds
        self._lease = Lease(
            self._store,
            Owner.here(self.registry.writer),
            ttl_seconds=lease_seconds,
            renew_seconds=lease_seconds / _RENEWALS_PER_TTL,
            patience_seconds=patience_seconds,
        )
        self._lease.on_lost = on_lost
        self._has_lease = False
        self._pid = os.getpid()
        self._resume: Resume | None = None
        self._sharded: Sharded | None = None

    @property
    def problems(self) -> list[str]:
        """Return why checkpoints were passed over."""
        return [] if self._resume is None else self._resume.problems

    @property
    def reclaim_every_seconds(self) -> float:
        """Return the mean time between losses without notice, as this run has measured it."""
        if not self.world.is_first:
            return RECLAIM_EVERY_SECONDS  # the first rank's clock decides when saves are due
        return self._lease.history.reclaim_every_seconds()

    def begin(
        self, between: Callable[[], None], waiting: Callable[[str], None], *, allow_fresh: bool
    ) -> Manifest | None:
        """Take the run over and restore the best checkpoint that verifies; None on a fresh run.

        Args:
            between: called often; what it raises ends it on all ranks.
            waiting: told who holds the run, while it is waited for.
            allow_fresh: begin at nothing although checkpoints exist of which none verifies.

        Raises:
            ConfigError: something that is tracked cannot be saved, or the ranks are not connected.
            StoreError: the store cannot be read, or no checkpoint in it can be used.
            StoppedElsewhere: what `between` raised, it raised on another rank.
        """
        with self._store.attending(between, self._patience_seconds) as look:
            return self._begin(look, waiting, allow_fresh=allow_fresh)

    def _begin(
        self, between: Callable[[], None], waiting: Callable[[str], None], *, allow_fresh: bool
    ) -> Manifest | None:
        self.world.close()
        self.world = open_world(self._environ, self._world_size)
        self._sharded = None
        self._resume = resume = Resume(
            self.registry, self.world, self._patience_seconds, between, self._lease.raise_to
        )
        consensus = Consensus(self.world, between)
        # Now, not at the first notice, is the moment to learn that something cannot be saved.
        _, flat = consensus.reach(lambda: self._state.encode(sharded=True))
        if self.world.size > 1 or any(is_sharded(tensor) for tensor in flat.values()):
            self._sharded = self._new_sharded()
            self._sharded.check()
        self._pid = os.getpid()
        atexit.register(self._release_at_exit)
        consensus.tell(lambda: self._take(between, waiting))
        return resume.load(lambda manifest: self._fetch(manifest, between), allow_fresh=allow_fresh)

    def capture(self) -> Snapshot:
        """Copy the state of this rank; on many ranks all do so together."""
        return self._state.capture() if self._sharded is None else self._sharded.capture()

    def warm(self) -> None:
        """Make buffer and store ready for a save of the state as it is now, without waiting for them."""
        # What cannot be saved is the next save's to say; here it would end a training that goes well.
        with contextlib.suppress(ConfigError, StoreError, RuntimeError):
            (self._sharded or self._state).warm()
            self.registry.store.prepare(self._staging.size_bytes)

    def newest_manifest(self) -> Manifest | None:
        """Return the manifest that LATEST names, when both are sound; the store is asked once, in haste."""
        if self._resume is None:
            return None
        with self._store.hurrying():
            return self._resume.newest_manifest()

    @property
    def has_latest(self) -> bool:
        """Tell whether LATEST names something, as far as is known, though its manifest did not come."""
        return self._resume is not None and self._resume.has_latest

    def end(self, ended: str) -> None:
        """Let the others have the run, and end what the store has started here; more than once is harmless.

        Args:
            ended: `stopped`, `finished` or `failed`.
        """
        if os.getpid() != self._pid:
            return  # a child that was forked: the run is its parent's
        atexit.unregister(self._release_at_exit)
        if self._has_lease:
            self._has_lease = False
            self._release(ended)
        if self._owns_store and not is_over_within(_CLOSE_SECONDS, self.registry.store.close):
            log.warning("the store is still at work after %.0f s: it ends with this process", _CLOSE_SECONDS)
        self.world.close()

    def _release(self, ended: str) -> None:
        """Release the lease, but wait for a store that hangs only so long: then the others wait for a TTL."""
        if not is_over_within(_RELEASE_SECONDS, partial(self._lease.release, ended)):
            log.warning(
                "the lease is not released after %.0f s: others wait for it to expire", _RELEASE_SECONDS
            )

    def _release_at_exit(self) -> None:
        """Hold nobody up when the program ends before its loop does; a forked child ends nothing."""
        if os.getpid() == self._pid:
            self._release("failed")

    def _take(self, between: Callable[[], None], waiting: Callable[[str], None]) -> None:
        self.registry.lease_check = self._lease.assert_held
        self.registry.generation = self._lease.take(between, waiting)
        self._has_lease = True
        self._lease.start()
        aborted = self.registry.store.abort_uploads()
        if aborted:
            log.info("removed the parts of %d uploads that were never finished", aborted)

    def _fetch(self, manifest: Manifest, between: Callable[[], None]) -> None:
        if self._sharded is not None or manifest.tensors is not None:
            (self._sharded or self._new_sharded()).restore(manifest, self.registry, between)
            return
        (file,) = manifest.files
        view = self._staging.reserve(file.size_bytes, margin_bytes=0)
        fetch(
            self.registry.store,
            f"{manifest.dir}/{file.name}",
            file,
            view,
            between,
            patience_seconds=self._patience_seconds,
        )
        self._state.restore(view, manifest.state[RANK_FILE.format(0)])

    def _new_sharded(self) -> Sharded:
        return Sharded(self._state, self._staging, self.world, insists=self._allow_resize)
