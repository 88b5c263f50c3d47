# SPDX-License-Identifier: Apache-2.0
"""The tensors met in one walk over a run's state, each under the name of the place where it was met first.

It copies none. Importing it does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spotwatch.errors import ConfigError
from spotwatch.train.state import tensors

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
        self._at: dict[object, list[str]] = {}
        # A model has thousands of tensors of a few kinds, and training waits: each kind is looked at once.
        self._types: dict[type, bool] = {}
        self._kinds: set[tuple[object, ...]] = set()

    def save(self, value: Any, path: str) -> str | None:
        """Return the name under which `value` is stored; None when it is no tensor.

        Raises:
            ConfigError: it is one that the file form cannot hold.
        """
        is_tensor = self._types.get(type(value))
        if is_tensor is None:
            is_tensor = self._types[type(value)] = tensors.is_tensor(value)
            if is_tensor and hasattr(value, "materialize"):
                raise ConfigError(
                    f"{path}: a lazy parameter without a shape, as LazyLinear has at first; give the sizes, "
                    f"or run one batch through the model before the run is resumed"
                )
        if not is_tensor:
            return None
        is_sharded = self._sharded and tensors.is_sharded(value)
        local = value.to_local().detach() if is_sharded else value
        kind = (type(local), local.dtype, local.layout, local.device)
        if kind not in self._kinds:
            tensors.check(local, path)  # before its address is asked for, which a sparse one does not have
            self._kinds.add(kind)
        if is_sharded:
            # Not by the address, which all empty parts share: every rank must come to the same names.
            storage = local.untyped_storage()._cdata  # noqa: SLF001 - its identity has no public name
            at: object = (storage, local.storage_offset())
        else:
            at = (value.device, value.data_ptr()) if value.numel() else None
        neighbours = self._at.setdefault(at, []) if at is not None else []
        for name in neighbours:
            if _is_same(self.by_name[name], value):
                return name
        name = path
        while name in self.by_name:
            name += "~"
        # Holding it keeps its address from being given to another before the walk is over.
        self.by_name[name] = value
        neighbours.append(name)
        return name


def _is_same(one: Any, other: Any) -> bool:
    """Tell whether two tensors that begin in the same memory see it in the same way; views stay separate."""
    if (
        one.dtype != other.dtype
        or one.shape != other.shape
        or tensors.is_sharded(one) != tensors.is_sharded(other)
    ):
        return False
    if tensors.is_sharded(one):
        if one.placements != other.placements:
            return False
        one, other = one.to_local(), other.to_local()
    return bool(
        one.stride() == other.stride() and one.is_conj() == other.is_conj() and one.is_neg() == other.is_neg()
    )
