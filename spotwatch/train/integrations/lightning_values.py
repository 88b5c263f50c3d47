# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SLF001 - Lightning gives these values no public name, and saves them nowhere
"""What Lightning counts and leaves out of its checkpoints: logged averages, metrics, what loggers were told.

Each is turned into plain values and back. It knows neither when to save nor where the loop stands.
"""

from __future__ import annotations

import importlib
from typing import Any

from spotwatch.train.integrations.lightning_chance import Chance, Draws
from spotwatch.train.integrations.lightning_loader import Source

_META = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")
_FORGOTTEN = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")
"""What ModelCheckpoint does not put into its own state, and needs to know what it has saved."""

_NUMBERS = (bool, int, float)
_KEPT_APART = ("training", "_update_count", "_computed", "_forward_cache")
"""What a metric holds outside of its states, and is saved by itself, or with all modules."""


def capture(trainer: Any) -> dict[str, Any]:
    """Return the values as they are now; tensors are not copied."""
    epoch_loop = trainer.fit_loop.epoch_loop
    connector = trainer._logger_connector
    return {
        "results": {key: _result(value) for key, value in epoch_loop._results.items()},
        "metrics": {
            **{name: _metric(metric) for name, metric in _metrics(trainer.lightning_module)},
            **{name: {"length": len(one)} for name, one in _trackers(trainer.lightning_module)},
        },
        "logged": {
            "logged": dict(connector._logged_metrics),
            "callback": dict(connector._callback_metrics),
            "bar": dict(connector._progress_bar_metrics),
            "first": connector._first_loop_iter,
            "fx": connector._current_fx,
        },
        "validation": {
            "seen": dict(epoch_loop.val_loop._seen_batches_per_dataloader),
            "chances": [Draws(one).own().to_plain() for one in _evaluated(trainer)],
        },
        "forgotten": {
            one.state_key: {name: getattr(one, name) for name in _FORGOTTEN if hasattr(one, name)}
            for one in trainer.checkpoint_callbacks
        },
    }


def restore(trainer: Any, state: dict[str, Any], package: str) -> None:
    """Put the values back; those that a new epoch or evaluation resets must come after that.

    Args:
        trainer: whose results are empty.
        state: from `capture`.
        package: `lightning.pytorch` or `pytorch_lightning`.
    """
    module = trainer.lightning_module
    results = trainer.fit_loop.epoch_loop._results
    results.clear()
    for key, value in state["results"].items():
        results[key] = _new_result(trainer, value, package)
    restore_metrics(module, state["metrics"])
    restore_logged(trainer, state)
    connector, logged = trainer._logger_connector, state["logged"]
    connector._first_loop_iter = logged["first"]
    connector._current_fx = logged["fx"]


def restore_logged(trainer: Any, state: dict[str, Any]) -> None:
    """Put back only what was logged, and what ModelCheckpoint knows of it; a later `restore` does no harm."""
    connector, logged = trainer._logger_connector, state["logged"]
    connector._logged_metrics = dict(logged["logged"])
    connector._callback_metrics = dict(logged["callback"])
    connector._progress_bar_metrics = dict(logged["bar"])
    for one in trainer.checkpoint_callbacks:
        for name, value in state["forgotten"].get(one.state_key, {}).items():
            setattr(one, name, value)


def restore_validation(trainer: Any, state: dict[str, Any], *, is_undone: bool = False) -> None:
    """Go on with what evaluations within training log their steps under, and what their loaders draw from.

    Args:
        trainer: whose data for it is set up.
        state: `validation` of what `capture` returned.
        is_undone: nothing was trained since; else what training draws from too has gone on.
    """
    seen = trainer.fit_loop.epoch_loop.val_loop._seen_batches_per_dataloader
    seen.clear()
    seen.update(state["seen"])
    combined = None if is_undone else trainer.fit_loop._combined_loader
    sources = () if combined is None else (one for one in combined.flattened if isinstance(one, Source))
    trained = {id(generator) for source in sources for generator in source.generators()}
    for loader, plain in zip(_evaluated(trainer), state["chances"], strict=False):
        Draws(loader).put_back(Chance(**plain), but=trained)


