# SPDX-License-Identifier: Apache-2.0
"""Which methods of a Lightning trainer are replaced, on its instances, and how they are put back.

It does not know what is done in their place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_HOOKED: dict[str, dict[str, tuple[str, ...]]] = {
    "_checkpoint_connector": {"resume_start": ("checkpoint_path", "weights_only"), "resume_end": ()},
    "_signal_connector": {"register_signal_handlers": ()},
    "fit_loop": {
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


def missing(trainer: Any) -> list[str]:
    """Return what this version of Lightning does not have, or has with other parameters."""
    return [
        ".".join(part for part in (path, name) if part)
        for path, names in _HOOKED.items()
        for name, parameters in names.items()
        if not _takes(getattr(_owner(trainer, path), name, None), parameters)
    ]


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
