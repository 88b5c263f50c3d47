# SPDX-License-Identifier: Apache-2.0
"""What peft knows of adapters beside their tensors: configurations, which are active, AdaLoRA's ranks.

All of it as plain values. It touches no tensor but AdaLoRA's own, and knows no checkpoints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train.integrations.peft_parts import is_peft_model

# Where the base came from is compared by its content; how a weight began matters no more once it is restored.
_NOT_COMPARED = ("base_model_name_or_path", "revision", "inference_mode", "auto_mapping", "peft_version")
_RANKS = "rank_pattern"
_IMPORTANCE = ("ipt", "exp_avg_ipt", "exp_avg_unc")


def configs(model: Any) -> dict[str, dict[str, Any]]:
    """Return the configuration of each adapter as plain values, by the adapter's name."""
    made = getattr(model, "peft_config", None)
    if not isinstance(made, Mapping):
        return {}
    return {str(name): _config(config) for name, config in made.items()}


def difference(model: Any, saved: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the first difference between the model's configurations and saved ones, in words; or nothing."""
    here = configs(model)
    for name in saved.keys() - here.keys():
        return f"the adapter {name!r} is not here: add it before resume(), as the program that saved it did"
    for name in here.keys() - saved.keys():
        return f"the adapter {name!r} is here only: add it after resume(), or start another run_id"
    for name, config in saved.items():
        # What an older peft did not know yet, it did as is the default now.
        known = _defaults(model.peft_config[name]) | dict(config)
        for key in sorted(known.keys() & (here[name].keys() | config.keys())):
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
