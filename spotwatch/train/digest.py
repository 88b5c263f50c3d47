# SPDX-License-Identifier: Apache-2.0
"""One number for all weights of a model: equal exactly when every bit is equal.

It compares nothing and stores nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from spotwatch.train.state import tensors

if TYPE_CHECKING:
    import torch


def digest(module: Any) -> str:
    """Return the SHA-256 over name, dtype, shape and raw bytes of each tensor, in order of their names.

    Args:
        module: anything with `state_dict()`, or such a mapping itself.
    """
    state = module.state_dict() if hasattr(module, "state_dict") else module
    total = hashlib.sha256()
    for name, tensor in sorted(_tensors(state, ""), key=lambda item: item[0]):
        total.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        total.update(tensors.raw_bytes(tensor))
    return total.hexdigest()


def _tensors(value: object, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if tensors.is_tensor(value):
        yield path, value  # type: ignore[misc]  # is_tensor imports no torch, so it cannot narrow
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{path}/{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{path}/{index}")
