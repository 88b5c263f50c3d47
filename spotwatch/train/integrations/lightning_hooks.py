# SPDX-License-Identifier: Apache-2.0
"""What is replaced in a Lightning trainer, and put back; and whether all is there that is used of it.

It does not know what is done in their place.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

_HOOKED: dict[str, dict[str, tuple[str, ...]]] = {
    "_checkpoint_connector": {"resume_start": ("checkpoint_path", "weights_only"), "resume_end": ()},
    "_signal_connector": {"register_signal_handlers": ()},
    "fit_loop": {
        "setup_data": (),
        "_load_combined_loader_states": (),
        "on_run_start": (),
        "on_advance_start": (),
        "on_advance_end": (),
        "on_run_end": (),
    },
    "fit_loop.epoch_loop": {"reset": (), "advance": ("data_fetcher",), "on_advance_end": ("data_fetcher",)},
    "fit_loop.epoch_loop.val_loop": {"run": (), "setup_data": (), "teardown": ()},
    "": {"_teardown": ()},
}
"""What is replaced or called, by whose it is, with its parameters."""

_READ = {
    "_checkpoint_connector": ("_ckpt_path", "_loaded_checkpoint"),
    "_logger_connector": (
        "_callback_metrics",
        "_current_fx",
        "_first_loop_iter",
        "_logged_metrics",
        "_progress_bar_metrics",
    ),
    "fit_loop": (
        "_combined_loader",
        "_data_fetcher",
        "_last_train_dl_reload_epoch",
        "_loaded_from_state_dict",
        "_restarting",
        "_resuming_from_checkpoint",
        "_should_accumulate",
        "_should_reload_train_dl",
    ),
    "fit_loop.epoch_loop": ("_batches_that_stepped", "_results", "_should_accumulate"),
    "fit_loop.epoch_loop.val_loop": (
        "_combined_loader",
        "_data_fetcher",
        "_has_run",
        "_logged_outputs",
        "_on_evaluation_model_train",
        "_results",
        "_seen_batches_per_dataloader",
    ),
}
"""What is read or set, by whose it is."""

_MADE: dict[tuple[str, str], tuple[tuple[Any, ...], tuple[str, ...]]] = {
    ("utilities.combined_loader", "CombinedLoader"): (([],), ("_flattened", "_iterator", "_mode")),
    ("utilities.combined_loader", "_MaxSizeCycle"): (([],), ("_consumed",)),
    ("loops.fetchers", "_PrefetchDataFetcher"): ((), ("batches",)),
}
"""Likewise of what Lightning makes only later: its module, class and arguments."""


class Hooks:
    """What is replaced in one trainer.

    Args:
        trainer: of which nothing is `missing`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._replaced: list[tuple[Any, str]] = []

    def replace(self, path: str, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """Replace a method until `put_back`; return what it was.

        Args:
            path: whose it is, from the trainer on.
            name: of the method, which is checked by `missing`.
            method: is called instead.
        """
        if name not in _HOOKED[path]:
            raise AssertionError(f"{path}.{name} is not among what is checked")
        owner = _owner(self._trainer, path)
        before: Callable[..., Any] = getattr(owner, name)
        setattr(owner, name, method)
        self._replaced.append((owner, name))
        return before

    def put_back(self) -> None:
        """Let all be the trainer's own again; more than once is harmless."""
        for owner, name in self._replaced:
            vars(owner).pop(name, None)
        self._replaced.clear()


def missing(trainer: Any, package: str) -> list[str]:
    """Return what this version of Lightning does not have, or has with other parameters.

    Args:
        trainer: of which nothing is replaced.
        package: `lightning.pytorch` or `pytorch_lightning`.
    """
    methods = [
        f"{path}.{name}"
        for path, names in _HOOKED.items()
        for name, parameters in names.items()
        if not _takes(getattr(_owner(trainer, path), name, None), parameters)
    ]
    attributes = [
        f"{path}.{name}"
        for path, names in _READ.items()
        for name in names
        if not hasattr(_owner(trainer, path), name)
    ]
    later = [
        f"{kind}.{name}"
        for (module, kind), (arguments, names) in _MADE.items()
        for name in names
        if not hasattr(_made(f"{package}.{module}", kind, arguments), name)
    ]
    return [one.removeprefix(".") for one in methods + attributes + later]


def _made(module: str, kind: str, arguments: tuple[Any, ...]) -> Any:
    make = getattr(sys.modules.get(module), kind, None)
    return None if make is None else make(*arguments)


def _owner(trainer: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        trainer = getattr(trainer, part, None)
    return trainer


def _takes(method: Any, parameters: tuple[str, ...]) -> bool:
    if method is None:
        return False
    signature = inspect.signature(method)
    try:
        signature.bind(*parameters)
    except TypeError:
        return False
    named = [one for one in signature.parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    return tuple(one.name for one in named) == parameters
