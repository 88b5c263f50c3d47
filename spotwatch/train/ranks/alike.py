# SPDX-License-Identifier: Apache-2.0
"""Whether plain tensors that should be the same on all ranks are so: compared by checksums at each save.

Of what all ranks hold whole a checkpoint keeps one copy. Two things differ by rank all the same:

- Buffers. DistributedDataParallel gives the first rank's to the others before a forward pass that
  synchronizes, so after it they differ again; FSDP2 and `broadcast_buffers=False` never make them equal. They
  are small and are compared whole; one that has differed once is stored by rank from then on.
- Models that are averaged now and then (local SGD, DiLoCo). To store each rank's would multiply every save,
  so a few elements of each tensor are compared, and a difference is said, once.

The checksums travel in a message that a save sends anyway. Nothing is sent here. Importing it does not import
torch.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from spotwatch.errors import StoreError
from spotwatch.model import JSON
from spotwatch.train.ranks import sharing
from spotwatch.train.ranks.layout import object_of
from spotwatch.train.state import tensors

if TYPE_CHECKING:
    import torch

log = logging.getLogger("spotwatch.train")

# A step of any optimizer changes nearly all elements of a tensor.
_SAMPLED = 32
# Of what is compared, so much is copied at a time.
_PART_BYTES = 16 * 2**20
_SHOWN = 3
Sums = dict[str, int]
"""A checksum of each tensor, by its name."""


class Alike:
    """What one rank knows of what differs by rank; the same on all ranks that track an object."""

    def __init__(self) -> None:
        self.by_rank: set[str] = set()
        """Names of the buffers that are stored by rank."""
        self._buffers: frozenset[str] | None = None
        self._has_warned = False

    def forget(self) -> None:
        """Look anew for which tensors are buffers: others are tracked now, or of other shapes."""
        self._buffers = None

    def look(self, objects: Mapping[str, object], shared: Mapping[str, torch.Tensor]) -> dict[str, JSON]:
        """Return what the other ranks need to know: two checksums of each object.

        Args:
            objects: that are tracked.
            shared: tensors of all ranks together, by name.

        Raises:
            StoreError: a tensor cannot be read.
        """
        if self._buffers is None:
            self._buffers = frozenset(sharing.buffer_names(objects))
        rows: dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        with _reading():
            for name, is_buffer, row in self._rows(shared):
                rows.setdefault(object_of(name), ([], []))[not is_buffer].append(row)
            return {name: [_sum_of(one) for one in both] for name, both in rows.items()}

    def _rows(self, shared: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, bool, torch.Tensor]]:
        """Yield what is compared: names, whether they are buffers, and elements in row order."""
        buffers = self._buffers or ()
        for name, tensor in shared.items():
            if name in self.by_rank or tensors.is_sharded(tensor):
                continue
            if name in buffers:
                yield name, True, _bytes_if_small(tensor.reshape(-1))
            elif not self._has_warned:
                yield name, False, _bytes_if_small(_sample(tensor))

    def differ(self, told: Sequence[Mapping[str, JSON]]) -> list[str]:
        """Return the objects in which ranks differ, from what each rank has looked at; the same on each."""
        names = dict.fromkeys(name for one in told for name in one)
        return [name for name in names if any(one[name] != _first(told, name) for one in told if name in one)]

    def sums(self, names: Iterable[str], shared: Mapping[str, torch.Tensor]) -> list[Sums]:
        """Return the checksums of buffers, and of samples of the rest, of these objects.

        Raises:
            StoreError: as `look`.
        """
        wanted = frozenset(names)
        of = {name: tensor for name, tensor in shared.items() if object_of(name) in wanted}
        result: list[Sums] = [{}, {}]
        with _reading():
            for name, is_buffer, row in self._rows(of):
                result[not is_buffer][name] = _sum_of([row])
        return result

    def learn(self, told: Sequence[Sequence[Sums]], *, speaks: bool) -> bool:
        """Take what each rank has told by `sums`; tell whether more buffers are stored by rank now.

        Args:
            told: by rank.
            speaks: this rank writes to the log what concerns all.
        """
        buffers, rest = (_unequal([one[of] for one in told]) for of in (0, 1))
        self.by_rank |= buffers
        if rest and not self._has_warned:
            self._has_warned = True
            if speaks:
                _warn(sorted(rest))
        return bool(buffers)


def _warn(names: Sequence[str]) -> None:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    log.warning(
        "the model differs by rank: %s%s; a checkpoint keeps one rank's copy of each, which a resume gives "
        "to all. Where it is meant (local SGD, DiLoCo), track each rank's model and optimizer under names of "
        'its own, ck.track(**{f"model{rank}": model, f"optimizer{rank}": optimizer}), or call ck.step only '
        "where models and optimizers have just been made equal",
        ", ".join(names[:_SHOWN]),
        more,
    )


def _first(told: Sequence[Mapping[str, JSON]], name: str) -> JSON:
    return next(one[name] for one in told if name in one)


def _unequal(told: Sequence[Sums]) -> set[str]:
    names = {name for one in told for name in one}
    return {name for name in names if len({one[name] for one in told if name in one}) > 1}


@contextmanager
def _reading() -> Iterator[None]:
    import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

    try:
        with torch.no_grad():
            yield
    except RuntimeError as error:
        raise StoreError(f"cannot read what the ranks compare: {error!r}") from error


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return a few elements, evenly spaced in row order."""
    import torch  # noqa: PLC0415 - as above

    stride = -(-tensor.numel() // _SAMPLED) or 1
    if tensor.is_contiguous():
        return tensor.view(-1)[::stride]
    # Its rows would be a copy of all of it.
    at = torch.arange(0, tensor.numel(), stride, device=tensor.device)
    return tensor[torch.unravel_index(at, tensor.shape)]


def _bytes_if_small(row: torch.Tensor) -> torch.Tensor:
    import torch  # noqa: PLC0415 - as above

    # Of numbers of eight bits torch cannot join all kinds.
    return row.view(torch.uint8) if row.element_size() == 1 else row


def _sum_of(rows: Iterable[torch.Tensor]) -> int:
    """Return a checksum; many rows are fetched at once, which from a GPU takes as long as one."""
    import torch  # noqa: PLC0415 - as above

    result = 0
    for batch in _batches(sorted(rows, key=lambda row: (str(row.dtype), row.device.type))):
        result = zlib.crc32(tensors.raw_bytes(torch.cat(batch)), result)
    return result


def _batches(rows: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield the rows, long ones in parts, in lists that can be joined and are not too much for memory."""
    pending: list[torch.Tensor] = []
    size = 0
    for row in rows:
        parts = (row,) if row.nbytes <= _PART_BYTES else row.tensor_split(-(-row.nbytes // _PART_BYTES))
        for part in parts:
            fits = not pending or (part.dtype, part.device) == (pending[0].dtype, pending[0].device)
            if not fits or size + part.nbytes > _PART_BYTES:
                if pending:
                    yield pending
                pending, size = [], 0
            pending.append(part)
            size += part.nbytes
    if pending:
        yield pending
