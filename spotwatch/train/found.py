# SPDX-License-Identifier: Apache-2.0
"""The tensors met in one walk over a run's state, each under the name of the place where it was met first.

It copies none. Importing it does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spotwatch.train import tensors

if TYPE_CHECKING:
    import torch


class Found:
    """Collects tensors; one that is met twice is stored once.

    Args:
        sharded: take DTensors as they are. Else they are refused.
    """

    def __init__(self, *, sharded: bool = False) -> None:
        self._sharded = sharded
        self.by_name: dict[str, torch.Tensor] = {}
        self._seen: dict[tuple[object, ...], str] = {}

    def save(self, value: Any, path: str) -> str | None:
        """Return the name under which `value` is stored; None when it is no tensor.

        Raises:
            ConfigError: it is one that the file form cannot hold.
        """
        if not tensors.is_tensor(value):
            return None
        if self._sharded and tensors.is_sharded(value):
            same: tuple[object, ...] | None = self._identity_of_shard(value, path)
        else:
            tensors.check(value, path)
            same = self._identity(value) if value.numel() else None
        if same is not None and same in self._seen:
            return self._seen[same]
        name = path
        while name in self.by_name:
            name += "~"
        # Holding it keeps its address from being given to another before the walk is over.
        self.by_name[name] = value
        if same is not None:
            self._seen[same] = name
        return name

    @staticmethod
    def _identity(tensor: torch.Tensor) -> tuple[object, ...]:
        # The same memory seen in the same way: tied weights, one state in two groups. Views stay separate.
        return (
            tensor.data_ptr(),
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            tensor.device,
            tensor.is_conj(),
            tensor.is_neg(),
        )

    @staticmethod
    def _identity_of_shard(tensor: Any, path: str) -> tuple[object, ...]:
        local = tensor.to_local().detach()
        tensors.check(local, path)
        # By the storage, not by the address, which all empty parts share: ranks must come to the same names.
        return (
            local.untyped_storage()._cdata,  # noqa: SLF001 - torch has no public name for a storage's identity
            local.storage_offset(),
            local.stride(),
            local.dtype,
            tensor.shape,
            tensor.placements,
        )
