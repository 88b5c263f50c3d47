# SPDX-License-Identifier: Apache-2.0
"""The training loop's one object: when to save, what to do when told, and whether the last save is durable.

How state becomes bytes, where they go and what verifies is in the modules beside it. One process, and a save
blocks the loop until it is durable. Importing it does not import torch.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import spotwatch
from spotwatch.errors import ConfigError, RunTaken, StoreError
from spotwatch.handshake import Saved
from spotwatch.train import options
from spotwatch.train.link import Link
from spotwatch.train.manifest import Manifest, crc32
from spotwatch.train.orders import Mark
from spotwatch.train.registry import RANK_FILE, Registry
from spotwatch.train.resume import Loaded, Resume
from spotwatch.train.schedule import Schedule, pause_seconds
from spotwatch.train.signals import worker_init
from spotwatch.train.state import State
from spotwatch.train.store import Store

log = logging.getLogger("spotwatch.train")

FINISHED = 0
DURABLE = 75
NOT_DURABLE = 76
TAKEN = 77

# How long a last save is tried again when no deadline is known, and what is left for the exit when one is.
_LAST_TRIES_SECONDS = 30.0
_EXIT_SECONDS = 2.0


class _StopAskedError(Exception):
    """A stop was ordered while resuming."""


class Checkpointer:
    """Save a run so that it can be taken away at any moment, and go on from there.

    Args:
        url: path, `file://`, `s3://bucket/prefix`, `spaces://bucket/prefix`, or an open store;
            `SPOTWATCH_CHECKPOINT_URL` replaces it.
        run_id: the same on every machine that goes on with this run; `SPOTWATCH_RUN_ID` replaces it.
        keep: how many checkpoints stay.
        every: `"auto"`: as often as the measured cost of a save makes best.
        every_steps: save at each multiple of it instead.
        every_seconds: save this often instead.
        allow_fresh: begin at 0 although checkpoints exist of which none verifies (`SPOTWATCH_ALLOW_FRESH=1`).
        world_size: 1 says that each process under a launcher is a run of its own; None takes `WORLD_SIZE`.
        patience_seconds: how long `resume` asks a store again that refuses.
        give_up_after: this many failed saves in a row raise; None never does.
        environ: instead of `os.environ`.

    Raises:
        ConfigError: an argument or variable cannot be used.
    """

    worker_init = staticmethod(worker_init)

    def __init__(  # noqa: PLR0913 - each is a choice of the user's, with a default, given by name
        self,
        url: str | os.PathLike[str] | Store | None = None,
        *,
        run_id: str | None = None,
        keep: int = 3,
        every: str = "auto",
        every_steps: int | None = None,
        every_seconds: float | None = None,
        allow_fresh: bool = False,
        world_size: int | None = None,
        patience_seconds: float = 60.0,
        give_up_after: int | None = 10,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        env = os.environ if environ is None else environ
        if keep < 1:
            raise ConfigError(f"keep={keep}: at least 1")
        store, self.run_id = options.resolve(url, run_id, world_size, env)
        self._registry = Registry(store, self.run_id)
        self._keep = keep
        self._allow_fresh = allow_fresh or options.insists_on_fresh(env)
        self._patience_seconds = patience_seconds
        self._give_up_after = give_up_after
        self._schedule = Schedule(every, every_steps, every_seconds)
        self._state = State()
        self._step = -1
        self._saved = Saved()
        self._saved_step = -1
        self._wants_out = False
        self._taken = False
        self._exit_code: int | None = None
        self._link = Link(self.run_id, env, lambda: self._step)

    @property
    def exit_code(self) -> int:
        """Return 0 finished, 75 stopped and durable, 76 not durable, 77 another process has taken the run."""
        return NOT_DURABLE if self._exit_code is None else self._exit_code

    def track(self, **objects: object) -> None:
        """Add what is to be saved: anything with `state_dict` and `load_state_dict`, and random generators.

        None is passed over, so that an unused scaler needs no `if`. The global random state is always saved.

        Raises:
            ConfigError: an object can be neither read nor restored.
        """
        self._state.track(objects)

    def resume(self) -> int:
        """Restore the newest checkpoint that verifies and return its step; 0 on a fresh run only.

        Raises:
            SystemExit: a stop is in force; 75 when a durable checkpoint exists, 76 when there is none.
            StoreError: the store cannot be read, or no checkpoint in it can be used.
            ConfigError: something that is tracked cannot be saved.
        """
        if self._state.is_empty:
            raise ConfigError("nothing is tracked; call track(model=..., optimizer=...) before resume()")
        self._link.begin()
        self._link.heart.tell(phase="resuming")
        search = Resume(self._registry, self._patience_seconds, self._leave_if_told)
        name = RANK_FILE.format(0)

        def restore(loaded: Loaded) -> None:
            self._state.restore(loaded.body, loaded.manifest.state[name])

        try:
            # Now, not at the first notice, is the moment to learn that something cannot be saved.
            self._state.capture()
            loaded = search.load(name, restore, allow_fresh=self._allow_fresh)
            self._leave_if_told()
        except _StopAskedError:
            raise SystemExit(self._stopped_early(search.newest_manifest())) from None
        except BaseException as error:
            self._end("failed", repr(error))
            raise
        self._step = 0
        if loaded is not None:
            self._adopt(loaded.manifest)
            # No work is unsaved, so an order to save is answered. A flag touched by hand has its save.
            mark = self._link.orders.mark()
            self._answer(Mark(mark.seq, tuple(flag for flag in mark.flags if flag.seq)))
        self._schedule.begin(self._step)
        self._link.heart.count_from(self._step)
        self._link.heart.tell(phase="training", error="; ".join(search.problems)[:500])
        log.info(
            "run %s goes on from step %d (%s)", self.run_id, self._step, self._registry.parent or "fresh"
        )
        return self._step

    def step(self, step: int) -> bool:
        """Say that `step` steps are done; save when due. True: leave the loop, the save is made.

        Raises:
            StoreError: saving has failed `give_up_after` times in a row.
        """
        self._step = step
        self._wants_out = False
        schedule, link = self._schedule, self._link
        if (
            step >= schedule.next_step
            or link.orders.stop
            or link.orders.flush
            or link.signals.stop
            or time.monotonic() >= schedule.next_at
        ):
            return self._boundary(step)
        return False

    def poll(self) -> bool:
        """Tell whether to break off an evaluation or a warm-up because a stop is in force; saves nothing."""
        if self._is_stopping:
            self._wants_out = True
        return self._wants_out

    def save(self, step: int) -> None:
        """Save now; at return it is durable.

        Raises:
            StoreError: it is not; LATEST names what it named before.
        """
        self._step = step
        self._save(step)

    def __enter__(self) -> Self:
        self._link.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            # After step() said True its verdict stands, also when the loop is left by sys.exit.
            if self._exit_code is None:
                self._exit_code = NOT_DURABLE
            if self._exit_code == DURABLE:
                self._end("durable")
            else:
                self._end("failed", repr(error))
            return
        if self._exit_code is None:
            durable = self._save_at_last(self._step)
            self._conclude(durable=durable, finished=not self._wants_out)
        self._end({FINISHED: "finished", DURABLE: "durable"}.get(self.exit_code, "failed"))

    @property
    def _is_stopping(self) -> bool:
        return self._link.is_stopping or self._taken

    def _end(self, phase: str, error: str = "") -> None:
        told = self._link.is_stopping and self._exit_code in (DURABLE, NOT_DURABLE)
        self._link.end(phase, error, leaving=told)

    def _boundary(self, step: int) -> bool:
        self._link.orders.look()
        if not self._is_stopping:
            if time.monotonic() < self._schedule.pause_until:
                return False
            try:
                self._save(step)
            except RunTaken as error:
                log.error("%s", error)  # noqa: TRY400 - the reason is in the message, a trace adds nothing
            except StoreError as error:
                self._failed(error)
                if self._give_up_after is not None and self._schedule.failures >= self._give_up_after:
                    raise
        if not self._is_stopping:
            return False
        self._wants_out = True
        self._conclude(durable=self._save_at_last(step), finished=False)
        return True

    def _conclude(self, *, durable: bool, finished: bool) -> None:
        if self._taken:
            self._exit_code = TAKEN
        elif not durable:
            self._exit_code = NOT_DURABLE
        else:
            self._exit_code = FINISHED if finished else DURABLE

    def _save_at_last(self, step: int) -> bool:
        """Save what is not saved, again and again while there is time; tell whether it is durable."""
        if step < 0 or self._taken:
            return not self._taken
        if step == self._saved_step:
            self._answer(self._link.orders.mark())
            return True
        deadline = self._link.orders.deadline
        seconds = _LAST_TRIES_SECONDS
        if deadline is not None:
            seconds = (deadline - datetime.now(UTC)).total_seconds() - _EXIT_SECONDS
        give_up_at = time.monotonic() + seconds
        self._schedule.failures = 0
        while True:
            try:
                self._save(step)
            except RunTaken:
                log.exception("step %d is not saved", step)
                return False
            except (StoreError, ConfigError) as error:
                self._failed(error)
                pause = pause_seconds(self._schedule.failures)
                if isinstance(error, ConfigError) or time.monotonic() + pause > give_up_at:
                    log.exception("step %d is not saved", step)
                    return False
                time.sleep(pause)
            else:
                return True

    def _save(self, step: int) -> None:
        mark = self._link.orders.mark()
        begun = time.monotonic()
        eta = self._saved.save_seconds or None
        phase = "seen" if mark.seq > self._saved.seq else "training"
        self._link.heart.tell(phase=phase, seq=mark.seq, eta_seconds=eta)
        try:
            body, state = self._state.capture()
            self._link.heart.tell(phase="uploading")
            manifest = self._registry.publish(
                step=step,
                body=body,
                state=state,
                versions={"spotwatch": spotwatch.__version__, "python": platform.python_version()},
                now=lambda: datetime.now(UTC),
            )
        except RunTaken as error:
            self._taken = True
            self._link.heart.tell(phase="failed", eta_seconds=None, error=str(error)[:500])
            raise
        took = time.monotonic() - begun
        self._adopt(manifest, took)
        self._link.heart.tell(phase="durable", eta_seconds=None, error="")
        self._answer(mark)
        self._schedule.saved(step, took)
        log.info("step %d is durable: %s, %d bytes, %.2f s", step, self._saved.url, manifest.size_bytes, took)
        for old in self._registry.prune(self._keep, manifest):
            log.info("removed %s", old)
        self._link.heart.tell(phase="training", only_in=("durable",))

    def _adopt(self, manifest: Manifest, took: float = 0.0) -> None:
        self._step = self._saved_step = manifest.step
        self._saved = Saved(
            seq=self._saved.seq,
            step=manifest.step,
            at=datetime.now(UTC),
            url=f"{self._registry.store.url}/{manifest.dir}",
            size_bytes=manifest.size_bytes,
            stall_seconds=took,
            save_seconds=took,
            manifest_crc=crc32(manifest.to_bytes()),
        )

    def _answer(self, mark: Mark) -> None:
        # The daemon reads the status first; a flag removed before it would be an answer without a proof.
        self._saved = replace(self._saved, seq=max(self._saved.seq, mark.seq))
        self._link.heart.tell(saved=self._saved, seq=mark.seq)
        self._link.orders.answered(mark, stall_seconds=self._saved.stall_seconds)

    def _failed(self, error: Exception) -> None:
        pause = self._schedule.failed()
        log.warning("step %d is not saved, again in %.0f s: %s", self._step, pause, error)
        self._link.heart.tell(phase="failed", eta_seconds=None, error=str(error)[:500])

    def _leave_if_told(self) -> None:
        if self._is_stopping:
            raise _StopAskedError

    def _stopped_early(self, manifest: Manifest | None) -> int:
        self._exit_code = NOT_DURABLE if manifest is None else DURABLE
        if manifest is None:
            self._end("failed", "stopped before anything was saved")
        else:
            self._adopt(manifest)
            self._answer(self._link.orders.mark())
            self._end("durable")
        log.warning("a stop is in force: not training on; exit %d", self._exit_code)
        return self._exit_code
