# SPDX-License-Identifier: Apache-2.0
"""The tensors that training only reads: a checksum of each, and whether one has changed since.

It neither saves nor restores them. Importing it does not import torch.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from spotwatch.errors import ConfigError
from spotwatch.train.integrations.peft_marks import Mark, marks, memory
from spotwatch.train.state.tensors import is_sharded

if TYPE_CHECKING:
    import torch

# What is copied here at once, where a tensor is on another device.
_PIECE_BYTES = 16 * 2**20
_MOST_THREADS = 4


class Frozen:
    """What is known of tensors that are not to change."""

    def __init__(self) -> None:
        self._rows: dict[str, str] = {}
        self._marks: dict[str, Mark] = {}
        self._listing: str | None = None

    @property
    def rows(self) -> Mapping[str, str]:
        """Return checksum, dtype and shape of each tensor that is known, by name."""
        return self._rows

    @property
    def listing(self) -> str:
        """Return them as text: a line for each, in order of their names."""
        if self._listing is None:
            self._listing = "\n".join(f"{row} {name}" for name, row in sorted(self._rows.items()))
        return self._listing

    def learn(self, found: Mapping[str, torch.Tensor]) -> None:
        """Look at every byte of these tensors.

        Raises:
            ConfigError: one has no bytes here.
        """
        # First: a change meanwhile must be seen, even if it is looked at twice.
        before = marks(found)
        self._rows |= rows(found)
        self._marks |= before
        self._listing = None

    def forget(self, names: Iterable[str]) -> None:
        """Let these change from now on."""
        for name in names:
            self._marks.pop(name, None)
            if self._rows.pop(name, None) is not None:
                self._listing = None

    def changed(self, found: Mapping[str, torch.Tensor]) -> list[str]:
        """Return which of these tensors are not what they were; each must be known.

        Whatever torch itself has written into is found, by torch's count of such writes, and so is a tensor
        that has taken another's place. What was written past that count (through `.data`) is found where it
        has changed one of three samples of 64 bytes; then all are looked at.

        Raises:
            ConfigError: one has no bytes here any more.
        """
        now = marks(found)
        doubtful = {
            name: found[name] for name, mark in now.items() if not mark.is_same(self._marks.get(name))
        }
        if not doubtful:
            return []
        # What is sharded is not looked at, which all ranks would have to do together.
        sharded = [name for name, tensor in doubtful.items() if is_sharded(tensor)]
        whole = self._differing({name: t for name, t in doubtful.items() if name not in sharded})
        if whole:
            whole = self._differing({name: t for name, t in found.items() if not is_sharded(t)})
        self._marks |= now
        return sorted(sharded + whole)

    def _differing(self, found: Mapping[str, torch.Tensor]) -> list[str]:
        return [name for name, row in rows(found).items() if row != self._rows[name]]


def rows(found: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return checksum, dtype and shape of each tensor as text, by name; each is read once, tied or not.

    Of DTensors all ranks must look at the same, in the same order.

    Raises:
        ConfigError: a tensor has no bytes here.
    """
    for name, tensor in found.items():
        _check(name, tensor)
    once = {id(tensor): tensor for _, tensor in sorted(found.items())}
    crcs: dict[int, str] = {}
    # Their parts are gathered by collectives, which only the training thread may call.
    for key, tensor in once.items():
        if is_sharded(tensor):
            crcs[key] = _crc32(tensor)
    rest = [key for key in once if key not in crcs]
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads, "spotwatch-checksum") as pool:
        crcs |= zip(rest, pool.map(lambda key: _crc32(once[key]), rest), strict=True)
    return {name: f"{crcs[id(tensor)]} {_kind(tensor)}" for name, tensor in found.items()}


def read(listing: str) -> dict[str, str]:
    """Return the rows of a listing by name."""
    result = {}
    for line in listing.splitlines():
        crc, dtype, shape, name = line.split(" ", 3)
        result[name] = f"{crc} {dtype} {shape}"
    return result


def _check(name: str, tensor: torch.Tensor) -> None:
    if tensor.is_meta:
        raise ConfigError(
            f"{name} is on the meta device: its values are not here (offloaded, or not loaded yet), so the "
            f"base cannot be checked; load it to the CPU or an accelerator first"
        )
    if hasattr(tensor, "ds_id"):
        raise ConfigError(f"{name} is split by DeepSpeed ZeRO-3, which keeps its values; use FSDP2")
    if str(tensor.layout) != "torch.strided" or tensor.is_quantized:
        raise ConfigError(f"{name}: the bytes of a tensor that is sparse or quantized by torch are not known")


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} ({','.join(map(str, tensor.shape))})"


def _crc32(tensor: torch.Tensor) -> str:
    total = 0
    for part in _plain(tensor):
        flat = part.detach().resolve_conj().resolve_neg().reshape(-1)
        count = max(_PIECE_BYTES // flat.element_size(), 1)
        for begin in range(0, flat.numel(), count):
            piece = flat[begin : begin + count].cpu()
            total = zlib.crc32(memory(piece.data_ptr(), piece.numel() * piece.element_size()), total)
    return f"{total:08x}"


def _plain(tensor: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that this one is made of, whole, or itself."""
    if is_sharded(tensor):
        yield tensor.detach().full_tensor()
    elif hasattr(tensor, "__tensor_flatten__"):  # torchao's quantized weights are such
        for name in tensor.__tensor_flatten__()[0]:
            yield from _plain(getattr(tensor, name))
    else:
        yield tensor
