# SPDX-License-Identifier: Apache-2.0
"""Where a drill takes place: its folder, its store, its runs, and the trainer's command.

It starts nothing. Everything that must outlive a machine lies here: checkpoints, traces, digests, logs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spotwatch.drill.counting import read_trace
from spotwatch.drill.plan import Plan
from spotwatch.drill.timeline import Timeline
from spotwatch.errors import StoreError
from spotwatch.train.store import Store, open_store
from spotwatch.train.stores.directory import DirectoryStore

_OURS = (sys.executable, "-m", "spotwatch.drill.trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What all clouds of one drill share."""

    folder: Path
    tag: str
    """Makes the names of this drill's runs its own, in a store that others use too."""
    store_url: str
    plan: Plan
    timeline: Timeline
    command: tuple[str, ...] = ()
    """The user's trainer; empty: ours."""
    notice_after_seconds: float = 10.0
    """When the notice comes to a trainer that says nothing of itself, counted from its start."""
    limit_seconds: float = 600.0
    """How long a trainer may take until it trains, and until it has finished."""
    by_mail: bool = False
    """A cloud that announces by mail sends the mail itself, signed, and no message made of it."""

    @property
    def is_own(self) -> bool:
        """Tell whether it is the user's trainer."""
        return bool(self.command)

    @property
    def logs(self) -> Path:
        """Return the directory of all logs."""
        return self.folder / "logs"

    def run_id(self, name: str) -> str:
        """Return the run of one cloud, the same on both of its machines."""
        return f"drill-{self.tag}-{name}"

    def store(self, name: str) -> Store:
        """Return the checkpoints of one cloud's run.

        Raises:
            ConfigError: the URL means no store.
        """
        return open_store(self.store_url, self.run_id(name), os.environ)

    def trainer_command(self, name: str) -> tuple[str, ...]:
        """Return what is run on every machine of one cloud."""
        if self.command:
            return self.command
        plan = self.plan
        return (
            *_OURS,
            *("--total-steps", str(plan.total_steps)),
            *("--step-seconds", f"{plan.step_seconds:g}"),
            *("--trace", str(self._trace(name))),
            *("--digest", str(self._digest(name))),
        )

    def trainer_environment(self, name: str) -> Mapping[str, str]:
        """Return what keeps the trainer of one cloud in the scratch store, in a run of its own."""
        own = {"SPOTWATCH_CHECKPOINT_URL": self.store_url, "SPOTWATCH_RUN_ID": self.run_id(name)}
        # The model is tiny, and several trainers share this machine's cores.
        return own if self.command else {**own, "OMP_NUM_THREADS": "1"}

    def steps(self, name: str) -> tuple[int, ...]:
        """Return the steps executed so far in one cloud's run, on all machines; ours writes them down."""
        try:
            text = self._trace(name).read_text(encoding="ascii")
        except FileNotFoundError:
            return ()
        return read_trace(text.splitlines(keepends=True))

    def digest(self, name: str) -> str | None:
        """Return the digest of the final tensors of one cloud's run; None while there is none."""
        try:
            return self._digest(name).read_text(encoding="ascii").strip() or None
        except FileNotFoundError:
            return None

    def remove_checkpoints(self, name: str) -> str:
        """Remove every object of one cloud's run, and return what prevented it, if anything did."""
        try:
            store = self.store(name)
            for entry in list(store.list()):
                store.delete(entry.key)
            if isinstance(store, DirectoryStore):
                store.remove()
        except StoreError as error:
            return f"checkpoints of run {self.run_id(name)} are left in {self.store_url}: {error}"
        return ""

    def _trace(self, name: str) -> Path:
        return self.folder / f"{name}.trace"

    def _digest(self, name: str) -> Path:
        return self.folder / f"{name}.digest"
