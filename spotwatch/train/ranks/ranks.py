# SPDX-License-Identifier: Apache-2.0
"""The ranks of one run under torch.distributed: what they agree on after which step, and everyone's values.

Two gloo groups of their own, one for each thread that speaks: the trainer's groups are never used, so nothing
here can wait for a collective of training, or training for one of ours. What is done about an agreement, and
what a checkpoint is, it does not know. Importing it does not import torch.
"""

from __future__ import annotations

import logging
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock
from time import monotonic
from typing import Any

from spotwatch.errors import ConfigError, StoreError
from spotwatch.model import JSON
from spotwatch.train import arguments
from spotwatch.train.ranks.agreement import Agreed, agreed, row, stride_after
from spotwatch.train.ranks.group import Group, Round
from spotwatch.train.world import Alone, Wish, World

log = logging.getLogger("spotwatch.train")

_CLOSING_SECONDS = 10.0
# The saving thread was waited for before; all that is lost without it is an orderly disconnection.
_SAVING_SECONDS = 1.0


def open_world(environ: Mapping[str, str], world_size: int | None = None) -> World:
    """Return the world that this process is in. All ranks call it, at the same point of the program.

    Args:
        environ: holds `WORLD_SIZE` and `LOCAL_RANK` under torchrun and other launchers.
        world_size: 1: this process is a run of its own whatever launched it; None: as launched.

    Raises:
        ConfigError: `world_size` is no whole number from 1 on; or this process is one of several, but they
            are not connected with each other.
        StoreError: they are, but gloo cannot connect them once more.
    """
    if world_size is not None:
        world_size = arguments.whole("world_size", world_size)
    connected = _connected_ranks()
    if world_size is None:
        text = environ.get("WORLD_SIZE") or str(connected or 1)
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(f"WORLD_SIZE={text!r}: wants a whole number from 1 on; the launcher sets it")
        world_size = int(text)
    if world_size == 1:
        return Alone()
    if connected is None:
        raise ConfigError(
            f"{world_size} ranks, but torch.distributed is not initialised: call init_process_group() before "
            f"resume(); or, if each rank is a run of its own, say world_size=1 with a run_id for each"
        )
    if connected != world_size:
        raise ConfigError(
            f"{world_size} ranks are asked for (world_size or WORLD_SIZE), but torch.distributed connects "
            f"{connected}"
        )
    return Ranks(environ)


def _connected_ranks() -> int | None:
    dist: Any = sys.modules.get("torch.distributed")  # whoever has initialised it has imported it
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    return int(dist.get_world_size())


