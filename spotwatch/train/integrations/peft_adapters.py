# SPDX-License-Identifier: Apache-2.0
"""What peft knows of adapters beside their tensors: configurations, switches, scales, AdaLoRA's ranks.

All of it as plain values. It touches no tensor but AdaLoRA's own, and knows no checkpoints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train.integrations.peft_parts import is_peft_model
from spotwatch.train.state.tensors import is_tensor

# Where the base came from is compared by its content; how a weight began matters no more once it is restored.
_NOT_COMPARED = ("base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "peft_version")
# They choose the layers that have adapters, in several ways; which ones have is compared too. A task chooses
# heads likewise, and beside that it matters to prompt learning alone (peft 0.21.2, peft_model.py).
_CHOOSING = (
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "modules_to_save",
    "task_type",
)
# By what its layers multiply: `scaling`, or so with the method before it (peft 0.21.2, tuners/*/layer.py).
_SCALES = "scaling"
_RANKS = "rank_pattern"
_IMPORTANCE = ("ipt", "exp_avg_ipt", "exp_avg_unc")


def configs(model: Any) -> dict[str, dict[str, Any]]:
    """Return the configuration of each adapter as plain values, by the adapter's name."""
    made = getattr(model, "peft_config", None)
    if not isinstance(made, Mapping):
        return {}
    return {str(name): _config(config) for name, config in made.items()}


def difference(model: Any, saved: Mapping[str, Mapping[str, Any]], *, are_placed_alike: bool) -> str:
    """Return the first difference between the model's configurations and saved ones, in words; or nothing.

    Args:
        model: that has adapters, or none.
        saved: what `configs` returned.
        are_placed_alike: they are in the layers that they were in: the words that choose these may differ.
    """
    here = configs(model)
    for name in saved.keys() - here.keys():
        return f"the adapter {name!r} is not here: add it before resume(), as the program that saved it did"
    for name in here.keys() - saved.keys():
        return f"the adapter {name!r} is here only: add it after resume(), or start another run_id"
    for name, config in saved.items():
        # What an older peft did not know yet, it did as is the default now.
        made = model.peft_config[name]
        known = _defaults(made) | dict(config)
        is_choice_free = are_placed_alike and not getattr(made, "is_prompt_learning", False)
        free = set(_CHOOSING if is_choice_free else ())
        for key in sorted(known.keys() & (here[name].keys() | config.keys()) - free):
            there, now = known[key], here[name].get(key)
            if there != now:
                return f"adapter {name!r}: {key} was {there!r} when it was saved, and is {now!r} here"
    return ""


def active(model: Any, layers: Mapping[str, Any]) -> list[str]:
    """Return the names of the active adapters.

    Args:
        model: that has them.
        layers: of peft, in this model.
    """
    if is_peft_model(model):
        return [str(name) for name in model.active_adapters]
    return next(([str(name) for name in layer.active_adapters] for layer in layers.values()), [])


def activate(model: Any, names: list[str]) -> None:
    """Make these adapters the active ones.

    Raises:
        StoreError: this model has no way to do so.
    """
    target = model
    if is_peft_model(model) and len(names) != 1:
        target = model.base_model  # the model itself takes one name only
    if not hasattr(target, "set_adapter"):
        raise StoreError(f"the adapters {names} were active: activate them before resume()")
    target.set_adapter(names if len(names) != 1 else names[0])


def are_disabled(layers: Mapping[str, Any]) -> bool:
    """Tell whether a layer's adapters are switched off."""
    return any(layer.disable_adapters for layer in layers.values())


def check(layers: Mapping[str, Any]) -> None:
    """Refuse a model whose base is not apart from its adapters at this moment.

    Raises:
        ConfigError: adapters are merged into the base.
    """
    for name, layer in layers.items():
        merged = getattr(layer, "merged_adapters", None)  # wrappers have it since peft 0.18
        if merged:
            raise ConfigError(
                f"{name}: the adapters {list(merged)} are merged into the base; call "
                f"unmerge_adapter() before the end of the step (and before resume())"
            )


def scales(layers: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return by what each layer multiplies its adapters' outputs: by layer, by adapter; also layers without.

    Set by the configuration at first, and by `set_scale`, `scale_layer` or `hotswap_adapter` at any time.
    """
    return {
        name: {f"{key}.{adapter}": float(held[adapter]) for key, held in _scales(layer) for adapter in held}
        for name, layer in layers.items()
    }


def misplaced(layers: Mapping[str, Any], saved: Mapping[str, Mapping[str, float]]) -> str:
    """Return the first layer that had not the same adapters as here when it was saved, in words; or nothing.

    Args:
        layers: of peft.
        saved: what `scales` returned.
    """
    here = scales(layers)
    for name in sorted(here.keys() | saved.keys()):
        there, now = (sorted(one[name]) if name in one else "no adapters" for one in (saved, here))
        if there != now:
            return (
                f"the layer {name} had {there} when it was saved, and has {now} here: add the same adapters "
                f"to the same layers before resume(), or start another run_id"
            )
    return ""


def restore_scales(layers: Mapping[str, Any], saved: Mapping[str, Mapping[str, float]]) -> None:
    """Give the layers back what `scales` returned."""
    for name, layer in layers.items():
        for key, held in _scales(layer):
            for adapter in held:
                value = saved[name][f"{key}.{adapter}"]
                if is_tensor(held[adapter]):  # so that a compiled model need not be compiled anew
                    held[adapter].fill_(value)
                else:
                    held[adapter] = value


def _scales(layer: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, held in vars(layer).items():
        if key.endswith(_SCALES) and isinstance(held, dict):
            yield key, held


def ranks(model: Any) -> dict[str, Any]:
    """Return what AdaLoRA has learned of which ranks matter; empty for other adapters."""
    return {
        name: {_RANKS: config.rank_pattern} | {key: dict(getattr(allocator, key)) for key in _IMPORTANCE}
        for name, config, allocator in _allocators(model)
    }


def restore_ranks(model: Any, saved: Mapping[str, Any]) -> None:
    """Give AdaLoRA back what `ranks` returned."""
    for name, config, allocator in _allocators(model):
        config.rank_pattern = saved[name][_RANKS]
        devices = {one: parameter.device for one, parameter in model.base_model.model.named_parameters()}
        for key in _IMPORTANCE:
            values = {one: tensor.to(devices[one]) for one, tensor in saved[name][key].items()}
            setattr(allocator, key, values)


def _allocators(model: Any) -> Iterator[tuple[str, Any, Any]]:
    tuner = getattr(model, "base_model", None)
    allocator = getattr(tuner, "rankallocator", None)
    if is_peft_model(model) and allocator is not None:
        yield allocator.adapter_name, allocator.peft_config, allocator


def _config(config: Any) -> dict[str, Any]:
    values = config if isinstance(config, Mapping) else dataclasses.asdict(config)
    kind = _plain(values.get("peft_type"))
    return {
        key: _plain(value)
        for key, value in values.items()
        if key not in _NOT_COMPARED
        and not key.startswith(("init_", "runtime_"))
        and not (kind == "ADALORA" and key == _RANKS)
    }


def _defaults(config: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(config):
        return {}
    result = {}
    for one in dataclasses.fields(config):
        if one.default is not dataclasses.MISSING:
            result[one.name] = _plain(one.default)
        elif one.default_factory is not dataclasses.MISSING:
            result[one.name] = _plain(one.default_factory())
    return result


def _plain(value: Any) -> Any:
    """Return a value without classes of peft's, so that it can be stored and compared."""
    if isinstance(value, Enum):
        return _plain(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(one) for one in value), key=str)
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    # By its address it would differ in each process.
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
