# SPDX-License-Identifier: Apache-2.0
"""The safetensors file form: a length, a JSON header, raw tensors. Where each lies in one buffer.

Form: https://github.com/huggingface/safetensors#format (read 2026-11-29). It opens no file, checks no
checksum, copies nothing in bulk, and knows nothing of models. Importing it does not import torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spotwatch.errors import CheckpointCorrupt, ConfigError

if TYPE_CHECKING:
    import torch

Buffer = bytearray | memoryview

# Name in the file -> (name in torch, bytes of one element).
_DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "C64": ("complex64", 8),
    "I64": ("int64", 8),
    "U64": ("uint64", 8),
    "I32": ("int32", 4),
    "U32": ("uint32", 4),
    "I16": ("int16", 2),
    "U16": ("uint16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}
_NAMES = {f"torch.{torch_name}": name for name, (torch_name, _) in _DTYPES.items()}
_LENGTH_BYTES = 8
# The reference reader's own limit.
_MOST_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where one tensor lies in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Offset in the file, not in the data part."""
    end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A whole file: its header's bytes, the tensors' places, its size."""

    head: bytes
    places: tuple[Place, ...]
    size_bytes: int


def is_tensor(value: object) -> bool:
    """Tell whether `value` is a torch tensor of any kind, without importing torch."""
    return any(c.__module__ == "torch" and c.__name__ == "Tensor" for c in type(value).__mro__)


def is_sharded(tensor: torch.Tensor) -> bool:
    """Tell whether it is a DTensor, of which this rank holds a part."""
    return hasattr(tensor, "placements")


def check(tensor: torch.Tensor, path: str) -> None:
    """Refuse a tensor that the file form cannot hold as it is.

    Raises:
        ConfigError: it is sparse, sharded, made of other tensors, on the meta device, or of a dtype without a
            name.
    """
    if is_sharded(tensor):
        raise ConfigError(f"{path}: a sharded tensor (DTensor); one process alone saves whole tensors only")
    if hasattr(tensor, "__tensor_flatten__"):
        raise ConfigError(
            f"{path}: a {type(tensor).__qualname__}, made of other tensors; keep those in state_dict()"
        )
    if str(tensor.layout) != "torch.strided" or tensor.is_quantized or tensor.is_meta:
        what = "quantized" if tensor.is_quantized else f"{tensor.layout} on {tensor.device}"
        raise ConfigError(
            f"{path}: a tensor that is {what} cannot be saved; keep a dense copy in state_dict()"
        )
    if str(tensor.dtype) not in _NAMES:
        raise ConfigError(
            f"{path}: dtype {tensor.dtype} has no name in safetensors; keep another in state_dict()"
        )


def plan(tensors: Mapping[str, torch.Tensor]) -> Layout:
    """Return where each tensor will lie: widest elements first, so that all are aligned."""
    wanted = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    rows: dict[str, Any] = {}
    offset = 0
    for name, tensor in wanted:
        size = tensor.numel() * tensor.element_size()
        rows[name] = {
            "dtype": _NAMES[str(tensor.dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(rows, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(_LENGTH_BYTES, "little") + text
    places = tuple(
        Place(name, row["dtype"], tuple(row["shape"]), *(len(head) + at for at in row["data_offsets"]))
        for name, row in rows.items()
    )
    return Layout(head, places, len(head) + offset)


def raw_bytes(tensor: torch.Tensor) -> bytearray:
    """Return the elements of `tensor` in row order, as they lie in memory."""
    check(tensor, "tensor")
    size = tensor.numel() * tensor.element_size()
    buffer = bytearray(size)
    view(buffer, Place("", _NAMES[str(tensor.dtype)], tuple(tensor.shape), 0, size)).copy_(tensor.detach())
    return buffer


def read(buffer: Buffer) -> Layout:
    """Return the layout of the file in `buffer`, checked so that no tensor reaches outside its place.

    Raises:
        CheckpointCorrupt: it is no safetensors file, or it has gaps or overlaps.
    """
    try:
        length = int.from_bytes(buffer[:_LENGTH_BYTES], "little")
        start = _LENGTH_BYTES + length
        if len(buffer) < _LENGTH_BYTES or length > _MOST_HEADER_BYTES or start > len(buffer):
            raise ValueError(f"a header of {length} bytes in a file of {len(buffer)}")
        rows = json.loads(bytes(buffer[_LENGTH_BYTES:start]))
        places = [_place(name, row, start) for name, row in rows.items() if name != "__metadata__"]
        places.sort(key=lambda place: (place.begin, place.end))
        at = start
        for place in places:
            if place.begin != at:
                raise ValueError(f"{place.name!r} begins at {place.begin}, not at {at}")
            at = place.end
        if at != len(buffer):
            raise ValueError(f"tensors end at {at} of {len(buffer)} bytes")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointCorrupt(f"no safetensors file: {error!r}") from error
    return Layout(bytes(buffer[:start]), tuple(places), len(buffer))


def _place(name: str, row: Mapping[str, Any], start: int) -> Place:
    _, element_bytes = _DTYPES[row["dtype"]]
    shape = tuple(row["shape"])
    begin, end = row["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (*shape, begin, end)):
        raise ValueError(f"{name!r} has a negative or fractional size")
    if end - begin != math.prod(shape) * element_bytes:
        raise ValueError(f"{name!r} of shape {shape} has {end - begin} bytes")
    return Place(name, row["dtype"], shape, start + begin, start + end)


def unpack(buffer: Buffer, layout: Layout) -> dict[str, torch.Tensor]:
    """Return the tensors as views of `buffer`, on the CPU; it lives as long as one of them does."""
    return {place.name: view(buffer, place) for place in layout.places}


def view(buffer: Buffer, place: Place) -> torch.Tensor:
    """Return the part of `buffer` that is at `place`, as a tensor on the CPU."""
    import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

    dtype = getattr(torch, _DTYPES[place.dtype][0])
    if place.begin == place.end:
        return torch.empty(place.shape, dtype=dtype)
    count = math.prod(place.shape)
    return torch.frombuffer(buffer, dtype=dtype, count=count, offset=place.begin).view(place.shape)
