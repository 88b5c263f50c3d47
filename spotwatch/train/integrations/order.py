# SPDX-License-Identifier: Apache-2.0
"""Which samples a loader's batches were made of, so that another order is found when they are passed over.

Whatever has changed it: a seed, the strategy, a sampler of a program's own. It keeps a digest, no samples.
"""

from __future__ import annotations

import contextlib
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from spotwatch.errors import ConfigError

_MOST_AHEAD = 1024
"""Batches that workers may have been given before they are trained."""


class Order:
    """A digest of the samples of an epoch, up to each of its last batches.

    Args:
        advice: what to do where they are others.
    """

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._digests: deque[int | None] = deque(maxlen=_MOST_AHEAD)
        self._drawn = 0

    def begin(self) -> None:
        """Begin an epoch."""
        self._digests.clear()
        self._digests.append(0)
        self._drawn = 0

    @property
    def drawn(self) -> int:
        """How many batches the sampler has made, also those that workers are still to read."""
        return self._drawn

    def at(self, number: int) -> int | None:
        """Return the digest of so many batches; None where it is not known."""
        back = self._drawn - number
        return self._digests[-1 - back] if 0 <= back < len(self._digests) else None

    def fits(self, digest: int | None, number: int) -> bool:
        """Tell whether the first batches, so many, may be those that have this digest."""
        return digest is None or self.at(number) in (None, digest)

    def expect(self, digest: int | None, number: int) -> None:
        """Refuse to go on behind other samples than those that were trained.

        Raises:
            ConfigError: the first batches, so many, have another digest.
        """
        if not self.fits(digest, number):
            raise ConfigError(
                f"the run was stopped within an epoch after {number} batches, and these would be of other "
                f"samples now: {self._advice}"
            )

    def of(self, batches: Any, calls: Callable[[int], None] | None = None) -> Any:
        """Return a sampler's batches, followed.

        Args:
            batches: a sampler of batches.
            calls: is called before each is drawn, with its number.
        """
        return _Followed(batches, self, calls)

    @contextlib.contextmanager
    def following(self, base: Any) -> Iterator[None]:
        """Follow the sampler of a DataLoader of torch's, if an iterator of it is made in here."""
        own = getattr(base, "__dict__", {}).get("batch_sampler")
        begins = getattr(type(base), "_get_iterator", None)
        if own is None or begins is None or not begins.__module__.startswith("torch.utils.data"):
            yield
            return
        # Which it refuses to have set.
        vars(base)["batch_sampler"] = self.of(own)
        try:
            yield
        finally:
            vars(base)["batch_sampler"] = own

    def draw(self, samples: Any) -> None:
        """Note the samples of the next batch."""
        before = self._digests[-1]
        if before is None:
            return
        self._drawn += 1
        try:
            self._digests.append(zlib.crc32(array("q", samples), before))
        except (TypeError, ValueError, OverflowError):
            self._digests.append(None)  # what is no number may look otherwise in each life


class _Followed:
    def __init__(self, batches: Any, order: Order, calls: Callable[[int], None] | None) -> None:
        self._batches = batches
        self._order = order
        self._calls = calls

    def __iter__(self) -> Iterator[Any]:
        self._order.begin()
        calls = self._calls or _nothing
        calls(0)
        # At once, for there are samplers that draw when they begin.
        return self._follow(iter(self._batches), calls)

    def _follow(self, batches: Iterator[Any], calls: Callable[[int], None]) -> Iterator[Any]:
        for number, samples in enumerate(batches, start=1):
            self._order.draw(samples)
            yield samples
            calls(number)

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def _nothing(number: int) -> None:
    del number
