# SPDX-License-Identifier: Apache-2.0
"""Every source of chance that a run may draw from: Python, numpy, torch on the CPU and on each accelerator.

Only libraries that the trainer has imported are asked. Generators of the trainer's own are tracked by name,
like a model. It stores nothing.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

from spotwatch.errors import CheckpointCorrupt

log = logging.getLogger("spotwatch.train")


def capture() -> dict[str, Any]:
    """Return the state of the global generators."""
    state: dict[str, Any] = {"python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state(legacy=False)
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        # Asking would start the accelerator in a process that does not use it.
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: Mapping[str, Any]) -> None:
    """Put the global generators back.

    Raises:
        CheckpointCorrupt: a state is not one of its generator.
    """
    try:
        random.setstate(state["python"])
        if "numpy" in state:
            import numpy as np  # noqa: PLC0415 - only where the run used it

            np.random.set_state(state["numpy"])  # noqa: NPY002 - the legacy generator is what is restored
        if "torch" in state:
            import torch  # noqa: PLC0415 - only where the run used it

            torch.set_rng_state(state["torch"])
            _restore_cuda(torch, state.get("cuda", []))
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointCorrupt(f"the state of a random generator is refused: {error}") from error


def _restore_cuda(torch: Any, states: list[Any]) -> None:
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if len(states) > here:
        log.warning("random state of %d accelerators, but %d are here: not bit-identical", len(states), here)
    for device, state in enumerate(states[:here]):
        torch.cuda.set_rng_state(state, device)


def adapter(source: object) -> tuple[Callable[[], Any], Callable[[Any], None]] | None:
    """Return how to read and how to set a generator object; None when it is none that we know."""
    if isinstance(source, random.Random):
        return source.getstate, source.setstate
    bits = getattr(source, "bit_generator", None)
    if bits is not None and hasattr(bits, "state"):
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    if hasattr(source, "get_state") and hasattr(source, "set_state"):  # torch.Generator
        return source.get_state, source.set_state
    return None
