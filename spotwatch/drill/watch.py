# SPDX-License-Identifier: Apache-2.0
"""What daemon and trainer of a rehearsed machine say to each other, seen from outside, with our own clock.

It writes nothing there and judges nothing but one thing: a save outside the drill's own run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from spotwatch import handshake
from spotwatch.drill.timeline import Timeline
from spotwatch.errors import HandshakeError, SpotwatchError
from spotwatch.handshake import Status
from spotwatch.journal import read_journal
from spotwatch.model import Do

_LOOK_SECONDS = 0.01


class Watch:
    """Looks at a machine's runtime directory a hundred times a second.

    Args:
        runtime_dir: the machine's.
        run_url: where alone the trainer may save.
        cloud: for the timeline.
        timeline: told of orders, answers and saves.
        on_look: called after each look.
    """

    def __init__(
        self, runtime_dir: Path, run_url: str, cloud: str, timeline: Timeline, on_look: Callable[[], None]
    ) -> None:
        self._runtime_dir = runtime_dir
        self._run_url = run_url.rstrip("/") + "/"
        self._cloud = cloud
        self._timeline = timeline
        self._on_look = on_look
        self._has_flag = False
        self._seen_seq = 0
        self._resumed_step: int | None = None
        self.status: Status | None = None
        """The trainer's last word; None: it has said nothing."""
        self.trains_since: float | None = None
        """When it said that it trains; monotonic, as all moments here."""
        self.ordered_at: dict[int, float] = {}
        self.saved_at: dict[int, float] = {}
        """When a durable save was seen that contains the order of that number."""

    @property
    def resumed_step(self) -> int:
        """Return the step from which the trainer said that it goes on; 0: from the beginning."""
        return self._resumed_step or 0

    def look(self) -> None:
        """See what is there now.

        Raises:
            SpotwatchError: the trainer saves outside the drill's run.
        """
        now = time.monotonic()
        with contextlib.suppress(HandshakeError):
            order = handshake.read_order(self._runtime_dir)
            if order is not None and order.do is not Do.NONE and order.seq not in self.ordered_at:
                self.ordered_at[order.seq] = now
                self._say(f"told to {order.do.value} ({order.why})")
        statuses, _ = handshake.read_statuses(self._runtime_dir, owners={os.getuid()})
        for status in statuses:
            self._take(status, now)
        has_flag = os.path.lexists(self._runtime_dir / handshake.FLAG)
        if self._has_flag and not has_flag and self.status is None:
            self._say("the flag was removed: acknowledged")
        self._has_flag = has_flag
        self._on_look()

    def _take(self, status: Status, now: float) -> None:
        saved = status.saved
        if saved.url and not saved.url.startswith(self._run_url):
            raise SpotwatchError(
                f"the trainer saved to {saved.url}, outside the drill's store {self._run_url}; give "
                "Checkpointer no store of its own making: SPOTWATCH_CHECKPOINT_URL must decide"
            )
        if saved.at is not None:
            for seq in self.ordered_at:
                if seq <= saved.seq and seq not in self.saved_at:
                    self.saved_at[seq] = now
                    self._say(
                        f"step {saved.step} is durable: {saved.size_bytes} bytes, re-read from the store"
                    )
        if status.phase == "seen" and status.seq > self._seen_seq:
            self._seen_seq = status.seq
            self._say("the trainer has seen it")
        if status.phase in ("resuming", "waiting"):
            self.trains_since = None
        elif self.trains_since is None:
            self.trains_since = now
        if saved.at is not None and self._resumed_step is None:
            self._resumed_step = min(saved.step, status.step)
        self.status = status

    def _say(self, text: str) -> None:
        self._timeline.event(self._cloud, text)


@contextlib.asynccontextmanager
async def watching(watch: Watch) -> AsyncIterator[asyncio.Task[None]]:
    """Keep looking while the context is open; the task ends only by raising what `look` raises."""

    async def run() -> None:
        while True:
            watch.look()
            await asyncio.sleep(_LOOK_SECONDS)

    task = asyncio.create_task(run(), name="drill-watch")
    try:
        yield task
    finally:
        task.cancel()
        # Its error belongs to whoever waits on the task; here only its end counts.
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()


def read_orders(state_dir: Path) -> list[tuple[str, str]]:
    """Return what the daemon's journal holds: each order given, with its answer or nothing."""
    orders: dict[int, str] = {}
    answers: dict[int, str] = {}
    for event in read_journal(state_dir)[0]:
        if event.name == "ordered" and event.data["do"] != Do.NONE:
            orders[int(event.data["seq"])] = str(event.data["do"])
        elif event.name == "answered":
            for seq in orders:
                if seq <= int(event.data["seq"]):
                    answers.setdefault(seq, str(event.data["answer"]))
    return [(do, answers.get(seq, "")) for seq, do in sorted(orders.items())]
