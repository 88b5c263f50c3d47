# SPDX-License-Identifier: Apache-2.0
"""What a newcomer makes of a lease that it looks at again and again: may it take the run, and why not yet.

It is told what was read, and when by the newcomer's own clock; moments that others wrote down count for
nothing. It reads no clock and no store.
"""

from __future__ import annotations

from spotwatch.errors import CheckpointCorrupt
from spotwatch.train.lease.form import LEASE, MOST_GENERATION, Claim, generation_in
from spotwatch.train.lease.history import LOST, STOPPED, History
from spotwatch.train.lease.owner import Owner

# Of the time between two looks no more than this share of the TTL counts. A store that was out of reach kept
# the holder from renewing, too: it is to have its chance first.
_MOST_SHARE_AT_ONCE = 1 / 4


class Watch:
    """Follows one lease.

    Args:
        here: the newcomer.
        ttl_seconds: its own, for a lease that cannot be read.
    """

    def __init__(self, here: Owner, ttl_seconds: float) -> None:
        self._here = here
        self._own_ttl_seconds = ttl_seconds
        self._body: bytes | None = None
        self._claim: Claim | None = None
        self._problem = ""
        self._is_gone = False
        self._is_renewed = False
        self._counted_at = 0.0
        self._quiet_seconds = 0.0

    def see(self, body: bytes | None, asked_at: float, answered_at: float) -> None:
        """Take in what was read.

        Args:
            body: of the lease; None: there is none.
            asked_at: a moment before the reading, on a clock of the caller's that never goes back.
            answered_at: a moment after it.
        """
        if body != self._body:
            before = self._claim
            self._body = body
            self._read()
            # A life's sign is another beat of the same holder, not another holder.
            self._is_renewed = (
                self._claim is not None and before is not None and _are_same(before, self._claim)
            )
            self._quiet_seconds = 0.0
            self._counted_at = answered_at
        else:
            counts = min(asked_at - self._counted_at, self.ttl_seconds * _MOST_SHARE_AT_ONCE)
            self._quiet_seconds += max(counts, 0.0)
            self._counted_at = max(asked_at, self._counted_at)
        self._is_gone = self._claim is not None and self._here.knows_gone(self._claim.owner)

    @property
    def ttl_seconds(self) -> float:
        """Return for how long this lease must be unchanged."""
        return self._own_ttl_seconds if self._claim is None else self._claim.ttl_seconds

    @property
    def left_seconds(self) -> float:
        """Return how much of that is left."""
        return max(self.ttl_seconds - self._quiet_seconds, 0.0)

    @property
    def may_take(self) -> bool:
        """Tell whether nobody has the run any more."""
        if self._body is None or not self.left_seconds:
            return True
        return self._claim is not None and bool(self._claim.released or self._is_gone or self._is_ours)

    @property
    def next_generation(self) -> int:
        """Return the generation of whoever takes it now."""
        generation = generation_in(self._body or b"") if self._claim is None else self._claim.generation
        # The highest of all is no claim that anybody came to by counting; the directories are looked at too.
        return generation + 1 if generation < MOST_GENERATION else 1

    @property
    def history(self) -> History:
        """Return the lives of the run up to now."""
        if self._claim is None:
            return History()
        return self._claim.lives(unsaid=STOPPED if self._is_ours else LOST)

    @property
    def state(self) -> tuple[str, ...]:
        """Return what the text is about; it is worth telling anew when this is another."""
        if self._claim is None:
            return ("unreadable", self._problem)
        return (self._claim.owner.writer, str(self._claim.generation), self._manner)

    @property
    def text(self) -> str:
        """Return for people who has the run, and how long that can last."""
        latest = f"at the latest in {self.left_seconds:.0f} s"
        if self._claim is None:
            return f"{self._problem}; it may be somebody's, and is replaced {latest} unless it changes"
        owner = self._claim.owner
        held = f"the run is held by host {owner.host}, pid {owner.pid}, since {self._claim.taken_at}"
        if self._manner == "alive":
            return (
                f"{held}, and alive: its {LEASE} was renewed while we waited; it is taken over when it is "
                f"released, or not renewed for {self.ttl_seconds:.0f} s"
            )
        return f"{held}; it is taken over {latest} unless it is renewed"

    @property
    def _manner(self) -> str:
        if self._is_renewed and self._quiet_seconds < self.ttl_seconds / 2:
            return "alive"
        return "silent" if self._is_renewed else "unknown"

    @property
    def _is_ours(self) -> bool:
        # An earlier lease of this very process, never given back: whoever made it has made a new one.
        if self._claim is None:
            return False
        return self._here.writer == self._claim.owner.writer or self._here.is_in(self._claim.owner)

    def _read(self) -> None:
        self._claim, self._problem = None, ""
        if self._body is None:
            return
        try:
            self._claim = Claim.from_bytes(self._body)
        except CheckpointCorrupt as error:
            self._problem = str(error)


def _are_same(before: Claim, after: Claim) -> bool:
    return (before.owner.writer, before.generation) == (after.owner.writer, after.generation)
