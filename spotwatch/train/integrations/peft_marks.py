# SPDX-License-Identifier: Apache-2.0
"""Whether a tensor may have changed: which one it is, torch's count of writes, a few bytes of its memory.

It reads too little to be sure; who must be looks at every byte where a mark differs. Importing it does not
import torch.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spotwatch.train.state.tensors import is_sharded

if TYPE_CHECKING:
    import torch

# Looked at in three places of each tensor at each save: so little that training does not feel it.
_SAMPLE_BYTES = 64
# PyBUF_READ of Python's object.h.
_READ_ONLY = 0x100


@dataclass(frozen=True, slots=True)
class Mark:
    """What changes when a tensor does, or when another one takes its place."""

    writes: int
    """Torch's count of them."""
    samples: bytes
    """Of its memory, in three places."""
    address: int
    """Of its first byte; 0 where samples are not taken."""
    tensor: weakref.ref[torch.Tensor] | None
    """Itself, for a new one may have an old one's address; None where it is sharded."""

    def is_same(self, other: Mark | None) -> bool:
        """Tell whether two marks are of the same tensor, and of the same values as far as is known."""
        if other is None or (self.writes, self.samples, self.address) != (
            other.writes,
            other.samples,
            other.address,
        ):
            return False
        return _referred(self.tensor) is _referred(other.tensor)


def marks(found: Mapping[str, torch.Tensor]) -> dict[str, Mark]:
    """Return the mark of each tensor, by name."""
    samples: dict[str, bytes] = {}
    elsewhere: dict[Any, dict[str, list[torch.Tensor]]] = {}
    for name, tensor in found.items():
        size = _size_bytes(tensor)
        length = min(size, _SAMPLE_BYTES)
        places = (0, (size - length) // 2, size - length) if size else ()
        if tensor.is_cpu:
            pieces = [ctypes.string_at(tensor.data_ptr() + place, length) for place in places]
            samples[name] = b"".join(pieces)
        else:
            there = _bytes(tensor) if size else None
            elsewhere.setdefault(tensor.device, {})[name] = [
                there[place : place + length] for place in places if there is not None
            ]
    for pieces_of_one in elsewhere.values():
        samples |= _fetched(pieces_of_one)
    return {name: _mark(tensor, samples[name]) for name, tensor in found.items()}


def memory(address: int, size_bytes: int) -> memoryview:
    """Return so much memory from an address on, to read; it must outlive what is returned."""
    view = ctypes.pythonapi.PyMemoryView_FromMemory
    view.restype = ctypes.py_object
    view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
    result: memoryview = view(address, size_bytes, _READ_ONLY)
    return result


def _mark(tensor: torch.Tensor, samples: bytes) -> Mark:
    address = tensor.data_ptr() if samples else 0
    # FSDP2 may put another tensor for the same shard, and who finds that cannot look at it alone.
    return Mark(_writes(tensor), samples, address, None if is_sharded(tensor) else weakref.ref(tensor))


def _referred(tensor: weakref.ref[torch.Tensor] | None) -> torch.Tensor | None:
    return None if tensor is None else tensor()


def _writes(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - autograd's documented name for it


def _size_bytes(tensor: torch.Tensor) -> int:
    """Return of how many bytes in one piece samples may be taken; 0 where the tensor has none itself."""
    if is_sharded(tensor) or hasattr(tensor, "__tensor_flatten__") or tensor.is_meta:
        return 0
    size = tensor.numel() * tensor.element_size()
    begin = tensor.storage_offset() * tensor.element_size()
    # A view with steps between its elements lies in more; samples of its neighbours do no harm.
    return size if begin + size <= tensor.untyped_storage().nbytes() else 0


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

    begin = tensor.storage_offset() * tensor.element_size()
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), begin, (_size_bytes(tensor),), (1,))


def _fetched(pieces: Mapping[str, list[torch.Tensor]]) -> dict[str, bytes]:
    """Return samples of one device, by one copy, for which an accelerator is waited for once."""
    import torch  # noqa: PLC0415 - as above

    flat = [piece for group in pieces.values() for piece in group]
    if not flat:
        return dict.fromkeys(pieces, b"")
    whole = torch.cat(flat).cpu()
    data = bytes(memory(whole.data_ptr(), whole.numel()))
    result = {}
    at = 0
    for name, group in pieces.items():
        length = sum(len(piece) for piece in group)
        result[name] = data[at : at + length]
        at += length
    return result
