# SPDX-License-Identifier: Apache-2.0
"""A pass over a loader that is begun again, and the batches of it that are passed over.

It knows neither what the loader draws from, nor how many batches are to be passed over.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections.abc import Iterator
from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.integrations.chance import Notes
from spotwatch.train.integrations.order import Order

log = logging.getLogger("spotwatch.train")

_ADVICE = (
    "in what is left of this epoch samples may come twice, or not at all; let dataset, seed and sampler be "
    "what they were, and let a sampler draw its order from a generator or a number that it holds, not from "
    "lists that it changes or from what training has come to"
)


class Replay:
    """Begins passes of one loader, and follows which samples its batches are of.

    Args:
        loader: any; of torch's DataLoader over samples with numbers the order is known.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.order = Order(_ADVICE)

    def begin(self, *, again: bool = False) -> Iterator[Any]:
        """Begin a pass.

        Args:
            again: as a loader does that has begun before: without the draw of a seed for new workers.
        """
        self.order.begin()
        with self.order.following(self._loader):
            return self._without_seed() if again else iter(self._loader)

    def digests(self, taken: int) -> list[Any]:
        """Return what the samples were, as pairs of how many batches and a digest of their order.

        Args:
            taken: that many batches were trained; workers may have been given more.
        """
        return [[number, self.order.at(number)] for number in sorted({taken, self.order.drawn})]

    def pass_over(self, batches: Iterator[Any], count: int, digests: list[Any]) -> None:
        """Pass over the first batches; where possible, without reading their samples.

        Args:
            batches: of a pass that was begun here, all chance as it was before its first batch.
            count: how many.
            digests: what they were when they were trained; that they are of other samples is said.
        """
        notes, before = Notes(), None
        for number in range(count):
            try:
                _pass_one_over(batches)
            except StopIteration:
                break  # of what has no length the rest of this epoch may be nothing
            if not number:
                before = notes.take()
        others = [(digest, number) for number, digest in digests if not self.order.fits(digest, number)]
        if not others:
            return
        if before is None or not _has_moved(before, notes.take()):
            try:
                self.order.expect(*others[0])
            except ConfigError as error:
                log.warning("%s", error)
            return
        # What training drew between its batches is not drawn here: the order may well be drawn on.
        log.warning(
            "the sampler of the training data draws from the global random generators batch by batch: in "
            "what is left of this epoch samples may come twice, or not at all; give it a generator of its own"
        )

    def draw_now(self, batches: Iterator[Any]) -> None:
        """Have torchdata pass over what its sampler has no state for at once, not with its next batch."""
        passing = getattr(batches, "_sampler_iter", None)
        if isinstance(passing, itertools.islice):
            rest = iter(batches._index_sampler)  # type: ignore[attr-defined]  # noqa: SLF001 - as it does itself
            for _ in range(batches._sampler_iter_yielded):  # type: ignore[attr-defined]  # noqa: SLF001 - likewise
                next(rest)
            batches._sampler_iter = rest  # type: ignore[attr-defined]  # noqa: SLF001 - likewise

    def _without_seed(self) -> Iterator[Any]:
        generator, self._loader.generator = self._loader.generator, sys.modules["torch"].Generator()
        try:
            return iter(self._loader)
        finally:
            self._loader.generator = generator


def _pass_one_over(batches: Any) -> None:
    if _yields_by_number(batches):
        batches._next_index()  # noqa: SLF001 - the order without the samples
        batches._num_yielded += 1  # noqa: SLF001 - likewise
    else:
        next(batches)


def _has_moved(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Tell whether a global generator was drawn from: what was not is the same object."""
    torch = sys.modules["torch"]
    return not torch.equal(before["torch"], after["torch"]) or any(
        before[name] is not after[name] for name in before.keys() & after.keys() - {"torch"}
    )


def _yields_by_number(iterator: Any) -> bool:
    """Tell whether samples are read here, by number: then they need not be read to be passed over."""
    return (
        type(iterator).__name__ == "_SingleProcessDataLoaderIter"
        and getattr(iterator, "_dataset_kind", None) == 0  # of torch's _DatasetKind: Map
        and hasattr(iterator, "_next_index")
        and hasattr(iterator, "_num_yielded")
    )
