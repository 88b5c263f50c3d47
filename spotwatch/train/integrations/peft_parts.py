# SPDX-License-Identifier: Apache-2.0
"""What a model is made of: which of its tensors training changes, and which it only reads.

It copies none, and knows neither checkpoints nor checksums. Importing it imports neither torch nor peft.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from spotwatch.train.state.tensors import is_tensor

if TYPE_CHECKING:
    import torch

# What a layer of peft wraps; all else below such a layer is of an adapter (tuners/tuners_utils.py and
# utils/other.py of peft 0.21.2).
_WRAPPED = ("base_layer", "original_module")
# What torch puts between a module and its own wrapper; the next life may have none, or others.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")
# torch/nn/modules/module.py: under this name a module's own word stands in its state_dict.
_EXTRA = "_extra_state"


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a model."""

    tensor: torch.Tensor
    is_buffer: bool
    is_adapters: bool
    """It is of an adapter, active or not, or a statistic of a normalisation: saved, trainable or not."""


@dataclass(slots=True)
class Parts:
    """A model, taken apart."""

    tensors: dict[str, Part] = field(default_factory=dict)
    """By name; a tied one under each of its names."""
    layers: dict[str, Any] = field(default_factory=dict)
    """The layers of peft, by name."""
    keepers: dict[str, Any] = field(default_factory=dict)
    """Modules that keep state which is no tensor of theirs (`get_extra_state`), by name."""


class _Kind(Enum):
    LAYER = auto()
    MODEL = auto()
    NORMALISATION = auto()
    OTHER = auto()


def take_apart(model: Any) -> Parts:
    """Return every tensor that belongs to the model's state.

    Buffers that a module does not keep in its own `state_dict` are left out, for it computes them anew; those
    of adapters are not, for they may be drawn by chance.
    """
    return _Walk().begin(model)


def is_peft_model(model: Any) -> bool:
    """Tell whether it is one of peft's own models, which have ways to switch adapters."""
    return isinstance(model, _peft()[_Kind.MODEL])


def extras(model: Any, known: Parts) -> dict[str, torch.Tensor]:
    """Return what the model's `state_dict` holds beside `known`, such as the scales of a quantized layer."""
    there = {id(part.tensor) for part in known.tensors.values()}
    held = model.state_dict(keep_vars=True)
    found = (_tensors(value, shown(name)) for name, value in held.items() if not name.endswith(_EXTRA))
    return {path: tensor for each in found for path, tensor in each if id(tensor) not in there}


def shown(name: str) -> str:
    """Return the name of a tensor without what `torch.compile` and torch's own wrappers put into it."""
    for wrapper in _WRAPPERS:
        if wrapper in name:
            name = name.replace(wrapper, "")
    return name


def _tensors(value: object, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if is_tensor(value):
        yield path, value  # type: ignore[misc]  # is_tensor imports no torch, so it cannot narrow
    elif isinstance(value, (list, tuple)):  # torch's own quantized layers keep weight and bias so
        for index, item in enumerate(value):
            yield from _tensors(item, f"{path}.{index}")


def _peft() -> dict[_Kind, tuple[type[Any], ...]]:
    """Return the classes to look for: a model can hold none of peft's when it was not imported."""
    if "peft" not in sys.modules:
        return {_Kind.LAYER: (), _Kind.MODEL: ()}
    from peft import PeftMixedModel, PeftModel  # noqa: PLC0415 - it is there, or the model would not be
    from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: PLC0415 - likewise
    from peft.utils.other import AuxiliaryTrainingWrapper  # noqa: PLC0415 - likewise

    return {
        _Kind.LAYER: (BaseTunerLayer, AuxiliaryTrainingWrapper),
        _Kind.MODEL: (PeftModel, PeftMixedModel),
    }


class _Walk:
    """One look at all modules. Training waits for it at each save, so each class is looked at once."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

        self._says_nothing = torch.nn.Module.get_extra_state
        normalisation = torch.nn.modules.batchnorm._NormBase  # noqa: SLF001 - the base of all that keep statistics
        self._classes = _peft() | {_Kind.NORMALISATION: (normalisation,)}
        self._kinds: dict[type, _Kind] = {}
        self._seen: set[int] = set()
        self._found = Parts()

    def begin(self, model: Any) -> Parts:
        """Return what there is."""
        self._visit(model, "", is_adapters=False)
        return self._found

    def _visit(self, module: Any, path: str, *, is_adapters: bool) -> None:
        self._seen.add(id(module))
        kind = self._kind(type(module))
        for name, tensor, is_buffer in _own(module, is_adapters=is_adapters):
            saved = is_adapters or (is_buffer and kind is _Kind.NORMALISATION)
            self._found.tensors[path + name] = Part(tensor, is_buffer, saved)
        if kind is _Kind.LAYER:
            self._found.layers[path[:-1]] = module
        if type(module).get_extra_state is not self._says_nothing:
            self._found.keepers[path[:-1]] = module
        for name, child in module._modules.items():  # noqa: SLF001 - named_children() makes a generator of each
            if child is not None and id(child) not in self._seen:
                below = _is_adapters(kind, name, is_adapters=is_adapters)
                self._visit(child, shown(f"{path}{name}."), is_adapters=below)

    def _kind(self, cls: type) -> _Kind:
        if cls not in self._kinds:
            found = (kind for kind, classes in self._classes.items() if issubclass(cls, classes))
            self._kinds[cls] = next(found, _Kind.OTHER)
        return self._kinds[cls]


def _own(module: Any, *, is_adapters: bool) -> Iterator[tuple[str, torch.Tensor, bool]]:
    """Yield the tensors that a module has itself: name, tensor, whether it is a buffer."""
    for name, parameter in module._parameters.items():  # noqa: SLF001 - as above
        if parameter is not None:
            yield name, parameter, False
    for name, buffer in module._buffers.items():  # noqa: SLF001 - as above
        is_kept = name not in module._non_persistent_buffers_set  # noqa: SLF001 - it has no public name
        if buffer is not None and (is_kept or is_adapters):
            yield name, buffer, True


def _is_adapters(kind: _Kind, name: str, *, is_adapters: bool) -> bool:
    # What layers share (VeRA's projections, VB-LoRA's bank) is met below the first layer that has it.
    if kind is _Kind.LAYER:
        return name not in _WRAPPED
    if kind is _Kind.MODEL:
        return name == "prompt_encoder"
    return is_adapters
