# SPDX-License-Identifier: Apache-2.0
"""How long a loader or a dataset is, where it knows. It reads nothing of it."""

from __future__ import annotations

from typing import Any


def length_of(sized: Any) -> int | None:
    """Return its length; None where it has none, as a stream, whose `__len__` may be there and raise."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):  # torch's loaders and datasets raise either
        return None
