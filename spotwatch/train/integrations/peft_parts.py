# SPDX-License-Identifier: Apache-2.0
"""What a model is made of: which of its tensors training changes, and which it only reads.

It copies none, and knows neither checkpoints nor checksums. Importing it imports neither torch nor peft.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# What a layer of peft wraps; all else below such a layer is of an adapter (tuners/tuners_utils.py and
# utils/other.py of peft 0.21.2).
_WRAPPED = ("base_layer", "original_module")
# What torch puts between a module and its own wrapper; the next life may have none, or others.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a model."""

    tensor: torch.Tensor
    is_buffer: bool
    is_adapters: bool
    """It is of an adapter, active or not, or a statistic of a normalisation: saved, trainable or not."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """The classes of peft that a model may be made of; none where peft is not imported."""

    layers: tuple[type[Any], ...] = ()
    wrappers: tuple[type[Any], ...] = ()
    tuners: tuple[type[Any], ...] = ()
    models: tuple[type[Any], ...] = ()


def kinds() -> Kinds:
    """Return the classes to look for: a model can hold none of peft's that was not imported."""
    if "peft" not in sys.modules:
        return Kinds()
    from peft import PeftMixedModel, PeftModel  # noqa: PLC0415 - it is there, or the model would not be
    from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer  # noqa: PLC0415 - likewise
    from peft.utils.other import AuxiliaryTrainingWrapper  # noqa: PLC0415 - likewise

    return Kinds((BaseTunerLayer,), (AuxiliaryTrainingWrapper,), (BaseTuner,), (PeftModel, PeftMixedModel))


def parts(model: Any) -> dict[str, Part]:
    """Return every tensor that belongs to the model's state, by name; a tied one under each of its names.

    Buffers that a module does not keep in its own `state_dict` are left out, for it computes them anew; those
    of adapters are not, for they may be drawn by chance.
    """
    return dict(_parts(model, "", kinds(), set(), is_adapters=False))


def extras(model: Any, found: dict[str, Part]) -> dict[str, torch.Tensor]:
    """Return what the model's `state_dict` holds beside `found`, such as the scales of a quantized layer."""
    import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

    known = {id(part.tensor) for part in found.values()}
    return {
        shown(name): value
        for name, value in model.state_dict(keep_vars=True).items()
        if isinstance(value, torch.Tensor) and id(value) not in known
    }


def shown(name: str) -> str:
    """Return the name of a tensor without what `torch.compile` and torch's own wrappers put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _parts(
    module: Any, path: str, known: Kinds, seen: set[int], *, is_adapters: bool
) -> Iterator[tuple[str, Part]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    for name, parameter in module.named_parameters(path, recurse=False, remove_duplicate=False):
        yield shown(name), Part(parameter, is_buffer=False, is_adapters=is_adapters)
    derived = module._non_persistent_buffers_set  # noqa: SLF001 - torch has no public name for it
    has_statistics = _counts(module)
    for name, buffer in module.named_buffers(path, recurse=False, remove_duplicate=False):
        if is_adapters or name.rpartition(".")[2] not in derived:
            yield shown(name), Part(buffer, is_buffer=True, is_adapters=is_adapters or has_statistics)
    for name, child in module._modules.items():  # noqa: SLF001 - named_children() leaves out second names
        if child is not None:
            below = _is_adapters(module, name, child, known, is_adapters=is_adapters)
            place = f"{path}.{name}" if path else name
            yield from _parts(child, place, known, seen, is_adapters=below)


def _is_adapters(module: Any, name: str, child: Any, known: Kinds, *, is_adapters: bool) -> bool:
    if isinstance(module, known.layers + known.wrappers):
        return name not in _WRAPPED
    if isinstance(module, known.tuners):
        # What all layers of one adapter share: VeRA's projections, VB-LoRA's bank.
        return type(child).__name__ in ("BufferDict", "ParameterDict", "ParameterList")
    if isinstance(module, known.models):
        return name == "prompt_encoder"
    return is_adapters


def _counts(module: Any) -> bool:
    """Tell whether it is a normalisation whose statistics follow the batches it sees."""
    import torch  # noqa: PLC0415 - as above

    return isinstance(module, torch.nn.modules.batchnorm._NormBase)  # noqa: SLF001 - the base of all of them