def restore_metrics(module: Any, state: dict[str, Any]) -> None:
    """Let the metrics of a model hold what they held."""
    for name, tracker in _trackers(module):
        length = state.get(name, {}).get("length", len(tracker))
        while len(tracker) < length:
            tracker.increment()
        while len(tracker) > length:
            del tracker[-1]
        tracker._increment_called = length > 1
    for name, metric in _metrics(module):
        if name in state:
            for key, value in (state[name]["state"] | state[name]["own"]).items():
                setattr(metric, key, _on(metric.device, value))
            metric._update_count = state[name]["count"]
            metric._computed = _on(metric.device, state[name]["computed"])
            metric._forward_cache = _on(metric.device, state[name]["last"])


def numbers(module: Any) -> dict[str, dict[str, Any]]:
    """Return the numbers that each metric of a model holds beside its states, counts and settings alike."""
    return {
        name: {key: value for key, value in _own(metric).items() if type(value) in _NUMBERS}
        for name, metric in _metrics(module)
    }


def lists(module: Any) -> dict[str, int]:
    """Return how long the lists are that a model holds as plain attributes, which nobody saves."""
    return {key: len(value) for key, value in vars(module).items() if type(value) is list}


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of metrics that what goes on does not change."""
    return {name: {key: _copied(value) for key, value in one.items()} for name, one in state.items()}


def _evaluated(trainer: Any) -> list[Any]:
    combined = trainer.fit_loop.epoch_loop.val_loop._combined_loader
    return [] if combined is None else combined.flattened


def _on(device: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _on(device, one) for key, one in value.items()}
    if isinstance(value, list):
        return [_on(device, one) for one in value]
    return value.to(device) if hasattr(value, "to") else value


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_copied(one) for one in value]
    return value.clone() if hasattr(value, "clone") else value


def _metrics(module: Any) -> list[tuple[str, Any]]:
    """Return the torchmetrics in a model, by name, without importing torchmetrics."""
    return _parts(module, "torchmetrics.metric", "Metric")


def _trackers(module: Any) -> list[tuple[str, Any]]:
    """Return the lists of metrics in a model that grow by one each epoch; the first in each is a pattern."""
    return _parts(module, "torchmetrics.wrappers.tracker", "MetricTracker")


def _parts(module: Any, home: str, kind: str) -> list[tuple[str, Any]]:
    return [
        (name, part)
        for name, part in module.named_modules()
        if any(one.__module__ == home and one.__name__ == kind for one in type(part).__mro__)
    ]


def _own(metric: Any) -> dict[str, Any]:
    """Return what a metric holds outside of its states, as far as these are numbers and tensors."""
    return {
        key: value
        for key, value in vars(metric).items()
        if key not in _KEPT_APART
        and key not in metric.metric_state
        and (type(value) in _NUMBERS or hasattr(value, "untyped_storage"))
    }


def _metric(metric: Any) -> dict[str, Any]:
    return {
        "state": dict(metric.metric_state),
        "own": _own(metric),
        "count": metric._update_count,
        "computed": metric._computed,
        "last": metric._forward_cache,
    }


def _result(result: Any) -> dict[str, Any]:
    meta = result.meta
    state = {key: getattr(result, key) for key in ("value", "cumulated_batch_size") if hasattr(result, key)}
    if not result.is_tensor:
        state.pop("value", None)  # a metric of the model's, which is saved as such
    return {
        "meta": {name: getattr(meta, name) for name in _META},
        "reduce_fx": meta.reduce_fx.__name__,
        "dataloader_idx": meta.dataloader_idx,
        "metric_attribute": meta.metric_attribute,
        "sync": {"_should": meta.sync.should, "rank_zero_only": meta.sync.rank_zero_only},
        "is_tensor": result.is_tensor,
        "is_seen": hasattr(result, "value"),
        "state": state,
        "count": result._update_count,
        "computed": result._computed,
        "last": result._forward_cache,
        "has_reset": result.has_reset,
    }


def _new_result(trainer: Any, value: dict[str, Any], package: str) -> Any:
    made = importlib.import_module(f"{package}.trainer.connectors.logger_connector.result")
    meta = made._Metadata(
        **value["meta"],
        reduce_fx=value["reduce_fx"],
        dataloader_idx=value["dataloader_idx"],
        metric_attribute=value["metric_attribute"],
    )
    meta.sync = made._Sync(fn=trainer.strategy.reduce, **value["sync"])
    result = made._ResultMetric(meta, value["is_tensor"])
    for key, one in value["state"].items():
        setattr(result, key, one)
    if not value["is_tensor"] and value["is_seen"]:
        result.value = trainer.lightning_module.get_submodule(value["metric_attribute"])
    result._update_count, result._computed = value["count"], value["computed"]
    result._forward_cache, result.has_reset = value["last"], value["has_reset"]
    return result
