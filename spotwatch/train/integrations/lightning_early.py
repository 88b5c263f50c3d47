# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SLF001 - what the fit loop iterates over has no public name
"""Training loaders that a Lightning trainer has made before it was told where they are to go on.

`trainer.estimated_stepping_batches` makes them, which many ask for in `configure_optimizers` or in `setup`;
the fit loop makes none anew then. It knows nothing of what the loaders are, nor of where they go on.
"""

from __future__ import annotations

from typing import Any

from spotwatch.train.integrations.lightning_made import errors_shown


def are_made(trainer: Any) -> bool:
    """Tell whether the fit loop has loaders that it goes on to use when it begins."""
    fit_loop = trainer.fit_loop
    return fit_loop._data_fetcher is not None and not fit_loop._should_reload_train_dl


def begin_followed(trainer: Any) -> None:
    """Iterate over them from their beginning, for they were begun before anyone followed them."""
    for source in trainer.fit_loop._combined_loader.flattened:
        source.note_begun()
    begin_again(trainer)


def begin_again(trainer: Any) -> None:
    """Iterate over them from where they are to begin now: workers and batches ahead are those of before.

    The loaders themselves stay: a program that makes them by chance makes the same in each life.
    """
    fit_loop = trainer.fit_loop
    fetcher = fit_loop._data_fetcher
    fetcher.teardown()
    fetcher.setup(fit_loop._combined_loader)
    with errors_shown(fit_loop):
        iter(fetcher)
