# SPDX-License-Identifier: Apache-2.0
"""The files that ModelCheckpoint remembers, and what becomes of them where its `dirpath` is another one.

So it is in each life where none was given: Lightning counts its version of the run up, and then forgets the
best models, although their files may be here. This module neither reads, writes nor removes one.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

log = logging.getLogger("spotwatch.train")


def find_again(trainer: Any, states: dict[str, Any]) -> dict[str, Any]:
    """Return the states of callbacks such that those go on with their files which find all of them here.

    Args:
        trainer: whose callbacks know their `dirpath`; all ranks must ask.
        states: of a life before, by `state_key`.
    """
    found = {}
    for one in trainer.checkpoint_callbacks:
        state = states.get(one.state_key, {})
        if "dirpath" not in state or state["dirpath"] == one.dirpath:
            continue
        # The first rank writes them, and what is compared with the best must be the same on all.
        if trainer.strategy.broadcast(not _missing(_paths(state))):
            found[one.state_key] = state | {"dirpath": one.dirpath}
    return states | found


def warn_of_missing(trainer: Any) -> None:
    """Say that files which ModelCheckpoint remembers are not here."""
    for one in trainer.checkpoint_callbacks:
        missing = _missing(_paths(vars(one)))
        if missing:
            log.warning(
                "%s remembers %s, which was written on another machine and is not here: give it a dirpath "
                "that outlives the machine, or ckpt_path='best' will not find it; without a dirpath, what "
                "comes next is not compared with it either",
                *(type(one).__name__, ", ".join(missing)),
            )


def _paths(state: dict[str, Any]) -> set[str]:
    names = ("best_model_path", "last_model_path", "kth_best_model_path")
    return {state.get(name) or "" for name in names} | set(state.get("best_k_models", ()))


def _missing(paths: set[str]) -> list[str]:
    """Return those that are not here; what is behind a URL outlives machines."""
    return sorted(path for path in paths if path and "://" not in path and not Path(path).exists())
