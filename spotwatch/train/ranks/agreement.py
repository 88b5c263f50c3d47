# SPDX-License-Identifier: Apache-2.0
"""What the ranks tell each other in one round, what they agree on from it, and how often there is a round.

It sends nothing and knows no clock. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from spotwatch.errors import ConfigError
from spotwatch.train.world import Wish

SLOW_STEP_SECONDS = 5.0
"""From here on a round is waited for where it is issued: one more step would cost more than the wait."""

# A round costs about a tenth of a millisecond of the training thread, so 32 steps share one only where they
# are short. No more than 32: should steps become long all at once, an order waits for that many of them.
_SHORT_STEP_SECONDS = 0.02
_ROUND_SECONDS = 0.1
_MOST_STRIDE = 32
_FLAGS = ("stop", "flush", "due", "busy", "fatal")
_FAR = 2**62
WIDTH = len(_FLAGS) + 4
"""How many integers one round carries; the greatest over all ranks is taken of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """What one round says; the same on every rank."""

    wish: Wish = field(default_factory=Wish)
    step_seconds: float = 0.0
    """The longest step of any rank since the round before; 0: not known yet."""
    all_left: bool = False
    """No rank is in its loop any more."""

    @property
    def is_slow(self) -> bool:
        """Tell whether rounds are waited for from now on."""
        return self.step_seconds >= SLOW_STEP_SECONDS

    @property
    def acts(self) -> bool:
        """Tell whether the ranks do something because of it: save, leave, or end with an error."""
        return self.wish.stop or self.wish.flush or self.wish.due or self.wish.fatal

    @property
    def ends(self) -> bool:
        """Tell whether all ranks leave their loops because of it."""
        return self.wish.stop or self.wish.fatal


def row(wish: Wish, *, is_first: bool, step: int, step_seconds: float, left: bool) -> list[int]:
    """Return what a rank says in one round.

    Args:
        wish: of this rank; its `due` counts on the first rank alone.
        is_first: whether this is the first rank.
        step: that this rank has done.
        step_seconds: its longest step since the round before.
        left: it is in its loop no more, and has no step to compare.
    """
    said = replace(wish, due=wish.due and is_first)
    return [
        *(int(getattr(said, flag)) for flag in _FLAGS),
        int(step_seconds * 1e6),
        int(not left),
        -_FAR if left else step,
        -_FAR if left else -step,
    ]


def agreed(greatest: Sequence[int]) -> Agreed:
    """Return what the ranks agree on, from the greatest of each integer of their rows.

    Raises:
        ConfigError: ranks that are still in their loops do not count the same steps.
    """
    *flags, micros, staying, highest, negated = greatest
    if staying and highest != -negated:
        raise ConfigError(
            f"step(): the ranks are at different steps, from {-negated} to {highest}; each rank must call "
            f"step() equally often, with the same number"
        )
    wish = Wish(**{flag: bool(value) for flag, value in zip(_FLAGS, flags, strict=True)})
    return Agreed(wish=wish, step_seconds=micros / 1e6, all_left=not staying)


def stride_after(stride: int, step_seconds: float) -> int:
    """Return how many steps later the next round begins; the same on every rank, for its arguments are.

    It grows by doubling only, so that one step measured too short costs little.

    Args:
        stride: as it was for this round.
        step_seconds: as agreed in it.
    """
    if not 0.0 < step_seconds < _SHORT_STEP_SECONDS:
        return 1
    return min(_MOST_STRIDE, 2 * stride, max(1, round(_ROUND_SECONDS / step_seconds)))
