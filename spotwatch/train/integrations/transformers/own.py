# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of the Trainer's own that a run may begin with: which one is asked for, and what it does.

The Trainer reads it. What a run goes on from once it has a checkpoint of ours is known in `course`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spotwatch.train.integrations.transformers import chance, hooks


def asked(train: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return what a call of a Trainer's `train` is given, by name: subclasses take other arguments.

    Raises:
        TypeError: it cannot be called so.
    """
    signature = inspect.signature(train)
    signature.bind(*args, **kwargs)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [name for name, parameter in signature.parameters.items() if parameter.kind is kind]
    names += [name for name in hooks.PUBLIC["train"] if name not in names]
    return dict(zip(names, args, strict=False)) | kwargs


def find(wanted: Any, output_dir: str) -> str | None:
    """Return the folder that `resume_from_checkpoint` means, if there is one."""
    from transformers.trainer_utils import get_last_checkpoint  # noqa: PLC0415 - a Trainer of it is here

    if wanted is None or wanted is False:
        return None
    if wanted is True:
        return get_last_checkpoint(output_dir) if Path(output_dir).is_dir() else None
    return str(wanted) if Path(wanted).is_dir() else None


def chance_in(trainer: Any, folder: str | None) -> chance.Chance | None:
    """Return the random state that training goes on with after such a checkpoint; None if it has none."""
    if folder is None:
        return None
    before = chance.capture()
    trainer._load_rng_state(folder)  # noqa: SLF001 - `hooks`
    held = chance.capture()
    chance.restore(before)
    is_there = any(held[name] != before[name] for name in ("python", "torch"))
    return held if is_there else None
