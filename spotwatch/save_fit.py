# SPDX-License-Identifier: Apache-2.0
"""Whether a save fits the notice that a cloud gives, and what can be expected when it does not.

Pure, and only told: the order goes out all the same. It does not measure saves and knows no cloud.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from spotwatch.policy import Policy


class Fit(StrEnum):
    """What a window is long enough for."""

    FLUSH_THEN_STOP = "a save at once and another one at the stop"
    STOP = "one save, at the stop"
    TIGHT = "one save, if nothing goes slower than expected"
    NONE = "no save"


def fit(window_seconds: float, save_seconds: float, policy: Policy) -> Fit:
    """Return what fits.

    Args:
        window_seconds: from the notice to the end of the machine.
        save_seconds: how long a save may take, one training step included.
        policy: gives safety factor and margin.
    """
    careful = save_seconds * policy.safety_factor + policy.stop_margin_seconds
    if save_seconds > window_seconds:
        return Fit.NONE
    if careful > window_seconds:
        return Fit.TIGHT
    return Fit.FLUSH_THEN_STOP if save_seconds + careful <= window_seconds else Fit.STOP


def only_periodic(windows: Mapping[str, float], save_seconds: float) -> list[str]:
    """Return a line for each cloud whose window no save fits.

    Args:
        windows: the shortest notice of each cloud watched, in seconds.
        save_seconds: how long a save may take, one training step included.
    """
    return [
        f"{name} gives {window:g} s and a save may take {save_seconds:.3g} s: only periodic saves count here"
        for name, window in windows.items()
        if save_seconds > window
    ]