class Ranks:
    """All ranks of one run, connected by torch.distributed.

    Rounds. At a step's end, after acting, a rank proposes its wish to all (one asynchronous reduction: the
    round begins) and goes on training; at the next step's end it decides by the result, which is the same
    everywhere, so that all ranks act at the same step. The exchange itself is hidden behind that step.

    Freshness. A round begins after the ranks have acted on the one before it. So an order that was just
    carried out is never agreed on twice, and `busy` is never older than the save that it speaks of.

    Cost. Where steps are short, one round serves several (`agreement.stride_after`); where a step takes more
    than five seconds, a round is waited for at the step that it begins at. Both follow from the step time
    that the ranks agreed on in the round before, so all begin their rounds at the same steps.

    Args:
        environ: holds `LOCAL_RANK`; without it the first rank of each host speaks for it.

    Raises:
        StoreError: gloo cannot connect the ranks.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        import torch.distributed as dist  # noqa: PLC0415 - trainers bring it; this package does not need it

        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.is_first = self.rank == 0
        self.front = Group()
        """For the training thread."""
        self._behind = Group()
        self._saving = Lock()
        self._is_closed = False
        self._pending: Round | None = None
        self._last = Agreed()
        self._stride = 1
        # Counted in calls of `decide`, for a program's steps may go up by more than one.
        self._calls = 0
        self._began_at = 0
        self._next_round_at = 1
        self._proposed_at: float | None = None
        self._longest_step_seconds = 0.0
        local = environ.get("LOCAL_RANK", "")
        hosts = self.front.gather([platform.node(), local])
        first_here = [host[0] for host in hosts if isinstance(host, list)].index(platform.node())
        self.speaks = local == "0" if local else first_here == self.rank

    def decide(self, step: int, wish: Wish, *, now: bool = False) -> Wish:
        """Return what all ranks do after `step`; not `agreed` where no round ends at this step.

        Args:
            step: that is done; the same on each rank.
            wish: of this rank, as things are now; used where the round begins and ends at this step.
            now: begin and end a round here; on all ranks or on none. For a save that each rank knows to be
                due at this step (`every_steps`): given with `due`, all learn whether some rank is still busy,
                and ranks that have left their loops learn that they must take part. What was proposed before
                comes first, if there is something to do about it.

        Raises:
            RankGone: a rank has gone.
            ConfigError: the ranks count different steps.
        """
        self._measure()
        self._calls += 1
        result = None if self._pending is None else self._finish(self._pending)
        if (result is None or not result.acts) and (now or (self._last.is_slow and self._is_round_due)):
            result = self._finish(self._begin(step, wish, left=False))
        return Wish(agreed=False) if result is None else result.wish

    def propose(self, step: int, wish: Wish) -> None:
        """Begin a round, where one begins at this step; it does not wait for the others.

        Args:
            step: that is done; the same on each rank.
            wish: of this rank, as things are now that it has acted on what `decide` said.

        Raises:
            RankGone: a rank has gone.
        """
        if self._is_round_due and not self._last.is_slow:
            self._begin(step, wish, left=False)
        self._proposed_at = monotonic()

    @property
    def _is_round_due(self) -> bool:
        return self._pending is None and self._calls >= self._next_round_at

    def settle(self, step: int, wish: Wish, *, again: Callable[[], Wish] | None = None) -> Wish:
        """Take part in the others' rounds from outside the loop, until something is to be done by all.

        Returns once no rank is in its loop any more; `flush` and `due` are False then, since all save at last
        anyway. Returns earlier when the ranks that are still in theirs act: with `flush` or `due`, take part
        in that save and call this again; with `stop` or `fatal`, all leave. After a `decide` that said so, it
        returns that wish at once.

        Args:
            step: the last one of this rank.
            wish: of this rank, as things are now.
            again: asked before each further round, for orders that arrive while waiting; None: `wish` stands.

        Raises:
            RankGone: a rank has gone.
        """
        if self._pending is None and self._last.ends:
            return self._last.wish
        while True:
            result = self._finish(self._pending or self._begin(step, wish, left=True))
            if result.all_left:
                return replace(result.wish, flush=False, due=False)
            if result.acts:
                return result.wish
            wish = wish if again is None else again()

    def everyone(self, value: JSON) -> list[JSON]:
        """Return every rank's value, by rank. For the training thread.

        Raises:
            RankGone: a rank has gone.
        """
        return self.front.gather(value)

    def everyone_behind(self, value: JSON) -> list[JSON]:
        """Return every rank's value, by rank. For the saving thread.

        Raises:
            RankGone: a rank has gone.
        """
        with self._saving:
            return self._behind.gather(value)

    def greatest(self, values: list[int]) -> list[int]:
        """Return the greatest of each integer over all ranks. For the training thread.

        Raises:
            RankGone: a rank has gone.
        """
        return self.front.begin(values).wait()

    def close(self) -> None:
        """Wait for what is under way, for 10 s at most, and disconnect; only this may be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        pending, self._pending = self._pending, None
        try:
            if pending is not None and not pending.is_over_within(_CLOSING_SECONDS):
                # The other ranks are not coming. Disconnecting under it could block; the process ends anyway.
                log.warning("a round is left that the others have not answered for %.0f s", _CLOSING_SECONDS)
                return
        except StoreError as error:
            log.warning("%s", error)
        self.front.close()
        # After an interrupt, or given up, the saving thread may still be waiting for the others.
        if self._saving.acquire(timeout=_SAVING_SECONDS):
            self._behind.close()
            self._saving.release()

    def _begin(self, step: int, wish: Wish, *, left: bool) -> Round:
        longest, self._longest_step_seconds = self._longest_step_seconds, 0.0
        mine = row(wish, is_first=self.is_first, step=step, step_seconds=longest, left=left)
        self._began_at = self._calls
        self._pending = self.front.begin(mine)
        return self._pending

    def _finish(self, pending: Round) -> Agreed:
        self._pending = None
        self._last = agreed(pending.wait())
        self._stride = stride_after(self._stride, self._last.step_seconds)
        self._next_round_at = self._began_at + self._stride
        return self._last

    def _measure(self) -> None:
        # The longest, not the mean: a step that is longer than the others must never be hidden by them.
        if self._proposed_at is not None:
            self._longest_step_seconds = max(self._longest_step_seconds, monotonic() - self._proposed_at)
